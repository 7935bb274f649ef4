/* Reads documents from files, line by line or as a whole. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/program.h"
#include "common/text.h"
#include "data/stream.h"
#include "data/documents.h"

enum { CHUNK = 1 << 18 }; /* bytes that are read at once */

struct documents {
    const names *files;
    document_kind kind;
    const char *field;
    int file; /* the number of the next file */
    data_stream *stream;
    const char *path;   /* of the file that is open */
    bool lines, jsonl;  /* that file is read line by line; it is JSONL */
    int64_t line, done; /* the number of the last line; bytes of files that have been closed */
    size_t at, filled;  /* of chunk */
    char chunk[CHUNK];
};

documents *documents_open(const names *files, document_kind kind, const char *field) {
    documents *d = calloc(1, sizeof *d);
    if (!d) return fail("no memory to read documents"), NULL;
    d->files = files;
    d->kind = kind;
    d->field = field;
    return d;
}

void documents_close(documents *d) {
    if (d) stream_close(d->stream);
    free(d);
}

int64_t documents_bytes(const documents *d) { return d->done + (d->stream ? stream_bytes(d->stream) : 0); }

/* ---- Files ---- */

bool is_jsonl(const char *path) {
    static const char *const endings[] = {".jsonl",  ".jsonl.gz",  ".jsonl.zst",
                                          ".ndjson", ".ndjson.gz", ".ndjson.zst"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (text_ends_with(path, endings[i])) return true;
    return false;
}

static bool reads_jsonl(document_kind kind, const char *path) {
    bool by_name = kind == DOCUMENTS_AUTO || kind == DOCUMENTS_BROKEN;
    return kind == DOCUMENTS_JSONL || (by_name && is_jsonl(path));
}

bool documents_have_field(const names *files, document_kind kind) {
    for (int i = 0; i < files->n; i++)
        if (reads_jsonl(kind, files->at[i])) return true;
    return false;
}

static bool open_next(documents *d) {
    const char *path = d->files->at[d->file++];
    d->stream = stream_open(path);
    d->path = strcmp(path, "-") ? path : "standard input";
    d->jsonl = reads_jsonl(d->kind, path);
    d->lines = d->jsonl || d->kind == DOCUMENTS_LINE || d->kind == DOCUMENTS_BROKEN;
    d->line = 0;
    d->at = d->filled = 0;
    return d->stream != NULL;
}

static void close_file(documents *d) {
    d->done += stream_bytes(d->stream);
    stream_close(d->stream);
    d->stream = NULL;
}

/* Reads more of the file. Returns 1, 0 at its end, or -1 after printing what is wrong. */
static int refill(documents *d) {
    int64_t n = stream_read(d->stream, d->chunk, CHUNK);
    d->at = 0;
    d->filled = n > 0 ? (size_t)n : 0;
    return n > 0 ? 1 : (int)n;
}

/* ---- Text ---- */

static bool append(documents *d, document *out, size_t *capacity, const char *text, size_t n) {
    if (out->n + n + 1 > *capacity) { /* with room for a line break */
        size_t more = 2 * (out->n + n) + 64;
        char *grown = realloc(out->text, more);
        if (!grown) return fail("no memory for a document of '%s'", d->path), false;
        out->text = grown;
        *capacity = more;
    }
    memcpy(out->text + out->n, text, n);
    out->n += n;
    return true;
}

/* Reads up to the end of the line, without its line break, or of the file. Sets *ended if there was a line break.
 * Returns 1, or -1 after printing what is wrong. */
static int read_piece(documents *d, document *out, bool *ended) {
    size_t capacity = 0;
    int status = 1;
    *ended = false;
    while (!*ended && (d->at < d->filled || (status = refill(d)) > 0)) {
        const char *begin = d->chunk + d->at, *stop = NULL;
        if (d->lines) stop = memchr(begin, '\n', d->filled - d->at);
        size_t n = stop ? (size_t)(stop - begin) : d->filled - d->at;
        if (!append(d, out, &capacity, begin, n)) return -1;
        d->at += n + (stop != NULL);
        *ended = stop != NULL;
    }
    return status < 0 ? -1 : 1;
}

/* Returns the length of the byte order mark with which the line begins, if it is the first one of its file. */
static size_t mark_of(const documents *d, const document *line) {
    return d->line == 1 ? text_mark(line->text, line->n) : 0;
}

/* Replaces a line of JSONL by the text of its field. */
static bool take_text(const documents *d, document *out) {
    json_error_t error;
    size_t mark = mark_of(d, out);
    json_t *object = json_loadb(out->text + mark, out->n - mark, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    const json_t *text = json_object_get(object, d->field);
    char *copy = json_is_string(text) ? malloc(json_string_length(text) + 1) : NULL;
    bool good = copy != NULL;
    if (!object)
        fail("'%s' line %lld: not JSON: %s", d->path, (long long)d->line, error.text);
    else if (!json_is_string(text))
        fail("'%s' line %lld: expected an object with the text \"%s\"; --field gives another key", d->path,
             (long long)d->line, d->field);
    else if (!good)
        fail("no memory for line %lld of '%s'", (long long)d->line, d->path);
    if (good) {
        out->n = json_string_length(text);
        memcpy(copy, json_string_value(text), out->n);
        free(out->text);
        out->text = copy;
    }
    json_decref(object);
    return good;
}

/* Returns whether a line has only spaces, tabs and carriage returns, after a byte order mark. */
static bool is_blank(const documents *d, const document *line) {
    size_t i = mark_of(d, line);
    while (i < line->n && line->text[i] && strchr(" \t\r", line->text[i])) i++;
    return i == line->n;
}

/* Reads a document of the open file. Returns 1, 0 at the end of the file, or -1. */
static int read_document(documents *d, document *out) {
    bool ended;
    if (read_piece(d, out, &ended) < 0) return -1;
    if (!out->n && !ended) return 0;
    if (d->lines) out->line = ++d->line;
    if (d->jsonl && is_blank(d, out)) out->n = 0;
    if (d->jsonl) return !out->n || take_text(d, out) ? 1 : -1;
    if (ended && d->kind == DOCUMENTS_BROKEN) out->text[out->n++] = '\n'; /* there is room for it */
    return 1;
}

int documents_next(documents *d, document *out) {
    for (;;) {
        *out = (document){0};
        if (!d->stream && d->file == d->files->n) return 0;
        if (!d->stream && !open_next(d)) return -1;
        int status = read_document(d, out);
        out->path = d->path;
        if (status > 0 && out->n) return 1;
        free(out->text);
        if (status < 0) return -1;
        if (status == 0) close_file(d);
    }
}
