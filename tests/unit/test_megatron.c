/* Megatron-LM's indexed datasets, written by hand and by the library. */
#define _GNU_SOURCE
#include <tapegrad/io.h>

#include "io_fixture.h"

/* Writes an index of n sequences with these lengths and pointers, for tokens of the dtype with this code. */
static size_t put_index(unsigned char *to, int code, int n, const int32_t *length, const int64_t *pointer) {
    const uint64_t header[] = {1, (uint64_t)n, 2}, documents[] = {0, (uint64_t)n};
    size_t at = 0;
    memcpy(to, "MMIDIDX\0", 9);
    memcpy(to + 9, header, 8);
    to[17] = (unsigned char)code;
    memcpy(to + 18, header + 1, 16);
    at = 34;
    memcpy(to + at, length, 4 * (size_t)n);
    memcpy(to + at + 4 * (size_t)n, pointer, 8 * (size_t)n);
    at += 12 * (size_t)n;
    memcpy(to + at, documents, sizeof documents);
    return at + sizeof documents;
}

START_TEST(megatron_datasets_are_read_as_one_stream) {
    workplace w = workplace_new(NULL);
    unsigned char index[256];
    const uint16_t ids[] = {5, 6, 7, 50000, 9};
    const int32_t lengths[] = {2, 3}, long_lengths[] = {2, 4};
    const int64_t pointers[] = {0, 4}, gap[] = {0, 6};
    int64_t out[5];
    put_file(&w, "d.bin", ids, sizeof ids);
    put_file(&w, "d.idx", index, put_index(index, 8, 2, lengths, pointers));
    static const char *const names[] = {"d", "d.bin", "d.idx"};
    for (int i = 0; i < 3; i++) {
        tg_tokens *t = tg_tokens_open(w.ctx, in(&w, names[i]), TG_TOKENS_MEGATRON, 0);
        ck_assert_int_eq(tg_tokens_count(t), 5);
        ck_assert_int_eq(tg_tokens_read(t, 0, 5, out), TG_OK);
        for (int j = 0; j < 5; j++) ck_assert_int_eq(out[j], ids[j]);
        tg_tokens_close(t);
    }
    tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 50000);
    expect_error(w.ctx, TG_ERR_DATA, "token 3 at offset 6 is 50000");
    put_file(&w, "d.idx", index, put_index(index, 8, 2, lengths, gap));
    tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0);
    expect_error(w.ctx, TG_ERR_FORMAT, "do not follow each other");
    put_file(&w, "d.idx", index, put_index(index, 8, 2, long_lengths, pointers));
    tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0);
    expect_error(w.ctx, TG_ERR_FORMAT, "has 10 bytes, expected 12");
    put_file(&w, "d.idx", index, put_index(index, 6, 2, lengths, pointers));
    tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0);
    expect_error(w.ctx, TG_ERR_FORMAT, "not integers");
    put_index(index, 8, 2, lengths, pointers);
    put_file(&w, "d.idx", index, 40);
    tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0);
    expect_error(w.ctx, TG_ERR_FORMAT, "too short for the sequences");
    put_file(&w, "d.idx", "MMIDIDX", 7);
    tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0);
    expect_error(w.ctx, TG_ERR_FORMAT, "shorter than the header");
    workplace_free(&w);
}
END_TEST

START_TEST(negative_ids_are_refused) {
    static const struct {
        int code, width;
    } types[] = {{2, 1}, {3, 2}, {4, 4}, {5, 8}};
    workplace w = workplace_new(NULL);
    const int64_t ids[] = {5, 100, -20}, zero = 0;
    const int32_t length = 3;
    unsigned char index[64];
    for (size_t i = 0; i < COUNT(types); i++) {
        char bytes[3 * 8], says[64];
        int64_t out[2];
        for (int j = 0; j < 3; j++) memcpy(bytes + j * types[i].width, &ids[j], (size_t)types[i].width);
        snprintf(says, sizeof says, "token 2 at offset %d is -20, expected at least 0", 2 * types[i].width);
        put_file(&w, "d.idx", index, put_index(index, types[i].code, 1, &length, &zero));
        put_file(&w, "d.bin", bytes, 3 * (size_t)types[i].width);
        for (int vocab = 0; vocab <= 1 << 16; vocab += 1 << 16) {
            ck_assert_ptr_null(tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, vocab));
            expect_error(w.ctx, TG_ERR_DATA, says);
        }
        put_file(&w, "d.idx", index, put_index(index, types[i].code, 1, &(const int32_t){2}, &zero));
        put_file(&w, "d.bin", bytes, 2 * (size_t)types[i].width);
        tg_tokens *t = tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0);
        ck_assert_int_eq(tg_tokens_read(t, 0, 2, out), TG_OK);
        ck_assert_int_eq(out[0], 5);
        ck_assert_int_eq(out[1], 100);
        tg_tokens_close(t);
    }
    workplace_free(&w);
}
END_TEST

/* ---- Documents ---- */

/* Writes a dataset of documents that end with '.', in which '[' and ']' enclose context. */
static void write_documents(workplace *w, const char *name, const char *text, int64_t vocab) {
    tg_token_writer *to = tg_token_writer_open(w->ctx, in(w, name), vocab);
    bool context = false;
    for (; *text; text++) {
        const int64_t id = *text;
        if (*text == '[' || *text == ']') context = *text == '[';
        else tg_token_writer_add(to, &id, 1, context);
        if (*text == '.') tg_token_writer_end_document(to);
    }
    ck_assert_msg(tg_token_writer_commit(to) == TG_OK, "%s", tg_ctx_message(w->ctx));
}

/* Returns the ids and the targets of a window of n tokens as text, "ids targets", in which '_' is a target that does
 * not count and '0' is padding. */
static const char *window(tg_tokens *t, int64_t first, int64_t n, tg_token_windows windows) {
    static char text[128];
    int64_t ids[64], targets[64], count = 0;
    tg_tokens_set_windows(t, windows);
    ck_assert_int_eq(tg_tokens_windows(t), windows);
    ck_assert_int_eq(tg_tokens_read_window(t, first, n, ids, targets), TG_OK);
    for (int64_t i = 0; i < n; i++) {
        text[i] = ids[i] ? (char)ids[i] : '0';
        text[n + 1 + i] = targets[i] == -100 ? '_' : (char)targets[i];
        count += targets[i] != -100;
    }
    text[n] = ' ';
    text[2 * n + 1] = 0;
    ck_assert_int_eq(tg_tokens_count_targets(t, first, n), count);
    return text;
}

/* Compares the positions of the tokens from `first` on with digits. */
static void check_positions(tg_tokens *t, int64_t first, const char *digits) {
    int64_t positions[16];
    int64_t n = (int64_t)strlen(digits);
    ck_assert_int_eq(tg_tokens_read_positions(t, first, n, positions), TG_OK);
    for (int64_t i = 0; i < n; i++) ck_assert_int_eq(positions[i], digits[i] - '0');
}

START_TEST(written_documents_are_read_again) {
    static const int64_t vocabs[] = {256, 257, 65536, 65537, INT64_C(1) << 31};
    workplace w = workplace_new(NULL);
    for (size_t i = 0; i < COUNT(vocabs); i++) {
        write_documents(&w, "d.bin", "ab.[cd]e.f.", vocabs[i]);
        tg_tokens *t = tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0);
        ck_assert_int_eq(tg_tokens_documents(t), 3);
        ck_assert(tg_tokens_has_context(t));
        ck_assert_str_eq(window(t, 0, 8, TG_WINDOWS_ACROSS), "ab.cde.f b.__e.f.");
        ck_assert_str_eq(window(t, 1, 3, TG_WINDOWS_ACROSS), "b.c .__");
        ck_assert_str_eq(window(t, 4, 4, TG_WINDOWS_ACROSS), "de.f e.f.");
        ck_assert_str_eq(window(t, 0, 8, TG_WINDOWS_PADDED), "ab.00000 b.______");
        ck_assert_str_eq(window(t, 0, 2, TG_WINDOWS_PADDED), "ab b.");
        ck_assert_str_eq(window(t, 2, 3, TG_WINDOWS_PADDED), ".00 ___");
        ck_assert_str_eq(window(t, 3, 4, TG_WINDOWS_PADDED), "cde. _e._");
        ck_assert_str_eq(window(t, 3, 5, TG_WINDOWS_PADDED), "cde.0 _e.__");
        ck_assert_str_eq(window(t, 8, 2, TG_WINDOWS_PADDED), ".0 __");
        ck_assert_str_eq(window(t, 0, 8, TG_WINDOWS_PACKED), "ab.cde.f b.__e._.");
        ck_assert_str_eq(window(t, 1, 3, TG_WINDOWS_PACKED), "b.c .__");
        ck_assert_str_eq(window(t, 4, 4, TG_WINDOWS_PACKED), "de.f e._.");
        check_positions(t, 0, "012012301");
        check_positions(t, 4, "01201");
        check_positions(t, 8, "0");
        tg_token_run run;
        static const int64_t ends[] = {3, 5, 7, 9}, documents[] = {0, 1, 1, 2};
        tg_tokens_find_run(t, 0, &run);
        for (int k = 0; k < 4; k++) {
            tg_token_run same;
            ck_assert_int_eq(run.stop, ends[k]);
            ck_assert_int_eq(run.document, documents[k]);
            ck_assert_int_eq(run.context, k == 1);
            ck_assert_int_eq(tg_tokens_find_run(t, run.stop - 1, &same), TG_OK);
            ck_assert_mem_eq(&same, &run, sizeof run);
            if (k < 3) ck_assert_int_eq(tg_tokens_next_run(t, &run), TG_OK);
        }
        tg_tokens_close(t);
    }
    tg_token_writer *none = tg_token_writer_open(w.ctx, in(&w, "none"), 9);
    tg_token_writer_commit(none);
    expect_error(w.ctx, TG_ERR_DATA, "would have no tokens");
    workplace_free(&w);
}
END_TEST

START_TEST(a_refused_call_adds_no_token) {
    workplace w = workplace_new(NULL);
    const int64_t ids[] = {1, 2, 256};
    tg_token_writer *to = tg_token_writer_open(w.ctx, in(&w, "d"), 256);
    tg_token_writer_add(to, ids, 3, true);
    expect_error(w.ctx, TG_ERR_DATA, "id 256, expected 0 to 255");
    ck_assert_int_eq(tg_token_writer_count(to), 0);
    tg_token_writer_add(to, ids, 2, false);
    ck_assert_int_eq(tg_token_writer_count(to), 2);
    ck_assert_int_eq(tg_token_writer_commit(to), TG_OK);
    tg_tokens *t = tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0);
    ck_assert(tg_tokens_count(t) == 2 && tg_tokens_documents(t) == 1 && !tg_tokens_has_context(t));
    tg_tokens_close(t);
    workplace_free(&w);
}
END_TEST

START_TEST(joined_streams_are_one) {
    workplace w = workplace_new(NULL);
    write_documents(&w, "a", "ab.[c]d.", 256);
    put_file(&w, "text", "xyz", 3);
    write_documents(&w, "b", "[ef]g.h.", 70000);
    tg_tokens *part[] = {tg_tokens_open(w.ctx, in(&w, "a"), TG_TOKENS_MEGATRON, 0),
                         tg_tokens_open(w.ctx, in(&w, "text"), TG_TOKENS_TEXT, 0),
                         tg_tokens_open(w.ctx, in(&w, "b"), TG_TOKENS_MEGATRON, 0)};
    tg_tokens *t = tg_tokens_join(w.ctx, part, 3);
    ck_assert_int_eq(tg_tokens_documents(t), 5);
    ck_assert_int_eq(tg_tokens_count(t), 15);
    static const char all[] = "ab.cd.xyzefg.h.", predicted[] = "ab._d.xyz__g.h.", within[] = "_b._d._yz__g._.";
    static const int64_t ends[] = {3, 3, 3, 6, 6, 6, 9, 9, 9, 13, 13, 13, 13, 15, 15};
    for (int64_t first = 0; first < 15; first++)
        for (int64_t n = 1; n <= 14; n++) {
            char packed[64], apart[64];
            snprintf(packed, sizeof packed, "%.*s %.*s", (int)n, all + first, (int)n, predicted + first + 1);
            if (first + n < 15) ck_assert_str_eq(window(t, first, n, TG_WINDOWS_ACROSS), packed);
            snprintf(packed, sizeof packed, "%.*s %.*s", (int)n, all + first, (int)n, within + first + 1);
            if (first + n < 15) ck_assert_str_eq(window(t, first, n, TG_WINDOWS_PACKED), packed);
            for (int64_t i = 0; i < n; i++) {
                apart[i] = first + i < ends[first] ? all[first + i] : '0';
                apart[n + 1 + i] = first + i + 1 < ends[first] ? predicted[first + 1 + i] : '_';
            }
            apart[n] = ' ', apart[2 * n + 1] = 0;
            ck_assert_str_eq(window(t, first, n, TG_WINDOWS_PADDED), apart);
        }
    int64_t out[2];
    tg_tokens_read(t, 14, 2, out);
    expect_error(w.ctx, TG_ERR_ARGUMENT, "the joined files have 15");
    tg_tokens_close(t);
    workplace_free(&w);
}
END_TEST

/* Returns whether the table of n + 1 documents at p is valid for that many sequences. */
static bool is_table(const unsigned char *p, uint64_t n, uint64_t sequences) {
    uint64_t before = 0, entry;
    for (uint64_t i = 0; i <= n; i++, before = entry) {
        memcpy(&entry, p + 8 * i, 8);
        if (entry < before || entry > sequences || (i == 0 && entry)) return false;
    }
    return before == sequences;
}

START_TEST(every_flipped_bit_of_an_index_is_found) {
    enum { DOCUMENTS = 4, SEQUENCES = 5, TABLE = 34 + 12 * SEQUENCES, MODES = TABLE + 8 * (DOCUMENTS + 1) };
    workplace w = workplace_new(NULL);
    unsigned char index[MODES + SEQUENCES + 1];
    write_documents(&w, "d", "a.[b]c.d.e.", 300);
    FILE *f = fopen(in(&w, "d.idx"), "rb");
    size_t size = fread(index, 1, sizeof index, f);
    fclose(f);
    ck_assert_uint_eq(size, MODES + SEQUENCES);
    int accepted = 0;
    for (size_t bit = 0; bit < 8 * size; bit++) {
        size_t at = bit / 8;
        index[at] ^= (unsigned char)(1 << bit % 8);
        put_file(&w, "d.idx", index, size);
        tg_tokens *t = tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 300);
        /* What no reader can notice: another document or mode of a sequence, and ids whose sign is not used. */
        bool valid = (at >= TABLE && at < MODES && is_table(index + TABLE, DOCUMENTS, SEQUENCES)) ||
                     (at >= MODES && index[at] <= 1);
        ck_assert_msg(!t == !valid, "bit %zu of byte %zu", bit % 8, at);
        if (!t) ck_assert_int_eq(tg_ctx_status(w.ctx), TG_ERR_FORMAT);
        accepted += t != NULL;
        tg_tokens_close(t);
        tg_ctx_clear(w.ctx);
        index[at] ^= (unsigned char)(1 << bit % 8);
    }
    ck_assert_int_le(accepted, SEQUENCES + 3 * DOCUMENTS);
    workplace_free(&w);
}
END_TEST

START_TEST(wrong_tables_are_refused) {
    static const struct {
        uint64_t entry[3];
        const char *says;
    } tables[] = {{{1, 1, 2}, "entry 0 of its table of documents is 1, expected a sequence from 0 to 0"},
                  {{0, 3, 2}, "entry 1 of its table of documents is 3, expected a sequence from 0 to 2"},
                  {{0, 2, 1}, "entry 2 of its table of documents is 1, expected a sequence from 2 to 2"}};
    workplace w = workplace_new(NULL);
    unsigned char index[128];
    const int32_t lengths[] = {2, 3};
    const int64_t pointers[] = {0, 2}, entries = 3;
    put_file(&w, "d.bin", "abcde", 5);
    size_t n = put_index(index, 1, 2, lengths, pointers) + 8;
    memcpy(index + 26, &entries, 8);
    for (size_t i = 0; i < COUNT(tables); i++) {
        memcpy(index + n - 24, tables[i].entry, 24);
        put_file(&w, "d.idx", index, n);
        ck_assert_ptr_null(tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0));
        expect_error(w.ctx, TG_ERR_FORMAT, tables[i].says);
    }
    const uint64_t empty[] = {0, 2, 2}; /* the second document is empty, as Megatron-LM may write it */
    memcpy(index + n - 24, empty, 24);
    put_file(&w, "d.idx", index, n);
    tg_tokens *t = tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0);
    ck_assert_int_eq(tg_tokens_documents(t), 2);
    tg_tokens_close(t);
    index[n] = 0;
    put_file(&w, "d.idx", index, n + 1);
    tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0);
    expect_error(w.ctx, TG_ERR_FORMAT, "more bytes than its header counts");
    index[n] = 0, index[n + 1] = 2;
    put_file(&w, "d.idx", index, n + 2);
    tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0);
    expect_error(w.ctx, TG_ERR_FORMAT, "sequence 1 has mode 2, expected 0");
    const int64_t none[] = {1, 2}; /* one entry, the number of sequences: no document */
    memcpy(index + 26, none, 8);
    memcpy(index + n - 24, none + 1, 8);
    put_file(&w, "d.idx", index, n - 16);
    ck_assert_ptr_null(tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0));
    expect_error(w.ctx, TG_ERR_FORMAT, "lists no document");
    workplace_free(&w);
}
END_TEST

START_TEST(any_failing_call_leaves_no_half_dataset) {
    faulty f = {0};
    tg_file_ops ops = faulty_ops(&f);
    workplace w = workplace_new(TG_CONFIG(.files = &ops));
    const int64_t ids[] = {1, 2, 3};
    for (int fail = 1, done = 0; !done; fail++) {
        f = (faulty){.fail = fail, .error = EIO};
        tg_token_writer *to = tg_token_writer_open(w.ctx, in(&w, "d"), 256);
        tg_token_writer_add(to, ids, 3, false);
        tg_token_writer_commit(to);
        done = f.calls < fail;
        f.fail = 0;
        tg_ctx_clear(w.ctx);
        tg_tokens *t = access(in(&w, "d.idx"), F_OK) ? NULL : tg_tokens_open(w.ctx, in(&w, "d"), TG_TOKENS_MEGATRON, 0);
        ck_assert_msg(tg_ctx_status(w.ctx) == TG_OK, "%s", tg_ctx_message(w.ctx));
        if (done) ck_assert_ptr_nonnull(t);
        tg_tokens_close(t);
        unlink(in(&w, "d.idx"));
        unlink(in(&w, "d.bin"));
    }
    workplace_free(&w);
}
END_TEST

int main(void) {
    const TTest *tests[] = {megatron_datasets_are_read_as_one_stream, negative_ids_are_refused,
                            written_documents_are_read_again, a_refused_call_adds_no_token,
                            joined_streams_are_one,
                            every_flipped_bit_of_an_index_is_found, wrong_tables_are_refused,
                            any_failing_call_leaves_no_half_dataset};
    return tg_check_main("megatron", tests, COUNT(tests));
}
