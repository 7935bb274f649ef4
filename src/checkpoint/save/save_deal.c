/* Deals the pieces to the ranks, which write them. Ranks that have the same piece, such as data-parallel ones,
 * recognize that by its hash. Of the ranks that have a piece, it goes to the one with the fewest bytes so far. Pieces
 * that only one rank has are dealt first, then those that two ranks have, and so on. Of the pieces that equally many
 * ranks have, the largest are dealt first (Graham, SIAM J. Appl. Math. 17, 1969). So the bytes of two ranks that have
 * the same pieces differ by at most the largest piece. The ranks exchange only 16 bytes for each rank, and 16 for each
 * piece of each rank. */
#include "checkpoint/save/save.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/memory/host_memory.h"
#include "comm/comm.h"

/* What the ranks exchange about a piece. */
typedef struct identity {
    uint64_t hash;
    int64_t bytes;
} identity;

/* A piece of a rank: its number there, and how many ranks have it. */
typedef struct holding {
    identity of;
    int rank, number, holders;
} holding;

typedef struct deal {
    int ranks;
    int64_t total;    /* number of holdings */
    int64_t *count;   /* [ranks] how many int64 a rank's identities are: two for each of its pieces */
    int64_t *load;    /* [2 * ranks] load[r] is the number of bytes that rank r writes so far; also scratch memory */
    identity *all;    /* [total] of all ranks, in rank order */
    holding *holding; /* [total] */
} deal;

/* ---- What the ranks have ---- */

/* Gathers numbers of all ranks into all[total]: counts[r] of rank r or, if counts is NULL, n of each rank. This rank
 * gives mine[n]. */
static tg_status gather(tg_comm *world, const void *mine, int64_t n, void *all, int64_t total, const int64_t *counts) {
    tg_ctx *ctx = tg_comm_ctx(world);
    tg_tensor *from = tg_from_host(ctx, TG_I64, TG_SHAPE(n), mine), *to = tg_zeros(ctx, TG_I64, TG_SHAPE(total));
    tg_work *w = counts ? tg_comm_all_gather_v(world, to, from, counts) : tg_comm_all_gather(world, to, from);
    if (w) tg_read(to, all, (size_t)total * sizeof(int64_t));
    tg_drop(from);
    tg_drop(to);
    return ctx->run.status;
}

/* Sets *number to a number for the names of the files, if the directory has an index; else to 0. The files of the save
 * that the index belongs to must not be touched before the new index is there. */
static tg_status number_of_save(const tg_save *w, int64_t *number) {
    struct timespec now;
    bool has_index = false;
    TG_TRY(tg_state_has(w->ctx, w->dir, TG_STATE_INDEX, &has_index));
    clock_gettime(CLOCK_REALTIME, &now);
    *number = has_index ? (int64_t)now.tv_sec * 1000000000 + now.tv_nsec : 0;
    return TG_OK;
}

/* Fills d->count and d->total, and sets the suffix from the number that rank 0 has chosen. */
static tg_status exchange_counts(tg_save *w, deal *d) {
    int64_t mine[2] = {w->n, 0}, *all = d->load; /* each rank's number of pieces, and the number of the save */
    if (tg_comm_rank(w->world) == 0) TG_TRY(number_of_save(w, &mine[1]));
    TG_TRY(gather(w->world, mine, 2, all, 2 * d->ranks, NULL));
    if (all[1]) snprintf(w->suffix, sizeof w->suffix, "-%lld", (long long)all[1]);
    for (int r = 0; r < d->ranks; r++) {
        d->total += all[2 * r];
        d->count[r] = 2 * all[2 * r];
    }
    memset(d->load, 0, 2 * (size_t)d->ranks * sizeof *d->load);
    return TG_OK;
}

static tg_status exchange_pieces(tg_save *w, deal *d) {
    size_t bytes = (size_t)w->n * sizeof(identity) + 1;
    identity *mine = tg_host_alloc(w->ctx, bytes);
    d->all = tg_host_alloc(w->ctx, (size_t)d->total * sizeof *d->all + 1);
    d->holding = tg_host_alloc(w->ctx, (size_t)d->total * sizeof *d->holding + 1);
    tg_status s = w->ctx->run.status;
    for (int i = 0; i < w->n && s == TG_OK; i++) mine[i] = (identity){w->piece[i].hash, w->piece[i].bytes};
    if (s == TG_OK) s = gather(w->world, mine, 2 * w->n, d->all, 2 * d->total, d->count);
    tg_host_free(w->ctx, mine, bytes);
    return s;
}

/* ---- Dealing ---- */

static int order(uint64_t a, uint64_t b) { return (a > b) - (a < b); }

static int by_hash(const void *a, const void *b) {
    const holding *x = a, *y = b;
    int o = order(x->of.hash, y->of.hash);
    return o ? o : x->rank - y->rank;
}

/* Orders the pieces as they are dealt: by the number of ranks that have them, and then by size, the largest first. */
static int by_turn(const void *a, const void *b) {
    const holding *x = a, *y = b;
    if (x->holders != y->holders) return x->holders - y->holders;
    int o = order((uint64_t)y->of.bytes, (uint64_t)x->of.bytes);
    return o ? o : by_hash(a, b);
}

/* Returns the number of consecutive holdings, from holding i on, that are the same piece. */
static int64_t same(const deal *d, int64_t i) {
    int64_t n = 1;
    while (i + n < d->total && d->holding[i + n].of.hash == d->holding[i].of.hash) n++;
    return n;
}

/* Lists the pieces of all ranks in the order in which they are dealt. */
static void sort(deal *d) {
    int64_t k = 0;
    for (int r = 0; r < d->ranks; r++)
        for (int64_t i = 0; i < d->count[r] / 2; i++, k++) d->holding[k] = (holding){d->all[k], r, (int)i, 1};
    qsort(d->holding, (size_t)d->total, sizeof *d->holding, by_hash);
    for (int64_t i = 0, n; i < d->total; i += n) {
        n = same(d, i);
        for (int64_t j = 0; j < n; j++) d->holding[i + j].holders = (int)n;
    }
    qsort(d->holding, (size_t)d->total, sizeof *d->holding, by_turn);
}

/* Gives each piece to one of the ranks that have it. */
static void give(tg_save *w, deal *d) {
    int me = tg_comm_rank(w->world);
    for (int64_t i = 0, n; i < d->total; i += n) {
        const holding *to = &d->holding[i];
        n = same(d, i);
        for (const holding *c = to + 1; c < &d->holding[i + n]; c++)
            if (d->load[c->rank] < d->load[to->rank]) to = c;
        d->load[to->rank] += to->of.bytes;
        w->has_file[to->rank] = true;
        if (to->rank == me) w->piece[to->number].mine = true;
    }
}

static void end(const tg_save *w, deal *d) {
    tg_host_free(w->ctx, d->count, (size_t)d->ranks * sizeof *d->count);
    tg_host_free(w->ctx, d->load, 2 * (size_t)d->ranks * sizeof *d->load);
    tg_host_free(w->ctx, d->all, (size_t)d->total * sizeof *d->all + 1);
    tg_host_free(w->ctx, d->holding, (size_t)d->total * sizeof *d->holding + 1);
}

tg_status tg_save_deal(tg_save *w) {
    deal d = {.ranks = tg_comm_size(w->world)};
    d.count = tg_host_alloc(w->ctx, (size_t)d.ranks * sizeof *d.count);
    d.load = tg_host_alloc(w->ctx, 2 * (size_t)d.ranks * sizeof *d.load);
    w->has_file = tg_host_alloc(w->ctx, (size_t)d.ranks * sizeof *w->has_file);
    tg_status s = w->ctx->run.status;
    if (s == TG_OK) s = exchange_counts(w, &d);
    if (s == TG_OK) s = exchange_pieces(w, &d);
    if (s == TG_OK) {
        sort(&d);
        give(w, &d);
    }
    end(w, &d);
    return s;
}
