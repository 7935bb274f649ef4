/* What needs tables of Unicode: regular expressions and normal forms. They are in plugin libtapegrad-text.so, which
 * links PCRE2 and utf8proc; tg_text_functions loads it when a tokenizer needs it. */
#ifndef TG_TEXT_PATTERNS_H
#define TG_TEXT_PATTERNS_H

#include "base/plugin.h"
#include "text/memory.h"

typedef struct tg_pattern tg_pattern; /* a regular expression; several threads may use one at the same time */
typedef struct tg_matcher tg_matcher; /* what one thread needs to match */

typedef enum tg_normal_form { TG_NFC, TG_NFD, TG_NFKC, TG_NFKD } tg_normal_form;

/* What plugin "text" offers. */
typedef struct tg_text_plugin_table {
    /* Compiles an expression in PCRE2's syntax. Returns NULL if it is malformed: `why` then has the reason, and *offset
     * where it is. Returns NULL too, with `why` empty, if there is no memory. */
    tg_pattern *(*pattern_new)(const char *text, size_t n, char why[256], size_t *offset);
    void (*pattern_free)(tg_pattern *p);
    tg_matcher *(*matcher_new)(void); /* NULL: no memory */
    void (*matcher_free)(tg_matcher *m);
    /* Finds the first match in the n bytes of valid UTF-8 at `text` that begins at `from` or later. Returns 1, or 0 if
     * there is none, or -1 if matching takes too many steps, or -2 if there is no memory. */
    int (*find)(const tg_pattern *p, tg_matcher *m, const char *text, size_t n, size_t from, size_t *begin,
                size_t *end);
    /* Returns the normal form of text in memory of malloc, and its length; NULL: no memory. */
    char *(*normalize)(tg_normal_form form, const char *text, size_t n, size_t *length);
} tg_text_plugin_table;

extern TG_PRIVATE_API const tg_plugin tg_text_plugin;

/* Returns the plugin's functions; NULL after recording TG_ERR_UNSUPPORTED. `who` begins the message. */
static inline const tg_text_plugin_table *tg_text_functions(tg_ctx *ctx, const char *who) {
    return tg_plugin_table(ctx, "text", TG_ERR_UNSUPPORTED, who);
}

/* Translates a regular expression of Oniguruma, which tokenizer files have, to PCRE2's syntax, and appends it to out.
 * text[n] must be 0. Fails with TG_ERR_UNSUPPORTED if the expression has something that is not translated and may mean
 * something else in PCRE2; `who` begins the message. */
tg_status tg_pattern_translate(tg_ctx *ctx, const char *who, const char *text, size_t n, tg_growing *out);

#endif
