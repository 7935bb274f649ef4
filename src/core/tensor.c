/* Handles of tensors: their shapes, the slots that hold them until the context ends, and the functions that create
 * tensors on a context. */
#include <math.h>

#include "core/capture.h"
#include "base/host_memory.h"
#include "base/text.h"
#include "core/context.h"
#include "core/rng.h"
#include "kernels/uniform.h"

/* ---- Shapes ---- */

int64_t tg_row_major(int ndim, const int64_t *shape, int64_t *stride) {
    int64_t numel = 1, step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        if (stride) stride[i] = step;
        if (__builtin_mul_overflow(step, shape[i] > 1 ? shape[i] : 1, &step)) return -1;
        numel = shape[i] == 0 || numel == 0 ? 0 : step;
    }
    return numel;
}

/* Looks for two indices with the same address. Returns whether there are steps k[d] from -most[d] to most[d] along the
 * n dims such that `distance` plus the sum of k[d] * stride[d] is 0: two indices that differ by k have the same
 * address. At least one step must not be 0, unless `moved` says that the caller has already taken such a step.
 *
 * Strides ascend. The last dim is tried first, with only those values of its k whose distance the other dims can make
 * up for. In an ordinary matrix that is the value 0 alone. Because k and -k are equivalent, the first k[d] that is not
 * 0 need only be positive. */
static bool reaches_zero(int n, const int64_t *most, const int64_t *stride, int64_t distance, bool moved) {
    int64_t rest = 0;
    if (!n--) return moved && distance == 0;
    for (int d = 0; d < n; d++) rest += most[d] * stride[d];
    int64_t k = distance < -rest ? (-rest - distance + stride[n] - 1) / stride[n] : -((rest + distance) / stride[n]);
    if (k < -most[n]) k = -most[n];
    if (!moved && k < 0) k = 0;
    for (; k <= most[n] && distance + k * stride[n] <= rest; k++)
        if (reaches_zero(n, most, stride, distance + k * stride[n], moved || k)) return true;
    return false;
}

bool tg_shares_elements(const tg_tensor *x) {
    int64_t most[TG_MAX_DIMS], stride[TG_MAX_DIMS];
    int n = 0;
    if (x->flags & TG_F_CONTIGUOUS || x->numel == 0) return false;
    for (int d = 0, at; d < x->ndim; d++) {
        int64_t step = x->stride[d] < 0 ? -x->stride[d] : x->stride[d]; /* a reversed dim has the same addresses */
        if (x->shape[d] == 1) continue;
        if (step == 0) return true;
        for (at = n++; at > 0 && stride[at - 1] > step; at--) {
            stride[at] = stride[at - 1];
            most[at] = most[at - 1];
        }
        stride[at] = step;
        most[at] = x->shape[d] - 1;
    }
    return reaches_zero(n, most, stride, 0, false);
}

bool tg_is_row_major(int ndim, const int64_t *shape, const int64_t *stride) {
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        if (shape[i] == 0) return true;
        if (shape[i] != 1 && stride[i] != step) return false;
        step *= shape[i];
    }
    return true;
}

tg_shape tg_shape_make(size_t n, const int64_t *dims) {
    tg_shape s = {.ndim = n <= TG_MAX_DIMS && (dims || !n) ? (int64_t)n : TG_MAX_DIMS + 1};
    for (size_t i = 0; dims && i < n && i < TG_MAX_DIMS; i++) s.dim[i] = dims[i];
    return s;
}

tg_dims tg_dims_make(size_t n, const int64_t *dims) {
    tg_dims d = {.n = n <= TG_MAX_DIMS && (dims || !n) ? (int)n : TG_MAX_DIMS + 1};
    for (size_t i = 0; dims && i < n && i < TG_MAX_DIMS; i++)
        d.dim[i] = dims[i] < INT32_MIN ? INT32_MIN : dims[i] > INT32_MAX ? INT32_MAX : (int)dims[i];
    return d;
}

size_t tg_shape_text(int ndim, const int64_t *shape, char *buf, size_t n) {
    size_t at = 0;
    tg_text(buf, n, &at, "[");
    for (int i = 0; i < ndim; i++) tg_text(buf, n, &at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    tg_text(buf, n, &at, "]");
    return at;
}

tg_status tg_shape_check(tg_ctx *ctx, const tg_shape *s, tg_dtype dtype, const char *what) {
    if (s->ndim < 0 || s->ndim > TG_MAX_DIMS)
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: %s, expected 0 to %d", what, tg_count(s->ndim, "dim").text, TG_MAX_DIMS);
    for (int i = 0; i < s->ndim; i++)
        if (s->dim[i] < 0)
            return tg_fail(ctx, TG_ERR_SHAPE, "%s: dim %d is %lld, expected 0 or more", what, i, (long long)s->dim[i]);
    if (!tg_is_stored(dtype))
        return tg_fail(ctx, TG_ERR_DTYPE,
                       "%s: dtype %s (%d), expected one of f32 f64 bf16 f16 i64 i32 u8 i8 i16 u16 u32 u64 bool f8e4m3 "
                       "f8e5m2 f8e8m0",
                       what, tg_dtype_name(dtype), (int)dtype);
    int64_t numel = tg_row_major((int)s->ndim, s->dim, NULL), bytes;
    if (numel < 0 || __builtin_mul_overflow(numel, (int64_t)tg_dtype_size(dtype), &bytes))
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: the number of bytes overflows 63 bits", what);
    return TG_OK;
}

/* ---- Slots ---- */

/* Returns zeroed memory that is kept until the context ends, or NULL after recording the error. */
static void *new_slots(tg_ctx *ctx, size_t bytes) {
    tg_host_chunk *c = tg_host_alloc(ctx, sizeof *c + bytes);
    if (!c) return NULL;
    c->bytes = sizeof *c + bytes;
    c->next = ctx->chunks;
    ctx->chunks = c;
    return c->slots;
}

/* Adds a handle to the queue of free ones, which are linked through their node pointer. */
static void handle_slot_free(tg_ctx *ctx, tg_tensor *x) {
    *x = (tg_tensor){.ctx = ctx};
    if (ctx->free_last)
        ctx->free_last->node = (tg_node *)x;
    else
        ctx->free_first = x;
    ctx->free_last = x;
}

static tg_tensor *handle_slot(tg_ctx *ctx) {
    enum { COUNT = 64 };
    if (!ctx->free_first) {
        tg_tensor *x = new_slots(ctx, COUNT * sizeof *x);
        if (!x) return NULL;
        for (int i = 0; i < COUNT; i++) handle_slot_free(ctx, &x[i]);
    }
    tg_tensor *x = ctx->free_first;
    ctx->free_first = (tg_tensor *)x->node;
    if (!ctx->free_first) ctx->free_last = NULL;
    x->node = NULL;
    return x;
}

static void fill_handle(tg_tensor *x, tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape,
                        const int64_t *stride, int64_t *dims, tg_storage *s, int64_t offset) {
    if (ndim) memcpy(dims, shape, (size_t)ndim * sizeof *dims);
    x->numel = tg_row_major(ndim, shape, dims + TG_MAX_DIMS);
    x->flags = TG_F_CONTIGUOUS;
    if (stride && ndim) {
        memcpy(dims + TG_MAX_DIMS, stride, (size_t)ndim * sizeof *dims);
        x->flags = tg_is_row_major(ndim, shape, stride) ? TG_F_CONTIGUOUS : 0;
    }
    x->serial = ++ctx->serial;
    x->ctx = ctx;
    x->tape = NULL;
    x->place = NULL;
    x->storage = s;
    x->offset = offset;
    x->shape = dims;
    x->stride = dims + TG_MAX_DIMS;
    x->ndim = (uint8_t)ndim;
    x->dtype = (uint8_t)dtype;
}

tg_ext *tg_ext_of(tg_tensor *x) {
    tg_ctx *ctx = x->ctx;
    if (x->ext) return x->ext;
    if (!ctx->free_exts) return x->ext = new_slots(ctx, sizeof *x->ext);
    x->ext = ctx->free_exts;
    ctx->free_exts = x->ext->next_free;
    memset(x->ext, 0, sizeof *x->ext);
    return x->ext;
}

void tg_owned_slot_free(tg_tensor *x) { handle_slot_free(x->ctx, x); }

/* Ends a handle that the context owns. While the program holds it, its slot stays as it is. */
static void end_owned(tg_tensor *x) {
    if (!x->holds) {
        handle_slot_free(x->ctx, x);
        return;
    }
    x->serial = TG_SERIAL_HELD;
    x->flags = TG_F_LEAF;
    x->storage = NULL;
    x->ext = NULL;
}

tg_tensor *tg_owned_new(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                        tg_storage *s, int64_t offset) {
    tg_tensor *x = handle_slot(ctx);
    if (!x || !tg_ext_of(x)) {
        if (x) handle_slot_free(ctx, x);
        tg_storage_unref(s);
        return NULL;
    }
    fill_handle(x, ctx, dtype, ndim, shape, stride, x->ext->dims, s, offset);
    x->flags |= TG_F_LEAF;
    if (!s->birth) {
        s->birth = x->serial;
        s->maker = x;
    }
    x->ext->next_owned = ctx->owned;
    if (ctx->owned) ctx->owned->ext->prev_owned = x;
    ctx->owned = x;
    return x;
}

tg_hook *tg_hook_new(tg_ctx *ctx) {
    tg_hook *h = ctx->free_hooks;
    if (!h) return tg_host_alloc(ctx, sizeof *h);
    ctx->free_hooks = h->next;
    return h;
}

void tg_hook_free(tg_ctx *ctx, tg_hook *h) {
    h->next = ctx->free_hooks;
    ctx->free_hooks = h;
}

void tg_hooks_free(tg_ctx *ctx) {
    for (tg_hook *h = ctx->free_hooks, *next; h; h = next) {
        next = h->next;
        tg_host_free(ctx, h, sizeof *h);
    }
    ctx->free_hooks = NULL;
}

void tg_ext_free(tg_ctx *ctx, tg_ext *e) {
    tg_host_strfree(ctx, e->name);
    for (tg_hook *h = e->hooks; h;) {
        tg_hook *next = h->next;
        tg_hook_free(ctx, h);
        h = next;
    }
    if (e->grad) { /* tg_drop keeps the gradient for nodes that still use it */
        e->grad->ext->grad_of = NULL;
        tg_drop(e->grad);
    }
    if (e->used) tg_drop(e->used);
    if (e->grad_of) {
        e->grad_of->grad = NULL;
        e->grad_of->has_grad = e->grad_of->has_grad && e->grad_of->main_grad;
    }
    e->next_free = ctx->free_exts;
    ctx->free_exts = e;
}

void tg_owned_free(tg_tensor *x) {
    tg_ctx *ctx = x->ctx;
    tg_ext *e = x->ext;
    if (e->prev_owned)
        e->prev_owned->ext->next_owned = e->next_owned;
    else
        ctx->owned = e->next_owned;
    if (e->next_owned) e->next_owned->ext->prev_owned = e->prev_owned;
    tg_storage *s = x->storage;
    end_owned(x);
    tg_ext_free(ctx, e);
    tg_storage_unref(s);
}

tg_tensor *tg_owned_empty(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, tg_category category) {
    int64_t numel = tg_row_major(ndim, shape, NULL);
    tg_storage *s = tg_storage_new(ctx, (size_t)numel * tg_dtype_size(dtype), category);
    return s ? tg_owned_new(ctx, dtype, ndim, shape, NULL, s, 0) : NULL;
}

tg_tensor *tg_temp_new(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                       tg_storage *s, int64_t offset) {
    enum { COUNT = 32 };
    if (TG_UNLIKELY(!ctx->free_temps)) {
        tg_temp *more = new_slots(ctx, COUNT * sizeof *more);
        for (int i = 0; more && i < COUNT; i++) {
            more[i].next = ctx->free_temps;
            ctx->free_temps = &more[i];
        }
        if (!more) {
            tg_storage_unref(s);
            return NULL;
        }
    }
    tg_temp *p = ctx->free_temps;
    ctx->free_temps = p->next;
    p->x.node = NULL;
    p->x.ext = NULL;
    fill_handle(&p->x, ctx, dtype, ndim, shape, stride, p->dims, s, offset);
    return &p->x;
}

tg_tensor *tg_temp_empty(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, tg_category category) {
    int64_t numel = tg_row_major(ndim, shape, NULL);
    tg_storage *s = tg_storage_new(ctx, (size_t)numel * tg_dtype_size(dtype), category);
    return s ? tg_temp_new(ctx, dtype, ndim, shape, NULL, s, 0) : NULL;
}

void tg_temp_free(tg_tensor *x) {
    if (!x) return;
    tg_storage *s = x->storage;
    if (TG_UNLIKELY(x->ext != NULL)) tg_ext_free(x->ctx, x->ext); /* a hook has named the gradient x */
    x->storage = NULL;
    x->serial = TG_SERIAL_NONE;
    if (TG_LIKELY(!x->holds))
        tg_temp_slot_free(x);
    else
        x->serial = TG_SERIAL_HELD;
    if (s) tg_storage_unref(s);
}

void tg_temp_slot_free(tg_tensor *x) {
    tg_temp *p = (tg_temp *)x;
    p->next = x->ctx->free_temps;
    x->ctx->free_temps = p;
}

void tg_tensor_given(tg_tensor *x) {
    const tg_ext *e = x->ext;
    if (!x->tape && !(x->flags & (TG_F_PARAM | TG_F_GRADIENT)) && !(e && (e->placed || e->grad_of || e->buffer)))
        x->flags |= TG_F_GIVEN;
    x->flags &= (uint16_t)~TG_F_COMPARED;
}

/* ---- Creation on a context ---- */

static tg_tensor *or_inert(const tg_ctx *ctx, tg_tensor *x) { return x ? x : tg_inert(ctx); }

/* Returns a tensor with undefined values, or NULL after recording the error: the shape or dtype is invalid, or there is
 * no memory. */
static tg_tensor *new_empty(tg_ctx *ctx, tg_dtype dtype, const tg_shape *shape, tg_category category, const char *who) {
    if (!dtype) dtype = ctx->dtype;
    if (tg_shape_check(ctx, shape, dtype, who) != TG_OK) return NULL;
    return tg_owned_empty(ctx, dtype, (int)shape->ndim, shape->dim, category);
}

/* Ends a creation: returns x, or the inert tensor if x is NULL or s, the status of filling x, is an error. */
static tg_tensor *finish(tg_ctx *ctx, tg_tensor *x, tg_status s) {
    if (x && s != TG_OK) {
        tg_owned_free(x);
        x = NULL;
    }
    return or_inert(ctx, x);
}

/* Begins a public function: returns the inert tensor from it if the context is NULL or has an error. */
#define TG_ENTER(ctx)                                                    \
    do {                                                                 \
        if (!(ctx)) return tg_inert(&tg_dead_ctx);                       \
        if ((ctx)->run.status != TG_OK) return tg_inert(ctx);                \
        tg_later_settle(ctx);                                                \
    } while (0)

tg_tensor *tg_zeros(tg_ctx *ctx, tg_dtype dtype, tg_shape shape) {
    TG_ENTER(ctx);
    tg_tensor *x = new_empty(ctx, dtype, &shape, TG_MEM_TEMPORARY, "tg_zeros");
    return finish(ctx, x, x ? ctx->run.ops->fill(ctx, tg_array_of(x), 0) : TG_OK);
}

tg_tensor *tg_from_host(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const void *data) {
    TG_ENTER(ctx);
    tg_tensor *x = new_empty(ctx, dtype, &shape, TG_MEM_TEMPORARY, "tg_from_host");
    if (x && x->numel > 0 && !data)
        return finish(ctx, x, tg_fail(ctx, TG_ERR_ARGUMENT, "tg_from_host: data is NULL"));
    if (tg_recording_refuse(ctx, "tg_from_host", TG_RECORDING_WRITE, TG_SITE) != TG_OK)
        return finish(ctx, x, ctx->run.status);
    if (x) x->flags |= TG_F_GIVEN;
    size_t bytes = x ? (size_t)x->numel * tg_dtype_size(x->dtype) : 0;
    return finish(ctx, x, bytes ? ctx->run.ops->copy(ctx, tg_data(x), data, bytes, TG_COPY_FROM_HOST) : TG_OK);
}

/* Fills x with draws from the current stream. If this stream may differ between ranks, notes that x may too. */
static tg_status draw(tg_tensor *x, tg_random kind, double a, double b) {
    if (!tg_rng_is_common(x->ctx)) tg_tensor_given(x);
    return tg_fill_random(x, kind, a, b);
}

tg_status tg_normal_check(tg_ctx *ctx, tg_dtype dtype, double std, const char *who) {
    if (!(std >= 0) || isinf(std))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: std is %g, expected a finite number, 0 or more", who, std);
    if (dtype && !tg_is_float(dtype))
        return tg_fail(ctx, TG_ERR_DTYPE, "%s: dtype %s, expected a float", who, tg_dtype_name(dtype));
    return TG_OK;
}

tg_tensor *tg_randn(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, double std) {
    TG_ENTER(ctx);
    if (tg_normal_check(ctx, dtype, std, "tg_randn") != TG_OK) return tg_inert(ctx);
    tg_tensor *x = new_empty(ctx, dtype, &shape, TG_MEM_TEMPORARY, "tg_randn");
    return finish(ctx, x, x ? draw(x, TG_RANDOM_NORMAL, 0, std) : TG_OK);
}

/* Numbers of a 16-bit dtype are drawn in float32, so the width hi - lo may exceed the largest number of the dtype. */
tg_status tg_interval_check(tg_ctx *ctx, tg_dtype t, double lo, double hi, const char *who) {
    double least, below;
    if (!tg_is_float(t)) return tg_fail(ctx, TG_ERR_DTYPE, "%s: dtype %s, expected a float", who, tg_dtype_name(t));
    if (!(lo <= hi) || isinf(lo) || isinf(hi))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: [%g, %g), expected finite lo <= hi", who, lo, hi);
    if (isinf(tg_uniform_nearest(t, lo)) || isinf(tg_uniform_nearest(t, hi)) ||
        isinf(tg_uniform_nearest(tg_accumulate_dtype(t), hi - lo)))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: [%g, %g), expected bounds and a width within the range of %s", who,
                       lo, hi, tg_dtype_name(t));
    tg_uniform_ends(t, lo, hi, &least, &below);
    if (lo < hi && least >= hi)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: [%.17g, %.17g) contains no number of dtype %s; widen it", who, lo, hi,
                       tg_dtype_name(t));
    return TG_OK;
}

tg_tensor *tg_uniform(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, double lo, double hi) {
    TG_ENTER(ctx);
    if (tg_interval_check(ctx, dtype ? dtype : ctx->dtype, lo, hi, "tg_uniform") != TG_OK) return tg_inert(ctx);
    tg_tensor *x = new_empty(ctx, dtype, &shape, TG_MEM_TEMPORARY, "tg_uniform");
    return finish(ctx, x, x ? draw(x, TG_RANDOM_UNIFORM, lo, hi) : TG_OK);
}

/* Reports a use of a parameter that has no values yet. */
static tg_status refuse_unfilled(void *user, tg_storage *s) {
    (void)user;
    return tg_fail(s->ctx, TG_ERR_STATE,
                   "a parameter has no values yet, because its model was created with .unfilled; call tg_lm_load or "
                   "tg_lm_map before");
}

/* Takes the bytes of a new parameter away, until tg_param_fill. */
static tg_status leave_unfilled(tg_tensor *x) {
    tg_storage_extra *e = tg_storage_extra_of(x->storage);
    if (!e) return x->ctx->run.status;
    e->restore = refuse_unfilled;
    tg_storage_discard(x->storage, "its creation", NULL);
    return TG_OK;
}

bool tg_param_is_unfilled(const tg_tensor *x) {
    const tg_storage *s = x->storage;
    return s->state == TG_DISCARDED && s->extra && s->extra->restore == refuse_unfilled;
}

tg_status tg_param_fill(tg_tensor *x) {
    if (!tg_param_is_unfilled(x)) return TG_OK;
    x->storage->extra->restore = NULL;
    return tg_storage_renew(x->storage);
}

static tg_status begin_param(tg_tensor *x, const char *name, double std) {
    tg_ctx *ctx = x->ctx;
    x->flags |= TG_F_PARAM | TG_F_REQUIRES_GRAD;
    TG_TRY(tg_set_name(x, name));
    if (ctx->unfilled && x->ndim > 1 && !ctx->meta) return leave_unfilled(x);
    if (std == 0) return ctx->run.ops->fill(ctx, tg_array_of(x), 0);
    return tg_fill_random(x, TG_RANDOM_NORMAL, 0, std);
}

tg_tensor *tg_param_new(tg_ctx *ctx, const char *name, tg_dtype dtype, tg_shape shape, double std) {
    TG_ENTER(ctx);
    if (tg_normal_check(ctx, dtype, std, "tg_param_new") != TG_OK) return tg_inert(ctx);
    tg_tensor *x = new_empty(ctx, dtype, &shape, TG_MEM_PARAMETER, "tg_param_new");
    return finish(ctx, x, x ? begin_param(x, name ? name : "", std) : TG_OK);
}

/* Removes the refill function of s, and releases that function's state. tg_keep has given the bytes of s to the caller;
 * they stay from now on, so they need no refill. */
static void end_refill(tg_storage *s) {
    tg_storage_extra *e = s->extra;
    if (!e || !e->refill) return;
    if (e->release) e->release(e->user);
    e->refill = NULL;
    e->release = NULL;
}

tg_tensor *tg_keep(tg_tensor *x) {
    if (!x) return tg_inert(&tg_dead_ctx);
    tg_ctx *ctx = x->ctx;
    TG_ENTER(ctx);
    if (tg_check(ctx, x, "tg_keep") != TG_OK || tg_storage_need(x->storage, x) != TG_OK) return tg_inert(ctx);
    tg_tensor *k = tg_owned_new(ctx, x->dtype, x->ndim, x->shape, x->stride, tg_storage_ref(x->storage), x->offset);
    if (!k) return tg_inert(ctx);
    k->place = x->place;
    k->flags |= x->flags & TG_F_GIVEN;
    x->storage->temporary = false;
    end_refill(x->storage);
    return k;
}

void tg_drop(tg_tensor *x) {
    if (!x || x->serial < TG_SERIAL_FIRST || x->tape || !x->ext || !(x->flags & TG_F_LEAF)) return;
    if (x->ext->owners || x->ext->grad_of) return;
    if (!x->uses) {
        tg_owned_free(x);
        return;
    }
    /* the caller may no longer use it; it is freed when the nodes that use it have ended */
    x->serial = x->holds ? TG_SERIAL_HELD : TG_SERIAL_NONE;
    x->flags |= TG_F_DROPPED;
}
