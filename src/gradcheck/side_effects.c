/* Checks of backward other than the values of gradients. Equal runs must give equal bits. Cotangents of zeros must give
 * exact zeros. A cotangent that is absent (NULL) must count as zeros, and a strided one like a contiguous one.
 * TG_GRAD_ADD must add. Nothing but gradients may change. */
#include <math.h>

#include "base/memory/host_memory.h"
#include "gradcheck/gradcheck.h"
#include "autograd/gradients.h"

/* ---- Nothing changed ---- */

/* Returns how many tensors node n refers to: its inputs, outputs and saved buffers. */
static int64_t count_tensors(const tg_node *n) { return n->n_in + n->n_out + n->n_saved; }

/* Returns tensor i of node n: first come its inputs, then its outputs, then its saved buffers. */
static tg_tensor *tensor_of(const tg_node *n, int64_t i) {
    if (i < n->n_in) return tg_node_in(n)[i];
    i -= n->n_in;
    return i < n->n_out ? tg_node_out(n)[i] : tg_node_kept(n)[i - n->n_out];
}

static bool has_bytes(const tg_tensor *x) { return x && x->storage && x->storage->state == TG_PRESENT; }

/* Hashes x into *h, or leaves *h as it is if the bytes of x are not present. If `again` is true, reports a failure if
 * the hash differs from the one in *h. A hash of 0 means that the bytes were not present before. Backward may have
 * restored them, as it does for a replay (tg_replay_close), so there is nothing to compare with. */
static tg_status hash_one(tg_check_run *r, const tg_tensor *x, uint64_t *h, bool again, const char *what, int64_t i,
                          const tg_node *n) {
    uint64_t before = again ? *h : 0;
    if (!has_bytes(x) || (again && !before)) return TG_OK;
    TG_TRY(tg_check_hash(x, h));
    if (again && *h != before)
        tg_diff_fail(&r->d, "writes", "backward wrote into %s %lld%s%s", what, (long long)i, n ? " of op " : "",
                     n ? n->op->name : "");
    return TG_OK;
}

/* Hashes the cotangents and all tensors of the tape's nodes to h[], or compares them with h[] if `again` is true. Leaf
 * nodes are skipped: their tensors are inputs of other nodes, and backward may add leaf nodes. */
static tg_status hash_all(tg_check_run *r, uint64_t *h, bool again) {
    for (const tg_node *n = r->t->first; n; n = n->next)
        for (int64_t i = 0; !(n->flags & TG_N_LEAF) && i < count_tensors(n); i++, h++) {
            int64_t out = i - n->n_in, saved = out - n->n_out;
            TG_TRY(saved >= 0 ? hash_one(r, tensor_of(n, i), h, again, "saved buffer", saved, n)
                   : out >= 0 ? hash_one(r, tensor_of(n, i), h, again, "output", out, n)
                              : hash_one(r, tensor_of(n, i), h, again, "input", i, n));
        }
    for (int i = 0; i < r->n_roots; i++, h++)
        TG_TRY(hash_one(r, r->seeds[i], h, again, "the cotangent of output", r->root[i], NULL));
    return TG_OK;
}

/* Only the first backward can show that a tensor is overwritten: a later one writes the same bytes again. */
tg_status tg_check_unchanged(tg_check_run *r) {
    int64_t n = r->n_roots;
    for (const tg_node *node = r->t->first; node; node = node->next)
        n += node->flags & TG_N_LEAF ? 0 : count_tensors(node);
    size_t bytes = (size_t)n * sizeof(uint64_t);
    uint64_t *h = tg_host_alloc(r->ctx, bytes);
    if (!h) return r->ctx->run.status;
    tg_status s = hash_all(r, h, false);
    if (s == TG_OK) s = tg_check_gradient(r, r->roots, r->seeds, r->n_roots, TG_GRAD_WRITE, true, r->d.gx);
    if (s == TG_OK) s = hash_all(r, h, true);
    tg_host_free(r->ctx, h, bytes);
    return s;
}

/* ---- Gradients that must agree ---- */

/* Records a failure if an element of got differs from `times` times expected by more than `within`. NaN agrees with a
 * NaN of the same bits. */
static void must_agree(tg_diff *d, const double *got, const double *expected, double times, double within,
                       const char *cause, const char *what) {
    for (int p = 0; p < d->n_parts; p++)
        for (int64_t i = d->parts[p].at, end = i + d->parts[p].n; i < end; i++) {
            double want = times == 0 ? 0 : times * expected[i];
            if (fabs(got[i] - want) <= within || !memcmp(&got[i], &want, sizeof want)) continue;
            bool overwrites = times == 2 && got[i] == expected[i];
            char place[320];
            tg_diff_place(d, p, i - d->parts[p].at, place, sizeof place);
            tg_diff_fail(d, overwrites ? "overwrites" : cause, "%s: %s gives %.17g, expected %.17g%s", place, what,
                         got[i], want, overwrites ? ". Likely cause: it writes where TG_GRAD_ADD asks it to add" : "");
            return;
        }
}

/* Checks that a second backward gives the same gradient, and that another one adds it once more. That sum may differ
 * from twice the gradient by rounding, because a fused multiply-add or a sum of many terms may add directly to the
 * buffer. */
static tg_status check_twice(tg_check_run *r, double *gx) {
    tg_diff *d = &r->d;
    TG_TRY(tg_check_gradient(r, r->roots, r->seeds, r->n_roots, TG_GRAD_WRITE, true, gx));
    must_agree(d, gx, d->gx, 1, 0, "unsteady", "a second backward");
    memcpy(gx, d->gx, (size_t)d->n * sizeof *gx);
    TG_TRY(tg_check_gradient(r, r->roots, r->seeds, r->n_roots, TG_GRAD_ADD, true, gx));
    must_agree(d, gx, d->gx, 2, 64 * 0x1p-52 * tg_diff_largest(d->gx, d->n), "adds",
               "a backward that adds to the first one's gradient");
    return TG_OK;
}

static tg_status check_zeros(tg_check_run *r, double *gx) {
    TG_TRY(tg_check_gradient(r, r->roots, r->zeros, r->n_roots, TG_GRAD_WRITE, true, gx));
    must_agree(&r->d, gx, r->d.gx, 0, 0x1p-1074 /* accepts -0 */, "zeros", "a cotangent of zeros");
    return TG_OK;
}

/* Runs backward from one root only, so that the cotangents of the other roots are absent. Compares the gradient with
 * that of a backward in which these cotangents are zeros. */
static tg_status check_undefined(tg_check_run *r, double *gx) {
    tg_diff *d = &r->d;
    for (int k = 0; k < r->n_roots && r->n_roots > 1; k++) {
        for (int i = 0; i < r->n_roots; i++) r->mixed[i] = i == k ? r->seeds[i] : r->zeros[i];
        TG_TRY(tg_check_gradient(r, r->roots, r->mixed, r->n_roots, TG_GRAD_WRITE, true, gx));
        TG_TRY(tg_check_gradient(r, &r->roots[k], &r->seeds[k], 1, TG_GRAD_WRITE, true, d->direction));
        must_agree(d, d->direction, gx, 1, 64 * 0x1p-52 * tg_diff_largest(gx, d->n), "undefined",
                   "a backward with undefined cotangents, instead of zeros,");
    }
    return TG_OK;
}

/* Returns a copy of a cotangent with a gap of NaN after every element. */
static tg_tensor *spread(const tg_tensor *g) {
    tg_ctx *ctx = g->ctx;
    int64_t stride[TG_MAX_DIMS], n = 2 * g->numel, one = 1;
    for (int i = 0; i < g->ndim; i++) stride[i] = 2 * g->stride[i];
    tg_storage *bytes = tg_storage_new(ctx, (size_t)n * sizeof(double), TG_MEM_TEMPORARY);
    tg_tensor *x = bytes ? tg_owned_new(ctx, TG_F64, g->ndim, g->shape, stride, bytes, 0) : NULL;
    if (x && n) ctx->run.ops->fill(ctx, (tg_array){tg_data(x), &n, &one, n, 1, TG_F64, true}, NAN);
    if (x && n) tg_gradient_put(x, g, false);
    return x;
}

/* Checks that the layout of cotangents does not matter. In programs they may be views, like those of a sum or a
 * transpose. */
static tg_status check_strided(tg_check_run *r, double *gx) {
    tg_diff *d = &r->d;
    for (int i = 0; i < r->n_roots; i++) r->mixed[i] = spread(r->seeds[i]);
    tg_status s = r->ctx->run.status;
    if (s == TG_OK) s = tg_check_gradient(r, r->roots, r->mixed, r->n_roots, TG_GRAD_WRITE, true, gx);
    for (int i = 0; i < r->n_roots; i++) tg_drop(r->mixed[i]);
    TG_TRY(s);
    must_agree(d, gx, d->gx, 1, 64 * 0x1p-52 * tg_diff_largest(d->gx, d->n), "layout",
               "a cotangent of the same values in other strides");
    return TG_OK;
}

/* Runs the same function again, with a backward that frees the saved tensors. */
static tg_status check_again(tg_check_run *r, double *gx) {
    tg_diff *d = &r->d;
    TG_TRY(tg_check_read(r, d->y));
    TG_TRY(tg_check_record(r, true));
    TG_TRY(tg_check_read(r, d->moved));
    for (int64_t j = 0; j < d->m; j++)
        if (memcmp(&d->y[j], &d->moved[j], sizeof *d->y)) {
            tg_diff_fail(d, "unsteady",
                         "two runs with the same inputs and random stream give different results: element %lld is "
                         "%.17g, then %.17g",
                         (long long)j, d->y[j], d->moved[j]);
            break;
        }
    TG_TRY(tg_check_gradient(r, r->roots, r->seeds, r->n_roots, TG_GRAD_WRITE, false, gx));
    must_agree(d, gx, d->gx, 1, 0, "unsteady", "the backward of a second run");
    return TG_OK;
}

/* The checks use d.origin and d.direction, which are unused until differences are taken. They are skipped if the
 * gradient is not finite, because the comparison with differences then reports more detail. */
tg_status tg_check_extras(tg_check_run *r) {
    double *gx = r->d.origin;
    if (!isfinite(tg_diff_largest(r->d.gx, r->d.n))) return TG_OK;
    TG_TRY(check_twice(r, gx));
    TG_TRY(check_zeros(r, gx));
    TG_TRY(check_undefined(r, gx));
    TG_TRY(check_strided(r, gx));
    return check_again(r, gx);
}
