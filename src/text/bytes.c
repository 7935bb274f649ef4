/* The tokenizer whose tokens are the 256 bytes. */
#include "text/tokenizer.h"
#include "text/unicode.h"

static tg_status add_bytes(tg_tokenizer *k) {
    TG_TRY(tg_vocab_open(&k->model.vocab, &k->memory, 256));
    for (int i = 0; i < 256; i++) {
        char c[4];
        tg_span token = tg_pieces_copy(&k->memory, c, tg_char_write(c, tg_byte_char((unsigned char)i)));
        if (!token.at) return TG_ERR_MEMORY;
        tg_vocab_add(&k->model.vocab, token, i);
        k->model.byte_ids[i] = i;
    }
    k->model.byte_level = k->model.any_bytes = true;
    k->decode[k->n_decode++] = (tg_decode_step){.kind = TG_DECODE_BYTES};
    return tg_tokenizer_finish(k);
}

tg_tokenizer *tg_tokenizer_new_bytes(tg_ctx *ctx) {
    if (tg_ctx_status(ctx) != TG_OK) return NULL;
    tg_tokenizer *k = tg_tokenizer_make(ctx, "bytes");
    if (k && add_bytes(k) == TG_OK) return k;
    tg_tokenizer_free(k);
    return NULL;
}
