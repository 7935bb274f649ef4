/* Adds modules to sharded state, and the dims in front of their tensors. */
#include "checkpoint/shards.h"

#include <stdio.h>

#include "core/tensor/rehome.h"
#include "nn/module.h"

static tg_status enter(const tg_shards *s) { return s ? s->ctx->run.status : TG_ERR_ARGUMENT; }

/* Makes the keys that follow begin with the present prefix and the name, which may be NULL or "". */
static tg_status extend(tg_shards *s, const char *name) {
    char longer[TG_SHARDS_KEY];
    TG_TRY(tg_shards_join(s, longer, s->prefix, name, ""));
    memcpy(s->prefix, longer, strlen(longer) + 1);
    return TG_OK;
}

/* ---- Dims in front ---- */

tg_status tg_shards_push(tg_shards *s, const char *name, int64_t n, int64_t i) {
    TG_TRY(enter(s));
    if (n < 1 || i < 0 || i >= n)
        return tg_fail(s->ctx, TG_ERR_ARGUMENT, "tg_shards_push: n is %lld and i %lld, expected n >= 1 and i in [0, n)",
                       (long long)n, (long long)i);
    if (s->front.n == TG_SHARD_FRONTS)
        return tg_fail(s->ctx, TG_ERR_STATE, "tg_shards_push: %d dims are in front already, which is the most",
                       TG_SHARD_FRONTS);
    s->pushed[s->front.n] = strlen(s->prefix);
    TG_TRY(extend(s, name));
    s->front.size[s->front.n] = n;
    s->front.at[s->front.n++] = i;
    return TG_OK;
}

static void pop(tg_shards *s) {
    s->prefix[s->pushed[--s->front.n]] = 0;
    s->front.size[s->front.n] = s->front.at[s->front.n] = 0;
}

tg_status tg_shards_pop(tg_shards *s) {
    TG_TRY(enter(s));
    if (s->front.n == s->outer)
        return tg_fail(s->ctx, TG_ERR_STATE, "tg_shards_pop: %s; call tg_shards_push first",
                       s->outer ? "the dims in front were pushed outside of this `shards`" : "no dim is in front");
    pop(s);
    return TG_OK;
}

/* ---- Modules ---- */

static const char *const call = "tg_shards_add_module";

static tg_status add_module(tg_shards *s, const char *name, tg_module *m);

/* Adds a tensor of a module, unless it is tied and the outermost tg_shards_add_module has added it already. */
static tg_status add_tensor(tg_shards *s, const char *name, tg_tensor *x) {
    char key[TG_SHARDS_KEY];
    for (int i = s->first; i < s->n; i++)
        if (s->item[i].x == tg_range_kept(x)) return TG_OK; /* the item has what this rank keeps of x */
    TG_TRY(tg_shards_join(s, key, s->prefix, name, ""));
    return tg_shards_add_item(s, key, x, x, call);
}

/* Adds the parameters, then the buffers that are not transient, then the children. */
static tg_status add_entries(tg_shards *s, const tg_module *m) {
    for (int buffers = 0; buffers < 2; buffers++)
        for (const tg_module_entry *e = m->first; e; e = e->next)
            if (e->tensor && e->buffer == buffers && !e->transient) TG_TRY(add_tensor(s, e->name, e->tensor));
    for (const tg_module_entry *e = m->first; e; e = e->next)
        if (e->child) TG_TRY(add_module(s, e->name, e->child));
    return TG_OK;
}

/* Calls the module's own `shards`. */
static tg_status add_own(tg_shards *s, tg_module *m) {
    int fronts = s->front.n, outer = s->outer;
    s->outer = fronts;
    tg_status status = m->ops->shards(m, s);
    s->outer = outer;
    TG_TRY(s->ctx->run.status);
    if (status != TG_OK)
        return tg_fail(s->ctx, TG_ERR_CALLBACK, "%s: `shards` of a \"%s\" failed with %s", call, m->ops->kind,
                       tg_status_name(status));
    if (s->front.n == fronts) return TG_OK;
    return tg_fail(
        s->ctx, TG_ERR_STATE,
        "%s: `shards` of a \"%s\" left %s in front that were %d before; each tg_shards_push needs a tg_shards_pop",
        call, m->ops->kind, tg_count(s->front.n, "dim").text, fronts);
}

static tg_status add_module(tg_shards *s, const char *name, tg_module *m) {
    size_t before = strlen(s->prefix);
    TG_TRY(extend(s, name));
    tg_status status = TG_MODULE_OP(m, shards) ? add_own(s, m) : add_entries(s, m);
    s->prefix[before] = 0;
    return status;
}

/* Adds all of a module, or after an error nothing. */
static tg_status add_whole(tg_shards *s, const char *prefix, tg_module *m) {
    int n = s->n, fronts = s->front.n;
    size_t before = strlen(s->prefix);
    s->first = n;
    tg_status status = tg_shards_undo_if_failed(s, n, add_module(s, prefix, m));
    while (s->front.n > fronts) pop(s); /* what a failed `shards` has left */
    s->prefix[before] = 0;
    return status;
}

tg_status tg_shards_add_module(tg_shards *s, const char *prefix, tg_module *m) {
    TG_TRY(enter(s));
    if (!tg_module_ok(m) || m->ctx != s->ctx)
        return tg_fail(s->ctx, m ? TG_ERR_HANDLE : TG_ERR_ARGUMENT, "%s: %s", call,
                       !m        ? "the module is NULL"
                       : !m->ops ? "the module is inert, because the call that made it has failed"
                                 : "the module is of another context");
    bool outermost = !s->modules++;
    tg_status status = outermost ? add_whole(s, prefix, m) : add_module(s, prefix, m);
    s->modules--;
    return status;
}
