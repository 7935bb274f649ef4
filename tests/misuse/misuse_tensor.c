/* Tensors of a context, queries about handles, and values. */
#include "misuse/misuse.h"

#include <tapegrad/backward.h>
#include <tapegrad/device.h>
#include <tapegrad/work.h>

/* ---- Creation ---- */

/* Rows that every constructor with a shape must refuse. `make` stands for the call with a shape s. */
#define MAKER(symbol, on, make)                                                                  \
    do {                                                                                         \
        tg_shape s = TG_SHAPE(2);                                                                \
        tg_ctx *on = NULL;                                                                       \
        QUIET(symbol, misuse_inert(make));                                                          \
        on = b->ctx;                                                                             \
        s = TG_SHAPE(2, -1);                                                                     \
        INERT(symbol, SHAPE, "dim 1 is -1, expected 0 or more", make);                           \
        s = TG_SHAPE(INT64_MAX, 2);                                                              \
        INERT(symbol, SHAPE, "overflows", make);                                                 \
        s = TG_SHAPE(INT64_MAX / 2, 2, 2);                                                       \
        INERT(symbol, SHAPE, "overflows", make);                                                 \
        s = TG_SHAPE(INT64_MAX);                                                                 \
        INERT(symbol, SHAPE, "overflows", make);                                                 \
        s = TG_SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1);                                                 \
        INERT(symbol, SHAPE, "9 dims, expected 0 to 8", make);                                   \
        s = (tg_shape){.ndim = -1};                                                              \
        INERT(symbol, SHAPE, "-1 dims, expected 0 to 8", make);                                  \
    } while (0)

static void makers(misuse_world *b) {
    static const float data[2] = {1, 2};
    tg_ctx *ctx = b->ctx;
    MAKER(tg_zeros, c, tg_zeros(c, TG_F32, s));
    MAKER(tg_from_host, c, tg_from_host(c, TG_F32, s, data));
    MAKER(tg_wrap, c, tg_wrap(c, TG_F32, s, NULL, (void *)data, NULL, NULL));
    MAKER(tg_randn, c, tg_randn(c, TG_F32, s, 1));
    MAKER(tg_uniform, c, tg_uniform(c, TG_F32, s, 0, 1));
    MAKER(tg_param_new, c, tg_param_new(c, "p", TG_F32, s, 1));
    INERT(tg_zeros, DTYPE, "f4e2m1", tg_zeros(ctx, TG_F4E2M1, TG_SHAPE(2)));
    INERT(tg_zeros, DTYPE, "expected one of", tg_zeros(ctx, (tg_dtype)99, TG_SHAPE(2)));
    INERT(tg_zeros, DTYPE, "expected one of", tg_zeros(ctx, (tg_dtype)-1, TG_SHAPE(2)));
    INERT(tg_zeros, MEMORY, "bytes were asked for", tg_zeros(ctx, TG_F32, TG_SHAPE((int64_t)1 << 50)));
    INERT(tg_from_host, ARGUMENT, "data is NULL", tg_from_host(ctx, TG_F32, TG_SHAPE(2), NULL));
    INERT(tg_from_host, DTYPE, "expected one of", tg_from_host(ctx, TG_F4E2M1, TG_SHAPE(2), data));
    INERT(tg_randn, ARGUMENT, "std is nan", tg_randn(ctx, TG_F32, TG_SHAPE(2), NAN));
    INERT(tg_randn, ARGUMENT, "std is -1", tg_randn(ctx, TG_F32, TG_SHAPE(2), -1));
    INERT(tg_randn, ARGUMENT, "std is inf", tg_randn(ctx, TG_F32, TG_SHAPE(2), INFINITY));
    INERT(tg_randn, DTYPE, "i64, expected a float", tg_randn(ctx, TG_I64, TG_SHAPE(2), 1));
    INERT(tg_randn, DTYPE, "expected a float", tg_randn(ctx, (tg_dtype)99, TG_SHAPE(2), 1));
    INERT(tg_uniform, DTYPE, "bool, expected a float", tg_uniform(ctx, TG_BOOL, TG_SHAPE(2), 0, 1));
    INERT(tg_uniform, DTYPE, "expected a float", tg_uniform(ctx, (tg_dtype)99, TG_SHAPE(2), 0, 1));
    INERT(tg_uniform, ARGUMENT, "within the range of f64", tg_uniform(ctx, TG_F64, TG_SHAPE(2), -1e308, 1e308));
    INERT(tg_uniform, ARGUMENT, "expected finite lo <= hi", tg_uniform(ctx, TG_F32, TG_SHAPE(2), 1, 0));
    INERT(tg_uniform, ARGUMENT, "expected finite lo <= hi", tg_uniform(ctx, TG_F32, TG_SHAPE(2), NAN, 1));
    INERT(tg_uniform, ARGUMENT, "expected finite lo <= hi", tg_uniform(ctx, TG_F32, TG_SHAPE(2), 0, INFINITY));
    INERT(tg_uniform, ARGUMENT, "within the range of f32", tg_uniform(ctx, TG_F32, TG_SHAPE(2), 0, 1e39));
    INERT(tg_uniform, ARGUMENT, "within the range of f32", tg_uniform(ctx, TG_F32, TG_SHAPE(2), -3e38, 3e38));
    INERT(tg_uniform, ARGUMENT, "contains no number of dtype f32",
          tg_uniform(ctx, TG_F32, TG_SHAPE(2), 1 + 1e-9, 1 + 2e-9));
    INERT(tg_param_new, ARGUMENT, "std is nan", tg_param_new(ctx, "p", TG_F32, TG_SHAPE(2), NAN));
    INERT(tg_param_new, ARGUMENT, "std is -0.5", tg_param_new(ctx, NULL, TG_F32, TG_SHAPE(2), -0.5));
    INERT(tg_param_new, DTYPE, "i64, expected a float", tg_param_new(ctx, "p", TG_I64, TG_SHAPE(2), 1));
    INERT(tg_param_new, DTYPE, "expected a float", tg_param_new(ctx, "p", (tg_dtype)99, TG_SHAPE(2), 1));
}

/* ---- Memory of the caller ---- */

static void count(void *user) { ++*(int *)user; }

/* Memory that cannot be wrapped is released at once and exactly once. */
static bool released(tg_tensor *x, int *n) {
    bool once = *n == 1;
    *n = 0;
    return once && misuse_inert(x);
}

static void wraps(misuse_world *b) {
    static float data[8];
    tg_ctx *ctx = b->ctx, *meta = tg_ctx_new(TG_CONFIG(.device = "meta"));
    int n = 0;
    const int64_t back[] = {INT64_MIN}, far[] = {INT64_MAX, INT64_MAX}, wide[] = {INT64_MAX / 4};
    GIVES(tg_wrap, ARGUMENT, "data is", released(tg_wrap(ctx, TG_F32, TG_SHAPE(2), NULL, NULL, count, &n), &n));
    GIVES(tg_wrap, ARGUMENT, "aligned to 4 bytes",
          released(tg_wrap(ctx, TG_F32, TG_SHAPE(1), NULL, (char *)data + 1, count, &n), &n));
    GIVES(tg_wrap, ARGUMENT, "more bytes than 63 bits can count",
          released(tg_wrap(ctx, TG_F32, TG_SHAPE(2), back, data, count, &n), &n));
    GIVES(tg_wrap, ARGUMENT, "more bytes than 63 bits can count",
          released(tg_wrap(ctx, TG_F32, TG_SHAPE(2, 2), far, data, count, &n), &n));
    GIVES(tg_wrap, ARGUMENT, "more bytes than 63 bits can count",
          released(tg_wrap(ctx, TG_F32, TG_SHAPE(2), wide, data, count, &n), &n));
    GIVES(tg_wrap, DTYPE, "expected one of", released(tg_wrap(ctx, TG_F4E2M1, TG_SHAPE(2), NULL, data, count, &n), &n));
    QUIET(tg_wrap, released(tg_wrap(NULL, TG_F32, TG_SHAPE(2), NULL, data, count, &n), &n));
    QUIET(tg_wrap, released(tg_wrap(meta, TG_F32, TG_SHAPE(2), NULL, data, count, &n), &n) &&
                       tg_ctx_status(meta) == TG_ERR_DEVICE);
    tg_ctx_free(meta);
}

/* ---- Wrong handles ---- */

static void questions(misuse_world *b) {
    char buf[16];
    tg_tensor *null = NULL;
    DEAD_QUIET(tg_is_alive, !tg_is_alive(x) && !tg_is_alive(NULL));
    DEAD_QUIET(tg_ctx_of, tg_ctx_of(x) == b->ctx && !tg_ctx_of(NULL));
    DEAD_QUIET(tg_ndim, tg_ndim(x) == 0 && tg_ndim(NULL) == 0);
    DEAD_QUIET(tg_dim, tg_dim(x, 0) == -1 && tg_dim(NULL, 0) == -1);
    DEAD_QUIET(tg_stride, tg_stride(x, 0) == -1 && tg_stride(NULL, 0) == -1);
    DEAD_QUIET(tg_numel, tg_numel(x) == 0 && tg_numel(NULL) == 0);
    DEAD_QUIET(tg_shape_of, tg_shape_of(x).ndim == 0 && tg_shape_of(NULL).ndim == 0);
    DEAD_QUIET(tg_dtype_of, tg_dtype_of(x) == TG_DTYPE_DEFAULT && tg_dtype_of(NULL) == TG_DTYPE_DEFAULT);
    DEAD_QUIET(tg_is_contiguous, !tg_is_contiguous(x) && !tg_is_contiguous(NULL));
    DEAD_QUIET(tg_requires_grad, !tg_requires_grad(x) && !tg_requires_grad(NULL));
    DEAD_QUIET(tg_name, !*tg_name(x) && !*tg_name(NULL));
    DEAD_QUIET(tg_describe, tg_describe(x, buf, sizeof buf) == 11 && strcmp(buf, "dead tensor") == 0);
    DEAD_QUIET(tg_ref_of, !tg_ref_of(x).tensor && !tg_ref_of(NULL).tensor);
    DEAD_QUIET(tg_has_grad, !tg_has_grad(x) && !tg_has_grad(NULL));
    QUIET(tg_dim, tg_dim(b->x, 2) == -1 && tg_dim(b->x, -3) == -1 && tg_dim(b->x, INT32_MIN) == -1);
    QUIET(tg_stride, tg_stride(b->x, 2) == -1 && tg_stride(b->x, -3) == -1 && tg_stride(b->x, INT32_MIN) == -1);
    QUIET(tg_describe, tg_describe(NULL, buf, sizeof buf) == 4 && strcmp(buf, "NULL") == 0);
    QUIET(tg_describe, tg_describe(b->x, NULL, 0) == 9 && tg_describe(b->x, NULL, 7) == 9);
    QUIET(tg_describe, tg_describe(b->x, buf, 4) == 9 && strcmp(buf, "f32") == 0);
    QUIET(tg_ref_get, misuse_inert(tg_ref_get(b->ctx, (tg_ref){0})) && misuse_inert(tg_ref_get(NULL, tg_ref_of(b->x))));
    QUIET(tg_ref_get, misuse_inert(tg_ref_get(b->far, tg_ref_of(b->x))));
    QUIET(tg_ref_get, misuse_inert(tg_ref_get(b->ctx, (tg_ref){b->x, tg_ref_of(b->x).serial + 1})));
    QUIET(tg_ref_get, misuse_inert(tg_ref_get(b->ctx, (tg_ref){null, 5})));
}

/* ---- Names, flags, lifetimes ---- */

static bool drops_do_nothing(misuse_world *b) {
    tg_drop(NULL);
    EACH_DEAD(x) tg_drop(x);
    tg_drop(b->r);
    tg_drop(b->elsewhere);
    return tg_is_alive(b->r) && tg_is_alive(b->elsewhere);
}

static void setters(misuse_world *b) {
    QUIET(tg_set_name, tg_set_name(NULL, "n") == TG_ERR_ARGUMENT);
    FAILS(tg_set_name, ARGUMENT, "the name is NULL", tg_set_name(b->x, NULL));
    DEAD_STATUS(tg_set_name, tg_set_name(x, "n"));
    QUIET(tg_set_requires_grad, tg_set_requires_grad(NULL, true) == TG_ERR_ARGUMENT);
    FAILS(tg_set_requires_grad, STATE, "not a leaf", tg_set_requires_grad(b->r, false));
    FAILS(tg_set_requires_grad, DTYPE, "i64, expected a float", tg_set_requires_grad(b->ids, true));
    FAILS(tg_set_requires_grad, DTYPE, "bool, expected a float", tg_set_requires_grad(b->mask, true));
    DEAD_STATUS(tg_set_requires_grad, tg_set_requires_grad(x, true));
    QUIET(tg_keep, misuse_inert(tg_keep(NULL)));
    DEAD_TENSOR(tg_keep, tg_keep(x));
    INERT(tg_keep, DISCARDED, "tg_discard", tg_keep(b->gone));
    QUIET(tg_drop, drops_do_nothing(b));
}

/* ---- Values ---- */

static void reads(misuse_world *b) {
    float f[6] = {0};
    double d[6] = {0};
    QUIET(tg_item, isnan(tg_item(NULL)));
    GIVES(tg_item, SHAPE, "f32[2, 3], expected one element", isnan(tg_item(b->x)));
    EACH_DEAD(x) GIVES(tg_item, HANDLE, "the tensor", isnan(tg_item(x)));
    GIVES(tg_item, DISCARDED, "tg_discard", isnan(tg_item(b->gone)));
    QUIET(tg_read, tg_read(NULL, f, sizeof f) == TG_ERR_ARGUMENT);
    FAILS(tg_read, ARGUMENT, "7 bytes given, the tensor has 24", tg_read(b->x, f, 7));
    FAILS(tg_read, ARGUMENT, "the tensor has 24", tg_read(b->x, f, SIZE_MAX));
    FAILS(tg_read, ARGUMENT, "the buffer is NULL", tg_read(b->x, NULL, 24));
    FAILS(tg_read, DISCARDED, "tg_discard", tg_read(b->gone, f, 24));
    DEAD_STATUS(tg_read, tg_read(x, f, 24));
    QUIET(tg_read_f64, tg_read_f64(NULL, d, 6) == TG_ERR_ARGUMENT);
    FAILS(tg_read_f64, ARGUMENT, "5 elements given, the tensor has 6", tg_read_f64(b->x, d, 5));
    FAILS(tg_read_f64, ARGUMENT, "the tensor has 6", tg_read_f64(b->x, d, -6));
    FAILS(tg_read_f64, ARGUMENT, "the buffer is NULL", tg_read_f64(b->x, NULL, 6));
    FAILS(tg_read_f64, DISCARDED, "tg_discard", tg_read_f64(b->gone, d, 6));
    DEAD_STATUS(tg_read_f64, tg_read_f64(x, d, 6));
    QUIET(tg_download, !tg_download(NULL, f, sizeof f));
    GIVES(tg_download, ARGUMENT, "7 bytes given, the tensor has 24", !tg_download(b->x, f, 7));
    GIVES(tg_download, ARGUMENT, "the buffer is NULL", !tg_download(b->x, NULL, 24));
    GIVES(tg_download, DISCARDED, "tg_discard", !tg_download(b->gone, f, 24));
    EACH_DEAD(x) GIVES(tg_download, HANDLE, "the tensor", !tg_download(x, f, 24));
    QUIET(tg_download_f64, !tg_download_f64(NULL, d, 6));
    GIVES(tg_download_f64, ARGUMENT, "5 elements given, the tensor has 6", !tg_download_f64(b->x, d, 5));
    GIVES(tg_download_f64, ARGUMENT, "the buffer is NULL", !tg_download_f64(b->x, NULL, 6));
    GIVES(tg_download_f64, DISCARDED, "tg_discard", !tg_download_f64(b->gone, d, 6));
    EACH_DEAD(x) GIVES(tg_download_f64, HANDLE, "the tensor", !tg_download_f64(x, d, 6));
    QUIET(tg_host_data, !tg_host_data(NULL));
    EACH_DEAD(x) GIVES(tg_host_data, HANDLE, "the tensor", !tg_host_data(x));
    GIVES(tg_host_data, DISCARDED, "tg_discard", !tg_host_data(b->gone));
}

/* A tensor may be written from its own memory. */
static bool writes_from_itself(misuse_world *b) {
    float data[4] = {1, 2, 3, 4}, got[3];
    tg_tensor *x = tg_wrap(b->ctx, TG_F32, TG_SHAPE(3), NULL, data + 1, NULL, NULL);
    bool good =
        tg_write(x, data, 12) == TG_OK && tg_read(x, got, 12) == TG_OK && got[0] == 1 && got[1] == 2 && got[2] == 3;
    tg_drop(x);
    return good;
}

static void overlapping(misuse_world *b) {
    static float data[64];
    static const double d[6] = {0}, e[24] = {0};
    static const int64_t near[] = {1, 1}, far[] = {2, 3}, apart[] = {3, 2}, cube[] = {4, 1, 6}, free_cube[] = {9, 1, 3};
    tg_ctx *ctx = b->ctx;
    tg_tensor *x = tg_wrap(ctx, TG_F32, TG_SHAPE(2, 3), near, data, NULL, NULL); /* each row is the last, shifted */
    FAILS(tg_write_f64, STATE, "strides overlap", tg_write_f64(x, d, 6));
    x = tg_wrap(ctx, TG_F32, TG_SHAPE(2, 3), far, data, NULL, NULL); /* 0 3 6, 2 5 8 */
    QUIET(tg_write_f64, tg_write_f64(x, d, 6) == TG_OK);
    x = tg_wrap(ctx, TG_F32, TG_SHAPE(2, 3), apart, data, NULL, NULL); /* 0 2 4, 3 5 7 */
    QUIET(tg_write_f64, tg_write_f64(x, d, 6) == TG_OK);
    x = tg_wrap(ctx, TG_F32, TG_SHAPE(4, 3, 2), cube, data, NULL, NULL); /* 2 + 4 and 6 */
    FAILS(tg_write_f64, STATE, "strides overlap", tg_write_f64(x, e, 24));
    x = tg_wrap(ctx, TG_F32, TG_SHAPE(4, 3, 2), free_cube, data, NULL, NULL);
    QUIET(tg_write_f64, tg_write_f64(x, e, 24) == TG_OK);
}

static void writes(misuse_world *b) {
    static float one[1];
    const float f[6] = {0};
    const double d[6] = {0};
    const int64_t expanded[] = {0};
    tg_tensor *shared = tg_wrap(b->ctx, TG_F32, TG_SHAPE(6), expanded, one, NULL, NULL);
    QUIET(tg_write, tg_write(NULL, f, sizeof f) == TG_ERR_ARGUMENT);
    FAILS(tg_write, ARGUMENT, "25 bytes given, the tensor has 24", tg_write(b->x, f, 25));
    FAILS(tg_write, ARGUMENT, "the buffer is NULL", tg_write(b->x, NULL, 24));
    FAILS(tg_write, STATE, "share memory", tg_write(shared, f, 24));
    FAILS(tg_write, DISCARDED, "tg_discard", tg_write(b->gone, f, 24));
    DEAD_STATUS(tg_write, tg_write(x, f, 24));
    QUIET(tg_upload, tg_upload(NULL, f, sizeof f) == TG_ERR_ARGUMENT);
    FAILS(tg_upload, ARGUMENT, "25 bytes given, the tensor has 24", tg_upload(b->x, f, 25));
    FAILS(tg_upload, ARGUMENT, "the buffer is NULL", tg_upload(b->x, NULL, 24));
    FAILS(tg_upload, STATE, "share memory", tg_upload(shared, f, 24));
    FAILS(tg_upload, DISCARDED, "tg_discard", tg_upload(b->gone, f, 24));
    DEAD_STATUS(tg_upload, tg_upload(x, f, 24));
    QUIET(tg_write_f64, tg_write_f64(NULL, d, 6) == TG_ERR_ARGUMENT);
    FAILS(tg_write_f64, ARGUMENT, "7 elements given, the tensor has 6", tg_write_f64(b->x, d, 7));
    FAILS(tg_write_f64, ARGUMENT, "the buffer is NULL", tg_write_f64(b->x, NULL, 6));
    FAILS(tg_write_f64, STATE, "share memory", tg_write_f64(shared, d, 6));
    FAILS(tg_write_f64, DISCARDED, "tg_discard", tg_write_f64(b->gone, d, 6));
    DEAD_STATUS(tg_write_f64, tg_write_f64(x, d, 6));
    QUIET(tg_write, writes_from_itself(b));
    tg_drop(shared);
    overlapping(b);
}

/* ---- A device without values ---- */

static bool refused(tg_ctx *meta, bool answer) {
    bool good = answer && tg_ctx_status(meta) == TG_ERR_DEVICE && strstr(tg_ctx_message(meta), "\"meta\"");
    tg_ctx_clear(meta);
    return good;
}

static void without_values(misuse_world *b) {
    tg_ctx *meta = tg_ctx_new(TG_CONFIG(.device = "meta"));
    tg_tensor *x = tg_zeros(meta, TG_F32, TG_SHAPE(1));
    float f = 0;
    double d = 0;
    QUIET(tg_item, refused(meta, isnan(tg_item(x))));
    QUIET(tg_read, refused(meta, tg_read(x, &f, sizeof f) == TG_ERR_DEVICE));
    QUIET(tg_write, refused(meta, tg_write(x, &f, sizeof f) == TG_ERR_DEVICE));
    QUIET(tg_read_f64, refused(meta, tg_read_f64(x, &d, 1) == TG_ERR_DEVICE));
    QUIET(tg_write_f64, refused(meta, tg_write_f64(x, &d, 1) == TG_ERR_DEVICE));
    QUIET(tg_upload, refused(meta, tg_upload(x, &f, sizeof f) == TG_ERR_DEVICE));
    QUIET(tg_download, refused(meta, !tg_download(x, &f, sizeof f)));
    QUIET(tg_download_f64, refused(meta, !tg_download_f64(x, &d, 1)));
    QUIET(tg_host_data, refused(meta, !tg_host_data(x)));
    QUIET(tg_array_of, !tg_array_of(x).data && tg_array_of(x).numel == 1);
    tg_ctx_free(meta);
}

void misuse_tensor(misuse_world *b) {
    makers(b);
    wraps(b);
    questions(b);
    setters(b);
    reads(b);
    writes(b);
    without_values(b);
}
