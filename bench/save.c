/* tapegrad-bench-save [DIR [MEGABYTES]]: measures tg_shards_save on four ranks next to a plain write of as many bytes
 * by as many threads, and steps that run while a save is written in the background next to other steps. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tapegrad/checkpoint.h>
#include <tapegrad/ops.h>
#include <tapegrad/parallel.h>
#include <tapegrad/ranks.h>

#include "bench.h"
#include "median.h"

enum { RANKS = 4, TP = 2, ROUNDS = 5, STEPS = 9, TENSOR = 1 << 20 /* elements of a tensor */, WIDTH = 256 };

typedef struct bench {
    const char *dir;
    int tensors; /* of the state */
    double plain[ROUNDS], saved[ROUNDS], held[ROUNDS], step[STEPS], after[ROUNDS];
    int64_t sent;
} bench;

typedef struct rank {
    bench *b;
    tg_ctx *ctx;
    tg_comm *world;
    tg_parallel *p;
    tg_tensor **x;
    tg_shards *s;
    tg_tape *t;
    tg_tensor *w;
    int number;
} rank;

/* Sets *into on rank 0 to the seconds from the time `begun` until all ranks are here. */
static void note(rank *r, double *into, double begun) {
    tg_comm_barrier(r->world);
    if (r->number == 0) *into = seconds_now() - begun;
}

static double begin(rank *r) {
    tg_comm_barrier(r->world);
    return seconds_now();
}

/* ---- The state ---- */

static void open_state(rank *r) {
    r->x = calloc((size_t)r->b->tensors, sizeof *r->x);
    r->s = tg_shards_new(r->p);
    for (int i = 0; i < r->b->tensors; i++) {
        char key[32];
        r->x[i] = tg_randn(r->ctx, TG_F32, TG_SHAPE(TENSOR / TP), 1);
        tg_place(r->p, r->x[i], TG_TP, TG_SHARD(0));
        tg_place(r->p, r->x[i], TG_DP, TG_R);
        snprintf(key, sizeof key, "layers.%d.weight", i);
        tg_shards_add_tensor(r->s, key, r->x[i]);
    }
}

static void close_state(rank *r) {
    tg_shards_free(r->s);
    for (int i = 0; i < r->b->tensors; i++) tg_drop(r->x[i]);
    free(r->x);
}

/* ---- Writing ---- */

/* Writes this rank's share of the bytes to a file, in pieces of 1 MiB, and syncs it. */
static bool write_plain(rank *r) {
    enum { PIECE = 1 << 20 };
    char path[4096], *bytes = tg_host_data(r->x[0]);
    snprintf(path, sizeof path, "%s/plain-%d", r->b->dir, r->number);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int64_t share = (int64_t)r->b->tensors * TENSOR * 4 / RANKS, part = TENSOR / TP * 4;
    for (int64_t at = 0; fd >= 0 && at < share; at += PIECE)
        if (write(fd, bytes + at % part, PIECE) != PIECE) return false;
    bool good = fd >= 0 && fsync(fd) == 0;
    return close(fd) == 0 && good;
}

static void empty(rank *r, const char *what) {
    char command[4200];
    snprintf(command, sizeof command, "rm -rf %s/%s", r->b->dir, what);
    if (r->number == 0 && system(command) != 0) fprintf(stderr, "cannot remove %s\n", what);
    tg_comm_barrier(r->world);
}

static void measure_writes(rank *r) {
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/saved", r->b->dir);
    for (int i = 0; i < ROUNDS && tg_ctx_status(r->ctx) == TG_OK; i++) {
        double begun = begin(r);
        if (!write_plain(r)) tg_ctx_fail(r->ctx, TG_ERR_IO, "cannot write to '%s'", r->b->dir);
        note(r, &r->b->plain[i], begun);
        empty(r, "plain-*");
        begun = begin(r);
        tg_shards_save(r->s, dir);
        note(r, &r->b->saved[i], begun);
        empty(r, "saved");
    }
}

/* ---- Steps ---- */

static void step(rank *r) {
    tg_tensor *h = r->w;
    for (int i = 0; i < 20; i++) h = tg_matmul(r->t, h, r->w);
    tg_tape_reset(r->t);
}

static void measure_steps(rank *r) {
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/saved", r->b->dir);
    for (int i = 0; i < STEPS; i++) {
        double begun = begin(r);
        step(r);
        note(r, &r->b->step[i], begun);
    }
    for (int i = 0; i < ROUNDS && tg_ctx_status(r->ctx) == TG_OK; i++) {
        double begun = begin(r);
        tg_save *w = tg_shards_save_begin(r->s, dir, TG_SAVE(.background = true));
        note(r, &r->b->held[i], begun);
        begun = begin(r);
        step(r);
        note(r, &r->b->after[i], begun);
        tg_save_finish(w);
        empty(r, "saved");
    }
}

/* ---- The program ---- */

static tg_status run(void *arg, tg_ctx *ctx, tg_comm *world) {
    rank r = {.b = arg, .ctx = ctx, .world = world, .number = tg_comm_rank(world)};
    r.p = tg_parallel_new(world, TG_PARALLEL(.tp = TP));
    open_state(&r);
    tg_comm_info before = TG_COMM_INFO(), after = TG_COMM_INFO();
    tg_comm_query(world, &before);
    measure_writes(&r);
    tg_comm_query(world, &after);
    if (r.number == 0)
        for (int k = 0; k < TG_COLLECTIVES; k++) r.b->sent += (after.bytes[k] - before.bytes[k]) / ROUNDS;
    r.t = tg_tape_new(ctx);
    r.w = tg_randn(ctx, TG_F32, TG_SHAPE(WIDTH, WIDTH), 0.04);
    measure_steps(&r);
    tg_tape_free(r.t);
    tg_drop(r.w);
    close_state(&r);
    tg_parallel_free(r.p);
    return tg_ctx_status(ctx);
}

int main(int argc, char **argv) {
    static bench b;
    char message[1024], made[] = "/tmp/tapegrad-bench-save-XXXXXX";
    b.dir = argc > 1 ? argv[1] : mkdtemp(made);
    b.tensors = (argc > 2 ? atoi(argv[2]) : 1024) * (1 << 20) / (TENSOR * 4);
    tg_status s =
        tg_ranks_run(RANKS, run, &b,
                     TG_RANKS(.config = TG_CONFIG(.threads = 1), .message = message, .message_size = sizeof message));
    if (argc < 2) rmdir(made);
    if (s != TG_OK) return fprintf(stderr, "%s\n", message), 1;
    double plain = median(b.plain, ROUNDS), saved = median(b.saved, ROUNDS), of_steps = median(b.step, STEPS),
           after = median(b.after, ROUNDS);
    printf("%d MB of state on %d ranks, medians of %d\n", b.tensors * 4, RANKS, ROUNDS);
    printf("plain write %.3f s, save %.3f s: ratio %.3f; %lld bytes sent\n", plain, saved, saved / plain,
           (long long)b.sent);
    printf("background: begin takes %.3f s; a step %.3f s, the step after it %.3f s: ratio %.3f\n",
           median(b.held, ROUNDS), of_steps, after, after / of_steps);
    return 0;
}
