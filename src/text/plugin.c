/* Plugin "text": regular expressions by PCRE2, compiled to machine code where its JIT is available, and normal forms by
 * utf8proc. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <utf8proc.h>

#include "text/patterns.h"

struct tg_pattern {
    pcre2_code *code;
    bool fast; /* compiled to machine code */
};

struct tg_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack; /* NULL where there is no JIT, or no memory for the stack */
};

/* ---- Expressions ---- */

static void pattern_free(tg_pattern *p) {
    if (p) pcre2_code_free(p->code);
    free(p);
}

/* Returns whether PCRE2 knows \p{sc:NAME}, so that NAME is a script. Versions before 10.40 know no such property. */
static bool is_script(const char *name, size_t n) {
    char text[64];
    int error;
    size_t offset;
    int bytes = snprintf(text, sizeof text, "\\p{sc:%.*s}", n < 48 ? (int)n : 48, name);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, (size_t)bytes, PCRE2_UTF, &error, &offset, NULL);
    pcre2_code_free(code);
    return code != NULL;
}

/* Copies an expression of n bytes to out[2 * n], and returns its length there. \p{Han} becomes \p{sc:Han}, and so on:
 * the name of a script alone means its Script_Extensions since PCRE2 10.40, but its Script in earlier versions and in
 * Oniguruma. U+3002, for example, is in Script_Extensions of Han, but not in Script. */
static size_t name_scripts(const char *text, size_t n, char *out) {
    size_t made = 0;
    for (size_t at = 0, part; at < n; at += part) {
        bool property = n - at > 3 && text[at] == '\\' && (text[at + 1] | 32) == 'p' && text[at + 2] == '{';
        const char *name = text + at + 3 + (property && text[at + 3] == '^');
        const char *end = property ? memchr(name, '}', (size_t)(text + n - name)) : NULL;
        part = end ? (size_t)(name - text) - at : text[at] == '\\' && at + 1 < n ? 2 : 1;
        memcpy(out + made, text + at, part);
        made += part;
        if (!end || !is_script(name, (size_t)(end - name))) continue;
        memcpy(out + made, "sc:", 3);
        made += 3;
    }
    return made;
}

static pcre2_code *compile(const char *text, size_t n, char why[256], size_t *offset) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    int error = 0;
    *offset = 0;
    if (!context) return NULL;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, n, PCRE2_UTF | PCRE2_UCP, &error, offset, context);
    pcre2_compile_context_free(context);
    if (!code && error != PCRE2_ERROR_HEAP_FAILED) pcre2_get_error_message(error, (PCRE2_UCHAR *)why, 256);
    return code;
}

static tg_pattern *pattern_new(const char *text, size_t n, char why[256], size_t *offset) {
    tg_pattern *p = calloc(1, sizeof *p);
    *why = 0;
    if (!p) return NULL;
    char *named = malloc(2 * n + 1);
    if (named) p->code = compile(named, name_scripts(text, n, named), why, offset);
    free(named);
    if (p->code) {
        p->fast = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
        return p;
    }
    pattern_free(p);
    return NULL;
}

static void matcher_free(tg_matcher *m) {
    if (!m) return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

static tg_matcher *matcher_new(void) {
    tg_matcher *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(1 << 15, 1 << 23, NULL); /* bytes at first, and at most */
    if (m->data && m->context) {
        if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
        return m;
    }
    matcher_free(m);
    return NULL;
}

static int find(const tg_pattern *p, tg_matcher *m, const char *text, size_t n, size_t from, size_t *begin,
                size_t *end) {
    int found = p->fast ? pcre2_jit_match(p->code, (PCRE2_SPTR)text, n, from, 0, m->data, m->context)
                        : pcre2_match(p->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (found < 0) return found == PCRE2_ERROR_NOMATCH ? 0 : found == PCRE2_ERROR_NOMEMORY ? -2 : -1;
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(m->data);
    *begin = range[0];
    *end = range[1];
    return 1;
}

/* ---- Normal forms ---- */

static const utf8proc_option_t options[] = {
    [TG_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
    [TG_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
    [TG_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
    [TG_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
};

static char *normalize(tg_normal_form form, const char *text, size_t n, size_t *length) {
    utf8proc_uint8_t *made = NULL;
    utf8proc_ssize_t size = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &made, options[form]);
    if (size < 0) return NULL;
    *length = (size_t)size;
    return (char *)made;
}

static const tg_text_plugin_table table = {
    .pattern_new = pattern_new,
    .pattern_free = pattern_free,
    .matcher_new = matcher_new,
    .matcher_free = matcher_free,
    .find = find,
    .normalize = normalize,
};

const tg_plugin tg_text_plugin = TG_PLUGIN(&table);
