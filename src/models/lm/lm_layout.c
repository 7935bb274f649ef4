/* Reads the layout of a model, a text such as "E t*3|t*4|t m L", which says what each part of a pipeline has
 * (tg_lm_config.layout). E is the embedding, t a layer, m a depth of multi-token prediction, and L the head; "|" begins
 * the next part. */
#include <stdio.h>
#include <stdlib.h>

#include "models/lm/lm.h"

/* The state of reading a layout. */
typedef struct reading {
    const char *at;         /* the rest of the text */
    int part;               /* number of the part that is being read */
    int64_t layers, depths; /* numbers of t and m so far */
    int items;              /* number of items of this part so far */
    bool head;              /* whether L has been read */
    char problem[96];       /* the first thing that is wrong with the layout; "": nothing */
} reading;

/* ---- The layout that error messages suggest ---- */

/* Returns the number of layers that part i of a balanced layout has. If there are fewer layers than parts, each part
 * between the first and the last one has one layer, the first part has the layer that is left, if any, and the last
 * part has none: these two parts also have the embedding and the head. */
static int64_t balanced(int64_t layers, int parts, int i) {
    if (layers >= parts) return layers / parts + (i < layers % parts);
    int64_t rest = layers - (parts - 2);
    return i == 0 ? rest : i < parts - 1;
}

/* Writes text at buf[*at], and moves *at after it. Returns false, and writes nothing, if it does not fit. */
static bool put_text(char *buf, size_t size, size_t *at, const char *text) {
    size_t n = strlen(text);
    if (*at + n >= size) return false;
    memcpy(buf + *at, text, n + 1);
    *at += n;
    return true;
}

/* Does the same with n items of a kind, such as "t*3"; with nothing if n is 0. */
static bool put(char *buf, size_t size, size_t *at, const char *item, int64_t n) {
    char text[32];
    const char *gap = *at && buf[*at - 1] != '|' ? " " : "";
    if (n == 0) return true;
    if (n == 1) snprintf(text, sizeof text, "%s%s", gap, item);
    else snprintf(text, sizeof text, "%s%s*%lld", gap, item, (long long)n);
    return put_text(buf, size, at, text);
}

/* Writes a balanced layout of the model with the given number of parts; "" if it has too few layers for them. Returns
 * false if buf has only the beginning of the layout. */
static bool write_balanced(const tg_lm_config *c, int parts, char *buf, size_t size) {
    size_t at = 0;
    bool fits = true;
    buf[0] = 0;
    for (int i = 0; i < parts && fits && c->layers >= parts - 2; i++) {
        fits = i ? put_text(buf, size, &at, "|") : put(buf, size, &at, "E", 1);
        fits = fits && put(buf, size, &at, "t", balanced(c->layers, parts, i));
        if (i == parts - 1) fits = fits && put(buf, size, &at, "m", c->mtp) && put(buf, size, &at, "L", 1);
    }
    return fits;
}

/* Fails with the problem and a layout that is valid, or the beginning of one that is long. */
static tg_status suggest(tg_ctx *ctx, const tg_lm_config *c, const char *who, int parts, const char *problem) {
    char would[256];
    bool whole = write_balanced(c, parts, would, sizeof would);
    if (!*would)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s; %s cannot fill %s: use fewer parts", who, problem,
                       tg_count(c->layers, "layer").text, tg_count(parts, "part").text);
    return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s; a layout that would do %s \"%s\"", who, problem,
                   whole ? "is" : "begins with", would);
}

/* ---- Reading ---- */

/* Records a problem, in which %lld stands for n, unless there is one already. Returns false. */
static bool wrong(reading *r, const char *format, long long n) {
    if (!*r->problem) snprintf(r->problem, sizeof r->problem, format, n);
    return false;
}

/* Fails because the text has n of something that is an option of the config, which is another number. */
static bool wrong_count(reading *r, int64_t n, const char *what, const char *item, const char *option) {
    if (!*r->problem)
        snprintf(r->problem, sizeof r->problem, "has %s%s, which is not %s", tg_count(n, what).text, item, option);
    return false;
}

/* Reads "*n" after an item; without it *n is 1. */
static bool read_times(reading *r, int64_t *n) {
    char *end;
    *n = 1;
    if (*r->at != '*') return true;
    long long times = strtoll(r->at + 1, &end, 10);
    if (end == r->at + 1 || r->at[1] < '0' || r->at[1] > '9' || times < 1 || times > (long long)1 << 40)
        return wrong(r, "has a \"*\" without a number from 1 to 2^40 after it", 0);
    r->at = end;
    *n = times;
    return true;
}

/* Counts n items of a kind. Fails if an item is out of order: E must come first, then t, then m, then L. */
static bool note(reading *r, char kind, int64_t n) {
    bool first = r->part == 0 && r->items == 0;
    if (r->head) return wrong(r, "goes on after L, which must be the last item", 0);
    if (kind == 'E' ? !first : first) return wrong(r, "must begin with E, and have it once", 0);
    if (kind == 't' && r->depths) return wrong(r, "has a layer (t) after m", 0);
    if ((kind == 'E' || kind == 'L') && n > 1) return wrong(r, "has E or L more than once", 0);
    r->head |= kind == 'L';
    r->layers += kind == 't' ? n : 0;
    r->depths += kind == 'm' ? n : 0;
    r->items++;
    return true;
}

/* Reads one item. */
static bool read_item(reading *r) {
    int64_t n;
    char kind = *r->at++;
    if (strchr("EtmL", kind)) return read_times(r, &n) && note(r, kind, n);
    if (!*r->problem)
        snprintf(r->problem, sizeof r->problem, "has the character '%c' where E, t, m, L, | or a blank is expected",
                 kind);
    return false;
}

/* Ends a part, and begins the next one. */
static bool next_part(reading *r) {
    if (!r->items) return wrong(r, "has nothing in part %lld", r->part);
    if (r->depths) return wrong(r, "has m before the last part, but m needs the head (L)", 0);
    r->part++;
    r->items = 0;
    r->at++;
    return true;
}

/* Reads a whole layout. Sets out->first and out->layers to the layers of part number out->part. */
static bool read_layout(reading *r, tg_lm_stage *out) {
    for (bool good = true; good && *r->at;) {
        int part = r->part;
        int64_t before = r->layers;
        if (*r->at == ' ')
            r->at++;
        else
            good = *r->at == '|' ? next_part(r) : read_item(r);
        if (!good) return false;
        if (part == out->part && r->layers > before) {
            if (!out->layers) out->first = before;
            out->layers += r->layers - before;
        }
    }
    return true;
}

/* ---- The stage ---- */

static int count_parts(const char *layout) {
    int n = 1;
    for (const char *s = layout; *s; s++) n += *s == '|';
    return n;
}

/* Checks the numbers of parts, layers and depths of the whole layout against the config. */
static bool check_counts(reading *r, const tg_lm_config *c, int parts) {
    if (!r->items) return wrong(r, "has nothing in part %lld", r->part);
    if (!r->head) return wrong(r, "must end with L", 0);
    if (r->part + 1 != parts) return wrong_count(r, r->part + 1, "part", "", "pp * vp");
    if (r->layers != c->layers) return wrong_count(r, r->layers, "layer", " (t)", "`layers`");
    if (r->depths != c->mtp) return wrong_count(r, r->depths, "depth", " (m)", "`mtp`");
    return true;
}

static tg_status from_text(tg_ctx *ctx, const tg_lm_config *c, const char *who, tg_lm_stage *out) {
    reading r = {.at = c->layout};
    char problem[256];
    if (read_layout(&r, out) && check_counts(&r, c, out->parts)) return TG_OK;
    snprintf(problem, sizeof problem, "layout is \"%.100s\", which %s", c->layout, r.problem);
    return suggest(ctx, c, who, out->parts, problem);
}

static tg_status equal_parts(tg_ctx *ctx, const tg_lm_config *c, const char *who, tg_lm_stage *out) {
    char problem[96];
    out->layers = c->layers / out->parts;
    out->first = out->part * out->layers;
    if (c->layers % out->parts == 0) return TG_OK;
    snprintf(problem, sizeof problem, "layers is %lld, which %d parts do not divide", (long long)c->layers, out->parts);
    return suggest(ctx, c, who, out->parts, problem);
}

tg_status tg_lm_stage_of(tg_ctx *ctx, const tg_lm_config *c, const char *who, tg_lm_stage *out) {
    int pp = tg_parallel_size(c->parallel, TG_PP);
    int parts = c->parallel || !c->layout ? pp * tg_parallel_vp(c->parallel) : count_parts(c->layout);
    if (c->chunk < 0 || c->chunk >= parts / pp)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: chunk is %d, expected 0 to %d", who, c->chunk, parts / pp - 1);
    *out = (tg_lm_stage){.part = c->chunk * pp + tg_parallel_rank(c->parallel, TG_PP), .parts = parts};
    out->embedding = out->part == 0;
    out->head = out->part == parts - 1;
    return c->layout ? from_text(ctx, c, who, out) : equal_parts(ctx, c, who, out);
}
