/* tg_broadcast_data: gives every rank the tensors of rank 0, with two broadcasts: the first sends their dtypes, shapes
 * and placements, the second all their elements. */
#include "parallel/mappings/mapping.h"

#include <tapegrad/mappings.h>

/* A row of numbers describes each tensor: its number of dims, its sizes, and its placement on each axis. In place of
 * the number of dims stands NO_TENSOR if rank 0 has no such tensor, and OTHER_DTYPE - dtype if the tensor has another
 * dtype than the call names. */
enum { NDIM, SIZES, PLACES = SIZES + TG_MAX_DIMS, ROW = PLACES + TG_MAX_AXES, NO_TENSOR = -1, OTHER_DTYPE = -2 };

/* The arguments of a call, and its rows. */
typedef struct data {
    tg_tape *t;
    tg_ctx *ctx;
    tg_comm *comm;
    tg_tensor **x;
    int n;
    tg_dtype dtype;
    int64_t *rows;      /* ROW numbers for each tensor, owned by the tape */
    tg_tensor **copies; /* [n], the tensors that replace x[], owned by the tape */
    const void *site;
} data;

static int64_t packed(tg_placement p) {
    int64_t word;
    _Static_assert(sizeof word == sizeof p, "a placement is one number");
    memcpy(&word, &p, sizeof word);
    return word;
}

static tg_placement unpacked(int64_t word) {
    tg_placement p;
    memcpy(&p, &word, sizeof p);
    return p;
}

/* Returns the set of axes that the ranks of c span. On these axes the tensors are the same after the broadcast. */
static uint32_t spanned(const tg_ctx *ctx, const tg_comm *c) {
    const tg_parallel *p = tg_grid_of(ctx)->owner;
    if (tg_comm_axis(c) < TG_MAX_AXES) return 1u << tg_comm_axis(c);
    if (c == tg_parallel_world(p)) return ~0u;
    if (c == tg_parallel_model(p)) return 1u << TG_TP;
    /* An edp that is an axis of the grid was found above. Otherwise it has the ranks of dp and cp. */
    bool data = c == tg_parallel_dp_cp(p) || c == tg_parallel_comm(p, TG_EDP);
    return data ? 1u << TG_DP | 1u << TG_CP : 0;
}

/* Describes rank 0's tensors in the rows. Errors are described too, and reported only after the other ranks know
 * them. */
static void describe(data *d) {
    for (int i = 0; i < d->n; i++) {
        int64_t *row = d->rows + (int64_t)i * ROW;
        const tg_tensor *x = d->x[i];
        bool there = tg_is_alive(x) && x->ctx == d->ctx && (!x->tape || x->tape == d->t);
        row[NDIM] = !there ? NO_TENSOR : x->dtype != d->dtype ? OTHER_DTYPE - x->dtype : x->ndim;
        for (int k = 0; row[NDIM] > 0 && k < x->ndim; k++) row[SIZES + k] = x->shape[k];
        for (int a = 0; row[NDIM] >= 0 && a < TG_MAX_AXES; a++) row[PLACES + a] = packed(tg_place_on(x, (tg_axis)a));
    }
}

static tg_status start_broadcast(data *d, tg_tensor *x) {
    tg_collective_args a = {.kind = TG_BROADCAST, .dst = x, .site = d->site};
    return tg_comm_start(d->comm, &a) ? TG_OK : tg_ctx_status(d->ctx);
}

/* Broadcasts the rows of rank 0. */
static tg_status exchange_rows(data *d) {
    int64_t count = (int64_t)d->n * ROW;
    size_t bytes = (size_t)count * sizeof *d->rows;
    const tg_device_ops *ops = tg_ctx_ops(d->ctx);
    tg_tensor *x = tg_temp_empty(d->ctx, TG_I64, 1, &count, TG_MEM_TEMPORARY);
    tg_status s = x ? TG_OK : tg_ctx_status(d->ctx);
    bool first = tg_comm_rank(d->comm) == 0;
    if (s == TG_OK && first && bytes) s = ops->copy(d->ctx, tg_data(x), d->rows, bytes, TG_COPY_FROM_HOST);
    if (s == TG_OK) s = start_broadcast(d, x);
    if (s == TG_OK) s = tg_storage_need(x->storage, x);
    if (s == TG_OK && !first && bytes) s = ops->copy(d->ctx, d->rows, tg_data(x), bytes, TG_COPY_TO_HOST);
    if (x) tg_temp_free(x);
    return s == TG_OK ? tg_ctx_status(d->ctx) : s;
}

/* Reports an error that the rows describe, or more elements than one vector can have; otherwise sets *numel to the
 * number of elements of all tensors. */
static tg_status check_rows(const data *d, int64_t *numel) {
    *numel = 0;
    for (int i = 0; i < d->n; i++) {
        const int64_t *row = d->rows + (int64_t)i * ROW;
        int64_t size = 1;
        if (row[NDIM] == NO_TENSOR)
            return tg_fail(
                d->ctx, TG_ERR_HANDLE,
                "tg_broadcast_data: tensor %d of rank 0 is NULL, no longer alive, or of another context or tape", i);
        if (row[NDIM] <= OTHER_DTYPE)
            return tg_fail(d->ctx, TG_ERR_DTYPE, "tg_broadcast_data: tensor %d of rank 0 is %s, expected %s", i,
                           tg_dtype_name((tg_dtype)(OTHER_DTYPE - row[NDIM])), tg_dtype_name(d->dtype));
        for (int k = 0; k < row[NDIM]; k++) size *= row[SIZES + k];
        if (__builtin_add_overflow(*numel, size, numel))
            return tg_fail(d->ctx, TG_ERR_SHAPE,
                           "tg_broadcast_data: tensors 0 to %d of rank 0 have 2^63 elements or more together, expected "
                           "fewer",
                           i);
    }
    return TG_OK;
}

/* Copies rank 0's tensors into flat, one after the other. */
static tg_status pack(data *d, const tg_tensor *flat) {
    int64_t at = 0, stride[TG_MAX_DIMS];
    for (int i = 0; i < d->n; i++) {
        tg_tensor *x = d->x[i];
        TG_TRY(tg_storage_need(x->storage, x));
        char *to = tg_data(flat);
        if (to) to += at * (int64_t)tg_dtype_size(d->dtype);
        tg_row_major(x->ndim, x->shape, stride);
        tg_array out = {to, x->shape, stride, x->numel, x->ndim, x->dtype, true}, in = tg_array_of(x);
        TG_TRY(tg_ctx_ops(d->ctx)->apply(d->ctx, TG_FN_id, out, &in, 1, (const double[2]){0}, false));
        at += x->numel;
    }
    return TG_OK;
}

static const tg_placements *place_of_row(const data *d, const int64_t *row) {
    tg_placement at[TG_MAX_AXES];
    uint32_t same = spanned(d->ctx, d->comm);
    for (int a = 0; a < TG_MAX_AXES; a++)
        at[a] = same >> a & 1 ? (tg_placement){.kind = TG_INVARIANT} : unpacked(row[PLACES + a]);
    return tg_place_intern(d->ctx, at);
}

/* Replaces x[] by views of flat, which is in flight until the broadcast ends. After an error x[] is as before. */
static tg_status unpack(data *d, const tg_tensor *flat) {
    int64_t at = 0, stride[TG_MAX_DIMS];
    for (int i = 0; i < d->n; i++) {
        const int64_t *row = d->rows + (int64_t)i * ROW;
        int ndim = (int)row[NDIM];
        int64_t numel = tg_row_major(ndim, row + SIZES, stride);
        tg_tensor *x = tg_tape_tensor(d->t, d->dtype, ndim, row + SIZES, stride, tg_storage_ref(flat->storage), at);
        if (!x) return tg_ctx_status(d->ctx);
        x->flags |= TG_F_VIEW;
        x->place = place_of_row(d, row);
        d->copies[i] = x;
        at += numel;
    }
    for (int i = 0; i < d->n; i++) d->x[i] = d->copies[i];
    return TG_OK;
}

/* Broadcasts the elements of all tensors, numel in number, as one vector, and replaces x[] by views of it. */
static tg_status exchange_elements(data *d, int64_t numel) {
    tg_tensor *flat = tg_temp_empty(d->ctx, d->dtype, 1, &numel, TG_MEM_TEMPORARY);
    tg_status s = flat ? TG_OK : tg_ctx_status(d->ctx);
    if (s == TG_OK && tg_comm_rank(d->comm) == 0) s = pack(d, flat);
    if (s == TG_OK) s = start_broadcast(d, flat);
    if (s == TG_OK) s = unpack(d, flat);
    if (flat) tg_temp_free(flat);
    return s;
}

static tg_status check(const data *d) {
    if (!d->comm || tg_comm_ctx(d->comm) != d->ctx)
        return tg_fail(d->ctx, TG_ERR_ARGUMENT, "tg_broadcast_data: the communicator is %s",
                       d->comm ? "of another context, or its constructor failed" : "NULL");
    if (d->n < 0 || (d->n && !d->x))
        return tg_fail(d->ctx, TG_ERR_ARGUMENT,
                       "tg_broadcast_data: n is %d and x is %p, expected an array of n tensors, 0 or more", d->n,
                       (void *)d->x);
    if (d->dtype < TG_F32 || d->dtype > TG_BOOL)
        return tg_fail(d->ctx, TG_ERR_DTYPE, "tg_broadcast_data: dtype is %s, expected one of f32 to bool",
                       tg_dtype_name(d->dtype));
    if (tg_comm_rank(d->comm) && !strcmp(tg_comm_transport(d->comm), "plan"))
        return tg_fail(d->ctx, TG_ERR_UNSUPPORTED,
                       "tg_broadcast_data: over a communicator of tg_comm_plan_new, which moves no data, a rank above "
                       "0 cannot receive the shapes of rank 0's tensors");
    return TG_OK;
}

static tg_status broadcast_data(data *d) {
    int64_t numel;
    TG_TRY(check(d));
    size_t bytes = (size_t)d->n * ROW * sizeof *d->rows;
    d->rows = tg_tape_alloc(d->t, bytes + (size_t)d->n * sizeof *d->copies);
    if (!d->rows) return tg_ctx_status(d->ctx);
    d->copies = (tg_tensor **)(d->rows + (int64_t)d->n * ROW);
    memset(d->rows, 0, bytes);
    if (tg_comm_rank(d->comm) == 0) describe(d);
    TG_TRY(exchange_rows(d));
    TG_TRY(check_rows(d, &numel));
    return exchange_elements(d, numel);
}

tg_status tg_broadcast_data(tg_tape *t, tg_tensor **x, int n, tg_dtype dtype, tg_comm *c) {
    tg_ctx *ctx = t ? t->ctx : tg_comm_ctx(c);
    if (!ctx) return TG_ERR_ARGUMENT;
    tg_status s = t ? tg_tape_check(t, "tg_broadcast_data")
                    : tg_fail(ctx, TG_ERR_ARGUMENT, "tg_broadcast_data: the tape is NULL");
    data d = {.t = t, .ctx = ctx, .comm = c, .x = x, .n = n, .dtype = dtype, .site = TG_SITE};
    if (s == TG_OK) s = broadcast_data(&d);
    if (s != TG_OK && tg_comm_size(c) > 1) tg_ctx_skip(ctx);
    for (int i = 0; s != TG_OK && c && tg_comm_rank(c) && x && i < n; i++) x[i] = tg_inert(ctx);
    return s;
}
