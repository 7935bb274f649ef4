/* Takes any text as a tokenizer.json. It is refused with a reason, or it encodes texts to ids that it has, and decodes
 * ids to UTF-8. */
#define _GNU_SOURCE
#include <tapegrad/tokenizer.h>

#include "base/text.h"
#include "files.h"
#include "unit/tokenizer_files.h"

const char *const fuzz_words[] = {"\"type\":",
                                  "\"BPE\"",
                                  "\"vocab\":",
                                  "\"merges\":",
                                  "\"added_tokens\":",
                                  "\"normalizer\":",
                                  "\"pre_tokenizer\":",
                                  "\"decoder\":",
                                  "\"post_processor\":",
                                  "\"Sequence\"",
                                  "\"Split\"",
                                  "\"Metaspace\"",
                                  "\"ByteLevel\"",
                                  "\"Digits\"",
                                  "\"Replace\"",
                                  "\"Prepend\"",
                                  "\"Strip\"",
                                  "\"NFC\"",
                                  "\"NFKD\"",
                                  "\"ByteFallback\"",
                                  "\"Fuse\"",
                                  "\"pattern\":",
                                  "{\"String\":\"a\"}",
                                  "{\"Regex\":\"[a-c]+|\\\\s\"}",
                                  "\"behavior\":",
                                  "\"Isolated\"",
                                  "\"MergedWithNext\"",
                                  "\"content\":",
                                  "\"special\":true",
                                  "\"lstrip\":true",
                                  "\"rstrip\":true",
                                  "\"single_word\":true",
                                  "\"normalized\":true",
                                  "\"ignore_merges\":true",
                                  "\"use_regex\":false",
                                  "\"prepend_scheme\":\"first\"",
                                  "null",
                                  "true",
                                  "{",
                                  "}",
                                  "[",
                                  "]",
                                  ",",
                                  ":",
                                  "\"",
                                  "0",
                                  "1",
                                  "-1",
                                  "268435456",
                                  MARK,
                                  NULL};

size_t fuzz_seed(int i, uint8_t *out, size_t max) {
    static const char *const seeds[] = {
        SENTENCE_PIECE,
        FILE_OF(MODEL, ADDED, "{\"type\":\"NFC\"}", "{\"type\":\"Metaspace\",\"prepend_scheme\":\"first\"}", "null",
                "{\"type\":\"Metaspace\"}"),
        FILE_OF("{\"vocab\":{\"a\":0,\"\\u0120\":1,\"\\u0120a\":2},\"merges\":[\"\\u0120 a\"],\"ignore_merges\":true}",
                "[{\"content\":\" b\",\"single_word\":true,\"rstrip\":true}]", "null", "{\"type\":\"ByteLevel\"}",
                "null", "{\"type\":\"ByteLevel\"}"),
        FILE_OF(MODEL, "[]", "null",
                "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^a]|\\\\p{L}+\"},\"behavior\":\"Contiguous\"}", "null",
                "null"),
    };
    if (i >= (int)COUNT(seeds) || strlen(seeds[i]) > max) return 0;
    memcpy(out, seeds[i], strlen(seeds[i]));
    return strlen(seeds[i]);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    uint64_t state = seed;
    return fuzz_below(&state, 2) ? fuzz_mutate(data, size, max, &state) : LLVMFuzzerMutate(data, size, max);
}

static void check_piece(const char *piece, size_t n) {
    fuzz_must(piece && tg_utf8_check(piece, n) == n && !piece[n], "a piece is not UTF-8");
}

static void decode(const tg_tokenizer *k, const tg_ids *ids) {
    size_t n;
    for (int skip = 0; skip < 2; skip++) {
        tg_decoder *d = tg_decoder_new(k, skip);
        for (int64_t i = 0; i < ids->count; i++) {
            const char *piece = tg_decoder_push(d, ids->ids[i], &n);
            check_piece(piece, n);
        }
        const char *rest = tg_decoder_finish(d, &n);
        check_piece(rest, n);
        tg_decoder_free(d);
    }
}

static void encode(tg_ctx *ctx, const tg_tokenizer *k) {
    static const char text[] = "ab abc \xc3\xa9 [X]</s>  a b\0c\n12 \xf0\x9f\x91\x8d" MARK MARK "aab'll d";
    static const tg_status reasons[] = {TG_ERR_UNSUPPORTED};
    tg_ids ids = {0};
    for (size_t n = 0; n < sizeof text; n += n < 4 ? 1 : 23) {
        if (tg_utf8_check(text, n) < n) continue;
        ids.count = 0;
        if (tg_tokenizer_encode(k, text, n, TG_ENCODE(.special = n % 2), &ids) != TG_OK)
            fuzz_refused(ctx, reasons, COUNT(reasons));
        for (int64_t i = 0; i < ids.count; i++)
            fuzz_must(tg_tokenizer_token(k, ids.ids[i]), "id %lld has no token", (long long)ids.ids[i]);
        decode(k, &ids);
    }
    tg_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static files disk;
    static const tg_status reasons[] = {TG_ERR_FORMAT, TG_ERR_UNSUPPORTED, TG_ERR_MEMORY};
    if (size > FUZZ_MAX) return 0;
    if (!disk.at[0].fd) files_start(&disk);
    budget memory = {.limit = (size_t)1 << 26};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .files = FILES_OPS(&disk), .allocator = BUDGET(&memory)));
    file_put(&disk, "a.json", data, size);
    tg_tokenizer *k = tg_tokenizer_load(ctx, "a.json");
    if (k)
        encode(ctx, k);
    else
        fuzz_refused(ctx, reasons, COUNT(reasons));
    tg_tokenizer_free(k);
    tg_ctx_free(ctx);
    fuzz_must(!memory.held, "%zu bytes are left", memory.held);
    files_clear(&disk);
    return 0;
}
