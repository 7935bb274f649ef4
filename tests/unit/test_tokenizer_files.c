/* Files of tokenizers: what is refused, and how it is named; the other files of a directory; files and memory that
 * fail. */
#define _GNU_SOURCE
#include <tapegrad/tapegrad.h>
#include <tapegrad/tokenizer.h>

#include "base/plugin.h"
#include "unit/io_fixture.h"
#include "unit/tokenizer_files.h"

static void save(workplace *w, const char *name, const char *text) {
    ck_assert_int_eq(tg_file_save(w->ctx, in(w, name), text, strlen(text)), TG_OK);
}

typedef struct wrong_file {
    const char *file;
    tg_status status;
    const char *says;
} wrong_file;

#define STEP(type, rest)         "{\"type\": \"" type "\"" rest "}"
#define WITH_MODEL(model)        FILE_OF(model, ADDED, "null", "null", "null", "null")
#define WITH_NORMALIZER(step)    FILE_OF(MODEL, ADDED, step, "null", "null", "null")
#define WITH_SPLIT(step)         FILE_OF(MODEL, ADDED, "null", step, "null", "null")
#define WITH_POST(step)          FILE_OF(MODEL, ADDED, "null", "null", step, "null")
#define WITH_DECODER(step)       FILE_OF(MODEL, ADDED, "null", "null", "null", step)
#define BPE(vocab, merges, rest) "{\"type\": \"BPE\", \"vocab\": " vocab ", \"merges\": " merges rest "}"

#define ONE_STEP      STEP("Metaspace", ", \"prepend_scheme\": \"never\"")
#define FOUR_STEPS    ONE_STEP ", " ONE_STEP ", " ONE_STEP ", " ONE_STEP
#define SIXTEEN_STEPS FOUR_STEPS ", " FOUR_STEPS ", " FOUR_STEPS ", " FOUR_STEPS

static const wrong_file files[] = {
    {"[]", TG_ERR_FORMAT, "a JSON array, expected an object"},
    {"{", TG_ERR_FORMAT, "is not JSON"},
    {WITH_MODEL("null"), TG_ERR_FORMAT, "key \"model\": expected an object"},
    {WITH_MODEL("{\"type\": \"Unigram\"}"), TG_ERR_UNSUPPORTED, "the model is 'Unigram'"},
    {WITH_MODEL("{\"type\": \"WordPiece\"}"), TG_ERR_UNSUPPORTED, "the model is 'WordPiece'"},
    {WITH_MODEL(BPE("{\"a\": 0}", "[]", ", \"dropout\": 0.1")), TG_ERR_UNSUPPORTED, "the dropout of the model"},
    {WITH_MODEL(BPE("{\"a\": 0}", "[]", ", \"end_of_word_suffix\": \"</w>\"")), TG_ERR_UNSUPPORTED, "'</w>'"},
    {WITH_MODEL(BPE("{\"a\": -1}", "[]", "")), TG_ERR_FORMAT, "the id of token 'a'"},
    {WITH_MODEL(BPE("{\"a\": \"0\"}", "[]", "")), TG_ERR_FORMAT, "the id of token 'a'"},
    {WITH_MODEL(BPE("{\"a\": 1, \"b\": 1}", "[]", "")), TG_ERR_FORMAT, "'a' and 'b' have the same id, 1"},
    {WITH_MODEL(BPE("{\"a\": 0, \"b\": 1}", "[\"a b\"]", "")), TG_ERR_FORMAT, "a merge has the token 'ab'"},
    {WITH_MODEL(BPE("{\"a\": 0}", "[\"a b\"]", "")), TG_ERR_FORMAT, "a merge has the token 'b'"},
    {WITH_MODEL(BPE("{\"a\": 0}", "[\"a\"]", "")), TG_ERR_FORMAT, "merge 0 is not a pair"},
    {WITH_MODEL(BPE("{\"a\": 0}", "[\"a a a\"]", "")), TG_ERR_FORMAT, "merge 0 is not a pair"},
    {WITH_MODEL(BPE("{\"a\": 0}", "[[\"a\", 1]]", "")), TG_ERR_FORMAT, "merge 0 is not a pair"},
    {WITH_MODEL(BPE("{\"a\": 0}", "3", "")), TG_ERR_FORMAT, "key \"merges\": expected an array"},
    {WITH_MODEL(BPE("{\"a\": 0}", "[]", ", \"unk_token\": \"u\"")), TG_ERR_FORMAT, "lacks the unknown token 'u'"},
    {WITH_MODEL(BPE("{\"a\": 0}", "[]", ", \"fuse_unk\": 1")), TG_ERR_FORMAT,
     "key \"fuse_unk\": expected true or false"},
    {FILE_OF(MODEL, "[3]", "null", "null", "null", "null"), TG_ERR_FORMAT, "added token 0 is not an object"},
    {FILE_OF(MODEL, "[{\"id\": 3}]", "null", "null", "null", "null"), TG_ERR_FORMAT, "has no content"},
    {WITH_NORMALIZER(STEP("Precompiled", "")), TG_ERR_UNSUPPORTED, "the normalizer is 'Precompiled'"},
    {WITH_NORMALIZER(STEP("Lowercase", "")), TG_ERR_UNSUPPORTED, "the normalizer is 'Lowercase'"},
    {WITH_NORMALIZER(STEP("Replace", ", \"content\": \"\", \"pattern\": {\"String\": \"\"}")), TG_ERR_UNSUPPORTED,
     "the pattern of the normalizer Replace is empty"},
    {WITH_NORMALIZER("{}"), TG_ERR_UNSUPPORTED, "the normalizer is ''"},
    {WITH_NORMALIZER("7"), TG_ERR_FORMAT, "key \"normalizer\": expected an object"},
    {WITH_SPLIT(STEP("BertPreTokenizer", "")), TG_ERR_UNSUPPORTED, "the pre-tokenizer is 'BertPreTokenizer'"},
    {WITH_SPLIT(STEP("Sequence", ", \"pretokenizers\": [3]")), TG_ERR_UNSUPPORTED,
     "\"pre_tokenizer\" is not an object"},
    {WITH_SPLIT(STEP("Split", ", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"Odd\"")), TG_ERR_UNSUPPORTED,
     "'Odd'"},
    {WITH_SPLIT(STEP("Metaspace", ", \"prepend_scheme\": \"last\"")), TG_ERR_UNSUPPORTED, "'last'"},
    {WITH_SPLIT(STEP("Metaspace", ", \"replacement\": \"ab\"")), TG_ERR_UNSUPPORTED, "is 'ab', expected one character"},
    {WITH_SPLIT(STEP("Sequence", ", \"pretokenizers\": [" SIXTEEN_STEPS ", " ONE_STEP "]")), TG_ERR_UNSUPPORTED,
     "the pre-tokenizer has too many steps, expected at most 16"},
    {WITH_POST(STEP("BertProcessing", "")), TG_ERR_UNSUPPORTED, "the post-processor is 'BertProcessing'"},
    {WITH_POST(STEP("TemplateProcessing", ", \"single\": []")), TG_ERR_UNSUPPORTED,
     "the template has 0 sequences, expected 1"},
    {WITH_POST(STEP("TemplateProcessing", ", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}]")), TG_ERR_FORMAT,
     "a special token without ids"},
    {WITH_POST(STEP("TemplateProcessing", ", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}, {\"Sequence\": {}}], "
                                          "\"special_tokens\": {\"x\": {\"ids\": [\"1\"]}}")),
     TG_ERR_FORMAT, "id 0 of a special token of the template is not an integer"},
    {WITH_DECODER(STEP("WordPiece", "")), TG_ERR_UNSUPPORTED, "the decoder is 'WordPiece'"},
    {WITH_DECODER(STEP("Sequence", ", \"decoders\": [" STEP("Fuse", "") ", " STEP("ByteFallback", "") "]")),
     TG_ERR_UNSUPPORTED, "the decoder after the one that joins tokens is 'ByteFallback'"},
    {WITH_DECODER(STEP("Strip", ", \"content\": \"ab\", \"start\": 1, \"stop\": 0")), TG_ERR_UNSUPPORTED,
     "is 'ab', expected one character"},
};

START_TEST(what_is_not_known_is_named) {
    workplace w = workplace_new(NULL);
    for (size_t i = 0; i < COUNT(files); i++) {
        save(&w, "tokenizer.json", files[i].file);
        ck_assert_ptr_null(tg_tokenizer_load(w.ctx, w.dir));
        ck_assert_msg(tg_ctx_status(w.ctx) == files[i].status && strstr(tg_ctx_message(w.ctx), files[i].says),
                      "file %zu: %s, expected '%s'", i, tg_ctx_message(w.ctx), files[i].says);
        ck_assert_ptr_nonnull(strstr(tg_ctx_message(w.ctx), "tokenizer.json'"));
        tg_ctx_clear(w.ctx);
    }
    workplace_free(&w);
}
END_TEST

START_TEST(a_pre_tokenizer_may_have_16_steps) {
    workplace w = workplace_new(NULL);
    save(&w, "tokenizer.json", WITH_SPLIT(STEP("Sequence", ", \"pretokenizers\": [" SIXTEEN_STEPS "]")));
    tg_tokenizer *k = tg_tokenizer_load(w.ctx, w.dir);
    ck_assert_msg(k != NULL, "%s", tg_ctx_message(w.ctx));
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

#define REGEX(text) WITH_SPLIT(STEP("Split", ", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": \"" text "\"}"))

static const wrong_file patterns[] = {
    {REGEX("a{1,3}+"), TG_ERR_UNSUPPORTED, "a plus after a count at offset 6"},
    {REGEX("a{2}?"), TG_ERR_UNSUPPORTED, "a question mark after {n} at offset 4"},
    {REGEX("^a"), TG_ERR_UNSUPPORTED, "an anchor at offset 0"},
    {REGEX("a\\\\b"), TG_ERR_UNSUPPORTED, "an escape at offset 1"},
    {REGEX("(?<=a)b"), TG_ERR_UNSUPPORTED, "a group of another kind at offset 0"},
    {REGEX("[a[b]]"), TG_ERR_UNSUPPORTED, "a class in a class at offset 2"},
    {REGEX("[a&&b]"), TG_ERR_UNSUPPORTED, "an intersection of classes at offset 2"},
    {REGEX("[\\\\S]"), TG_ERR_UNSUPPORTED, "\\S in a class at offset 1"},
    {REGEX("\\\\pL"), TG_ERR_UNSUPPORTED, "a property without braces at offset 0"},
    {REGEX("[a"), TG_ERR_UNSUPPORTED, "an open class"},
    {REGEX("[^]a]"), TG_ERR_UNSUPPORTED, "a class that begins with ] at offset 2"},
    {REGEX("a{x}"), TG_ERR_UNSUPPORTED, "a brace at offset 1"},
    {REGEX("(a"), TG_ERR_FORMAT, "the regular expression '(a' is wrong"},
    {REGEX("\\\\p{Nonsense}"), TG_ERR_FORMAT, "is wrong"},
    {FILE_OF(MODEL, "[{\"id\": 17, \"content\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}]",
             STEP("Replace", ", \"content\": \"\", \"pattern\": {\"Regex\": \"(?:a|a)*[bc]\"}"), "null", "null",
             "null"),
     TG_ERR_UNSUPPORTED, "an added token cannot be normalized: matching a regular expression of the normalizer takes"},
};

START_TEST(expressions_that_mean_something_else_are_refused) {
    if (!tg_plugin_is_here("text")) return;
    workplace w = workplace_new(NULL);
    for (size_t i = 0; i < COUNT(patterns); i++) {
        save(&w, "tokenizer.json", patterns[i].file);
        ck_assert_ptr_null(tg_tokenizer_load(w.ctx, w.dir));
        ck_assert_msg(tg_ctx_status(w.ctx) == patterns[i].status && strstr(tg_ctx_message(w.ctx), patterns[i].says),
                      "pattern %zu: %s, expected '%s'", i, tg_ctx_message(w.ctx), patterns[i].says);
        tg_ctx_clear(w.ctx);
    }
    workplace_free(&w);
}
END_TEST

/* ---- The other files ---- */

START_TEST(a_directory_says_what_ends_a_text) {
    workplace w = workplace_new(NULL);
    int64_t ends[4] = {-1, -1, -1, -1};
    save(&w, "tokenizer.json", SENTENCE_PIECE);
    save(&w, "tokenizer_config.json",
         "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", "
         "\"chat_template\": [{\"name\": \"tool\", \"template\": \"t\"}, {\"name\": \"default\", \"template\": "
         "\"d\"}]}");
    save(&w, "generation_config.json", "{\"eos_token_id\": [17, 2, 99], \"bos_token_id\": 17}");
    tg_tokenizer *k = tg_tokenizer_load(w.ctx, w.dir);
    ck_assert_int_eq(tg_tokenizer_bos(k), 1);
    ck_assert_int_eq(tg_tokenizer_ends(k, ends, 4), 2);
    ck_assert(ends[0] == 2 && ends[1] == 17 && ends[2] == -1);
    ck_assert_str_eq(tg_tokenizer_chat_template(k), "d");
    tg_tokenizer_free(k);
    save(&w, "chat_template.jinja", "file");
    k = tg_tokenizer_load(w.ctx, w.dir);
    ck_assert_str_eq(tg_tokenizer_chat_template(k), "file");
    tg_tokenizer_free(k);
    k = tg_tokenizer_load(w.ctx, in(&w, "tokenizer.json"));
    ck_assert(tg_tokenizer_bos(k) == -1 && tg_tokenizer_ends(k, ends, 4) == 0 && !tg_tokenizer_chat_template(k));
    tg_tokenizer_free(k);
    workplace_free(&w);
}
END_TEST

START_TEST(a_model_s_config_says_it_if_no_other_file_does) {
    workplace w = workplace_new(NULL);
    int64_t end = -1;
    save(&w, "tokenizer.json", SENTENCE_PIECE);
    save(&w, "config.json", "{\"bos_token_id\": 1, \"eos_token_id\": 2}");
    tg_tokenizer *k = tg_tokenizer_load(w.ctx, w.dir);
    ck_assert(tg_tokenizer_bos(k) == 1 && tg_tokenizer_ends(k, &end, 1) == 1 && end == 2);
    tg_tokenizer_free(k);
    save(&w, "tokenizer_config.json", "{");
    ck_assert_ptr_null(tg_tokenizer_load(w.ctx, w.dir));
    ck_assert_ptr_nonnull(strstr(tg_ctx_message(w.ctx), "tokenizer_config.json' is not JSON"));
    workplace_free(&w);
}
END_TEST

/* ---- Files and memory that fail ---- */

START_TEST(a_directory_of_the_program_s_file_functions_is_found) {
    workplace w = workplace_new(NULL);
    tg_file_ops ops = elsewhere_ops(w.dir);
    int64_t end = -1;
    save(&w, "tokenizer.json", SENTENCE_PIECE);
    save(&w, "config.json", "{\"bos_token_id\": 1, \"eos_token_id\": 2}");
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.files = &ops));
    tg_tokenizer *k = tg_tokenizer_load(ctx, ELSEWHERE);
    ck_assert_msg(k != NULL, "%s", tg_ctx_message(ctx));
    ck_assert(tg_tokenizer_ends(k, &end, 1) == 1 && end == 2);
    tg_tokenizer_free(k);
    tg_ctx_free(ctx);
    workplace_free(&w);
}
END_TEST

START_TEST(every_call_on_files_may_fail) {
    workplace w = workplace_new(NULL);
    save(&w, "tokenizer.json", SENTENCE_PIECE);
    save(&w, "tokenizer_config.json", "{}");
    bool loaded = false;
    for (int fail = 1; !loaded; fail++) {
        faulty f = {.fail = fail, .error = EIO};
        tg_file_ops ops = faulty_ops(&f);
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.files = &ops));
        tg_tokenizer *k = tg_tokenizer_load(ctx, w.dir);
        loaded = f.calls < fail;
        ck_assert(k ? tg_ctx_status(ctx) == TG_OK : tg_ctx_status(ctx) == TG_ERR_IO);
        ck_assert(k || !loaded);
        tg_tokenizer_free(k);
        tg_ctx_free(ctx);
    }
    workplace_free(&w);
}
END_TEST

START_TEST(every_allocation_may_fail) {
    workplace w = workplace_new(NULL);
    save(&w, "tokenizer.json", SENTENCE_PIECE);
    bool loaded = false;
    for (int fail = 1; !loaded; fail++) {
        counted c = {0};
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.allocator = {counted_alloc, counted_free, &c}, .threads = 1));
        int held = c.held;
        c.fail = c.calls + fail;
        tg_tokenizer *k = tg_tokenizer_load(ctx, w.dir);
        loaded = c.calls < c.fail;
        ck_assert(k ? tg_ctx_status(ctx) == TG_OK : tg_ctx_status(ctx) == TG_ERR_MEMORY);
        tg_tokenizer_free(k);
        ck_assert_int_eq(c.held, held);
        tg_ctx_free(ctx);
    }
    workplace_free(&w);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        what_is_not_known_is_named,
        a_pre_tokenizer_may_have_16_steps,
        expressions_that_mean_something_else_are_refused,
        a_directory_says_what_ends_a_text,
        a_model_s_config_says_it_if_no_other_file_does,
        a_directory_of_the_program_s_file_functions_is_found,
        every_call_on_files_may_fail,
        every_allocation_may_fail,
    };
    return tg_check_main("tokenizer_files", tests, sizeof tests / sizeof *tests);
}
