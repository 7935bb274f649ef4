/* The normalizer: normal forms of Unicode, replacements, text before the beginning, and stripping of white space. */
#include "text/tokenizer.h"
#include "text/unicode.h"

size_t tg_find_text(const char *text, size_t n, size_t from, tg_span sought) {
    while (from + sought.n <= n) {
        const char *found = memchr(text + from, sought.at[0], n - from - sought.n + 1);
        if (!found) return n;
        if (memcmp(found, sought.at, sought.n) == 0) return (size_t)(found - text);
        from = (size_t)(found - text) + 1;
    }
    return n;
}

static size_t ascii_length(tg_span text, size_t from) {
    size_t at = from;
    while (at < text.n && !(text.at[at] & 0x80)) at++;
    return at - from;
}

/* Appends the normal form. ASCII is its own normal form, and a normal form may be made in parts that begin with ASCII.
 */
static bool add_normal_form(tg_encoder *e, tg_normal_form form, tg_span text, tg_growing *out) {
    for (size_t at = 0; at < text.n;) {
        size_t plain = ascii_length(text, at), end = at + plain;
        if (end < text.n && plain) plain--; /* a mark may follow the last one */
        if (!tg_growing_add(out, text.at + at, plain)) return false;
        if (end == text.n) return true;
        while (end < text.n && (text.at[end] & 0x80)) end++;
        size_t length;
        char *made = e->k->functions->normalize(form, text.at + at + plain, end - at - plain, &length);
        bool good = made && tg_growing_add(out, made, length);
        free(made);
        if (!good) return false;
        at = end;
    }
    return true;
}

/* Finds the next match of a step. Returns 1, 0, or -1 after setting e->problem. */
static int find_next(tg_encoder *e, const tg_normal_step *s, tg_span text, size_t from, size_t *begin, size_t *end) {
    if (!s->pattern) {
        *begin = tg_find_text(text.at, text.n, from, s->sought);
        *end = *begin + s->sought.n;
        return *begin < text.n;
    }
    int found = e->k->functions->find(s->pattern, e->matcher, text.at, text.n, from, begin, end);
    if (found < 0) e->problem = "a regular expression of the normalizer is too difficult for it";
    return found;
}

static bool add_replaced(tg_encoder *e, const tg_normal_step *s, tg_span text, tg_growing *out) {
    size_t done = 0, from = 0, begin, end;
    int found = 0;
    while (from <= text.n && (found = find_next(e, s, text, from, &begin, &end)) > 0) {
        if (!tg_growing_add(out, text.at + done, begin - done) || !tg_growing_add(out, s->content.at, s->content.n))
            return false;
        done = end;
        from = end > begin ? end : end < text.n ? end + tg_char_length(text.at[end]) : text.n + 1;
    }
    return found >= 0 && tg_growing_add(out, text.at + done, text.n - done);
}

static tg_span strip(const tg_normal_step *s, tg_span text) {
    size_t n;
    while (s->left && text.n && tg_char_is_space(tg_char_at(text.at, &n))) text.at += n, text.n -= n;
    while (s->right && text.n) {
        size_t last = text.n - 1;
        while (((unsigned char)text.at[last] & 0xc0) == 0x80) last--;
        if (!tg_char_is_space(tg_char_at(text.at + last, &n))) break;
        text.n = last;
    }
    return text;
}

/* Returns whether the step leaves the text as it is. */
static bool changes_nothing(const tg_normal_step *s, tg_span text) {
    if (s->kind == TG_NORMAL_FORM) return ascii_length(text, 0) == text.n;
    return s->kind == TG_NORMAL_REPLACE && !s->pattern && tg_find_text(text.at, text.n, 0, s->sought) == text.n;
}

static bool add_step(tg_encoder *e, const tg_normal_step *s, tg_span text, tg_growing *out) {
    switch (s->kind) {
    case TG_NORMAL_FORM:
        return add_normal_form(e, s->form, text, out);
    case TG_NORMAL_REPLACE:
        return add_replaced(e, s, text, out);
    case TG_NORMAL_PREPEND:
        return tg_growing_add(out, s->content.at, s->content.n) && tg_growing_add(out, text.at, text.n);
    default:
        return false;
    }
}

bool tg_normalize_text(tg_encoder *e, tg_span text, tg_span *out) {
    int next = 0; /* the buffer that does not have the text now */
    for (int i = 0; i < e->k->n_normal && text.n; i++) {
        const tg_normal_step *s = e->k->normal + i;
        if (s->kind == TG_NORMAL_STRIP) text = strip(s, text);
        if (s->kind == TG_NORMAL_STRIP || changes_nothing(s, text)) continue;
        tg_growing *to = e->buffers + next;
        to->n = 0;
        if (!add_step(e, s, text, to)) return false;
        text = (tg_span){to->at, (size_t)to->n};
        next = !next;
    }
    *out = text;
    return true;
}
