/* Products with few rows. B, the large operand, is read once and in place, and its columns are divided among the
 * threads. */
#include "kernels/cpu/gemm/gemm.h"

/* A batch of products in progress. */
typedef struct rows {
    const tg_gemm *g;
    bool bias_by_row;
    /* dot, dot_pairs or axpy; gather or gather_pairs */
    void (*compute)(const tg_gemm_item *t, const void *x, int64_t ldx, int64_t j, int64_t cols);
    void (*gather)(const tg_gemm_item *t, void *x);
    int64_t step, steps; /* number of columns per step, and of steps per product */
    int64_t most;        /* greatest number of steps of one call of compute */
    char *x;             /* the copies of A that gather writes, one for each product; NULL: A is used in place */
    int64_t x_bytes;
} rows;

static int64_t clamp(int64_t a, int64_t low, int64_t high) { return a < low ? low : a > high ? high : a; }

/* Copies A of products [begin, end). */
static void gather_products(void *arg, int64_t begin, int64_t end) {
    const rows *w = arg;
    for (int64_t i = begin; i < end; i++) {
        tg_gemm_item t = tg_gemm_item_of(w->g, i);
        w->gather(&t, w->x + i * w->x_bytes);
    }
}

/* Computes units [begin, end). A unit is one step of columns of one product. */
static void compute_columns(void *arg, int64_t begin, int64_t end) {
    const rows *w = arg;
    for (int64_t u = begin, next; u < end; u = next) {
        int64_t i = u / w->steps, j = u % w->steps * w->step;
        next = clamp(u + w->most, u, end < (i + 1) * w->steps ? end : (i + 1) * w->steps);
        int64_t cols = clamp((next - u) * w->step, 0, w->g->n - j);
        tg_gemm_item t = tg_gemm_item_of(w->g, i);
        const void *x = w->x ? w->x + i * w->x_bytes : t.a.data;
        int64_t ldx = w->x ? t.k : t.a.rs;
        t.out.bias_by_row = w->bias_by_row;
        w->compute(&t, x, ldx, j, cols);
    }
}

/* Chooses the kernels. If they use a copy of A, x_bytes is its size for a product. A step of axpy is a multiple of 64
 * columns, and so short that a product of 256 columns or more has at least three steps. */
static rows rows_of(const tg_gemm_kernels *kn, const tg_gemm *g, bool bias_by_row) {
    enum { STEP = TG_GEMM_PAIR_STEP };
    bool along_k = g->b.rs == 1; /* B is contiguous along k */
    bool pairs = along_k && kn->dot_pairs && g->a.dtype == TG_BF16 && g->b.dtype == TG_BF16 &&
                 (kn->gather_pairs || g->a.cs == 1);
    bool in_place = g->a.cs == 1 && (pairs ? !kn->gather_pairs : tg_dtype_bits(g->a.dtype) == 8 * kn->sum_size);
    rows w = {.g = g, .bias_by_row = bias_by_row};
    w.compute = pairs ? kn->dot_pairs : along_k ? kn->dot : kn->axpy;
    w.gather = pairs ? kn->gather_pairs : kn->gather;
    w.step = along_k ? kn->dot_cols : clamp((g->n / 4 + 63) / 64 * 64, 64, TG_GEMM_STRIP);
    w.steps = (g->n + w.step - 1) / w.step;
    w.most = pairs ? w.steps : 1;
    if (!in_place) w.x_bytes = g->m * ((g->k + STEP - 1) / STEP * STEP) * kn->sum_size;
    return w;
}

tg_status tg_gemm_few_rows(tg_ctx *ctx, const tg_gemm_kernels *kn, const tg_gemm *g, bool bias_by_row) {
    rows w = rows_of(kn, g, bias_by_row);
    int64_t n = g->batch[0] * g->batch[1];
    bool small = (double)n * (double)g->m * (double)g->n * (double)g->k < 1 << 15;
    if (w.x_bytes) {
        w.x = tg_workspace(ctx, 0, (size_t)(n * w.x_bytes) + 64);
        if (!w.x) return TG_ERR_MEMORY;
        if (small) gather_products(&w, 0, n);
        else tg_parallel_run(ctx, n, gather_products, &w);
    }
    if (small) compute_columns(&w, 0, n * w.steps);
    else tg_parallel_run(ctx, n * w.steps, compute_columns, &w);
    return TG_OK;
}
