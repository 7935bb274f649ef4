/* Damaged checkpoints: any bit of a header flipped, a bit of any page of data flipped, files cut short or extended
 * anywhere. Each is refused with a reason that names the file, and nothing is partly loaded. */
#define _GNU_SOURCE
#include <tapegrad/comm.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/parallel.h>
#include <tapegrad/checkpoint.h>
#include <tapegrad/gpt.h>

#include "io/checksum.h"
#include "io_fixture.h"

enum { PAGE = 4096 };

/* ---- The checksum ---- */

/* Values of the reference implementation (libxxhash 0.8.1) over the bytes of its own sanity check. */
START_TEST(the_checksum_is_xxh64) {
    static const struct {
        size_t n;
        uint64_t sum;
    } rows[] = {
        {0, 0xef46db3751d8e999},   {1, 0xe934a84adb052768},    {4, 0x9136a0dca57457ee},  {14, 0x8282dcc4994e35c8},
        {31, 0x299b39a290e6d783},  {32, 0x18b216492bb44b70},   {33, 0x55c8dc3e578f5b59}, {63, 0xa9efbe0fa0f3f4e7},
        {222, 0xb641ae8cb691c174}, {2243, 0x6580659b3a2fd03d},
    };
    uint8_t bytes[2243];
    uint64_t g = 2654435761;
    for (size_t i = 0; i < sizeof bytes; i++, g *= 11400714785074694797u) bytes[i] = (uint8_t)(g >> 56);
    for (size_t i = 0; i < COUNT(rows); i++) ck_assert_uint_eq(tg_checksum(bytes, rows[i].n), rows[i].sum);
    ck_assert_uint_eq(tg_checksum("abc", 3), 0x44bc2cf5ad770999);
    ck_assert_uint_eq(tg_checksum(NULL, 0), rows[0].sum);
    for (size_t n = 0; n < 140; n++) /* in three pieces, of every length */
        for (size_t first = 0; first <= n; first++) {
            size_t second = (n - first) / 2;
            tg_summing s = tg_summing_begin();
            tg_summing_add(&s, bytes, first);
            tg_summing_add(&s, bytes + first, second);
            tg_summing_add(&s, bytes + first + second, n - first - second);
            if (tg_summing_end(&s) != tg_checksum(bytes, n)) ck_abort_msg("%zu bytes, cut at %zu", n, first);
        }
}
END_TEST

/* ---- A checkpoint ---- */

/* Reads of the file have a flipped bit in the byte at `at`; -1: none. */
typedef struct flip {
    int64_t at;
    int bit;
    const char *file; /* its name */
    int fd;           /* if it is open */
} flip;

static int noting_open(void *user, const char *path, int flags, int mode) {
    flip *f = user;
    int fd = open(path, flags, (mode_t)mode);
    bool named = f->file && strcmp(path + strlen(path) - strlen(f->file), f->file) == 0;
    if (named || fd == f->fd) f->fd = named ? fd : -1;
    return fd;
}

static int64_t flipping_pread(void *user, int fd, void *buf, size_t n, int64_t offset) {
    const flip *f = user;
    int64_t got = pread(fd, buf, n, offset);
    if (fd == f->fd && f->at >= offset && f->at < offset + got)
        ((uint8_t *)buf)[f->at - offset] ^= (uint8_t)(1 << f->bit);
    return got;
}

/* A model and its optimizer that were saved and then changed. Loading must not change `values`. */
typedef struct checkpoint {
    flip flip;
    tg_file_ops ops;
    workplace w;
    tg_comm *self;
    tg_parallel *parallel;
    tg_module *gpt;
    tg_optim *optim;
    tg_shards *shards;
    float *values;
    int64_t numel;
} checkpoint;

static int count_tensors(const checkpoint *c) { return tg_module_param_count(c->gpt) + tg_optim_state_count(c->optim); }

static tg_tensor *tensor(const checkpoint *c, int i) {
    int n = tg_module_param_count(c->gpt);
    return i < n ? tg_module_param(c->gpt, i, NULL) : tg_optim_state(c->optim, i - n, NULL);
}

static bool untouched(const checkpoint *c) {
    float *now = malloc((size_t)c->numel * sizeof *now), *at = now;
    for (int i = 0; i < count_tensors(c); i++) {
        tg_tensor *x = tensor(c, i);
        tg_read(x, at, (size_t)tg_numel(x) * sizeof *at);
        at += tg_numel(x);
    }
    bool same = memcmp(now, c->values, (size_t)c->numel * sizeof *now) == 0;
    free(now);
    return same;
}

/* Every element has another value. */
static void fill(checkpoint *c, float scale) {
    float *at = c->values;
    for (int64_t i = 0; i < c->numel; i++) at[i] = scale * (float)(i + 1) / 64;
    for (int i = 0; i < count_tensors(c); i++) {
        tg_tensor *x = tensor(c, i);
        tg_write(x, at, (size_t)tg_numel(x) * sizeof *at);
        at += tg_numel(x);
    }
}

static void checkpoint_new(checkpoint *c) {
    *c = (checkpoint){.flip = {.at = -1, .fd = -1}};
    c->ops = (tg_file_ops){.size = sizeof c->ops, .open = noting_open, .pread = flipping_pread, .user = &c->flip};
    c->w = workplace_new(TG_CONFIG(.threads = 1, .seed = 3, .files = &c->ops));
    c->self = tg_comm_self_new(c->w.ctx);
    c->parallel = tg_parallel_new(c->self, NULL);
    c->gpt = tg_gpt_new(c->w.ctx, TG_GPT(.vocab = 128, .layers = 2, .heads = 2, .hidden = 16, .positions = 16));
    tg_tensor *params[64];
    int n = tg_module_params(c->gpt, params, COUNT(params));
    c->optim = tg_adamw_new(c->w.ctx, params, n, TG_ADAMW(.lr = 1e-2));
    c->shards = tg_shards_new(c->parallel);
    tg_shards_add_module(c->shards, "model", c->gpt);
    tg_shards_add_optim(c->shards, "optim", c->optim);
    for (int i = 0; i < count_tensors(c); i++) c->numel += tg_numel(tensor(c, i));
    c->values = malloc((size_t)c->numel * sizeof *c->values);
    fill(c, 1);
    tg_gpt_save(c->gpt, c->w.dir);
    tg_shards_save(c->shards, c->w.dir);
    fill(c, -1);
    ck_assert_msg(tg_ctx_status(c->w.ctx) == TG_OK, "%s", tg_ctx_message(c->w.ctx));
}

static void checkpoint_free(checkpoint *c) {
    tg_shards_free(c->shards);
    tg_optim_free(c->optim);
    tg_module_free(c->gpt);
    tg_parallel_free(c->parallel);
    tg_comm_free(c->self);
    free(c->values);
    workplace_free(&c->w);
}

static tg_status load_model(checkpoint *c) { return tg_gpt_load_weights(c->gpt, c->w.dir); }
static tg_status load_state(checkpoint *c) { return tg_shards_load(c->shards, c->w.dir); }

static const struct {
    const char *name;
    tg_status (*load)(checkpoint *c);
} files[] = {{"model.safetensors", load_model}, {"rank-00000.safetensors", load_state}};

static int64_t size_of(checkpoint *c, const char *name) {
    struct stat st;
    ck_assert_int_eq(stat(in(&c->w, name), &st), 0);
    return st.st_size;
}

/* Returns the offset at which the data begin. */
static int64_t data_of(checkpoint *c, const char *name) {
    uint64_t n;
    ck_assert_uint_eq(get_file(&c->w, name, (char *)&n, sizeof n), sizeof n);
    return 8 + (int64_t)n;
}

static void refused(checkpoint *c, int file, tg_status expected, const char *words, const char *what, int64_t at) {
    tg_status s = files[file].load(c);
    const char *says = tg_ctx_message(c->w.ctx);
    ck_assert_msg(s == expected && strstr(says, files[file].name) && strstr(says, words), "%s, %s %lld: %s: %s",
                  files[file].name, what, (long long)at, tg_status_name(s), says);
    tg_ctx_clear(c->w.ctx);
}

/* ---- Bits ---- */

/* A quick run flips one bit of each byte. Any run does so for every seventh byte of the state, whose header is longer,
 * and is read by the same code. */
START_TEST(any_bit_of_a_header_is_missed) {
    checkpoint c;
    checkpoint_new(&c);
    for (int k = 0; k < 2; k++) {
        bool quick = k || getenv("TG_TEST_QUICK");
        c.flip.file = files[k].name;
        int64_t end = data_of(&c, files[k].name);
        ck_assert_int_gt(end, 2000);
        for (c.flip.at = 0; c.flip.at < end; c.flip.at += k ? 7 : 1)
            for (c.flip.bit = quick ? (int)c.flip.at % 8 : 0; c.flip.bit < 8; c.flip.bit += quick ? 8 : 1)
                refused(&c, k, TG_ERR_FORMAT, "", "a bit of byte", c.flip.at);
        c.flip.at = -1;
    }
    ck_assert(untouched(&c));
    checkpoint_free(&c);
}
END_TEST

/* Bytes at both ends of each tensor, and one of each page between. */
START_TEST(a_bit_of_any_page_is_missed) {
    checkpoint c;
    checkpoint_new(&c);
    for (int k = 0; k < 2; k++) {
        int flips = 0;
        tg_safetensors *f = tg_safetensors_open(c.w.ctx, in(&c.w, files[k].name));
        for (int i = 0; i < tg_safetensors_count(f); i++) {
            const tg_safetensors_entry *e = tg_safetensors_at(f, i);
            for (int64_t at = e->begin; at < e->stop;
                 at = at < e->stop - PAGE || at == e->stop - 1 ? at + PAGE : e->stop - 1) {
                c.flip = (flip){at, (int)(flips++ % 8), files[k].name, -1};
                refused(&c, k, TG_ERR_DATA, e->name, "a bit of byte", at);
                ck_assert(untouched(&c));
            }
        }
        c.flip.at = -1;
        tg_safetensors_close(f);
        ck_assert_int_gt(flips, 50);
        ck_assert_int_eq(files[k].load(&c), TG_OK);
        ck_assert(!untouched(&c));
        fill(&c, -1);
    }
    checkpoint_free(&c);
}
END_TEST

/* A caller who reads tensors one by one gets an error for the damaged one, and may read the others. */
START_TEST(other_tensors_are_read_all_the_same) {
    checkpoint c;
    checkpoint_new(&c);
    c.flip.file = files[0].name;
    tg_safetensors *f = tg_safetensors_open(c.w.ctx, in(&c.w, files[0].name));
    const tg_safetensors_entry *bad = tg_safetensors_at(f, 5), *good = tg_safetensors_at(f, 6);
    c.flip.at = bad->begin + 7;
    ck_assert(!tg_is_alive(tg_safetensors_load(f, bad->name)));
    expect_error(c.w.ctx, TG_ERR_DATA, "the checksum of its bytes is");
    tg_drop(tg_safetensors_load(f, good->name));
    ck_assert_int_eq(tg_ctx_status(c.w.ctx), TG_OK);
    c.flip.at = -1;
    tg_drop(tg_safetensors_load(f, bad->name));
    ck_assert_int_eq(tg_ctx_status(c.w.ctx), TG_OK);
    tg_safetensors_close(f);
    checkpoint_free(&c);
}
END_TEST

/* ---- Lengths ---- */

static int falling(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return *x < *y ? 1 : *x > *y ? -1 : 0;
}

START_TEST(any_other_length_is_refused) {
    checkpoint c;
    checkpoint_new(&c);
    for (int k = 0; k < 2; k++) {
        int64_t size = size_of(&c, files[k].name), data = data_of(&c, files[k].name);
        int64_t lengths[256] = {0, 1, 7, 8, 9, data - 1, data, data + 1, size - 1};
        int n = 9;
        static const int more[] = {1, 8, PAGE};
        for (size_t i = 0; i < COUNT(more); i++) {
            ck_assert_int_eq(truncate(in(&c.w, files[k].name), size + more[i]), 0);
            refused(&c, k, TG_ERR_FORMAT, "belongs to no tensor", "bytes beyond the end:", more[i]);
        }
        for (int64_t at = PAGE; at < size && n < (int)COUNT(lengths); at += PAGE) lengths[n++] = at;
        ck_assert_int_lt(n, COUNT(lengths));
        qsort(lengths, (size_t)n, sizeof *lengths, falling);
        for (int i = 0; i < n; i++) {
            ck_assert_int_eq(truncate(in(&c.w, files[k].name), lengths[i]), 0);
            refused(&c, k, TG_ERR_FORMAT, "", "cut to", lengths[i]);
        }
    }
    ck_assert(untouched(&c));
    checkpoint_free(&c);
}
END_TEST

/* ---- Files that match the model in part ---- */

/* The tensor with the wrong shape is the last one of the file. */
START_TEST(a_model_of_another_shape_changes_nothing) {
    checkpoint c;
    checkpoint_new(&c);
    tg_module *other =
        tg_gpt_new(c.w.ctx, TG_GPT(.vocab = 128, .layers = 2, .heads = 2, .hidden = 16, .positions = 16, .ffn = 32,
                                   .key = 1));
    tg_tensor *first = tg_module_param(other, 0, NULL);
    size_t bytes = (size_t)tg_numel(first) * sizeof(float);
    float *before = malloc(bytes), *after = malloc(bytes);
    tg_read(first, before, bytes);
    tg_gpt_load_weights(other, c.w.dir);
    expect_error(c.w.ctx, TG_ERR_SHAPE, "is [16, 64], expected [16, 32]");
    tg_read(first, after, bytes);
    ck_assert_mem_eq(before, after, bytes);
    free(before);
    free(after);
    tg_module_free(other);
    checkpoint_free(&c);
}
END_TEST

/* ---- The metadata of checksums ---- */

#define SUMS  "\"tapegrad.xxh64\":\""
#define SUM   "\"tapegrad.xxh64.header\":\""
#define ZEROS "0000000000000000"

START_TEST(both_kinds_of_checksum_belong_together) {
    static const struct {
        const char *metadata, *words;
    } rows[] = {
        {SUMS ZEROS "\"", "have no \"tapegrad.xxh64.header\", which must accompany \"tapegrad.xxh64\""},
        {SUM ZEROS "\"", "have no \"tapegrad.xxh64\", which must accompany \"tapegrad.xxh64.header\""},
        {SUMS ZEROS "\"," SUM ZEROS "\"", "the header's checksum is"},
        {SUMS ZEROS "\"," SUM "00\"", "is not a checksum of 16 digits"},
        {SUMS ZEROS "\"," SUM "\\u0030000000000000000\"", "is not a checksum of 16 digits"},
        {SUMS ZEROS "\"," SUM ZEROS "\"," SUM ZEROS "\"", "'tapegrad.xxh64.header' is repeated"},
        {SUMS ZEROS "\"," SUMS ZEROS "\"", "'tapegrad.xxh64' is repeated"},
        {SUM "0", "expected the end of a string"},
        {SUM, "expected the end of a string"},
    };
    workplace w = workplace_new(NULL);
    for (size_t i = 0; i < COUNT(rows); i++) {
        char bytes[512] = {0};
        int n = snprintf(bytes + 8, sizeof bytes - 8, "{\"__metadata__\":{%s}%s", rows[i].metadata,
                         i < COUNT(rows) - 2 ? ",\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}" : "");
        memcpy(bytes, &(uint64_t){(uint64_t)n - (i >= COUNT(rows) - 2)}, 8);
        ck_assert_ptr_null(tg_safetensors_open(w.ctx, put_file(&w, "a", bytes, 8 + (size_t)n + 1)));
        expect_error(w.ctx, TG_ERR_FORMAT, rows[i].words);
    }
    workplace_free(&w);
}
END_TEST

/* A file whose header matches its checksum, but has checksums for another number of tensors. */
START_TEST(each_tensor_has_a_checksum) {
    workplace w = workplace_new(NULL);
    char bytes[512] = {0};
    size_t n = (size_t)snprintf(bytes + 8, sizeof bytes - 8,
                                "{\"__metadata__\":{" SUMS ZEROS ZEROS "\"," SUM ZEROS
                                "\"},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    memcpy(bytes, &(uint64_t){n}, 8);
    tg_checksum_text(tg_checksum(bytes, 8 + n), strstr(bytes + 8, SUM) + sizeof SUM - 1);
    ck_assert_ptr_null(tg_safetensors_open(w.ctx, put_file(&w, "a", bytes, 8 + n + 1)));
    expect_error(w.ctx, TG_ERR_FORMAT, "has 32 digits, expected 16 for 1 tensor");
    workplace_free(&w);
}
END_TEST

/* Copying a file's metadata to another file does not copy its checksums, and only the library writes such metadata. */
START_TEST(checksums_are_the_librarys_own) {
    static const float data[] = {1, 2, 3};
    static const tg_metadata metadata[] = {{"format", "pt"}, {"tapegrad", "x"}, {"z", ""}},
                             own[] = {{"tapegrad.xxh64", ZEROS}, {"tapegrad.xxh64.header", ZEROS}};
    tg_metadata listed[3];
    workplace w = workplace_new(NULL);
    tg_named_tensor x = {"x", tg_from_host(w.ctx, TG_F32, TG_SHAPE(3), data)};
    ck_assert_int_eq(tg_safetensors_save(w.ctx, in(&w, "a"), &x, 1, metadata, 3), TG_OK);
    tg_safetensors *f = tg_safetensors_open(w.ctx, in(&w, "a"));
    ck_assert_int_eq(tg_safetensors_metadata_count(f), 3);
    for (int i = 0; i < 3; i++) {
        listed[i] = *tg_safetensors_metadata_at(f, i);
        ck_assert_str_eq(listed[i].key, metadata[i].key);
    }
    ck_assert_ptr_null(tg_safetensors_metadata(f, own[0].key));
    ck_assert_int_eq(tg_safetensors_save(w.ctx, in(&w, "b"), &x, 1, listed, 3), TG_OK);
    tg_safetensors_close(f);
    for (int i = 0; i < 2; i++) {
        tg_safetensors_save(w.ctx, in(&w, "c"), &x, 1, &own[i], 1);
        expect_error(w.ctx, TG_ERR_ARGUMENT, "the metadata key 'tapegrad.xxh64");
    }
    ck_assert_int_eq(entries_in(w.dir), 2);
    ck_assert_int_eq(tg_safetensors_save(w.ctx, in(&w, "none"), NULL, 0, NULL, 0), TG_OK);
    f = tg_safetensors_open(w.ctx, in(&w, "none"));
    ck_assert_msg(f && tg_safetensors_count(f) + tg_safetensors_metadata_count(f) == 0, "%s", tg_ctx_message(w.ctx));
    tg_safetensors_close(f);
    workplace_free(&w);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        the_checksum_is_xxh64,
        any_bit_of_a_header_is_missed,
        a_bit_of_any_page_is_missed,
        other_tensors_are_read_all_the_same,
        any_other_length_is_refused,
        a_model_of_another_shape_changes_nothing,
        both_kinds_of_checksum_belong_together,
        each_tensor_has_a_checksum,
        checksums_are_the_librarys_own,
    };
    return tg_check_main("damage", tests, COUNT(tests));
}
