/* Convolutions and their gradients. A convolution is
 *
 *     y[n, o, p] = sum over c, k of x[n, c, p step + k apart - pad] w[o, c, k],
 *
 * where step is the stride and apart the dilation. The gradients of x and w are sums of products too: of w and y's
 * gradient, and of x and y's gradient, with the same indices. So there are three ops, each of which computes one of x,
 * w and y from the other two by the same functions. Derivatives of any order need no other ops.
 *
 * The elements of the windows are copied into columns [c kh kw, images, windows], one chunk at a time. A chunk has as
 * many images, or as many rows of one image, as fit into a few megabytes, but at least one row; its size depends on
 * shapes and dtypes alone. Matrix products, one for each group, do the rest. If windows are single adjacent elements, x
 * itself serves as the columns. */
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "ops/common/product.h"
#include "ops/common/windows.h"
#include "ops/conv.h"

enum { X = TG_CONV_X, W = TG_CONV_W, Y = TG_CONV_Y, TENSORS };
enum { B = 2 }; /* index of b among the inputs of the op that computes y */

static const tg_conv_params *params(const tg_call *c) { return c->params; }

/* Returns which of x, w and y is input i (0 or 1) of the op that computes `result`. */
static int other(int result, int i) { return i == 0 ? result == X ? W : X : result == Y ? W : Y; }

/* ---- infer ---- */

/* Checks w and the number of groups, and takes the sizes of the windows from w. */
static tg_status check_weight(tg_call *c, const tg_tensor *x, const tg_tensor *w) {
    tg_conv_params *p = c->params;
    if (w->ndim != p->w.dims + 2)
        return tg_call_fail(c, TG_ERR_SHAPE, "w must be %s",
                            p->w.dims == 1 ? "[o, c / groups, k]" : "[o, c / groups, kh, kw]");
    for (int d = 2 - p->w.dims; d < 2; d++) p->w.size[d] = w->shape[d + p->w.dims];
    if (p->groups < 1) return tg_call_fail(c, TG_ERR_ARGUMENT, "groups is %lld; it must be 1 or more",
                                           (long long)p->groups);
    if (x->shape[1] % p->groups || w->shape[0] % p->groups)
        return tg_call_fail(c, TG_ERR_SHAPE, "%lld input and %s do not divide evenly into %lld groups",
                            (long long)x->shape[1], tg_count(w->shape[0], "output channel").text, (long long)p->groups);
    if (w->shape[1] == x->shape[1] / p->groups) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE, "w has %s per group; it must have those of x, %lld, divided by %s",
                        tg_count(w->shape[1], "channel").text, (long long)x->shape[1],
                        tg_count(p->groups, "group").text);
}

/* States which dims may be sharded (tg_call_role): the dim of images, over which the op that computes w sums, and, if
 * there is one group, the dims of channels. */
static tg_status declare_roles(tg_call *c) {
    static const int8_t roles[TENSORS][TENSORS][2] = {
        [Y] = {[X] = {0, TG_SUMMED}, [W] = {1, TG_SUMMED}},
        [X] = {[Y] = {0, TG_SUMMED}, [W] = {TG_SUMMED, 1}},
        [W] = {[X] = {TG_SUMMED, 1}, [Y] = {TG_SUMMED, 0}},
    };
    const tg_conv_params *p = params(c);
    for (int i = 0; i < 2; i++) {
        int k = other(p->result, i);
        for (int d = 0; d < 2; d++)
            if (p->groups == 1 || (k != W && d == 0)) TG_TRY(tg_call_role(c, i, d, roles[p->result][k][d]));
    }
    bool biased = c->n_in > B;
    if (biased && p->groups == 1) TG_TRY(tg_call_role(c, B, 0, 1));
    /* The op is linear in each of its two tensors, jointly with b if there is one. */
    TG_TRY(tg_call_linear(c, biased ? 1u << X | 1u << B : 1));
    return tg_call_linear(c, biased ? 1u << W | 1u << B : 2);
}

static tg_status conv_infer(tg_call *c) {
    tg_conv_params *p = c->params;
    const tg_tensor *x = c->input[X], *w = c->input[W], *b = c->n_in > B ? c->input[B] : NULL;
    int64_t out[2], shape[4];
    TG_TRY(tg_need_float(c, X));
    TG_TRY(tg_need_same_dtype(c, X, W));
    if (x->ndim == p->w.dims + 2) TG_TRY(check_weight(c, x, w));
    TG_TRY(tg_windows_infer(c, &p->w, X, p->input, out));
    if (b) TG_TRY(tg_need_same_dtype(c, X, B));
    if (b && (b->ndim != 1 || b->shape[0] != w->shape[0]))
        return tg_call_fail(c, TG_ERR_SHAPE, "b must be a vector of %s, one for each output channel",
                            tg_count(w->shape[0], "element").text);
    TG_TRY(declare_roles(c));
    if (!tg_needs(c, W)) c->saves_in &= ~(1u << X);
    if (!tg_needs(c, X)) c->saves_in &= ~(1u << W);
    int ndim = tg_windows_shape(&p->w, x->shape[0], w->shape[0], out, shape);
    return tg_call_out(c, 0, (tg_dtype)x->dtype, ndim, shape);
}

/* The infer function of the ops that compute x or w. The shapes were checked when the convolution was recorded. */
tg_status tg_conv_other_infer(tg_call *c) {
    tg_conv_params *p = c->params;
    const tg_tensor *a = c->input[0], *b = c->input[1];
    int64_t shape[4];
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    TG_TRY(declare_roles(c));
    if (!tg_needs(c, 1)) c->saves_in &= ~1u;
    if (!tg_needs(c, 0)) c->saves_in &= ~2u;
    int ndim = p->result == X ? tg_windows_shape(&p->w, b->shape[0], a->shape[1] * p->groups, p->input, shape)
                              : tg_windows_shape(&p->w, b->shape[1], a->shape[1] / p->groups, p->w.size, shape);
    return tg_call_out(c, 0, (tg_dtype)a->dtype, ndim, shape);
}

/* ---- Computes one of x, w and y from the other two ---- */

typedef struct conv {
    tg_call *c;
    const tg_conv_params *p;
    tg_array x, w, y; /* of four dims; w is contiguous */
    tg_extent e[TENSORS];
    int64_t n, input, out, k; /* numbers of images, of channels of x and of y, and of elements of a window */
    tg_dtype dtype;        /* of the inputs; the result may be wider */
    bool add;              /* add to the result */
    int64_t images, rows;  /* numbers of images and of rows of windows in a chunk */
    /* Work buffers: the columns of a chunk; the result before it is stored, if it is y or a 16-bit x or w; and a chunk
     * of y with the channels outermost. */
    tg_array cols, product, y_by_channel;
} conv;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Chooses chunks of images, or of rows of one image. */
static void choose_chunk(conv *v) {
    enum { BYTES = 4 << 20 };
    /* elements of one column in cols or in the buffer for y, whichever is larger */
    int64_t elements = v->input * v->k > v->out ? v->input * v->k : v->out;
    int64_t row = elements * v->y.shape[3] * (int64_t)tg_dtype_size(v->dtype) + 1;
    int64_t rows = BYTES / row < 1 ? 1 : BYTES / row, high = v->y.shape[2];
    v->rows = least(rows, high);
    v->images = rows > high && high ? least(rows / high, v->n) : 1;
}

/* Returns whether windows are single adjacent elements, so that x itself serves as the columns. */
static bool plain(const conv *v) {
    const tg_windows *w = &v->p->w;
    bool one = v->k == 1;
    for (int d = 0; d < 2; d++) one &= w->step[d] == 1 && w->pad[d] == 0;
    return one;
}

/* Returns a temporary; its data is NULL on an error. */
static tg_array buffer(tg_call *c, tg_dtype dtype, int n, const int64_t *shape) {
    const tg_tensor *x = tg_call_temp(c, dtype, n, shape);
    return tg_ok(c->ctx) ? tg_array_of(x) : (tg_array){0};
}

/* Returns the chunk of y with n images from `first` on, and in them `rows` rows of windows from `from` on. */
static tg_array chunk_of(tg_array y, int64_t first, int64_t n, int64_t from, int64_t rows, tg_extent e[2]) {
    return tg_array_slice(tg_array_slice(y, 0, first, n, 1, &e[0]), 2, from, rows, 1, &e[1]);
}

/* Views the beginning of the buffer of columns, which is [c, kh, kw, n, rows, columns] in memory, as
 * [n, c, kh, kw, rows, columns]. */
static tg_array columns(const conv *v, int64_t n, int64_t rows, tg_extent e[2]) {
    const int64_t *k = v->p->w.size, shape[] = {v->input, k[0], k[1], n, rows, v->y.shape[3]};
    static const int order[] = {3, 0, 1, 2, 4, 5};
    memcpy(e[0].shape, shape, sizeof shape);
    tg_row_major(6, shape, e[0].stride);
    tg_array a = tg_array_at(v->cols, 0, 6, e[0].shape, e[0].stride);
    return tg_array_permute(a, order, e[1].shape, e[1].stride);
}

/* Views the beginning of buffer a, which is [out, n, rows, columns] in memory, as [n, out, rows, columns]. */
static tg_array images_first(const conv *v, tg_array a, int64_t n, int64_t rows, tg_extent e[2]) {
    const int64_t shape[] = {v->out, n, rows, v->y.shape[3]};
    static const int order[] = {1, 0, 2, 3};
    memcpy(e[0].shape, shape, sizeof shape);
    tg_row_major(4, shape, e[0].stride);
    return tg_array_permute(tg_array_at(a, 0, 4, e[0].shape, e[0].stride), order, e[1].shape, e[1].stride);
}

/* Describes a as one rows x cols matrix for each group, one after another. */
static tg_matrix grouped(tg_array a, int64_t rows, int64_t cols) {
    return (tg_matrix){.data = a.data, .rs = cols, .cs = 1, .bs = {0, rows * cols}, .dtype = (tg_dtype)a.dtype};
}

/* to (+)= a b for each group. */
static tg_status multiply(const conv *v, int64_t m, int64_t n, int64_t k, tg_matrix to, tg_matrix a, tg_matrix b,
                          bool add) {
    const tg_gemm g = {.m = m, .n = n, .k = k, .batch = {1, v->p->groups}, .a = a, .b = b, .c = to, .alpha = 1,
                       .beta = add};
    if (m == 0 || n == 0) return TG_OK;
    return tg_ctx_ops(v->c->ctx)->gemm(v->c->ctx, &g);
}

/* Computes one chunk: n images from `first` on, and `rows` rows of windows from `from` on. */
typedef tg_status (*chunk_fn)(conv *v, int64_t first, int64_t n, int64_t from, int64_t rows);

/* Returns windows whose first row is row `from` of the op's windows. */
static tg_windows windows_from(const conv *v, int64_t from) {
    tg_windows w = v->p->w;
    w.pad[0] -= from * w.step[0];
    return w;
}

/* Copies the chunk's windows of x to the columns. */
static tg_status gather(conv *v, int64_t first, int64_t n, int64_t from, int64_t rows) {
    tg_windows w = windows_from(v, from);
    tg_extent e, cols[2];
    return tg_windows_gather(v->c, &w, columns(v, n, rows, cols), tg_array_slice(v->x, 0, first, n, 1, &e));
}

/* Copies the chunk of y to its buffer, with the channels outermost. */
static tg_status copy_y(conv *v, int64_t first, int64_t n, int64_t from, int64_t rows) {
    tg_extent e[2], buffer_e[2];
    return tg_op_copy(v->c, images_first(v, v->y_by_channel, n, rows, buffer_e),
                      chunk_of(v->y, first, n, from, rows, e), false);
}

/* Computes the chunk of y. */
static tg_status chunk_y(conv *v, int64_t first, int64_t n, int64_t from, int64_t rows) {
    int64_t cols = n * rows * v->y.shape[3], g = v->p->groups, k = v->input / g * v->k;
    tg_extent e[2], buffer_e[2];
    TG_TRY(gather(v, first, n, from, rows));
    TG_TRY(multiply(v, v->out / g, cols, k, grouped(v->product, v->out / g, cols), grouped(v->w, v->out / g, k),
                    grouped(v->cols, k, cols), false));
    return tg_op_copy(v->c, chunk_of(v->y, first, n, from, rows, e),
                      images_first(v, v->product, n, rows, buffer_e), v->add);
}

/* Computes the columns from w and the chunk of y, and adds them to x. A 16-bit x is first summed in float32. */
static tg_status chunk_x(conv *v, int64_t first, int64_t n, int64_t from, int64_t rows) {
    int64_t cols = n * rows * v->y.shape[3], g = v->p->groups, k = v->input / g * v->k;
    tg_windows w = windows_from(v, from);
    tg_extent e, part, cols_e[2];
    bool wide = v->product.ndim != 0;
    tg_array x = tg_array_slice(v->x, 0, first, n, 1, &e), to = x;
    if (wide) to = tg_array_slice(v->product, 0, 0, n, 1, &part);
    if (from == 0 && (wide || !v->add)) TG_TRY(tg_ctx_ops(v->c->ctx)->fill(v->c->ctx, to, 0));
    TG_TRY(copy_y(v, first, n, from, rows));
    TG_TRY(multiply(v, k, cols, v->out / g, grouped(v->cols, k, cols),
                    tg_matrix_transposed(grouped(v->w, v->out / g, k)), grouped(v->y_by_channel, v->out / g, cols),
                    false));
    TG_TRY(tg_windows_scatter(v->c, &w, to, columns(v, n, rows, cols_e)));
    return wide && from + rows == v->y.shape[2] ? tg_op_copy(v->c, x, to, v->add) : TG_OK;
}

/* Adds the chunk's products to w, or to a float32 buffer for a 16-bit w. */
static tg_status chunk_w(conv *v, int64_t first, int64_t n, int64_t from, int64_t rows) {
    int64_t cols = n * rows * v->y.shape[3], g = v->p->groups, k = v->input / g * v->k;
    bool begins = first == 0 && from == 0, wide = v->product.ndim != 0;
    TG_TRY(gather(v, first, n, from, rows));
    TG_TRY(copy_y(v, first, n, from, rows));
    tg_array to = wide ? v->product : v->w;
    return multiply(v, v->out / g, k, cols, grouped(to, v->out / g, k), grouped(v->y_by_channel, v->out / g, cols),
                    tg_matrix_transposed(grouped(v->cols, k, cols)), !begins || (v->add && !wide));
}

/* Runs every chunk in order. */
static tg_status run_chunks(conv *v, chunk_fn f) {
    int64_t high = v->y.shape[2];
    for (int64_t i = 0; i < v->n; i += v->images)
        for (int64_t j = 0; j < high; j += v->rows)
            TG_TRY(f(v, i, least(v->images, v->n - i), j, least(v->rows, high - j)));
    return TG_OK;
}

/* Computes the result with columns, chunk by chunk. */
static tg_status run_columns(conv *v, int result) {
    const tg_dtype wide = tg_accumulate_dtype(v->dtype);
    const int64_t cols = v->images * v->rows * v->y.shape[3], k = v->input * v->k;
    v->cols = buffer(v->c, result == X ? wide : v->dtype, 2, (const int64_t[]){k, cols});
    if (result == Y)
        v->product = buffer(v->c, wide, 2, (const int64_t[]){v->out, cols});
    else
        v->y_by_channel = buffer(v->c, v->dtype, 2, (const int64_t[]){v->out, cols});
    if (result == X && v->x.dtype != wide)
        v->product = buffer(v->c, wide, 4, (const int64_t[]){v->images, v->input, v->x.shape[2], v->x.shape[3]});
    if (result == W && v->w.dtype != wide) v->product = buffer(v->c, wide, 4, v->w.shape);
    if (!tg_ok(v->c->ctx)) return v->c->ctx->run.status;
    TG_TRY(run_chunks(v, result == X ? chunk_x : result == Y ? chunk_y : chunk_w));
    return result == W && v->w.dtype != wide ? tg_op_copy(v->c, v->w, v->product, v->add) : TG_OK;
}

/* Computes the result with x itself as the columns, by products for all images and groups. All three tensors are
 * contiguous. */
static tg_status run_plain(conv *v, int result) {
    const int64_t g = v->p->groups, places = v->y.shape[2] * v->y.shape[3], in = v->input / g, out = v->out / g;
    const tg_matrix x = {v->x.data, places, 1, {0, 0}, (tg_dtype)v->x.dtype},
                    y = {v->y.data, places, 1, {0, 0}, (tg_dtype)v->y.dtype};
    const int64_t dx[] = {in * places, v->input * places}, dy[] = {out * places, v->out * places}, dw[] = {out * in, 0};
    tg_array sum = v->w;
    bool wide = result == W && v->w.dtype != tg_accumulate_dtype(v->dtype);
    if (wide) sum = buffer(v->c, tg_accumulate_dtype(v->dtype), 4, v->w.shape);
    if (!tg_ok(v->c->ctx)) return v->c->ctx->run.status;
    const tg_matrix w = {sum.data, in, 1, {0, 0}, (tg_dtype)sum.dtype};
    tg_product p = {.g = {.alpha = 1, .beta = v->add && !wide}, .n = 2};
    for (int d = 0; d < 2; d++) {
        int64_t count = d ? v->n : g;
        p.dim[d] = result == Y   ? (tg_batch_dim){count, dw[d], dx[d], dy[d]}
                   : result == X ? (tg_batch_dim){count, dw[d], dy[d], dx[d]}
                                 : (tg_batch_dim){count, dy[d], dx[d], dw[d]};
    }
    p.g.m = result == X ? in : out;
    p.g.n = result == W ? in : places;
    p.g.k = result == Y ? in : result == X ? out : places;
    p.g.a = result == Y ? w : result == X ? tg_matrix_transposed(w) : y;
    p.g.b = result == Y ? x : result == X ? y : tg_matrix_transposed(x);
    p.g.c = result == Y ? y : result == X ? x : w;
    TG_TRY(tg_product_run(v->c->ctx, &p));
    return wide ? tg_op_copy(v->c, v->w, sum, v->add) : TG_OK;
}

/* Computes t[result] from the other two tensors, or adds to it. */
static tg_status run(tg_call *c, int result, tg_tensor *const t[TENSORS], bool add) {
    const tg_conv_params *p = params(c);
    tg_tensor *d[TENSORS] = {t[X], t[W], t[Y]};
    conv v = {.c = c, .p = p, .add = add, .dtype = (tg_dtype)c->input[0]->dtype, .k = p->w.size[0] * p->w.size[1]};
    bool dense = plain(&v);
    for (int i = 0; i < TENSORS; i++)
        if (i != result && (i == W || dense)) TG_TRY(tg_op_dense(c, &d[i]));
    v.x = tg_windows_inside(tg_array_of(d[X]), &v.e[X]);
    v.w = tg_windows_inside(tg_array_of(d[W]), &v.e[W]);
    v.y = tg_windows_inside(tg_array_of(d[Y]), &v.e[Y]);
    v.n = v.x.shape[0];
    v.input = v.x.shape[1];
    v.out = v.y.shape[1];
    bool nothing = result == W && v.n == 0;
    if (nothing && !add) return tg_ctx_ops(c->ctx)->fill(c->ctx, v.w, 0);
    if (nothing || tg_numel(d[result]) == 0) return TG_OK;
    choose_chunk(&v);
    return dense ? run_plain(&v, result) : run_columns(&v, result);
}

/* Views b [o] with y's number of dims, all of size 1 except that of the channels. */
static tg_array along_channels(tg_array b, const tg_tensor *y, tg_extent *e) {
    for (int d = 0; d < y->ndim; d++) {
        e->shape[d] = d == 1 ? y->shape[1] : 1;
        e->stride[d] = d == 1 ? b.stride[0] : 0;
    }
    return tg_array_at(b, 0, y->ndim, e->shape, e->stride);
}

/* Fills t[] with x, w and y. Two of them are the inputs of the op; the third is the argument `y`, which is the op's
 * result or its gradient. */
static void tensors_of(const tg_call *c, tg_tensor *y, tg_tensor *t[TENSORS]) {
    int result = params(c)->result;
    for (int i = 0; i < 2; i++) t[other(result, i)] = c->input[i];
    t[result] = y;
}

static tg_status conv_forward(tg_call *c) {
    tg_tensor *t[TENSORS], *b = c->n_in > B ? c->input[B] : NULL;
    tg_extent e;
    tensors_of(c, c->out[0], t);
    if (b) {
        int64_t stride[TG_MAX_DIMS];
        tg_array y = tg_array_of(c->out[0]), from = along_channels(tg_array_of(b), c->out[0], &e);
        TG_TRY(tg_op_copy(c, y, tg_array_expand(from, y.ndim, y.shape, stride), false));
    }
    return run(c, params(c)->result, t, b != NULL);
}

static tg_status conv_backward(tg_call *c) {
    tg_tensor *t[TENSORS];
    tg_extent e;
    for (int i = 0; i < 2; i++) {
        int k = other(params(c)->result, i);
        if (c->gin_mode[i] == TG_GRAD_NONE) continue;
        tensors_of(c, c->gout[0], t);
        t[k] = c->gin[i];
        TG_TRY(run(c, k, t, tg_adds(c, i)));
    }
    if (c->n_in <= B || c->gin_mode[B] == TG_GRAD_NONE) return TG_OK;
    tg_array sum = along_channels(tg_array_of(c->gin[B]), c->gout[0], &e);
    return tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, sum, tg_array_of(c->gout[0]), 1, tg_adds(c, B));
}

/* ---- The same computation as recorded ops ---- */

static tg_status conv_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);

/* Counts a multiplication and an addition for each product of elements. */
static int64_t conv_flops(const tg_node *n) {
    const tg_conv_params *p = tg_node_params(n);
    const tg_tensor *t[TENSORS];
    for (int i = 0; i < 2; i++) t[other(p->result, i)] = tg_node_input(n, i);
    t[p->result] = tg_node_output(n, 0);
    return tg_flops(tg_flops(2 * tg_numel(t[Y]), tg_dim(t[W], 1)), p->w.size[0] * p->w.size[1]);
}

/* The ops without bias, indexed by the tensor that they compute. */
#define CONV_OF(result_, name_, formula_, infer_)                                                          \
    [result_] = {.size = sizeof(tg_op), .name = name_, .formula = formula_, .n_in = 2, .n_out = 1,         \
                 .params_size = sizeof(tg_conv_params), .saves_in = 3, .family = TG_FAMILY_CUSTOM,            \
                 .sums_f32 = true, .infer = infer_, .forward = conv_forward, .backward = conv_backward,    \
                 .vjp = conv_vjp, .jvp = tg_jvp_multilinear, .flops = conv_flops}
enum { TRANSPOSED = TENSORS };
static const tg_op conv_of[] = {
    CONV_OF(X, "conv_grad_x", "x's gradient of a convolution", tg_conv_other_infer),
    CONV_OF(W, "conv_grad_w", "w's gradient of a convolution", tg_conv_other_infer),
    CONV_OF(Y, "conv", "a convolution without bias", conv_infer),
    CONV_OF(TRANSPOSED, "conv_transposed", "a transposed convolution without bias", tg_conv_transposed_infer),
};

tg_tensor *tg_conv_transposed(tg_tape *t, tg_tensor *x, tg_tensor *w, const tg_conv_params *p) {
    return TG_RECORD(t, conv_of[TRANSPOSED], p, w, x);
}

static tg_tensor *record_conv(tg_tape *t, const tg_conv_params *like, int result, tg_tensor *const d[TENSORS]) {
    tg_conv_params p = *like;
    p.result = result;
    return TG_RECORD(t, conv_of[result], &p, d[other(result, 0)], d[other(result, 1)]);
}

static tg_status conv_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    const tg_conv_params *p = tg_node_params(n);
    tg_tensor *d[TENSORS];
    for (int i = 0; i < 2; i++) d[other(p->result, i)] = tg_node_in(n)[i];
    d[p->result] = gout[0];
    for (int i = 0; i < 2; i++)
        if (tg_node_needs_grad(n, i)) gin[i] = record_conv(t, p, other(p->result, i), d);
    if (tg_node_inputs(n) > B && tg_node_needs_grad(n, B)) {
        tg_tensor *by_channel = tg_sum(t, gout[0], TG_DIMS(-1), false);
        if (p->w.dims == 2) by_channel = tg_sum(t, by_channel, TG_DIMS(-1), false);
        gin[B] = tg_sum(t, by_channel, TG_DIMS(0), false);
    }
    return TG_OK;
}

/* The tangent is conv(dx, w) + conv(x, dw) + db. */
static tg_status conv_biased_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    const tg_conv_params *p = tg_node_params(n);
    tg_tensor *const *in = tg_node_in(n), *y = NULL;
    for (int i = 0; i < 2; i++) {
        tg_tensor *d[TENSORS] = {[X] = in[X], [W] = in[W]};
        if (!din[i]) continue;
        d[i] = din[i];
        tg_tensor *by = record_conv(t, p, Y, d);
        y = y ? tg_add(t, y, by) : by;
    }
    if (!din[B]) {
        dout[0] = y;
        return TG_OK;
    }
    tg_tensor *b = tg_unsqueeze(t, din[B], 1);
    if (p->w.dims == 2) b = tg_unsqueeze(t, b, 2);
    dout[0] = tg_add(t, y ? y : tg_zero_tangent(t, tg_node_out(n)[0]), b);
    return TG_OK;
}

#define CONV_(dims_, groups_, ...) \
    &(const tg_conv_params){.w = TG_WINDOWS(dims_, __VA_ARGS__), .groups = groups_, .result = Y}
#define CONV1(step_, pad_, apart_, groups_) \
    CONV_(1, groups_, .size = {1, 1}, .step = {1, step_}, .pad = {0, pad_}, .apart = {1, apart_})
#define CONV2(sh_, sw_, ph_, pw_, ah_, aw_, groups_) \
    CONV_(2, groups_, .size = {1, 1}, .step = {sh_, sw_}, .pad = {ph_, pw_}, .apart = {ah_, aw_})
#define SAMPLE(note_, params_, ...) {.note = note_, .params = params_, .n_in = 3, .input = {__VA_ARGS__}}

static const tg_sample conv1d_samples[] = {
    SAMPLE("three taps", CONV1(1, 0, 1, 1), TG_S(2, 3, 6), TG_S(2, 3, 3), TG_S(2)),
    SAMPLE("padded", CONV1(1, 2, 1, 1), TG_S(2, 2, 4), TG_S(3, 2, 3), TG_S(3)),
    SAMPLE("stride, no bias", CONV1(2, 1, 1, 1), TG_S(2, 2, 6), TG_S(3, 2, 3), TG_S_ABSENT),
    SAMPLE("one window, a stride without end", CONV1(INT64_MAX, 2, 1, 1), TG_S(1, 1, 4), TG_S(1, 1, 3), TG_S(1)),
    SAMPLE("dilation", CONV1(1, 1, 2, 1), TG_S(1, 2, 7), TG_S(2, 2, 3), TG_S(2)),
    SAMPLE("groups", CONV1(1, 1, 1, 2), TG_S(2, 4, 5), TG_S(6, 2, 2), TG_S(6)),
    SAMPLE("one tap: x itself", CONV1(1, 0, 1, 1), TG_S(2, 3, 4), TG_S(2, 3, 1), TG_S(2)),
    SAMPLE("transposed", CONV1(1, 0, 1, 1), TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4),
           TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 2), TG_S_AS(TG_SAMPLE_STRIDED, 2)),
    SAMPLE("equal images", CONV1(1, 0, 1, 1), TG_S_AS(TG_SAMPLE_EXPANDED, 2, 2, 4), TG_S(2, 2, 2), TG_S(2)),
    SAMPLE("one of all", CONV1(1, 0, 1, 1), TG_S(1, 1, 1), TG_S(1, 1, 1), TG_S(1)),
    SAMPLE("empty batch", CONV1(1, 0, 1, 1), TG_S(0, 2, 4), TG_S(2, 2, 3), TG_S(2)),
    {.note = "too few dims", .params = CONV1(1, 0, 1, 1), .n_in = 3, .input = {TG_S(2, 4), TG_S(2, 2, 3), TG_S(2)},
     .refused = TG_ERR_SHAPE},
    {.note = "b of another size", .params = CONV1(1, 0, 1, 1), .n_in = 3,
     .input = {TG_S(1, 2, 4), TG_S(2, 2, 3), TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "speech", .params = CONV1(2, 1, 1, 1), .n_in = 3, .input = {TG_S(4, 384, 1500), TG_S(384, 384, 3),
                                                                         TG_S(384)},
     .bench = true},
};

static const tg_sample conv2d_samples[] = {
    SAMPLE("3 x 2", CONV2(1, 1, 0, 0, 1, 1, 1), TG_S(2, 2, 4, 3), TG_S(3, 2, 3, 2), TG_S(3)),
    SAMPLE("padded", CONV2(1, 1, 1, 2, 1, 1, 1), TG_S(2, 2, 3, 3), TG_S(2, 2, 3, 3), TG_S(2)),
    SAMPLE("strides, no bias", CONV2(2, 3, 1, 0, 1, 1, 1), TG_S(1, 2, 4, 5), TG_S(2, 2, 3, 2), TG_S_ABSENT),
    SAMPLE("dilations", CONV2(1, 2, 1, 1, 2, 3, 1), TG_S(1, 2, 5, 6), TG_S(2, 2, 2, 2), TG_S(2)),
    SAMPLE("groups", CONV2(1, 1, 1, 1, 1, 1, 2), TG_S(2, 4, 3, 3), TG_S(4, 2, 2, 2), TG_S(4)),
    SAMPLE("each channel by itself", CONV2(1, 1, 1, 1, 1, 1, 3), TG_S(2, 3, 3, 4), TG_S(3, 1, 3, 3), TG_S(3)),
    SAMPLE("1 x 1: x itself", CONV2(1, 1, 0, 0, 1, 1, 1), TG_S(2, 3, 2, 3), TG_S(4, 3, 1, 1), TG_S(4)),
    SAMPLE("1 x 1 in groups", CONV2(1, 1, 0, 0, 1, 1, 2), TG_S(2, 4, 2, 2), TG_S(2, 2, 1, 1), TG_S_ABSENT),
    SAMPLE("1 x 1, apart", CONV2(2, 2, 0, 0, 1, 1, 1), TG_S(2, 3, 3, 4), TG_S(2, 3, 1, 1), TG_S(2)),
    SAMPLE("transposed", CONV2(1, 1, 0, 1, 1, 1, 1), TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 2, 3, 4),
           TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 2, 2, 3), TG_S_AS(TG_SAMPLE_STRIDED, 2)),
    SAMPLE("strided 1 x 1", CONV2(1, 1, 0, 0, 1, 1, 1), TG_S_AS(TG_SAMPLE_STRIDED, 2, 2, 2, 3),
           TG_S_AS(TG_SAMPLE_STRIDED, 3, 2, 1, 1), TG_S(3)),
    SAMPLE("wider than x", CONV2(1, 1, 2, 2, 1, 1, 1), TG_S(1, 1, 2, 1), TG_S(2, 1, 4, 5), TG_S(2)),
    SAMPLE("padding alone", CONV2(1, 1, 1, 0, 1, 1, 1), TG_S(1, 2, 0, 3), TG_S(2, 2, 1, 2), TG_S(2)),
    SAMPLE("no channels", CONV2(1, 1, 0, 0, 1, 1, 1), TG_S(1, 0, 3, 3), TG_S(2, 0, 2, 2), TG_S(2)),
    SAMPLE("to no channels", CONV2(1, 1, 0, 0, 1, 1, 1), TG_S(1, 2, 3, 3), TG_S(0, 2, 2, 2), TG_S(0)),
    {.note = "several chunks", .params = CONV2(1, 1, 1, 1, 1, 1, 1), .n_in = 3,
     .input = {TG_S(5, 3, 120, 121), TG_S(2, 3, 3, 3), TG_S(2)}, .slow = true},
    {.note = "rows of one image", .params = CONV2(1, 1, 1, 1, 1, 1, 1), .n_in = 3,
     .input = {TG_S(2, 4, 180, 200), TG_S(1, 4, 5, 5), TG_S(1)}, .slow = true},
    {.note = "channels differ", .params = CONV2(1, 1, 0, 0, 1, 1, 1), .n_in = 3,
     .input = {TG_S(1, 2, 4, 4), TG_S(2, 3, 2, 2), TG_S(2)}, .refused = TG_ERR_SHAPE},
    {.note = "uneven groups", .params = CONV2(1, 1, 0, 0, 1, 1, 2), .n_in = 3,
     .input = {TG_S(1, 4, 4, 4), TG_S(3, 2, 2, 2), TG_S(3)}, .refused = TG_ERR_SHAPE},
    {.note = "no groups", .params = CONV2(1, 1, 0, 0, 1, 1, -1), .n_in = 3,
     .input = {TG_S(1, 4, 4, 4), TG_S(3, 2, 2, 2), TG_S(3)}, .refused = TG_ERR_ARGUMENT},
    {.note = "too large", .params = CONV2(1, 1, 0, 0, 1, 1, 1), .n_in = 3,
     .input = {TG_S(1, 1, 4, 4), TG_S(1, 1, 5, 2), TG_S(1)}, .refused = TG_ERR_SHAPE},
    {.note = "negative padding", .params = CONV2(1, 1, -1, 0, 1, 1, 1), .n_in = 3,
     .input = {TG_S(1, 1, 4, 4), TG_S(1, 1, 2, 2), TG_S(1)}, .refused = TG_ERR_ARGUMENT},
    {.note = "a kernel of nothing", .params = CONV2(1, 1, 0, 0, 1, 1, 1), .n_in = 3,
     .input = {TG_S(1, 1, 4, 4), TG_S(1, 1, 0, 2), TG_S(1)}, .refused = TG_ERR_ARGUMENT},
    {.note = "ResNet, 64 to 64 channels", .params = CONV2(1, 1, 1, 1, 1, 1, 1), .n_in = 3,
     .input = {TG_S(8, 64, 56, 56), TG_S(64, 64, 3, 3), TG_S_ABSENT}, .bench = true},
    {.note = "ResNet, 1 x 1", .params = CONV2(1, 1, 0, 0, 1, 1, 1), .n_in = 3,
     .input = {TG_S(8, 256, 14, 14), TG_S(1024, 256, 1, 1), TG_S_ABSENT}, .bench = true},
};

static const tg_field conv1d_fields[] = {
    TG_ARG_AS(tg_conv_params, w.step[1], "stride", INT64, "Distance between the starts of windows."),
    TG_ARG_AS(tg_conv_params, w.pad[1], "padding", INT64, "Number of zeros that are added at each end."),
    TG_ARG_AS(tg_conv_params, w.apart[1], "dilation", INT64, "Distance between the elements of a window."),
    TG_ARG(tg_conv_params, groups, INT64, "Number of groups of channels that are convolved separately."),
};
static const tg_field conv2d_fields[] = {
    TG_ARG_ARRAY(tg_conv_params, w.step, "stride", INT64, 2, "Distances between the starts of windows."),
    TG_ARG_ARRAY(tg_conv_params, w.pad, "padding", INT64, 2, "Numbers of zeros that are added at each end."),
    TG_ARG_ARRAY(tg_conv_params, w.apart, "dilation", INT64, 2, "Distances between the elements of a window."),
    TG_ARG(tg_conv_params, groups, INT64, "Number of groups of channels that are convolved separately."),
};
static const tg_conv_params conv1d_preset = {.w = TG_WINDOWS(1, .size = {1, 1}, .step = {1, 1}, .apart = {1, 1}),
                                          .groups = 1,
                                          .result = Y};
static const tg_conv_params conv2d_preset = {.w = TG_WINDOWS(2, .size = {1, 1}, .step = {1, 1}, .apart = {1, 1}),
                                          .groups = 1,
                                          .result = Y};

#define CONV(name_)                                                                                           \
    const tg_op tg_op_##name_ = {                                                                             \
        .size = sizeof(tg_op), .name = #name_, .formula = "sums of windows of x times w, + b",                \
        .inputs = "x w b", .n_in = 3, .n_out = 1, .params_size = sizeof(tg_conv_params), .saves_in = 3,          \
        .optional = 1u << B, .family = TG_FAMILY_CUSTOM, .sums_f32 = true, .infer = conv_infer,               \
        .forward = conv_forward, .backward = conv_backward, .vjp = conv_vjp, .jvp = conv_biased_jvp,          \
        .flops = conv_flops, TG_FIELDS(name_##_fields), .preset = &name_##_preset, TG_SAMPLES(name_##_samples)}

CONV(conv1d);
CONV(conv2d);

tg_conv_params tg_conv_params_of(int dims, const tg_conv_opts *given, int result) {
    static const char *const name[] = {"output_padding", "output_padding[1]", "output_padding[2]"};
    static const int64_t size[] = {1, 1}; /* infer takes the window size from w */
    tg_conv_opts o;
    tg_op_options(&o, &tg_conv_opts_struct, given);
    tg_conv_params p = {
        .w = tg_windows_of(dims, size, o.stride, o.padding, o.dilation), .groups = o.groups, .result = result};
    p.w.given = o.size;
    p.w.known = sizeof o;
    for (int d = 0; d < 3; d++)
        if (result == X && d < dims)
            p.more[d + 2 - dims] = o.output_padding[d];
        else if (o.output_padding[d])
            p.w.unused = name[result == X ? d : 0];
    return p;
}

/* Convolves x [n, c, l] with w [o, c / groups, k] and adds b [o] (or NULL): [n, o, windows]. Each element of the result
 * is the sum of the products of w with a window, which has k elements of each channel of a group (a cross-correlation,
 * as in PyTorch). Windows start `stride` apart and their elements are `dilation` apart; x is padded with zeros at each
 * end. Output channels are divided into groups as input channels are. Sums run in float32 for 16-bit tensors, in one
 * order for any number of threads. Copies of the windows take a few megabytes of work memory; windows that are single
 * adjacent elements are not copied. opts may be NULL. */
tg_tensor *tg_conv1d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts) {
    tg_conv_params p = tg_conv_params_of(1, opts, Y);
    return TG_RECORD(t, tg_op_conv1d, &p, x, w, b);
}

/* The same for images: x [n, c, h, w], w [o, c / groups, kh, kw]. */
tg_tensor *tg_conv2d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts) {
    tg_conv_params p = tg_conv_params_of(2, opts, Y);
    return TG_RECORD(t, tg_op_conv2d, &p, x, w, b);
}
