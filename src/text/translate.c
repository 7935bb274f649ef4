/* Regular expressions of tokenizer files. They are written for Oniguruma, in Ruby's syntax. Most of it means the same
 * in PCRE2; what does not is translated here, or refused. */
#include "text/patterns.h"

typedef struct translation {
    tg_ctx *ctx;
    const char *who, *text;
    size_t n, at;
    tg_growing *out;
} translation;

/* White_Space, as the inside of a class. PCRE2's \s has U+180E too. The last item is a range, so that a hyphen after
 * it, as in [\s-.], stands for itself in PCRE2 too. */
#define SPACES "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}\\x{2000}-\\x{200a}"

static tg_status refuse(const translation *t, const char *what) {
    return tg_fail(t->ctx, TG_ERR_UNSUPPORTED,
                   "%s: the regular expression '%.*s' has %s at offset %zu, which this library does not support",
                   t->who, t->n > 400 ? 400 : (int)t->n, t->text, what, t->at);
}

static tg_status put(translation *t, const char *text, size_t n) {
    if (tg_growing_add(t->out, text, n)) return TG_OK;
    return tg_fail(t->ctx, TG_ERR_MEMORY, "%s: no memory for a regular expression", t->who);
}

/* Copies the next n bytes of the expression. */
static tg_status copy(translation *t, size_t n) {
    t->at += n;
    return put(t, t->text + t->at - n, n);
}

static bool begins(const translation *t, const char *with) {
    size_t n = strlen(with);
    return t->n - t->at >= n && memcmp(t->text + t->at, with, n) == 0;
}

/* Replaces the next two characters. */
static tg_status replace(translation *t, const char *by) {
    t->at += 2;
    return put(t, by, strlen(by));
}

/* Copies \p{NAME} or \P{NAME}. */
static tg_status copy_property(translation *t) {
    const char *end = t->n - t->at > 2 && t->text[t->at + 2] == '{' ? memchr(t->text + t->at, '}', t->n - t->at) : NULL;
    if (!end) return refuse(t, "a property without braces");
    return copy(t, (size_t)(end + 1 - t->text) - t->at);
}

/* Translates the code point of \uHHHH. */
static tg_status translate_code(translation *t) {
    if (t->n - t->at < 6 || strspn(t->text + t->at + 2, "0123456789abcdefABCDEF") < 4)
        return refuse(t, "\\u without four digits");
    TG_TRY(put(t, "\\x{", 3));
    t->at += 2;
    TG_TRY(copy(t, 4));
    return put(t, "}", 1);
}

static tg_status translate_escape(translation *t, bool in_class) {
    char c = t->n - t->at > 1 ? t->text[t->at + 1] : 0;
    switch (c) {
    case 's':
        return replace(t, in_class ? SPACES : "[" SPACES "]");
    case 'S':
        return in_class ? refuse(t, "\\S in a class") : replace(t, "[^" SPACES "]");
    case 'd':
        return replace(t, "\\p{Nd}");
    case 'D':
        return replace(t, "\\P{Nd}");
    case 'p':
    case 'P':
        return copy_property(t);
    case 'u':
        return translate_code(t);
    case 'n':
    case 'r':
    case 't':
    case 'f':
        return copy(t, 2);
    default:
        break;
    }
    bool letter = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
    return !c || letter || (c & 0x80) ? refuse(t, "an escape") : copy(t, 2);
}

static tg_status translate_class(translation *t) {
    TG_TRY(copy(t, begins(t, "[^") ? 2 : 1));
    if (begins(t, "]")) return refuse(t, "a class that begins with ]");
    while (t->at < t->n && t->text[t->at] != ']') {
        if (t->text[t->at] == '[') return refuse(t, "a class in a class");
        if (begins(t, "&&")) return refuse(t, "an intersection of classes");
        TG_TRY(t->text[t->at] == '\\' ? translate_escape(t, true) : copy(t, 1));
    }
    return t->at < t->n ? copy(t, 1) : refuse(t, "an open class");
}

static tg_status translate_group(translation *t) {
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?>"};
    for (int i = 0; i < TG_LEN(known); i++)
        if (begins(t, known[i])) return copy(t, strlen(known[i]));
    return begins(t, "(?") || begins(t, "(*") ? refuse(t, "a group of another kind") : copy(t, 1);
}

/* Copies a quantifier {n}, {n,} or {n,m}. A plus after it repeats the whole in Oniguruma, and is possessive in PCRE2. A
 * question mark after {n} makes the whole optional in Oniguruma, and has no effect in PCRE2. */
static tg_status copy_counts(translation *t) {
    size_t end = t->at + 1 + strspn(t->text + t->at + 1, "0123456789");
    if (end == t->at + 1) return refuse(t, "a brace");
    bool exact = t->text[end] != ',';
    if (!exact) end += 1 + strspn(t->text + end + 1, "0123456789");
    if (t->text[end] != '}') return refuse(t, "a brace");
    TG_TRY(copy(t, end + 1 - t->at));
    if (exact && begins(t, "?")) return refuse(t, "a question mark after {n}");
    return begins(t, "+") ? refuse(t, "a plus after a count") : TG_OK;
}

tg_status tg_pattern_translate(tg_ctx *ctx, const char *who, const char *text, size_t n, tg_growing *out) {
    translation t = {.ctx = ctx, .who = who, .text = text, .n = n, .out = out};
    while (t.at < n) {
        switch (text[t.at]) {
        case '\\':
            TG_TRY(translate_escape(&t, false));
            break;
        case '[':
            TG_TRY(translate_class(&t));
            break;
        case '(':
            TG_TRY(translate_group(&t));
            break;
        case '{':
            TG_TRY(copy_counts(&t));
            break;
        case '^':
        case '$':
            return refuse(&t, "an anchor");
        default:
            TG_TRY(copy(&t, 1));
            break;
        }
    }
    return TG_OK;
}
