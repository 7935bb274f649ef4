/* Loaders: creation, batches as tensors on the device, and the position in the data. */
#include "data/loader.h"

#include <stdio.h>
#include <string.h>

#include <tapegrad/comm.h>
#include <tapegrad/parallel.h>
#include <tapegrad/placement.h>

#include "base/memory/host_memory.h"

/* The loader that a failed creation returns. */
static const tg_loader inert = {.ctx = (tg_ctx *)&tg_dead_ctx};

static bool is_inert(const tg_loader *l) { return !l || l == &inert; }

/* ---- Positions ---- */

/* The last epoch that a program may ask for. From there on the loader can count further without an overflow. */
static const int64_t last_epoch = (int64_t)1 << 62;

int64_t tg_loader_samples(const tg_loader *l) { return is_inert(l) ? 0 : l->samples; }
int64_t tg_loader_epoch(const tg_loader *l) { return is_inert(l) ? 0 : l->at.epoch; }
int64_t tg_loader_step(const tg_loader *l) { return is_inert(l) ? 0 : l->at.step; }

int64_t tg_loader_batches(const tg_loader *l) {
    if (is_inert(l)) return 0;
    return l->samples / l->opts.batch + (l->opts.keep_last && l->samples % l->opts.batch > 0);
}

tg_batch_at tg_loader_after(const tg_loader *l, tg_batch_at at) {
    if (++at.step >= tg_loader_batches(l)) at = (tg_batch_at){at.epoch + 1, 0};
    return at;
}

int64_t tg_loader_share(const tg_loader *l, tg_batch_at at, int64_t *first) {
    int64_t begin = at.step * l->opts.batch, left = l->samples - begin;
    int64_t all = left < l->opts.batch ? left : l->opts.batch;
    int64_t from = all * l->rank / l->ranks, to = all * (l->rank + 1) / l->ranks;
    *first = begin + from;
    return to - from;
}

tg_status tg_loader_seek(tg_loader *l, int64_t epoch, int64_t step) {
    if (!l) return TG_ERR_ARGUMENT;
    TG_TRY(l->ctx->run.status);
    if (epoch < 0 || epoch > last_epoch || step < 0 || step > tg_loader_batches(l))
        return tg_fail(
            l->ctx, TG_ERR_ARGUMENT,
            "tg_loader_seek: epoch is %lld and step %lld, expected an epoch of 0 to %lld and a step of 0 to %lld",
            (long long)epoch, (long long)step, (long long)last_epoch, (long long)tg_loader_batches(l));
    l->at = (tg_batch_at){epoch, step};
    if (step == tg_loader_batches(l)) l->at = (tg_batch_at){epoch + 1, 0};
    tg_loader_stop(l);
    return TG_OK;
}

/* ---- Batches ---- */

size_t tg_loader_part_bytes(const tg_loader *l, int p) {
    return tg_dtype_size(l->part[p].dtype) * (size_t)tg_shape_numel(&l->part[p].shape);
}

tg_status tg_loader_next(tg_loader *l, tg_tensor **out) {
    if (!l) return TG_ERR_ARGUMENT;
    for (int p = 0; out && p < l->n; p++) out[p] = tg_inert(l->ctx);
    TG_TRY(l->ctx->run.status);
    if (!out)
        return tg_fail(l->ctx, TG_ERR_ARGUMENT, "tg_loader_next: out is NULL, expected an array of %d tensors", l->n);
    int64_t first, n = tg_loader_share(l, l->at, &first);
    tg_tensor **x = l->at.step * l->opts.batch + l->opts.batch > l->samples ? l->last[l->turn] : l->whole[l->turn];
    const char *bytes = tg_loader_take(l);
    if (!bytes) return l->ctx->run.status;
    for (int p = 0; p < l->n; p++) {
        size_t size = (size_t)n * tg_loader_part_bytes(l, p);
        TG_TRY(tg_upload(x[p], bytes, size));
        bytes += size;
    }
    tg_loader_release(l);
    memcpy(out, x, (size_t)l->n * sizeof *out);
    l->turn = 1 - l->turn;
    return TG_OK;
}

/* ---- Creation ---- */

static tg_status check_opts(tg_ctx *ctx, const tg_loader_opts *o, int64_t samples, const char *who) {
    if (o->parallel && (o->rank != 0 || o->ranks != 1))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: rank is %d and ranks %d, but parallel is given, which has them", who,
                       o->rank, o->ranks);
    if (o->rank < 0 || o->ranks < 1 || o->rank >= o->ranks)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: rank is %d and ranks %d, expected a rank of 0 to ranks - 1", who,
                       o->rank, o->ranks);
    if (o->prefetch < 0 || o->prefetch > TG_LOADER_PREFETCH)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: prefetch is %d, expected 0 to %d", who, o->prefetch,
                       TG_LOADER_PREFETCH);
    if (o->batch < 1 || (o->batch > samples && !o->keep_last))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: batch is %lld and there are %lld samples; expected 1 to %lld, or keep_last", who,
                       (long long)o->batch, (long long)samples, (long long)samples);
    return TG_OK;
}

static tg_status check_parts(tg_ctx *ctx, const tg_data_part *parts, int n, int64_t samples, const char *who) {
    if (!parts || n < 1 || n > TG_LOADER_PARTS || samples < 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: parts is %p, n %d and samples %lld; expected 1 to %d parts, and 1 sample or more", who,
                       (const void *)parts, n, (long long)samples, TG_LOADER_PARTS);
    for (int p = 0; p < n; p++) {
        char what[64];
        snprintf(what, sizeof what, "%.32s: part %d", who, p);
        TG_TRY(tg_shape_check(ctx, &parts[p].shape, parts[p].dtype, what));
        if (parts[p].shape.ndim >= TG_MAX_DIMS)
            return tg_fail(ctx, TG_ERR_SHAPE, "%s has %lld dims, expected at most %d: a batch has one more", what,
                           (long long)parts[p].shape.ndim, TG_MAX_DIMS - 1);
    }
    return TG_OK;
}

/* Sets l->rank and l->ranks. Fails unless the batch is a multiple of the ranks. */
static tg_status set_ranks(tg_loader *l, const char *who) {
    const tg_comm *dp = l->opts.parallel ? tg_parallel_comm(l->opts.parallel, TG_DP) : NULL;
    l->rank = dp ? tg_comm_rank(dp) : l->opts.rank;
    l->ranks = dp ? tg_comm_size(dp) : l->opts.ranks;
    if (l->opts.batch % l->ranks == 0) return TG_OK;
    return tg_fail(l->ctx, TG_ERR_ARGUMENT, "%s: batch is %lld, expected a multiple of the %lld ranks", who,
                   (long long)l->opts.batch, (long long)l->ranks);
}

/* Creates a tensor that will hold part p of n samples. */
static tg_tensor *new_tensor(tg_loader *l, int p, int64_t n, bool whole) {
    tg_shape shape = {.ndim = l->part[p].shape.ndim + 1, .dim = {n}};
    memcpy(shape.dim + 1, l->part[p].shape.dim, (size_t)l->part[p].shape.ndim * sizeof *shape.dim);
    tg_tensor *x = tg_zeros(l->ctx, l->part[p].dtype, shape);
    if (!l->opts.parallel || !tg_ok(l->ctx)) return x;
    tg_place(l->opts.parallel, x, TG_TP, TG_I);
    tg_place(l->opts.parallel, x, TG_CP, l->opts.sequences ? TG_SHARD_ZIGZAG(1) : TG_I);
    tg_place(l->opts.parallel, x, TG_DP, whole ? TG_SHARD(0) : TG_V);
    return x;
}

static tg_status open(tg_loader *l) {
    tg_loader_ring *r = &l->ring;
    int64_t first, rest = l->samples / l->opts.batch, n = l->opts.batch / l->ranks;
    for (int p = 0; p < l->n; p++) l->bytes += (size_t)n * tg_loader_part_bytes(l, p);
    r->places = l->opts.prefetch ? l->opts.prefetch : 1;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    if (!(r->bytes = tg_host_alloc(l->ctx, (size_t)r->places * l->bytes))) return l->ctx->run.status;
    for (int i = 0; i < 2 * l->n; i++) l->whole[i % 2][i / 2] = new_tensor(l, i / 2, n, true);
    if (tg_loader_batches(l) == rest) return l->ctx->run.status;
    n = tg_loader_share(l, (tg_batch_at){0, rest}, &first);
    for (int i = 0; i < 2 * l->n; i++) l->last[i % 2][i / 2] = new_tensor(l, i / 2, n, false);
    return l->ctx->run.status;
}

static void release_source(tg_ctx *errors, const tg_data_ops *ops, void *state) {
    if (ops && ops->free) ops->free(state);
    tg_ctx_free(errors);
}

tg_loader *tg_loader_make(tg_ctx *ctx, tg_ctx *errors, const tg_data_ops *ops, void *state, const tg_data_part *parts,
                          int n, int64_t samples, const tg_loader_opts *opts, const char *who) {
    tg_loader *l = NULL;
    if (tg_ok(ctx) && check_parts(ctx, parts, n, samples, who) == TG_OK && check_opts(ctx, opts, samples, who) == TG_OK)
        l = tg_host_alloc(ctx, sizeof *l);
    if (!l) return release_source(errors, ops, state), (tg_loader *)&inert;
    *l = (tg_loader){.ctx = ctx, .errors = errors, .ops = ops, .state = state, .opts = *opts, .n = n};
    l->samples = samples;
    memcpy(l->part, parts, (size_t)n * sizeof *parts);
    if (set_ranks(l, who) == TG_OK && open(l) == TG_OK) return l;
    tg_loader_free(l);
    return (tg_loader *)&inert;
}

void tg_loader_free(tg_loader *l) {
    if (is_inert(l)) return;
    if (l->ring.places) {
        tg_loader_stop(l);
        pthread_cond_destroy(&l->ring.changed);
        pthread_mutex_destroy(&l->ring.lock);
    }
    for (int i = 0; i < 2 * l->n; i++) {
        tg_drop(l->whole[i % 2][i / 2]);
        tg_drop(l->last[i % 2][i / 2]);
    }
    tg_host_free(l->ctx, l->ring.bytes, (size_t)l->ring.places * l->bytes);
    release_source(l->errors, l->ops, l->state);
    tg_host_free(l->ctx, l, sizeof *l);
}
