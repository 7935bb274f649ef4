/* Indexing by several tensors at once. Tensors of indices, one for each of some dims of x, give positions in x: index
 * reads the elements there, and index_put writes or adds there. A negative index counts from the end of its dim.
 *
 * The indexed dims are treated as one dim of size mid, between the front and back dims that stay whole. The n tuples of
 * indices become n positions along it. */
#include "ops/common/derive.h"
#include "ops/common/indexed.h"
#include "ops/common/op.h"

typedef struct index_dims_params {
    tg_dims dims; /* dims.dim[i] belongs to the i-th index; not negative after infer */
    bool accumulate;
} index_dims_params;

/* How a call divides the dims of x. */
typedef struct plan {
    int indexed;                  /* number of indexed dims */
    int before, after;            /* number of dims of x before and after the indices in the result */
    int order[TG_MAX_DIMS];       /* the dims of x: those before, the indexed ones in rising order, those after */
    int input[TG_MAX_DIMS];       /* the input that is the index of each indexed dim, in this order */
    tg_shape tuples;              /* the shape to which the indices broadcast */
    tg_shape result;
    int64_t front, mid, back, n;
} plan;

/* ---- The plan ---- */

/* Broadcasts the shapes of the indices, inputs `first` and later, to p->tuples. */
static tg_status broadcast_indices(tg_call *c, int first, plan *p) {
    for (int i = first; i < c->n_in; i++)
        if (c->input[i]->ndim > p->tuples.ndim) p->tuples.ndim = c->input[i]->ndim;
    for (int d = 0; d < p->tuples.ndim; d++) p->tuples.dim[d] = 1;
    for (int i = first; i < c->n_in; i++) {
        const tg_tensor *x = c->input[i];
        for (int d = 0, at = (int)p->tuples.ndim - x->ndim; d < x->ndim; d++, at++) {
            if (x->shape[d] == 1 || x->shape[d] == p->tuples.dim[at]) continue;
            if (p->tuples.dim[at] != 1)
                return tg_call_fail(c, TG_ERR_SHAPE, "the indices do not broadcast: input %d has size %lld in dim %d, "
                                    "another one has %lld there", i, (long long)x->shape[d], d,
                                    (long long)p->tuples.dim[at]);
            p->tuples.dim[at] = x->shape[d];
        }
    }
    return TG_OK;
}

/* Lists the dims of x in p->order. If other dims lie between indexed ones, the indices come first. */
static void order_dims(const tg_call *c, int first, uint32_t mask, plan *p) {
    const index_dims_params *params = c->params;
    int ndim = c->input[0]->ndim, lowest = mask ? __builtin_ctz(mask) : 0, at = 0;
    bool adjacent = (((mask >> lowest) + 1) & (mask >> lowest)) == 0;
    p->before = adjacent ? lowest : 0;
    p->indexed = (int)params->dims.n;
    p->after = ndim - p->indexed - p->before;
    for (int d = 0; d < p->before; d++) p->order[at++] = d;
    for (int d = 0; d < ndim; d++)
        if (mask >> d & 1) p->order[at++] = d;
    for (int d = p->before; d < ndim; d++)
        if (!(mask >> d & 1)) p->order[at++] = d;
    for (int k = 0; k < p->indexed; k++)
        for (int i = 0; i < p->indexed; i++)
            if (params->dims.dim[i] == p->order[p->before + k]) p->input[k] = first + i;
}

static int64_t size_of(const tg_call *c, const plan *p, int from, int count) {
    int64_t n = 1;
    for (int k = from; k < from + count; k++) n *= c->input[0]->shape[p->order[k]];
    return n;
}

/* Fills *p. The indices are the inputs from `first` on. */
static tg_status make_plan(tg_call *c, int first, plan *p) {
    const index_dims_params *params = c->params;
    const tg_tensor *x = c->input[0];
    uint32_t mask = 0;
    *p = (plan){.n = 1};
    for (int i = 0; i < params->dims.n; i++) mask |= 1u << params->dims.dim[i];
    TG_TRY(broadcast_indices(c, first, p));
    order_dims(c, first, mask, p);
    p->front = size_of(c, p, 0, p->before);
    p->mid = size_of(c, p, p->before, p->indexed);
    p->back = size_of(c, p, p->before + p->indexed, p->after);
    for (int d = 0; d < p->tuples.ndim; d++)
        if (__builtin_mul_overflow(p->n, p->tuples.dim[d], &p->n))
            return tg_call_fail(c, TG_ERR_SHAPE, "the indices broadcast to more elements than 64 bits can count");
    if (p->tuples.ndim + p->before + p->after > TG_MAX_DIMS)
        return tg_call_fail(c, TG_ERR_SHAPE, "the result would have %d dims, more than %d",
                            (int)p->tuples.ndim + p->before + p->after, TG_MAX_DIMS);
    for (int k = 0; k < p->before; k++) p->result.dim[p->result.ndim++] = x->shape[p->order[k]];
    for (int d = 0; d < p->tuples.ndim; d++) p->result.dim[p->result.ndim++] = p->tuples.dim[d];
    for (int k = x->ndim - p->after; k < x->ndim; k++) p->result.dim[p->result.ndim++] = x->shape[p->order[k]];
    return TG_OK;
}

/* Checks the dims and the indices, inputs `first` and later, and counts negative dims from the front. */
static tg_status check_indices(tg_call *c, int first) {
    tg_dims *dims = &((index_dims_params *)c->params)->dims;
    uint32_t mask;
    for (int i = first; i < c->n_in; i++) TG_TRY(tg_need_index(c, i));
    if (dims->n != c->n_in - first)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "%s for %s; they must be as many",
                            tg_count(c->n_in - first, "index tensor").text, tg_count(dims->n, "dim").text);
    TG_TRY(tg_need_dims(c, 0, *dims, &mask));
    for (int i = 0; i < dims->n; i++)
        if (dims->dim[i] < 0) dims->dim[i] += c->input[0]->ndim;
    return TG_OK;
}

/* ---- Arrays ---- */

/* Returns the positions along the indexed dims as a new tensor of n integers. The position of a tuple with an index
 * that is out of range is -1. */
static tg_tensor *find_positions(tg_call *c, const plan *p) {
    tg_tensor *at = tg_call_temp(c, TG_I64, (int)p->tuples.ndim, p->tuples.dim);
    for (int k = 0; k < p->indexed && tg_ok(c->ctx); k++) {
        const tg_tensor *index = c->input[p->input[k]];
        double size = (double)c->input[0]->shape[p->order[p->before + k]];
        if (k == 0)
            tg_op_map(c, TG_FN_wrap_index, at, TG_T1(index), 1, size, 0, false);
        else
            tg_op_map(c, TG_FN_join_index, at, TG_T2(at, index), 2, size, 0, false);
    }
    return at;
}

/* Views n elements without gaps as [front, n, back], repeated along front and back. */
static tg_array spread(const plan *p, const tg_tensor *x, tg_extent *e) {
    *e = (tg_extent){{p->front, p->n, p->back}, {0, 1, 0}};
    return tg_array_at(tg_array_of(x), 0, 3, e->shape, e->stride);
}

/* A tensor of x's shape seen as [front, mid, back]: as itself, or as a copy if its strides do not allow that. */
typedef struct grouped {
    tg_array a, home; /* home is the tensor, with its dims in the plan's order */
    tg_extent e, permuted;
    const tg_tensor *copy;
} grouped;

static tg_status group(tg_call *c, const plan *p, const tg_tensor *x, grouped *g) {
    g->home = g->a = tg_array_permute(tg_array_of(x), p->order, g->permuted.shape, g->permuted.stride);
    g->e = (tg_extent){.shape = {p->front, p->mid, p->back}};
    g->copy = NULL;
    if (tg_array_reshape(&g->a, 3, g->e.shape, g->e.stride)) return TG_OK;
    g->copy = tg_call_temp(c, (tg_dtype)x->dtype, x->ndim, g->permuted.shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    g->a = tg_array_of(g->copy);
    TG_TRY(tg_op_copy(c, g->a, g->home, false));
    tg_array_reshape(&g->a, 3, g->e.shape, g->e.stride);
    return TG_OK;
}

/* Writes a changed copy back. */
static tg_status ungroup(tg_call *c, const grouped *g) {
    return g->copy ? tg_op_copy(c, g->home, tg_array_of(g->copy), false) : TG_OK;
}

/* Sets *a to x, which broadcasts to the result's shape, seen as [front, n, back]. */
static tg_status as_result(tg_call *c, const plan *p, const tg_tensor *x, tg_extent *e, tg_array *a) {
    int64_t stride[TG_MAX_DIMS];
    int ndim = (int)p->result.ndim;
    *e = (tg_extent){.shape = {p->front, p->n, p->back}};
    *a = tg_array_expand(tg_array_of(x), ndim, p->result.dim, stride);
    if (tg_array_reshape(a, 3, e->shape, e->stride)) return TG_OK;
    const tg_tensor *copy = tg_call_temp(c, (tg_dtype)x->dtype, ndim, p->result.dim);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_copy(c, tg_array_of(copy), *a, false));
    *a = tg_array_of(copy);
    tg_array_reshape(a, 3, e->shape, e->stride);
    return TG_OK;
}

/* If bad is not 0, reports the tuple of indices that a slot has found to be out of range. bad is 1 + a position in
 * [front, n, back]. The message quotes the index that is wrong if the host can read it, and otherwise only the place of
 * the tuple. */
static tg_status bad_tuple(tg_call *c, const plan *p, int64_t bad) {
    int64_t stride[TG_MAX_DIMS];
    if (TG_LIKELY(!bad)) return TG_OK;
    int64_t tuple = (bad - 1) / p->back % p->n;
    for (int k = 0; c->ctx->host && k < p->indexed; k++) {
        const tg_array index = tg_array_of(c->input[p->input[k]]);
        int dim = p->order[p->before + k];
        int64_t size = c->input[0]->shape[dim];
        int64_t found = tg_index_at(tg_array_expand(index, (int)p->tuples.ndim, p->tuples.dim, stride), tuple);
        if (size == 0)
            return tg_call_fail(c, TG_ERR_DATA,
                                "index %lld is out of range; no index is valid, because dim %d of x has size 0",
                                (long long)found, dim);
        if (found < -size || found >= size)
            return tg_call_fail(c, TG_ERR_DATA,
                                "index %lld is out of range for dim %d of x; it must be from %lld to %lld",
                                (long long)found, dim, (long long)-size, (long long)size - 1);
    }
    return tg_op_bad(c, tuple + 1, "the indices");
}

/* to [front, n, back] = the elements of `from`, which has x's shape, at the positions. */
static tg_status take(tg_call *c, const plan *p, const tg_tensor *to, const tg_tensor *from, const tg_tensor *at) {
    grouped g;
    tg_extent e, te;
    tg_array y;
    int64_t bad = 0;
    TG_TRY(group(c, p, from, &g));
    TG_TRY(as_result(c, p, to, &te, &y));
    TG_TRY(tg_ctx_ops(c->ctx)->take(c->ctx, y, g.a, spread(p, at, &e), 1, &bad));
    return bad_tuple(c, p, bad);
}

/* Writes src to the positions in `to`, which has x's shape, or adds it there. */
static tg_status put(tg_call *c, const plan *p, const tg_tensor *to, const tg_tensor *src, const tg_tensor *at,
                     bool add) {
    grouped g;
    tg_extent e, se;
    tg_array from;
    int64_t bad = 0;
    TG_TRY(group(c, p, to, &g));
    TG_TRY(as_result(c, p, src, &se, &from));
    TG_TRY(add ? tg_ctx_ops(c->ctx)->put_add(c->ctx, g.a, from, spread(p, at, &e), 1, &bad)
               : tg_op_put(c, g.a, from, spread(p, at, &e), 1, &bad));
    TG_TRY(bad_tuple(c, p, bad));
    return ungroup(c, &g);
}

/* ---- index ---- */

enum { INDEX_FIRST = 1, PUT_FIRST = 2 }; /* the first input that is an index */

static tg_status index_infer(tg_call *c) {
    plan p;
    TG_TRY(check_indices(c, INDEX_FIRST));
    TG_TRY(make_plan(c, INDEX_FIRST, &p));
    return tg_call_out(c, 0, (tg_dtype)c->input[0]->dtype, (int)p.result.ndim, p.result.dim);
}

static tg_status index_forward(tg_call *c) {
    plan p;
    TG_TRY(make_plan(c, INDEX_FIRST, &p));
    const tg_tensor *at = find_positions(c, &p);
    return tg_ok(c->ctx) ? take(c, &p, c->out[0], c->input[0], at) : c->ctx->run.status;
}

static tg_status index_backward(tg_call *c) {
    plan p;
    TG_TRY(make_plan(c, INDEX_FIRST, &p));
    TG_TRY(tg_op_zero(c, 0));
    const tg_tensor *at = find_positions(c, &p), *to = tg_call_gin(c, 0);
    return tg_ok(c->ctx) ? put(c, &p, to, c->gout[0], at, true) : c->ctx->run.status;
}

static tg_dims dims_of(const tg_node *n) { return ((const index_dims_params *)tg_node_params(n))->dims; }

TG_VJP(index_vjp, tg_index_put(t, tg_zeros_like(t, x), dims_of(n), g, tg_node_in(n) + INDEX_FIRST, (int)dims_of(n).n,
                               true))

#define LIST(...) {.n = sizeof((int[]){__VA_ARGS__}) / sizeof(int), .dim = {__VA_ARGS__}}
#define DIMS(...) &(const index_dims_params){.dims = LIST(__VA_ARGS__)}
#define FROM_END(n_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_INDEX, .lo = -(n_), .hi = (n_)}
static const tg_sample index_samples[] = {
    {.note = "rows", .params = DIMS(0), .n_in = 2, .input = {TG_S(4, 3), FROM_END(4, 2, 3)}},
    {.note = "elements of a matrix", .params = DIMS(0, 1), .n_in = 3,
     .input = {TG_S(3, 5), FROM_END(3, 7), FROM_END(5, 7)}},
    {.note = "broadcast, dims not in order", .params = DIMS(2, 1), .n_in = 3,
     .input = {TG_S(2, 3, 4, 2), TG_S_INDEX(4, 2, 1), TG_S_INDEX(3, 3)}},
    {.note = "not adjacent", .params = DIMS(0, -1), .n_in = 3,
     .input = {TG_S(2, 3, 4), TG_S_INDEX(2, 2, 2), FROM_END(4, 2)}},
    {.note = "transposed", .params = DIMS(1), .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4), TG_S_INDEX(3, 2, 2)}},
    {.note = "strided", .params = DIMS(0, 1), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4), TG_S_INDEX(3, 4), TG_S_INDEX(4, 4)}},
    {.note = "expanded", .params = DIMS(0, 2), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 2, 4), TG_S_INDEX(3, 4), TG_S_INDEX(4, 4)}},
    {.note = "scalar indices", .params = DIMS(0, 1), .n_in = 3,
     .input = {TG_S(3, 4), {.kind = TG_SAMPLE_INDEX, .hi = 3}, {.kind = TG_SAMPLE_INDEX, .hi = 4}}},
    {.note = "size 1", .params = DIMS(0), .n_in = 2, .input = {TG_S(1), TG_S_INDEX(1, 1)}},
    {.note = "integers", .params = DIMS(1), .n_in = 2, .input = {TG_S_INDEX(9, 2, 3), TG_S_INDEX(3, 4)}},
    {.note = "no indices", .params = DIMS(0), .n_in = 2, .input = {TG_S(3, 2), TG_S_INDEX(3, 0)}},
    {.note = "out of range", .params = DIMS(0, 1), .n_in = 3,
     .input = {TG_S(3, 4), TG_S_INDEX(3, 2), {.shape = TG_S_SHAPE(2), .kind = TG_SAMPLE_INDEX, .lo = 4, .hi = 9}},
     .refused = TG_ERR_DATA},
    {.note = "one dim twice", .params = DIMS(0, 0), .n_in = 3,
     .input = {TG_S(3, 4), TG_S_INDEX(3, 2), TG_S_INDEX(3, 2)}, .refused = TG_ERR_SHAPE},
    {.note = "fewer indices than dims", .params = DIMS(0, 1), .n_in = 2, .input = {TG_S(3, 4), TG_S_INDEX(3, 2)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "other sizes", .params = DIMS(0, 1), .n_in = 3,
     .input = {TG_S(3, 4), TG_S_INDEX(3, 2), TG_S_INDEX(4, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "a mask", .params = DIMS(0), .n_in = 2, .input = {TG_S(3), TG_S_BOOL(3)}, .refused = TG_ERR_DTYPE},
    {.note = "big", .params = DIMS(0, 1), .n_in = 3,
     .input = {TG_S(1024, 1024), TG_S_INDEX(1024, 1024, 1024), TG_S_INDEX(1024, 1024, 1024)}, .bench = true},
};

static const tg_field index_fields[] = {
    TG_ARG(index_dims_params, dims, DIMS, "The dim of x that each index is for.", .required = true),
};

const tg_op tg_op_index = {
    .size = sizeof(tg_op), .name = "index", .formula = "the x at the positions of several indices",
    .inputs = "x index..", .n_in = -2, .n_out = 1, .params_size = sizeof(index_dims_params), .saves_in = ~1u,
    .family = TG_FAMILY_TAKE, .sums_f32 = true, .moves = true, .infer = index_infer, .forward = index_forward,
    .backward = index_backward, .vjp = index_vjp, .jvp = tg_jvp_linear, TG_FIELDS(index_fields),
    TG_SAMPLES(index_samples)};

/* Records op with the inputs that come first and n indices. */
static tg_tensor *record(tg_tape *t, const tg_op *op, const index_dims_params *p, tg_tensor *const *input, int first,
                         tg_tensor *const *index, int n, const void *site) {
    tg_tensor *in[PUT_FIRST + TG_MAX_DIMS];
    if (n < 1 || n > TG_MAX_DIMS || !index) {
        if (tg_tape_check_with(t, input, first, op->name) == TG_OK)
            tg_fail(t->ctx, TG_ERR_ARGUMENT, "%s: n is %d and index is %s; expected an array of 1 to %d indices",
                    op->name, n, index ? "an array" : "NULL", TG_MAX_DIMS);
        return tg_tape_inert(t, input, first);
    }
    for (int i = 0; i < first; i++) in[i] = input[i];
    for (int i = 0; i < n; i++) in[first + i] = index[i];
    return tg_record(t, op, p, in, first + n, site);
}

/* Returns the elements of x at the positions that the n indices give together, as x[i, j, ..] does in NumPy. */
tg_tensor *tg_index(tg_tape *t, tg_tensor *x, tg_dims dims, tg_tensor *const *index, int n) {
    return record(t, &tg_op_index, &(index_dims_params){.dims = dims}, &x, INDEX_FIRST, index, n, TG_SITE);
}

/* ---- index_put ---- */

static bool accumulates(const tg_call *c) { return ((const index_dims_params *)c->params)->accumulate; }

static tg_status index_put_infer(tg_call *c) {
    const tg_tensor *src = c->input[1];
    plan p;
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    TG_TRY(check_indices(c, PUT_FIRST));
    if (accumulates(c)) TG_TRY(tg_need_number(c, 0));
    TG_TRY(make_plan(c, PUT_FIRST, &p));
    for (int d = 0, front = (int)p.result.ndim - src->ndim; d < src->ndim; d++)
        if (front < 0 || (src->shape[d] != 1 && src->shape[d] != p.result.dim[d + front]))
            return tg_call_fail(c, TG_ERR_SHAPE, "src does not broadcast to the shape of the elements that the "
                                "indices select");
    TG_TRY(tg_call_linear(c, 3)); /* jointly linear in x and src */
    return tg_infer_same(c);
}

static tg_status index_put_forward(tg_call *c) {
    plan p;
    TG_TRY(make_plan(c, PUT_FIRST, &p));
    const tg_tensor *at = find_positions(c, &p);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_copy(c, tg_array_of(c->out[0]), tg_array_of(c->input[0]), false));
    return put(c, &p, c->out[0], c->input[1], at, accumulates(c));
}

/* Gives x its gradient: g, and 0 where forward overwrote an element of x. */
static tg_status put_back_to_x(tg_call *c, const plan *p, const tg_tensor *at) {
    tg_tensor *g = c->gout[0], *rest = tg_call_temp(c, (tg_dtype)g->dtype, g->ndim, g->shape);
    const tg_tensor *zero = tg_call_temp(c, (tg_dtype)g->dtype, 0, NULL);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(zero), 0));
    TG_TRY(tg_op_copy(c, tg_array_of(rest), tg_array_of(g), false));
    TG_TRY(put(c, p, rest, zero, at, false));
    return tg_call_pass(c, 0, rest);
}

/* Sets those elements of `read` [result] to 0 whose element of src was overwritten by a later one. */
static tg_status drop_lost(tg_call *c, const plan *p, const tg_tensor *read, const tg_tensor *at) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const tg_tensor *number = tg_call_temp(c, TG_I64, 1, &p->n), *stays = tg_call_temp(c, TG_I64, 1, &p->n),
                    *last = tg_call_temp(c, TG_I64, 1, &p->mid);
    const int64_t one = 1;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    tg_array flat = tg_array_at(tg_array_of(at), 0, 1, &p->n, &one);
    TG_TRY(ops->iota(c->ctx, tg_array_of(number), 0, 1));
    TG_TRY(tg_op_find_last(c, tg_array_of(stays), tg_array_of(last), tg_array_of(number), flat, 0));
    tg_extent e, re = {.shape = {p->front, p->n, p->back}};
    tg_array y = tg_array_of(read);
    tg_array_reshape(&y, 3, re.shape, re.stride); /* `read` has no gaps */
    const tg_array in[] = {spread(p, stays, &e), y};
    return ops->apply(c->ctx, TG_FN_where_da, y, in, 2, (const double[2]){0}, false);
}

static tg_status put_back_to_src(tg_call *c, const plan *p, const tg_tensor *at) {
    tg_tensor *g = c->gout[0], *read = tg_call_temp(c, (tg_dtype)g->dtype, (int)p->result.ndim, p->result.dim);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(take(c, p, read, g, at));
    if (!accumulates(c)) TG_TRY(drop_lost(c, p, read, at));
    return tg_op_sum_to(c, 1, read, 1);
}

static tg_status index_put_backward(tg_call *c) {
    plan p;
    TG_TRY(make_plan(c, PUT_FIRST, &p));
    const tg_tensor *at = find_positions(c, &p);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (c->gin_mode[0]) TG_TRY(accumulates(c) ? tg_op_sum_to(c, 0, c->gout[0], 1) : put_back_to_x(c, &p, at));
    return c->gin_mode[1] ? put_back_to_src(c, &p, at) : TG_OK;
}

/* Returns a mask of the elements of src that were overwritten by later ones, with a dim of size 1 for each of the dims
 * after the indices. Finds them as drop_lost does. */
static tg_tensor *lost(tg_tape *t, const tg_node *n) {
    const tg_tensor *x = tg_node_in(n)[0];
    tg_tensor *const *index = tg_node_in(n) + PUT_FIRST;
    tg_dims dims = dims_of(n), all = {.n = dims.n};
    tg_shape sizes = {.ndim = dims.n};
    uint32_t mask = 0;
    for (int i = 0; i < dims.n; i++) {
        sizes.dim[i] = x->shape[dims.dim[i]];
        all.dim[i] = i;
        mask |= 1u << dims.dim[i];
    }
    tg_tensor *first = tg_index(t, tg_full(t, TG_I64, sizes, 0), all, index, (int)dims.n);
    if (!tg_is_alive(first)) return first;
    tg_shape shape = tg_shape_of(first);
    tg_tensor *number = tg_reshape(t, tg_arange(t, TG_I64, 0, (double)first->numel, 1), shape);
    tg_tensor *last = tg_index_put(t, tg_full(t, TG_I64, sizes, 0), all, number, index, (int)dims.n, false);
    tg_tensor *gone = tg_ne(t, tg_index(t, last, all, index, (int)dims.n), number);
    uint32_t run = mask >> __builtin_ctz(mask);
    int before = run & (run + 1) ? 0 : __builtin_ctz(mask);
    for (int d = before; d < x->ndim - dims.n; d++) shape.dim[shape.ndim++] = 1;
    return tg_reshape(t, gone, shape);
}

static tg_status index_put_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    const index_dims_params *p = tg_node_params(n);
    tg_tensor *const *index = tg_node_in(n) + PUT_FIRST, *g = gout[0];
    int count = (int)p->dims.n;
    if (tg_node_needs_grad(n, 0))
        gin[0] = p->accumulate ? g : tg_index_put(t, g, p->dims, tg_number_like(t, g, 0), index, count, false);
    if (!tg_node_needs_grad(n, 1)) return TG_OK;
    tg_tensor *read = tg_index(t, g, p->dims, index, count);
    if (!p->accumulate) read = tg_masked_fill(t, read, lost(t, n), 0);
    gin[1] = tg_sum_to(t, read, tg_node_in(n)[1]);
    return TG_OK;
}

#define ADDING(...) &(const index_dims_params){.dims = LIST(__VA_ARGS__), .accumulate = true}
static const tg_sample index_put_samples[] = {
    {.note = "elements, some twice", .params = DIMS(0, 1), .n_in = 4,
     .input = {TG_S(3, 4), TG_S(9), FROM_END(3, 9), FROM_END(4, 9)}},
    {.note = "added elements", .params = ADDING(0, 1), .n_in = 4,
     .input = {TG_S(3, 4), TG_S(9), FROM_END(3, 9), FROM_END(4, 9)}},
    {.note = "columns", .params = DIMS(1), .n_in = 3, .input = {TG_S(3, 5, 2), TG_S(3, 4, 2), TG_S_INDEX(5, 4)}},
    {.note = "a scalar", .params = DIMS(0), .n_in = 3, .input = {TG_S(4, 3), TG_S_SCALAR, TG_S_INDEX(4, 2)}},
    {.note = "not adjacent, src stretched", .params = DIMS(0, 2), .n_in = 4,
     .input = {TG_S(2, 3, 4), TG_S(5, 1), TG_S_INDEX(2, 5), TG_S_INDEX(4, 5)}},
    {.note = "not adjacent, added", .params = ADDING(2, 0), .n_in = 4,
     .input = {TG_S(2, 3, 4), TG_S(5, 3), TG_S_INDEX(4, 5), TG_S_INDEX(2, 5)}},
    {.note = "transposed, strided", .params = DIMS(0), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 3), TG_S_AS(TG_SAMPLE_STRIDED, 5, 3), TG_S_INDEX(4, 5)}},
    {.note = "bools", .params = DIMS(0), .n_in = 3, .input = {TG_S_BOOL(4), TG_S_BOOL(5), TG_S_INDEX(4, 5)}},
    {.note = "size 1", .params = DIMS(0), .n_in = 3, .input = {TG_S(1), TG_S(1), TG_S_INDEX(1, 1)}},
    {.note = "nothing", .params = DIMS(0), .n_in = 3, .input = {TG_S(3, 2), TG_S(0, 2), TG_S_INDEX(3, 0)}},
    {.note = "out of range", .params = DIMS(0), .n_in = 3,
     .input = {TG_S(3), TG_S(2), {.shape = TG_S_SHAPE(2), .kind = TG_SAMPLE_INDEX, .lo = -9, .hi = -3}},
     .refused = TG_ERR_DATA},
    {.note = "src of another shape", .params = DIMS(0), .n_in = 3, .input = {TG_S(3), TG_S(3), TG_S_INDEX(3, 2)},
     .refused = TG_ERR_SHAPE},
    {.note = "added bools", .params = ADDING(0), .n_in = 3, .input = {TG_S_BOOL(4), TG_S_BOOL(5), TG_S_INDEX(4, 5)},
     .refused = TG_ERR_DTYPE},
    {.note = "big", .params = ADDING(0, 1), .n_in = 4,
     .input = {TG_S(1024, 1024), TG_S(1024, 1024), TG_S_INDEX(1024, 1024, 1024), TG_S_INDEX(1024, 1024, 1024)},
     .bench = true},
};

static const tg_field index_put_fields[] = {
    TG_ARG(index_dims_params, dims, DIMS, "The dim of x that each index is for.", .required = true),
    TG_ARG(index_dims_params, accumulate, BOOL, "Adds src instead of writing it."),
};

const tg_op tg_op_index_put = {
    .size = sizeof(tg_op), .name = "index_put", .formula = "x with src written at the positions of several indices",
    .inputs = "x src index..", .n_in = -3, .n_out = 1, .params_size = sizeof(index_dims_params), .saves_in = ~3u,
    .passes = 3, .family = TG_FAMILY_CUSTOM, .infer = index_put_infer, .forward = index_put_forward,
    .backward = index_put_backward, .vjp = index_put_vjp, .jvp = tg_jvp_linear, TG_FIELDS(index_put_fields),
    TG_SAMPLES(index_put_samples)};

/* Returns x with src written at the positions of tg_index, or added there. If several elements of src are written to
 * one position, the last in row-major order remains and gets the gradient. */
tg_tensor *tg_index_put(tg_tape *t, tg_tensor *x, tg_dims dims, tg_tensor *src, tg_tensor *const *index, int n,
                        bool accumulate) {
    const index_dims_params p = {.dims = dims, .accumulate = accumulate};
    return record(t, &tg_op_index_put, &p, (tg_tensor *const[]){x, src}, PUT_FIRST, index, n, TG_SITE);
}
