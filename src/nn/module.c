/* Modules: creation and release, and their entries, which are parameters, buffers and children. module_children.c adds
 * and replaces children. */
#include "nn/module.h"

#include "base/memory/host_memory.h"
#include "base/options.h"

static const tg_module inert = {.ctx = (tg_ctx *)&tg_dead_ctx};

/* ---- Creation and release ---- */

enum { FIRST_VERSION = offsetof(tg_module_ops, call) }; /* size of the first version of the table */

static bool is_readable(const tg_module_ops *ops) {
    return ops && ops->size >= FIRST_VERSION && ops->size <= sizeof *ops;
}

/* Fails unless the table has a kind, and a size of this version of the library or of an older one. If it has another
 * size, not even its `free` can be read. */
static tg_status check_table(tg_ctx *ctx, const tg_module_ops *ops) {
    if (!ops) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_module_new: the table is NULL");
    TG_TRY(tg_size_check(ctx, ops->size, sizeof *ops, "tg_module_new: the table"));
    if (!is_readable(ops))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_module_new: the table's size is %zu, expected %d to %zu; set .size = sizeof of the table",
                       ops->size, FIRST_VERSION, sizeof *ops);
    if (!ops->kind) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_module_new: the table's kind is NULL, expected a name");
    return TG_OK;
}

tg_module *tg_module_new(tg_ctx *ctx, const tg_module_ops *ops, void *state) {
    tg_module *m = tg_ok(ctx) && check_table(ctx, ops) == TG_OK ? tg_host_alloc(ctx, sizeof *m) : NULL;
    if (!m) {
        if (is_readable(ops) && ops->free && state) ops->free(state);
        return (tg_module *)&inert;
    }
    m->ctx = ctx;
    m->ops = ops;
    m->state = state;
    m->serial = ++ctx->serial;
    return m;
}

bool tg_module_ok(const tg_module *m) { return m && m != &inert && tg_ok(m->ctx); }

static void release(tg_module *m);

static void entry_free(tg_ctx *ctx, tg_module_entry *e) {
    if (e->child) {
        e->child->parent = NULL;
        release(e->child);
    }
    /* A tied tensor is dropped with the last module that lists it. */
    if (e->tensor && --e->tensor->ext->owners == 0) tg_drop(e->tensor);
    tg_host_strfree(ctx, e->name);
    tg_host_free(ctx, e, sizeof *e);
}

void tg_module_leave_parent(tg_module *m) {
    tg_module *parent = m->parent;
    tg_module_entry *before = NULL, *removed = m->entry;
    if (!parent) return;
    tg_module_reset_cursors(parent);
    for (tg_module_entry *e = parent->first; e != removed; e = e->next) before = e;
    *(before ? &before->next : &parent->first) = removed->next;
    if (parent->last == removed) parent->last = before;
    removed->child = NULL;
    entry_free(m->ctx, removed);
    m->parent = NULL;
    m->entry = NULL;
}

static void release(tg_module *m) {
    tg_module_leave_parent(m);
    for (tg_module_entry *e = m->first, *next; e; e = next) {
        next = e->next;
        entry_free(m->ctx, e);
    }
    tg_call_hooks_free(m);
    if (m->ops->free && m->state) m->ops->free(m->state);
    tg_host_free(m->ctx, m->path, m->path_size);
    tg_host_free(m->ctx, m, sizeof *m);
}

bool tg_module_is_running(const tg_module *m) {
    if (m->running) return true;
    for (const tg_module_entry *e = m->first; e; e = e->next)
        if (e->child && tg_module_is_running(e->child)) return true;
    return false;
}

void tg_module_free(tg_module *m) {
    if (!m || m == &inert) return;
    if (tg_module_is_running(m))
        tg_fail(m->ctx, TG_ERR_STATE,
                "tg_module_free: the \"%s\", or a module in it, is running its forward; free it when that has returned",
                m->ops->kind);
    else
        release(m);
}

tg_ctx *tg_module_ctx(const tg_module *m) { return m ? m->ctx : NULL; }
void *tg_module_state(const tg_module *m) { return m ? m->state : NULL; }
const char *tg_module_kind(const tg_module *m) { return m && m->ops ? m->ops->kind : ""; }

/* ---- Entries ---- */

tg_status tg_module_check_name(const tg_module *m, const char *name, const char *who) {
    if (!name || !*name || strchr(name, '.'))
        return tg_fail(m->ctx, TG_ERR_ARGUMENT, "%s: the name is \"%s\", expected 1 or more characters without dots",
                       who, name ? name : "(NULL)");
    if (tg_module_entry_of(m, name, strlen(name)))
        return tg_fail(m->ctx, TG_ERR_STATE, "%s: the module already has a \"%s\"; choose another name", who, name);
    return TG_OK;
}

tg_module_entry *tg_module_add_entry(tg_module *m, const char *name) {
    tg_ctx *ctx = m->ctx;
    tg_module_entry *e = tg_host_alloc(ctx, sizeof *e);
    if (e && !(e->name = tg_host_strdup(ctx, name))) {
        tg_host_free(ctx, e, sizeof *e);
        e = NULL;
    }
    if (!e) return NULL;
    tg_module_reset_cursors(m);
    *(m->last ? &m->last->next : &m->first) = e;
    return m->last = e;
}

/* Returns an entry for a tensor that m owns from now on, or NULL after recording an error. */
static tg_module_entry *own(tg_module *m, const char *name, tg_tensor *x, const char *who) {
    if (tg_check(m->ctx, x, who) != TG_OK) return NULL;
    if (x->tape) {
        tg_fail(m->ctx, TG_ERR_STATE, "%s: \"%s\" is owned by a tape, expected a tensor of the context", who,
                name ? name : "");
        return NULL;
    }
    tg_module_entry *e = tg_module_check_name(m, name, who) == TG_OK ? tg_module_add_entry(m, name) : NULL;
    if (!e) return NULL;
    e->tensor = x;
    x->ext->owners++;
    return e;
}

tg_status tg_module_add_param(tg_module *m, const char *name, tg_tensor *param) {
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    return own(m, name, param, "tg_module_add_param") ? TG_OK : m->ctx->run.status;
}

tg_status tg_module_add_buffer(tg_module *m, const char *name, tg_tensor *x, const tg_buffer_opts *opts) {
    tg_buffer_opts o;
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    TG_TRY(tg_options(m->ctx, &o, &tg_buffer_opts_struct, opts, "tg_module_add_buffer: the options"));
    TG_TRY(tg_check(m->ctx, x, "tg_module_add_buffer"));
    if (x->flags & TG_F_REQUIRES_GRAD)
        return tg_fail(m->ctx, TG_ERR_STATE,
                       "tg_module_add_buffer: \"%s\" requires a gradient, but a buffer is not trained; add it with "
                       "tg_module_add_param, or turn its gradient off (tg_set_requires_grad)",
                       name ? name : "");
    tg_module_entry *e = own(m, name, x, "tg_module_add_buffer");
    if (!e) return m->ctx->run.status;
    e->buffer = true;
    e->transient = o.transient;
    x->ext->buffer = true;
    x->ext->keeps_dtype |= o.keep_f32;
    x->flags &= (uint16_t)~TG_F_GIVEN;
    return TG_OK;
}
