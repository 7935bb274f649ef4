/* Every op of the table on each of its samples, run in different ways that must agree: dtypes, instruction sets, thread
 * counts, a device without optional slots, device cuda if there is one, and device meta, whose shapes and bytes are
 * those of the real run. */
#include "ops/registry.h"

#include <tapegrad/backward.h>
#include <tapegrad/op.h>

#include "kernels/cpu/cpu.h"

static tg_case_opts opts_of(tg_dtype dtype) { return (tg_case_opts){.dtype = dtype, .seed = 5}; }

/* ---- Tolerances for rounding ---- */

/* Returns the unit roundoff. */
static double roundoff(tg_dtype d) {
    return d == TG_F64 ? 0x1p-53 : d == TG_F32 ? 0x1p-24 : d == TG_BF16 ? 0x1p-8 : 0x1p-11;
}

static int64_t longest(const tg_sample *s) {
    int64_t most = 1;
    for (int i = 0; i < s->n_in; i++) {
        int64_t n = 1;
        for (int d = 0; d < s->input[i].shape.ndim; d++) n *= s->input[i].shape.dim[d];
        if (n > most) most = n;
    }
    return most;
}

static double furthest(const values *a, const values *b) {
    double most = 0;
    for (int64_t i = 0; a->at && b->at && i < a->n && i < b->n; i++) {
        double far = fabs(a->at[i] - b->at[i]);
        if (isfinite(far) && far > most) most = far; /* an infinite tolerance would accept anything */
    }
    return most;
}

/* Computes how much the float64 results change if the inputs are rounded to a dtype: an ill-conditioned sample
 * changes a lot, and no implementation could do better. For others the tolerance is a few roundings of the largest
 * element. Sums of 16-bit dtypes run in float32, so only the float32 error grows with their length. */
static margin margin_of(tg_ctx *ctx, const tg_op *op, int i, tg_dtype dtype, const outcome *base) {
    tg_dtype arithmetic = dtype == TG_F64 ? TG_F64 : TG_F32;
    margin m = {.tol = 8 * roundoff(dtype) + 4 * roundoff(arithmetic) * sqrt((double)longest(tg_sample_at(op, i))),
                .floor = 1};
    for (int side = -1; side <= 1; side += 2) {
        tg_case_opts o = opts_of(TG_F64);
        outcome moved;
        o.grid = dtype;
        o.jitter = side * roundoff(dtype);
        run_sample(ctx, op, i, &o, &moved);
        for (int k = 0; k < TG_CASE_OUTPUTS; k++) m.out[k] = fmax(m.out[k], 4 * furthest(&moved.out[k], &base->out[k]));
        for (int k = 0; k < TG_SAMPLE_INPUTS; k++)
            m.grad[k] = fmax(m.grad[k], 4 * furthest(&moved.grad[k], &base->grad[k]));
        outcome_free(&moved);
    }
    return m;
}

/* ---- Runs that must agree ---- */

enum { ISAS = 3 };
typedef struct world {
    tg_ctx *best, *two, *isa[ISAS], *bare, *meta, *real, *cuda;
    tg_device_ops required;
    bool no_cuda; /* device cuda is missing although it should exist */
    bool only_cuda;
} world;

static void check_run(tally *y, tg_ctx *ctx, const tg_op *op, int i, tg_dtype dtype, const outcome *expected,
                      const margin *m, const char *what) {
    const tg_sample *s = tg_sample_at(op, i);
    const tg_case_opts o = opts_of(dtype);
    outcome got;
    char text[64];
    snprintf(text, sizeof text, "%s, %s", what, tg_dtype_name(dtype));
    run_sample(ctx, op, i, &o, &got);
    if (verdict(y, tg_ctx_status(ctx) == TG_OK, op, s, "%s: %s", text, tg_ctx_message(ctx)))
        agree(y, op, s, &got, expected, m, text);
    outcome_free(&got);
    tg_ctx_clear(ctx);
}

/* Inputs are rounded to 16 bits first, so that float64 uses the same values. */
static void check_dtype(tally *y, const world *w, const tg_op *op, int i, tg_dtype dtype) {
    tg_case_opts o = opts_of(TG_F64);
    outcome high;
    o.grid = dtype;
    run_sample(w->best, op, i, &o, &high);
    margin m = margin_of(w->best, op, i, dtype, &high);
    if (!w->only_cuda) check_run(y, w->best, op, i, dtype, &high, &m, "compared with float64");
    if (!w->only_cuda && (dtype == TG_F32 || dtype == TG_F64)) {
        for (int k = 0; k < ISAS; k++)
            if (w->isa[k]) check_run(y, w->isa[k], op, i, dtype, &high, &m, tg_ctx_isa(w->isa[k]));
        check_run(y, w->bare, op, i, dtype, &high, &m, "without optional slots");
    }
    if (w->cuda) check_run(y, w->cuda, op, i, dtype, &high, &m, "on device cuda");
    outcome_free(&high);
    tg_ctx_clear(w->best);
}

static void check_threads(tally *y, const world *w, const tg_op *op, int i) {
    const tg_case_opts o = opts_of(TG_F32);
    outcome one;
    run_sample(w->best, op, i, &o, &one);
    check_run(y, w->two, op, i, TG_F32, &one, &(margin){0}, "2 threads");
    outcome_free(&one);
    tg_ctx_clear(w->best);
}

/* Includes large samples if they fit, because small ones give a second thread nothing to do. */
static bool fits_threads(const tg_sample *s) { return !s->refused && s->ranks <= 1 && longest(s) <= 1 << 21; }

/* ---- Meta ---- */

typedef struct footprint {
    int n_out;
    tg_shape shape[TG_CASE_OUTPUTS];
    tg_dtype dtype[TG_CASE_OUTPUTS];
    int64_t stride[TG_CASE_OUTPUTS][TG_MAX_DIMS];
    int64_t nodes, saved, flops, live[3], by_category[3][TG_MEM_CATEGORIES], peak;
} footprint;

static void measure(tg_ctx *ctx, footprint *f, int moment) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    f->live[moment] = m.live;
    f->peak = m.peak;
    memcpy(f->by_category[moment], m.by_category, sizeof f->by_category[moment]);
}

/* Reads nothing, because reading takes memory. */
static tg_status tread(tg_ctx *ctx, const tg_op *op, int i, footprint *f) {
    tg_case c;
    tg_tensor *out[TG_CASE_OUTPUTS], *roots[TG_CASE_OUTPUTS], *seeds[TG_CASE_OUTPUTS];
    const tg_case_opts o = opts_of(TG_F32);
    memset(f, 0, sizeof *f);
    if (tg_case_open(&c, ctx, op, i, &o) != TG_OK) return tg_ctx_status(ctx);
    tg_tape *t = tg_tape_new(ctx);
    tg_memory_reset_peak(ctx);
    tg_case_run(&c, t, c.input, c.n_in, out, c.n_out);
    measure(ctx, f, 0);
    f->n_out = tg_ctx_status(ctx) == TG_OK ? count_out(&c, out) : 0;
    int n = 0;
    for (int k = 0; k < f->n_out; k++) {
        f->shape[k] = tg_shape_of(out[k]);
        f->dtype[k] = tg_dtype_of(out[k]);
        for (int d = 0; d < tg_ndim(out[k]); d++) f->stride[k][d] = tg_stride(out[k], d);
        if (!tg_requires_grad(out[k])) continue;
        roots[n] = out[k];
        seeds[n++] = tg_zeros(ctx, tg_dtype_of(out[k]), tg_shape_of(out[k]));
    }
    f->nodes = tg_tape_nodes(t);
    for (int64_t k = 0; k < f->nodes; k++) {
        f->saved += tg_node_saved_bytes(tg_tape_node(t, k));
        f->flops += tg_node_flops(tg_tape_node(t, k));
    }
    if (n) tg_backward_with(t, roots, n, TG_BACKWARD(.seeds = seeds, .retain = true));
    measure(ctx, f, 1);
    if (n) tg_backward_with(t, roots, n, TG_BACKWARD(.seeds = seeds));
    measure(ctx, f, 2);
    drop_all(seeds, n);
    tg_tape_free(t);
    tg_case_close(&c);
    return tg_ctx_status(ctx);
}

static void check_meta(tally *y, tg_ctx *meta, tg_ctx *real, const tg_op *op, int i) {
    const tg_sample *s = tg_sample_at(op, i);
    footprint got, expected;
    tread(real, op, i, &expected);
    tg_status status = tread(meta, op, i, &got);
    verdict(y, status == TG_OK, op, s, "on meta: %s", tg_ctx_message(meta));
    verdict(y,
            got.n_out == expected.n_out && !memcmp(got.shape, expected.shape, sizeof got.shape) &&
                !memcmp(got.dtype, expected.dtype, sizeof got.dtype) &&
                !memcmp(got.stride, expected.stride, sizeof got.stride),
            op, s, "meta: other shapes, dtypes or strides than the real run's");
    verdict(y, got.nodes == expected.nodes && got.saved == expected.saved && got.flops == expected.flops, op, s,
            "meta: %lld nodes, %lld bytes saved, %lld FLOPs; really %lld, %lld, %lld", (long long)got.nodes,
            (long long)got.saved, (long long)got.flops, (long long)expected.nodes, (long long)expected.saved,
            (long long)expected.flops);
    verdict(y,
            !memcmp(got.live, expected.live, sizeof got.live) &&
                !memcmp(got.by_category, expected.by_category, sizeof got.by_category) && got.peak == expected.peak,
            op, s, "meta: live bytes %lld, %lld, %lld, peak %lld; really %lld, %lld, %lld, %lld",
            (long long)got.live[0], (long long)got.live[1], (long long)got.live[2], (long long)got.peak,
            (long long)expected.live[0], (long long)expected.live[1], (long long)expected.live[2],
            (long long)expected.peak);
    tg_ctx_clear(meta);
    tg_ctx_clear(real);
}

/* ---- The table ---- */

static void check_op(tally *y, world *w, const tg_op *op) {
    static const tg_dtype dtypes[] = {TG_F64, TG_F32, TG_BF16, TG_F16};
    int before = y->failed;
    for (int i = 0; i < op->n_samples; i++) {
        const tg_sample *s = tg_sample_at(op, i);
        if (fits_threads(s) && !w->only_cuda) check_threads(y, w, op, i);
        if (!small(s) || s->refused) continue;
        for (int d = 0; d < 4; d++) check_dtype(y, w, op, i, dtypes[d]);
        if (!w->only_cuda) check_meta(y, w->meta, w->real, op, i);
    }
    printf("%-22s %s\n", op->name, y->failed == before ? "ok" : "FAILED");
}

static void open_world(world *w) {
    static const char *const isas[ISAS] = {"portable", "avx2", "avx512"};
    w->best = tg_ctx_new(TG_CONFIG(.threads = 1));
    const char *device = getenv("TG_TEST_DEVICE"); /* cpu, cuda; NULL: both */
    w->only_cuda = device && !strcmp(device, "cuda");
    w->two = tg_ctx_new(TG_CONFIG(.threads = 2));
    w->real = tg_ctx_new(TG_CONFIG(.threads = 1));
    w->meta = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    for (int k = 0; k < ISAS; k++) {
        w->isa[k] = tg_ctx_new(TG_CONFIG(.threads = 1, .isa = isas[k]));
        if (tg_ctx_status(w->isa[k]) == TG_OK) continue;
        printf("skipped: this machine has no %s\n", isas[k]);
        tg_ctx_free(w->isa[k]);
        w->isa[k] = NULL;
    }
    if (!device || w->only_cuda) w->cuda = tg_ctx_new(TG_CONFIG(.device = "cuda", .threads = 1));
    if (w->cuda && tg_ctx_status(w->cuda) != TG_OK) {
        printf("%s: %s\n", getenv("TG_TEST_CUDA") ? "FAIL" : "skipped", tg_ctx_message(w->cuda));
        w->no_cuda = getenv("TG_TEST_CUDA") != NULL;
        tg_ctx_free(w->cuda);
        w->cuda = NULL;
    }
    w->required = tg_cpu_device;
    w->required.softmax = NULL;
    w->required.softmax_grad = NULL;
    w->required.norm = w->required.norm_grad = NULL;
    w->required.cross_entropy = w->required.cross_entropy_grad = NULL;
    w->required.attention = w->required.attention_grad = NULL;
    w->required.dropout = NULL;
    w->required.scan = NULL;
    w->required.put = NULL;
    w->required.prepare = NULL;
    w->required.adamw = NULL;
    w->bare = tg_ctx_new_on(&w->required, TG_CONFIG(.threads = 1));
}

static void close_world(world *w) {
    tg_ctx *all[] = {w->best, w->two, w->real, w->meta, w->bare, w->cuda, w->isa[0], w->isa[1], w->isa[2]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tg_ctx_free(all[i]);
}

int main(int argc, char **argv) {
    tally y = {0};
    world w = {0};
    open_world(&w);
    y.failed += w.no_cuda;
    for (int i = 0; i < tg_op_count(); i++)
        if (chosen(tg_op_at(i), argc, argv)) check_op(&y, &w, tg_op_at(i));
    close_world(&w);
    return conclude(&y);
}
