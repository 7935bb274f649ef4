/* Products with few rows. B, the large operand, is read once and in place, and its columns are divided among the
 * threads. */
#include "kernels/cpu/gemm/gemm.h"

/* A batch of products in progress. */
typedef struct rows {
    const tg_gemm_kernels *kn;
    const tg_gemm *g;
    bool bias_by_row, along_k; /* along_k: B is contiguous along k */
    bool pairs;                /* dot_pairs computes the product */
    int64_t step, steps;       /* number of columns per step, and of steps per product */
    char *x;                   /* A in the compute type, product by product; NULL: A is used in place */
    int64_t x_bytes;
} rows;

static int64_t clamp(int64_t a, int64_t low, int64_t high) { return a < low ? low : a > high ? high : a; }

/* Copies A of products [begin, end) to the compute type. */
static void gather_products(void *arg, int64_t begin, int64_t end) {
    const rows *w = arg;
    for (int64_t i = begin; i < end; i++) {
        tg_gemm_item t = tg_gemm_item_of(w->g, i);
        w->kn->gather(&t, w->x + i * w->x_bytes);
    }
}

/* Computes units [begin, end). A unit is one step of columns of one product. */
static void compute_columns(void *arg, int64_t begin, int64_t end) {
    const rows *w = arg;
    for (int64_t u = begin; u < end; u++) {
        int64_t i = u / w->steps, j = u % w->steps * w->step;
        int64_t cols = w->g->n - j < w->step ? w->g->n - j : w->step;
        tg_gemm_item t = tg_gemm_item_of(w->g, i);
        const void *x = w->x ? w->x + i * w->x_bytes : t.a.data;
        int64_t ldx = w->x ? t.k : t.a.rs;
        t.out.bias_by_row = w->bias_by_row;
        if (w->pairs) w->kn->dot_pairs(&t, j, cols);
        else if (w->along_k) w->kn->dot(&t, x, ldx, j, cols);
        else w->kn->axpy(&t, x, ldx, j, cols);
    }
}

tg_status tg_gemm_few_rows(tg_ctx *ctx, const tg_gemm_kernels *kn, const tg_gemm *g, bool bias_by_row) {
    rows w = {.kn = kn, .g = g, .bias_by_row = bias_by_row, .along_k = g->b.rs == 1};
    int64_t n = g->batch[0] * g->batch[1];
    w.step = w.along_k ? kn->dot_cols : clamp((g->n / 4 + 63) / 64 * 64, 64, TG_GEMM_STRIP);
    w.steps = (g->n + w.step - 1) / w.step;
    bool small = (double)n * (double)g->m * (double)g->n * (double)g->k < 1 << 15;
    w.pairs = w.along_k && kn->dot_pairs && g->a.cs == 1 && g->a.dtype == TG_BF16 && g->b.dtype == TG_BF16;
    bool in_place = w.pairs || (g->a.cs == 1 && tg_dtype_bits(g->a.dtype) == 8 * kn->sum_size);
    if (!in_place) {
        w.x_bytes = g->m * g->k * kn->sum_size;
        w.x = tg_workspace(ctx, 0, (size_t)(n * w.x_bytes) + 64);
        if (!w.x) return TG_ERR_MEMORY;
        if (small) gather_products(&w, 0, n);
        else tg_parallel_run(ctx, n, gather_products, &w);
    }
    if (small) compute_columns(&w, 0, n * w.steps);
    else tg_parallel_run(ctx, n * w.steps, compute_columns, &w);
    return TG_OK;
}
