/* Functions that the slots of an op (infer, forward, backward) call: for outputs, views, saved buffers, temporaries,
 * random draws and errors. */
#include "tape/call.h"
#include "base/recording.h"
#include "base/text.h"

#include <stdio.h>

#include "core/work.h"

static tg_call_impl *impl(const tg_call *c) { return c->internal; }

/* ---- Errors of a call ---- */

static void describe_inputs(const tg_call *c, char *buf, size_t n) {
    size_t at = 0;
    if (n) buf[0] = 0;
    for (int i = 0; i < c->n_in && i < 8; i++) {
        char one[160];
        tg_describe(c->input[i], one, sizeof one);
        tg_text(buf, n, &at, "%s%s", i ? ", " : "", c->input[i] ? one : "absent");
    }
    if (c->n_in > 8) tg_text(buf, n, &at, " and %d more", c->n_in - 8);
}

const void *tg_call_site(const tg_call *c) {
    const tg_node *n = impl(c)->node;
    return tg_scope_site(n ? n->scope : c->tape->scope, impl(c)->site);
}

tg_status tg_call_explain(tg_call *c) {
    char inputs[768], site[192], path[192];
    describe_inputs(c, inputs, sizeof inputs);
    tg_describe_site(c->ctx, tg_call_site(c), site, sizeof site);
    tg_scope_path(c->tape->scope, path, sizeof path);
    return tg_fail_note(c->ctx, " (op %s%s%s, called from %s%s%s)", c->op->name ? c->op->name : "?",
                        *inputs ? " of " : "", inputs, path, *path ? ", " : "", site);
}

tg_status tg_call_fail(tg_call *c, tg_status s, const char *format, ...) {
    if (!c) return TG_ERR_ARGUMENT;
    if (c->ctx->run.status != TG_OK) return c->ctx->run.status;
    char text[1024] = "";
    va_list ap;
    va_start(ap, format);
    if (format) vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return tg_fail(c->ctx, s == TG_OK ? TG_ERR_INTERNAL : s, "%s: %s", c->op->name, text);
}

/* ---- Functions for infer ---- */

tg_status tg_call_outputs(tg_call *c, int n) {
    if (!c) return TG_ERR_ARGUMENT;
    if (c->op->n_out >= 0)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "tg_call_outputs: the op always has %s; only an op with n_out < 0 sets their number",
                            tg_count(c->op->n_out, "output").text);
    if (n < 0 || n > c->n_out)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "tg_call_outputs: the op sets %s, but the call has room for %d",
                            tg_count(n, "output").text, c->n_out);
    for (int i = n; i < c->n_out; i++)
        if (c->out[i])
            return tg_call_fail(c, TG_ERR_ARGUMENT,
                                "tg_call_outputs: the op sets %s, but has made output %d; set the number before the "
                                "first output is made",
                                tg_count(n, "output").text, i);
    c->n_out = n;
    return TG_OK;
}

/* Returns whether an output may point to the shape and strides of input x instead of having copies. It may if `shape`
 * is x's own array, and if x is a row-major handle of the tape of c. Then the arrays of x live as long as the output
 * does. */
static bool can_borrow_shape(const tg_call *c, const tg_tensor *x, int ndim, const int64_t *shape) {
    return x && x->tape == c->tape && x->shape == shape && x->ndim == ndim && x->flags & TG_F_CONTIGUOUS;
}

static tg_tensor *output_handle(tg_call *c, tg_dtype dtype, int ndim, const int64_t *shape) {
    tg_tensor *x = tg_tape_handle(c->tape);
    if (TG_UNLIKELY(!x)) return NULL;
    x->flags = TG_F_CONTIGUOUS;
    x->dtype = (uint8_t)dtype;
    for (int i = 0; i < c->n_in && i < 2; i++) {
        if (!can_borrow_shape(c, c->input[i], ndim, shape)) continue;
        tg_tape_share_dims(x, c->input[i]);
        return x;
    }
    return tg_tape_set_dims(c->tape, x, ndim, shape) == TG_OK ? x : NULL;
}

static tg_status check_shape(tg_call *c, tg_dtype dtype, int ndim, const int64_t *shape) {
    tg_shape s = {.ndim = ndim};
    if (ndim > 0 && !shape) return tg_call_fail(c, TG_ERR_ARGUMENT, "the shape is NULL");
    for (int d = 0; d < ndim && d < TG_MAX_DIMS; d++) s.dim[d] = shape[d];
    return tg_shape_check(c->ctx, &s, dtype, c->op->name);
}

static tg_status check_output(tg_call *c, int i, tg_dtype dtype, int ndim, const int64_t *shape) {
    if (i < 0 || i >= c->n_out || c->out[i])
        return tg_call_fail(c, TG_ERR_INTERNAL, "infer makes output %d, but the call has %s, each to be made once", i,
                            tg_count(c->n_out, "output").text);
    return check_shape(c, dtype, ndim, shape);
}

/* Fails if a view of x that starts `offset` elements after the first element of x reaches outside the bytes of x's
 * storage. The view's shape has been checked. */
static tg_status check_view(tg_call *c, const tg_tensor *x, int64_t offset, int ndim, const int64_t *shape,
                            const int64_t *stride) {
    int64_t first = 0, last = 0, step;
    bool over = __builtin_add_overflow(x->offset, offset, &first), empty = false;
    if (ndim && !stride) return tg_call_fail(c, TG_ERR_ARGUMENT, "the strides of the view are NULL");
    last = first;
    for (int d = 0; d < ndim && !over; d++) {
        empty |= shape[d] == 0;
        over = __builtin_mul_overflow(shape[d] - 1, stride[d], &step) ||
               (step < 0 ? __builtin_add_overflow(first, step, &first) : __builtin_add_overflow(last, step, &last));
    }
    if (empty || (!over && first >= 0 && last < (int64_t)(x->storage->bytes / tg_dtype_size(x->dtype)))) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE,
                        "the view reaches outside the bytes of its tensor; check its offset, shape and strides");
}

/* Makes x, output 0 of an in-place op, a handle on the storage of input 0. */
static tg_status bind_inplace(tg_call *c, tg_tensor *x) {
    tg_tensor *a = c->input[0];
    if (x->numel != a->numel || x->dtype != a->dtype)
        return tg_call_fail(c, TG_ERR_SHAPE,
                            "output 0 of an in-place op must have the number of elements and the dtype of input 0");
    x->storage = tg_storage_ref(a->storage);
    x->offset = a->offset;
    return TG_OK;
}

tg_status tg_call_out(tg_call *c, int i, tg_dtype dtype, int ndim, const int64_t *shape) {
    if (TG_UNLIKELY(!c)) return TG_ERR_ARGUMENT;
    if (TG_UNLIKELY(!c->op->forward))
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "infer makes output %d, and there is no forward to fill it; tg_call_view makes views", i);
    if (TG_UNLIKELY(i < 0 || i >= c->n_out || c->out[i] || ndim > TG_MAX_DIMS || !c->n_in ||
                    !can_borrow_shape(c, c->input[0], ndim, shape)))
        TG_TRY(check_output(c, i, dtype, ndim, shape));
    tg_tensor *x = output_handle(c, dtype, ndim, shape);
    if (TG_UNLIKELY(!x)) return c->ctx->run.status;
    x->out = (uint16_t)i;
    c->out[i] = x;
    if (TG_UNLIKELY(c->op->inplace && i == 0)) return bind_inplace(c, x);
    tg_storage *s = tg_storage_new(c->ctx, (size_t)x->numel * tg_dtype_size(dtype), TG_MEM_TEMPORARY);
    if (TG_UNLIKELY(!s)) return c->ctx->run.status;
    s->temporary = true;
    s->maker = x;
    s->birth = x->serial;
    x->storage = s;
    return TG_OK;
}

tg_status tg_call_view(tg_call *c, int i, int64_t offset, int ndim, const int64_t *shape, const int64_t *stride) {
    tg_tensor *base = c && c->n_in ? c->input[0] : NULL;
    if (!c) return TG_ERR_ARGUMENT;
    if (!base) return tg_call_fail(c, TG_ERR_ARGUMENT, "tg_call_view: input 0 is absent; a view is made of input 0");
    TG_TRY(check_output(c, i, base->dtype, ndim, shape));
    TG_TRY(check_view(c, base, offset, ndim, shape, stride));
    tg_tensor *x =
        tg_tape_tensor(c->tape, base->dtype, ndim, shape, stride, tg_storage_ref(base->storage), base->offset + offset);
    if (!x) return c->ctx->run.status;
    x->flags |= TG_F_VIEW;
    x->out = (uint16_t)i;
    c->out[i] = x;
    return TG_OK;
}

tg_status tg_call_save(tg_call *c, int i, tg_dtype dtype, int ndim, const int64_t *shape) {
    enum { MAX_SAVED = 8 };
    if (!c) return TG_ERR_ARGUMENT;
    if (i != c->n_saved || i >= MAX_SAVED)
        return tg_call_fail(c, TG_ERR_INTERNAL,
                            "tg_call_save: saved buffers must be declared in order from 0, and there are at most 8");
    TG_TRY(check_shape(c, dtype, ndim, shape));
    tg_tensor *x = tg_temp_empty(c->ctx, dtype, ndim, shape, TG_MEM_SAVED);
    if (!x) return c->ctx->run.status;
    c->saved[c->n_saved++] = x;
    return TG_OK;
}

tg_status tg_call_out_in_flight(tg_call *c, int i, tg_work *w) {
    if (!c || !w) return c ? c->ctx->run.status : TG_ERR_ARGUMENT;
    if (impl(c)->pass || i < 0 || i >= c->n_out || !c->out[i] || c->out[i]->flags & TG_F_VIEW) {
        tg_work_abandon(w);
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "tg_call_out_in_flight: output %d of %d outputs is no new output of a running forward", i,
                            c->n_out);
    }
    return tg_work_fills(w, c->out[i]->storage);
}

tg_rng tg_call_draw(tg_call *c, int64_t n) {
    if (!c) return (tg_rng){0};
    tg_draws d = {.rng = c->ctx->rng};
    if (n < 0)
        tg_call_fail(c, TG_ERR_ARGUMENT, "tg_call_draw: n is %lld, expected 0 or more", (long long)n);
    else if (!n || tg_recording_refuse(c->ctx, "tg_call_draw", TG_RECORDING_DRAW, tg_call_site(c)) == TG_OK)
        tg_rng_take(c->ctx, &c->ctx->rng, c->tape->micro, n, &d);
    return d.rng;
}

/* ---- Temporaries of a call ---- */

static tg_tensor *keep_temp(tg_call *c, tg_tensor *x) {
    if (!x) return tg_inert(c->ctx);
    x->node = (tg_node *)impl(c)->temps;
    impl(c)->temps = x;
    return x;
}

tg_tensor *tg_call_temp(tg_call *c, tg_dtype dtype, int ndim, const int64_t *shape) {
    if (!c) return tg_inert(&tg_dead_ctx);
    if (check_shape(c, dtype, ndim, shape) != TG_OK) return tg_inert(c->ctx);
    return keep_temp(c, tg_temp_empty(c->ctx, dtype, ndim, shape, TG_MEM_TEMPORARY));
}

tg_tensor *tg_call_view_of(tg_call *c, tg_tensor *g, int64_t offset, int ndim, const int64_t *shape,
                           const int64_t *stride) {
    if (!c) return tg_inert(&tg_dead_ctx);
    if (tg_check(c->ctx, g, c->op->name) != TG_OK || check_shape(c, g->dtype, ndim, shape) != TG_OK ||
        check_view(c, g, offset, ndim, shape, stride) != TG_OK)
        return tg_inert(c->ctx);
    return keep_temp(
        c, tg_temp_new(c->ctx, g->dtype, ndim, shape, stride, tg_storage_ref(g->storage), g->offset + offset));
}

void tg_call_temps_free(tg_call *c) {
    for (tg_tensor *x = impl(c)->temps, *next; x; x = next) {
        next = (tg_tensor *)x->node;
        tg_temp_free(x);
    }
    impl(c)->temps = NULL;
}
