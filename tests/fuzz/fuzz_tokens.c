/* Takes any bytes as a token file: text, numbers, or Megatron's two files. It is refused with a reason, or every window
 * lies within the file, has the right contents, and has ids below the vocabulary. */
#define _GNU_SOURCE
#include "files.h"

/* An input: format, vocabulary (2 bytes; 0: none given), bytes of the index (2), the index, the data. */
enum { HEAD = 5, INDEX_HEAD = 34 };

const char *const fuzz_words[] = {"MMIDIDX", "\x01", "\x04", "\x05", "\x08", NULL};

/* Writes an index of sequences of these lengths, of tokens of `width` bytes. */
static size_t index_of(uint8_t *out, uint8_t code, size_t width, const int32_t *length, size_t n) {
    uint64_t words[] = {n, n + 1}, version = 1, at = 0;
    memset(out, 0, INDEX_HEAD);
    memcpy(out, "MMIDIDX", 7);
    memcpy(out + 9, &version, 8);
    out[17] = code;
    memcpy(out + 18, words, sizeof words);
    memcpy(out + INDEX_HEAD, length, 4 * n);
    for (size_t i = 0; i < n; i++) {
        memcpy(out + INDEX_HEAD + 4 * n + 8 * i, &at, 8);
        at += width * (size_t)length[i];
    }
    for (uint64_t i = 0; i <= n; i++) memcpy(out + INDEX_HEAD + 12 * n + 8 * i, &i, 8);
    return INDEX_HEAD + 12 * n + 8 * (n + 1);
}

size_t fuzz_seed(int i, uint8_t *out, size_t max) {
    static const struct {
        uint8_t format, vocab, code, width;
        int32_t length[3];
    } seeds[] = {{0, 0, 0, 1, {5, 4, 0}}, {1, 9, 0, 2, {3, 2, 1}}, {2, 0, 0, 4, {1, 1, 1}}, {3, 0, 1, 1, {4, 0, 2}},
                 {3, 9, 8, 2, {3, 2, 2}}, {3, 0, 4, 4, {2, 1, 0}}, {3, 9, 5, 8, {1, 2, 1}}, {3, 0, 3, 2, {0, 0, 1}}};
    if (i >= (int)COUNT(seeds) || max < 512) return 0;
    size_t tokens = (size_t)(seeds[i].length[0] + seeds[i].length[1] + seeds[i].length[2]);
    size_t n = seeds[i].code ? index_of(out + HEAD, seeds[i].code, seeds[i].width, seeds[i].length, 3) : 0;
    const uint8_t head[HEAD] = {seeds[i].format, seeds[i].vocab, 0, (uint8_t)n, (uint8_t)(n >> 8)};
    memcpy(out, head, HEAD);
    memset(out + HEAD + n, 0, tokens * seeds[i].width);
    for (size_t k = 0; k < tokens; k++) out[HEAD + n + k * seeds[i].width] = (uint8_t)(k * 5 % 9);
    return HEAD + n + tokens * seeds[i].width;
}

/* Keeps the stored length of the index right if a mutation changes it. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    uint64_t state = seed;
    uint8_t index[FUZZ_MAX];
    size_t n = size >= HEAD ? (size_t)data[3] | (size_t)data[4] << 8 : 0;
    if (!n || n > size - HEAD || size > sizeof index || !fuzz_below(&state, 3))
        return fuzz_below(&state, 2) ? fuzz_mutate(data, size, max, &state) : LLVMFuzzerMutate(data, size, max);
    size_t rest = size - HEAD - n, room = (max < sizeof index ? max : sizeof index) - HEAD - rest;
    memcpy(index, data + HEAD, n);
    size_t now = fuzz_mutate(index, n, room, &state);
    memmove(data + HEAD + now, data + HEAD + n, rest);
    memcpy(data + HEAD, index, now);
    data[3] = (uint8_t)now, data[4] = (uint8_t)(now >> 8);
    return HEAD + now + rest;
}

/* ---- Accepted files ---- */

static int64_t token(const uint8_t *bytes, int64_t i, int width) {
    uint64_t v = 0;
    for (int b = width - 1; b >= 0; b--) v = v << 8 | bytes[i * width + b];
    return (int64_t)v;
}

static int width_of(int format, const uint8_t *index) {
    static const int plain[] = {1, 2, 4}, code[] = {0, 1, 1, 2, 4, 8, 0, 0, 2};
    return format < 3 ? plain[format] : code[index[17]];
}

static void read_window(tg_ctx *ctx, tg_tokens *t, int64_t first, int64_t n, const uint8_t *bytes, int width) {
    int64_t *out = malloc((size_t)n * sizeof *out + 1); /* exact size for sanitizers */
    tg_tokens_read(t, first, n, n ? out : NULL);
    fuzz_must(tg_ctx_status(ctx) == TG_OK, "%lld from %lld: %s", (long long)n, (long long)first, tg_ctx_message(ctx));
    for (int64_t i = 0; i < n; i++)
        fuzz_must(out[i] == token(bytes, first + i, width), "token %lld is %lld", (long long)(first + i),
                  (long long)out[i]);
    free(out);
}

/* Walks over all runs: they follow each other, and so do their documents. */
static void walk(tg_ctx *ctx, tg_tokens *t, int64_t n) {
    tg_token_run run = {0}, found;
    tg_tokens_find_run(t, 0, &run);
    fuzz_must(run.first == 0, "the first run begins at %lld", (long long)run.first);
    for (int64_t document = 0; tg_ctx_status(ctx) == TG_OK; document = run.document) {
        tg_tokens_find_run(t, run.stop - 1, &found);
        fuzz_must(!memcmp(&found, &run, sizeof run), "the run at %lld", (long long)run.first);
        fuzz_must(run.stop > run.first && run.stop <= n && run.document >= document &&
                      run.document < tg_tokens_documents(t),
                  "run %lld to %lld of document %lld", (long long)run.first, (long long)run.stop,
                  (long long)run.document);
        if (run.stop == n) break;
        int64_t end = run.stop;
        tg_tokens_next_run(t, &run);
        fuzz_must(run.first == end, "the run after %lld begins at %lld", (long long)end, (long long)run.first);
    }
    fuzz_must(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
}

static void use(tg_ctx *ctx, tg_tokens *t, int64_t vocab, const uint8_t *bytes, size_t size, int width) {
    static const tg_status outside[] = {TG_ERR_ARGUMENT};
    int64_t n = tg_tokens_count(t), one;
    fuzz_must(n > 0 && n * width == (int64_t)size, "%lld tokens of %d bytes in %zu", (long long)n, width, size);
    for (int64_t i = 0; i < n; i++) {
        int64_t id = token(bytes, i, width);
        fuzz_must(id >= 0 && (!vocab || id < vocab), "token %lld is %lld, the vocabulary has %lld", (long long)i,
                  (long long)id, (long long)vocab);
    }
    read_window(ctx, t, 0, n, bytes, width);
    walk(ctx, t, n);
    for (int64_t first = 0; first <= n; first += 1 + n / 5) read_window(ctx, t, first, (n - first) / 2, bytes, width);
    const int64_t past[][2] = {{n, 1}, {-1, 1}, {0, n + 1}, {1, INT64_MAX}, {INT64_MAX, 1}, {0, -1}, {INT64_MIN, 1}};
    for (size_t i = 0; i < COUNT(past); i++) {
        tg_tokens_read(t, past[i][0], past[i][1], &one);
        fuzz_refused(ctx, outside, 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const tg_status reasons[] = {TG_ERR_FORMAT, TG_ERR_DATA};
    static files disk;
    if (size < HEAD || size > FUZZ_MAX) return 0;
    if (!disk.at[0].fd) files_start(&disk);
    int format = data[0] % 4;
    int64_t vocab = data[1] | data[2] << 8;
    size_t index = (size_t)data[3] | (size_t)data[4] << 8;
    if (index > size - HEAD) index = size - HEAD;
    const uint8_t *bytes = data + HEAD + (format == 3 ? index : 0);
    size_t n = (size_t)(data + size - bytes);
    budget memory = {.limit = (size_t)64 << 20};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1, .files = FILES_OPS(&disk),
                                       .allocator = BUDGET(&memory)));
    size_t held = memory.held;
    if (format == 3) file_put(&disk, "a.idx", data + HEAD, index);
    file_put(&disk, format == 3 ? "a.bin" : "a.txt", bytes, n);
    tg_tokens *t = tg_tokens_open(ctx, format == 3 ? "a" : "a.txt", (tg_token_format)format, vocab);
    fuzz_must(memory.peak - held <= 4096 + ((size_t)1 << 20), "%zu bytes to open tokens", memory.peak - held);
    if (t) use(ctx, t, vocab, bytes, n, width_of(format, data + HEAD));
    else fuzz_refused(ctx, reasons, COUNT(reasons));
    tg_tokens_close(t);
    tg_ctx_free(ctx);
    fuzz_must(!memory.held && !disk.open, "%zu bytes and %d files are left", memory.held, disk.open);
    files_clear(&disk);
    return 0;
}
