/* Makes the sample inputs of an op from their descriptions (tg_sample). */
#include <math.h>
#include <tapegrad/ops.h>

#include "autograd/gradients.h"
#include "catalog/sample_values.h"
#include "base/memory/host_memory.h"

/* ---- Layouts ---- */

static void swap(int64_t *a, int64_t *b) {
    int64_t t = *a;
    *a = *b;
    *b = t;
}

/* Sets the strides of a layout. Returns how many elements of memory it occupies, gaps included. */
static int64_t lay_out(const tg_shape *shape, tg_sample_layout layout, int64_t *stride) {
    int n = (int)shape->ndim;
    tg_shape memory = *shape;
    bool swaps = layout == TG_SAMPLE_TRANSPOSED && n > 1;
    if (swaps) swap(&memory.dim[n - 2], &memory.dim[n - 1]);
    if (layout == TG_SAMPLE_STRIDED && n) memory.dim[n - 1] *= 2;
    if (layout == TG_SAMPLE_EXPANDED && n && memory.dim[0]) memory.dim[0] = 1;
    int64_t numel = tg_row_major(n, memory.dim, stride);
    if (swaps) swap(&stride[n - 2], &stride[n - 1]);
    if (layout == TG_SAMPLE_STRIDED && n) stride[n - 1] = 2;
    if (layout == TG_SAMPLE_EXPANDED && n) stride[0] = 0;
    return numel;
}

/* Fills an input. If its rows share their memory, fills it through a tensor that has one row instead of many. */
static tg_status fill_shared(tg_tensor *x, const tg_sample_input *s, const tg_case_opts *o, uint64_t state) {
    int64_t shape[TG_MAX_DIMS];
    if (s->layout != TG_SAMPLE_EXPANDED || x->ndim == 0 || x->numel == 0) return tg_sample_fill(x, s, o, state);
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    shape[0] = 1;
    tg_tensor *row = tg_owned_new(x->ctx, x->dtype, x->ndim, shape, x->stride, tg_storage_ref(x->storage), x->offset);
    if (!row) return x->ctx->run.status;
    tg_status status = tg_sample_fill(row, s, o, state);
    tg_owned_free(row);
    return status;
}

/* Fills all `numel` elements that the layout of x occupies with a value that an op must not read. */
static tg_status fill_gaps(tg_tensor *x, int64_t numel) {
    tg_ctx *ctx = x->ctx;
    const int64_t shape[] = {numel}, stride[] = {1};
    tg_array all = {tg_data(x), shape, stride, numel, 1, x->dtype, true};
    return numel ? ctx->run.ops->fill(ctx, all, tg_is_float(x->dtype) ? NAN : x->dtype == TG_BOOL ? 1 : -1) : TG_OK;
}

/* Returns the dtype of an input. `usual` is the dtype of float inputs whose sample names no dtype. */
static tg_dtype dtype_of(const tg_sample_input *s, tg_dtype usual) {
    if (s->dtype) return s->dtype;
    bool index = s->kind == TG_SAMPLE_INDEX || s->kind == TG_SAMPLE_STARTS;
    return index ? TG_I64 : s->kind == TG_SAMPLE_BOOL ? TG_BOOL : usual;
}

/* Makes an input in the layout that its sample states, or row-major if o->rows is true. In a row-major input, rows that
 * would share memory in the sample's layout have equal values. */
static tg_tensor *make_input(tg_ctx *ctx, const tg_sample_input *s, const tg_case_opts *o, uint64_t state) {
    int64_t stride[TG_MAX_DIMS];
    tg_dtype dtype = dtype_of(s, o->dtype);
    int64_t numel = lay_out(&s->shape, s->layout, stride);
    tg_storage *bytes = tg_storage_new(ctx, (size_t)numel * tg_dtype_size(dtype), TG_MEM_TEMPORARY);
    tg_tensor *x = bytes ? tg_owned_new(ctx, dtype, (int)s->shape.ndim, s->shape.dim, stride, bytes, 0) : NULL;
    if (!x) return NULL;
    fill_gaps(x, numel);
    fill_shared(x, s, o, state);
    if (!o->rows || x->flags & TG_F_CONTIGUOUS) return x;
    tg_tensor *y = tg_owned_empty(ctx, dtype, (int)s->shape.ndim, s->shape.dim, TG_MEM_TEMPORARY);
    if (y) tg_gradient_put(y, x, false);
    tg_owned_free(x);
    return y;
}

/* ---- Cases ---- */

const tg_sample *tg_sample_at(const tg_op *op, int i) {
    if (!op || i < 0 || i >= op->n_samples) return NULL;
    size_t step = op->sample_size ? op->sample_size : sizeof(tg_sample);
    return (const tg_sample *)((const char *)op->samples + (size_t)i * step);
}

static bool wants_gradient(const tg_case *c, int i) {
    const tg_sample_input *s = &c->sample->input[i];
    return s->kind == TG_SAMPLE_FLOAT && !s->frozen && tg_is_float(c->input[i]->dtype);
}

/* Makes input i, or uses input 0 again if the sample's inputs are aliases. */
static tg_status open_input(tg_case *c, int i, const tg_case_opts *o) {
    const tg_sample_input *s = &c->sample->input[i];
    if (s->kind == TG_SAMPLE_ABSENT) return TG_OK;
    if (i > 0 && c->sample->aliases) {
        c->input[i] = c->input[0];
        return TG_OK;
    }
    c->input[i] = make_input(c->ctx, s, o, o->seed * 1000003 + (uint64_t)i);
    if (!c->input[i] || !tg_ok(c->ctx)) return c->ctx->run.status;
    return wants_gradient(c, i) ? tg_set_requires_grad(c->input[i], true) : TG_OK;
}

tg_status tg_case_open(tg_case *c, tg_ctx *ctx, const tg_op *op, int sample, const tg_case_opts *o) {
    *c = (tg_case){.ctx = ctx, .op = op, .sample = tg_sample_at(op, sample)};
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    if (!c->sample) return tg_fail(ctx, TG_ERR_ARGUMENT, "op %s has no sample %d", op ? op->name : "NULL", sample);
    if (c->sample->n_in < 0 || c->sample->n_in > TG_SAMPLE_INPUTS)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "sample %d of op %s has %s, expected 0 to %d", sample, op->name,
                       tg_count(c->sample->n_in, "input").text, TG_SAMPLE_INPUTS);
    c->n_in = c->sample->n_in;
    c->n_out = op->n_out >= 0 ? op->n_out : TG_CASE_OUTPUTS;
    for (int i = 0; i < c->n_in; i++)
        if (open_input(c, i, o) != TG_OK) {
            tg_case_close(c);
            return ctx->run.status;
        }
    return TG_OK;
}

void tg_case_close(tg_case *c) {
    for (int i = 0; i < c->n_in; i++) {
        if (i == 0 || !c->sample->aliases) tg_drop(c->input[i]);
        c->input[i] = NULL;
    }
}

tg_status tg_case_run(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    const tg_case *c = state;
    tg_tensor *given[TG_SAMPLE_INPUTS];
    if (n_in > TG_SAMPLE_INPUTS)
        return tg_fail(c->ctx, TG_ERR_ARGUMENT, "%s: %s", c->op->name, tg_count(n_in, "input").text);
    for (int i = 0; i < n_in; i++) given[i] = in[i];
    if (c->op->inplace && tg_requires_grad(in[0])) given[0] = tg_scale(t, in[0], 1);
    return tg_apply(t, c->op, c->sample->params, given, n_in, out, n_out, NULL, NULL, TG_SITE);
}
