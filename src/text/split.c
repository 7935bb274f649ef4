/* The pre-tokenizer: cuts text into words. Each step hands its parts to the next one, and the last one to the model. */
#include "text/tokenizer.h"
#include "text/unicode.h"

static const char too_difficult[] = "matching a regular expression of the pre-tokenizer takes too many steps";

/* Parts of a text that a step has found, in order. */
typedef struct cutter {
    tg_encoder *e;
    int step; /* the next one */
    tg_behavior behavior;
    tg_span text;
    size_t head;            /* tg_cut_words */
    bool pending, previous; /* a part waits for what follows it; the part before was a match */
    size_t begin, end;      /* of the part that waits */
} cutter;

/* Hands a part to the next step. */
static bool give(cutter *c, size_t begin, size_t end) {
    if (begin == end) return true;
    return tg_cut_words(c->e, c->step, (tg_span){c->text.at + begin, end - begin}, tg_head_after(c->head, begin));
}

/* Hands on the part that waits, if there is one. */
static bool give_pending(cutter *c) {
    bool had = c->pending;
    c->pending = false;
    return !had || give(c, c->begin, c->end);
}

/* Hands on the part that waits, and lets another one wait. */
static bool wait(cutter *c, size_t begin, size_t end) {
    if (!give_pending(c)) return false;
    c->begin = begin;
    c->end = end;
    return c->pending = true;
}

/* Takes the next part. Whether it joins the part before depends on the behavior. */
static bool take(cutter *c, size_t begin, size_t end, bool match) {
    bool before = c->previous, joins = false;
    c->previous = match;
    switch (c->behavior) {
    case TG_CUT_REMOVED:
        return match || give(c, begin, end);
    case TG_CUT_ISOLATED:
        return give(c, begin, end);
    case TG_CUT_WITH_PREVIOUS:
        joins = match && !before;
        break;
    case TG_CUT_WITH_NEXT:
        joins = !match && before;
        break;
    case TG_CUT_CONTIGUOUS:
        joins = match == before;
        break;
    }
    if (!joins || !c->pending) return wait(c, begin, end);
    c->end = end;
    return true;
}

/* Finds the next match of a step. Returns 1, 0, or less after an error. */
static int find_next(tg_encoder *e, const tg_split_step *s, tg_span text, size_t from, size_t *begin, size_t *end) {
    if (s->pattern) return e->k->functions->find(s->pattern, e->matcher, text.at, text.n, from, begin, end);
    *begin = tg_find_text(text.at, text.n, from, s->sought);
    *end = *begin + s->sought.n;
    return *begin < text.n;
}

/* Cuts at matches. An empty match cuts too, unless another match has just ended there. */
static bool split_by_pattern(tg_encoder *e, int step, const tg_split_step *s, tg_span text, size_t head) {
    cutter c = {.e = e, .step = step + 1, .behavior = s->behavior, .text = text, .head = head};
    size_t done = 0, from = 0, begin, end;
    int found = 0;
    while (from <= text.n && (found = find_next(e, s, text, from, &begin, &end)) > 0) {
        bool repeats = begin == end && begin == done && done > 0;
        if (!repeats && done < begin && !take(&c, done, begin, s->invert)) return false;
        if (!repeats && !take(&c, begin, end, !s->invert)) return false;
        if (!repeats) done = end;
        from = end > begin ? end : end < text.n ? end + tg_char_length(text.at[end]) : text.n + 1;
    }
    if (found == -1) e->problem = too_difficult;
    if (found < 0 || (done < text.n && !take(&c, done, text.n, s->invert))) return false;
    return give_pending(&c);
}

/* Puts a space before text that does not begin with one. */
static bool add_space(tg_encoder *e, int step, tg_span text, size_t head) {
    tg_growing *g = e->texts + step;
    if (text.n && text.at[0] == ' ') return tg_cut_words(e, step + 1, text, head);
    g->n = 0;
    if (!tg_growing_add(g, " ", 1) || !tg_growing_add(g, text.at, text.n)) return false;
    return tg_cut_words(e, step + 1, (tg_span){g->at, (size_t)g->n}, head ? head + 1 : 0);
}

/* Writes text to g, with the mark in place of spaces, and with a mark before it if the step asks for that and there is
 * none. Sets *head to the length of what the head becomes. */
static bool add_marked(const tg_split_step *s, tg_span text, size_t *head, tg_growing *g) {
    bool has = text.n && (text.at[0] == ' ' || (text.n >= s->sought.n && !memcmp(text.at, s->sought.at, s->sought.n)));
    bool prepends = s->prepend == TG_PREPEND_ALWAYS || (s->prepend == TG_PREPEND_FIRST && *head);
    size_t of_text = *head;
    g->n = 0;
    if (prepends && !has && !tg_growing_add(g, s->sought.at, s->sought.n)) return false;
    if (of_text) *head += (size_t)g->n;
    for (size_t at = 0, end; at < text.n; at = end) {
        const char *space = memchr(text.at + at, ' ', text.n - at);
        end = space ? (size_t)(space - text.at) : text.n;
        if (!tg_growing_add(g, text.at + at, end - at)) return false;
        if (space && !tg_growing_add(g, s->sought.at, s->sought.n)) return false;
        if (space && end < of_text) *head += s->sought.n - 1;
        end += space != NULL;
    }
    return true;
}

/* Metaspace: spaces become a mark, and each mark may begin a part. */
static bool split_by_marks(tg_encoder *e, int step, const tg_split_step *s, tg_span text, size_t head) {
    tg_growing *g = e->texts + step;
    const tg_split_step marks = {.behavior = TG_CUT_WITH_NEXT, .sought = s->sought};
    if (!add_marked(s, text, &head, g)) return false;
    tg_span marked = {g->at, (size_t)g->n};
    return s->splits ? split_by_pattern(e, step, &marks, marked, head) : tg_cut_words(e, step + 1, marked, head);
}

/* Cuts before each mark that no merge joins to what is before it, except after another mark. This does not change the
 * ids. */
static bool split_before_marks(tg_encoder *e, int step, const tg_split_step *s, tg_span text, size_t head) {
    cutter c = {.e = e, .step = step + 1, .text = text, .head = head};
    size_t begin = 0;
    for (size_t at = 0; (at = tg_find_text(text.at, text.n, at, s->sought)) < text.n; at += s->sought.n) {
        bool after_mark = at >= s->sought.n && !memcmp(text.at + at - s->sought.n, s->sought.at, s->sought.n);
        if (at == 0 || after_mark || s->joins[(unsigned char)text.at[at - 1]]) continue;
        if (!give(&c, begin, at)) return false;
        begin = at;
    }
    return give(&c, begin, text.n);
}

bool tg_cut_words(tg_encoder *e, int step, tg_span text, size_t head) {
    if (step == e->k->n_split) return e->word(e, text);
    const tg_split_step *s = e->k->split + step;
    switch (s->kind) {
    case TG_SPLIT_PATTERN:
        return split_by_pattern(e, step, s, text, head);
    case TG_SPLIT_SPACE:
        return add_space(e, step, text, head);
    case TG_SPLIT_META:
        return split_by_marks(e, step, s, text, head);
    case TG_SPLIT_MARKS:
        return split_before_marks(e, step, s, text, head);
    }
    return false;
}
