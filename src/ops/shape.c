/* Ops that change the shape of input 0, mostly as views. Where possible, backward passes on a view of the gradient
 * instead of a copy. */
#include <tapegrad/placement.h>

#include "ops/common/derive.h"
#include "ops/common/op.h"

typedef struct shape_params {
    tg_shape shape;
    bool named; /* of a reshape: the caller names the output dim that the sharded dim becomes */
    int shard;  /* that dim, if one is named */
} shape_params;

typedef struct dim_params {
    int dim;
} dim_params;

/* The backward of ops that keep the row-major order of elements: reshape, view, squeeze and unsqueeze. */
static tg_status reshape_backward(tg_call *c) {
    tg_tensor *g = c->gout[0];
    const tg_tensor *x = c->input[0];
    int64_t stride[TG_MAX_DIMS];
    if (tg_reshape_strides(g->ndim, g->shape, g->stride, x->ndim, x->shape, stride))
        return tg_op_pass_view(c, 0, g, 0, x->ndim, x->shape, stride);
    x = tg_call_gin(c, 0);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    tg_array to = tg_array_of(x);
    tg_array_reshape(&to, g->ndim, g->shape, stride);
    return tg_op_copy(c, to, tg_array_of(g), tg_adds(c, 0));
}

TG_VJP(reshape_vjp, tg_reshape(t, g, tg_shape_kept(x)))

/* Reshapes the tangent even if the op is view: a tangent may have strides for which a view is refused. */
static tg_status reshape_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    dout[0] = tg_reshape(t, din[0], tg_shape_kept(tg_node_out(n)[0]));
    return TG_OK;
}

/* Replaces a size -1 by the size that it stands for, and checks that the shape has as many elements as input 0. */
static tg_status complete_shape(tg_call *c, tg_shape *s) {
    int64_t n = 1, numel = c->input[0]->numel;
    int open = -1;
    if (s->ndim < 0 || s->ndim > TG_MAX_DIMS)
        return tg_call_fail(c, TG_ERR_SHAPE, "the new shape has %s; it must have from 0 to %d",
                            tg_count(s->ndim, "dim").text, TG_MAX_DIMS);
    for (int d = 0; d < s->ndim; d++) {
        if (s->dim[d] == -1 && open < 0) {
            open = d;
            continue;
        }
        if (s->dim[d] < 0)
            return tg_call_fail(c, TG_ERR_SHAPE, "dim %d is %lld; it must be 0 or more, or -1 in at most one dim", d,
                                (long long)s->dim[d]);
        if (__builtin_mul_overflow(n, s->dim[d], &n))
            return tg_call_fail(c, TG_ERR_SHAPE, "the new shape has more elements than 64 bits can count");
    }
    if (open >= 0 && n > 0 && numel % n == 0) {
        s->dim[open] = numel / n;
        n = numel;
    }
    if (n == numel && (open < 0 || s->dim[open] >= 0)) return TG_OK;
    if (open >= 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "the new shape has %s without its dim -1 and the tensor has %lld, so the "
                            "size of that dim cannot be computed", tg_count(n, "element").text, (long long)numel);
    return tg_call_fail(c, TG_ERR_SHAPE, "the new shape has %s but the tensor has %lld; they must be equal",
                        tg_count(n, "element").text, (long long)numel);
}

/* ---- reshape ---- */

static tg_status reshape_infer(tg_call *c) {
    tg_shape *s = &((shape_params *)c->params)->shape;
    bool named = ((const shape_params *)c->params)->named;
    int shard = ((const shape_params *)c->params)->shard;
    const tg_tensor *x = c->input[0];
    int64_t stride[TG_MAX_DIMS];
    TG_TRY(complete_shape(c, s));
    if (named) TG_TRY(tg_need_axis(c, (int)s->ndim, &shard));
    TG_TRY(tg_call_reshapes(c, named ? shard : -1));
    if (tg_reshape_strides(x->ndim, x->shape, x->stride, (int)s->ndim, s->dim, stride))
        return tg_call_view(c, 0, 0, (int)s->ndim, s->dim, stride);
    return tg_call_out(c, 0, (tg_dtype)x->dtype, (int)s->ndim, s->dim);
}

static tg_status reshape_forward(tg_call *c) {
    int64_t stride[TG_MAX_DIMS];
    const tg_tensor *x = c->input[0];
    if (c->out[0]->storage == x->storage) return TG_OK;
    tg_array to = tg_array_of(c->out[0]);
    tg_array_reshape(&to, x->ndim, x->shape, stride);
    return tg_op_copy(c, to, tg_array_of(x), false);
}

#define SHAPE(...) &(const shape_params){.shape = TG_S_SHAPE(__VA_ARGS__)}
static const tg_sample reshape_samples[] = {
    {.note = "flatten", .params = SHAPE(24), .n_in = 1, .input = {TG_S(2, 3, 4)}},
    {.note = "a size -1", .params = SHAPE(4, -1), .n_in = 1, .input = {TG_S(2, 6)}},
    {.note = "transposed: copies", .params = SHAPE(15), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "strided: cut, still a view", .params = SHAPE(2, 2, 3), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 4, 3)}},
    {.note = "expanded", .params = SHAPE(3, 2, 2), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "size 1 to scalar", .params = &(const shape_params){.shape = {.ndim = 0}}, .n_in = 1, .input = {TG_S(1,
                                                                                                                  1)}},
    {.note = "scalar", .params = SHAPE(1, 1), .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "empty", .params = SHAPE(3, 0), .n_in = 1, .input = {TG_S(0, 5)}},
    {.note = "wrong count", .params = SHAPE(4, 2), .n_in = 1,
     .input = {TG_S(3, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "two sizes -1", .params = SHAPE(-1, -1), .n_in = 1, .input = {TG_S(3, 3)},
     .refused = TG_ERR_SHAPE},
    {.note = "-1 next to a size 0", .params = SHAPE(0, -1), .n_in = 1, .input = {TG_S(0, 3)},
     .refused = TG_ERR_SHAPE},
    {.note = "big", .params = SHAPE(1048576), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 1024, 1024)},
     .bench = true},
};

static const tg_field shape_fields[] = {
    TG_ARG(shape_params, shape, SHAPE,
           "Shape of the result; -1: the size is computed (reshape, view) or kept (expand).", .required = true),
};

const tg_op tg_op_reshape = {
    .size = sizeof(tg_op), .name = "reshape", .formula = "x in another shape", .inputs = "x", .n_in = 1, .n_out = 1,
    .params_size = sizeof(shape_params), .passes = 1, .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .moves = true, .infer = reshape_infer, .forward = reshape_forward, .backward = reshape_backward, .vjp = reshape_vjp,
    .jvp = reshape_jvp, TG_FIELDS(shape_fields), TG_SAMPLES(reshape_samples)};

/* Returns the elements of x, in row-major order, in another shape with as many elements. One size may be -1, which
 * is computed. The result is a view if x's strides allow it, otherwise a copy. */
tg_tensor *tg_reshape(tg_tape *t, tg_tensor *x, tg_shape shape) {
    return TG_RECORD(t, tg_op_reshape, &(shape_params){.shape = shape}, x);
}

/* Does what tg_reshape does, and names the output dim that the sharded dim of x becomes. The sizes can leave that open:
 * if [s, b, h/n] is sharded along dim 2, [s, b, 1, h/n] may be sharded along dim 2 or 3. */
tg_tensor *tg_reshape_shard(tg_tape *t, tg_tensor *x, tg_shape shape, int dim) {
    return TG_RECORD(t, tg_op_reshape, (&(shape_params){shape, .named = true, .shard = dim}), x);
}

/* ---- view ---- */

static tg_status view_infer(tg_call *c) {
    tg_shape *s = &((shape_params *)c->params)->shape;
    const tg_tensor *x = c->input[0];
    int64_t stride[TG_MAX_DIMS];
    TG_TRY(complete_shape(c, s));
    TG_TRY(tg_call_reshapes(c, -1));
    if (tg_reshape_strides(x->ndim, x->shape, x->stride, (int)s->ndim, s->dim, stride))
        return tg_call_view(c, 0, 0, (int)s->ndim, s->dim, stride);
    return tg_call_fail(c, TG_ERR_SHAPE, "the strides of x do not allow this shape without a copy; use tg_reshape");
}

static const tg_sample view_samples[] = {
    {.note = "join and cut", .params = SHAPE(3, 8), .n_in = 1, .input = {TG_S(2, 3, 4)}},
    {.note = "cut a strided dim", .params = SHAPE(4, 3, 1), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 4, 3)}},
    {.note = "cut transposed dims", .params = SHAPE(2, 2, 1, 6), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 6)}},
    {.note = "expanded", .params = SHAPE(3, 2, -1), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "size 1", .params = &(const shape_params){.shape = {.ndim = 0}}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = SHAPE(0, 7), .n_in = 1, .input = {TG_S(4, 0)}},
    {.note = "needs a copy", .params = SHAPE(24), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 6)}, .refused = TG_ERR_SHAPE},
    {.note = "wrong count", .params = SHAPE(5), .n_in = 1, .input = {TG_S(4)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = SHAPE(1048576), .n_in = 1,
     .input = {TG_S(1024, 1024)}, .bench = true},
};

const tg_op tg_op_view = {
    .size = sizeof(tg_op), .name = "view", .formula = "x in another shape, never a copy", .inputs = "x", .n_in = 1,
    .n_out = 1, .params_size = sizeof(shape_params), .passes = 1, .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .moves = true, .infer = view_infer, .backward = reshape_backward, .vjp = reshape_vjp, .jvp = reshape_jvp,
    TG_FIELDS(shape_fields), TG_SAMPLES(view_samples)};

/* Does what tg_reshape does, but fails where tg_reshape would copy. */
tg_tensor *tg_view(tg_tape *t, tg_tensor *x, tg_shape shape) {
    return TG_RECORD(t, tg_op_view, &(shape_params){.shape = shape}, x);
}

/* ---- permute, transpose ---- */

static tg_status view_in_order(tg_call *c, const int *order) {
    tg_extent e;
    const tg_tensor *x = c->input[0];
    for (int d = 0; d < x->ndim; d++) {
        e.shape[d] = x->shape[order[d]];
        e.stride[d] = x->stride[order[d]];
        TG_TRY(tg_call_role(c, 0, order[d], d));
    }
    return tg_call_view(c, 0, 0, x->ndim, e.shape, e.stride);
}

typedef struct permute_params {
    tg_dims order;
} permute_params;

static tg_status permute_infer(tg_call *c) {
    tg_dims *order = &((permute_params *)c->params)->order;
    uint32_t mask;
    int ndim = c->input[0]->ndim;
    if (order->n != ndim)
        return tg_call_fail(c, TG_ERR_SHAPE, "order lists %s; it must list all %s of x", tg_count(order->n, "dim").text,
                            tg_count(ndim, "dim").text);
    TG_TRY(tg_need_dims(c, 0, *order, &mask));
    for (int d = 0; d < ndim; d++)
        if (order->dim[d] < 0) order->dim[d] += ndim;
    return view_in_order(c, order->dim);
}

static tg_status permute_backward(tg_call *c) {
    const tg_dims *order = &((const permute_params *)c->params)->order;
    tg_tensor *g = c->gout[0];
    tg_extent e;
    for (int d = 0; d < g->ndim; d++) {
        e.shape[order->dim[d]] = g->shape[d];
        e.stride[order->dim[d]] = g->stride[d];
    }
    return tg_op_pass_view(c, 0, g, 0, g->ndim, e.shape, e.stride);
}

static tg_tensor *permute_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const tg_dims *order = &((const permute_params *)tg_node_params(n))->order;
    tg_dims back = {.n = order->n};
    for (int d = 0; d < order->n; d++) back.dim[order->dim[d]] = d;
    return tg_permute(t, g, back);
}

TG_VJP(permute_vjp, permute_back(t, n, g))

#define ORDER(...) &(const permute_params){{.n = sizeof((int[]){__VA_ARGS__}) / sizeof(int), .dim = {__VA_ARGS__}}}
static const tg_sample permute_samples[] = {
    {.note = "three dims", .params = ORDER(2, 0, 1), .n_in = 1, .input = {TG_S(2, 3, 4)}},
    {.note = "negative dims", .params = ORDER(-1, 0, -2), .n_in = 1, .input = {TG_S(2, 3, 4)}},
    {.note = "transposed", .params = ORDER(1, 0), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 5)}},
    {.note = "strided", .params = ORDER(1, 2, 0), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 2)}},
    {.note = "size 1", .params = ORDER(1, 0), .n_in = 1, .input = {TG_S(1, 1)}},
    {.note = "empty", .params = ORDER(1, 0), .n_in = 1, .input = {TG_S(0, 4)}},
    {.note = "a dim twice", .params = ORDER(0, 0), .n_in = 1, .input = {TG_S(3, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "a dim missing", .params = ORDER(0), .n_in = 1, .input = {TG_S(3, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = ORDER(1, 0, 2), .n_in = 1, .input = {TG_S(128, 128, 64)}, .bench = true},
};
#undef ORDER

static const tg_field permute_fields[] = {
    TG_ARG(permute_params, order, DIMS, "Which dim of x each dim of the result is.", .required = true),
};

const tg_op tg_op_permute = {
    .size = sizeof(tg_op), .name = "permute", .formula = "x with its dims in another order", .inputs = "x", .n_in = 1,
    .n_out = 1, .params_size = sizeof(permute_params), .passes = 1, .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .moves = true, .infer = permute_infer, .backward = permute_backward, .vjp = permute_vjp, .jvp = tg_jvp_linear,
    TG_FIELDS(permute_fields), TG_SAMPLES(permute_samples)};

/* Returns a view whose dim i is dim order[i] of x. order lists every dim once. */
tg_tensor *tg_permute(tg_tape *t, tg_tensor *x, tg_dims order) {
    return TG_RECORD(t, tg_op_permute, &(permute_params){order}, x);
}

typedef struct transpose_params {
    int d0, d1;
} transpose_params;

static tg_status transpose_infer(tg_call *c) {
    transpose_params *p = c->params;
    int order[TG_MAX_DIMS];
    TG_TRY(tg_need_dim(c, 0, &p->d0));
    TG_TRY(tg_need_dim(c, 0, &p->d1));
    for (int d = 0; d < c->input[0]->ndim; d++) order[d] = d == p->d0 ? p->d1 : d == p->d1 ? p->d0 : d;
    return view_in_order(c, order);
}

static tg_status transpose_backward(tg_call *c) {
    const transpose_params *p = c->params;
    tg_tensor *g = c->gout[0];
    tg_extent e;
    for (int d = 0; d < g->ndim; d++) {
        int from = d == p->d0 ? p->d1 : d == p->d1 ? p->d0 : d;
        e.shape[d] = g->shape[from];
        e.stride[d] = g->stride[from];
    }
    return tg_op_pass_view(c, 0, g, 0, g->ndim, e.shape, e.stride);
}

static tg_tensor *transpose_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const transpose_params *p = tg_node_params(n);
    return tg_transpose(t, g, p->d0, p->d1);
}

TG_VJP(transpose_vjp, transpose_back(t, n, g))

static const tg_sample transpose_samples[] = {
    {.note = "last two", .params = &(const transpose_params){-1, -2}, .n_in = 1, .input = {TG_S(2, 3, 4)}},
    {.note = "square", .params = &(const transpose_params){0, 1}, .n_in = 1, .input = {TG_S(3, 3)}},
    {.note = "outer", .params = &(const transpose_params){0, 2}, .n_in = 1, .input = {TG_S(2, 3, 4)}},
    {.note = "a dim with itself", .params = &(const transpose_params){1, 1}, .n_in = 1, .input = {TG_S(2, 3)}},
    {.note = "strided", .params = &(const transpose_params){0, 1}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3,
                                                                                                5)}},
    {.note = "expanded", .params = &(const transpose_params){0, 1}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 5)}},
    {.note = "size 1", .params = &(const transpose_params){0, -1}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = &(const transpose_params){0, 1}, .n_in = 1, .input = {TG_S(3, 0)}},
    {.note = "no such dim", .params = &(const transpose_params){0, 2}, .n_in = 1,
     .input = {TG_S(3, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const transpose_params){0, 1}, .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

static const tg_field transpose_fields[] = {
    TG_ARG(transpose_params, d0, INT, "One of the dims that are exchanged.", .required = true),
    TG_ARG(transpose_params, d1, INT, "The other one.", .required = true),
};

const tg_op tg_op_transpose = {
    .size = sizeof(tg_op), .name = "transpose", .formula = "x with two dims swapped", .inputs = "x", .n_in = 1,
    .n_out = 1, .params_size = sizeof(transpose_params), .passes = 1, .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .moves = true, .infer = transpose_infer, .backward = transpose_backward, .vjp = transpose_vjp, .jvp = tg_jvp_linear,
    TG_FIELDS(transpose_fields), TG_SAMPLES(transpose_samples)};

/* Returns a view of x with dims d0 and d1 exchanged. */
tg_tensor *tg_transpose(tg_tape *t, tg_tensor *x, int d0, int d1) {
    return TG_RECORD(t, tg_op_transpose, (&(transpose_params){d0, d1}), x);
}

/* ---- expand ---- */

static tg_status expand_infer(tg_call *c) {
    tg_shape *s = &((shape_params *)c->params)->shape;
    const tg_tensor *x = c->input[0];
    int64_t stride[TG_MAX_DIMS], front = s->ndim - x->ndim;
    if (s->ndim > TG_MAX_DIMS || front < 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "the new shape has %s; it must have from %d to %d",
                            tg_count(s->ndim, "dim").text, x->ndim, TG_MAX_DIMS);
    for (int d = 0; d < s->ndim; d++) {
        int64_t have = d < front ? 1 : x->shape[d - front];
        if (s->dim[d] == -1 && d >= front) s->dim[d] = have;
        if (s->dim[d] < 0)
            return tg_call_fail(c, TG_ERR_SHAPE, "dim %d is %lld; it must be 0 or more, or -1 in a dim that x has", d,
                                (long long)s->dim[d]);
        if (have != 1 && have != s->dim[d])
            return tg_call_fail(c, TG_ERR_SHAPE, "size %lld of dim %d does not expand to %lld; only size 1 expands",
                                (long long)have, d, (long long)s->dim[d]);
        bool grows = d < front || have != s->dim[d];
        stride[d] = grows ? 0 : x->stride[d - front];
        if (!grows) TG_TRY(tg_call_role(c, 0, (int)(d - front), d));
    }
    return tg_call_view(c, 0, 0, (int)s->ndim, s->dim, stride);
}

static tg_status expand_backward(tg_call *c) { return tg_op_sum_to(c, 0, c->gout[0], 1); }

TG_VJP(expand_vjp, tg_sum_to(t, g, x))

static const tg_sample expand_samples[] = {
    {.note = "a column", .params = SHAPE(3, 4), .n_in = 1, .input = {TG_S(3, 1)}},
    {.note = "new dims, kept dims", .params = SHAPE(2, 5, -1, 3), .n_in = 1,
     .input = {TG_S(4, 3)}},
    {.note = "inner of a strided one", .params = SHAPE(3, 4, 2), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 1, 2)}},
    {.note = "unchanged", .params = SHAPE(3, 4), .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4)}},
    {.note = "scalar", .params = SHAPE(2, 3), .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "to size 0", .params = SHAPE(0, 3), .n_in = 1, .input = {TG_S(1, 3)}},
    {.note = "not of size 1", .params = SHAPE(6), .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "a new dim of size -1", .params = SHAPE(-1, 3), .n_in = 1, .input = {TG_S(3)},
     .refused = TG_ERR_SHAPE},
    {.note = "big", .params = SHAPE(1024, 1024), .n_in = 1,
     .input = {TG_S(1, 1024)}, .bench = true},
};

const tg_op tg_op_expand = {
    .size = sizeof(tg_op), .name = "expand", .formula = "x repeated along dims of size 1, without a copy",
    .inputs = "x", .n_in = 1, .n_out = 1, .params_size = sizeof(shape_params), .passes = 1, .family = TG_FAMILY_SHAPE,
    .sums_f32 = true, .moves = true, .infer = expand_infer, .backward = expand_backward, .vjp = expand_vjp,
    .jvp = tg_jvp_linear, TG_FIELDS(shape_fields), TG_SAMPLES(expand_samples)};

/* Returns a view of x in a shape that it broadcasts to: dims of size 1 are repeated (stride 0), -1 keeps a size, and
 * new dims are added in front. */
tg_tensor *tg_expand(tg_tape *t, tg_tensor *x, tg_shape shape) {
    return TG_RECORD(t, tg_op_expand, &(shape_params){.shape = shape}, x);
}

/* ---- squeeze, unsqueeze ---- */

static tg_status squeeze_infer(tg_call *c) {
    int *dim = &((dim_params *)c->params)->dim;
    const tg_tensor *x = c->input[0];
    tg_extent e;
    TG_TRY(tg_need_dim(c, 0, dim));
    if (x->shape[*dim] != 1)
        return tg_call_fail(c, TG_ERR_SHAPE, "dim %d has size %lld; it must be 1", *dim, (long long)x->shape[*dim]);
    for (int d = 0; d + 1 < x->ndim; d++) {
        int from = d + (d >= *dim);
        e.shape[d] = x->shape[from];
        e.stride[d] = x->stride[from];
        TG_TRY(tg_call_role(c, 0, from, d));
    }
    return tg_call_view(c, 0, 0, x->ndim - 1, e.shape, e.stride);
}

static const tg_sample squeeze_samples[] = {
    {.note = "middle", .params = &(const dim_params){1}, .n_in = 1, .input = {TG_S(3, 1, 4)}},
    {.note = "last", .params = &(const dim_params){-1}, .n_in = 1, .input = {TG_S(3, 1)}},
    {.note = "transposed", .params = &(const dim_params){0}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 1, 3,
                                                                                          5)}},
    {.note = "strided", .params = &(const dim_params){1}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 1, 2)}},
    {.note = "to a scalar", .params = &(const dim_params){0}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = &(const dim_params){0}, .n_in = 1, .input = {TG_S(1, 0)}},
    {.note = "not of size 1", .params = &(const dim_params){0}, .n_in = 1, .input = {TG_S(2, 1)},
     .refused = TG_ERR_SHAPE},
    {.note = "no such dim", .params = &(const dim_params){2}, .n_in = 1, .input = {TG_S(2, 1)},
     .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const dim_params){0}, .n_in = 1, .input = {TG_S(1, 1024, 1024)}, .bench = true},
};

static const tg_field dim_fields[] = {
    TG_ARG(dim_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
};

const tg_op tg_op_squeeze = {
    .size = sizeof(tg_op), .name = "squeeze", .formula = "x without a dim of size 1", .inputs = "x", .n_in = 1,
    .n_out = 1, .params_size = sizeof(dim_params), .passes = 1, .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .moves = true, .infer = squeeze_infer, .backward = reshape_backward, .vjp = reshape_vjp, .jvp = reshape_jvp,
    TG_FIELDS(dim_fields), TG_SAMPLES(squeeze_samples)};

/* Returns a view of x without dim, whose size must be 1. */
tg_tensor *tg_squeeze(tg_tape *t, tg_tensor *x, int dim) { return TG_RECORD(t, tg_op_squeeze, &(dim_params){dim}, x); }

static tg_status unsqueeze_infer(tg_call *c) {
    int *dim = &((dim_params *)c->params)->dim;
    const tg_tensor *x = c->input[0];
    tg_extent e;
    if (x->ndim == TG_MAX_DIMS) return tg_call_fail(c, TG_ERR_SHAPE, "x already has %d dims, the most that are "
                                                    "allowed; unsqueeze adds one", TG_MAX_DIMS);
    TG_TRY(tg_need_axis(c, x->ndim + 1, dim));
    for (int d = 0; d <= x->ndim; d++) {
        int from = d - (d > *dim);
        e.shape[d] = d == *dim ? 1 : x->shape[from];
        e.stride[d] = d == *dim ? 1 : x->stride[from];
        if (d != *dim) TG_TRY(tg_call_role(c, 0, from, d));
    }
    return tg_call_view(c, 0, 0, x->ndim + 1, e.shape, e.stride);
}

static const tg_sample unsqueeze_samples[] = {
    {.note = "front", .params = &(const dim_params){0}, .n_in = 1, .input = {TG_S(3, 4)}},
    {.note = "middle", .params = &(const dim_params){1}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4)}},
    {.note = "end", .params = &(const dim_params){-1}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "scalar", .params = &(const dim_params){0}, .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "size 1", .params = &(const dim_params){1}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = &(const dim_params){1}, .n_in = 1, .input = {TG_S(0, 2)}},
    {.note = "no such dim", .params = &(const dim_params){3}, .n_in = 1, .input = {TG_S(3, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "too many dims", .params = &(const dim_params){0}, .n_in = 1,
     .input = {TG_S(1, 1, 1, 1, 1, 1, 1, 2)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const dim_params){1}, .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

const tg_op tg_op_unsqueeze = {
    .size = sizeof(tg_op), .name = "unsqueeze", .formula = "x with a new dim of size 1", .inputs = "x", .n_in = 1,
    .n_out = 1, .params_size = sizeof(dim_params), .passes = 1, .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .moves = true, .infer = unsqueeze_infer, .backward = reshape_backward, .vjp = reshape_vjp, .jvp = reshape_jvp,
    TG_FIELDS(dim_fields), TG_SAMPLES(unsqueeze_samples)};

/* Returns a view of x with a new dim of size 1 at position dim; -1 puts it at the end. */
tg_tensor *tg_unsqueeze(tg_tape *t, tg_tensor *x, int dim) {
    return TG_RECORD(t, tg_op_unsqueeze, &(dim_params){dim}, x);
}
