/* MPI, the reference. */
#include <mpi.h>
#include <stdlib.h>

#include "carrier.h"

static MPI_Request sent[2];
static int sends, me;

static void end(void) { MPI_Finalize(); }

void carrier_open(int rank, const char *where) {
    (void)where;
    me = rank;
    MPI_Init(NULL, NULL);
    atexit(end);
}

void carrier_send(const void *data, size_t n) {
    MPI_Isend(data, (int)n, MPI_BYTE, !me, 0, MPI_COMM_WORLD, &sent[sends++]);
}

void carrier_receive(void *data, size_t n) {
    MPI_Recv(data, (int)n, MPI_BYTE, !me, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

void carrier_flush(void) {
    MPI_Waitall(sends, sent, MPI_STATUSES_IGNORE);
    sends = 0;
}
