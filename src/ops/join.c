/* Ops that join tensors along a dim, cut a tensor, or pad it: concat, stack, split, chunk and pad. */
#include "ops/common/derive.h"
#include "ops/common/op.h"
#include "autograd/apply.h"

typedef struct join_params {
    int dim;
} join_params;

/* Checks that the inputs have one dtype, and the same size in every dim except `but`, or in every dim if but is -1. */
static tg_status need_alike(tg_call *c, int but) {
    const tg_tensor *a = c->input[0];
    for (int i = 1; i < c->n_in; i++) {
        const tg_tensor *b = c->input[i];
        TG_TRY(tg_need_same_dtype(c, 0, i));
        if (b->ndim != a->ndim)
            return tg_call_fail(c, TG_ERR_SHAPE, "input %d has %s but input 0 has %d; they must be equal", i,
                                tg_count(b->ndim, "dim").text, a->ndim);
        for (int d = 0; d < a->ndim; d++)
            if (d != but && a->shape[d] != b->shape[d])
                return tg_call_fail(c, TG_ERR_SHAPE, "input %d has size %lld in dim %d; it must be %lld, as in input 0",
                                    i, (long long)b->shape[d], d, (long long)a->shape[d]);
    }
    return TG_OK;
}

/* States that every dim of every input except dim `but` may be sharded (tg_call_role). If `added` is true, `but` is a
 * dim that only the output has: then all dims of the inputs may be sharded, and dim d of an input becomes dim d + 1 of
 * the output if d >= but. */
static tg_status declare_free(tg_call *c, int but, bool added) {
    for (int i = 0; tg_call_places(c) && i < c->n_in; i++)
        for (int d = 0; d < c->input[i]->ndim; d++)
            if (added || d != but) TG_TRY(tg_call_role(c, i, d, d + (added && d >= but)));
    return TG_OK;
}

/* ---- concat ---- */

static tg_status concat_infer(tg_call *c) {
    int *dim = &((join_params *)c->params)->dim;
    int64_t shape[TG_MAX_DIMS], total = 0;
    const tg_tensor *a = c->input[0];
    TG_TRY(tg_need_dim(c, 0, dim));
    TG_TRY(need_alike(c, *dim));
    for (int i = 0; i < c->n_in; i++)
        if (__builtin_add_overflow(total, c->input[i]->shape[*dim], &total))
            return tg_call_fail(c, TG_ERR_SHAPE, "the sum of the sizes of dim %d overflows 64 bits", *dim);
    memcpy(shape, a->shape, a->ndim * sizeof *shape);
    shape[*dim] = total;
    TG_TRY(declare_free(c, *dim, false));
    TG_TRY(tg_call_joins(c, *dim));
    return tg_call_out(c, 0, (tg_dtype)a->dtype, a->ndim, shape);
}

static tg_status concat_forward(tg_call *c) {
    int dim = ((const join_params *)c->params)->dim;
    tg_array y = tg_array_of(c->out[0]);
    int64_t at = 0;
    for (int i = 0; i < c->n_in; i++) {
        tg_extent e;
        int64_t n = c->input[i]->shape[dim];
        TG_TRY(tg_op_copy(c, tg_array_slice(y, dim, at, n, 1, &e), tg_array_of(c->input[i]), false));
        at += n;
    }
    return TG_OK;
}

/* Each input's gradient is a part of g and is passed on as a view. */
static tg_status concat_backward(tg_call *c) {
    int dim = ((const join_params *)c->params)->dim;
    tg_tensor *g = c->gout[0];
    int64_t at = 0;
    for (int i = 0; i < c->n_in; i++) {
        const tg_tensor *x = c->input[i];
        TG_TRY(tg_op_pass_view(c, i, g, at * g->stride[dim], x->ndim, x->shape, g->stride));
        at += x->shape[dim];
    }
    return TG_OK;
}

static tg_status concat_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    int dim = ((const join_params *)tg_node_params(n))->dim;
    int64_t at = 0;
    for (int i = 0; i < n->n_in; i++) {
        int64_t size = tg_node_in(n)[i]->shape[dim];
        if (tg_node_needs_grad(n, i)) gin[i] = tg_slice(t, gout[0], dim, at, at + size, 1);
        at += size;
    }
    return TG_OK;
}

static const tg_sample concat_samples[] = {
    {.note = "rows", .params = &(const join_params){0}, .n_in = 2, .input = {TG_S(2, 3), TG_S(4, 3)}},
    {.note = "columns of three", .params = &(const join_params){-1}, .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 2), TG_S_AS(TG_SAMPLE_STRIDED, 3, 4), TG_S_AS(TG_SAMPLE_EXPANDED, 3,
                                                                                              1)}},
    {.note = "middle", .params = &(const join_params){1}, .n_in = 2, .input = {TG_S(2, 1, 3), TG_S(2, 2, 3)}},
    {.note = "one", .params = &(const join_params){0}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "with nothing", .params = &(const join_params){0}, .n_in = 2, .input = {TG_S(0, 3), TG_S(2, 3)}},
    {.note = "nothing at all", .params = &(const join_params){1}, .n_in = 2, .input = {TG_S(0, 3), TG_S(0, 2)}},
    {.note = "one tensor twice", .params = &(const join_params){0}, .n_in = 2,
     .input = {TG_S(2, 3), TG_S(2, 3)}, .aliases = true},
    {.note = "other sizes", .params = &(const join_params){0}, .n_in = 2,
     .input = {TG_S(2, 3), TG_S(2, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "scalars", .params = &(const join_params){0}, .n_in = 2,
     .input = {TG_S_SCALAR, TG_S_SCALAR}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const join_params){1}, .n_in = 2,
     .input = {TG_S(1024, 512), TG_S(1024, 512)}, .bench = true},
};

static const tg_field join_fields[] = {
    TG_ARG(join_params, dim, INT, "The dim along which the inputs are joined."),
};

const tg_op tg_op_concat = {
    .size = sizeof(tg_op), .name = "concat", .formula = "x0, x1, .. one after another along a dim", .inputs = "x..",
    .n_in = -1, .n_out = 1, .params_size = sizeof(join_params), .passes = UINT32_MAX, .family = TG_FAMILY_SHAPE,
    .sums_f32 = true, .moves = true, .infer = concat_infer, .forward = concat_forward, .backward = concat_backward,
    .vjp = concat_vjp, .jvp = tg_jvp_linear, TG_FIELDS(join_fields), TG_SAMPLES(concat_samples)};

/* Joins n tensors along dim, in order. They must agree in dtype and in the sizes of all other dims. */
tg_tensor *tg_concat(tg_tape *t, tg_tensor *const *x, int n, int dim) {
    return tg_record(t, &tg_op_concat, &(join_params){dim}, x, n, TG_SITE);
}

/* ---- stack ---- */

static tg_status stack_infer(tg_call *c) {
    int *dim = &((join_params *)c->params)->dim;
    int64_t shape[TG_MAX_DIMS];
    const tg_tensor *a = c->input[0];
    if (a->ndim == TG_MAX_DIMS) return tg_call_fail(c, TG_ERR_SHAPE, "the inputs already have %d dims, the most that "
                                                    "are allowed; stack adds one", TG_MAX_DIMS);
    TG_TRY(tg_need_axis(c, a->ndim + 1, dim));
    TG_TRY(need_alike(c, -1));
    for (int d = 0; d <= a->ndim; d++) shape[d] = d == *dim ? c->n_in : a->shape[d - (d > *dim)];
    TG_TRY(declare_free(c, *dim, true));
    return tg_call_out(c, 0, (tg_dtype)a->dtype, a->ndim + 1, shape);
}

static tg_status stack_forward(tg_call *c) {
    int dim = ((const join_params *)c->params)->dim;
    tg_array y = tg_array_of(c->out[0]);
    for (int i = 0; i < c->n_in; i++) {
        tg_extent to, from;
        tg_array x = tg_array_keep(tg_array_of(c->input[i]), y.ndim, 1u << dim, &from);
        TG_TRY(tg_op_copy(c, tg_array_slice(y, dim, i, 1, 1, &to), x, false));
    }
    return TG_OK;
}

static tg_status stack_backward(tg_call *c) {
    int dim = ((const join_params *)c->params)->dim;
    tg_tensor *g = c->gout[0];
    int64_t stride[TG_MAX_DIMS];
    for (int d = 0; d + 1 < g->ndim; d++) stride[d] = g->stride[d + (d >= dim)];
    for (int i = 0; i < c->n_in; i++)
        TG_TRY(tg_op_pass_view(c, i, g, i * g->stride[dim], c->input[i]->ndim, c->input[i]->shape, stride));
    return TG_OK;
}

static tg_status stack_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    int dim = ((const join_params *)tg_node_params(n))->dim;
    for (int i = 0; i < n->n_in; i++)
        if (tg_node_needs_grad(n, i)) gin[i] = tg_select(t, gout[0], dim, i);
    return TG_OK;
}

static const tg_sample stack_samples[] = {
    {.note = "in front", .params = &(const join_params){0}, .n_in = 2, .input = {TG_S(2, 3), TG_S(2, 3)}},
    {.note = "at the end, of three", .params = &(const join_params){-1}, .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 2), TG_S_AS(TG_SAMPLE_STRIDED, 3, 2), TG_S_AS(TG_SAMPLE_EXPANDED, 3,
                                                                                              2)}},
    {.note = "middle", .params = &(const join_params){1}, .n_in = 2, .input = {TG_S(2, 3), TG_S(2, 3)}},
    {.note = "scalars", .params = &(const join_params){0}, .n_in = 2, .input = {TG_S_SCALAR, TG_S_SCALAR}},
    {.note = "one", .params = &(const join_params){0}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = &(const join_params){1}, .n_in = 2, .input = {TG_S(0, 3), TG_S(0, 3)}},
    {.note = "other sizes", .params = &(const join_params){0}, .n_in = 2,
     .input = {TG_S(3), TG_S(1)}, .refused = TG_ERR_SHAPE},
    {.note = "no such dim", .params = &(const join_params){2}, .n_in = 2,
     .input = {TG_S(3), TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const join_params){1}, .n_in = 2,
     .input = {TG_S(1024, 512), TG_S(1024, 512)}, .bench = true},
};

const tg_op tg_op_stack = {
    .size = sizeof(tg_op), .name = "stack", .formula = "x0, x1, .. along a new dim", .inputs = "x..", .n_in = -1,
    .n_out = 1, .params_size = sizeof(join_params), .passes = UINT32_MAX, .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .moves = true, .infer = stack_infer, .forward = stack_forward, .backward = stack_backward, .vjp = stack_vjp,
    .jvp = tg_jvp_linear, TG_FIELDS(join_fields), TG_SAMPLES(stack_samples)};

/* Joins n tensors of one dtype and shape along a new dim. */
tg_tensor *tg_stack(tg_tape *t, tg_tensor *const *x, int n, int dim) {
    return tg_record(t, &tg_op_stack, &(join_params){dim}, x, n, TG_SITE);
}

/* ---- split ---- */

typedef struct split_params {
    int dim, n;
    const int64_t *sizes; /* the caller's; only infer reads it, and sets it to NULL */
    bool chunks;          /* the parts are those of tg_chunk; sizes is not used */
} split_params;

/* Returns the size of part i. x has `size` elements along the dim, of which `left` remain. A part of tg_chunk has
 * ceil(size / n) elements, or `left` if fewer remain. */
static int64_t part_size(const split_params *p, int i, int64_t size, int64_t left) {
    if (!p->chunks) return p->sizes[i];
    int64_t most = size / p->n + (size % p->n != 0);
    return most < left ? most : left;
}

static tg_status split_infer(tg_call *c) {
    split_params *p = c->params;
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS], at = 0;
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    if (p->chunks && p->n < 1) return tg_call_fail(c, TG_ERR_ARGUMENT, "n is %d; it must be 1 or more", p->n);
    if (!p->chunks && (p->n < 1 || !p->sizes)) return tg_call_fail(c, TG_ERR_ARGUMENT, "sizes is NULL or n is less "
                                                                   "than 1; give the size of each part");
    TG_TRY(tg_call_outputs(c, p->n));
    TG_TRY(declare_free(c, p->dim, false));
    TG_TRY(tg_call_cuts(c, p->dim));
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    for (int i = 0; i < p->n; i++) {
        int64_t left = x->shape[p->dim] - at, n = part_size(p, i, x->shape[p->dim], left);
        if (n < 0 || n > left || (i == p->n - 1 && n != left))
            return tg_call_fail(
                c, TG_ERR_SHAPE,
                "part %d has size %lld, but the rest has %s; the sizes must be 0 or more and add up to %lld", i,
                (long long)n, tg_count(left, "element").text, (long long)x->shape[p->dim]);
        shape[p->dim] = n;
        TG_TRY(tg_call_view(c, i, at * x->stride[p->dim], x->ndim, shape, x->stride));
        at += n;
    }
    p->sizes = NULL;
    return TG_OK;
}

static tg_status split_backward(tg_call *c) {
    int dim = ((const split_params *)c->params)->dim;
    tg_array x = tg_array_of(c->gin[0]);
    int64_t at = 0;
    for (int i = 0; i < c->n_out; i++) {
        tg_extent e;
        int64_t n = c->out[i]->shape[dim];
        tg_array part = tg_array_slice(x, dim, at, n, 1, &e);
        at += n;
        if (c->gout[i])
            TG_TRY(tg_op_copy(c, part, tg_array_of(c->gout[i]), tg_adds(c, 0)));
        else if (!tg_adds(c, 0))
            TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, part, 0));
    }
    return TG_OK;
}

static tg_status split_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_tensor **part = tg_tape_alloc(t, n->n_out * sizeof *part);
    if (!part) return t->ctx->run.status;
    for (int i = 0; i < n->n_out; i++) part[i] = gout[i] ? gout[i] : tg_zeros_like(t, tg_node_out(n)[i]);
    gin[0] = tg_concat(t, part, n->n_out, ((const split_params *)tg_node_params(n))->dim);
    tg_tape_give(t, part, n->n_out * sizeof *part);
    return TG_OK;
}

static tg_status split_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    int dim = ((const split_params *)tg_node_params(n))->dim;
    int64_t at = 0;
    for (int i = 0; i < n->n_out; i++) {
        int64_t size = tg_node_out(n)[i]->shape[dim];
        dout[i] = tg_slice(t, din[0], dim, at, at + size, 1);
        at += size;
    }
    return TG_OK;
}

#define SIZES(dim_, ...)                                                                          \
    &(const split_params){.dim = (dim_), .n = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), \
                          .sizes = (const int64_t[]){__VA_ARGS__}}
static const tg_sample split_samples[] = {
    {.note = "columns", .params = SIZES(1, 2, 1, 3), .n_in = 1, .input = {TG_S(2, 6)}},
    {.note = "rows", .params = SIZES(0, 3, 1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 3)}},
    {.note = "last of a strided one", .params = SIZES(-1, 1, 1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3,
                                                                                              2)}},
    {.note = "expanded", .params = SIZES(1, 2, 2), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "with nothing", .params = SIZES(0, 0, 2), .n_in = 1, .input = {TG_S(2, 3)}},
    {.note = "one", .params = SIZES(0, 1), .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = SIZES(1, 1, 2), .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "too few", .params = SIZES(0, 1, 1), .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "negative", .params = SIZES(0, 4, -1), .n_in = 1, .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "no sizes", .params = &(const split_params){.n = 0}, .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_ARGUMENT},
    {.note = "big", .params = SIZES(1, 512, 512), .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};
#undef SIZES

static const tg_field split_fields[] = {
    TG_ARG(split_params, dim, INT, "Dim of x; a negative number counts from the end."),
    TG_ARG(split_params, sizes, LIST, "Size of each part; the sum is the size of dim.",
           .length_at = offsetof(split_params, n), .required = true),
};

static int part_count(const void *params) { return ((const split_params *)params)->n; }

const tg_op tg_op_split = {
    .size = sizeof(tg_op), .name = "split", .formula = "x cut along a dim", .inputs = "x", .outputs = "parts..",
    .n_in = 1, .n_out = -1, .params_size = sizeof(split_params), .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .moves = true, .infer = split_infer, .backward = split_backward, .vjp = split_vjp, .jvp = split_jvp,
    TG_FIELDS(split_fields), .outputs_of = part_count, TG_SAMPLES(split_samples)};

/* Cuts dim into n parts of the given sizes, which must add up to its size. out[] receives n views. */
tg_status tg_split(tg_tape *t, tg_tensor *x, int dim, const int64_t *sizes, int n, tg_tensor **out) {
    const split_params p = {.dim = dim, .n = n, .sizes = sizes};
    return tg_apply(t, &tg_op_split, &p, &x, 1, out, n, NULL, NULL, TG_SITE);
}

static const tg_sample chunk_samples[] = {
    {.note = "chunks", .params = &(const split_params){.dim = 1, .n = 3, .chunks = true}, .n_in = 1,
     .input = {TG_S(2, 7)}},
    {.note = "more chunks than elements", .params = &(const split_params){.n = 4, .chunks = true}, .n_in = 1,
     .input = {TG_S(2, 3)}},
    {.note = "rows, transposed", .params = &(const split_params){.dim = -2, .n = 2, .chunks = true}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 3)}},
    {.note = "one chunk", .params = &(const split_params){.n = 1, .chunks = true}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 2)}},
    {.note = "empty", .params = &(const split_params){.n = 2, .chunks = true}, .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "no chunks", .params = &(const split_params){.n = 0, .chunks = true}, .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_ARGUMENT},
};

static const tg_field chunk_fields[] = {
    TG_ARG(split_params, dim, INT, "Dim of x; a negative number counts from the end."),
    TG_ARG(split_params, n, INT, "Number of parts.", .required = true),
};

const tg_op tg_op_chunk = {
    .size = sizeof(tg_op), .name = "chunk", .formula = "x cut into n equal parts along a dim", .inputs = "x",
    .outputs = "parts..", .n_in = 1, .n_out = -1, .params_size = sizeof(split_params), .family = TG_FAMILY_SHAPE,
    .sums_f32 = true, .moves = true, .infer = split_infer, .backward = split_backward, .vjp = split_vjp,
    .jvp = split_jvp, TG_FIELDS(chunk_fields), .preset = &(const split_params){.chunks = true},
    .outputs_of = part_count, TG_SAMPLES(chunk_samples)};

/* Does what tg_split does, with n parts of ceil(size / n) elements. If size is not a multiple of n, the last parts have
 * fewer elements, or none. */
tg_status tg_chunk(tg_tape *t, tg_tensor *x, int dim, int n, tg_tensor **out) {
    const split_params p = {.dim = dim, .n = n, .chunks = true};
    if (n < 1) {
        TG_TRY(tg_tape_check_with(t, &x, 1, "chunk"));
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "chunk: n is %d; it must be 1 or more", n);
    }
    return tg_apply(t, &tg_op_chunk, &p, &x, 1, out, n, NULL, NULL, TG_SITE);
}

/* ---- pad ---- */

typedef struct pad_params {
    int dim;
    int64_t before, after;
    double value;
} pad_params;

static tg_status pad_infer(tg_call *c) {
    pad_params *p = c->params;
    const tg_tensor *x = c->input[0];
    int64_t shape[TG_MAX_DIMS], *size;
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    TG_TRY(tg_need_value(c, (tg_dtype)x->dtype, p->value, "the value"));
    if (p->before < 0 || p->after < 0)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "before is %lld and after is %lld; both must be 0 or more (tg_slice "
                            "removes elements)", (long long)p->before, (long long)p->after);
    TG_TRY(declare_free(c, p->dim, false));
    TG_TRY(tg_call_linear(c, p->value == 0)); /* linear in x only if the padding is 0 */
    memcpy(shape, x->shape, x->ndim * sizeof *shape);
    size = &shape[p->dim];
    if (__builtin_add_overflow(*size, p->before, size) || __builtin_add_overflow(*size, p->after, size))
        return tg_call_fail(c, TG_ERR_SHAPE, "the new size of dim %d overflows 64 bits", p->dim);
    return tg_call_out(c, 0, (tg_dtype)x->dtype, x->ndim, shape);
}

static tg_status pad_forward(tg_call *c) {
    const pad_params *p = c->params;
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_array y = tg_array_of(c->out[0]);
    int64_t n = c->input[0]->shape[p->dim];
    tg_extent e;
    TG_TRY(ops->fill(c->ctx, tg_array_slice(y, p->dim, 0, p->before, 1, &e), p->value));
    TG_TRY(tg_op_copy(c, tg_array_slice(y, p->dim, p->before, n, 1, &e), tg_array_of(c->input[0]), false));
    return ops->fill(c->ctx, tg_array_slice(y, p->dim, p->before + n, p->after, 1, &e), p->value);
}

static tg_status pad_backward(tg_call *c) {
    const pad_params *p = c->params;
    const tg_tensor *x = c->input[0];
    tg_tensor *g = c->gout[0];
    return tg_op_pass_view(c, 0, g, p->before * g->stride[p->dim], x->ndim, x->shape, g->stride);
}

static tg_tensor *pad_back(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const pad_params *p = tg_node_params(n);
    return tg_slice(t, g, p->dim, p->before, p->before + tg_node_in(n)[0]->shape[p->dim], 1);
}

TG_VJP(pad_vjp, pad_back(t, n, g))

static tg_status pad_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    const pad_params *p = tg_node_params(n);
    dout[0] = tg_pad(t, din[0], p->dim, p->before, p->after, 0);
    return TG_OK;
}

static const tg_sample pad_samples[] = {
    {.note = "both ends", .params = &(const pad_params){1, 1, 2, 0.5}, .n_in = 1, .input = {TG_S(2, 3)}},
    {.note = "rows", .params = &(const pad_params){0, 0, 1, 0}, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3,
                                                                                             2)}},
    {.note = "last of a strided one", .params = &(const pad_params){-1, 2, 0, -1}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 2)}},
    {.note = "expanded", .params = &(const pad_params){0, 1, 1, 0}, .n_in = 1,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 2)}},
    {.note = "by nothing", .params = &(const pad_params){0, 0, 0, 7}, .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = &(const pad_params){0, 1, 1, 3}, .n_in = 1, .input = {TG_S(0, 2)}},
    {.note = "negative", .params = &(const pad_params){0, -1, 0, 0}, .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_ARGUMENT},
    {.note = "overflow", .params = &(const pad_params){0, INT64_MAX, 1, 0}, .n_in = 1,
     .input = {TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "scalar", .params = &(const pad_params){0, 1, 1, 0}, .n_in = 1,
     .input = {TG_S_SCALAR}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = &(const pad_params){1, 16, 16, 0}, .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

static const tg_field pad_fields[] = {
    TG_ARG(pad_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
    TG_ARG(pad_params, before, INT64, "Number of elements in front of x."),
    TG_ARG(pad_params, after, INT64, "Number of elements after the end of x."),
    TG_ARG(pad_params, value, DOUBLE, "Value of the new elements."),
};

const tg_op tg_op_pad = {
    .size = sizeof(tg_op), .name = "pad", .formula = "x with a constant around it along a dim", .inputs = "x",
    .n_in = 1, .n_out = 1, .params_size = sizeof(pad_params), .passes = 1, .family = TG_FAMILY_SHAPE, .sums_f32 = true,
    .infer = pad_infer, .forward = pad_forward, .backward = pad_backward, .vjp = pad_vjp, .jvp = pad_jvp,
    TG_FIELDS(pad_fields), TG_SAMPLES(pad_samples)};

/* Returns x with `before` and `after` elements of `value` added at the two ends of dim. */
tg_tensor *tg_pad(tg_tape *t, tg_tensor *x, int dim, int64_t before, int64_t after, double value) {
    return TG_RECORD(t, tg_op_pad, (&(pad_params){dim, before, after, value}), x);
}
