/* The file layer, JSON and token streams. */
#define _GNU_SOURCE
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "io/json.h"
#include "io/names.h"
#include "io_fixture.h"

/* ---- Files ---- */

static bool holds(workplace *w, const char *name, const char *text) {
    char buf[256];
    size_t n = get_file(w, name, buf, sizeof buf);
    return n == strlen(text) && memcmp(buf, text, n) == 0;
}

START_TEST(a_saved_file_replaces_the_old_one) {
    workplace w = workplace_new(NULL);
    ck_assert_int_eq(tg_file_save(w.ctx, in(&w, "a"), "old", 3), TG_OK);
    ck_assert_int_eq(tg_file_save(w.ctx, in(&w, "a"), "newer", 5), TG_OK);
    ck_assert(holds(&w, "a", "newer"));
    ck_assert_int_eq(tg_file_save(w.ctx, in(&w, "empty"), NULL, 0), TG_OK);
    ck_assert(holds(&w, "empty", ""));
    ck_assert_int_eq(entries_in(w.dir), 2);
    workplace_free(&w);
}
END_TEST

START_TEST(only_regular_files_are_replaced) {
    workplace w = workplace_new(NULL);
    struct stat st;
    ck_assert_int_eq(mkfifo(in(&w, "pipe"), 0600), 0);
    ck_assert_int_eq(symlink("/dev/null", in(&w, "link")), 0);
    tg_file_save(w.ctx, in(&w, "pipe"), "new", 3);
    expect_error(w.ctx, TG_ERR_IO, "pipe' is a device, pipe or socket, expected a regular file or a new one");
    tg_file_save(w.ctx, in(&w, "link"), "new", 3);
    expect_error(w.ctx, TG_ERR_IO, "link' is a device");
    tg_file_save(w.ctx, w.dir, "new", 3);
    expect_error(w.ctx, TG_ERR_IO, "is a directory");
    ck_assert_int_eq(lstat(in(&w, "pipe"), &st), 0);
    ck_assert(S_ISFIFO(st.st_mode));
    ck_assert_int_eq(lstat(in(&w, "link"), &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    ck_assert_int_eq(entries_in(w.dir), 2);
    workplace_free(&w);
}
END_TEST

/* Includes closes that fail, and a directory that cannot be synced: then the new file is complete. */
START_TEST(any_failing_call_leaves_the_old_file_or_the_new) {
    faulty f = {.error = ENOSPC};
    tg_file_ops ops = faulty_ops(&f);
    workplace w = workplace_new(TG_CONFIG(.files = &ops));
    int files = open_files(), failures = 0;
    put_file(&w, "a", "old", 3);
    for (int n = 1;; n++) {
        f = (faulty){.fail = n, .error = ENOSPC};
        tg_status s = tg_file_save(w.ctx, in(&w, "a"), "new", 3);
        ck_assert_int_eq(entries_in(w.dir), 1);
        ck_assert_int_eq(open_files(), files);
        ck_assert(holds(&w, "a", "old") || holds(&w, "a", "new"));
        if (s == TG_OK) break;
        failures++;
        expect_error(w.ctx, TG_ERR_IO, w.dir);
        put_file(&w, "a", "old", 3);
    }
    ck_assert_int_ge(failures, 7); /* open, write, sync, close, rename, and the directory's open and sync */
    workplace_free(&w);
}
END_TEST

START_TEST(a_full_disk_is_reported_with_path_and_offset) {
    faulty f = {.most = 4, .fail = 4, .error = ENOSPC}; /* open, write 4, write 4, write */
    tg_file_ops ops = faulty_ops(&f);
    workplace w = workplace_new(TG_CONFIG(.files = &ops));
    ck_assert_int_eq(tg_file_save(w.ctx, in(&w, "a"), "0123456789", 10), TG_ERR_IO);
    ck_assert_ptr_nonnull(strstr(tg_ctx_message(w.ctx), w.path));
    ck_assert_ptr_nonnull(strstr(tg_ctx_message(w.ctx), "at offset 8"));
    expect_error(w.ctx, TG_ERR_IO, strerror(ENOSPC));
    ck_assert_int_eq(entries_in(w.dir), 0);
    f = (faulty){.fail = 1, .error = EACCES};
    tg_file_save(w.ctx, in(&w, "a"), "x", 1);
    expect_error(w.ctx, TG_ERR_IO, strerror(EACCES));
    workplace_free(&w);
}
END_TEST

START_TEST(short_and_interrupted_transfers_are_continued) {
    faulty f = {.most = 3, .interrupts = true};
    tg_file_ops ops = faulty_ops(&f);
    workplace w = workplace_new(TG_CONFIG(.files = &ops));
    const char text[] = "a text that takes several turns";
    ck_assert_int_eq(tg_file_save(w.ctx, in(&w, "a"), text, sizeof text - 1), TG_OK);
    ck_assert(holds(&w, "a", text));
    char *data;
    size_t n;
    ck_assert_int_eq(tg_file_load(w.ctx, in(&w, "a"), 100, &data, &n), TG_OK);
    ck_assert_uint_eq(n, sizeof text - 1);
    ck_assert_str_eq(data, text);
    tg_host_free(w.ctx, data, n + 1);
    workplace_free(&w);
}
END_TEST

START_TEST(unreadable_files_are_named) {
    workplace w = workplace_new(NULL);
    char *data;
    size_t n;
    tg_file_load(w.ctx, in(&w, "missing"), 100, &data, &n);
    expect_error(w.ctx, TG_ERR_IO, "missing");
    tg_file_load(w.ctx, w.dir, 100, &data, &n);
    expect_error(w.ctx, TG_ERR_IO, "a directory");
    ck_assert_int_eq(mkfifo(in(&w, "pipe"), 0600), 0);
    tg_file_load(w.ctx, in(&w, "pipe"), 100, &data, &n);
    expect_error(w.ctx, TG_ERR_IO, "expected a regular file");
    tg_file_load(w.ctx, put_file(&w, "long", "12345", 5), 4, &data, &n);
    expect_error(w.ctx, TG_ERR_FORMAT, "5 bytes, expected at most 4");
    tg_file_save(w.ctx, in(&w, "no/such/directory"), "x", 1);
    expect_error(w.ctx, TG_ERR_IO, "no/such/directory");
    tg_file_save(w.ctx, w.dir, "x", 1);
    expect_error(w.ctx, TG_ERR_IO, w.dir);
    workplace_free(&w);
}
END_TEST

START_TEST(utf8_is_checked) {
    static const struct {
        const char *s;
        size_t bad;
    } rows[] = {
        {"plain", 5},      {"\xc3\xa9", 2}, {"\xe2\x82\xac", 3},     {"\xf0\x9f\x98\x80", 4}, {"\xf4\x8f\xbf\xbf", 4},
        {"a\xff", 1},      {"\xc0\x80", 0}, {"\xe0\x80\x80", 0},     {"\xed\xa0\x80", 0},     {"\xf4\x90\x80\x80", 0},
        {"ab\xe2\x82", 2}, {"\x80", 0},     {"\xf5\x80\x80\x80", 0}, {"\xf0\x8f\x80\x80", 0}, {"\xe2\x82\x41", 0},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        ck_assert_uint_eq(tg_utf8_check(rows[i].s, strlen(rows[i].s)), rows[i].bad);
}
END_TEST

/* ---- JSON ---- */

static const char document[] = "{\"n\": 12, \"eps\": 1e-5, \"one\": 1, \"tie\": true, \"act\": \"gelu\", \"none\": "
                               "null, \"o\": {\"x\": 3}, \"a\": [1, 2]}";

START_TEST(json_getters_return_values) {
    workplace w = workplace_new(NULL);
    tg_json j, o;
    int64_t n = 0, x = 0;
    double eps = 0, one = 0;
    bool tie = false;
    const char *act = "";
    json_t *a = NULL;
    ck_assert_int_eq(tg_json_load(&j, w.ctx, put_file(&w, "c.json", document, sizeof document - 1)), TG_OK);
    tg_json_int(&j, "n", 1, 100, &n);
    tg_json_real(&j, "eps", &eps);
    tg_json_real(&j, "one", &one);
    tg_json_bool(&j, "tie", &tie);
    tg_json_string(&j, "act", &act);
    tg_json_object(&j, "o", &o);
    tg_json_int(&o, "x", 3, 3, &x);
    tg_json_array(&j, "a", &a);
    ck_assert_int_eq(tg_ctx_status(w.ctx), TG_OK);
    ck_assert(n == 12 && eps == 1e-5 && one == 1 && tie && x == 3 && json_array_size(a) == 2);
    ck_assert_str_eq(act, "gelu");
    ck_assert(tg_json_has(&j, "n") && !tg_json_has(&j, "none") && !tg_json_has(&j, "absent"));
    tg_json_free(&j);
    workplace_free(&w);
}
END_TEST

START_TEST(json_getters_name_key_expected_and_found) {
    workplace w = workplace_new(NULL);
    tg_json j, o;
    int64_t n;
    double r;
    bool b;
    const char *s;
    json_t *a;
    ck_assert_int_eq(tg_json_parse(&j, w.ctx, "c.json", document, sizeof document - 1), TG_OK);
    tg_json_int(&j, "n", 1, 11, &n);
    expect_error(w.ctx, TG_ERR_FORMAT, "'c.json': key \"n\": expected an integer in [1, 11], found 12");
    tg_json_int(&j, "eps", 1, 11, &n);
    expect_error(w.ctx, TG_ERR_FORMAT, "\"eps\": expected an integer, found a real");
    tg_json_int(&j, "absent", 1, 11, &n);
    expect_error(w.ctx, TG_ERR_FORMAT, "\"absent\": expected an integer, found nothing");
    tg_json_real(&j, "act", &r);
    expect_error(w.ctx, TG_ERR_FORMAT, "expected a number, found a string");
    tg_json_bool(&j, "n", &b);
    expect_error(w.ctx, TG_ERR_FORMAT, "expected true or false, found an integer");
    tg_json_string(&j, "tie", &s);
    expect_error(w.ctx, TG_ERR_FORMAT, "expected a string, found true");
    tg_json_object(&j, "a", &o);
    expect_error(w.ctx, TG_ERR_FORMAT, "expected an object, found an array");
    tg_json_array(&j, "none", &a);
    expect_error(w.ctx, TG_ERR_FORMAT, "expected an array, found null");
    tg_json_free(&j);
    workplace_free(&w);
}
END_TEST

START_TEST(malformed_json_is_refused_with_its_place) {
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"", "is not JSON: line 1, offset 0"},
        {"{\n\"a\":}", "line 2, offset 7"},
        {"{\"a\":1,\"a\":2}", "duplicate"},
        {"[1]", "expected an object"},
        {"{\"a\":9223372036854775808}", "too big integer"},
        {"{\"a\":1e999}", "overflow"},
        {"{\"a\":\"\xff\"}", "0xff"},
        {"{\"a\":NaN}", "invalid token"},
        {"{} x", "end of file expected"},
        {"{\"a\":\"\\u0000\"}", "not allowed"},
    };
    workplace w = workplace_new(NULL);
    tg_json j;
    for (size_t i = 0; i < COUNT(rows); i++) {
        ck_assert_int_ne(tg_json_load(&j, w.ctx, put_file(&w, "bad.json", rows[i].text, strlen(rows[i].text))), TG_OK);
        ck_assert_ptr_null(j.object);
        expect_error(w.ctx, TG_ERR_FORMAT, rows[i].words);
    }
    ck_assert_int_ne(tg_json_load(&j, w.ctx, put_file(&w, "bad.json", "{\"a\":1\0}", 8)), TG_OK);
    expect_error(w.ctx, TG_ERR_FORMAT, "a zero byte at offset 6");
    workplace_free(&w);
}
END_TEST

START_TEST(saved_json_reads_back_and_is_short) {
    static const double reals[] = {1e-5, 0.1, 1.0 / 3, 1e300, 123456789012345.0, 1234567890123450.0};
    workplace w = workplace_new(NULL);
    for (size_t i = 0; i < COUNT(reals); i++) {
        json_t *root = json_pack("{s:f, s:s}", "x", reals[i], "name", "caf\xc3\xa9");
        ck_assert_int_eq(tg_json_save(w.ctx, in(&w, "x.json"), root), TG_OK);
        tg_json back;
        ck_assert_int_eq(tg_json_load(&back, w.ctx, in(&w, "x.json")), TG_OK);
        ck_assert(json_equal(back.object, root));
        tg_json_free(&back);
        json_decref(root);
        if (i == 1) ck_assert(holds(&w, "x.json", "{\n  \"x\": 0.1,\n  \"name\": \"caf\xc3\xa9\"\n}\n"));
    }
    workplace_free(&w);
}
END_TEST

/* ---- Tokens ---- */

START_TEST(tokens_are_read_in_every_format) {
    static const uint16_t u16[] = {0, 1, 65535, 300};
    static const uint32_t u32[] = {0, 1, 4294967295u, 70000};
    static const struct {
        tg_token_format format;
        const void *bytes;
        size_t n;
        int64_t ids[4];
    } rows[] = {
        {TG_TOKENS_TEXT, "a\n\xff!", 4, {'a', '\n', 255, '!'}},
        {TG_TOKENS_U16, u16, sizeof u16, {0, 1, 65535, 300}},
        {TG_TOKENS_U32, u32, sizeof u32, {0, 1, 4294967295, 70000}},
    };
    workplace w = workplace_new(NULL);
    for (size_t i = 0; i < COUNT(rows); i++) {
        tg_tokens *t = tg_tokens_open(w.ctx, put_file(&w, "t", rows[i].bytes, rows[i].n), rows[i].format, 0);
        ck_assert_int_eq(tg_tokens_count(t), 4);
        for (int64_t first = 0; first <= 4; first++)
            for (int64_t n = 0; first + n <= 4; n++) {
                int64_t out[4] = {-1, -1, -1, -1};
                ck_assert_int_eq(tg_tokens_read(t, first, n, out), TG_OK);
                ck_assert_mem_eq(out, rows[i].ids + first, (size_t)n * sizeof *out);
            }
        tg_tokens_close(t);
    }
    workplace_free(&w);
}
END_TEST

START_TEST(bad_token_files_are_refused) {
    static const uint16_t ids[] = {3, 4, 50257};
    workplace w = workplace_new(NULL);
    ck_assert_ptr_null(tg_tokens_open(w.ctx, put_file(&w, "t", ids, sizeof ids), TG_TOKENS_U16, 50257));
    expect_error(w.ctx, TG_ERR_DATA, "token 2 at offset 4 is 50257, expected less than 50257");
    tg_tokens_close(tg_tokens_open(w.ctx, in(&w, "t"), TG_TOKENS_U16, 50258));
    ck_assert_int_eq(tg_ctx_status(w.ctx), TG_OK);
    tg_tokens_open(w.ctx, in(&w, "t"), TG_TOKENS_U32, 0);
    expect_error(w.ctx, TG_ERR_FORMAT, "6 bytes, expected a multiple of 4 (u32): 2 bytes left over at offset 4");
    tg_tokens_open(w.ctx, put_file(&w, "t", "abc", 3), TG_TOKENS_U16, 0);
    expect_error(w.ctx, TG_ERR_FORMAT, "multiple of 2");
    tg_tokens_open(w.ctx, in(&w, "t"), TG_TOKENS_TEXT, 98);
    expect_error(w.ctx, TG_ERR_DATA, "token 1 at offset 1 is 98");
    tg_tokens_open(w.ctx, put_file(&w, "t", "", 0), TG_TOKENS_TEXT, 0);
    expect_error(w.ctx, TG_ERR_DATA, "empty");
    tg_tokens_open(w.ctx, in(&w, "none"), TG_TOKENS_TEXT, 0);
    expect_error(w.ctx, TG_ERR_IO, "none");
    workplace_free(&w);
}
END_TEST

/* An invalid id after the first chunk, and files that change after the check. */
START_TEST(token_files_are_checked_whole_and_again) {
    enum { N = 3 << 20 };
    workplace w = workplace_new(NULL);
    char *text = malloc(N);
    memset(text, 'x', N);
    text[N - 1] = '\x80';
    tg_tokens_open(w.ctx, put_file(&w, "t", text, N), TG_TOKENS_TEXT, 128);
    expect_error(w.ctx, TG_ERR_DATA, "token 3145727 at offset 3145727 is 128");
    tg_tokens *t = tg_tokens_open(w.ctx, put_file(&w, "t", text, N - 1), TG_TOKENS_TEXT, 128);
    int64_t out[4];
    put_file(&w, "t", "ab\xff", 3);
    ck_assert_int_eq(tg_tokens_read(t, 0, 2, out), TG_OK);
    tg_tokens_read(t, 1, 2, out);
    expect_error(w.ctx, TG_ERR_DATA, "token 2 at offset 2 is 255");
    tg_tokens_read(t, 2, 4, out);
    expect_error(w.ctx, TG_ERR_IO, "ends at offset 3, expected 3 more bytes");
    tg_tokens_read(t, N - 3, 3, out);
    expect_error(w.ctx, TG_ERR_ARGUMENT, "3 tokens from token 3145725");
    tg_tokens_close(t);
    free(text);
    workplace_free(&w);
}
END_TEST

/* ---- Wrong arguments ---- */

START_TEST(null_is_an_empty_object) {
    int64_t out;
    char buf[8];
    ck_assert_int_eq(tg_file_save(NULL, "x", "x", 1), TG_ERR_ARGUMENT);
    ck_assert_ptr_null(tg_safetensors_open(NULL, "x"));
    tg_safetensors_close(NULL);
    ck_assert_int_eq(tg_safetensors_count(NULL), 0);
    ck_assert_ptr_null(tg_safetensors_at(NULL, 0));
    ck_assert_ptr_null(tg_safetensors_find(NULL, "x"));
    ck_assert_int_eq(tg_safetensors_metadata_count(NULL), 0);
    ck_assert_ptr_null(tg_safetensors_metadata_at(NULL, 0));
    ck_assert_ptr_null(tg_safetensors_metadata(NULL, "x"));
    ck_assert_int_eq(tg_safetensors_read(NULL, "x", NULL, false), TG_ERR_ARGUMENT);
    ck_assert(!tg_is_alive(tg_safetensors_load(NULL, "x")));
    ck_assert_int_eq(tg_safetensors_save(NULL, "x", NULL, 0, NULL, 0), TG_ERR_ARGUMENT);
    ck_assert_ptr_null(tg_tokens_open(NULL, "x", TG_TOKENS_TEXT, 0));
    tg_tokens_close(NULL);
    ck_assert_int_eq(tg_tokens_count(NULL), 0);
    ck_assert_int_eq(tg_tokens_read(NULL, 0, 1, &out), TG_ERR_ARGUMENT);
    ck_assert_ptr_null(tg_checkpoints_open(NULL, "x"));
    tg_checkpoints_close(NULL);
    ck_assert_int_eq(tg_checkpoints_newest(NULL), -1);
    ck_assert_uint_eq(tg_checkpoints_path(NULL, 1, buf, sizeof buf), 0);
    ck_assert_ptr_null(tg_checkpoints_begin(NULL, 1));
    ck_assert_int_eq(tg_checkpoints_commit(NULL), TG_ERR_ARGUMENT);
    tg_checkpoints_abandon(NULL);
    ck_assert_int_eq(tg_checkpoints_keep(NULL, 1), TG_ERR_ARGUMENT);
}
END_TEST

/* Each call records TG_ERR_ARGUMENT and changes nothing on the disk. */
static void save_to_null(tg_ctx *ctx, const char *dir) {
    (void)dir, tg_file_save(ctx, NULL, "x", 1);
}
static void save_null(tg_ctx *ctx, const char *dir) {
    tg_file_save(ctx, dir, NULL, 1);
}
static void open_null(tg_ctx *ctx, const char *dir) {
    (void)dir, tg_safetensors_open(ctx, NULL);
}
static void save_tensors_to_null(tg_ctx *ctx, const char *dir) {
    (void)dir, tg_safetensors_save(ctx, NULL, NULL, 0, NULL, 0);
}
static void save_null_tensors(tg_ctx *ctx, const char *dir) {
    tg_safetensors_save(ctx, dir, NULL, 1, NULL, 0);
}
static void save_null_metadata(tg_ctx *ctx, const char *dir) {
    tg_safetensors_save(ctx, dir, NULL, 0, NULL, 1);
}
static void save_negative(tg_ctx *ctx, const char *dir) {
    tg_safetensors_save(ctx, dir, NULL, -1, NULL, -1);
}
static void tokens_of_null(tg_ctx *ctx, const char *dir) {
    (void)dir, tg_tokens_open(ctx, NULL, TG_TOKENS_TEXT, 0);
}
static void tokens_of_format(tg_ctx *ctx, const char *dir) {
    tg_tokens_open(ctx, dir, (tg_token_format)4, 0);
}
static void tokens_of_vocab(tg_ctx *ctx, const char *dir) {
    tg_tokens_open(ctx, dir, TG_TOKENS_TEXT, -1);
}
static void checkpoints_in_null(tg_ctx *ctx, const char *dir) {
    (void)dir, tg_checkpoints_open(ctx, NULL);
}
static void checkpoints_in_nothing(tg_ctx *ctx, const char *dir) {
    (void)dir, tg_checkpoints_open(ctx, "");
}

START_TEST(wrong_arguments_are_refused) {
    static void (*const calls[])(tg_ctx *, const char *) = {
        save_to_null,      save_null,          open_null,           save_tensors_to_null,
        save_null_tensors, save_null_metadata, save_negative,       tokens_of_null,
        tokens_of_format,  tokens_of_vocab,    checkpoints_in_null, checkpoints_in_nothing,
    };
    workplace w = workplace_new(NULL);
    for (size_t i = 0; i < COUNT(calls); i++) {
        calls[i](w.ctx, in(&w, "x"));
        expect_error(w.ctx, TG_ERR_ARGUMENT, "tg_");
        ck_assert_int_eq(entries_in(w.dir), 0);
    }
    workplace_free(&w);
}
END_TEST

START_TEST(wrong_arguments_of_open_objects_are_refused) {
    static const int64_t ranges[][2] = {{-1, 1}, {0, -1}, {0, 5}, {5, 0}, {INT64_MAX, 1}, {1, INT64_MAX}};
    workplace w = workplace_new(NULL);
    tg_tokens *t = tg_tokens_open(w.ctx, put_file(&w, "t", "abcd", 4), TG_TOKENS_TEXT, 0);
    int64_t out[8];
    for (size_t i = 0; i < COUNT(ranges); i++) {
        tg_tokens_read(t, ranges[i][0], ranges[i][1], out);
        expect_error(w.ctx, TG_ERR_ARGUMENT, "has 4");
    }
    tg_tokens_read(t, 0, 1, NULL);
    expect_error(w.ctx, TG_ERR_ARGUMENT, "out is NULL");
    ck_assert_int_eq(tg_tokens_read(t, 4, 0, NULL), TG_OK);
    tg_tokens_close(t);
    tg_checkpoints *c = tg_checkpoints_open(w.ctx, in(&w, "run"));
    ck_assert_ptr_null(tg_checkpoints_begin(c, -1));
    expect_error(w.ctx, TG_ERR_ARGUMENT, "step -1");
    tg_checkpoints_keep(c, -1);
    expect_error(w.ctx, TG_ERR_ARGUMENT, "n is -1");
    ck_assert_uint_eq(tg_checkpoints_path(c, -1, NULL, 0), 0);
    tg_checkpoints_close(c);
    workplace_free(&w);
}
END_TEST

START_TEST(nothing_happens_after_an_error) {
    workplace w = workplace_new(NULL);
    tg_checkpoints *c = tg_checkpoints_open(w.ctx, in(&w, "run"));
    tg_tokens *t = tg_tokens_open(w.ctx, put_file(&w, "t", "abcd", 4), TG_TOKENS_TEXT, 0);
    int64_t out[1] = {7};
    tg_ctx_fail(w.ctx, TG_ERR_DATA, "mine");
    ck_assert_int_eq(tg_file_save(w.ctx, in(&w, "x"), "x", 1), TG_ERR_DATA);
    ck_assert_int_eq(tg_safetensors_save(w.ctx, in(&w, "x"), NULL, 0, NULL, 0), TG_ERR_DATA);
    ck_assert_ptr_null(tg_safetensors_open(w.ctx, in(&w, "t")));
    ck_assert_ptr_null(tg_tokens_open(w.ctx, in(&w, "t"), TG_TOKENS_TEXT, 0));
    ck_assert_int_eq(tg_tokens_read(t, 0, 1, out), TG_ERR_DATA);
    ck_assert_ptr_null(tg_checkpoints_begin(c, 1));
    ck_assert_int_eq(tg_checkpoints_commit(c), TG_ERR_DATA);
    ck_assert_int_eq(tg_checkpoints_newest(c), -1);
    ck_assert_int_eq(tg_checkpoints_keep(c, 0), TG_ERR_DATA);
    ck_assert_int_eq(out[0], 7);
    ck_assert_int_eq(entries_in(w.dir), 2);
    expect_error(w.ctx, TG_ERR_DATA, "mine");
    tg_tokens_close(t);
    tg_checkpoints_close(c);
    workplace_free(&w);
}
END_TEST

static int note_directory(void *user, const char *path, int flags, int mode) {
    if (flags & O_DIRECTORY) snprintf(user, 512, "%s", path);
    return open(path, flags, (mode_t)mode);
}

START_TEST(a_new_directory_is_put_into_the_one_that_it_lies_in) {
    static const char *const names[] = {"ck", "ck2/", "ck3///"};
    char opened[512]; /* directories that were opened to be synced */
    const tg_file_ops ops = {.size = sizeof ops, .open = note_directory, .user = opened};
    workplace w = workplace_new(TG_CONFIG(.files = &ops));
    for (size_t i = 0; i < COUNT(names); i++) {
        *opened = 0;
        tg_checkpoints_close(tg_checkpoints_open(w.ctx, in(&w, names[i])));
        ck_assert_int_eq(tg_ctx_status(w.ctx), TG_OK);
        ck_assert_str_eq(opened, w.dir);
    }
    workplace_free(&w);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_saved_file_replaces_the_old_one,
        only_regular_files_are_replaced,
        any_failing_call_leaves_the_old_file_or_the_new,
        a_full_disk_is_reported_with_path_and_offset,
        short_and_interrupted_transfers_are_continued,
        unreadable_files_are_named,
        utf8_is_checked,
        json_getters_return_values,
        json_getters_name_key_expected_and_found,
        malformed_json_is_refused_with_its_place,
        saved_json_reads_back_and_is_short,
        tokens_are_read_in_every_format,
        bad_token_files_are_refused,
        token_files_are_checked_whole_and_again,
        null_is_an_empty_object,
        wrong_arguments_are_refused,
        wrong_arguments_of_open_objects_are_refused,
        nothing_happens_after_an_error,
        a_new_directory_is_put_into_the_one_that_it_lies_in,
    };
    return tg_check_main("io", tests, COUNT(tests));
}
