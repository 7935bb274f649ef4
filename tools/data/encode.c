/* Collects texts until there are many, encodes them (encode_texts.h), and appends their ids to a dataset in the order
 * of the texts. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tapegrad/tokenizer.h>

#include "common/program.h"
#include "data/encode.h"
#include "data/encode_texts.h"

/* Limits of the texts that wait, and of threads. */
enum { MOST_BYTES = 8 << 20, MOST_PIECES = 1 << 14, MOST_THREADS = 64 };

/* A text that waits, or the end of a document after it. */
typedef struct piece {
    size_t at, n; /* in encoder.text */
    const char *path;
    int64_t line;
    bool context;      /* its tokens are not predicted */
    bool begins, ends; /* it is the first piece of a document that no template made; it is the end of one */
    bool markup;       /* a template has made the text, with its special tokens */
    tg_ids ids;
} piece;

struct encoder {
    tg_ctx *ctx;
    tg_tokenizer *tokenizer;   /* NULL: bytes */
    int64_t vocab, begin, end; /* begin, end: the ids that begin and end a document; -1: none */
    bool open, markup;         /* the document has a piece; the next text is a template's */
    tg_template *template;     /* the tokenizer's; NULL: not made yet */
    const char *path;          /* where the next text comes from (encoder_at) */
    int64_t line;
    char *text; /* of the pieces: `used` of `room` bytes */
    size_t used, room;
    piece *pieces;
    int n, capacity;
    int64_t buffer[1 << 13]; /* bytes as tokens, of put_bytes */
};

/* ---- Making ---- */

/* Returns the id that the tokenizer puts before each text; -1: none. */
static int64_t begin_of(const tg_tokenizer *k) {
    tg_ids ids = {0};
    tg_tokenizer_encode(k, "", 0, TG_ENCODE(.special = true), &ids);
    int64_t begin = ids.count && ids.ids[0] == tg_tokenizer_bos(k) ? ids.ids[0] : -1;
    tg_ids_free(&ids);
    return begin;
}

encoder *encoder_new(tg_ctx *ctx, const char *tokenizer) {
    encoder *e = calloc(1, sizeof *e);
    if (!e) return fail("no memory to encode text"), NULL;
    e->ctx = ctx;
    e->vocab = 256;
    e->begin = e->end = -1;
    if (!tokenizer) return e;
    e->tokenizer = tg_tokenizer_load(ctx, tokenizer);
    if (!check(ctx)) return encoder_free(e), NULL;
    e->vocab = tg_tokenizer_size(e->tokenizer);
    e->begin = begin_of(e->tokenizer);
    tg_tokenizer_ends(e->tokenizer, &e->end, 1);
    return e;
}

void encoder_free(encoder *e) {
    if (!e) return;
    for (int i = 0; i < e->capacity; i++) tg_ids_free(&e->pieces[i].ids);
    free(e->pieces);
    free(e->text);
    tg_template_free(e->template);
    tg_tokenizer_free(e->tokenizer);
    free(e);
}

int64_t encoder_vocab(const encoder *e) { return e->vocab; }
bool encoder_is_bytes(const encoder *e) { return !e->tokenizer; }

void encoder_at(encoder *e, const char *path, int64_t line) {
    e->path = path;
    e->line = line;
}

/* ---- Bytes ---- */

static bool put_bytes(encoder *e, tg_token_writer *to, const char *text, size_t n, bool context) {
    const size_t most = sizeof e->buffer / sizeof *e->buffer;
    while (n > 0) {
        size_t here = n < most ? n : most;
        for (size_t i = 0; i < here; i++) e->buffer[i] = (unsigned char)text[i];
        if (tg_token_writer_add(to, e->buffer, (int64_t)here, context) != TG_OK) return check(e->ctx);
        text += here;
        n -= here;
    }
    return true;
}

/* ---- Texts that wait ---- */

static bool no_memory(const encoder *e) { return fail("no memory for the text of '%s'", e->path), false; }

static bool make_room(encoder *e, size_t n) {
    if (e->n == e->capacity) {
        int capacity = 2 * e->capacity + 256;
        piece *more = realloc(e->pieces, (size_t)capacity * sizeof *more);
        if (!more) return no_memory(e);
        memset(more + e->capacity, 0, (size_t)(capacity - e->capacity) * sizeof *more);
        e->pieces = more;
        e->capacity = capacity;
    }
    if (e->used + n <= e->room) return true;
    size_t room = 2 * (e->used + n);
    char *more = realloc(e->text, room);
    if (!more) return no_memory(e);
    e->text = more;
    e->room = room;
    return true;
}

static bool wait_for(encoder *e, const char *text, size_t n, bool context) {
    if (!make_room(e, n)) return false;
    piece *p = &e->pieces[e->n++];
    tg_ids ids = p->ids; /* its memory is used again */
    ids.count = 0;
    *p = (piece){e->used, n, e->path, e->line, context, !e->open && !e->markup, false, e->markup, ids};
    if (n) memcpy(e->text + e->used, text, n);
    e->used += n;
    e->open = true;
    return true;
}

bool encoder_put(encoder *e, tg_token_writer *to, const char *text, size_t n, bool context) {
    if (!e->tokenizer) return put_bytes(e, to, text, n, context);
    if (n && !wait_for(e, text, n, context)) return false;
    return (e->used < MOST_BYTES && e->n < MOST_PIECES) || encoder_flush(e, to);
}

bool encoder_end_file(encoder *e, tg_token_writer *to) {
    if (!e->tokenizer) return tg_token_writer_end_document(to) == TG_OK || check(e->ctx);
    if (!e->open) return true;
    if (!wait_for(e, "", 0, false)) return false;
    e->pieces[e->n - 1].ends = true;
    e->open = false;
    return true;
}

bool encoder_end(encoder *e, tg_token_writer *to, char last) {
    return (e->end >= 0 || last == '\n' || encoder_put(e, to, "\n", 1, false)) && encoder_end_file(e, to);
}

/* ---- Conversations ---- */

/* Makes the template. Returns NULL, or what is wrong. */
static const char *open_template(encoder *e) {
    const char *source = e->tokenizer ? tg_tokenizer_chat_template(e->tokenizer) : NULL;
    if (e->template) return NULL;
    if (!source) return "chat \"messages\" need a tokenizer with a chat template (--tokenizer, or --init)";
    e->template = tg_template_new(e->ctx, source, "the tokenizer's chat template");
    return e->template ? NULL : tg_ctx_message(e->ctx);
}

const char *encoder_render(encoder *e, const char *messages, const char *tools, bool prompt, tg_rendered *out) {
    const char *wrong = open_template(e);
    if (wrong) return wrong;
    const tg_chat_opts *o = TG_CHAT(.generation_prompt = prompt, .tools = tools,
                                    .bos = tg_tokenizer_token(e->tokenizer, tg_tokenizer_bos(e->tokenizer)),
                                    .eos = tg_tokenizer_token(e->tokenizer, e->end));
    return tg_chat_render(e->template, messages, o, out) == TG_OK ? NULL : tg_ctx_message(e->ctx);
}

bool encoder_put_markup(encoder *e, tg_token_writer *to, const char *text, size_t n, bool context) {
    e->markup = true;
    bool good = encoder_put(e, to, text, n, context);
    e->markup = false;
    return good;
}

bool encoder_end_markup(encoder *e, tg_token_writer *to) {
    e->markup = true;
    bool good = encoder_end_file(e, to);
    e->markup = false;
    return good;
}

/* ---- Encoding ---- */

static encode_text text_of_piece(const void *of, int i) {
    const encoder *e = of;
    piece *p = &e->pieces[i];
    return (encode_text){.text = e->text + p->at, .n = p->n, .path = p->path, .line = p->line, .literal = !p->markup,
                         .ids = &p->ids};
}

static void write_piece(const encoder *e, tg_token_writer *to, const piece *p) {
    if (p->begins && e->begin >= 0) tg_token_writer_add(to, &e->begin, 1, p->context);
    tg_token_writer_add(to, p->ids.ids, p->ids.count, p->context);
    if (p->ends && !p->markup && e->end >= 0) tg_token_writer_add(to, &e->end, 1, false);
    if (p->ends) tg_token_writer_end_document(to);
}

bool encoder_flush(encoder *e, tg_token_writer *to) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = cores > MOST_THREADS ? MOST_THREADS : (int)cores;
    if (!encode_texts(e->tokenizer, e->ctx, threads, e->n, text_of_piece, e)) return false;
    for (int i = 0; i < e->n; i++) {
        write_piece(e, to, &e->pieces[i]);
        encode_trim(&e->pieces[i].ids);
    }
    e->n = 0;
    e->used = 0;
    return check(e->ctx);
}
