/* tapegrad-bench-comm-mpi, the reference for comm.c: measures MPI_Allreduce of the same sizes in the same way. */
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm_sizes.h"
#include "median.h"

static double median_us(float *y, float *x, int64_t bytes) {
    double took[MAX_CALLS];
    int n = calls_of(bytes);
    for (int i = 0; i < n; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        MPI_Allreduce(x, y, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        took[i] = MPI_Wtime() - begun;
    }
    return 1e6 * median(took, n);
}

/* Returns on all ranks whether rank 0 has read another line. Ranks that wait sleep between polls, because MPI's own
 * wait would take a core from the program that is measured meanwhile. */
static bool wait_for_line(int rank, int ranks) {
    int go = 0, arrived = 0;
    if (rank == 0) {
        char line[16];
        go = fgets(line, sizeof line, stdin) != NULL;
        for (int r = 1; r < ranks; r++) MPI_Send(&go, 1, MPI_INT, r, 0, MPI_COMM_WORLD);
        return go;
    }
    while (MPI_Iprobe(0, 0, MPI_COMM_WORLD, &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS && !arrived)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    MPI_Recv(&go, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return go;
}

int main(int argc, char **argv) {
    int rank, ranks;
    float *x[SIZES], *y[SIZES];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 0; i < SIZES; i++) {
        x[i] = calloc((size_t)sizes[i], 1);
        y[i] = calloc((size_t)sizes[i], 1);
        if (!x[i] || !y[i]) MPI_Abort(MPI_COMM_WORLD, 1);
        for (int64_t k = 0; k < sizes[i] / 4; k++) x[i][k] = y[i][k] = 1; /* touches the pages */
    }
    while (wait_for_line(rank, ranks)) {
        for (int i = 0; i < SIZES; i++) {
            double us = median_us(y[i], x[i], sizes[i]);
            if (rank == 0) printf("%.3f%c", us, i + 1 < SIZES ? ' ' : '\n');
        }
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
