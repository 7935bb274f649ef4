/* tg_gradcheck: compares the gradients of a function of tensors with finite differences. Gradients go to buffers of
 * the check, so gradients that the caller has accumulated stay unchanged. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory/host_memory.h"
#include "gradcheck/gradcheck.h"
#include "autograd/gradients.h"

/* ---- Runs ---- */

tg_status tg_check_record(tg_check_run *r, bool grad) {
    tg_tape_reset(r->t);
    tg_rng_states_load(r->ctx, r->streams);
    tg_tape_set_grad_mode(r->t, grad);
    for (int i = 0; i < r->n_out; i++) r->out[i] = NULL;
    r->t->busy++;
    tg_status s = r->fn(r->state, r->t, grad ? r->input : r->at, r->n_in, r->out, r->n_out);
    r->t->busy--;
    TG_TRY(r->ctx->run.status);
    if (s != TG_OK) return tg_fail(r->ctx, s, "%s: the function returned %s", r->d.name, tg_status_name(s));
    for (int i = 0; i < r->n_out; i++) {
        if (!r->out[i]) return tg_fail(r->ctx, TG_ERR_ARGUMENT, "%s: the function did not set output %d", r->d.name, i);
        TG_TRY(tg_check(r->ctx, r->out[i], r->d.name));
    }
    int64_t m = 0;
    for (int i = 0; i < r->n_roots; i++) m += (r->roots[i] = r->out[r->root[i]])->numel;
    if (m == r->d.m) return TG_OK; /* all arrays have this length; before the first run both are 0 */
    return tg_fail(r->ctx, TG_ERR_SHAPE,
                   "%s: the checked outputs have %s in this run and had %lld in the first one; the function must give "
                   "outputs of the same shapes in every run",
                   r->d.name, tg_count(m, "element").text, (long long)r->d.m);
}

tg_status tg_check_read(tg_check_run *r, double *y) {
    for (int i = 0; i < r->n_roots; i++) {
        TG_TRY(tg_read_f64(r->roots[i], y, r->roots[i]->numel));
        y += r->roots[i]->numel;
    }
    return TG_OK;
}

/* Computes f for differences. During differences the targets' buffers hold the inputs' original values instead of
 * gradients: the first call (moved < 0) copies the values there. Later calls write part `moved`, run the function, and
 * restore the part from its buffer, even after an error. */
static tg_status value(tg_diff *d, int moved, double *y) {
    tg_check_run *r = d->self;
    if (moved < 0) {
        for (int i = 0; i < d->n_parts; i++)
            TG_TRY(tg_write_f64(r->targets[i].g, d->x + d->parts[i].at, d->parts[i].n));
        TG_TRY(tg_check_record(r, false));
        return tg_check_read(r, y);
    }
    TG_TRY(tg_write_f64(r->moves[moved], d->x + d->parts[moved].at, d->parts[moved].n));
    tg_status s = tg_check_record(r, false);
    if (s == TG_OK) s = tg_check_read(r, y);
    tg_gradient_put(r->moves[moved], r->targets[moved].g, false);
    return s;
}

tg_status tg_check_gradient(tg_check_run *r, tg_tensor *const *roots, tg_tensor *const *seeds, int n, tg_grad_mode mode,
                            bool retain, double *gx) {
    const tg_diff *d = &r->d;
    for (int i = 0; i < d->n_parts; i++) {
        tg_target *g = &r->targets[i];
        g->mode = mode;
        g->reached = false;
        if (mode == TG_GRAD_ADD)
            TG_TRY(tg_write_f64(g->g, gx + d->parts[i].at, d->parts[i].n));
        else
            TG_TRY(r->ctx->run.ops->fill(r->ctx, tg_array_of(g->g), NAN));
    }
    tg_pass_opts o = {.seeds = seeds, .targets = r->targets, .n_targets = d->n_parts, .retain = retain};
    TG_TRY(tg_backward_run(r->t, roots, n, &o, d->name));
    for (int i = 0; i < d->n_parts; i++) {
        double *to = gx + d->parts[i].at;
        TG_TRY(tg_read_f64(r->targets[i].g, to, d->parts[i].n));
        if (!r->targets[i].reached && mode == TG_GRAD_WRITE) memset(to, 0, (size_t)d->parts[i].n * sizeof *to);
    }
    return TG_OK;
}

/* Computes a gradient between differences. It goes through the targets' buffers, so these get the inputs' original
 * values back afterwards. */
static tg_status gradient(tg_diff *d, const double *gy, double *gx) {
    tg_check_run *r = d->self;
    TG_TRY(tg_check_record(r, true));
    for (int i = 0; i < r->n_roots; gy += r->roots[i++]->numel)
        r->mixed[i] = tg_from_host(r->ctx, TG_F64, tg_shape_of(r->roots[i]), gy);
    tg_status s = r->ctx->run.status;
    if (s == TG_OK) s = tg_check_gradient(r, r->roots, r->mixed, r->n_roots, TG_GRAD_WRITE, false, gx);
    for (int i = 0; i < r->n_roots; i++) tg_drop(r->mixed[i]);
    for (int i = 0; i < d->n_parts && s == TG_OK; i++)
        s = tg_write_f64(r->targets[i].g, d->x + d->parts[i].at, d->parts[i].n);
    return s;
}

tg_status tg_check_hash(const tg_tensor *x, uint64_t *hash) {
    char piece[4096];
    uint64_t h = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t at = 0; at < x->storage->bytes; at += sizeof piece) {
        size_t n = x->storage->bytes - at < sizeof piece ? x->storage->bytes - at : sizeof piece;
        TG_TRY(x->ctx->run.ops->copy(x->ctx, piece, (const char *)x->storage->data + at, n, TG_COPY_TO_HOST));
        for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)piece[i]) * 0x100000001B3u;
    }
    *hash = h;
    return TG_OK;
}

/* ---- What is checked ---- */

/* Returns whether the gradient of input i is checked. */
static bool checks(const tg_check_run *r, int i) {
    const tg_tensor *x = r->input[i];
    if (!x || x->dtype != TG_F64 || !(x->flags & TG_F_REQUIRES_GRAD)) return false;
    for (int j = 0; j < i; j++)
        if (r->input[j] == x) return false; /* one tensor given twice is one input */
    return true;
}

/* Fills the lists of the inputs whose gradient is checked. */
static tg_status find_parts(tg_check_run *r) {
    tg_diff *d = &r->d;
    for (int i = 0; i < r->n_in; i++) {
        if (!checks(r, i)) continue;
        tg_tensor *x = r->input[i];
        tg_diff_part *p = &d->parts[d->n_parts];
        char what[80];
        tg_describe(x, what, sizeof what);
        snprintf(p->name, sizeof p->name, "input %d, %s", i, what);
        p->at = d->n;
        p->n = x->numel;
        p->shape = tg_shape_of(x);
        r->moves[d->n_parts] = r->at[i];
        r->targets[d->n_parts] =
            (tg_target){.x = x, .g = tg_owned_empty(r->ctx, TG_F64, x->ndim, x->shape, TG_MEM_GRADIENT)};
        if (!r->targets[d->n_parts++].g) return r->ctx->run.status;
        d->n += x->numel;
    }
    return TG_OK;
}

/* Called after the first run. Finds the float64 outputs that depend on something that requires a gradient. */
static tg_status find_roots(tg_check_run *r) {
    for (int i = 0; i < r->n_out; i++) {
        const tg_tensor *y = r->out[i];
        if (y->dtype != TG_F64 || !(y->flags & TG_F_REQUIRES_GRAD)) continue;
        r->root[r->n_roots++] = i;
        r->roots[r->n_roots - 1] = r->out[i];
        r->d.m += y->numel;
    }
    if (r->n_roots) return TG_OK;
    return tg_fail(r->ctx, TG_ERR_STATE, "%s: no float64 output depends on an input that needs a gradient", r->d.name);
}

/* Makes the cotangents: random numbers and zeros. */
static tg_status make_seeds(tg_check_run *r) {
    const double *gy = r->d.gy;
    for (int i = 0; i < r->n_roots; i++) {
        tg_shape shape = tg_shape_of(r->roots[i]);
        r->seeds[i] = tg_from_host(r->ctx, TG_F64, shape, gy);
        r->zeros[i] = tg_zeros(r->ctx, TG_F64, shape);
        gy += r->roots[i]->numel;
    }
    return r->ctx->run.status;
}

/* Finds whether values of the gradient that are not finite were computed, or were left in a buffer that backward did
 * not write. Runs backward again with buffers of zeros to which it adds. If a value is still not finite, backward has
 * computed it. This holds only for a function of a single op, because gradients of intermediate results are never added
 * to zeros. Uses d->direction, which is still unused at this point. */
static tg_status explain_nan(tg_check_run *r) {
    tg_diff *d = &r->d;
    int ops = 0;
    for (const tg_node *n = r->t->first; n; n = n->next) ops += !(n->flags & TG_N_LEAF);
    if (ops > 1 || isfinite(tg_diff_largest(d->gx, d->n))) return TG_OK;
    memset(d->direction, 0, (size_t)d->n * sizeof *d->direction);
    TG_TRY(tg_check_gradient(r, r->roots, r->seeds, r->n_roots, TG_GRAD_ADD, true, d->direction));
    d->computes_nan = !isfinite(tg_diff_largest(d->direction, d->n));
    return TG_OK;
}

/* Runs all checks. All memory has been allocated. */
static tg_status run_checks(tg_check_run *r) {
    tg_diff *d = &r->d;
    for (int i = 0; i < d->n_parts; i++) TG_TRY(tg_read_f64(r->targets[i].x, d->x + d->parts[i].at, d->parts[i].n));
    tg_diff_cotangent(d);
    TG_TRY(make_seeds(r));
    if (d->extras) {
        TG_TRY(tg_check_unchanged(r));
        TG_TRY(explain_nan(r));
        TG_TRY(tg_check_extras(r));
    } else {
        TG_TRY(tg_check_gradient(r, r->roots, r->seeds, r->n_roots, TG_GRAD_WRITE, false, d->gx));
    }
    TG_TRY(tg_diff_compare(d));
    return d->second_order ? tg_check_second_order(r) : TG_OK;
}

/* ---- Memory ---- */

/* Allocates the arrays of doubles, whose length is known after the first run, and runs the checks. */
static tg_status with_arrays(tg_check_run *r) {
    TG_TRY(find_parts(r));
    TG_TRY(tg_check_record(r, true));
    TG_TRY(find_roots(r));
    int64_t n = tg_diff_doubles(&r->d);
    if (n < 0) return tg_fail(r->ctx, TG_ERR_SHAPE, "%s: the inputs and outputs have too many elements", r->d.name);
    size_t bytes = ((size_t)n + 1) * sizeof(double);
    double *arrays = tg_host_alloc(r->ctx, bytes);
    if (!arrays) return r->ctx->run.status;
    tg_diff_arrays(&r->d, arrays);
    tg_status s = run_checks(r);
    tg_host_free(r->ctx, arrays, bytes);
    return s;
}

/* Allocates the arrays whose length is a number of inputs or outputs, as one block, and runs the checks. */
static tg_status with_lists(tg_check_run *r) {
    size_t n_in = (size_t)r->n_in + 1, n_out = (size_t)r->n_out + 1;
    size_t bytes =
        n_in * (sizeof(tg_diff_part) + sizeof(tg_target) + sizeof(void *)) + n_out * (5 * sizeof(void *) + sizeof(int));
    char *block = tg_host_alloc(r->ctx, bytes);
    if (!block) return r->ctx->run.status;
    r->d.parts = (tg_diff_part *)block;
    r->targets = (tg_target *)(r->d.parts + n_in);
    r->moves = (tg_tensor **)(r->targets + n_in);
    r->out = r->moves + n_in;
    r->roots = r->out + n_out;
    r->seeds = r->roots + n_out;
    r->zeros = r->seeds + n_out;
    r->mixed = r->zeros + n_out;
    r->root = (int *)(r->mixed + n_out);
    tg_status s = with_arrays(r);
    tg_tape_reset(r->t);
    for (int i = 0; i < r->d.n_parts; i++) tg_drop(r->targets[i].g);
    for (int i = 0; i < r->n_roots; i++) {
        tg_drop(r->seeds[i]);
        tg_drop(r->zeros[i]);
    }
    tg_host_free(r->ctx, block, bytes);
    return s;
}

tg_status tg_check_tensors(tg_check_run *r) {
    bool grad = tg_is_grad_on(r->t), repeats = r->ctx->keys.repeats;
    r->d.value = value;
    r->d.gradient = gradient;
    r->d.self = r;
    size_t bytes = tg_rng_states_bytes(r->ctx);
    if (!(r->streams = tg_host_alloc(r->ctx, bytes))) return r->ctx->run.status;
    tg_rng_states_save(r->ctx, r->streams);
    r->streams->keys.repeats = true; /* every run makes the same draws */
    tg_status s = with_lists(r);
    tg_tape_set_grad_mode(r->t, grad);
    tg_rng_states_load(r->ctx, r->streams);
    r->ctx->keys.repeats = repeats;
    tg_host_free(r->ctx, r->streams, bytes);
    if (s != TG_OK || !r->d.result->failed) return s;
    return tg_fail(r->ctx, TG_ERR_GRADIENT, "%s", r->d.result->report);
}

/* ---- Arguments, and the public function ---- */

static tg_status check_inputs(tg_ctx *ctx, tg_tensor *const *in, int n_in) {
    bool any = false, wide = false;
    for (int i = 0; i < n_in; i++) {
        TG_TRY(tg_check(ctx, in[i], "tg_gradcheck: an input"));
        if (in[i]->tape)
            return tg_fail(ctx, TG_ERR_STATE,
                           "tg_gradcheck: input %d belongs to the tape and would be freed when the tape is reset; "
                           "expected leaves of the context",
                           i);
        wide |= in[i]->dtype == TG_F64;
        any |= in[i]->dtype == TG_F64 && in[i]->flags & TG_F_REQUIRES_GRAD;
    }
    if (any) return TG_OK;
    if (wide)
        return tg_fail(ctx, TG_ERR_STATE, "tg_gradcheck: no float64 input needs a gradient (tg_set_requires_grad)");
    return tg_fail(ctx, TG_ERR_DTYPE,
                   "tg_gradcheck: no input is float64, but finite differences need its precision; use float64 inputs");
}

tg_status tg_gradcheck_info_check(tg_ctx *ctx, const tg_gradcheck_info *info, const char *who) {
    return info ? tg_size_check(ctx, info->size, sizeof *info, who) : TG_OK;
}

tg_status tg_gradcheck_info_give(tg_gradcheck_info *info, const tg_gradcheck_info *found, tg_status s) {
    if (!info) return s;
    size_t size = info->size;
    memcpy(info, found, size);
    info->size = size;
    return s;
}

static tg_status check_function(tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in, int n_out,
                                tg_gradcheck_info *found, const tg_gradcheck_opts *opts) {
    tg_check_run r = {.d = {.result = found}, .ctx = t->ctx, .t = t, .fn = fn, .state = state,
                      .input = in, .at = in, .n_in = n_in, .n_out = n_out};
    const char *what;
    if (!tg_diff_options(&r.d, opts, &what)) return tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_gradcheck: %s", what);
    if (!fn || !in)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_gradcheck: %s is NULL, expected a function and an array of inputs",
                       fn ? "in" : "fn");
    if (n_in <= 0 || n_out <= 0 || n_in > 65535 || n_out > 65535)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_gradcheck: %s and %s were given, expected 1 to 65535 of each",
                       tg_count(n_in, "input").text, tg_count(n_out, "output").text);
    if (tg_tape_held(t)) return tg_fail(t->ctx, TG_ERR_STATE, "tg_gradcheck: %s", tg_tape_held(t));
    TG_TRY(check_inputs(t->ctx, in, n_in));
    return tg_check_tensors(&r);
}

tg_status tg_gradcheck(tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in, int n_out,
                       tg_gradcheck_info *info, const tg_gradcheck_opts *opts) {
    tg_gradcheck_info found = TG_GRADCHECK_INFO();
    TG_TRY(tg_tape_check_with(t, in, n_in, "tg_gradcheck"));
    TG_TRY(tg_gradcheck_info_check(t->ctx, info, "tg_gradcheck"));
    return tg_gradcheck_info_give(info, &found, check_function(t, fn, state, in, n_in, n_out, &found, opts));
}
