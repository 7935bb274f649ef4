/* Runs batched matrix products with as few gemm calls as strides allow; see product.h. */
#include "ops/common/product.h"

tg_matrix tg_matrix_of(const tg_tensor *x) {
    const int64_t *stride = x->stride + x->ndim - 2;
    return (tg_matrix){.data = tg_data(x), .rs = stride[0], .cs = stride[1], .dtype = (tg_dtype)x->dtype};
}

tg_matrix tg_matrix_transposed(tg_matrix m) {
    int64_t rs = m.rs;
    m.rs = m.cs;
    m.cs = rs;
    return m;
}

/* Merges batch dim d into m, n or k, if the strides allow using the matrices of each operand along d as one larger
 * matrix. Returns whether it has merged d. */
static bool fold(tg_gemm *g, tg_batch_dim d) {
    if (d.c != 0 && d.b == 0 && (g->m == 1 || (d.a == g->m * g->a.rs && d.c == g->m * g->c.rs))) {
        if (g->m == 1) g->a.rs = d.a, g->c.rs = d.c;
        g->m *= d.count;
        return true;
    }
    if (d.c != 0 && d.a == 0 && !g->bias && (g->n == 1 || (d.b == g->n * g->b.cs && d.c == g->n * g->c.cs))) {
        if (g->n == 1) g->b.cs = d.b, g->c.cs = d.c;
        g->n *= d.count;
        return true;
    }
    if (d.c == 0 && (d.count == 0 || g->k == 1 || (d.a == g->k * g->a.cs && d.b == g->k * g->b.rs))) {
        if (g->k == 1) g->a.cs = d.a, g->b.rs = d.b;
        g->k *= d.count;
        return true;
    }
    return false;
}

/* Merges the outer dim d into the inner one, if the strides allow that. Returns whether it has merged d. */
static bool merge(tg_batch_dim *inner, tg_batch_dim d) {
    int64_t n = inner->count;
    if (d.a != n * inner->a || d.b != n * inner->b || d.c != n * inner->c) return false;
    inner->count *= d.count;
    return true;
}

/* Returns whether C, the result of the products, has no elements. */
static bool empty(const tg_product *p) {
    if (p->g.m == 0 || p->g.n == 0) return true;
    for (int i = 0; i < p->n; i++)
        if (p->dim[i].count == 0 && p->dim[i].c != 0) return true;
    return false;
}

/* Merges batch dims as fold and merge allow, and drops dims of one product. */
static void simplify(tg_product *p) {
    int kept = 0;
    for (int i = 0; i < p->n; i++) {
        tg_batch_dim d = p->dim[i];
        if (d.count == 1 || fold(&p->g, d) || (kept && merge(&p->dim[kept - 1], d))) continue;
        p->dim[kept++] = d;
    }
    p->n = kept;
}

/* Uses the two innermost dims that do not add products as the batch of gemm. */
static void take_batch(tg_product *p) {
    tg_gemm *g = &p->g;
    int kept = 0, slot = 1;
    g->batch[0] = g->batch[1] = 1;
    for (int i = 0; i < p->n; i++) {
        tg_batch_dim d = p->dim[i];
        if (slot < 0 || d.c == 0) {
            p->dim[kept++] = d;
            continue;
        }
        g->batch[slot] = d.count;
        g->a.bs[slot] = d.a;
        g->b.bs[slot] = d.b;
        g->c.bs[slot--] = d.c;
    }
    p->n = kept;
}

/* Moves x by `step` elements, unless it is absent. */
static void advance(tg_matrix *x, int64_t step) {
    if (x->data) x->data = (char *)x->data + step * (int64_t)tg_dtype_size(x->dtype);
}

/* Loops over dim i of p and the dims inside it. If dim i adds products, its first product is written to C as g.beta
 * says, and the later ones are added to C. */
static tg_status run_dim(tg_ctx *ctx, const tg_product *p, tg_gemm g, int i) {
    if (i < 0) return tg_ctx_ops(ctx)->gemm(ctx, &g);
    const tg_batch_dim *d = &p->dim[i];
    for (int64_t j = 0; j < d->count; j++) {
        TG_TRY(run_dim(ctx, p, g, i - 1));
        advance(&g.a, d->a);
        advance(&g.b, d->b);
        advance(&g.c, d->c);
        advance(&g.pre, d->c);
        if (d->c == 0) g.beta = 1;
    }
    return TG_OK;
}

tg_status tg_product_run(tg_ctx *ctx, tg_product *p) {
    if (empty(p)) return TG_OK;
    simplify(p);
    take_batch(p);
    if (p->g.pre.data) {
        p->g.pre.rs = p->g.c.rs;
        p->g.pre.cs = p->g.c.cs;
        memcpy(p->g.pre.bs, p->g.c.bs, sizeof p->g.c.bs);
    }
    return run_dim(ctx, p, p->g, p->n - 1);
}
