/* tapegrad-bench-save [DIR [MEGABYTES [ROUNDS]]]: measures tg_shards_save on four ranks next to a plain write of as
 * many bytes by as many threads, and steps that run while a save is written in the background next to other steps. Both
 * are measured in alternation. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
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

enum { RANKS = 4, TP = 2, MOST = 50 /* rounds */, STEPS = 5 /* of each kind in a round */ };
enum {
    TENSOR = 1 << 20 /* elements of a tensor */,
    WIDTH = 256,
    PRODUCTS = 240 /* of matrices of that width in a step */
};

typedef struct bench {
    const char *dir;
    int tensors, rounds;                                      /* tensors: of the state */
    double plain[MOST], saved[MOST], held[MOST], whole[MOST]; /* whole: from begin to finish, with the steps between */
    double step[MOST * STEPS], first[MOST], after[MOST * STEPS];
    int64_t sent; /* bytes of a save, over all groups of ranks */
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
static bool write_plain(rank *r, const char *path) {
    enum { PIECE = 1 << 20 };
    const char *bytes = tg_host_data(r->x[0]);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int64_t share = (int64_t)r->b->tensors * TENSOR * 4 / RANKS, part = TENSOR / TP * 4;
    bool good = fd >= 0;
    for (int64_t at = 0; good && at < share; at += PIECE) good = write(fd, bytes + at % part, PIECE) == PIECE;
    good = good && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    return good;
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *f) {
    (void)s, (void)type, (void)f;
    return remove(path);
}

/* Removes a folder, if there is one, and what it contains. Returns false if something is left. */
static bool remove_folder(const char *path) {
    return nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT;
}

/* Removes a saved state on rank 0, while the other ranks wait. */
static void remove_saved(rank *r, const char *path) {
    if (r->number == 0 && !remove_folder(path)) fprintf(stderr, "cannot remove '%s'\n", path);
    tg_comm_barrier(r->world);
}

static void measure_writes(rank *r) {
    char dir[4096], plain[4096];
    snprintf(dir, sizeof dir, "%s/saved", r->b->dir);
    snprintf(plain, sizeof plain, "%s/plain-%d", r->b->dir, r->number);
    for (int i = 0; i < r->b->rounds && tg_ctx_status(r->ctx) == TG_OK; i++) {
        double begun = begin(r);
        if (!write_plain(r, plain)) tg_ctx_fail(r->ctx, TG_ERR_IO, "cannot write to '%s'", r->b->dir);
        note(r, &r->b->plain[i], begun);
        unlink(plain);
        begun = begin(r);
        tg_shards_save(r->s, dir);
        note(r, &r->b->saved[i], begun);
        remove_saved(r, dir);
    }
}

/* ---- Steps ---- */

static void step(rank *r) {
    tg_tensor *h = r->w;
    for (int i = 0; i < PRODUCTS; i++) h = tg_matmul(r->t, h, r->w);
    tg_tape_reset(r->t);
}

static void measure_step(rank *r, double *into) {
    double begun = begin(r);
    step(r);
    note(r, into, begun);
}

/* Steps, a save that begins, and as many steps while it is written. */
static void measure_steps(rank *r) {
    char dir[4096];
    bench *b = r->b;
    snprintf(dir, sizeof dir, "%s/saved", b->dir);
    for (int i = 0; i < b->rounds && tg_ctx_status(r->ctx) == TG_OK; i++) {
        for (int k = 0; k < STEPS; k++) measure_step(r, &b->step[i * STEPS + k]);
        double begun = begin(r);
        tg_save *w = tg_shards_save_begin(r->s, dir, TG_SAVE(.background = true));
        note(r, &b->held[i], begun);
        for (int k = 0; k < STEPS; k++) measure_step(r, &b->after[i * STEPS + k]);
        tg_save_finish(w);
        note(r, &b->whole[i], begun);
        if (r->number == 0) b->first[i] = b->after[i * STEPS];
        remove_saved(r, dir);
    }
}

/* Returns the bytes that this rank has sent to its groups so far. */
static int64_t bytes_sent(const rank *r) {
    tg_comm *const comms[] = {r->world, tg_parallel_comm(r->p, TG_TP), tg_parallel_comm(r->p, TG_DP)};
    int64_t all = 0;
    for (size_t i = 0; i < sizeof comms / sizeof *comms; i++) {
        tg_comm_info info = TG_COMM_INFO();
        tg_comm_query(comms[i], &info);
        for (int k = 0; k < TG_COLLECTIVES; k++) all += info.bytes[k];
    }
    return all;
}

/* ---- The program ---- */

static tg_status run(void *arg, tg_ctx *ctx, tg_comm *world) {
    rank r = {.b = arg, .ctx = ctx, .world = world, .number = tg_comm_rank(world)};
    r.p = tg_parallel_new(world, TG_PARALLEL(.tp = TP));
    open_state(&r);
    int64_t before = bytes_sent(&r);
    measure_writes(&r);
    if (r.number == 0) r.b->sent = (bytes_sent(&r) - before) / r.b->rounds;
    r.t = tg_tape_new(ctx);
    r.w = tg_randn(ctx, TG_F32, TG_SHAPE(WIDTH, WIDTH), 0.04);
    measure_steps(&r);
    tg_tape_free(r.t);
    tg_drop(r.w);
    close_state(&r);
    tg_parallel_free(r.p);
    return tg_ctx_status(ctx);
}

static void row(const char *what, double seconds, double of) {
    printf("%-44s %9.4f", what, seconds);
    if (of > 0) printf(" %8.3f", seconds / of);
    puts("");
}

static void print(const bench *b) {
    int n = b->rounds, steps = n * STEPS;
    double plain = median(b->plain, n), step = median(b->step, steps);
    printf("%d MB of state on %d ranks (tp %d, dp %d), medians of %d rounds in alternation\n", b->tensors * 4, RANKS,
           TP, RANKS / TP, n);
    printf("%-44s %9s %8s\n", "", "seconds", "ratio");
    row("plain write of as many bytes, synced", plain, 0);
    row("save", median(b->saved, n), plain);
    row("a step", step, 0);
    row("the first step after a save began", median(b->first, n), step);
    row("a step while it is written", median(b->after, steps), step);
    row("begin of the save: the copy", median(b->held, n), 0);
    row("begin to finish, with the steps", median(b->whole, n), 0);
    printf("sent for a save: %lld bytes, of which %d are of 16 bytes for each rank and each part; of tensors: %lld\n",
           (long long)b->sent, 16 * RANKS * (1 + b->tensors), (long long)b->sent - 16 * RANKS * (1 + b->tensors));
}

static int64_t number(const char *text, int64_t most) {
    int64_t n = strtoll(text, NULL, 10);
    return n < 1 ? 1 : n < most ? n : most;
}

int main(int argc, char **argv) {
    static bench b;
    char message[1024], made[] = "/tmp/tapegrad-bench-save-XXXXXX";
    b.dir = argc > 1 ? argv[1] : mkdtemp(made);
    if (!b.dir) return perror(made), 1;
    b.tensors = (int)((argc > 2 ? number(argv[2], 1 << 20) : 1024) * (1 << 20) / (TENSOR * 4));
    if (b.tensors < 1) b.tensors = 1;
    b.rounds = (int)(argc > 3 ? number(argv[3], MOST) : 5);
    tg_status s =
        tg_ranks_run(RANKS, run, &b,
                     TG_RANKS(.config = TG_CONFIG(.threads = 1), .message = message, .message_size = sizeof message));
    if (argc < 2) remove_folder(made);
    if (s != TG_OK) return fprintf(stderr, "%s\n", message), 1;
    print(&b);
    return 0;
}
