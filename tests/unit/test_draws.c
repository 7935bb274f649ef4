/* Draws by global coordinates: for any placement on any grid, the joined shards are the tensor that one rank draws, bit
 * for bit, and every rank's stream moves by the same number of draws. The reference lists the positions of each rank
 * one by one; grids are set by hand, so no ranks run. Also rounding of uniform draws, and rows of draws. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tapegrad/ops.h>

#include "check_main.h"
#include "kernels/philox.h"
#include "placement/draws.h"
#include "placement/grid.h"
#include "core/random/rng.h"

enum { AXES = 3, MAX = 4096, SEED = 77 };

typedef struct grid_case {
    int size[AXES]; /* sizes of tp, cp and dp */
    tg_placement at[TG_MAX_AXES];
    tg_shape local, whole;
    bool megatron;
} grid_case;

static uint64_t dice_state;

static int64_t dice(int64_t n) {
    dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((dice_state >> 33) % (uint64_t)n);
}

static tg_ctx *rank_of(const grid_case *c, const int *rank) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = SEED, .threads = 1));
    tg_grid *g = tg_grid_open(ctx);
    for (int a = 0; a < AXES; a++) {
        g->size[a] = c->size[a];
        g->rank[a] = rank[a];
        g->axes |= (uint32_t)(c->size[a] > 1) << a;
    }
    ctx->run.has_peers = g->axes != 0;
    g->draws_local = c->megatron;
    if (c->megatron) tg_rng_add(ctx, "model-parallel-rng", SEED); /* tensors that vary over tp draw from it */
    return ctx;
}

/* ---- The reference: lists of positions ---- */

typedef struct positions {
    int64_t n, at[MAX];
} positions;

static int64_t chunks_of(tg_placement p) { return p.layout == TG_STRIDED ? p.chunks : p.layout == TG_ZIGZAG ? 2 : 1; }

/* Returns the rank's part of a list: the chunks of its layout in sequence. */
static void keep_share(positions *x, tg_placement p, int rank, int size) {
    int64_t chunks = chunks_of(p), length = x->n / (chunks * size), n = 0;
    positions all = *x;
    for (int64_t j = 0; j < chunks; j++) {
        int64_t chunk = p.layout == TG_ZIGZAG ? (j ? 2 * size - 1 - rank : rank) : j * size + rank;
        for (int64_t i = 0; i < length; i++) x->at[n++] = all.at[chunk * length + i];
    }
    x->n = n;
}

/* Returns the positions along dim d of the global tensor of the rank's elements. */
static positions along(const grid_case *c, const int *rank, int d) {
    positions x = {.n = c->whole.dim[d]};
    for (int64_t i = 0; i < x.n; i++) x.at[i] = i;
    for (int order = 0; order < AXES; order++)
        for (int a = 0; a < AXES; a++)
            if (c->size[a] > 1 && c->at[a].kind == TG_VARYING && c->at[a].layout != TG_OPAQUE && c->at[a].dim == d &&
                c->at[a].order == order)
                keep_share(&x, c->at[a], rank[a], c->size[a]);
    return x;
}

static int64_t numel_of(const tg_shape *s) {
    int64_t n = 1;
    for (int d = 0; d < s->ndim; d++) n *= s->dim[d];
    return n;
}

/* Returns the number of draws before the rank's tensor if opaque tensors are stacked, and of all of them. */
static int64_t stacked(const grid_case *c, const int *rank, int64_t *total) {
    int64_t base = 0;
    *total = numel_of(&c->whole);
    for (int a = 0; a < AXES; a++) {
        if (c->size[a] == 1 || c->at[a].kind != TG_VARYING || c->at[a].layout != TG_OPAQUE) continue;
        base += rank[a] * *total;
        *total *= c->size[a];
    }
    return base;
}

/* Returns the number of the draw of each element of the rank's tensor, row-major. */
static int64_t *numbers(const grid_case *c, const int *rank, int64_t *total) {
    int64_t n = numel_of(&c->local), *out = calloc((size_t)n + 1, sizeof *out), base = stacked(c, rank, total);
    positions at[TG_MAX_DIMS];
    for (int d = 0; d < c->local.ndim; d++) at[d] = along(c, rank, d);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, step = 1;
        out[i] = base;
        for (int d = (int)c->local.ndim - 1; d >= 0; d--) {
            out[i] += at[d].at[rest % c->local.dim[d]] * step;
            step *= c->whole.dim[d];
            rest /= c->local.dim[d];
        }
    }
    if (c->megatron) {
        *total = n;
        for (int64_t i = 0; i < n; i++) out[i] = i;
    }
    return out;
}

/* All uniforms by number, as one rank draws them. */
static float *one_rank(int64_t n) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = SEED, .threads = 1));
    float *x = calloc((size_t)n + 1, sizeof *x);
    tg_read(tg_uniform(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(n), 0, 1), x, (size_t)n * sizeof *x);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    tg_ctx_free(ctx);
    return x;
}

/* ---- Each function that draws ---- */

typedef tg_tensor *(*draw_fn)(tg_ctx *ctx, tg_tape *t, tg_tensor *x);

static tg_tensor *by_fill(tg_ctx *ctx, tg_tape *t, tg_tensor *x) {
    (void)ctx, (void)t;
    tg_fill_random_placed(x, TG_RANDOM_UNIFORM, 0, 1, false);
    return x;
}

/* Dropout of ones: those whose uniform is at least one half stay. */
static tg_tensor *by_dropout(tg_ctx *ctx, tg_tape *t, tg_tensor *x) {
    ctx->run.ops->fill(ctx, tg_array_of(x), 1);
    return tg_dropout(t, x, 0.5);
}

static tg_tensor *by_gumbel(tg_ctx *ctx, tg_tape *t, tg_tensor *x) {
    (void)ctx;
    return tg_gumbel(t, x);
}

/* Returns false if the draws are not a plain count of positions. */
static bool run_rank(const grid_case *c, const int *rank, draw_fn draw, float *got, uint64_t *moved) {
    tg_ctx *ctx = rank_of(c, rank);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F32, c->local);
    x->place = tg_place_intern(ctx, c->at);
    tg_tensor *y = draw(ctx, t, x);
    bool supported = tg_ctx_status(ctx) != TG_ERR_UNSUPPORTED;
    if (supported) {
        tg_read(y, got, (size_t)numel_of(&c->local) * sizeof *got);
        ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    }
    *moved = ctx->rng.counter;
    if (c->megatron) {
        bool inside = c->size[TG_TP] > 1 && c->at[TG_TP].kind == TG_VARYING;
        uint64_t model = tg_rng_named(ctx, "model-parallel-rng")->counter;
        ck_assert(inside ? *moved == 0 : model == 0);
        if (inside) *moved = model;
    }
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return supported;
}

static bool some_partial(const grid_case *c) {
    for (int a = 0; a < AXES; a++)
        if (c->at[a].kind == TG_PARTIAL) return true;
    return false;
}

static void check_rank(const grid_case *c, const int *rank, int *refused) {
    int64_t total, n = numel_of(&c->local), *number = numbers(c, rank, &total);
    float *all = one_rank(total), *got = calloc((size_t)n + 1, sizeof *got);
    uint64_t moved;
    ck_assert(run_rank(c, rank, by_fill, got, &moved));
    ck_assert_int_eq((int64_t)moved, total);
    for (int64_t i = 0; i < n; i++) ck_assert_msg(got[i] == all[number[i]], "element %lld", (long long)i);
    if (run_rank(c, rank, by_dropout, got, &moved)) {
        ck_assert_int_eq((int64_t)moved, total);
        for (int64_t i = 0; i < n; i++)
            ck_assert_msg(got[i] == (all[number[i]] >= 0.5f ? 2 : 0), "mask %lld", (long long)i);
    } else {
        ++*refused;
    }
    if (!some_partial(c) && run_rank(c, rank, by_gumbel, got, &moved)) {
        ck_assert_int_eq((int64_t)moved, total);
        for (int64_t i = 0; i < n; i++)
            ck_assert_float_eq_tol(got[i], -logf(-logf(all[number[i]] + 0x1p-25f)), 1e-4f);
    }
    free(number), free(all), free(got);
}

static void check_grid(const grid_case *c, int *refused) {
    int rank[AXES];
    for (rank[0] = 0; rank[0] < c->size[0]; rank[0]++)
        for (rank[1] = 0; rank[1] < c->size[1]; rank[1]++)
            for (rank[2] = 0; rank[2] < c->size[2]; rank[2]++) check_rank(c, rank, refused);
}

/* ---- Cases ---- */

static tg_placement any_place(int ndim, int order) {
    static const uint8_t layouts[] = {TG_CONTIGUOUS, TG_CONTIGUOUS, TG_STRIDED, TG_ZIGZAG};
    int64_t kind = dice(8);
    tg_placement p = {.kind = TG_VARYING, .order = (uint8_t)order};
    if (kind < 3 && ndim == 0) kind = 7;
    if (kind > 4) return (tg_placement){.kind = kind == 5 ? TG_REPLICATED : kind == 6 ? TG_PARTIAL : TG_INVARIANT};
    if (kind == 4 || ndim == 0) return (tg_placement){.kind = TG_VARYING, .layout = TG_OPAQUE};
    p.dim = (int8_t)dice(ndim);
    p.layout = layouts[dice(4)];
    if (p.layout == TG_STRIDED) p.chunks = 2 + (int32_t)dice(2);
    return p;
}

/* Local sizes that every axis can divide into its chunks: multiples of 6 if something is divided. */
static grid_case any_case(void) {
    grid_case c = {.local = {.ndim = dice(5)}, .megatron = dice(10) == 0};
    static const int orders[6][AXES] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const int *order = orders[dice(6)];
    for (int d = 0; d < c.local.ndim; d++) c.local.dim[d] = 1 + dice(4);
    for (int a = 0; a < AXES; a++) {
        c.size[a] = 1 + (int)dice(a == 2 ? 2 : 4);
        c.at[a] = any_place((int)c.local.ndim, order[a]);
        if (c.at[a].kind == TG_VARYING && (c.at[a].layout == TG_STRIDED || c.at[a].layout == TG_ZIGZAG))
            c.local.dim[c.at[a].dim] = 6;
    }
    c.whole = c.local;
    for (int a = 0; a < AXES; a++)
        if (c.at[a].kind == TG_VARYING && c.at[a].layout != TG_OPAQUE) c.whole.dim[c.at[a].dim] *= c.size[a];
    return c;
}

START_TEST(shards_put_together_are_one_ranks_tensor) {
    int refused = 0, doubly = 0;
    dice_state = 2024;
    for (int i = 0; i < 600; i++) {
        grid_case c = any_case();
        int before = refused, shared = 0;
        if (numel_of(&c.whole) > MAX) continue;
        check_grid(&c, &refused);
        for (int a = 0; a < AXES; a++)
            for (int b = a + 1; b < AXES; b++)
                shared += c.size[a] > 1 && c.size[b] > 1 && c.at[a].kind == TG_VARYING && c.at[b].kind == TG_VARYING &&
                          c.at[a].layout != TG_OPAQUE && c.at[b].layout != TG_OPAQUE && c.at[a].dim == c.at[b].dim;
        doubly += shared > 0;
        ck_assert_msg(shared || refused == before, "refused, and no dim is sharded twice");
    }
    printf("%d placements have a dim that is sharded twice or more; dropout was refused on %d ranks\n", doubly,
           refused);
    ck_assert_int_gt(doubly, 20);
}
END_TEST

/* Tensors that models apply dropout to must not be refused: sequences on cp and tp, batches on dp. */
START_TEST(usual_placements_are_served) {
    const grid_case cases[] = {
        {.size = {2, 1, 2},
         .local = TG_SHAPE(8, 5),
         .whole = TG_SHAPE(32, 5),
         .at = {[TG_TP] = {.kind = TG_VARYING, .layout = TG_STRIDED, .chunks = 2, .order = 0},
                [TG_DP] = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .order = 1}}},
        {.size = {3, 2, 1},
         .local = TG_SHAPE(4, 3),
         .whole = TG_SHAPE(24, 3),
         .at = {[TG_CP] = {.kind = TG_VARYING, .layout = TG_ZIGZAG, .order = 0},
                [TG_TP] = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .order = 1}}},
        {.size = {4, 2, 2},
         .local = TG_SHAPE(2, 2, 3),
         .whole = TG_SHAPE(16, 4, 3),
         .at = {[TG_CP] = {.kind = TG_VARYING, .layout = TG_ZIGZAG, .order = 0},
                [TG_TP] = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .order = 1},
                [TG_DP] = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = 1}}},
    };
    int refused = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_grid(&cases[i], &refused);
        if (refused) printf("case %zu\n", i);
        ck_assert_int_eq(refused, 0);
    }
}
END_TEST

/* ---- Attention ---- */

/* All queries and keys are equal, so the result is the mean of the kept values, one per key. */
static void attention_rank(const grid_case *c, const int *rank, tg_shape q, tg_shape k, const tg_placement *at_k,
                           float *out, uint64_t *moved) {
    tg_ctx *ctx = rank_of(c, rank);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *xq = tg_zeros(ctx, TG_F32, q), *xk = tg_zeros(ctx, TG_F32, k), *v = tg_zeros(ctx, TG_F32, k);
    float *eye = calloc((size_t)tg_numel(v), sizeof *eye);
    for (int64_t i = 0; i < tg_numel(v); i++) eye[i] = i / k.dim[3] % k.dim[2] == i % k.dim[3];
    tg_write(v, eye, (size_t)tg_numel(v) * sizeof *eye);
    free(eye);
    xq->place = tg_place_intern(ctx, c->at);
    xk->place = v->place = tg_place_intern(ctx, at_k);
    v->flags = xk->flags;
    tg_tensor *y = tg_attention(t, xq, xk, v, TG_ATTENTION(.dropout = 0.5));
    tg_read(y, out, (size_t)tg_numel(y) * sizeof *out);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    *moved = ctx->rng.counter;
    tg_tape_free(t);
    tg_ctx_free(ctx);
}

/* The batch on dp, heads on tp, and the queries' sequence on cp in zigzag. */
START_TEST(attention_drops_by_global_coordinates) {
    enum { B = 2, H = 4, SQ = 8, SK = 5 };
    const tg_placement heads = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = 1},
                       batch = {.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = 0},
                       rows = {.kind = TG_VARYING, .layout = TG_ZIGZAG, .dim = 2};
    const grid_case c = {.size = {2, 2, 2},
                         .at = {[TG_TP] = heads, [TG_CP] = rows, [TG_DP] = batch},
                         .local = TG_SHAPE(B / 2, H / 2, SQ / 2, SK),
                         .whole = TG_SHAPE(B, H, SQ, SK)};
    const tg_placement keys[TG_MAX_AXES] = {[TG_TP] = heads, [TG_DP] = batch};
    const grid_case alone = {.size = {1, 1, 1}};
    float all[B * H * SQ * SK], part[B * H * SQ * SK / 8];
    uint64_t moved;
    attention_rank(&alone, (int[]){0, 0, 0}, TG_SHAPE(B, H, SQ, SK), TG_SHAPE(B, H, SK, SK), alone.at, all, &moved);
    ck_assert_int_eq((int64_t)moved, B * H * SQ * SK);
    for (int r = 0; r < 8; r++) {
        int rank[AXES] = {r & 1, r >> 1 & 1, r >> 2};
        int64_t total, *number = numbers(&c, rank, &total);
        attention_rank(&c, rank, c.local, TG_SHAPE(B / 2, H / 2, SK, SK), keys, part, &moved);
        ck_assert_int_eq((int64_t)moved, total);
        for (int64_t i = 0; i < B * H * SQ * SK / 8; i++) ck_assert(part[i] == all[number[i]]);
        free(number);
    }
}
END_TEST

/* ---- Intervals ---- */

/* All n draws lie in [lo, hi), and some at the extremes `least` and `most`. */
static void draws_lie_in(tg_dtype dtype, double lo, double hi, double least, double most) {
    enum { N = 100000 };
    static double x[N];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = SEED, .threads = 1, .dtype = dtype));
    double min = INFINITY, max = -INFINITY;
    tg_read_f64(tg_uniform(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(N), lo, hi), x, N);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    for (int i = 0; i < N; i++) {
        min = fmin(min, x[i]);
        max = fmax(max, x[i]);
    }
    ck_assert_msg(min == least && max == most, "%s [%.9g, %.9g): from %.9g to %.9g, expected %.9g to %.9g",
                  tg_dtype_name(dtype), lo, hi, min, max, least, most);
    tg_ctx_free(ctx);
}

START_TEST(rounding_does_not_leave_the_interval) {
    draws_lie_in(TG_BF16, 0.5, 1, 0.5, 0.99609375);
    draws_lie_in(TG_BF16, 0.7, 1, 0.703125, 0.99609375); /* the nearest to 0.7 is 0.69921875 */
    draws_lie_in(TG_BF16, 0.7, 0.704, 0.703125, 0.703125);
    draws_lie_in(TG_BF16, -1, -0.5, -1, -0.50390625);
    draws_lie_in(TG_BF16, -0x1p-133, 0, -0x1p-133, -0x1p-133);
    draws_lie_in(TG_F16, 1, 2, 1, 2 - 0x1p-10);
    draws_lie_in(TG_F16, 0, 0x1p-24, 0, 0);
    draws_lie_in(TG_F16, 65472, 65504, 65472, 65472);
    draws_lie_in(TG_F32, 0.7, 0.7 + 0x1p-24, 0x1.666668p-1, 0x1.666668p-1);
    draws_lie_in(TG_F32, 1, 1 + 0x1p-22, 1, 1 + 0x1p-23);
    draws_lie_in(TG_BF16, 0.25, 0.25, 0.25, 0.25);
}
END_TEST

/* ---- Rows of draws ---- */

START_TEST(rows_equal_single_draws_past_the_greatest_number) {
    enum { N = 600 };
    uint32_t row[N];
    for (uint64_t before = 0; before < 300; before += 7)
        for (int plane = 0; plane < 2; plane++) {
            const tg_rng rng = {.seed = SEED, .stream = 3, .counter = 0 - before};
            tg_philox_row(&rng, 0, N, plane, row);
            int same = 0;
            for (uint64_t i = 0; i < N; i++) same += row[i] == tg_philox_word(&rng, i, plane);
            ck_assert_msg(same == N, "plane %d, %d draws before the last number: %d of %d differ", plane, (int)before,
                          N - same, N);
        }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {shards_put_together_are_one_ranks_tensor, usual_placements_are_served,
                                  attention_drops_by_global_coordinates, rounding_does_not_leave_the_interval,
                                  rows_equal_single_draws_past_the_greatest_number};
    return tg_check_main("draws", tests, sizeof tests / sizeof *tests);
}
