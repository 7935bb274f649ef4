/* Children of modules: found, added, wrapped and replaced. A wrapper holds one module, as its child "". */
#include "nn/module.h"

/* ---- Search ---- */

tg_module *tg_module_wrapped(const tg_module *m) {
    const tg_module_entry *e = m->first;
    return e && !*e->name ? e->child : NULL;
}

tg_module_entry *tg_module_entry_of(const tg_module *m, const char *name, size_t n) {
    for (; m; m = tg_module_wrapped(m))
        for (tg_module_entry *e = m->first; e; e = e->next)
            if (strncmp(e->name, name, n) == 0 && !e->name[n]) return e;
    return NULL;
}

/* Returns the entry of that path in m; NULL if there is none. */
static tg_module_entry *entry_at(const tg_module *m, const char *path) {
    while (m && path) {
        size_t n = strcspn(path, ".");
        tg_module_entry *e = tg_module_entry_of(m, path, n);
        if (!e || !path[n]) return e;
        m = e->child;
        path += n + 1;
    }
    return NULL;
}

tg_tensor *tg_module_find(const tg_module *m, const char *path) {
    const tg_module_entry *e = entry_at(m, path);
    return e ? e->tensor : NULL;
}

tg_tensor *tg_module_own(const tg_module *m, const char *name) {
    const tg_module_entry *e = tg_module_entry_of(m, name, strlen(name));
    return e ? e->tensor : NULL;
}

tg_module *tg_module_child(const tg_module *m, const char *name) {
    const tg_module_entry *e = m && name ? tg_module_entry_of(m, name, strlen(name)) : NULL;
    return e ? e->child : NULL;
}

/* Does what tg_module_collect does. out has n modules already; returns how many it has in the end. */
static int collect(const tg_module *m, bool (*is)(const void *, const tg_module *), const void *user, tg_module **out,
                   int n) {
    for (const tg_module_entry *e = m->first; e; e = e->next) {
        if (!e->child) continue;
        if (is(user, e->child)) {
            if (out) out[n] = e->child;
            n++;
        }
        n = collect(e->child, is, user, out, n);
    }
    return n;
}

int tg_module_collect(const tg_module *m, bool (*is)(const void *, const tg_module *), const void *user,
                      tg_module **out) {
    return collect(m, is, user, out, 0);
}

/* ---- Adding ---- */

/* Returns whether child is in a module already, or is m or contains m. */
static bool cannot_be_child(const tg_module *m, const tg_module *child) {
    if (!child || !child->ops) return false;
    for (const tg_module *up = m; up; up = up->parent)
        if (up == child) return true;
    return child->parent;
}

/* Makes child the child of that entry of m. */
static void put(tg_module_entry *e, tg_module *m, tg_module *child) {
    tg_module_reset_cursors(m);
    e->child = child;
    child->parent = m;
    child->entry = e;
}

static tg_status adopt(tg_module *m, const char *name, tg_module *child) {
    tg_module_entry *e = tg_module_add_entry(m, name);
    if (!e) {
        tg_module_free(child);
        return m->ctx->run.status;
    }
    put(e, m, child);
    return TG_OK;
}

/* Fails unless child can become a child of m. If it fails, frees child, except where cannot_be_child returns true. */
static tg_status check_child(tg_module *m, const char *name, tg_module *child, const char *who) {
    if (cannot_be_child(m, child)) {
        if (tg_module_ok(m))
            tg_fail(m->ctx, TG_ERR_STATE, "%s: \"%s\" is already in a module, or contains this one", who,
                    name ? name : "");
        return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    }
    if (tg_module_ok(m) && tg_module_ok(child) && child->ctx == m->ctx) return TG_OK;
    if (tg_module_ok(m))
        tg_fail(m->ctx, TG_ERR_HANDLE, "%s: \"%s\" is not a module of this context", who, name ? name : "");
    tg_module_free(child);
    return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
}

tg_status tg_module_add_child(tg_module *m, const char *name, tg_module *child) {
    TG_TRY(check_child(m, name, child, "tg_module_add_child"));
    if (tg_module_check_name(m, name, "tg_module_add_child") == TG_OK) return adopt(m, name, child);
    tg_module_free(child);
    return m->ctx->run.status;
}

/* ---- Wrappers ---- */

tg_status tg_module_wrap(tg_module *wrapper, tg_module *m, const char *who) {
    TG_TRY(check_child(wrapper, "the module", m, who));
    return adopt(wrapper, "", m);
}

tg_status tg_module_wrap_in_place(tg_module *wrapper, tg_module *m) {
    tg_module *parent = m->parent;
    tg_module_entry *place = m->entry, *own = tg_module_add_entry(wrapper, "");
    if (!own) return wrapper->ctx->run.status;
    if (parent) put(place, parent, wrapper);
    put(own, wrapper, m);
    return TG_OK;
}

void tg_module_unwrap(tg_module *wrapper) {
    tg_module *m = tg_module_wrapped(wrapper), *parent = wrapper->parent;
    tg_module_entry *place = wrapper->entry;
    tg_module_leave_parent(m);
    if (parent) put(place, parent, m);
    wrapper->parent = NULL;
    wrapper->entry = NULL;
}

/* ---- Replacing ---- */

static bool is_within(const tg_module *m, const tg_module *outer) {
    while (m && m != outer) m = m->parent;
    return m;
}

/* Fails unless the module that e holds can be replaced. */
static tg_status check_old(const tg_module *m, const char *path, const tg_module_entry *e) {
    static const char *const who = "tg_module_replace";
    if (!e || !e->child)
        return tg_fail(m->ctx, TG_ERR_ARGUMENT, "%s: the \"%s\" has no module \"%s\"%s", who, m->ops->kind,
                       path ? path : "(NULL)", e ? ", which is a parameter or buffer" : "");
    if (tg_module_is_running(e->child))
        return tg_fail(m->ctx, TG_ERR_STATE,
                       "%s: \"%s\", or a module in it, is running its forward; replace it when that has returned", who,
                       path);
    for (const tg_module *up = e->child->parent; up; up = up->parent)
        if (tg_is_captured(up))
            return tg_fail(
                m->ctx, TG_ERR_STATE,
                "%s: \"%s\" is in a captured module, whose graphs would go on running it; replace the module "
                "before tg_captured_new",
                who, path);
    return TG_OK;
}

/* Fails unless child can take the place of `old`: child is in `old`, or has no parent and does not contain `old`. */
static tg_status check_new(const tg_module *old, const char *path, const tg_module *child) {
    const tg_module *m = old->parent;
    if (!child || !child->ops || child->ctx != m->ctx)
        return tg_fail(m->ctx, TG_ERR_HANDLE, "tg_module_replace: the child for \"%s\" is not a module of this context",
                       path);
    if (child == old || (cannot_be_child(m, child) && !is_within(child, old)))
        return tg_fail(m->ctx, TG_ERR_STATE,
                       "tg_module_replace: the child for \"%s\" is already in a module, or contains this one", path);
    return TG_OK;
}

tg_module *tg_module_replace(tg_module *m, const char *path, tg_module *child) {
    tg_module_entry *e = tg_module_ok(m) ? entry_at(m, path) : NULL;
    if (!tg_module_ok(m) || check_old(m, path, e) != TG_OK || check_new(e->child, path, child) != TG_OK)
        return tg_module_new(NULL, NULL, NULL);
    tg_module *old = e->child;
    tg_module_leave_parent(child);
    put(e, old->parent, child);
    old->parent = NULL;
    old->entry = NULL;
    return old;
}
