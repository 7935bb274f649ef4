/* Writes token ids as a Megatron dataset, or as numbers of 16 or 32 bits. */
#include "tokens/token_output.h"

bool output_open(token_output *o, tg_ctx *ctx, const char *path, output_format format, int64_t vocab) {
    *o = (token_output){.ctx = ctx, .format = format};
    if (format == OUTPUT_MEGATRON)
        o->megatron = tg_token_writer_open(ctx, path, vocab);
    else
        tg_writer_open(&o->raw, ctx, path);
    return tg_ctx_status(ctx) == TG_OK;
}

/* Appends ids in little-endian order. Ids fit the format, because the caller has checked the size of the vocabulary. */
static tg_status put_raw(token_output *o, const int64_t *ids, int64_t n) {
    enum { MOST = 1 << 13 };
    unsigned char packed[4 * MOST], *to = packed;
    int width = o->format == OUTPUT_U16 ? 2 : 4;
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < width; k++) *to++ = (unsigned char)(ids[i] >> (8 * k));
        if (to != packed + (ptrdiff_t)width * MOST && i + 1 < n) continue;
        if (tg_writer_put(&o->raw, packed, (size_t)(to - packed)) != TG_OK) break;
        to = packed;
    }
    return tg_ctx_status(o->ctx);
}

bool output_put(token_output *o, const int64_t *ids, int64_t n) {
    if (o->megatron) {
        tg_token_writer_add(o->megatron, ids, n, false);
        tg_token_writer_end_document(o->megatron);
    } else {
        put_raw(o, ids, n);
    }
    o->count += n;
    o->documents++;
    return tg_ctx_status(o->ctx) == TG_OK;
}

bool output_commit(token_output *o) {
    tg_status s = o->megatron ? tg_token_writer_commit(o->megatron) : tg_writer_commit(&o->raw);
    o->megatron = NULL;
    return s == TG_OK;
}

void output_abandon(token_output *o) {
    tg_token_writer_abandon(o->megatron);
    tg_writer_abandon(&o->raw);
    o->megatron = NULL;
}
