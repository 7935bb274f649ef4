/* Opens the files of a plan as one stream of tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/program.h"
#include "data/corpus.h"

static bool no_memory(void) { return fail("no memory to open the data"), false; }

/* Returns whether a path leads to the same file as when the plan was made. `whole` is the absolute path of that file. A
 * relative path leads elsewhere if the current directory is another one. */
static bool leads_there(const char *path, const char *whole) {
    char *now = realpath(path, NULL);
    bool same = now && !strcmp(now, whole);
    free(now);
    return same;
}

/* Opens one part of a source; NULL after printing what is wrong. */
static tg_tokens *open_part(tg_ctx *ctx, const corpus_options *o, const json_t *part) {
    const char *path = json_string_value(json_object_get(part, "path"));
    bool cached = json_is_true(json_object_get(part, "cached"));
    const char *before = json_string_value(json_object_get(part, "whole"));
    if (path && before && !leads_there(path, before)) path = before;
    char *whole = cached && path ? path_in(o->cache, path) : NULL;
    int64_t format = json_integer_value(json_object_get(part, "format"));
    tg_tokens *t = NULL;
    if (path && (whole || !cached)) t = tg_tokens_open(ctx, cached ? whole : path, (tg_token_format)format, o->vocab);
    free(whole);
    if (t || !check(ctx)) return t;
    return fail("'%s/data.json' has an entry that is not a part of the data; remove the file to read the data again",
                o->cache),
           NULL;
}

/* The parts that have been opened. */
typedef struct parts {
    tg_tokens **at;
    int n;
} parts;

static bool open_source(corpus *c, tg_ctx *ctx, const corpus_options *o, const json_t *from, parts *all) {
    corpus_source *s = &c->source[c->n++];
    const json_t *list = json_object_get(from, "parts");
    *s = (corpus_source){
        .name = json_string_value(json_object_get(from, "name")),
        .weight = json_number_value(json_object_get(from, "weight")),
        .validation = json_is_true(json_object_get(from, "validation")),
        .files = json_integer_value(json_object_get(from, "files")),
        .bytes = json_integer_value(json_object_get(from, "bytes")),
        .first = c->n > 1 ? s[-1].first + s[-1].count : 0,
    };
    tg_tokens **more = realloc(all->at, ((size_t)all->n + json_array_size(list) + 1) * sizeof *more);
    if (!more) return no_memory();
    all->at = more;
    for (size_t i = 0; i < json_array_size(list); i++) {
        tg_tokens *t = open_part(ctx, o, json_array_get(list, i));
        if (!t) return false;
        all->at[all->n++] = t;
        s->count += tg_tokens_count(t);
        s->documents += tg_tokens_documents(t);
    }
    return true;
}

/* Scales the weights of all sources so that those of training add up to 1. If the sources of training have no weights,
 * all weights become 1. They are first divided by a power of two, which changes no digit, so that their sum is
 * finite. */
static void divide_weights(corpus *c) {
    double sum = 0, most = 0;
    int exponent;
    for (int i = 0; i < c->n; i++)
        if (!c->source[i].validation) most = fmax(most, c->source[i].weight);
    frexp(most, &exponent);
    for (int i = 0; i < c->n; i++) c->source[i].weight = ldexp(c->source[i].weight, -exponent);
    for (int i = 0; i < c->n; i++) sum += c->source[i].validation ? 0 : c->source[i].weight;
    for (int i = 0; i < c->n; i++) c->source[i].weight = sum > 0 ? c->source[i].weight / sum : 1;
}

/* Makes one stream of the parts. */
static bool join(corpus *c, tg_ctx *ctx, parts *all) {
    c->tokens = all->n == 1 ? all->at[0] : tg_tokens_join(ctx, all->at, all->n);
    all->n = 0;
    return check(ctx);
}

bool corpus_open(corpus *c, tg_ctx *ctx, const corpus_options *o, const json_t *plan) {
    const json_t *sources = json_object_get(plan, "sources");
    parts all = {0};
    *c = (corpus){.is_bytes = corpus_is_bytes(plan)};
    c->source = calloc(json_array_size(sources) + 1, sizeof *c->source);
    bool good = c->source || no_memory();
    for (size_t i = 0; good && i < json_array_size(sources); i++)
        good = open_source(c, ctx, o, json_array_get(sources, i), &all);
    if (good) divide_weights(c);
    if (good && all.n) good = join(c, ctx, &all);
    for (int i = 0; i < all.n; i++) tg_tokens_close(all.at[i]);
    free(all.at);
    return good;
}

void corpus_close(corpus *c) {
    tg_tokens_close(c->tokens);
    free(c->source);
    *c = (corpus){0};
}
