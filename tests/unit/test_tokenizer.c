/* Tokenizers: ids and text of small tokenizers, streams of text, threads, and training. tests/text compares them with
 * another library. */
#define _GNU_SOURCE
#include <pthread.h>

#include <tapegrad/tapegrad.h>
#include <tapegrad/tokenizer.h>

#include "base/plugin.h"
#include "unit/io_fixture.h"
#include "unit/tokenizer_files.h"

static tg_tokenizer *load(workplace *w, const char *file) {
    tg_file_save(w->ctx, in(w, "tokenizer.json"), file, strlen(file));
    tg_tokenizer *k = tg_tokenizer_load(w->ctx, in(w, "tokenizer.json"));
    ck_assert_msg(k != NULL, "%s", tg_ctx_message(w->ctx));
    return k;
}

/* Writes ids as "1 2 3". */
static const char *ids_text(const tg_ids *ids) {
    static char text[512];
    int at = 0;
    text[0] = 0;
    for (int64_t i = 0; i < ids->count; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%lld", i ? " " : "", (long long)ids->ids[i]);
    return text;
}

#define ENCODES(k, text, expected, ...)                                                                                \
    do {                                                                                                               \
        tg_ids ids_ = {0};                                                                                             \
        ck_assert_int_eq(tg_tokenizer_encode(k, text, sizeof text - 1, TG_ENCODE(__VA_ARGS__), &ids_), TG_OK);         \
        ck_assert_str_eq(ids_text(&ids_), expected);                                                                   \
        tg_ids_free(&ids_);                                                                                            \
    } while (0)

/* Decodes ids that end with -1. Each piece must be UTF-8, which is checked by joining them with '|'. */
static const char *decode(const tg_tokenizer *k, bool skip, const int64_t *ids) {
    static char text[512];
    tg_decoder *d = tg_decoder_new(k, skip);
    text[0] = 0;
    size_t n;
    for (; *ids >= 0; ids++) {
        strcat(text, tg_decoder_push(d, *ids, &n));
        strcat(text, "|");
    }
    strcat(text, tg_decoder_finish(d, NULL));
    tg_decoder_free(d);
    return text;
}

#define DECODES(k, skip, expected, ...) ck_assert_str_eq(decode(k, skip, (int64_t[]){__VA_ARGS__, -1}), expected)

START_TEST(merges_have_an_order) {
    workplace w = workplace_new(NULL);
    tg_tokenizer *k = load(&w, SENTENCE_PIECE);
    ENCODES(k, "ab abc", "15 15 12");
    ENCODES(k, "bc", "9 16");
    ENCODES(k, "a", "13");
    ENCODES(k, "", "");
    ENCODES(k, "ab", "1 15", .special = true);
    ENCODES(k, "", "1", .special = true);
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

START_TEST(unknown_characters_are_bytes_or_one_token) {
    workplace w = workplace_new(NULL);
    tg_tokenizer *k = load(&w, SENTENCE_PIECE);
    ENCODES(k, "\xc3\xa9", "9 3 4");
    ENCODES(k, "dda", "9 0 10");
    ENCODES(k, "a\0b", "13 0 11");
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

START_TEST(added_tokens_are_found_first) {
    workplace w = workplace_new(NULL);
    tg_tokenizer *k = load(&w, SENTENCE_PIECE);
    ENCODES(k, "a</s>b", "13 2 9 11");
    ENCODES(k, "a</s>", "13 0", .literal = true);
    ENCODES(k, "a \t[X]  b", "13 17 9 11");
    ENCODES(k, "[X][X]", "17 17");
    ck_assert_int_eq(tg_tokenizer_size(k), 18);
    ck_assert_int_eq(tg_tokenizer_id(k, "[X]"), 17);
    ck_assert_str_eq(tg_tokenizer_token(k, 15), MARK "ab");
    ck_assert(tg_tokenizer_is_special(k, 17) && !tg_tokenizer_is_special(k, 0));
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

#define BARE_MODEL                                                                                                     \
    "{\"type\": \"BPE\", \"vocab\": {\"" MARK "\": 0, \"b\": 1, \"b" MARK "\": 2}, \"merges\": [\"b " MARK "\"]}"
#define BARE(added) FILE_OF(BARE_MODEL, added, "null", "null", "null", "null")

START_TEST(white_space_around_tokens_is_taken_once) {
    workplace w = workplace_new(NULL);
    tg_tokenizer *k = load(&w, BARE("[" TOKEN("3", "  ", ", \"lstrip\": true, \"rstrip\": true") "]"));
    ENCODES(k, "b  b", "1 3 1");
    ENCODES(k, "b     b", "1 3 1");
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

START_TEST(characters_around_a_dropped_one_are_merged) {
    workplace w = workplace_new(NULL);
    tg_tokenizer *k = load(&w, BARE("[]"));
    ENCODES(k, "b" MARK MARK, "2 0");
    ENCODES(k, "b?" MARK, "2");
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

START_TEST(pieces_are_whole_characters) {
    workplace w = workplace_new(NULL);
    tg_tokenizer *k = load(&w, SENTENCE_PIECE);
    DECODES(k, true, "ab| ab|c|", 15, 15, 12);
    DECODES(k, true,
            "||||\xf0\x9f\x91\x8d"
            "a|",
            5, 6, 7, 8, 10);
    DECODES(k, true,
            "|||\xef\xbf\xbd\xef\xbf\xbd"
            "a|",
            1, 5, 6, 10);
    DECODES(k, false, "<s>||\xef\xbf\xbd", 1, 5);
    DECODES(k, false, "a||b|", 10, 99, 11);
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

START_TEST(bytes_are_any_bytes) {
    workplace w = workplace_new(NULL);
    tg_tokenizer *k = tg_tokenizer_new_bytes(w.ctx);
    ENCODES(k, "a\0\xff\n", "97 0 255 10");
    DECODES(k, true, "a||\xc3\xa9|", 97, 0xc3, 0xa9);
    DECODES(k, true,
            "||\xef\xbf\xbd"
            "a||\xef\xbf\xbd|",
            0xe2, 0x96, 97, 0x100, 0xff);
    DECODES(k, true, "|\xef\xbf\xbd", 0xf0);
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

START_TEST(broken_text_is_refused_with_its_place) {
    workplace w = workplace_new(NULL);
    tg_tokenizer *k = load(&w, SENTENCE_PIECE);
    tg_ids ids = {0};
    tg_ctx *own = tg_ctx_new(NULL);
    tg_tokenizer_encode(k, "ab", 2, NULL, &ids);
    ck_assert_int_eq(tg_tokenizer_encode(k, "ab\xff", 3, TG_ENCODE(.errors = own), &ids), TG_ERR_DATA);
    ck_assert_ptr_nonnull(strstr(tg_ctx_message(own), "byte 0xff at offset 2"));
    ck_assert_int_eq(tg_ctx_status(w.ctx), TG_OK);
    ck_assert_str_eq(ids_text(&ids), "15");
    tg_ids_free(&ids);
    tg_ctx_free(own);
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

/* ---- Threads ---- */

static void *encode_often(void *k) {
    bool good = true;
    for (int i = 0; i < 300; i++) {
        tg_ids ids = {0};
        good = good && tg_tokenizer_encode(k, "ab abc \xc3\xa9[X]bc", 14, NULL, &ids) == TG_OK && ids.count == 9;
        tg_ids_free(&ids);
    }
    return good ? k : NULL;
}

START_TEST(threads_share_a_tokenizer) {
    workplace w = workplace_new(NULL);
    tg_tokenizer *k = load(&w, SENTENCE_PIECE);
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) pthread_create(&thread[i], NULL, encode_often, k);
    for (int i = 0; i < 4; i++) {
        void *good;
        pthread_join(thread[i], &good);
        ck_assert_ptr_nonnull(good);
    }
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

/* ---- Training ---- */

/* "aaab" and " aaab": the pair aa is there 4 times. After that aa+a and a+b are there twice; the pair with the least
 * ids, a+b, is merged first. */
START_TEST(the_most_frequent_pair_is_merged_first) {
    if (!tg_plugin_is_here("text")) return;
    workplace w = workplace_new(NULL);
    tg_bpe *b = tg_bpe_new(w.ctx, TG_BPE(.vocab = 300));
    ck_assert_int_eq(tg_bpe_add(b, "aaab aaab", 9), TG_OK);
    ck_assert_int_eq(tg_bpe_words(b), 2);
    ck_assert_int_eq(tg_bpe_save(b, w.dir, NULL, NULL), TG_OK);
    tg_bpe_free(b);
    tg_tokenizer *k = tg_tokenizer_load(w.ctx, w.dir);
    int64_t end = -1;
    ck_assert_str_eq(tg_tokenizer_token(k, 257), "aa");
    ck_assert_str_eq(tg_tokenizer_token(k, 258), "ab");
    ck_assert_str_eq(tg_tokenizer_token(k, 259), "aaab");
    ck_assert_int_eq(tg_tokenizer_size(k), 260);
    ck_assert(tg_tokenizer_ends(k, &end, 1) == 1 && end == 0);
    ENCODES(k, "aaab<|endoftext|>aa", "259 0 257");
    DECODES(k, false, "aaab|<|endoftext|>|", 259, 0);
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

static void *small_alloc(void *user, size_t bytes, size_t align) {
    void *p = NULL;
    (void)user;
    return bytes <= 1 << 20 && posix_memalign(&p, align < 16 ? 16 : align, bytes) == 0 ? p : NULL;
}

static void small_free(void *user, void *p, size_t bytes) {
    (void)user, (void)bytes;
    free(p);
}

/* A vocabulary that may be large takes memory for the tokens that the text gives. */
START_TEST(a_small_text_takes_little_memory) {
    if (!tg_plugin_is_here("text")) return;
    workplace w = workplace_new(NULL);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1, .allocator = {small_alloc, small_free, NULL}));
    tg_bpe *b = tg_bpe_new(ctx, TG_BPE(.vocab = INT32_MAX, .min_frequency = 0, .special = "<a>\n<b>"));
    tg_bpe_add(b, "aaab aaab abc", 13);
    ck_assert_msg(tg_bpe_save(b, w.dir, NULL, NULL) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_bpe_free(b);
    tg_ctx_free(ctx);
    tg_tokenizer *k = tg_tokenizer_load(w.ctx, w.dir);
    ENCODES(k, "aaab aaab abc", "260 262 263");
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

START_TEST(words_are_cut_by_the_pattern) {
    if (!tg_plugin_is_here("text")) return;
    workplace w = workplace_new(NULL);
    tg_bpe *b = tg_bpe_new(w.ctx, TG_BPE(.vocab = 300, .pattern = "\\p{N}{1,2}|[^\\p{N}]+", .special = ""));
    tg_bpe_add(b, "12345 \xc3\xa9\n", 10);
    ck_assert_int_eq(tg_bpe_words(b), 4);
    ck_assert_int_eq(tg_bpe_save(b, w.dir, NULL, NULL), TG_OK);
    tg_bpe_free(b);
    tg_tokenizer *k = tg_tokenizer_load(w.ctx, w.dir);
    ck_assert_int_eq(tg_tokenizer_size(k), 256);
    ck_assert_int_eq(tg_tokenizer_ends(k, NULL, 0), 0);
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

/* Returns the number of different words into which the expression cuts the text. */
static int64_t words_of(workplace *w, const char *pattern, const char *text) {
    tg_bpe *b = tg_bpe_new(w->ctx, TG_BPE(.pattern = pattern));
    ck_assert_msg(tg_bpe_add(b, text, strlen(text)) == TG_OK, "%s: %s", pattern, tg_ctx_message(w->ctx));
    int64_t n = tg_bpe_words(b);
    tg_bpe_free(b);
    return n;
}

START_TEST(expressions_mean_what_they_mean_in_oniguruma) {
    if (!tg_plugin_is_here("text")) return;
    workplace w = workplace_new(NULL);
    ck_assert_int_eq(words_of(&w, "[\\s-.]|[^\\s-.]+", "a-b.c d"), 7);
    /* U+3002 has the script Common, but Han is among its script extensions. */
    ck_assert_int_eq(words_of(&w, "\\p{Han}+|\\P{Han}+", "\xe6\xbc\xa2\xe3\x80\x82"), 2);
    ck_assert_int_eq(words_of(&w, "\\p{^Han}+|[\\p{Han}]+", "\xe6\xbc\xa2\xe3\x80\x82"), 2);
    workplace_free(&w);
}
END_TEST

#define REPLACE_RUNS "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"a*\"}, \"content\": \"c\"}"

START_TEST(an_empty_match_after_a_match_is_not_replaced) {
    if (!tg_plugin_is_here("text")) return;
    workplace w = workplace_new(NULL);
    tg_tokenizer *k = load(&w, FILE_OF(MODEL, "[]", REPLACE_RUNS, "null", "null", "null"));
    ENCODES(k, "baab", "12 16 16");
    ENCODES(k, "aa", "12");
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

#define FIRST_ONLY "{\"type\": \"Metaspace\", \"prepend_scheme\": \"first\", \"split\": false}"

START_TEST(an_empty_match_does_not_begin_the_text_again) {
    if (!tg_plugin_is_here("text")) return;
    workplace w = workplace_new(NULL);
    tg_tokenizer *k = load(&w, FILE_OF(MODEL, ADDED, REPLACE_RUNS, FIRST_ONLY, "null", "null"));
    ENCODES(k, "b</s>b", "9 12 16 2 12 16");
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

#define A_IS_B "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"b\"}"
#define SOUGHT(content, special)                                                                                       \
    "{\"id\": 0, \"content\": \"" content "\", \"normalized\": true, \"special\": " special "}"

START_TEST(of_tokens_that_are_normalized_to_one_text_the_first_is_found) {
    workplace w = workplace_new(NULL);
    tg_tokenizer *k = load(
        &w, FILE_OF(MODEL, "[" SOUGHT("aa", "false") ", " SOUGHT("ab", "false") "]", A_IS_B, "null", "null", "null"));
    ENCODES(k, "aacbb", "17 12 17");
    tg_tokenizer_free(k);
    k = load(&w,
             FILE_OF(MODEL, "[" SOUGHT("aa", "false") ", " SOUGHT("ab", "true") "]", A_IS_B, "null", "null", "null"));
    ENCODES(k, "aacbb", "14 12 14");
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        merges_have_an_order,
        unknown_characters_are_bytes_or_one_token,
        added_tokens_are_found_first,
        pieces_are_whole_characters,
        bytes_are_any_bytes,
        broken_text_is_refused_with_its_place,
        threads_share_a_tokenizer,
        the_most_frequent_pair_is_merged_first,
        a_small_text_takes_little_memory,
        words_are_cut_by_the_pattern,
        expressions_mean_what_they_mean_in_oniguruma,
        an_empty_match_after_a_match_is_not_replaced,
        an_empty_match_does_not_begin_the_text_again,
        of_tokens_that_are_normalized_to_one_text_the_first_is_found,
        white_space_around_tokens_is_taken_once,
        characters_around_a_dropped_one_are_merged,
    };
    return tg_check_main("tokenizer", tests, sizeof tests / sizeof *tests);
}
