/* The threads that encode texts (encode_texts.h). Each takes the next text until there is none. */
#include <pthread.h>
#include <stdatomic.h>

#include "common/interrupts.h"
#include "common/program.h"
#include "data/encode_texts.h"

typedef struct texts {
    const tg_tokenizer *tokenizer;
    encode_text (*at)(const void *of, int i);
    const void *of;
    int n;
    atomic_int next;
    atomic_int wrong; /* the index of the first text that cannot be encoded; n: none */
} texts;

/* Encodes a text. Errors are recorded in `errors`. */
static bool encode(const texts *t, tg_ctx *errors, const encode_text *e) {
    const tg_encode_opts *o = TG_ENCODE(.special = e->special, .literal = e->literal, .errors = errors);
    e->ids->count = 0;
    return tg_tokenizer_encode(t->tokenizer, e->text, e->n, o, e->ids) == TG_OK;
}

static void note_wrong(texts *t, int i) {
    int before = atomic_load(&t->wrong);
    while (i < before && !atomic_compare_exchange_weak(&t->wrong, &before, i)) continue;
}

/* Encodes texts until there are none, one cannot be encoded, or there is an interrupt. Each thread has a context of its
 * own for errors. */
static void *encode_some(void *of) {
    texts *t = of;
    tg_ctx *errors = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    for (int i; (i = atomic_fetch_add(&t->next, 1)) < t->n && !interrupted_by();) {
        encode_text e = t->at(t->of, i);
        if (encode(t, errors, &e)) continue;
        note_wrong(t, i);
        break;
    }
    tg_ctx_free(errors);
    return NULL;
}

/* Prints why text i cannot be encoded: encodes it again, with errors in ctx. Returns false. */
static bool explain(const texts *t, tg_ctx *ctx, int i) {
    encode_text e = t->at(t->of, i);
    encode(t, ctx, &e);
    if (e.line) return fail("'%s' line %lld: %s", e.path, (long long)e.line, tg_ctx_message(ctx)), false;
    return fail("'%s': %s", e.path, tg_ctx_message(ctx)), false;
}

bool encode_texts(const tg_tokenizer *tokenizer, tg_ctx *ctx, int threads, int n,
                  encode_text (*at)(const void *of, int i), const void *of) {
    pthread_t thread[MOST_ENCODERS];
    texts t = {.tokenizer = tokenizer, .at = at, .of = of, .n = n};
    int started = 0, most = threads < n ? threads : n;
    atomic_store(&t.next, 0);
    atomic_store(&t.wrong, n);
    while (started + 1 < most && pthread_create(&thread[started], NULL, encode_some, &t) == 0) started++;
    encode_some(&t);
    while (started > 0) pthread_join(thread[--started], NULL);
    int wrong = atomic_load(&t.wrong);
    if (interrupted_by()) return false;
    return wrong == n || explain(&t, ctx, wrong);
}

void encode_trim(tg_ids *ids) {
    enum { MOST_KEPT = 1 << 12 };
    if (ids->capacity > MOST_KEPT) tg_ids_free(ids);
}
