/* The normalizer: normal forms of Unicode, replacements, text that is prepended, and stripping of white space. */
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

/* Appends the normal form. ASCII is its own normal form, and no character is composed with an ASCII character after it,
 * so each run of other characters is normalized by itself, together with the ASCII character before it. */
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

/* Finds the next match of a step. Returns 1, 0, or less after an error. */
static int find_next(tg_encoder *e, const tg_normal_step *s, tg_span text, size_t from, size_t *begin, size_t *end) {
    if (!s->pattern) {
        *begin = tg_find_text(text.at, text.n, from, s->sought);
        *end = *begin + s->sought.n;
        return *begin < text.n;
    }
    int found = e->k->functions->find(s->pattern, e->matcher, text.at, text.n, from, begin, end);
    if (found == -1) e->problem = "matching a regular expression of the normalizer takes too many steps";
    return found;
}

/* How much of a text comes from the first character of the original one. That decides whether the text still begins
 * where the original did, which matters to Metaspace. */
typedef struct tg_head {
    size_t before, now; /* bytes at the beginning of the text before the step, and of what the step has made so far */
    bool goes_on;       /* all that the step has made so far comes from that character */
} tg_head;

/* Notes that the bytes from `begin` to `end` of the text stay. */
static void keep_bytes(tg_head *h, size_t begin, size_t end) {
    if (end > h->before) end = h->before;
    if (h->goes_on && end > begin) h->now += end - begin;
}

/* Notes that n bytes replace a match that ends at `end`. They count as coming from the byte before `end`. */
static void replace_bytes(tg_head *h, size_t end, size_t n) {
    h->goes_on = h->goes_on && end <= h->before;
    if (h->goes_on) h->now += n;
}

/* Appends the text with its matches replaced. An empty match counts too, unless another match has just ended there. */
static bool add_replaced(tg_encoder *e, const tg_normal_step *s, tg_span text, size_t *head, tg_growing *out) {
    size_t done = 0, from = 0, begin, end;
    int found = 0;
    tg_head h = {.before = *head, .goes_on = *head > 0};
    while (from <= text.n && (found = find_next(e, s, text, from, &begin, &end)) > 0) {
        from = end > begin ? end : end < text.n ? end + tg_char_length(text.at[end]) : text.n + 1;
        if (begin == end && begin == done && done > 0) continue;
        if (!tg_growing_add(out, text.at + done, begin - done) || !tg_growing_add(out, s->content.at, s->content.n))
            return false;
        keep_bytes(&h, done, begin);
        replace_bytes(&h, end, s->content.n);
        done = end;
    }
    keep_bytes(&h, done, text.n);
    *head = h.now;
    return found >= 0 && tg_growing_add(out, text.at + done, text.n - done);
}

static tg_span strip(const tg_normal_step *s, tg_span text) {
    size_t n;
    while (s->left && text.n && tg_char_is_space(tg_char_at(text.at, &n))) text.at += n, text.n -= n;
    while (s->right && text.n) {
        size_t last = tg_char_before(text.at, text.n);
        if (!tg_char_is_space(tg_char_at(text.at + last, &n))) break;
        text.n = last;
    }
    return text;
}

/* Returns whether it is easily seen that the step leaves the text as it is. */
static bool changes_nothing(const tg_normal_step *s, tg_span text) {
    if (s->kind == TG_NORMAL_FORM) return ascii_length(text, 0) == text.n;
    return s->kind == TG_NORMAL_REPLACE && !s->pattern && tg_find_text(text.at, text.n, 0, s->sought) == text.n;
}

/* Sets *head to the length of what the normal form has made of the head. That is what `out` shares with the normal form
 * of the head alone. If the two differ before one of them ends, the head's last character was composed with characters
 * after it, and the composed character counts too. */
static bool form_head(tg_encoder *e, tg_normal_form form, tg_span text, size_t *head, const tg_growing *out) {
    size_t length, same = 0;
    if (!*head) return true;
    char *alone = e->k->functions->normalize(form, text.at, *head, &length);
    if (!alone) return false;
    while (same < length && same < (size_t)out->n && alone[same] == out->at[same]) same++;
    bool composed = same < length && same < (size_t)out->n;
    while (composed && same && ((unsigned char)out->at[same] & 0xc0) == 0x80) same--;
    *head = composed ? same + tg_char_length(out->at[same]) : same;
    free(alone);
    return true;
}

static bool add_step(tg_encoder *e, const tg_normal_step *s, tg_span text, size_t *head, tg_growing *out) {
    switch (s->kind) {
    case TG_NORMAL_FORM:
        return add_normal_form(e, s->form, text, out) && form_head(e, s->form, text, head, out);
    case TG_NORMAL_REPLACE:
        return add_replaced(e, s, text, head, out);
    case TG_NORMAL_PREPEND:
        if (*head) *head += s->content.n;
        return tg_growing_add(out, s->content.at, s->content.n) && tg_growing_add(out, text.at, text.n);
    default:
        return false;
    }
}

/* Strips white space, and subtracts from *head what was removed on the left. */
static tg_span strip_head(const tg_normal_step *s, tg_span text, size_t *head) {
    tg_span left = strip(s, text);
    size_t gone = (size_t)(left.at - text.at);
    *head = *head > gone ? *head - gone : 0;
    return left;
}

bool tg_normalize_text(tg_encoder *e, tg_span text, tg_span *out, size_t *head) {
    int next = 0; /* the buffer that does not have the text now */
    for (int i = 0; i < e->k->n_normal && text.n; i++) {
        const tg_normal_step *s = e->k->normal + i;
        if (s->kind == TG_NORMAL_STRIP) text = strip_head(s, text, head);
        if (s->kind == TG_NORMAL_STRIP || changes_nothing(s, text)) continue;
        tg_growing *to = e->buffers + next;
        to->n = 0;
        if (!add_step(e, s, text, head, to)) return false;
        text = (tg_span){to->at, (size_t)to->n};
        next = !next;
    }
    *out = text;
    return true;
}
