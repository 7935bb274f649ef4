/* The index of Megatron-LM's indexed datasets. NAME.bin contains the tokens of all documents, one after another.
 * NAME.idx says how wide a token is, and where each sequence begins. The tokens are read as one stream in the order of
 * NAME.bin. */
#include <stdio.h>

#include "base/host_memory.h"
#include "io/tokens.h"

enum { HEADER = 34 }; /* bytes: magic 9, version 8, dtype 1, sequences 8, documents 8 */

/* Returns a little-endian number of 1 to 8 bytes. */
static uint64_t word(const unsigned char *p, int bytes) {
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

/* Returns the bytes per token for a dtype code of the index: negative if tokens are signed, 0 if they are floats or the
 * code is unknown. */
static int width_of(int code) {
    static const int width[] = {0, 1, -1, -2, -4, -8, 0, 0, 2};
    return code >= 0 && code < TG_LEN(width) ? width[code] : 0;
}

static tg_status refuse(tg_file *f, const char *what) {
    return tg_fail(f->ctx, TG_ERR_FORMAT, "'%s' is not the index of a Megatron dataset: %s", f->path, what);
}

static tg_status read_header(tg_tokens *t, tg_file *f, int64_t *sequences) {
    unsigned char h[HEADER];
    static const char magic[9] = "MMIDIDX\0";
    if (f->size < HEADER) return refuse(f, "it is shorter than the header");
    TG_TRY(tg_file_read(f, 0, h, sizeof h));
    if (memcmp(h, magic, sizeof magic)) return refuse(f, "it does not begin with MMIDIDX");
    if (word(h + 9, 8) != 1) return refuse(f, "its version is not 1");
    int width = width_of(h[17]);
    if (!width) return refuse(f, "its tokens are not integers");
    t->is_signed = width < 0;
    t->width = width < 0 ? -width : width;
    uint64_t n = word(h + 18, 8), documents = word(h + 26, 8), size = (uint64_t)f->size;
    if (n > size / 12 || documents > size / 8 || HEADER + 12 * n + 8 * documents > size)
        return refuse(f, "it is too short for the sequences and documents that its header counts");
    *sequences = (int64_t)n;
    return TG_OK;
}

/* Counts the tokens of all sequences, which must follow each other without gaps. */
static tg_status count_tokens(tg_file *f, int width, int64_t sequences, int64_t *count) {
    enum { AT_ONCE = 1024 };
    unsigned char lengths[4 * AT_ONCE], pointers[8 * AT_ONCE];
    *count = 0;
    for (int64_t first = 0; first < sequences; first += AT_ONCE) {
        int64_t n = sequences - first < AT_ONCE ? sequences - first : AT_ONCE;
        TG_TRY(tg_file_read(f, HEADER + 4 * first, lengths, (size_t)(4 * n)));
        TG_TRY(tg_file_read(f, HEADER + 4 * sequences + 8 * first, pointers, (size_t)(8 * n)));
        for (int64_t i = 0; i < n; i++) {
            int64_t length = (int32_t)word(lengths + 4 * i, 4);
            if (length < 0 || *count > INT64_MAX / 16) return refuse(f, "a sequence has an impossible length");
            if (word(pointers + 8 * i, 8) != (uint64_t)(*count * width))
                return refuse(f, "its sequences do not follow each other");
            *count += length;
        }
    }
    return TG_OK;
}

/* Returns path with the given ending, which replaces ".bin" or ".idx". */
static char *with_ending(tg_ctx *ctx, const char *path, const char *ending) {
    size_t n = strlen(path);
    bool has = n > 4 && (!strcmp(path + n - 4, ".bin") || !strcmp(path + n - 4, ".idx"));
    return tg_format_path(ctx, "%.*s%s", (int)(has ? n - 4 : n), path, ending);
}

tg_status tg_megatron_open(tg_tokens *t, tg_ctx *ctx, const char *path, int64_t *count) {
    char *index = with_ending(ctx, path, ".idx"), *data = index ? with_ending(ctx, path, ".bin") : NULL;
    tg_file f = {.ctx = ctx};
    int64_t sequences = 0;
    /* If data is NULL, ctx has an error, which tg_io_enter returns. */
    tg_status s = data ? tg_file_open(&f, ctx, index) : tg_io_enter(ctx);
    if (s == TG_OK) s = read_header(t, &f, &sequences);
    if (s == TG_OK) s = count_tokens(&f, t->width, sequences, count);
    if (data) tg_file_close(&f);
    if (s == TG_OK) s = tg_file_open(&t->file, ctx, data);
    tg_host_strfree(ctx, index);
    tg_host_strfree(ctx, data);
    return s;
}
