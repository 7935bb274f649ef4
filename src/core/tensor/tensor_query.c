/* Queries about tensors, and the setters of names and of whether they require a gradient. They accept every handle that
 * this library has returned, also an inert or an ended one. */
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "core/context.h"

bool tg_is_alive(const tg_tensor *x) {
    return x && tg_living(x);
}

static tg_status refuse(tg_ctx *ctx, const tg_tensor *x, const char *what) {
    if (!x) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the tensor is NULL", what);
    if (x == &x->ctx->inert)
        return tg_fail(ctx, TG_ERR_HANDLE, "%s: the tensor is inert: the call that should have created it %s", what,
                       x->ctx == &tg_dead_ctx ? "was given no tape or context" : "failed");
    if (x->ctx != ctx) return tg_fail(ctx, TG_ERR_HANDLE, "%s: the tensor belongs to another context", what);
    if (x->serial < TG_SERIAL_FIRST && x->serial & TG_SERIAL_RESET)
        return tg_fail(ctx, TG_ERR_HANDLE,
                       "%s: the tensor was freed when its tape was reset or freed; tg_keep keeps a tensor", what);
    if (x->serial < TG_SERIAL_FIRST) return tg_fail(ctx, TG_ERR_HANDLE, "%s: the tensor was dropped or released", what);
    if (x->flags & TG_F_SUPERSEDED)
        return tg_fail(ctx, TG_ERR_HANDLE,
                       "%s: the tensor was overwritten in place; use the handle that the in-place op returned", what);
    return TG_OK;
}

tg_status tg_check(tg_ctx *ctx, const tg_tensor *x, const char *what) {
    if (TG_LIKELY(tg_is_alive(x) && x->ctx == ctx)) return TG_OK;
    return refuse(ctx, x, what);
}

tg_ctx *tg_ctx_of(const tg_tensor *x) { return x ? x->ctx : NULL; }
int tg_ndim(const tg_tensor *x) { return tg_is_alive(x) ? x->ndim : 0; }

/* Returns entry i of v, which has one entry per dim of x; i < 0 counts from the end. Returns -1 if x is not alive or i
 * is out of range. */
static int64_t entry(const tg_tensor *x, const int64_t *v, int i) {
    if (!tg_is_alive(x)) return -1;
    if (i < 0) i += x->ndim;
    return i >= 0 && i < x->ndim ? v[i] : -1;
}

int64_t tg_dim(const tg_tensor *x, int i) { return entry(x, x ? x->shape : NULL, i); }
int64_t tg_stride(const tg_tensor *x, int i) { return entry(x, x ? x->stride : NULL, i); }
int64_t tg_numel(const tg_tensor *x) { return tg_is_alive(x) ? x->numel : 0; }
tg_shape tg_shape_of(const tg_tensor *x) { return tg_is_alive(x) ? tg_shape_make(x->ndim, x->shape) : (tg_shape){0}; }
tg_dtype tg_dtype_of(const tg_tensor *x) { return tg_is_alive(x) ? (tg_dtype)x->dtype : TG_DTYPE_DEFAULT; }
bool tg_is_contiguous(const tg_tensor *x) { return tg_is_alive(x) && x->flags & TG_F_CONTIGUOUS; }
bool tg_requires_grad(const tg_tensor *x) { return tg_is_alive(x) && x->flags & TG_F_REQUIRES_GRAD; }
const char *tg_name(const tg_tensor *x) { return tg_is_alive(x) && x->ext && x->ext->name ? x->ext->name : ""; }

tg_status tg_set_name(tg_tensor *x, const char *name) {
    if (!x) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = x->ctx;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_check(ctx, x, "tg_set_name"));
    if (!name) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_set_name: the name is NULL");
    tg_ext *e = tg_ext_of(x);
    char *copy = e ? tg_host_strdup(ctx, name) : NULL;
    if (!copy) return ctx->run.status;
    tg_host_strfree(ctx, e->name);
    e->name = copy;
    return TG_OK;
}

tg_status tg_refuse_lent(const tg_tensor *x, const char *who) {
    if (!tg_is_lent(x)) return TG_OK;
    return tg_fail(x->ctx, TG_ERR_STATE,
                   "%s: the tensor is lent to a hook, observer or op; change it after that has returned", who);
}

tg_status tg_set_requires_grad(tg_tensor *x, bool on) {
    if (!x) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = x->ctx;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_check(ctx, x, "tg_set_requires_grad"));
    if (x->node)
        return tg_fail(ctx, TG_ERR_STATE,
                       "tg_set_requires_grad: the tensor is the result of an op, not a leaf; tg_detach it");
    TG_TRY(tg_refuse_lent(x, "tg_set_requires_grad"));
    if (on && !tg_is_float(x->dtype))
        return tg_fail(ctx, TG_ERR_DTYPE, "tg_set_requires_grad: dtype %s, expected a float", tg_dtype_name(x->dtype));
    if (on && !tg_ext_of(x)) return ctx->run.status;
    x->flags = on ? x->flags | TG_F_REQUIRES_GRAD | TG_F_LEAF : x->flags & ~TG_F_REQUIRES_GRAD;
    return TG_OK;
}

size_t tg_describe(const tg_tensor *x, char *buf, size_t n) {
    size_t at = 0;
    if (!buf) n = 0;
    if (n) buf[0] = 0;
    if (!tg_is_alive(x)) {
        tg_text(buf, n, &at, x ? "dead tensor" : "NULL");
        return at;
    }
    if (*tg_name(x)) tg_text(buf, n, &at, "%s ", tg_name(x));
    tg_text(buf, n, &at, "%s", tg_dtype_name(x->dtype));
    at += tg_shape_text(x->ndim, x->shape, at < n ? buf + at : NULL, at < n ? n - at : 0);
    return at;
}

tg_tape *tg_tape_of(const tg_tensor *x) { return tg_is_alive(x) ? x->tape : NULL; }

tg_ref tg_ref_of(const tg_tensor *x) { return tg_is_alive(x) ? (tg_ref){(tg_tensor *)x, x->serial} : (tg_ref){0}; }

tg_tensor *tg_ref_get(tg_ctx *ctx, tg_ref r) {
    if (!ctx) return tg_inert(&tg_dead_ctx);
    bool same = r.tensor && r.serial && r.tensor->serial == r.serial && r.tensor->ctx == ctx;
    return same && tg_is_alive(r.tensor) ? r.tensor : tg_inert(ctx);
}

tg_array tg_array_of(const tg_tensor *x) {
    if (!x || (x->serial < TG_SERIAL_FIRST && x->serial & TG_SERIAL_RESET) || !x->storage) return (tg_array){0};
    return (tg_array){.data = tg_data(x), .shape = x->shape, .stride = x->stride, .numel = x->numel, .ndim = x->ndim,
                      .dtype = x->dtype, .contiguous = (x->flags & TG_F_CONTIGUOUS) != 0};
}
