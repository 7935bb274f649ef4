/* Writes token files from streams of text, JSONL or token ids. */
#include <stdlib.h>
#include <string.h>

#include "common/program.h"
#include "data/cache.h"
#include "data/jsonl.h"
#include "data/stream.h"

enum { CHUNK = 1 << 18, LONGEST = 256 << 20 }; /* bytes: of one read, and of the longest line */

bool cache_open(token_cache *c, tg_ctx *ctx, const char *dir, const char *name, encoder *e, int64_t vocab) {
    char *path = path_in(dir, name);
    *c = (token_cache){.ctx = ctx, .encoder = e, .vocab = vocab, .said = seconds_now()};
    if (path) c->writer = tg_token_writer_open(ctx, path, vocab > encoder_vocab(e) ? vocab : encoder_vocab(e));
    free(path);
    return c->writer || (check(ctx), false);
}

bool cache_close(token_cache *c, bool good) {
    if (good && c->writer)
        good = tg_token_writer_commit(c->writer) == TG_OK || check(c->ctx);
    else
        tg_token_writer_abandon(c->writer);
    *c = (token_cache){0};
    return good;
}

/* Prints how much has been read, at most once every few seconds. */
static void say_progress(token_cache *c, const data_stream *s, const char *path) {
    if (!is_time_to_say(&c->said)) return;
    say("reading '%s': %.1f MB, %lld tokens\n", path, 1e-6 * (double)stream_bytes(s),
        (long long)tg_token_writer_count(c->writer));
    flush_or_go_on();
}

/* ---- Text: one document ---- */

/* Returns where a text of n bytes may be cut: the length of its longest part that ends with a single line break, with
 * visible characters before and after it. The known tokenizers have no token that crosses such a place. If there is
 * none, the cut is between two characters. */
static size_t cut_of(const char *text, size_t n) {
    for (size_t i = n - 1; i > 2; i--) {
        unsigned char before = (unsigned char)text[text[i - 2] == '\r' ? i - 3 : i - 2];
        if (text[i - 1] == '\n' && (unsigned char)text[i] > ' ' && before > ' ') return i;
    }
    size_t end = n;
    while (end > 1 && end + 4 > n && ((unsigned char)text[end - 1] & 0xc0) == 0x80) end--;
    return end > 1 && (unsigned char)text[end - 1] >= 0xc0 ? end - 1 : n;
}

/* Adds a text as one document. The bytes after the last cut are kept, and encoded together with those that follow. */
static bool add_text(token_cache *c, data_stream *s, const char *path, char *chunk) {
    int64_t n;
    size_t kept = 0;
    encoder_at(c->encoder, path, 0);
    while ((n = stream_read(s, chunk + kept, CHUNK - kept)) > 0) {
        size_t all = kept + (size_t)n;
        bool whole = all < CHUNK || encoder_is_bytes(c->encoder);
        size_t cut = whole ? all : cut_of(chunk, all);
        if (!encoder_put(c->encoder, c->writer, chunk, cut, false)) return false;
        kept = all - cut;
        memmove(chunk, chunk + cut, kept);
        say_progress(c, s, path);
    }
    if (n < 0 || !encoder_put(c->encoder, c->writer, chunk, kept, false)) return false;
    return encoder_end_file(c->encoder, c->writer);
}

/* ---- Token ids: one document ---- */

static bool add_ids(token_cache *c, data_stream *s, const char *path, char *chunk, size_t width) {
    int64_t n, ids[CHUNK / 64];
    while ((n = stream_read(s, chunk, width * (sizeof ids / sizeof *ids))) > 0) {
        if (n % (int64_t)width)
            return fail("'%s' has %lld bytes after its last token of %zu bytes", path, (long long)(n % (int64_t)width),
                        width),
                   false;
        for (int64_t i = 0; i < n / (int64_t)width; i++) {
            uint32_t v = 0;
            memcpy(&v, chunk + (size_t)i * width, width);
            ids[i] = v;
            if (c->vocab && v >= c->vocab)
                return fail("'%s' has token %lld, expected less than %lld (the vocabulary)", path, (long long)v,
                            (long long)c->vocab),
                       false;
        }
        tg_token_writer_add(c->writer, ids, n / (int64_t)width, false);
        if (!check(c->ctx)) return false;
        say_progress(c, s, path);
    }
    tg_token_writer_end_document(c->writer);
    return n == 0 && check(c->ctx);
}

/* ---- JSONL: a document for each line ---- */

/* A line that is being read. */
typedef struct line {
    char *text;
    size_t n, capacity;
} line;

static bool append(line *l, const char *text, size_t n, jsonl_place at) {
    if (l->n + n > LONGEST)
        return fail("'%s' line %lld has more than %d MiB; is it JSONL?", at.path, (long long)at.line, LONGEST >> 20),
               false;
    if (l->n + n > l->capacity) {
        size_t capacity = 2 * (l->n + n) + 4096;
        char *more = realloc(l->text, capacity);
        if (!more) return fail("no memory for line %lld of '%s'", (long long)at.line, at.path), false;
        l->text = more;
        l->capacity = capacity;
    }
    memcpy(l->text + l->n, text, n);
    l->n += n;
    return true;
}

/* Adds the document of a line that has been read as a whole, and begins the next one. */
static bool end_line(token_cache *c, line *l, jsonl_place *at) {
    bool good = append(l, "", 1, *at) && jsonl_add(c->encoder, c->writer, l->text, l->n - 1, *at);
    at->line++;
    l->n = 0;
    return good;
}

static bool add_lines(token_cache *c, line *l, const char *chunk, size_t n, jsonl_place *at) {
    for (const char *end = chunk + n, *stop; chunk < end; chunk = stop + 1) {
        stop = memchr(chunk, '\n', (size_t)(end - chunk));
        if (!stop) return append(l, chunk, (size_t)(end - chunk), *at);
        if (!append(l, chunk, (size_t)(stop - chunk), *at) || !end_line(c, l, at)) return false;
    }
    return true;
}

static bool add_jsonl(token_cache *c, data_stream *s, const char *path, char *chunk) {
    int64_t n = 0;
    line l = {0};
    jsonl_place at = {path, 1};
    bool good = true;
    while (good && (n = stream_read(s, chunk, CHUNK)) > 0) {
        good = add_lines(c, &l, chunk, (size_t)n, &at);
        say_progress(c, s, path);
    }
    good = good && n == 0 && (!l.n || end_line(c, &l, &at));
    free(l.text);
    return good;
}

/* ---- Any file ---- */

bool cache_add(token_cache *c, const char *path, data_format format, int64_t *bytes) {
    const char *name = strcmp(path, "-") ? path : "standard input";
    data_stream *s = stream_open(path);
    char *chunk = s ? malloc(CHUNK) : NULL;
    bool good = chunk || (s && (fail("no memory to read '%s'", name), false));
    if (good && format == DATA_TEXT)
        good = add_text(c, s, name, chunk);
    else if (good && format == DATA_JSONL)
        good = add_jsonl(c, s, name, chunk);
    else if (good)
        good = add_ids(c, s, name, chunk, format == DATA_U16 ? 2 : 4);
    if (good) good = encoder_flush(c->encoder, c->writer);
    if (s) *bytes += stream_bytes(s);
    free(chunk);
    stream_close(s);
    return good;
}
