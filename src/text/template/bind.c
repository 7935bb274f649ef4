/* Puts the arguments of a call in the order of the parameters of a function, method or filter of the library. */
#include <string.h>

#include "base/runtime.h"
#include "text/template/evaluate.h"

/* Returns the number of the parameter of that name; -1: there is none. */
static int parameter_of(const char *parameters, const tpl_text *name) {
    for (int i = 0; *parameters; i++) {
        size_t n = strcspn(parameters, " ");
        if (n == name->n && !memcmp(parameters, name->bytes, n)) return i;
        parameters += n + (parameters[n] == ' ');
    }
    return -1;
}

void tg_tpl_bind(tpl_run *r, const char *who, const char *parameters, int required, const tpl_call *c, tpl_value *out) {
    int most = *parameters != 0;
    for (const char *s = parameters; *s; s++) most += *s == ' ';
    for (int i = 0; i < TPL_PARAMETERS; i++) out[i] = (tpl_value){.kind = TPL_ABSENT};
    if (c->n > most)
        tg_tpl_fail(r, TG_ERR_DATA, "'%s' takes at most %s, not %lld", who, tg_count(most, "argument").text,
                    (long long)c->n);
    for (int64_t i = 0; i < c->n; i++) out[i] = c->args[i];
    for (int64_t i = 0; i < c->named.n; i++) {
        const tpl_text *name = c->named.pairs[i].key.text;
        int at = parameter_of(parameters, name);
        if (at < 0 || out[at].kind != TPL_ABSENT)
            tg_tpl_fail(r, TG_ERR_DATA, at < 0 ? "'%s' has no argument '%.*s'" : "'%s' is given argument '%.*s' twice",
                        who, (int)name->n, name->bytes);
        out[at] = c->named.pairs[i].value;
    }
    for (int i = 0; i < required; i++)
        if (out[i].kind == TPL_ABSENT)
            tg_tpl_fail(r, TG_ERR_DATA, "'%s' needs %s", who, tg_count(required, "argument").text);
}
