/* Adapts the layers of a module, and takes the adapters away again. */
#include "base/memory/host_memory.h"
#include "base/options.h"
#include "base/pattern.h"
#include "models/lm/lm.h"
#include "models/lora/lora.h"

/* ---- Lists ---- */

static bool is_adapter(const void *user, const tg_module *m) {
    (void)user;
    return tg_is_lora(m);
}

static bool is_layer(const void *user, const tg_module *m) {
    (void)user;
    return tg_can_lora(m);
}

static tg_status list(tg_module *m, bool (*is)(const void *, const tg_module *), const void *user, tg_lora_list *out) {
    *out = (tg_lora_list){.ctx = m->ctx, .n = tg_module_collect(m, is, user, NULL)};
    out->list = tg_host_alloc(m->ctx, (size_t)out->n * sizeof *out->list + 1);
    if (!out->list) return m->ctx->run.status;
    tg_module_collect(m, is, user, out->list);
    return TG_OK;
}

tg_status tg_lora_list_adapters(tg_module *m, tg_lora_list *out) { return list(m, is_adapter, NULL, out); }
tg_status tg_lora_list_layers(tg_module *m, tg_lora_list *out) { return list(m, is_layer, NULL, out); }

void tg_lora_list_free(tg_lora_list *l) {
    if (l->list) tg_host_free(l->ctx, l->list, (size_t)l->n * sizeof *l->list + 1);
    l->list = NULL;
}

size_t tg_lora_path(const tg_module *m, const tg_module *of, char *path, size_t n) {
    path[0] = 0;
    return tg_module_path(m, of->parent, of->entry, path, n);
}

int tg_lora_count(const tg_module *m) { return m && m->ops ? tg_module_collect(m, is_adapter, NULL, NULL) : 0; }

/* ---- Checks ---- */

tg_status tg_lora_check_new(tg_module *m, const char *who) {
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    int n = tg_lora_count(m);
    if (n)
        return tg_fail(m->ctx, TG_ERR_STATE, "%s: the \"%s\" has %s already; call tg_lora_remove first", who,
                       m->ops->kind, tg_count(n, "adapter").text);
    if (tg_module_is_running(m))
        return tg_fail(m->ctx, TG_ERR_STATE, "%s: the \"%s\", or a module in it, is running its forward", who,
                       m->ops->kind);
    return TG_OK;
}

static tg_status check_numbers(tg_ctx *ctx, const tg_lora_opts *o) {
    static const char *const who = "tg_lora_apply";
    if (o->rank < 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: rank is %lld, expected 1 or more", who, (long long)o->rank);
    if (o->alpha != TG_AUTO && !(o->alpha > 0 && o->alpha <= 1e30))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: alpha is %g, expected a number above 0, or TG_AUTO", who, o->alpha);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: dropout is %g, expected 0 or more and less than 1", who, o->dropout);
    return TG_OK;
}

/* ---- Choosing the layers ---- */

/* What chooses a layer: the module in which it is, and a list of patterns, or NULL for all. */
typedef struct choice {
    const tg_module *in;
    const char *patterns;
} choice;

static bool is_chosen(const void *user, const tg_module *m) {
    const choice *c = user;
    char path[TG_PATTERN_BYTES];
    if (!tg_can_lora(m)) return false;
    tg_lora_path(c->in, m, path, sizeof path);
    if (c->patterns) return tg_patterns_match(c->patterns, path);
    return !tg_is_lm(c->in) || strcmp(path, "lm_head") != 0;
}

/* Fails for a pattern that matches no linear layer, which is probably misspelled. */
static tg_status check_targets(const tg_module *m, const char *targets) {
    char one[TG_PATTERN_BYTES], example[TG_PATTERN_BYTES] = "";
    tg_lora_list all;
    while (targets && tg_pattern_take(&targets, one)) {
        if (tg_module_collect(m, is_chosen, &(choice){m, one}, NULL)) continue;
        if (tg_lora_list_layers((tg_module *)m, &all) != TG_OK) return m->ctx->run.status;
        if (all.n) tg_lora_path(m, all.list[0], example, sizeof example);
        tg_lora_list_free(&all);
        return tg_fail(m->ctx, TG_ERR_ARGUMENT,
                       "tg_lora_apply: the target \"%s\" matches no linear layer of the \"%s\"; %s%s%s", one,
                       m->ops->kind, *example ? "its first linear layer is \"" : "it has none", example,
                       *example ? "\"" : "");
    }
    return TG_OK;
}

/* Fails if a layer is in a captured module, whose graphs would go on running it. */
static tg_status check_captured(const tg_module *m, const tg_lora_list *l, const char *who) {
    for (int i = 0; i < l->n; i++)
        for (const tg_module *up = l->list[i]; up; up = up->parent)
            if (tg_is_captured(up))
                return tg_fail(m->ctx, TG_ERR_STATE,
                               "%s: a layer is in a captured module, whose graphs would go on running it; adapt layers "
                               "before tg_captured_new",
                               who);
    return TG_OK;
}

/* ---- Adapting ---- */

tg_status tg_lora_freeze(tg_module *m) {
    for (int i = 0, n = tg_module_param_count(m); i < n; i++) {
        const char *path;
        tg_tensor *x = tg_module_param(m, i, &path);
        TG_TRY(tg_set_requires_grad(x, tg_lora_is_matrix(path)));
    }
    return TG_OK;
}

tg_status tg_lora_adapt(tg_module *m, tg_lora_list *l, const tg_lora_numbers *numbers, const char *who) {
    TG_TRY(check_captured(m, l, who));
    int done = 0;
    for (tg_module *adapter; done < l->n && (adapter = tg_lora_new(l->list[done], &numbers[done])); done++)
        l->list[done] = adapter;
    if (done == l->n) return TG_OK;
    while (done-- > 0) tg_lora_free(l->list[done]);
    return m->ctx->run.status;
}

/* Adapts the layers of the list with the same numbers, and freezes all other parameters of m. */
static tg_status adapt_alike(tg_module *m, tg_lora_list *l, const tg_lora_opts *o) {
    size_t bytes = (size_t)l->n * sizeof(tg_lora_numbers);
    tg_lora_numbers *numbers = tg_host_alloc(m->ctx, bytes);
    if (!numbers) return m->ctx->run.status;
    for (int i = 0; i < l->n; i++)
        numbers[i] = (tg_lora_numbers){.rank = o->rank,
                                       .alpha = o->alpha == TG_AUTO ? 2 * (double)o->rank : o->alpha,
                                       .dropout = o->dropout,
                                       .rslora = o->rslora};
    if (tg_lora_adapt(m, l, numbers, "tg_lora_apply") == TG_OK) tg_lora_freeze(m);
    tg_host_free(m->ctx, numbers, bytes);
    return m->ctx->run.status;
}

tg_status tg_lora_apply(tg_module *m, const tg_lora_opts *given) {
    tg_lora_opts o;
    tg_lora_list l;
    TG_TRY(tg_lora_check_new(m, "tg_lora_apply"));
    TG_TRY(tg_options(m->ctx, &o, &tg_lora_opts_struct, given, "tg_lora_apply"));
    TG_TRY(check_numbers(m->ctx, &o));
    TG_TRY(check_targets(m, o.targets));
    TG_TRY(list(m, is_chosen, &(choice){m, o.targets}, &l));
    if (l.n)
        adapt_alike(m, &l, &o);
    else if (o.targets)
        tg_fail(m->ctx, TG_ERR_ARGUMENT,
                "tg_lora_apply: targets is \"%s\", which has no pattern; leave it NULL to adapt all linear layers",
                o.targets);
    else
        tg_fail(m->ctx, TG_ERR_ARGUMENT, "tg_lora_apply: the \"%s\" has no linear layer to adapt", m->ops->kind);
    tg_lora_list_free(&l);
    return m->ctx->run.status;
}

/* ---- Removing ---- */

tg_status tg_lora_need(tg_module *m, tg_lora_list *l, const char *who) {
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    char path[TG_PATTERN_BYTES];
    TG_TRY(tg_lora_list_adapters(m, l));
    if (!l->n)
        tg_fail(m->ctx, TG_ERR_STATE, "%s: the \"%s\" has no adapters; call tg_lora_apply or tg_lora_load first", who,
                m->ops->kind);
    for (int i = 0; i < l->n && tg_ok(m->ctx); i++) {
        if (tg_module_wrapped(l->list[i])) continue;
        tg_lora_path(m, l->list[i], path, sizeof path);
        tg_fail(m->ctx, TG_ERR_STATE, "%s: the layer of adapter \"%s\" was freed; free the adapter too", who, path);
    }
    if (!tg_ok(m->ctx)) tg_lora_list_free(l);
    return m->ctx->run.status;
}

tg_status tg_lora_remove(tg_module *m) {
    tg_lora_list l;
    TG_TRY(tg_lora_need(m, &l, "tg_lora_remove"));
    if (tg_module_is_running(m))
        tg_fail(m->ctx, TG_ERR_STATE, "tg_lora_remove: the \"%s\", or a module in it, is running its forward",
                m->ops->kind);
    for (int i = 0; i < l.n && tg_ok(m->ctx); i++) tg_lora_free(l.list[i]);
    tg_lora_list_free(&l);
    return m->ctx->run.status;
}
