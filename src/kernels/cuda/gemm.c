/* The gemm slot: products by cuBLASLt.
 *
 * cuBLASLt gets column-major matrices. A row-major C, read as column-major, is its transpose C', and C' = B' A'. So the
 * operands exchange places, and the bias, which has an element for each column of C, has one for each row of C', as
 * cuBLASLt wants it. An operand in which neither rows nor columns are contiguous, or whose matrices follow one another
 * at falling addresses, is copied.
 *
 * cuBLASLt cannot fuse everything so that the results agree with the CPU's. It does not fuse:
 * - a bias whose dtype is not that of C;
 * - a C whose dtype is not that of A, except float32 with 16-bit A;
 * - exact GELU, SiLU, a ReLU that lets NaN through, and GELU by tanh unless C is a 16-bit float;
 * - a copy of the value before the activation (`pre`), except with a GELU by tanh that is fused;
 * - a bias that is not aligned, and a C whose rows are not contiguous (plan_of).
 *
 * Slot apply computes these. It works on C if the product can be rounded to C's dtype first without a change of the
 * result, or on `pre` if that holds the product in the compute type; otherwise on the product in scratch memory, in the
 * compute type. */
#include "kernels/cuda/gemm_plans.h"
#include "kernels/cuda/slots.h"

#include "base/runtime.h"
#include "kernels/scalar.h"
#include "kernels/transposed.h"

static int64_t size_of(tg_dtype d) { return tg_dtype_bits(d) / 8; }
static bool is_half(tg_dtype d) { return d == TG_BF16 || d == TG_F16; }
static tg_dtype compute_of(const tg_gemm *g) { return g->a.dtype == TG_F64 ? TG_F64 : TG_F32; }

/* ---- Matrices as arrays ---- */

/* A batch of matrices as an array of four dims, together with its shape and strides. */
typedef struct batches {
    tg_array a;
    int64_t shape[4], stride[4];
} batches;

static tg_array array_of(batches *to, const tg_matrix *x, const int64_t batch[2], int64_t rows, int64_t cols) {
    const int64_t shape[4] = {batch[0], batch[1], rows, cols}, stride[4] = {x->bs[0], x->bs[1], x->rs, x->cs};
    int64_t dense = 1;
    to->a = (tg_array){.data = x->data, .shape = to->shape, .stride = to->stride, .numel = 1, .ndim = 4,
                       .dtype = (uint8_t)x->dtype, .contiguous = true};
    for (int d = 3; d >= 0; d--) {
        to->shape[d] = shape[d];
        to->stride[d] = stride[d];
        to->a.contiguous &= shape[d] == 1 || stride[d] == dense;
        dense *= shape[d];
    }
    to->a.numel = dense;
    return to->a;
}

static tg_matrix dense_matrix(void *data, tg_dtype d, const int64_t batch[2], int64_t rows, int64_t cols) {
    return (tg_matrix){data, cols, 1, {batch[1] * rows * cols, rows * cols}, d};
}

/* Runs slot apply over the [m, n] matrices of the product. b is the second input, or NULL. */
static tg_status map(tg_ctx *ctx, const tg_gemm *g, tg_formula f, const tg_matrix *out, const tg_matrix *a,
                     const tg_matrix *b, double p, double q) {
    batches o, x[2];
    array_of(&o, out, g->batch, g->m, g->n);
    array_of(&x[0], a, g->batch, g->m, g->n);
    if (b) array_of(&x[1], b, g->batch, g->m, g->n);
    const tg_array in[2] = {x[0].a, b ? x[1].a : x[0].a};
    return tg_cuda_map(ctx, f, o.a, in, b ? 2 : 1, (const double[2]){p, q}, false);
}

static tg_formula formula_of(tg_activation act) {
    switch (act) {
    case TG_ACT_RELU: return TG_FN_relu;
    case TG_ACT_GELU_TANH: return TG_FN_gelu_tanh;
    case TG_ACT_GELU: return TG_FN_gelu;
    case TG_ACT_SILU: return TG_FN_silu;
    default: return TG_FN_id;
    }
}

/* ---- Layouts ---- */

/* The layout of a matrix whose rows or columns are contiguous. */
typedef struct layout {
    bool cols;  /* true: the columns are contiguous; false: the rows are */
    int64_t ld; /* elements from the beginning of one row (column) to that of the next */
} layout;

/* Returns false if x has no such layout. */
static bool layout_of(const tg_matrix *x, int64_t rows, int64_t cols, layout *l) {
    bool unit_r = x->rs == 1 || rows == 1, unit_c = x->cs == 1 || cols == 1;
    if (unit_c && (rows == 1 || x->rs >= cols)) {
        *l = (layout){false, rows == 1 ? cols : x->rs};
        return true;
    }
    *l = (layout){true, cols == 1 ? rows : x->cs};
    return unit_r && (cols == 1 || x->cs >= rows);
}

/* Returns whether cuBLASLt can step through the batch: its documentation does not say what negative steps do. */
static bool has_steps(const tg_matrix *x, const int64_t batch[2]) {
    return (batch[0] == 1 || x->bs[0] >= 0) && (batch[1] == 1 || x->bs[1] >= 0);
}

/* If x has no layout or no steps, replaces it with a copy in s that has them. Where a batch repeats one matrix, so does
 * the copy. */
static tg_status ensure_layout(tg_ctx *ctx, tg_matrix *x, const int64_t batch[2], int64_t rows, int64_t cols,
                               tg_cuda_scratch *s) {
    int64_t own[2] = {x->bs[0] ? batch[0] : 1, x->bs[1] ? batch[1] : 1};
    batches from, to;
    layout l;
    if (layout_of(x, rows, cols, &l) && has_steps(x, batch)) return TG_OK;
    TG_TRY(tg_cuda_scratch_take(ctx, (size_t)(own[0] * own[1] * rows * cols * size_of(x->dtype)), s));
    tg_matrix copy = dense_matrix(s->data, x->dtype, own, rows, cols);
    array_of(&from, x, own, rows, cols);
    array_of(&to, &copy, own, rows, cols);
    TG_TRY(tg_cuda_map(ctx, TG_FN_id, to.a, &from.a, 1, (const double[2]){0}, false));
    for (int i = 0; i < 2; i++) copy.bs[i] = x->bs[i] ? copy.bs[i] : 0;
    *x = copy;
    return TG_OK;
}

/* ---- Products ---- */

/* How a batch with two levels is run: by `times` calls of cuBLASLt, each for `count` matrices. One call is enough if a
 * single stride covers both levels, or if one level has a single matrix. */
typedef struct batch_loop {
    int64_t times, count;
    int outer, inner; /* the level of the loop, and that of the matrices in one call */
} batch_loop;

static batch_loop batch_loop_of(const tg_gemm *g) {
    const tg_matrix *all[] = {&g->a, &g->b, &g->c, &g->pre};
    bool one = true;
    for (int i = 0; i < TG_LEN(all); i++) one &= !all[i]->data || all[i]->bs[0] == all[i]->bs[1] * g->batch[1];
    if (g->batch[0] == 1) return (batch_loop){1, g->batch[1], 0, 1};
    if (g->batch[1] == 1) return (batch_loop){1, g->batch[0], 1, 0};
    if (one) return (batch_loop){1, g->batch[0] * g->batch[1], 0, 1};
    if (g->batch[0] < g->batch[1]) return (batch_loop){g->batch[0], g->batch[1], 0, 1};
    return (batch_loop){g->batch[1], g->batch[0], 1, 0};
}

/* Returns the greatest power of two, up to 16, that divides the addresses of all matrices of the batch. */
static uint32_t alignment(const tg_matrix *x, const batch_loop *w) {
    uint64_t bits = (uint64_t)(uintptr_t)x->data | 16;
    if (w->times > 1) bits |= (uint64_t)(x->bs[w->outer] * size_of(x->dtype));
    if (w->count > 1) bits |= (uint64_t)(x->bs[w->inner] * size_of(x->dtype));
    return (uint32_t)(bits & -bits);
}

/* Returns the first matrix of call i; NULL if x is absent. */
static void *place(const tg_matrix *x, const batch_loop *w, int64_t i) {
    return x->data ? (char *)x->data + i * x->bs[w->outer] * size_of(x->dtype) : NULL;
}

/* Finds the plan with which calls of cuBLASLt compute all of g, bias and activation included. *plan is NULL if there is
 * none, as when C's rows are not contiguous. */
static tg_status plan_of(tg_ctx *ctx, const tg_gemm *g, const batch_loop *w, tg_cuda_plan **plan) {
    layout a, b, c, pre = {false, 0};
    tg_cuda_product p;
    *plan = NULL;
    bool aux = g->pre.data != NULL;
    bool fit = layout_of(&g->a, g->m, g->k, &a) && layout_of(&g->b, g->k, g->n, &b) &&
               layout_of(&g->c, g->m, g->n, &c);
    if (aux)
        fit = fit && layout_of(&g->pre, g->m, g->n, &pre) && pre.ld % 8 == 0 &&
              alignment(&g->pre, w) == TG_CUDA_EPILOGUE_ALIGN;
    fit = fit && !c.cols && !pre.cols;
    fit = fit && (g->c.dtype == g->a.dtype || (g->c.dtype == TG_F32 && is_half(g->a.dtype)));
    if (g->bias) fit = fit && g->bias_dtype == g->c.dtype && (uintptr_t)g->bias % TG_CUDA_EPILOGUE_ALIGN == 0;
    if (!fit || w->count > INT32_MAX) return TG_OK;
    memset(&p, 0, sizeof p);
    p.m = g->n, p.n = g->m, p.k = g->k, p.batch = w->count;
    p.lda = b.ld, p.ldb = a.ld, p.ldd = c.ld, p.ld_aux = pre.ld;
    p.op_a = b.cols ? CUBLAS_OP_T : CUBLAS_OP_N, p.op_b = a.cols ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (w->count > 1) {
        p.step_a = g->b.bs[w->inner], p.step_b = g->a.bs[w->inner];
        p.step_d = g->c.bs[w->inner], p.step_aux = aux ? g->pre.bs[w->inner] : 0;
    }
    p.in = g->a.dtype, p.out = g->c.dtype;
    p.align_a = alignment(&g->b, w), p.align_b = alignment(&g->a, w), p.align_d = alignment(&g->c, w);
    p.epilogue = g->act != TG_ACT_GELU_TANH ? (g->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT)
                 : aux                      ? (g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX)
                                            : (g->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU);
    return tg_cuda_plan_of(ctx, &p, plan);
}

/* Runs all of g by cuBLASLt, if there is a plan for it. *done tells whether g has run. */
static tg_status run_fused(tg_ctx *ctx, const tg_gemm *g, bool *done) {
    batch_loop w = batch_loop_of(g);
    tg_cuda_plan *plan;
    TG_TRY(plan_of(ctx, g, &w, &plan));
    *done = plan != NULL;
    for (int64_t i = 0; *done && i < w.times; i++) {
        bool refused;
        tg_cuda_operands o = {.a = place(&g->b, &w, i), .b = place(&g->a, &w, i), .d = place(&g->c, &w, i),
                              .aux = place(&g->pre, &w, i), .bias = g->bias, .alpha = g->alpha, .beta = g->beta};
        TG_TRY(tg_cuda_plan_run(ctx, plan, &o, &refused));
        if (refused && i > 0)
            return tg_ctx_fail(ctx, TG_ERR_DEVICE, "cublasLtMatmul: cuBLASLt refused a part of the batch");
        *done = !refused;
    }
    return TG_OK;
}

/* ---- Epilogues ---- */

/* Returns whether C can be computed without scratch memory: by product *first, and then what `finish` adds. */
static bool direct(const tg_gemm *g, tg_gemm *first) {
    bool narrow = is_half(g->c.dtype);
    *first = *g;
    if (g->act == TG_ACT_NONE) {
        first->pre.data = NULL;
        return !g->pre.data || g->pre.dtype == g->c.dtype;
    }
    if (g->act == TG_ACT_GELU_TANH && narrow && (!g->pre.data || g->pre.dtype == g->c.dtype)) return true;
    first->act = TG_ACT_NONE;
    first->pre.data = NULL;
    if (!narrow || (g->act == TG_ACT_RELU && (!g->pre.data || g->pre.dtype == g->c.dtype))) return true;
    if (!g->pre.data || g->beta != 0 || g->pre.dtype != compute_of(g)) return false;
    first->c = g->pre;
    return true;
}

/* Computes what product `first` has left out, if anything: the value before the activation, and the activation. */
static tg_status finish(tg_ctx *ctx, const tg_gemm *g, const tg_gemm *first) {
    if (g->pre.data && !first->pre.data && first->c.data != g->pre.data)
        TG_TRY(map(ctx, g, TG_FN_id, &g->pre, &first->c, NULL, 0, 0));
    return first->act == g->act ? TG_OK : map(ctx, g, formula_of(g->act), &g->c, &first->c, NULL, 0, 0);
}

/* Computes C from x, which holds alpha A B, contiguous and in the compute type. */
static tg_status finish_from_scratch(tg_ctx *ctx, const tg_gemm *g, const tg_matrix *x) {
    const tg_matrix bias = {(void *)(uintptr_t)g->bias, 0, 1, {0, 0}, g->bias_dtype};
    if (g->beta != 0) TG_TRY(map(ctx, g, TG_FN_linear_sum, x, x, &g->c, 1, g->beta));
    if (g->bias) TG_TRY(map(ctx, g, TG_FN_add, x, x, &bias, 0, 0));
    if (g->pre.data) TG_TRY(map(ctx, g, TG_FN_id, &g->pre, x, NULL, 0, 0));
    return map(ctx, g, formula_of(g->act), &g->c, x, NULL, 0, 0);
}

/* Computes alpha A B in scratch memory, and the rest from there. */
static tg_status run_in_scratch(tg_ctx *ctx, const tg_gemm *g) {
    tg_cuda_scratch s;
    batches zeros;
    bool done = g->k > 0;
    tg_gemm plain = *g;
    TG_TRY(tg_cuda_scratch_take(ctx, (size_t)(g->batch[0] * g->batch[1] * g->m * g->n * size_of(compute_of(g))), &s));
    plain.c = dense_matrix(s.data, compute_of(g), g->batch, g->m, g->n);
    plain.bias = NULL, plain.pre.data = NULL, plain.act = TG_ACT_NONE, plain.beta = 0;
    tg_status status = done ? run_fused(ctx, &plain, &done)
                            : tg_cuda_fill(ctx, array_of(&zeros, &plain.c, g->batch, g->m, g->n), 0);
    if (status == TG_OK && g->k > 0 && !done)
        status = tg_ctx_fail(ctx, TG_ERR_DEVICE,
                             "gemm: cuBLASLt has no algorithm for [%lld, %lld] x [%lld, %lld] of %s",
                             (long long)g->m, (long long)g->k, (long long)g->k, (long long)g->n,
                             tg_dtype_name(g->a.dtype));
    if (status == TG_OK) status = finish_from_scratch(ctx, g, &plain.c);
    tg_cuda_scratch_give(ctx, &s);
    return status;
}

/* Runs g, whose operands have layouts. */
static tg_status run_with_layouts(tg_ctx *ctx, const tg_gemm *g) {
    tg_gemm first;
    bool done = false;
    if (g->k > 0 && direct(g, &first)) {
        TG_TRY(run_fused(ctx, &first, &done));
        if (done) return finish(ctx, g, &first);
    }
    return run_in_scratch(ctx, g);
}

/* If C's columns are contiguous, returns the transposed product, whose C has contiguous rows. Otherwise returns g. With
 * a bias it also returns g, because cuBLASLt cannot add that bias to the transposed product. */
static tg_gemm with_contiguous_rows(const tg_gemm *g) {
    layout c;
    if (g->bias || !layout_of(&g->c, g->m, g->n, &c) || !c.cols) return *g;
    return tg_transposed_product(g);
}

static bool is_float(tg_dtype d) { return d == TG_F32 || d == TG_F64 || is_half(d); }

tg_status tg_cuda_gemm(tg_ctx *ctx, const tg_gemm *g) {
    tg_cuda_scratch a = {NULL, NULL}, b = {NULL, NULL};
    if (g->m <= 0 || g->n <= 0 || g->batch[0] <= 0 || g->batch[1] <= 0) return TG_OK;
    if (!is_float(g->a.dtype) || !is_float(g->c.dtype))
        return tg_ctx_fail(ctx, TG_ERR_DTYPE, "gemm: A is %s and C is %s; on device \"cuda\" both must be floats",
                           tg_dtype_name(g->a.dtype), tg_dtype_name(g->c.dtype));
    tg_gemm t = with_contiguous_rows(g);
    tg_status s = t.k > 0 ? ensure_layout(ctx, &t.a, t.batch, t.m, t.k, &a) : TG_OK;
    if (s == TG_OK && t.k > 0) s = ensure_layout(ctx, &t.b, t.batch, t.k, t.n, &b);
    if (s == TG_OK) s = run_with_layouts(ctx, &t);
    tg_cuda_scratch_give(ctx, &b);
    tg_cuda_scratch_give(ctx, &a);
    return s;
}
