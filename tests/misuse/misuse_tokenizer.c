/* Tokenizers, decoders, and the training of tokenizers. */
#include <tapegrad/tokenizer.h>

#include "misuse/misuse.h"

#define NONE(symbol, code, says, call) GIVES(symbol, code, says, (call) == NULL)

static void loading(misuse_world *b) {
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizer.json", b->dir);
    QUIET(tg_tokenizer_load, tg_tokenizer_load(NULL, path) == NULL);
    NONE(tg_tokenizer_load, ARGUMENT, "path is NULL", tg_tokenizer_load(b->ctx, NULL));
    NONE(tg_tokenizer_load, IO, "cannot open", tg_tokenizer_load(b->ctx, path));
    NONE(tg_tokenizer_load, IO, "tokenizer.json", tg_tokenizer_load(b->ctx, b->dir));
    tg_file_save(b->ctx, path, "{}", 2);
    NONE(tg_tokenizer_load, FORMAT, "\"model\": expected an object", tg_tokenizer_load(b->ctx, path));
    QUIET(tg_tokenizer_new_bytes, tg_tokenizer_new_bytes(NULL) == NULL);
    QUIET(tg_tokenizer_free, (tg_tokenizer_free(NULL), true));
}

static void queries(misuse_world *b) {
    tg_tokenizer *k = tg_tokenizer_new_bytes(b->ctx);
    int64_t ids[2];
    QUIET(tg_tokenizer_size, tg_tokenizer_size(NULL) == 0 && tg_tokenizer_size(k) == 256);
    QUIET(tg_tokenizer_id, tg_tokenizer_id(NULL, "a") == -1 && tg_tokenizer_id(k, NULL) == -1 &&
                               tg_tokenizer_id(k, "") == -1 && tg_tokenizer_id(k, "aa") == -1);
    QUIET(tg_tokenizer_token,
          !tg_tokenizer_token(NULL, 0) && !tg_tokenizer_token(k, -1) && !tg_tokenizer_token(k, 256));
    QUIET(tg_tokenizer_is_special, !tg_tokenizer_is_special(NULL, 0) && !tg_tokenizer_is_special(k, 256));
    QUIET(tg_tokenizer_bos, tg_tokenizer_bos(NULL) == -1 && tg_tokenizer_bos(k) == -1);
    QUIET(tg_tokenizer_ends, tg_tokenizer_ends(NULL, ids, 2) == 0 && tg_tokenizer_ends(k, NULL, 0) == 0);
    QUIET(tg_tokenizer_chat_template, !tg_tokenizer_chat_template(NULL) && !tg_tokenizer_chat_template(k));
    tg_tokenizer_free(k);
}

static void encoding(misuse_world *b) {
    tg_tokenizer *k = tg_tokenizer_new_bytes(b->ctx);
    tg_ids ids = {0};
    tg_encode_opts later = {.size = sizeof later + 8};
    QUIET(tg_tokenizer_encode, tg_tokenizer_encode(NULL, "a", 1, NULL, &ids) == TG_ERR_ARGUMENT);
    FAILS(tg_tokenizer_encode, ARGUMENT, "out is NULL", tg_tokenizer_encode(k, "a", 1, NULL, NULL));
    FAILS(tg_tokenizer_encode, ARGUMENT, "text is NULL", tg_tokenizer_encode(k, NULL, 1, NULL, &ids));
    FAILS(tg_tokenizer_encode, ARGUMENT, "size", tg_tokenizer_encode(k, "a", 1, &later, &ids));
    QUIET(tg_tokenizer_encode, tg_tokenizer_encode(k, NULL, 0, NULL, &ids) == TG_OK && ids.count == 0);
    QUIET(tg_ids_free, (tg_ids_free(NULL), tg_ids_free(&ids), true));
    tg_tokenizer_free(k);
}

static void decoding(misuse_world *b) {
    tg_tokenizer *k = tg_tokenizer_new_bytes(b->ctx);
    tg_decoder *d = tg_decoder_new(k, true);
    size_t n = 7;
    const char *nothing = tg_decoder_push(d, 256, &n);
    QUIET(tg_decoder_new, tg_decoder_new(NULL, true) == NULL);
    QUIET(tg_decoder_push, tg_decoder_push(NULL, 1, NULL) == NULL && nothing && n == 0);
    QUIET(tg_decoder_finish, tg_decoder_finish(NULL, &n) == NULL && n == 0);
    QUIET(tg_decoder_free, (tg_decoder_free(NULL), true));
    tg_decoder_free(d);
    tg_tokenizer_free(k);
}

static void training(misuse_world *b) {
    tg_bpe_opts none = {0};
    QUIET(tg_bpe_new, tg_bpe_new(NULL, NULL) == NULL);
    NONE(tg_bpe_new, ARGUMENT, "size is 0", tg_bpe_new(b->ctx, &none));
    NONE(tg_bpe_new, ARGUMENT, "vocab is 256, expected 257", tg_bpe_new(b->ctx, TG_BPE(.vocab = 256)));
    NONE(tg_bpe_new, ARGUMENT, "min_frequency is -1", tg_bpe_new(b->ctx, TG_BPE(.min_frequency = -1)));
    NONE(tg_bpe_new, ARGUMENT, "max_length is 1", tg_bpe_new(b->ctx, TG_BPE(.max_length = 1)));
    NONE(tg_bpe_new, ARGUMENT, "pattern is empty", tg_bpe_new(b->ctx, TG_BPE(.pattern = "")));
    NONE(tg_bpe_new, ARGUMENT, "special is not UTF-8 at offset 1", tg_bpe_new(b->ctx, TG_BPE(.special = "a\xff")));
    QUIET(tg_bpe_add, tg_bpe_add(NULL, "a", 1) == TG_ERR_ARGUMENT);
    QUIET(tg_bpe_save, tg_bpe_save(NULL, b->dir, NULL, NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_bpe_words, tg_bpe_words(NULL) == 0);
    QUIET(tg_bpe_free, (tg_bpe_free(NULL), true));
    tg_bpe *t = tg_bpe_new(b->ctx, NULL);
    tg_ctx_clear(b->ctx); /* without plugin "text" there is no training */
    if (!t) return;
    NONE(tg_bpe_new, UNSUPPORTED, "an anchor at offset 0", tg_bpe_new(b->ctx, TG_BPE(.pattern = "^a")));
    NONE(tg_bpe_new, FORMAT, "is wrong: ", tg_bpe_new(b->ctx, TG_BPE(.pattern = "a)")));
    FAILS(tg_bpe_add, ARGUMENT, "text is NULL", tg_bpe_add(t, NULL, 1));
    FAILS(tg_bpe_add, DATA, "byte 0xff at offset 1", tg_bpe_add(t, "a\xff", 2));
    FAILS(tg_bpe_save, ARGUMENT, "directory is NULL", tg_bpe_save(t, NULL, NULL, NULL));
    FAILS(tg_bpe_save, IO, "/none/tokenizer.json", tg_bpe_save(t, "/none", NULL, NULL));
    tg_bpe_free(t);
}

void misuse_tokenizer(misuse_world *b) {
    loading(b);
    queries(b);
    encoding(b);
    decoding(b);
    training(b);
}
