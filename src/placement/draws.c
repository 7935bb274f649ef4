/* Random draws by global coordinates: an element of a shard gets the random number that it would get in the global
 * tensor. Its global position is an affine function of the digits of its local position (tg_draws in device.h). An
 * unsharded dim has one digit. A sharded dim may have further digits, which number the chunks that this rank holds.
 * Adjacent dims that are contiguous in the global tensor are merged into one digit. */
#include "placement/draws.h"

#include "core/random/rng.h"
#include "kernels/philox.h"
#include "placement/rule.h"
#include "tape/call.h"
#include "tape/tape.h"

/* The digits of a local position, outermost first. Each has an extent, and a step in the global position. There may be
 * up to twice as many as a kernel accepts; draws_of refuses more than TG_DRAW_DIGITS. */
typedef struct digits {
    int n;
    int64_t extent[2 * TG_DRAW_DIGITS], step[2 * TG_DRAW_DIGITS];
    int64_t base; /* global position of the element whose digits are all 0 */
} digits;

/* One axis that shards a dim: this rank's position on it, its number of ranks, and the placement. */
typedef struct cut {
    int64_t rank, size;
    tg_placement p;
} cut;

/* Appends a digit as the new innermost one, or merges it with the last one if one digit can stand for both. If the
 * arrays are full, drops the digit; there are then too many anyway. */
static void push(digits *d, int64_t extent, int64_t step) {
    int last = d->n - 1;
    if (extent == 1) return;
    if (last >= 0 && d->step[last] == extent * step) {
        d->extent[last] *= extent;
        d->step[last] = step;
    } else if (d->n < 2 * TG_DRAW_DIGITS) {
        d->extent[d->n] = extent;
        d->step[d->n++] = step;
    }
}

/* Returns the index, among the chunks of all ranks of the axis, of this rank's chunk j. */
static int64_t chunk_at(const cut *c, int64_t j) { return tg_placement_chunk(c->p, j, c->rank, c->size); }

/* Maps index i in a shard of size `local` to its index in the whole dim. The cuts are ordered major first. */
static int64_t whole_position(const cut *cuts, int n, int64_t local, int64_t i) {
    for (int k = n - 1; k >= 0; k--) {
        int64_t chunk = local / tg_placement_chunks(cuts[k].p);
        i = chunk_at(&cuts[k], i / chunk) * chunk + i % chunk;
        local *= cuts[k].size;
    }
    return i;
}

/* Returns the greatest common divisor. */
static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Returns the length of the longest prefix of o (m increasing numbers) with constant spacing. */
static int64_t run_of(const int64_t *o, int64_t m) {
    int64_t n = m > 1 ? 2 : 1;
    while (n < m && o[n] - o[n - 1] == o[1] - o[0]) n++;
    return n;
}

/* Splits the m numbers into consecutive runs of n. Returns whether all runs have the spacings of the first run; false
 * if n does not divide m. */
static bool runs_alike(const int64_t *o, int64_t m, int64_t n) {
    if (m % n) return false;
    for (int64_t i = 0; i < m; i++)
        if (o[i] - o[i - i % n] != o[i % n] - o[0]) return false;
    return true;
}

/* Returns the largest piece size that divides the local size and the chunk size of every cut. Elements of a piece
 * are neighbors in the global tensor too. */
static int64_t piece_of(const cut *cuts, int n, int64_t local) {
    int64_t piece = local, whole = local;
    for (int i = n - 1; i >= 0; i--) {
        piece = common_divisor(piece, whole / tg_placement_chunks(cuts[i].p));
        whole *= cuts[i].size;
    }
    return piece;
}

/* Adds the digits of a dim that several axes cut. Lists the global positions of the pieces and finds the digits, from
 * the innermost to the outermost. Returns false if there are too many pieces or digits, or if the positions of the
 * pieces are not an affine function of digits. */
static bool push_pieces(digits *d, const cut *cuts, int n, int64_t local, int64_t step) {
    enum { PIECES = 64, DEPTH = 6 };
    int64_t piece = piece_of(cuts, n, local), m = local / piece, o[PIECES] = {0}, extent[DEPTH], steps[DEPTH];
    int k = 0;
    if (m > PIECES) return false;
    for (int64_t i = 0; i < m; i++) o[i] = whole_position(cuts, n, local, i * piece);
    for (; m > 1; k++) {
        int64_t run = run_of(o, m);
        if (k == DEPTH || !runs_alike(o, m, run)) return false;
        extent[k] = run;
        steps[k] = o[1] - o[0];
        m /= run;
        for (int64_t i = 0; i < m; i++) o[i] = o[i * run];
    }
    d->base += o[0] * step;
    while (--k >= 0) push(d, extent[k], steps[k] * step);
    push(d, piece, step);
    return true;
}

/* Adds the digits of a dim that n axes cut. Returns false as push_pieces does. */
static bool push_dim(digits *d, const cut *cuts, int n, int64_t local, int64_t step) {
    if (n > 1) return push_pieces(d, cuts, n, local, step);
    int64_t chunks = n ? tg_placement_chunks(cuts->p) : 1, chunk = local / chunks;
    if (n) d->base += chunk_at(cuts, 0) * chunk * step;
    if (chunks > 1) push(d, chunks, (chunk_at(cuts, 1) - chunk_at(cuts, 0)) * chunk * step);
    push(d, chunk, step);
    return true;
}

/* ---- Placed tensors ---- */

/* How the axes cut a tensor, and which draws its elements take. */
typedef struct sharding {
    int ndim;
    const int64_t *shape; /* on this rank */
    cut cuts[TG_MAX_DIMS][TG_MAX_AXES];
    int n[TG_MAX_DIMS];        /* number of cuts of each dim */
    int64_t step[TG_MAX_DIMS]; /* row-major steps of the dims in the global tensor */
    int64_t base;              /* of an opaque tensor: number of the first draw of this rank's block (stack); else 0 */
    int64_t numel;             /* number of draws of all ranks together */
    /* If pieces[d] > 0, dim d is split into that many pieces, and only the one with index piece[d] is drawn now. */
    int64_t pieces[TG_MAX_DIMS], piece[TG_MAX_DIMS];
} sharding;

/* Lists the axes that shard dim d, major first, and returns how many there are. */
static int cuts_of(const tg_ctx *ctx, const tg_placement *at, int d, cut *cuts) {
    int n = 0;
    for (int order = 0; order < TG_MAX_AXES; order++)
        for (int a = 0; a < TG_MAX_AXES; a++) {
            const tg_placement *p = &at[a];
            bool cuts_d = tg_grid_axes(ctx) >> a & 1 && tg_placement_shards(*p) && p->dim == d;
            if (cuts_d && p->order == order) cuts[n++] = (cut){tg_grid_of(ctx)->rank[a], tg_grid_of(ctx)->size[a], *p};
        }
    return n;
}

static tg_status fail_number(tg_ctx *ctx) {
    return tg_fail(ctx, TG_ERR_SHAPE,
                   "random draws: all ranks together need one draw for each of 2^63 elements or more, expected fewer");
}

/* Gives each rank of an opaque tensor its own block of draws, in rank order: adds the start of this rank's block to
 * l->base, and multiplies l->numel by the number of ranks. */
static tg_status stack(tg_ctx *ctx, const tg_placement *at, sharding *l) {
    for (int a = 0; a < TG_MAX_AXES; a++) {
        if (!(tg_grid_axes(ctx) >> a & 1) || at[a].kind != TG_VARYING || at[a].layout != TG_OPAQUE) continue;
        l->base += tg_grid_of(ctx)->rank[a] * l->numel;
        if (__builtin_mul_overflow(l->numel, tg_grid_of(ctx)->size[a], &l->numel)) return fail_number(ctx);
    }
    return TG_OK;
}

/* Fills in *l for a tensor of this local shape. Fails if a shard is not divisible into its chunks, or if the number of
 * elements of the global tensor overflows. */
static tg_status sharding_of(tg_ctx *ctx, int ndim, const int64_t *shape, const tg_placement *at, sharding *l) {
    *l = (sharding){.ndim = ndim, .shape = shape, .numel = 1};
    for (int i = ndim - 1; i >= 0; i--) {
        l->n[i] = cuts_of(ctx, at, i, l->cuts[i]);
        l->step[i] = l->numel;
        int64_t size = shape[i]; /* grows to the global size, from the minor axis to the major one */
        for (int k = l->n[i] - 1; k >= 0; k--) {
            if (size % tg_placement_chunks(l->cuts[i][k].p))
                return tg_fail(ctx, TG_ERR_SHAPE,
                               "random draws: a shard of dim %d has %s, expected a multiple of its %lld chunks", i,
                               tg_count(size, "element").text, (long long)tg_placement_chunks(l->cuts[i][k].p));
            if (__builtin_mul_overflow(size, l->cuts[i][k].size, &size)) return fail_number(ctx);
        }
        if (__builtin_mul_overflow(l->numel, size, &l->numel)) return fail_number(ctx);
    }
    return stack(ctx, at, l);
}

/* Fills in the digits of a tensor. Returns -1, or the first dim that digits cannot describe (see push_pieces). */
static int digits_of(const sharding *l, digits *d) {
    *d = (digits){.base = l->base};
    for (int i = 0; i < l->ndim; i++) {
        if (l->pieces[i]) {
            int64_t piece = l->shape[i] / l->pieces[i];
            d->base += whole_position(l->cuts[i], l->n[i], l->shape[i], l->piece[i] * piece) * l->step[i];
            push(d, piece, l->step[i]);
        } else if (!push_dim(d, l->cuts[i], l->n[i], l->shape[i], l->step[i])) {
            return i;
        }
    }
    return -1;
}

static tg_status fail_digits(tg_ctx *ctx) {
    return tg_fail(
        ctx, TG_ERR_UNSUPPORTED,
        "random draws: the place of an element of this shard in the global tensor depends on more than %d indices "
        "of dims and chunks; shard fewer dims",
        TG_DRAW_DIGITS);
}

/* Narrows *out, the draws of the global tensor, to those of the elements that have these digits. */
static tg_status draws_of(tg_ctx *ctx, const digits *d, tg_draws *out) {
    if (d->n > TG_DRAW_DIGITS) return fail_digits(ctx);
    out->rng.counter += (uint64_t)d->base;
    if (d->n == 0 || (d->n == 1 && d->step[0] == 1)) return TG_OK;
    out->n = d->n;
    memcpy(out->extent, d->extent, sizeof out->extent);
    memcpy(out->stride, d->step, sizeof out->stride);
    return TG_OK;
}

/* Returns whether elements draw by their global position. Otherwise they draw by their position on this rank. */
static bool placed(const tg_ctx *ctx, const tg_placement *at) {
    return at && tg_grid_axes(ctx) && !tg_grid_of(ctx)->draws_local;
}

/* Returns whether a tensor with these placements is VARYING on one of the axes. */
static bool varies(const tg_ctx *ctx, const tg_placement *at, uint32_t axes) {
    bool any = false;
    for (int a = 0; a < TG_MAX_AXES; a++) any |= axes & tg_grid_axes(ctx) & 1u << a && at[a].kind == TG_VARYING;
    return any;
}

enum { DENSE, EXPERTS, RANK_STREAMS };
static const char *const rank_stream[RANK_STREAMS] = {"model-parallel-rng", "expert-parallel-rng"};

/* Sets *out to the stream that a tensor draws from. With TG_RNG_MEGATRON a tensor that varies over tp (or etp, ep)
 * draws from the stream of its rank, unless the caller has selected a stream. If `expert` is true, that is the stream
 * of experts, even if the tensor varies over no other axis than tp. */
static tg_status stream_of(tg_ctx *ctx, const tg_placement *at, bool expert, tg_rng **out) {
    *out = &ctx->rng;
    if (!tg_grid_of(ctx)->draws_local || !at || ctx->streams.current) return TG_OK;
    bool experts = varies(ctx, at, 1u << TG_ETP | 1u << TG_EP), dense = varies(ctx, at, 1u << TG_TP);
    if (!experts && !dense) return TG_OK;
    const char *name = rank_stream[expert || experts ? EXPERTS : DENSE];
    if ((*out = tg_rng_named(ctx, name))) return TG_OK;
    return tg_fail(ctx, TG_ERR_STATE,
                   "random draws: with TG_RNG_MEGATRON a tensor that varies over %s draws from stream \"%s\", which "
                   "does not exist; call tg_rng_seed_parallel first",
                   experts ? "etp or ep" : "tp", name);
}

tg_rank_streams tg_rank_streams_note(tg_ctx *ctx) {
    tg_rank_streams noted = {{NULL}, {0}};
    for (int i = 0; tg_grid_of(ctx)->draws_local && i < RANK_STREAMS; i++) {
        noted.stream[i] = tg_rng_named(ctx, rank_stream[i]);
        if (noted.stream[i]) noted.counter[i] = noted.stream[i]->counter;
    }
    return noted;
}

void tg_rank_streams_restore(const tg_rank_streams *noted) {
    for (int i = 0; i < RANK_STREAMS; i++)
        if (noted->stream[i]) noted->stream[i]->counter = noted->counter[i];
}

/* Fails if draws are made by key and the tensor is opaque on an axis: its elements then have no position in a global
 * tensor. */
static tg_status check_keyed(const tg_call *c, const tg_placement *at) {
    for (int a = 0; tg_is_keyed(c->ctx) && a < TG_MAX_AXES; a++)
        if (tg_grid_axes(c->ctx) >> a & 1 && at[a].kind == TG_VARYING && at[a].layout == TG_OPAQUE)
            return tg_placement_refuse(c, (tg_axis)a,
                                       "its elements have no place in a global tensor, and what an element draws "
                                       "under an open key depends on that place",
                                       "use tg_dropout_rows and pass the places of the rows to it, or draw before the "
                                       "op that made the tensor opaque");
    return TG_OK;
}

/* Notes that the call draws from the stream, if tg_apply does not restore that stream by itself after an error. */
static void note_stream(const tg_call *c, tg_rng *from) {
    tg_call_impl *im = c->internal;
    if (from == &c->ctx->rng || im->drawn) return;
    im->drawn = from;
    im->counter = from->counter;
}

tg_status tg_draws_take(tg_call *c, int ndim, const int64_t *shape, const tg_placement *at, tg_draws *out) {
    tg_ctx *ctx = c->ctx;
    uint64_t micro = c->tape->micro;
    sharding l;
    digits d;
    tg_rng *from;
    *out = (tg_draws){.n = 0};
    TG_TRY(stream_of(ctx, at, false, &from));
    note_stream(c, from);
    if (!placed(ctx, at)) {
        int64_t numel = tg_row_major(ndim, shape, NULL);
        return numel < 0 ? fail_number(ctx) : tg_rng_take(ctx, from, micro, numel, out);
    }
    TG_TRY(check_keyed(c, at));
    TG_TRY(sharding_of(ctx, ndim, shape, at, &l));
    int bad = l.numel ? digits_of(&l, &d) : -1;
    if (bad >= 0)
        return tg_fail(
            ctx, TG_ERR_UNSUPPORTED,
            "random draws: the chunks of the %d axes that shard dim %d do not nest evenly; try another order of the "
            "axes",
            l.n[bad], bad);
    TG_TRY(tg_rng_take(ctx, from, micro, l.numel, out));
    return l.numel ? draws_of(ctx, &d, out) : TG_OK;
}

tg_status tg_draws_take_rows(tg_call *c, const tg_tensor *x, tg_draws *out, int64_t *width) {
    const tg_placements *p = tg_place_of(x);
    tg_placement at[TG_MAX_AXES] = {{.kind = TG_INVARIANT}};
    sharding l;
    digits d = {.n = 0};
    for (int a = 0; p && a < TG_MAX_AXES; a++) /* dim 0 is left out, because rows[] says what its rows draw */
        if (tg_placement_shards(p->at[a]) && p->at[a].dim > 0) at[a] = p->at[a];
    TG_TRY(sharding_of(c->ctx, x->ndim, x->shape, at, &l));
    *width = l.step[0];
    for (int i = 1; i < x->ndim && x->numel; i++)
        if (!push_dim(&d, l.cuts[i], l.n[i], l.shape[i], l.step[i]))
            return tg_fail(c->ctx, TG_ERR_UNSUPPORTED,
                           "tg_dropout_rows: the chunks of the %d axes that shard dim %d do not nest evenly; try "
                           "another order of the axes",
                           l.n[i], i);
    if (d.n + 1 > TG_DRAW_DIGITS) return fail_digits(c->ctx);
    TG_TRY(tg_rng_take(c->ctx, &c->ctx->rng, c->tape->micro, TG_DRAW_ROWS, out));
    out->rng.counter += (uint64_t)d.base;
    out->n = d.n + 1;
    out->extent[0] = x->shape[0];
    out->stride[0] = *width;
    memcpy(out->extent + 1, d.extent, (size_t)d.n * sizeof *d.extent);
    memcpy(out->stride + 1, d.step, (size_t)d.n * sizeof *d.step);
    return TG_OK;
}

/* Compares seeds, because the caller may have replaced the state of the stream by one that all ranks share
 * (tg_rng_set). */
uint32_t tg_draws_axes(const tg_ctx *ctx) {
    const tg_named_rng *r = ctx->streams.current;
    if (!r || !r->by_rank || ctx->rng.seed != r->seed || ctx->rng.stream) return 0;
    bool experts = !strcmp(r->name, rank_stream[EXPERTS]);
    return (1u << TG_TP | (experts ? 1u << TG_ETP | 1u << TG_EP : 0)) & tg_grid_axes(ctx);
}

tg_draws tg_call_draws(tg_call *c, const tg_tensor *x) {
    tg_draws d = {.n = 0};
    if (!c || tg_check(c->ctx, x, "tg_call_draws") != TG_OK || tg_call_draws_now(c) != TG_OK) return d;
    const tg_placements *p = tg_place_of(x);
    tg_draws_take(c, x->ndim, x->shape, p ? p->at : NULL, &d);
    return d;
}

/* ---- Fills ---- */

static tg_status fill(tg_tensor *x, tg_array part, tg_random kind, double a, double b, const tg_draws *d) {
    return x->ctx->run.ops->random(x->ctx, kind, part, a, b, d);
}

/* Fills the part of x that l->piece selects; all of x if no dim is split. `all` has the draws of the global tensor. */
static tg_status fill_part(tg_tensor *x, const sharding *l, tg_random kind, double a, double b, const tg_draws *all) {
    digits d;
    tg_draws draws = *all;
    int64_t shape[TG_MAX_DIMS], offset = 0;
    tg_array part = tg_array_of(x);
    digits_of(l, &d);
    TG_TRY(draws_of(x->ctx, &d, &draws));
    for (int i = 0; i < l->ndim; i++) {
        shape[i] = l->pieces[i] ? l->shape[i] / l->pieces[i] : l->shape[i];
        if (!l->pieces[i]) continue;
        offset += l->piece[i] * shape[i] * x->stride[i];
        part.numel /= l->pieces[i];
    }
    if (part.data) part.data = (char *)part.data + (size_t)offset * tg_dtype_size(x->dtype);
    part.shape = shape;
    part.contiguous = tg_is_row_major(x->ndim, shape, x->stride);
    return fill(x, part, kind, a, b, &draws);
}

/* Goes on to the next part; returns false after the last one. */
static bool next_part(sharding *l) {
    for (int i = l->ndim - 1; i >= 0; i--) {
        if (!l->pieces[i]) continue;
        if (++l->piece[i] < l->pieces[i]) return true;
        l->piece[i] = 0;
    }
    return false;
}

/* Fills x in one call of the kernel, or in several: a dim that digits cannot describe is filled piece by piece. */
tg_status tg_fill_random_placed(tg_tensor *x, tg_random kind, double a, double b, bool expert) {
    tg_ctx *ctx = x->ctx;
    const tg_placements *p = tg_place_of(x);
    sharding l;
    digits d;
    tg_draws all;
    tg_rng *from;
    TG_TRY(stream_of(ctx, p ? p->at : NULL, expert, &from));
    if (!placed(ctx, p ? p->at : NULL)) return tg_fill_random_from(x, from, 0, kind, a, b);
    TG_TRY(sharding_of(ctx, x->ndim, x->shape, p->at, &l));
    if (!l.numel) return TG_OK;
    for (int i; (i = digits_of(&l, &d)) >= 0;) l.pieces[i] = l.shape[i] / piece_of(l.cuts[i], l.n[i], l.shape[i]);
    TG_TRY(tg_rng_take(ctx, from, 0, l.numel, &all));
    do TG_TRY(fill_part(x, &l, kind, a, b, &all));
    while (next_part(&l));
    return TG_OK;
}

tg_status tg_draws_give_back(const tg_tensor *x, int64_t local, int64_t global) {
    const tg_placements *p = tg_place_of(x);
    tg_rng *from;
    TG_TRY(stream_of(x->ctx, p ? p->at : NULL, false, &from));
    tg_rng_give_back(x->ctx, from, placed(x->ctx, p ? p->at : NULL) ? global : local);
    return TG_OK;
}
