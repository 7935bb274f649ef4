/* tapegrad-bench-comm: measures all-reduce of float32 among ranks that are threads or processes of this machine. For
 * each line of standard input it measures every size, and prints a line of medians in microseconds. bench/comm.py runs
 * it in alternation with comm_mpi.c. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <tapegrad/parallel.h>
#include <tapegrad/ranks.h>

#include "bench.h"
#include "comm_sizes.h"
#include "median.h"
#include "../tools/common/spawn.h"

/* Returns the median time of an all-reduce in microseconds. */
static double median_us(tg_comm *c, tg_tensor *y, tg_tensor *x, int64_t bytes) {
    double took[MAX_CALLS];
    int n = calls_of(bytes);
    for (int i = 0; i < n; i++) {
        tg_comm_barrier(c);
        double begun = seconds_now();
        tg_work_wait(tg_comm_all_reduce(c, y, x, TG_REDUCE_SUM));
        took[i] = seconds_now() - begun;
    }
    return 1e6 * median(took, n);
}

/* Returns on all ranks whether rank 0 has read another line, which asks for one more round. */
static bool wait_for_line(tg_comm *c, tg_tensor *go_tensor) {
    char line[16];
    int64_t go = tg_comm_rank(c) || fgets(line, sizeof line, stdin);
    tg_write(go_tensor, &go, sizeof go);
    tg_comm_broadcast(c, go_tensor, 0);
    tg_read(go_tensor, &go, sizeof go);
    return go && tg_ctx_status(tg_comm_ctx(c)) == TG_OK;
}

static tg_status rank_main(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    tg_tensor *x[SIZES], *y[SIZES], *go_tensor = tg_zeros(ctx, TG_I64, TG_SHAPE(1));
    for (int i = 0; i < SIZES; i++) {
        x[i] = tg_zeros(ctx, TG_F32, TG_SHAPE(sizes[i] / 4));
        y[i] = tg_zeros(ctx, TG_F32, TG_SHAPE(sizes[i] / 4));
    }
    while (wait_for_line(c, go_tensor)) {
        for (int i = 0; i < SIZES; i++) {
            double us = median_us(c, y[i], x[i], sizes[i]);
            if (tg_comm_rank(c) == 0) printf("%.3f%c", us, i + 1 < SIZES ? ' ' : '\n');
        }
        fflush(stdout);
    }
    return tg_ctx_status(ctx);
}

/* Runs one rank, in a process that launch has started. */
static int run_launched(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_comm *c = tg_comm_launched_new(ctx);
    rank_main(NULL, ctx, c);
    tg_comm_free(c);
    int failed = tg_ctx_status(ctx) != TG_OK;
    if (failed) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
    return failed;
}

/* Starts this program as n processes, the ranks, and waits for them. */
static int launch(int n, char **argv) {
    tg_launch l;
    pid_t pid[TG_MAX_RANKS];
    int failed = 0, started = 0, error = tg_launch_open(&l, n);
    for (; !error && started < n; started += !error) error = spawn_rank(&l, started, argv, &pid[started]);
    if (error) fprintf(stderr, "cannot start the ranks: %s\n", strerror(error));
    for (int i = 0; i < started; i++) {
        int status;
        waitpid(pid[i], &status, 0);
        tg_launch_ended(&l, i, status);
        failed |= status;
    }
    if (l.fd >= 0) tg_launch_close(&l);
    return error || failed;
}

int main(int argc, char **argv) {
    int n = argc > 2 ? atoi(argv[2]) : 2;
    char message[1024];
    if (tg_comm_launched_rank() >= 0) return run_launched();
    if (n < 1 || n > TG_MAX_RANKS || argc < 2)
        return fprintf(stderr, "tapegrad-bench-comm threads|processes [RANKS]\n"), 2;
    if (!strcmp(argv[1], "processes")) return launch(n, argv);
    tg_ranks_opts *o = TG_RANKS(.config = TG_CONFIG(.threads = 1), .message = message, .message_size = sizeof message);
    if (tg_ranks_run(n, rank_main, NULL, o) == TG_OK) return 0;
    fprintf(stderr, "%s\n", message);
    return 1;
}
