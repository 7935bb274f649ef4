/* The index of Megatron-LM's indexed datasets. NAME.bin contains the tokens of all documents, one after another.
 * NAME.idx says how wide a token is, and where each sequence and each document begins. The tokens are read as one
 * stream in the order of NAME.bin. Opening checks the whole index, in pieces, so it takes no memory of its size. */
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "io/tokens.h"

enum { HEADER = TG_MEGATRON_HEADER, AT_ONCE = 1024 }; /* AT_ONCE: entries of a table that are read at once */

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

/* ---- The header ---- */

static tg_status read_counts(tg_tokens *t, tg_file *f, const unsigned char *header) {
    uint64_t n = word(header + 18, 8), entries = word(header + 26, 8), size = (uint64_t)f->size;
    if (n > size / 12 || entries > size / 8 || HEADER + 12 * n + 8 * entries > size)
        return refuse(f, "it is too short for the sequences and documents that its header counts");
    uint64_t rest = size - (HEADER + 12 * n + 8 * entries);
    if (rest != 0 && rest != n)
        return refuse(f, "it has more bytes than its header counts, and no mode for each sequence");
    if (!entries) return refuse(f, "its table of documents is empty, expected at least the entry 0");
    if (n && entries == 1) return refuse(f, "it has sequences, but its table lists no document that has them");
    t->sequences = (int64_t)n;
    t->documents = (int64_t)entries - 1;
    t->has_modes = rest > 0;
    return TG_OK;
}

static tg_status read_header(tg_tokens *t, tg_file *f) {
    unsigned char h[HEADER];
    if (f->size < HEADER) return refuse(f, "it is shorter than the header");
    TG_TRY(tg_file_read(f, 0, h, sizeof h));
    if (memcmp(h, TG_MEGATRON_MAGIC, 9)) return refuse(f, "it does not begin with MMIDIDX");
    if (word(h + 9, 8) != 1) return refuse(f, "its version is not 1");
    int width = width_of(h[17]);
    if (!width) return refuse(f, "its tokens are not integers of a known dtype");
    t->is_signed = width < 0;
    t->width = width < 0 ? -width : width;
    return read_counts(t, f, h);
}

/* ---- The tables ---- */

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Counts the tokens of all sequences, which must follow each other without gaps. */
static tg_status count_tokens(tg_file *f, int width, int64_t sequences, int64_t *count) {
    unsigned char lengths[4 * AT_ONCE], pointers[8 * AT_ONCE];
    *count = 0;
    for (int64_t first = 0; first < sequences; first += AT_ONCE) {
        int64_t n = min(sequences - first, AT_ONCE);
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

/* Fails because entry i of the table of documents is `entry`. */
static tg_status refuse_entry(tg_file *f, int64_t i, uint64_t entry, uint64_t least, uint64_t most) {
    return tg_fail(f->ctx, TG_ERR_FORMAT,
                   "'%s' is not the index of a Megatron dataset: entry %lld of its table of documents is %llu, "
                   "expected a sequence from %llu to %llu",
                   f->path, (long long)i, (unsigned long long)entry, (unsigned long long)least,
                   (unsigned long long)most);
}

/* Checks that the table of documents begins with 0, never falls, and ends with the number of sequences. A document
 * without sequences is valid: Megatron-LM writes one for an empty text. */
static tg_status check_documents(const tg_tokens *t, tg_file *f) {
    unsigned char entries[8 * AT_ONCE];
    uint64_t least = 0, all = (uint64_t)t->sequences;
    for (int64_t first = 0; first <= t->documents; first += AT_ONCE) {
        int64_t n = min(t->documents + 1 - first, AT_ONCE);
        TG_TRY(tg_file_read(f, HEADER + 12 * t->sequences + 8 * first, entries, (size_t)(8 * n)));
        for (int64_t i = 0; i < n; i++) {
            uint64_t entry = word(entries + 8 * i, 8), most = first + i ? all : 0;
            if (first + i == t->documents) least = all, most = all;
            if (entry < least || entry > most) return refuse_entry(f, first + i, entry, least, most);
            least = entry;
        }
    }
    return TG_OK;
}

/* Checks that each sequence has mode 0 or 1. */
static tg_status check_modes(const tg_tokens *t, tg_file *f) {
    unsigned char modes[8 * AT_ONCE];
    for (int64_t first = 0; t->has_modes && first < t->sequences; first += (int64_t)sizeof modes) {
        int64_t n = min(t->sequences - first, (int64_t)sizeof modes);
        TG_TRY(tg_file_read(f, HEADER + 12 * t->sequences + 8 * (t->documents + 1) + first, modes, (size_t)n));
        for (int64_t i = 0; i < n; i++)
            if (modes[i] > 1)
                return tg_fail(f->ctx, TG_ERR_FORMAT,
                               "'%s': sequence %lld has mode %d, expected 0 (its tokens are predicted) or 1 (they are "
                               "context)",
                               f->path, (long long)(first + i), modes[i]);
    }
    return TG_OK;
}

/* ---- Opening ---- */

char *tg_megatron_path(tg_ctx *ctx, const char *path, const char *ending) {
    size_t n = strlen(path);
    bool has = n > 4 && (!strcmp(path + n - 4, ".bin") || !strcmp(path + n - 4, ".idx"));
    return tg_format_path(ctx, "%.*s%s", (int)(has ? n - 4 : n), path, ending);
}

tg_status tg_megatron_open(tg_tokens *t, tg_ctx *ctx, const char *path, int64_t *count) {
    char *index = tg_megatron_path(ctx, path, ".idx"), *data = index ? tg_megatron_path(ctx, path, ".bin") : NULL;
    /* If data is NULL, ctx has an error, which tg_io_enter returns. */
    tg_status s = data ? tg_file_open(&t->index, ctx, index) : tg_io_enter(ctx);
    if (s == TG_OK) s = read_header(t, &t->index);
    if (s == TG_OK) s = count_tokens(&t->index, t->width, t->sequences, count);
    if (s == TG_OK) s = check_documents(t, &t->index);
    if (s == TG_OK) s = check_modes(t, &t->index);
    if (s == TG_OK) s = tg_file_open(&t->file, ctx, data);
    tg_host_strfree(ctx, index);
    tg_host_strfree(ctx, data);
    return s;
}

/* ---- Runs ---- */

/* Reads number i of a table that begins at byte `at` of the index, whose numbers have `bytes` bytes. */
static tg_status read_entry(tg_tokens *t, int64_t at, int64_t i, int bytes, int64_t *out) {
    unsigned char b[8];
    TG_TRY(tg_file_read(&t->index, at + i * bytes, b, (size_t)bytes));
    *out = (int64_t)word(b, bytes);
    return TG_OK;
}

/* Finds the last of n numbers in ascending order that is at most `value`. The first number must be at most `value`. */
static tg_status search(tg_tokens *t, int64_t at, int64_t n, int64_t value, int64_t *out) {
    int64_t low = 0, high = n, middle, v;
    while (high - low > 1) {
        middle = low + (high - low) / 2;
        TG_TRY(read_entry(t, at, middle, 8, &v));
        if (v <= value)
            low = middle;
        else
            high = middle;
    }
    *out = low;
    return TG_OK;
}

static int64_t pointers_at(const tg_tokens *t) { return HEADER + 4 * t->sequences; }
static int64_t documents_at(const tg_tokens *t) { return HEADER + 12 * t->sequences; }
static int64_t modes_at(const tg_tokens *t) { return documents_at(t) + 8 * (t->documents + 1); }

/* Sets the end and the mode of the run, whose sequence and first token are set. */
static tg_status complete_run(tg_tokens *t, tg_token_run *run) {
    int64_t length, mode = 0;
    TG_TRY(read_entry(t, HEADER, run->sequence, 4, &length));
    if (t->has_modes) TG_TRY(read_entry(t, modes_at(t), run->sequence, 1, &mode));
    run->stop = run->first + length;
    run->context = mode == 1;
    return TG_OK;
}

tg_status tg_megatron_find(tg_tokens *t, int64_t token, tg_token_run *out) {
    *out = (tg_token_run){0};
    TG_TRY(search(t, pointers_at(t), t->sequences, token * t->width, &out->sequence));
    TG_TRY(search(t, documents_at(t), t->documents + 1, out->sequence, &out->document));
    int64_t pointer;
    TG_TRY(read_entry(t, pointers_at(t), out->sequence, 8, &pointer));
    out->first = pointer / t->width;
    return complete_run(t, out);
}

tg_status tg_megatron_next(tg_tokens *t, tg_token_run *run) {
    int64_t next = 0;
    do {
        run->first = run->stop;
        run->sequence++;
        TG_TRY(complete_run(t, run));
    } while (run->stop == run->first);
    for (; next <= run->sequence; run->document += next <= run->sequence)
        TG_TRY(read_entry(t, documents_at(t), run->document + 1, 8, &next));
    return TG_OK;
}
