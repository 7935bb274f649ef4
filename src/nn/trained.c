/* Which parameters of a module are trained, chosen by patterns. */
#include "base/pattern.h"
#include "nn/module.h"

static tg_status check(const tg_module *m, const char *patterns) {
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    if (patterns && *patterns) return TG_OK;
    return tg_fail(m->ctx, TG_ERR_ARGUMENT,
                   "tg_module_train: patterns is \"%s\", expected patterns that are separated by commas, such as "
                   "\"embed_tokens,layers.0\"",
                   patterns ? patterns : "(NULL)");
}

/* Fails for a pattern that matches no parameter, which is probably misspelled. */
static tg_status check_used(const tg_module *m, const char *pattern) {
    const char *path, *example = "";
    int n = tg_module_param_count(m);
    for (int i = 0; i < n; i++) {
        tg_module_param(m, i, &path);
        if (tg_pattern_matches(pattern, path)) return TG_OK;
    }
    if (n) tg_module_param(m, 0, &example);
    return tg_fail(m->ctx, TG_ERR_ARGUMENT,
                   "tg_module_train: the pattern \"%s\" matches no parameter of the \"%s\"; parameters have names such "
                   "as \"%s\"",
                   pattern, m->ops->kind, example);
}

int tg_module_train(tg_module *m, const char *patterns, bool on) {
    char one[TG_PATTERN_BYTES];
    const char *path, *rest = patterns;
    int count = 0;
    if (check(m, patterns) != TG_OK) return -1;
    while (tg_pattern_take(&rest, one))
        if (check_used(m, one) != TG_OK) return -1;
    for (int i = 0, n = tg_module_param_count(m); i < n; i++) {
        tg_tensor *x = tg_module_param(m, i, &path);
        if (!tg_patterns_match(patterns, path)) continue;
        if (tg_set_requires_grad(x, on) != TG_OK) return -1;
        count++;
    }
    return tg_ok(m->ctx) ? count : -1;
}
