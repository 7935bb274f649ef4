/* Modules: named parameters and children, forward, and the state dict, which has the parameters of a module and of all
 * modules in it. */
#include <stdio.h>

#include "base/host_memory.h"
#include "placement/grid.h"
#include "tape/tape.h"
#include "nn/module.h"

static const tg_module inert = {.ctx = (tg_ctx *)&tg_dead_ctx};

/* Fails unless the table has the size that this library knows. Of a table of another size not even `free` can be
 * read. */
static tg_status check_table(tg_ctx *ctx, const tg_module_ops *ops) {
    if (!ops) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_module_new: the table is NULL");
    return tg_table_check(ctx, ops->size, sizeof *ops, "tg_module_new: the table");
}

tg_module *tg_module_new(tg_ctx *ctx, const tg_module_ops *ops, void *state) {
    bool readable = ops && ops->size == sizeof *ops, good = tg_ok(ctx) && check_table(ctx, ops) == TG_OK;
    if (good && !ops->kind)
        good = tg_fail(ctx, TG_ERR_ARGUMENT, "tg_module_new: the table's kind is NULL, expected a name") == TG_OK;
    tg_module *m = good ? tg_host_alloc(ctx, sizeof *m) : NULL;
    if (!m) {
        if (readable && ops->free && state) ops->free(state);
        return (tg_module *)&inert;
    }
    m->ctx = ctx;
    m->ops = ops;
    m->state = state;
    return m;
}

bool tg_module_ok(const tg_module *m) { return m && m != &inert && tg_ok(m->ctx); }

static void entry_free(tg_ctx *ctx, tg_module_entry *e) {
    if (e->child) {
        e->child->parent = NULL;
        tg_module_free(e->child);
    }
    /* A tied parameter is dropped with the last module that lists it. */
    if (e->param && --e->param->ext->owners == 0) tg_drop(e->param);
    tg_host_strfree(ctx, e->name);
    tg_host_free(ctx, e, sizeof *e);
}

/* Resets the cursors of m and of every module that contains it, because m's entries change. */
static void reset_cursors(tg_module *m) {
    for (; m; m = m->parent) m->cursor.at = NULL;
}

/* Removes m, which is freed while its parent lives, from its parent. Does nothing if m has no parent. */
static void leave_parent(tg_module *m) {
    tg_module *parent = m->parent;
    tg_module_entry *before = NULL, *removed = m->entry;
    if (!parent) return;
    reset_cursors(parent);
    for (tg_module_entry *e = parent->first; e != removed; e = e->next) before = e;
    *(before ? &before->next : &parent->first) = removed->next;
    if (parent->last == removed) parent->last = before;
    removed->child = NULL;
    entry_free(m->ctx, removed);
}

void tg_module_free(tg_module *m) {
    if (!m || m == &inert) return;
    leave_parent(m);
    for (tg_module_entry *e = m->first, *next; e; e = next) {
        next = e->next;
        entry_free(m->ctx, e);
    }
    if (m->ops->free && m->state) m->ops->free(m->state);
    tg_host_free(m->ctx, m, sizeof *m);
}

tg_ctx *tg_module_ctx(const tg_module *m) { return m ? m->ctx : NULL; }
void *tg_module_state(const tg_module *m) { return m ? m->state : NULL; }
const char *tg_module_kind(const tg_module *m) { return m && m->ops ? m->ops->kind : ""; }

/* ---- Parameters and children ---- */

/* Returns m's entry whose name is the first n bytes of `name`, or NULL. */
static tg_module_entry *find_entry(const tg_module *m, const char *name, size_t n) {
    for (tg_module_entry *e = m->first; e; e = e->next)
        if (strncmp(e->name, name, n) == 0 && !e->name[n]) return e;
    return NULL;
}

/* Adds an empty entry to m. Returns NULL after recording an error. */
static tg_module_entry *add_entry(tg_module *m, const char *name, const char *who) {
    tg_ctx *ctx = m->ctx;
    if (!name || !*name || strchr(name, '.')) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the name is \"%s\", expected 1 or more characters without dots", who,
                name ? name : "(NULL)");
        return NULL;
    }
    if (find_entry(m, name, strlen(name))) {
        tg_fail(ctx, TG_ERR_STATE, "%s: the module already has a \"%s\"; choose another name", who, name);
        return NULL;
    }
    tg_module_entry *e = tg_host_alloc(ctx, sizeof *e);
    if (e && !(e->name = tg_host_strdup(ctx, name))) {
        tg_host_free(ctx, e, sizeof *e);
        e = NULL;
    }
    if (!e) return NULL;
    reset_cursors(m);
    *(m->last ? &m->last->next : &m->first) = e;
    return m->last = e;
}

tg_status tg_module_add_param(tg_module *m, const char *name, tg_tensor *param) {
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    TG_TRY(tg_check(m->ctx, param, "tg_module_add_param"));
    if (param->tape)
        return tg_fail(m->ctx, TG_ERR_STATE,
                       "tg_module_add_param: \"%s\" is owned by a tape, expected a tensor of the context",
                       name ? name : "");
    tg_module_entry *e = add_entry(m, name, "tg_module_add_param");
    if (!e) return m->ctx->run.status;
    e->param = param;
    param->ext->owners++;
    return TG_OK;
}

/* Returns whether child is in a module already, or is m or contains m. */
static bool cannot_be_child(const tg_module *m, const tg_module *child) {
    if (!child || child == &inert) return false;
    for (const tg_module *up = m; up; up = up->parent)
        if (up == child) return true;
    return child->parent;
}

tg_status tg_module_add_child(tg_module *m, const char *name, tg_module *child) {
    if (cannot_be_child(m, child)) {
        if (tg_module_ok(m))
            tg_fail(m->ctx, TG_ERR_STATE, "tg_module_add_child: \"%s\" is already in a module, or contains this one",
                    name ? name : "");
        return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    }
    if (!tg_module_ok(m)) {
        tg_module_free(child);
        return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    }
    bool good = tg_module_ok(child) && child->ctx == m->ctx;
    if (!good)
        tg_fail(m->ctx, TG_ERR_HANDLE, "tg_module_add_child: \"%s\" is not a module of this context", name ? name : "");
    tg_module_entry *e = good ? add_entry(m, name, "tg_module_add_child") : NULL;
    if (!e) {
        tg_module_free(child);
        return m->ctx->run.status;
    }
    e->child = child;
    child->parent = m;
    child->entry = e;
    return TG_OK;
}

tg_module *tg_module_child(const tg_module *m, const char *name) {
    tg_module_entry *e = m && name ? find_entry(m, name, strlen(name)) : NULL;
    return e ? e->child : NULL;
}

/* ---- Forward ---- */

/* Returns whether m has a forward function; if not, records an error. */
static bool has_forward(const tg_module *m) {
    if (m->ops && m->ops->forward) return true;
    tg_fail(m->ctx, TG_ERR_UNSUPPORTED, "tg_module_forward: a module of kind \"%s\" has no forward function",
            tg_module_kind(m));
    return false;
}

static tg_tensor *forward(tg_module *m, tg_tape *t, tg_tensor *x, const void *site) {
    tg_ctx *ctx = m->ctx;
    if (ctx->run.status != TG_OK) return tg_inert(ctx);
    if (!has_forward(m)) return tg_inert(ctx);
    if (!t || t->ctx != ctx) {
        tg_fail(ctx, t ? TG_ERR_HANDLE : TG_ERR_ARGUMENT, "tg_module_forward: %s",
                t ? "tape and module are of different contexts" : "the tape is NULL");
        return tg_inert(ctx);
    }
    if (tg_scope_open_at(t, m->ops->kind, site) != TG_OK) return tg_scope_close(t, NULL, 0), tg_inert(ctx);
    tg_tensor *y = m->ops->forward(m, t, x);
    return tg_scope_close(t, &y, 1) == TG_OK ? y : tg_inert(ctx);
}

tg_tensor *tg_module_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    if (!m) return tg_inert(&tg_dead_ctx);
    tg_tensor *y = forward(m, t, x, TG_SITE);
    tg_ctx_may_skip(m->ctx);
    return y;
}

/* ---- The state dict ---- */

/* Returns the entry after e in a depth-first walk over root, and sets *m to the module that has it. Before the call *m
 * is the module that has e. Returns NULL after the last entry. */
static const tg_module_entry *next_entry(const tg_module *root, const tg_module **m, const tg_module_entry *e) {
    if (e->child && e->child->first) {
        *m = e->child;
        return e->child->first;
    }
    for (; !e->next; *m = (*m)->parent) {
        if (*m == root) return NULL;
        e = (*m)->entry;
    }
    return e->next;
}

/* Returns whether the parameter of e is tied and occurs earlier in the walk under another name. */
static bool repeated(const tg_module *root, const tg_module_entry *e) {
    const tg_module *m = root;
    if (e->param->ext->owners == 1) return false;
    for (const tg_module_entry *other = root->first; other != e; other = next_entry(root, &m, other))
        if (other->param == e->param) return true;
    return false;
}

/* Moves the cursor forward to parameter i. If there are not so many parameters, returns false and sets c->i to their
 * number. */
static bool go_to_param(const tg_module *root, tg_module_cursor *c, int i) {
    if (!c->at) *c = (tg_module_cursor){.at = root->first, .of = root};
    for (; c->at; c->at = next_entry(root, &c->of, c->at)) {
        if (!c->at->param || repeated(root, c->at)) continue;
        if (c->i == i) return true;
        c->i++;
    }
    return false;
}

int tg_module_param_count(const tg_module *m) {
    tg_module_cursor c = {.at = NULL};
    if (!m || !m->ops) return 0;
    go_to_param(m, &c, INT32_MAX);
    return c.i;
}

/* Writes the path from root to entry e of m, and returns its length. A path that does not fit is shortened. */
static size_t write_path(const tg_module *root, const tg_module *m, const tg_module_entry *e, char *buf, size_t size) {
    size_t at = m == root ? 0 : write_path(root, m->parent, m->entry, buf, size);
    int n = snprintf(buf + at, size - at, "%s%s", at ? "." : "", e->name);
    return at + (size_t)n < size ? at + (size_t)n : at;
}

tg_tensor *tg_module_param(const tg_module *m, int i, const char **path) {
    if (!m || !m->ops) return tg_inert(m ? m->ctx : &tg_dead_ctx);
    tg_module_cursor *c = &((tg_module *)m)->cursor;
    if (i < c->i) c->at = NULL;
    if (i < 0 || !go_to_param(m, c, i)) {
        tg_fail(m->ctx, TG_ERR_ARGUMENT, "tg_module_param: index %d is out of range; the module has %d parameters", i,
                tg_module_param_count(m));
        return tg_inert(m->ctx);
    }
    if (path) {
        write_path(m, c->of, c->at, ((tg_module *)m)->path, sizeof m->path);
        *path = m->path;
    }
    return c->at->param;
}

int tg_module_params(const tg_module *m, tg_tensor **out, int n) {
    int count = tg_module_param_count(m);
    for (int i = 0; out && i < count && i < n; i++) out[i] = tg_module_param(m, i, NULL);
    return count;
}

tg_tensor *tg_module_find(const tg_module *m, const char *path) {
    while (m && path) {
        size_t n = strcspn(path, ".");
        tg_module_entry *e = find_entry(m, path, n);
        if (!e) return NULL;
        if (!path[n]) return e->param;
        m = e->child;
        path += n + 1;
    }
    return NULL;
}

int64_t tg_module_numel(const tg_module *m) {
    int64_t sum = 0;
    for (int i = 0, n = tg_module_param_count(m); i < n; i++) sum += tg_module_param(m, i, NULL)->numel;
    return sum;
}

tg_tensor *tg_module_own(const tg_module *m, const char *name) {
    tg_module_entry *e = find_entry(m, name, strlen(name));
    return e ? e->param : NULL;
}

/* ---- Children that a forward needs ---- */

tg_module *tg_module_part(const tg_module *m, const char *name) {
    tg_module *c = tg_module_child(m, name);
    if (c || !m) return c;
    char path[256] = "";
    const tg_module *root = m;
    while (root->parent) root = root->parent;
    if (m != root) write_path(root, m->parent, m->entry, path, sizeof path);
    tg_fail(m->ctx, TG_ERR_STATE, "the %s%s%s%s has no child \"%s\", which its forward needs: it was freed",
            m->ops->kind, *path ? " \"" : "", path, *path ? "\"" : "", name);
    return NULL;
}

tg_tensor *tg_module_run(const tg_module *m, const char *child, tg_tape *t, tg_tensor *x) {
    tg_module *c = tg_module_part(m, child);
    return c && has_forward(c) ? c->ops->forward(c, t, x) : tg_inert(t->ctx);
}
