/* tg_shards_verify: reads a whole state, and lists what is damaged. */
#include "base/text.h"
#include "checkpoint/state/state_index.h"

typedef struct verifier {
    tg_ctx *ctx;
    char *report;
    size_t size, at;
    int damaged;
} verifier;

/* Moves an error that says something about the files from the context to the report. Returns any other error. */
static tg_status note(verifier *v, tg_status s) {
    if (s != TG_ERR_FORMAT && s != TG_ERR_DATA && s != TG_ERR_IO) return s;
    tg_text(v->report, v->report ? v->size : 0, &v->at, "%s\n", tg_ctx_message(v->ctx));
    v->damaged++;
    tg_ctx_clear(v->ctx);
    return TG_OK;
}

static tg_status verify_file(verifier *v, tg_state *d, int i) {
    tg_safetensors *f = tg_state_file_open(d, i);
    if (!f) return note(v, v->ctx->run.status);
    for (int k = 0; k < f->count; k++) TG_TRY(note(v, tg_safetensors_verify(f, k, f->count)));
    return TG_OK;
}

/* Compares the pieces with the tensors of those files that could be opened. */
static tg_status verify_key(verifier *v, tg_state *d, const tg_state_key *k) {
    TG_TRY(note(v, tg_state_check_key(d, k)));
    for (int i = 0; i < k->n; i++)
        if (d->file[k->piece[i].file].open && !tg_state_entry(d, k, &k->piece[i])) TG_TRY(note(v, v->ctx->run.status));
    return TG_OK;
}

static tg_status verify(verifier *v, tg_state *d) {
    for (int i = 0; i < d->n_files; i++) TG_TRY(verify_file(v, d, i));
    for (int i = 0; i < d->n_keys; i++) TG_TRY(verify_key(v, d, &d->key[i]));
    return TG_OK;
}

tg_status tg_shards_verify(tg_ctx *ctx, const char *dir, char *report, size_t report_size, int *damaged) {
    static const char *const who = "tg_shards_verify";
    verifier v = {.ctx = ctx, .report = report, .size = report_size};
    TG_TRY(tg_io_enter(ctx));
    if (!dir || !damaged) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is NULL", who, dir ? "damaged" : "dir");
    tg_state d;
    if (report && report_size) *report = 0;
    tg_status s = tg_state_open(&d, ctx, dir, NULL);
    s = s == TG_OK ? verify(&v, &d) : note(&v, s);
    tg_state_close(&d);
    *damaged = v.damaged;
    return s;
}
