/* Megatron-LM's indexed datasets, written by hand. */
#define _GNU_SOURCE
#include <tapegrad/io.h>

#include "io_fixture.h"

/* Writes an index of n sequences with these lengths and pointers, for tokens of the dtype with this code. */
static size_t put_index(unsigned char *to, int code, int n, const int32_t *length, const int64_t *pointer) {
    const uint64_t header[] = {1, (uint64_t)n, 1};
    size_t at = 0;
    memcpy(to, "MMIDIDX\0", 9);
    memcpy(to + 9, header, 8);
    to[17] = (unsigned char)code;
    memcpy(to + 18, header + 1, 16);
    at = 34;
    memcpy(to + at, length, 4 * (size_t)n);
    memcpy(to + at + 4 * (size_t)n, pointer, 8 * (size_t)n);
    at += 12 * (size_t)n;
    memset(to + at, 0, 16);
    return at + 16;
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

int main(void) {
    const TTest *tests[] = {megatron_datasets_are_read_as_one_stream, negative_ids_are_refused};
    return tg_check_main("megatron", tests, COUNT(tests));
}
