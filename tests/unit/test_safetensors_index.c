/* Index of several safetensors files: their tensors are one list, and every way in which the index can be wrong. */
#define _GNU_SOURCE
#include <tapegrad/tapegrad.h>

#include "io_fixture.h"

static const char *put_text(workplace *w, const char *name, const char *text) {
    return put_file(w, name, text, strlen(text));
}

/* Writes a file with two tensors [2], which hold the numbers first to first + 3. */
static void put_pair(workplace *w, const char *file, const char *a, const char *b, float first) {
    const float v[] = {first, first + 1, first + 2, first + 3};
    const tg_metadata metadata = {"format", "pt"};
    tg_named_tensor named[] = {{a, tg_from_host(w->ctx, TG_F32, TG_SHAPE(2), v)},
                               {b, tg_from_host(w->ctx, TG_F32, TG_SHAPE(2), v + 2)}};
    ck_assert_int_eq(tg_safetensors_save(w->ctx, in(w, file), named, 2, &metadata, 1), TG_OK);
    for (int i = 0; i < 2; i++) tg_drop(named[i].tensor);
}

static const char good[] = "{\"metadata\": {\"total_size\": 24}, \"weight_map\": {\"d\": \"2.safetensors\", "
                           "\"a\": \"1.safetensors\", \"c\": \"2.safetensors\"}}";

static workplace files_new(const tg_config *config) {
    workplace w = workplace_new(config);
    put_pair(&w, "1.safetensors", "a", "b", 10);
    put_pair(&w, "2.safetensors", "c", "d", 20);
    return w;
}

START_TEST(tensors_of_all_files_are_one_list) {
    static const char *const names[] = {"c", "d", "a"}; /* in the order of the files, and of their bytes */
    static const float first[] = {20, 22, 10};
    workplace w = files_new(NULL);
    int before = open_files();
    tg_safetensors *f = tg_safetensors_open(w.ctx, put_text(&w, "model.safetensors.index.json", good));
    tg_tensor *x = tg_zeros(w.ctx, TG_F64, TG_SHAPE(2));
    double v[2];
    ck_assert_int_eq(tg_safetensors_count(f), COUNT(names));
    for (int i = 0; i < 3; i++) {
        const tg_safetensors_entry *e = tg_safetensors_at(f, i);
        ck_assert_str_eq(e->name, names[i]);
        ck_assert(tg_safetensors_find(f, names[i]) == e && e->dtype == TG_F32 && e->shape.dim[0] == 2);
        ck_assert_int_eq(tg_read_f64(tg_safetensors_load(f, names[i]), v, 2), TG_OK);
        ck_assert(v[0] == first[i] && v[1] == first[i] + 1);
        ck_assert_int_eq(tg_safetensors_read(f, names[i], x, true), TG_OK);
        ck_assert_int_eq(tg_read_f64(x, v, 2), TG_OK);
        ck_assert(v[0] == first[i] && v[1] == first[i] + 1);
    }
    ck_assert_ptr_null(tg_safetensors_find(f, "b")); /* its file has it, but the map does not */
    tg_safetensors_read(f, "b", x, true);
    expect_error(w.ctx, TG_ERR_DATA, "model.safetensors.index.json' has no tensor 'b'");
    tg_safetensors_read(f, "d", tg_zeros(w.ctx, TG_F32, TG_SHAPE(3)), false);
    expect_error(w.ctx, TG_ERR_SHAPE, "2.safetensors': tensor 'd' is [2], expected [3]");
    ck_assert_int_eq(tg_safetensors_metadata_count(f), 0);
    ck_assert_ptr_null(tg_safetensors_metadata(f, "format"));
    tg_safetensors_close(f);
    ck_assert_int_eq(open_files(), before);
    workplace_free(&w);
}
END_TEST

START_TEST(an_index_may_be_empty_or_in_this_directory) {
    char here[512];
    workplace w = files_new(NULL);
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    tg_safetensors *f = tg_safetensors_open(w.ctx, put_text(&w, "none.index.json", "{\"weight_map\": {}}"));
    ck_assert(f && tg_safetensors_count(f) == 0);
    tg_safetensors_close(f);
    put_text(&w, "m.index.json", good);
    ck_assert_int_eq(chdir(w.dir), 0);
    f = tg_safetensors_open(w.ctx, "m.index.json");
    ck_assert_int_eq(chdir(here), 0);
    ck_assert_int_eq(tg_safetensors_count(f), 3);
    tg_safetensors_close(f);
    workplace_free(&w);
}
END_TEST

#define MAP(entries) "{\"weight_map\": {" entries "}}"
#define SUMS(sums) \
    "{\"metadata\": {\"tapegrad.xxh64.headers\": " sums "}, \"weight_map\": {\"a\": \"1.safetensors\"}}"

static const struct {
    const char *text;
    tg_status status;
    const char *says;
} wrong[] = {
    {"", TG_ERR_FORMAT, "is not JSON"},
    {"[]", TG_ERR_FORMAT, "expected an object"},
    {"{}", TG_ERR_FORMAT, "key \"weight_map\": expected an object, found nothing"},
    {"{\"weight_map\": 3}", TG_ERR_FORMAT, "key \"weight_map\": expected an object, found an integer"},
    {MAP("\"a\": 1"), TG_ERR_FORMAT, "key \"a\": expected a string, found an integer"},
    {MAP("\"a\": \"1.safetensors\", \"a\": \"2.safetensors\""), TG_ERR_FORMAT, "duplicate"},
    {MAP("\"a\": \"\""), TG_ERR_FORMAT, "has the file '', expected a name that is not empty"},
    {MAP("\"a\": \"../1.safetensors\""), TG_ERR_FORMAT, "expected a name that is not empty and has no slash"},
    {MAP("\"a\": \"/etc/passwd\""), TG_ERR_FORMAT, "expected a name that is not empty and has no slash"},
    {MAP("\"a\": \"3.safetensors\""), TG_ERR_IO, "3.safetensors'"},
    {MAP("\"a\": \"wrong.index.json\""), TG_ERR_FORMAT, "a header of"}, /* no index of an index */
    {MAP("\"a\": \"1.safetensors\", \"c\": \"1.safetensors\""), TG_ERR_FORMAT,
     "weight_map says that tensor 'c' is in '1.safetensors', which has no such tensor"},
    {SUMS("{}"), TG_ERR_FORMAT, "key \"1.safetensors\": expected a string, found nothing"},
    {SUMS("3"), TG_ERR_FORMAT, "key \"1.safetensors\": expected a string, found nothing"},
    {SUMS("{\"1.safetensors\": \"0123456789abcdef\"}"), TG_ERR_FORMAT, "expected 0123456789abcdef; take all files"},
};

START_TEST(wrong_indices_are_refused) {
    workplace w = files_new(NULL);
    int before = open_files();
    for (size_t i = 0; i < COUNT(wrong); i++) {
        ck_assert_ptr_null(tg_safetensors_open(w.ctx, put_text(&w, "wrong.index.json", wrong[i].text)));
        expect_error(w.ctx, wrong[i].status, wrong[i].says);
        ck_assert_int_eq(open_files(), before);
    }
    ck_assert_ptr_null(tg_safetensors_open(w.ctx, in(&w, "none.index.json")));
    expect_error(w.ctx, TG_ERR_IO, "none.index.json");
    workplace_free(&w);
}
END_TEST

/* Each system call and each allocation fails in turn; nothing stays open or allocated. */
START_TEST(failures_leave_nothing) {
    faulty fault = {.error = EIO};
    counted memory = {0};
    const tg_file_ops ops = faulty_ops(&fault);
    workplace w = files_new(TG_CONFIG(.files = &ops, .allocator = {counted_alloc, counted_free, &memory}));
    put_text(&w, "m.index.json", good);
    int before = open_files(), failed = 0;
    for (int kind = 0; kind < 2; kind++)
        for (int k = 1, more = 1; more; k++) {
            int held = memory.held;
            fault.calls = memory.calls = 0;
            *(kind ? &memory.fail : &fault.fail) = k;
            tg_safetensors *f = tg_safetensors_open(w.ctx, in(&w, "m.index.json"));
            fault.fail = memory.fail = 0;
            more = !f;
            failed += more;
            if (more) expect_error(w.ctx, kind ? TG_ERR_MEMORY : TG_ERR_IO, "");
            tg_safetensors_close(f);
            ck_assert_int_eq(open_files(), before);
            ck_assert_int_eq(memory.held, held);
        }
    ck_assert_int_ge(failed, 20);
    workplace_free(&w);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        tensors_of_all_files_are_one_list,
        an_index_may_be_empty_or_in_this_directory,
        wrong_indices_are_refused,
        failures_leave_nothing,
    };
    return tg_check_main("safetensors_index", tests, sizeof tests / sizeof *tests);
}
