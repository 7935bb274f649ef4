/* The state dict: the parameters and buffers of a module and of all modules in it, with their paths. */
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "nn/module.h"

void tg_module_reset_cursors(tg_module *m) {
    for (; m; m = m->parent)
        for (int i = 0; i < TG_STATE_LISTS; i++) m->cursor[i].at = NULL;
}

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

static bool is_in(tg_state_list list, const tg_module_entry *e) {
    if (!e->tensor || e->buffer != (list != TG_STATE_PARAMS)) return false;
    return list != TG_STATE_SAVED_BUFFERS || !e->transient;
}

/* Returns whether the tensor of e is tied and occurs earlier in this list, under another name. */
static bool repeated(const tg_module *root, tg_state_list list, const tg_module_entry *e) {
    const tg_module *m = root;
    if (e->tensor->ext->owners == 1) return false;
    for (const tg_module_entry *other = root->first; other != e; other = next_entry(root, &m, other))
        if (other->tensor == e->tensor && is_in(list, other)) return true;
    return false;
}

/* Moves the cursor forward to tensor i. If the list has no tensor i, returns false and sets c->i to the number of
 * tensors in the list. */
static bool go_to(const tg_module *root, tg_state_list list, tg_module_cursor *c, int i) {
    if (!c->at) *c = (tg_module_cursor){.at = root->first, .of = root};
    for (; c->at; c->at = next_entry(root, &c->of, c->at)) {
        if (!is_in(list, c->at) || repeated(root, list, c->at)) continue;
        if (c->i == i) return true;
        c->i++;
    }
    return false;
}

int tg_state_count(const tg_module *m, tg_state_list list) {
    tg_module_cursor c = {.at = NULL};
    if (!m || !m->ops) return 0;
    go_to(m, list, &c, INT32_MAX);
    return c.i;
}

size_t tg_module_path(const tg_module *root, const tg_module *m, const tg_module_entry *e, char *buf, size_t size) {
    size_t at = m == root ? 0 : tg_module_path(root, m->parent, m->entry, buf, size);
    bool fits = at < size;
    size_t end = at + (size_t)snprintf(fits ? buf + at : NULL, fits ? size - at : 0, "%s%s",
                                       at && *e->name ? "." : "", e->name);
    if (fits && end >= size) buf[at] = 0;
    return end;
}

/* Writes the path from m to the tensor of a cursor into memory of m, and returns it. Returns NULL after recording the
 * error. */
static const char *path_of(tg_module *m, const tg_module_cursor *c) {
    size_t bytes = tg_module_path(m, c->of, c->at, m->path, m->path_size) + 1, size = 64;
    if (bytes <= m->path_size) return m->path;
    while (size < bytes) size *= 2;
    char *longer = tg_host_alloc(m->ctx, size);
    if (!longer) return NULL;
    tg_host_free(m->ctx, m->path, m->path_size);
    m->path = longer;
    m->path_size = size;
    tg_module_path(m, c->of, c->at, m->path, m->path_size);
    return m->path;
}

tg_tensor *tg_state_at(const tg_module *m, tg_state_list list, int i, const char **path, const char *who) {
    if (!m || !m->ops) return tg_inert(m ? m->ctx : &tg_dead_ctx);
    tg_module_cursor *c = &((tg_module *)m)->cursor[list];
    if (i < c->i) c->at = NULL;
    if (i < 0 || !go_to(m, list, c, i)) {
        tg_fail(m->ctx, TG_ERR_ARGUMENT, "%s: index %d is out of range; the module has %d %s", who, i,
                tg_state_count(m, list), list == TG_STATE_PARAMS ? "parameters" : "buffers");
        return tg_inert(m->ctx);
    }
    if (!path) return c->at->tensor;
    const char *at = path_of((tg_module *)m, c);
    *path = at ? at : "";
    return at ? c->at->tensor : tg_inert(m->ctx);
}

int tg_module_param_count(const tg_module *m) { return tg_state_count(m, TG_STATE_PARAMS); }
int tg_module_buffer_count(const tg_module *m) { return tg_state_count(m, TG_STATE_BUFFERS); }

tg_tensor *tg_module_param(const tg_module *m, int i, const char **path) {
    return tg_state_at(m, TG_STATE_PARAMS, i, path, "tg_module_param");
}

tg_tensor *tg_module_buffer(const tg_module *m, int i, const char **path) {
    return tg_state_at(m, TG_STATE_BUFFERS, i, path, "tg_module_buffer");
}

int tg_module_params(const tg_module *m, tg_tensor **out, int n) {
    int count = tg_module_param_count(m);
    for (int i = 0; out && i < count && i < n; i++) out[i] = tg_module_param(m, i, NULL);
    return count;
}

int64_t tg_module_numel(const tg_module *m) {
    int64_t sum = 0;
    for (int i = 0, n = tg_module_param_count(m); i < n; i++) sum += tg_module_param(m, i, NULL)->numel;
    return sum;
}
