/* tg_lease: tensors on named scratch buffers, which stay with the context between their leases (docs/design.md,
 * promise 11). */
#include "base/text.h"
#include "core/memory/scratch.h"
#include "tape/call.h"

/* Sets the fields of b that describe what leases it: the running op, or else the call at `site`. */
static void set_holder(tg_tape *t, tg_buffer *b, const void *site) {
    tg_scope *before = b->epoch == t->epoch ? b->scope : NULL;
    b->op = t->at_work ? t->at_work->op->name : NULL;
    b->site = t->at_work ? tg_call_site(t->at_work) : site;
    b->scope = t->scope;
    b->epoch = t->epoch;
    if (t->scope) t->scope->uses++; /* messages may name it until the next lease */
    tg_scope_unref(t, before);
}

/* Describes what leased b: "op NAME, called from SCOPE, file.c:12". */
static void holder_text(const tg_tape *t, const tg_buffer *b, char *buf, size_t n) {
    char site[160], path[160];
    size_t at = 0;
    tg_describe_site(t->ctx, tg_scope_site(b->scope, b->site), site, sizeof site);
    tg_scope_path(b->scope, path, sizeof path);
    tg_text(buf, n, &at, "%s%s%s%s%s", b->op ? "op " : "", b->op ? b->op : "", b->op ? ", called from " : "", path,
            *path ? ", " : "");
    tg_text(buf, n, &at, "%s", site);
}

static tg_status refuse(tg_tape *t, const tg_buffer *b, const void *site) {
    tg_buffer request = {0};
    char first[400], second[400];
    set_holder(t, &request, site);
    holder_text(t, b, first, sizeof first);
    holder_text(t, &request, second, sizeof second);
    tg_scope_unref(t, request.scope);
    return tg_fail(t->ctx, TG_ERR_STATE,
                   "tg_lease: buffer \"%s\" %s, leased by %s, is still open and is requested again by %s; tg_discard "
                   "the first lease",
                   b->name, tg_dtype_name(b->dtype), first, second);
}

/* Returns the buffer to lease: of the free buffers of this name and dtype, the oldest (tg_buffer.instance), or a new
 * one if none is free. Fails if t itself holds a buffer of this name and dtype. Another tape may hold one: for example,
 * the function of a recomputation runs on an inner tape while the outer tape holds its buffers. */
static tg_buffer *find(tg_tape *t, const char *name, tg_dtype dtype, const void *site) {
    tg_buffer *free = NULL;
    int instances = 0;
    for (tg_buffer *b = t->ctx->buffers; b; b = b->next) {
        if (b->dtype != dtype || strcmp(b->name, name) != 0) continue;
        instances++;
        if (!b->open && (!free || b->instance < free->instance)) free = b;
        if (b->open && b->holder->serial == b->serial && tg_is_alive(b->holder) && b->holder->tape == t) {
            refuse(t, b, site);
            return NULL;
        }
    }
    return free ? free : tg_buffer_new(t->ctx, name, dtype, instances);
}

static tg_status lease(tg_tape *t, const char *name, tg_dtype dtype, const tg_shape *shape, const void *site,
                       tg_tensor **out) {
    tg_ctx *ctx = t->ctx;
    if (!name || !*name) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_lease: the name is %s", name ? "empty" : "NULL");
    if (!dtype) dtype = ctx->dtype;
    TG_TRY(tg_shape_check(ctx, shape, dtype, "tg_lease"));
    tg_buffer *b = find(t, name, dtype, site);
    if (!b) return ctx->run.status;
    size_t bytes = (size_t)tg_row_major((int)shape->ndim, shape->dim, NULL) * tg_dtype_size(dtype);
    TG_TRY(tg_buffer_reserve(ctx, b, bytes));
    tg_storage *s = tg_buffer_open(ctx, b, 0, bytes);
    tg_tensor *x = s ? tg_tape_tensor(t, dtype, (int)shape->ndim, shape->dim, NULL, s, 0) : NULL;
    if (!x) return ctx->run.status;
    set_holder(t, b, site);
    b->holder = x;
    b->serial = x->serial;
    *out = x;
    return TG_OK;
}

tg_tensor *tg_lease(tg_tape *t, const char *name, tg_dtype dtype, tg_shape shape) {
    if (!t) return tg_inert(&tg_dead_ctx);
    tg_tensor *x = tg_inert(t->ctx);
    if (tg_tape_check(t, "tg_lease") == TG_OK) lease(t, name, dtype, &shape, TG_SITE, &x);
    return x;
}
