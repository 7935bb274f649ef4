/* Decoding: ids to text, as a stream. A token passes through the steps of the decoder. Steps up to the one that
 * joins tokens see whole tokens; those after it see pieces of one text. */
#include "text/tokenizer.h"
#include "text/unicode.h"

enum { REPLACEMENT = 0xfffd };

/* What a step remembers between tokens. */
typedef struct decode_state {
    tg_growing text; /* FALLBACK and BYTES: bytes that may form characters; others: the token that the step makes */
    char cut[4];     /* BYTES: the beginning of a character */
    size_t n_cut;
    int64_t left; /* STRIP of the joined text: characters that may still be removed at its beginning */
    int64_t held; /* STRIP of the joined text: characters at its end that may be removed */
    bool begun;   /* there was a token */
} decode_state;

struct tg_decoder {
    const tg_tokenizer *k;
    bool skip_special;
    decode_state state[TG_MAX_STEPS];
    tg_growing out;
};

static bool pass(tg_decoder *d, int step, tg_span token);

/* ---- Steps ---- */

static bool replace(tg_decoder *d, int step, const tg_decode_step *s, tg_span token) {
    tg_growing *g = &d->state[step].text;
    size_t done = 0, at;
    if (tg_find_text(token.at, token.n, 0, s->sought) == token.n) return pass(d, step + 1, token);
    g->n = 0;
    for (; (at = tg_find_text(token.at, token.n, done, s->sought)) < token.n; done = at + s->sought.n)
        if (!tg_growing_add(g, token.at + done, at - done) || !tg_growing_add(g, s->content.at, s->content.n))
            return false;
    return tg_growing_add(g, token.at + done, token.n - done) && pass(d, step + 1, (tg_span){g->at, (size_t)g->n});
}

static bool is_text(tg_span bytes) {
    for (size_t at = 0, n, wrong; at < bytes.n; at += n)
        if (!(n = tg_char_check(bytes.at + at, bytes.n - at, &wrong))) return false;
    return true;
}

static bool pass_replacement(tg_decoder *d, int step) {
    char c[4];
    return pass(d, step, (tg_span){c, tg_char_write(c, REPLACEMENT)});
}

/* Passes on the bytes so far: as a token if they are text, else with a U+FFFD for each. */
static bool end_bytes(tg_decoder *d, int step) {
    tg_growing *g = &d->state[step].text;
    tg_span bytes = {g->at, (size_t)g->n};
    g->n = 0;
    if (!bytes.n || is_text(bytes)) return !bytes.n || pass(d, step + 1, bytes);
    for (size_t i = 0; i < bytes.n; i++)
        if (!pass_replacement(d, step + 1)) return false;
    return true;
}

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Returns the byte of a token <0x0A>; -1 if it is another token. */
static int byte_of(tg_span t) {
    if (t.n != 6 || memcmp(t.at, "<0x", 3) != 0 || t.at[5] != '>') return -1;
    if (t.at[3] == '+') return hex(t.at[4]); /* the library tokenizers reads a sign here */
    return hex(t.at[3]) < 0 || hex(t.at[4]) < 0 ? -1 : hex(t.at[3]) * 16 + hex(t.at[4]);
}

static bool fall_back(tg_decoder *d, int step, tg_span token) {
    int byte = byte_of(token);
    char c = (char)byte;
    if (byte >= 0) return tg_growing_add(&d->state[step].text, &c, 1);
    return end_bytes(d, step) && pass(d, step + 1, token);
}

/* Metaspace: replaces marks by spaces, or by nothing in the first token if the step drops them there. */
static bool unmark(tg_decoder *d, int step, const tg_decode_step *s, tg_span token) {
    decode_state *m = d->state + step;
    bool first = !m->begun;
    tg_decode_step as = *s;
    m->begun = true;
    as.content = (tg_span){" ", first && s->drops_first ? 0 : 1};
    return replace(d, step, &as, token);
}

static bool starts_with(tg_span text, tg_span with) { return text.n >= with.n && !memcmp(text.at, with.at, with.n); }

static bool ends_with(tg_span text, tg_span with) {
    return text.n >= with.n && !memcmp(text.at + text.n - with.n, with.at, with.n);
}

static tg_span strip_left(tg_span text, tg_span c, int64_t *most) {
    for (; *most > 0 && starts_with(text, c); (*most)--) text.at += c.n, text.n -= c.n;
    return text;
}

static bool strip_token(tg_decoder *d, int step, const tg_decode_step *s, tg_span token) {
    int64_t left = s->left;
    token = strip_left(token, s->sought, &left);
    for (int64_t i = 0; i < s->right && ends_with(token, s->sought); i++) token.n -= s->sought.n;
    return pass(d, step + 1, token);
}

/* Passes on characters that were held back. */
static bool pass_held(tg_decoder *d, int step, const tg_decode_step *s, int64_t n) {
    decode_state *m = d->state + step;
    for (; n > 0; n--, m->held--)
        if (!pass(d, step + 1, s->sought)) return false;
    return true;
}

/* Strips a piece of the joined text. What may be its end is held back. */
static bool strip_piece(tg_decoder *d, int step, const tg_decode_step *s, tg_span piece) {
    decode_state *m = d->state + step;
    if (!m->begun) m->left = s->left;
    if (!piece.n) return true;
    m->begun = true;
    piece = strip_left(piece, s->sought, &m->left);
    if (piece.n) m->left = 0;
    tg_span body = piece;
    int64_t tail = 0;
    for (; ends_with(body, s->sought); tail++) body.n -= s->sought.n;
    if (body.n && (!pass_held(d, step, s, m->held) || !pass(d, step + 1, body))) return false;
    m->held += tail;
    return pass_held(d, step, s, m->held - s->right);
}

/* ---- Bytes to characters ---- */

/* Passes on what is certain of the bytes in the step's text, and keeps an incomplete character at their end. */
static bool pass_bytes(tg_decoder *d, int step) {
    decode_state *m = d->state + step;
    tg_span bytes = {m->text.at, (size_t)m->text.n};
    size_t done = 0, at = 0, wrong = 0;
    for (size_t n; at < bytes.n; at += n) {
        n = tg_char_check(bytes.at + at, bytes.n - at, &wrong);
        if (!n && !wrong) break; /* the next token may complete it */
        if (n) continue;
        if (at > done && !pass(d, step + 1, (tg_span){bytes.at + done, at - done})) return false;
        if (!pass_replacement(d, step + 1)) return false;
        done = at + (n = wrong);
    }
    if (at > done && !pass(d, step + 1, (tg_span){bytes.at + done, at - done})) return false;
    m->n_cut = bytes.n - at;
    if (m->n_cut) memcpy(m->cut, bytes.at + at, m->n_cut);
    return true;
}

/* Byte-level: a token whose characters all stand for bytes is these bytes; any other is text. */
static bool unmap(tg_decoder *d, int step, tg_span token) {
    decode_state *m = d->state + step;
    bool good = true, mapped = true;
    m->text.n = 0;
    good = tg_growing_add(&m->text, m->cut, m->n_cut);
    for (size_t at = 0, n; at < token.n && good && mapped; at += n) {
        int byte = tg_char_byte(tg_char_at(token.at + at, &n));
        char c = (char)byte;
        mapped = byte >= 0;
        good = !mapped || tg_growing_add(&m->text, &c, 1);
    }
    if (!mapped) m->text.n = (int64_t)m->n_cut;
    return good && (mapped || tg_growing_add(&m->text, token.at, token.n)) && pass_bytes(d, step);
}

/* ---- The stream ---- */

static bool join_by_spaces(tg_decoder *d, int step, tg_span token) {
    decode_state *m = d->state + step;
    bool first = !m->begun;
    m->begun = true;
    return (first || pass(d, step + 1, (tg_span){" ", 1})) && pass(d, step + 1, token);
}

/* Hands a token, or a piece of the joined text, to a step; after the last step appends it to d->out. */
static bool pass(tg_decoder *d, int step, tg_span token) {
    if (step == d->k->n_decode) return tg_growing_add(&d->out, token.at, token.n);
    const tg_decode_step *s = d->k->decode + step;
    switch (s->kind) {
    case TG_DECODE_REPLACE:
        return replace(d, step, s, token);
    case TG_DECODE_FALLBACK:
        return fall_back(d, step, token);
    case TG_DECODE_META:
        return unmark(d, step, s, token);
    case TG_DECODE_STRIP:
        return s->joined ? strip_piece(d, step, s, token) : strip_token(d, step, s, token);
    case TG_DECODE_BYTES:
        return unmap(d, step, token);
    case TG_DECODE_FUSE:
        return pass(d, step + 1, token);
    case TG_DECODE_SPACES:
        return join_by_spaces(d, step, token);
    }
    return false;
}

/* Passes on the bytes that a step has kept back, drops what a step STRIP holds at the end of the text, and prepares the
 * step for a new text. */
static bool end_step(tg_decoder *d, int step) {
    decode_state *m = d->state + step;
    bool good = true;
    if (d->k->decode[step].kind == TG_DECODE_FALLBACK) good = end_bytes(d, step);
    if (m->n_cut) good = pass_replacement(d, step + 1);
    m->n_cut = 0;
    m->held = 0;
    m->begun = false;
    return good;
}

tg_decoder *tg_decoder_new(const tg_tokenizer *k, bool skip_special) {
    if (!k || tg_ctx_status(k->ctx) != TG_OK) return NULL;
    tg_decoder *d = calloc(1, sizeof *d);
    if (!d) return tg_fail(k->ctx, TG_ERR_MEMORY, "tg_decoder_new: no memory for a decoder"), NULL;
    d->k = k;
    d->skip_special = skip_special;
    return d;
}

/* Returns the text that the call has added. */
static const char *answer(tg_decoder *d, bool good, size_t *n) {
    if (n) *n = good ? (size_t)d->out.n : 0;
    return good ? d->out.at : NULL;
}

const char *tg_decoder_push(tg_decoder *d, int64_t id, size_t *n) {
    if (n) *n = 0;
    if (!d) return NULL;
    d->out.n = 0;
    bool good = tg_growing_add(&d->out, "", 0);
    bool known = id >= 0 && id < d->k->size && d->k->shown[id].at && !(d->skip_special && d->k->special[id]);
    return answer(d, good && (!known || pass(d, 0, d->k->shown[id])), n);
}

const char *tg_decoder_finish(tg_decoder *d, size_t *n) {
    if (n) *n = 0;
    if (!d) return NULL;
    d->out.n = 0;
    bool good = tg_growing_add(&d->out, "", 0);
    for (int i = 0; i < d->k->n_decode; i++) good = end_step(d, i) && good;
    return answer(d, good, n);
}

void tg_decoder_free(tg_decoder *d) {
    if (!d) return;
    for (int i = 0; i < TG_MAX_STEPS; i++) free(d->state[i].text.at);
    free(d->out.at);
    free(d);
}
