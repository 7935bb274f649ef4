/* safetensors: round trips, and every way in which a file can be malformed. */
#define _GNU_SOURCE
#include <tapegrad/extend.h>

#include "io_fixture.h"

/* The part of a header for one tensor. */
#define T(name, dtype, shape, offsets)                                                                                 \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* Writes a file with this header and n zero bytes of data. */
static const char *put_header(workplace *w, const char *header, size_t n) {
    char bytes[4096] = {0};
    uint64_t length = strlen(header);
    ck_assert_uint_le(8 + length + n, sizeof bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    return put_file(w, "h.safetensors", bytes, 8 + length + n);
}

/* ---- Round trips ---- */

static const struct {
    tg_dtype dtype;
    const char *name;
    size_t size;
} dtypes[] = {
    {TG_F32, "F32", 4}, {TG_F64, "F64", 8}, {TG_BF16, "BF16", 2}, {TG_F16, "F16", 2},
    {TG_I64, "I64", 8}, {TG_I32, "I32", 4}, {TG_U8, "U8", 1},     {TG_BOOL, "BOOL", 1},
    {TG_I8, "I8", 1},   {TG_I16, "I16", 2}, {TG_U16, "U16", 2},   {TG_U32, "U32", 4},
    {TG_U64, "U64", 8}, {TG_F8E4M3, "F8_E4M3", 1}, {TG_F8E5M2, "F8_E5M2", 1}, {TG_F8E8M0, "F8_E8M0", 1},
};

START_TEST(every_dtype_comes_back) {
    enum { N = 6 };
    workplace w = workplace_new(NULL);
    tg_named_tensor named[COUNT(dtypes)];
    uint8_t bytes[COUNT(dtypes)][8 * N], back[8 * N];
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        for (size_t k = 0; k < dtypes[i].size * N; k++)
            bytes[i][k] = dtypes[i].dtype == TG_BOOL ? k % 2 : (uint8_t)(k * 37 + i);
        named[i] = (tg_named_tensor){dtypes[i].name, tg_from_host(w.ctx, dtypes[i].dtype, TG_SHAPE(2, 3), bytes[i])};
    }
    ck_assert_int_eq(tg_safetensors_save(w.ctx, in(&w, "a"), named, COUNT(named), NULL, 0), TG_OK);
    tg_safetensors *f = tg_safetensors_open(w.ctx, in(&w, "a"));
    ck_assert_int_eq(tg_safetensors_count(f), COUNT(dtypes));
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        const tg_safetensors_entry *e = tg_safetensors_at(f, (int)i); /* in the given order */
        ck_assert_str_eq(e->name, dtypes[i].name);
        ck_assert_str_eq(e->dtype_name, dtypes[i].name);
        ck_assert_int_eq(e->dtype, dtypes[i].dtype);
        ck_assert(e->shape.ndim == 2 && e->shape.dim[0] == 2 && e->shape.dim[1] == 3);
        tg_tensor *x = tg_safetensors_load(f, e->name);
        ck_assert_int_eq(tg_read(x, back, dtypes[i].size * N), TG_OK);
        ck_assert_mem_eq(back, bytes[i], dtypes[i].size * N);
    }
    ck_assert_int_eq(tg_safetensors_at(f, 0)->begin % 8, 0);
    tg_safetensors_close(f);
    workplace_free(&w);
}
END_TEST

START_TEST(shapes_strides_names_and_metadata_come_back) {
    static const int64_t transposed[] = {1, 3};
    static const char *const names[] = {"scalar", "empty", "a \"quoted\\\" caf\xc3\xa9\n\x01", ""};
    static const tg_metadata metadata[] = {{"format", "pt"}, {"quote\"", "line\nend\t\xf0\x9f\x98\x80"}, {"", ""}};
    float data[] = {0, 1, 2, 3, 4, 5}, back[6];
    workplace w = workplace_new(NULL);
    tg_named_tensor named[] = {
        {names[0], tg_from_host(w.ctx, TG_F32, TG_SHAPE(), data + 5)},
        {names[1], tg_zeros(w.ctx, TG_F32, TG_SHAPE(0, 7))},
        {names[2], tg_wrap(w.ctx, TG_F32, TG_SHAPE(3, 2), transposed, data, NULL, NULL)},
        {names[3], tg_zeros(w.ctx, TG_U8, TG_SHAPE(1, 1, 1, 1, 1, 1, 1, 1))},
    };
    ck_assert_int_eq(tg_safetensors_save(w.ctx, in(&w, "a"), named, COUNT(named), metadata, COUNT(metadata)), TG_OK);
    tg_safetensors *f = tg_safetensors_open(w.ctx, in(&w, "a"));
    ck_assert_int_eq(tg_safetensors_count(f), COUNT(named));
    for (size_t i = 0; i < COUNT(names); i++) {
        const tg_safetensors_entry *e = tg_safetensors_find(f, names[i]);
        tg_shape s = tg_shape_of(named[i].tensor);
        ck_assert(e && e->shape.ndim == s.ndim && memcmp(e->shape.dim, s.dim, (size_t)s.ndim * sizeof *s.dim) == 0);
    }
    ck_assert_int_eq(tg_read(tg_safetensors_load(f, names[2]), back, sizeof back), TG_OK);
    ck_assert_mem_eq(back, ((float[]){0, 3, 1, 4, 2, 5}), sizeof back);
    ck_assert(tg_item(tg_safetensors_load(f, "scalar")) == 5);
    for (size_t i = 0; i < COUNT(metadata); i++) {
        ck_assert_str_eq(tg_safetensors_metadata_at(f, (int)i)->key, metadata[i].key);
        ck_assert_str_eq(tg_safetensors_metadata(f, metadata[i].key), metadata[i].value);
    }
    ck_assert_ptr_null(tg_safetensors_metadata(f, "none"));
    tg_safetensors_close(f);
    workplace_free(&w);
}
END_TEST

/* Several pieces: written from a transposed tensor, and read into a transposed one of another dtype. */
START_TEST(large_tensors_pass_in_pieces) {
    enum { R = 300, C = 1100 };
    static const int64_t shapes[][3] = {{R, C, 1}, {1, R, C}, {R * C, 1, 1}, {2, 1, R * C / 2}, {R, 1, C}};
    workplace w = workplace_new(NULL);
    double *from = malloc(R * C * sizeof *from), *got = malloc(R * C * sizeof *got), *to = malloc(R * C * sizeof *to);
    for (int i = 0; i < R * C; i++) from[i] = i;
    for (size_t k = 0; k < COUNT(shapes); k++) {
        const int64_t *s = shapes[k], strides[] = {1, s[0], s[0] * s[1]};
        tg_shape shape = tg_shape_make(3, s);
        tg_named_tensor x = {"x", tg_wrap(w.ctx, TG_F64, shape, strides, from, NULL, NULL)};
        tg_tensor *rows = tg_zeros(w.ctx, TG_F64, shape);
        tg_tensor *columns = tg_wrap(w.ctx, TG_F64, shape, strides, to, NULL, NULL);
        tg_tensor *narrow = tg_zeros(w.ctx, TG_F32, shape);
        ck_assert_int_eq(tg_safetensors_save(w.ctx, in(&w, "a"), &x, 1, NULL, 0), TG_OK);
        tg_safetensors *f = tg_safetensors_open(w.ctx, in(&w, "a"));
        ck_assert_int_eq(tg_safetensors_read(f, "x", rows, false), TG_OK);
        ck_assert_int_eq(tg_safetensors_read(f, "x", columns, false), TG_OK);
        ck_assert_int_eq(tg_safetensors_read(f, "x", narrow, true), TG_OK);
        ck_assert_mem_eq(to, from, R * C * sizeof *from);
        tg_read(rows, to, R * C * sizeof *to);
        tg_read_f64(narrow, got, R * C);
        ck_assert_mem_eq(got, to, R * C * sizeof *to);
        int wrong = 0; /* an assertion per element would take seconds */
        for (int64_t i = 0; i < R * C; i++) {
            int64_t c = i % s[2], b = i / s[2] % s[1], a = i / s[2] / s[1];
            wrong += to[i] != from[a * strides[0] + b * strides[1] + c * strides[2]];
        }
        ck_assert_int_eq(wrong, 0);
        tg_safetensors_close(f);
        memset(to, 0, R * C * sizeof *to);
    }
    ck_assert_int_eq(tg_ctx_status(w.ctx), TG_OK);
    tg_ctx_free(w.ctx);
    w.ctx = NULL;
    free(from);
    free(got);
    free(to);
    workplace_free(&w);
}
END_TEST

START_TEST(values_are_converted_only_when_asked) {
    static const double values[] = {1.0, 1.00390625, 65504, -0.0}; /* the second is between two bfloat16 numbers */
    static const double rounded[] = {1.0, 1.0, 65536, -0.0};
    double back[4];
    int64_t ids[4] = {0};
    workplace w = workplace_new(NULL);
    tg_named_tensor named[] = {{"x", tg_from_host(w.ctx, TG_F64, TG_SHAPE(4), values)},
                               {"i", tg_from_host(w.ctx, TG_I64, TG_SHAPE(4), ids)}};
    ck_assert_int_eq(tg_safetensors_save(w.ctx, in(&w, "a"), named, 2, NULL, 0), TG_OK);
    tg_safetensors *f = tg_safetensors_open(w.ctx, in(&w, "a"));
    tg_tensor *x = tg_zeros(w.ctx, TG_BF16, TG_SHAPE(4));
    tg_safetensors_read(f, "x", x, false);
    expect_error(w.ctx, TG_ERR_DTYPE, "tensor 'x' is F64, expected bf16");
    ck_assert_int_eq(tg_safetensors_read(f, "x", x, true), TG_OK);
    tg_read_f64(x, back, 4);
    ck_assert_mem_eq(back, rounded, sizeof back);
    tg_safetensors_read(f, "i", x, true);
    expect_error(w.ctx, TG_ERR_DTYPE, "only floats and float8 are converted");
    tg_safetensors_close(f);
    workplace_free(&w);
}
END_TEST

START_TEST(destinations_must_fit) {
    float one = 1;
    workplace w = workplace_new(NULL);
    tg_ctx *other = tg_ctx_new(NULL);
    tg_safetensors *f = tg_safetensors_open(
        w.ctx, put_header(&w, "{" T("x", "F32", "[2,3]", "[0,24]") "," T("u", "C64", "[]", "[24,32]") "}", 32));
    ck_assert_int_eq(tg_safetensors_count(f), 2);
    tg_safetensors_read(f, "x", tg_zeros(w.ctx, TG_F32, TG_SHAPE(3, 2)), false);
    expect_error(w.ctx, TG_ERR_SHAPE, "tensor 'x' is [2, 3], expected [3, 2]");
    tg_safetensors_read(f, "y", tg_zeros(w.ctx, TG_F32, TG_SHAPE(3, 2)), false);
    expect_error(w.ctx, TG_ERR_DATA, "has no tensor 'y'");
    tg_safetensors_read(f, NULL, NULL, false);
    expect_error(w.ctx, TG_ERR_ARGUMENT, "name is NULL");
    tg_safetensors_read(f, "x", NULL, false);
    expect_error(w.ctx, TG_ERR_ARGUMENT, "NULL");
    tg_safetensors_read(f, "x", tg_zeros(other, TG_F32, TG_SHAPE(2, 3)), false);
    expect_error(w.ctx, TG_ERR_HANDLE, "another context");
    tg_safetensors_read(f, "x", tg_wrap(w.ctx, TG_F32, TG_SHAPE(2, 3), (int64_t[]){0, 0}, &one, NULL, NULL), false);
    expect_error(w.ctx, TG_ERR_STATE, "expanded");
    tg_tensor *x = tg_zeros(w.ctx, TG_F32, TG_SHAPE(2, 3));
    tg_set_read_only(x, true);
    tg_safetensors_read(f, "x", x, false);
    expect_error(w.ctx, TG_ERR_STATE, "tg_safetensors_read: the tensor's memory is read-only");
    ck_assert(!tg_is_alive(tg_safetensors_load(f, "u")));
    expect_error(w.ctx, TG_ERR_UNSUPPORTED, "tensor 'u' is C64");
    ck_assert(!tg_is_alive(tg_safetensors_load(f, NULL)));
    expect_error(w.ctx, TG_ERR_ARGUMENT, "name is NULL");
    ck_assert_int_eq(truncate(w.path, tg_safetensors_find(f, "x")->begin + 5), 0);
    ck_assert(!tg_is_alive(tg_safetensors_load(f, "x")));
    expect_error(w.ctx, TG_ERR_IO, "expected 19 more bytes");
    tg_safetensors_close(f);
    tg_ctx_free(other);
    workplace_free(&w);
}
END_TEST

START_TEST(a_bool_is_0_or_1) {
    static const char header[] = "{" T("b", "BOOL", "[3]", "[0,3]") "}";
    char bytes[256];
    workplace w = workplace_new(NULL);
    put_header(&w, header, 3);
    size_t n = get_file(&w, "h.safetensors", bytes, sizeof bytes);
    bytes[n - 1] = 7;
    tg_safetensors *f = tg_safetensors_open(w.ctx, put_file(&w, "h.safetensors", bytes, n));
    tg_safetensors_load(f, "b");
    expect_error(w.ctx, TG_ERR_DATA, "tensor 'b' (BOOL) holds the byte 7 at offset 65, expected 0 or 1");
    tg_safetensors_close(f);
    workplace_free(&w);
}
END_TEST

/* Device meta checks shapes and reads nothing. A device whose memory the host cannot access uses a buffer. */
START_TEST(other_devices) {
    static const float data[] = {1, 2, 3};
    workplace w = workplace_new(NULL);
    tg_named_tensor x = {"x", tg_from_host(w.ctx, TG_F32, TG_SHAPE(3), data)};
    ck_assert_int_eq(tg_safetensors_save(w.ctx, in(&w, "a"), &x, 1, NULL, 0), TG_OK);
    tg_ctx *meta = tg_ctx_new(TG_CONFIG(.device = "meta"));
    tg_safetensors *f = tg_safetensors_open(meta, in(&w, "a"));
    ck_assert_int_eq(tg_numel(tg_safetensors_load(f, "x")), 3);
    tg_safetensors_read(f, "x", tg_zeros(meta, TG_F32, TG_SHAPE(4)), false);
    expect_error(meta, TG_ERR_SHAPE, "[3], expected [4]");
    tg_tensor *fixed = tg_zeros(meta, TG_F32, TG_SHAPE(3));
    tg_set_read_only(fixed, true);
    tg_safetensors_read(f, "x", fixed, false);
    expect_error(meta, TG_ERR_STATE, "tg_safetensors_read: the tensor's memory is read-only");
    tg_safetensors_save(meta, in(&w, "b"), NULL, 0, NULL, 0);
    expect_error(meta, TG_ERR_DEVICE, "meta");
    tg_safetensors_close(f);
    tg_ctx_free(meta);

    tg_device_ops far = *tg_ctx_ops(w.ctx);
    far.host = false;
    tg_ctx *ctx = tg_ctx_new_on(&far, NULL);
    float back[3];
    f = tg_safetensors_open(ctx, in(&w, "a"));
    x.tensor = tg_safetensors_load(f, "x");
    ck_assert_int_eq(tg_read(x.tensor, back, sizeof back), TG_OK);
    ck_assert_mem_eq(back, data, sizeof data);
    ck_assert_int_eq(tg_safetensors_save(ctx, in(&w, "b"), &x, 1, NULL, 0), TG_OK);
    char first[256], second[256];
    size_t n = get_file(&w, "a", first, sizeof first);
    ck_assert_uint_eq(get_file(&w, "b", second, sizeof second), n);
    ck_assert_mem_eq(first, second, n);
    tg_safetensors_close(f);
    tg_ctx_free(ctx);
    workplace_free(&w);
}
END_TEST

/* ---- Malformed files ---- */

static const struct {
    const char *header;
    size_t data;
    const char *words;
} malformed[] = {
    {"", 0, "offset 8: the first byte is not '{'"},
    {" {}", 0, "offset 8: the first byte is not '{'"},
    {"[]", 0, "the first byte is not '{'"},
    {"{", 0, "offset 9: expected a name in quotes, found the end of the header"},
    {"{}x", 0, "offset 10: expected nothing but white space, found 'x'"},
    {"{},", 0, "expected nothing but white space, found ','"},
    {"{\"a\":1}", 0, "offset 13, tensor 'a': expected '{', found '1'"},
    {"{\"a\" {}}", 0, "expected ':', found '{'"},
    {"{\"a\":{}}", 0, "tensor 'a': dtype is missing"},
    {"{\"a\":{\"dtype\":\"F32\"}}", 0, "shape is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, "data_offsets is missing"},
    {"{" T("a", "F31", "[]", "[0,4]") "}", 4, "offset 14, tensor 'a': dtype \"F31\" is unknown"},
    {"{" T("a", "f32", "[]", "[0,4]") "}", 4, "dtype \"f32\" is unknown"},
    {"{\"a\":{\"dtype\":7}}", 0, "expected a dtype in quotes, found '7'"},
    {"{\"a\":{\"type\":7}}", 0, "the key \"type\" is unknown"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "the key \"dtype\" is repeated"},
    {"{\"a\":{\"shape\":[],\"shape\":[]}}", 0, "the key \"shape\" is repeated"},
    {"{\"a\":{\"data_offsets\":[0,0],\"data_offsets\":[0,0]}}", 0, "the key \"data_offsets\" is repeated"},
    {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "expected an integer, 0 or more, found '-'"},
    {"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, "expected ',' or ']', found '.'"},
    {"{" T("a", "F32", "[1e0]", "[0,4]") "}", 4, "found 'e'"},
    {"{" T("a", "F32", "[01]", "[0,4]") "}", 4, "begins with 0"},
    {"{" T("a", "F32", "[1,]", "[0,4]") "}", 4, "expected an integer"},
    {"{" T("a", "F32", "1", "[0,4]") "}", 4, "expected '[', found '1'"},
    {"{" T("a", "F32", "[9223372036854775808]", "[0,4]") "}", 4, "an integer overflows 63 bits"},
    {"{" T("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "the size of its shape overflows"},
    {"{" T("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0, "the size of its shape overflows"},
    {"{" T("a", "U8", "[1152921504606846976,8,0]", "[0,0]") "}", 0, "the size of its shape overflows"},
    {"{" T("a", "F4", "[3]", "[0,1]") "}", 1, "not a whole number of bytes"},
    {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "shape has more than 8 numbers"},
    {"{" T("a", "F32", "[]", "[0]") "}", 4, "data_offsets has 1 number, expected 2"},
    {"{" T("a", "F32", "[]", "[0,4,8]") "}", 4, "data_offsets has more than 2 numbers"},
    {"{" T("a", "F32", "[]", "[4,0]") "}", 4, "data_offsets [4, 0] run backwards"},
    {"{" T("a", "F32", "[]", "[0,4]") "}", 3, "pass the end of the file, which holds 3 bytes of data"},
    {"{" T("a", "F32", "[]", "[0,9223372036854775807]") "}", 4, "pass the end of the file"},
    {"{" T("a", "F32", "[2]", "[0,4]") "}", 4, "hold 4 bytes, expected 8"},
    {"{" T("a", "F32", "[]", "[0,4]") "}", 5, "a rest of 1 byte that belongs to no tensor"},
    {"{}", 1, "a rest of 1 byte that belongs to no tensor"},
    {"{" T("a", "U8", "[1]", "[1,2]") "}", 2, "tensor 'a' begins at offset 62, expected 61: a hole of 1 byte"},
    {"{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}", 3, "inside tensor 'a'"},
    {"{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[2,3]") "}", 3, "a hole of 1 byte"},
    {"{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[1,2]") "}", 2, "the tensor 'a' is repeated"},
    {"{" T("a", "U8", "[1]", "[0,1]") "," T("\\u0061", "U8", "[1]", "[1,2]") "}", 2, "the tensor 'a' is repeated"},
    {"{" T("a", "U8", "[1]", "[0,1]") ",}", 1, "expected a name in quotes, found '}'"},
    {"{\"__metadata__\":null}", 0, "expected '{', found 'n'"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "expected a string (metadata), found '1'"},
    {"{\"__metadata__\":{\"a\":{}}}", 0, "expected a string (metadata), found '{'"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "the metadata key 'a' is repeated"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "the key \"__metadata__\" is repeated"},
    {"{\"a\xff\":{}}", 0, "offset 11: not UTF-8 from the byte 0xff"},
    {"{\"a\n\":{}}", 0, "a string has the control byte 0x0a"},
    {"{\"a\\x\":{}}", 0, "offset 11: a string has a bad escape"},
    {"{\"a\\u12g4\":{}}", 0, "a string has a bad escape"},
    {"{\"a\\u0000\":{}}", 0, "a string has a bad escape"},
    {"{\"a\\ud800\":{}}", 0, "a string has a bad escape"},
    {"{\"a\\udc00\":{}}", 0, "a string has a bad escape"},
    {"{\"a\\ud800\\u0041\":{}}", 0, "a string has a bad escape"},
    {"{\"a\\", 0, "a string has a bad escape"},
    {"{\"a", 0, "expected the end of a string, found the end of the header"},
    {"{}\v", 0, "found the byte 0x0b"},
};

START_TEST(malformed_headers_are_refused_with_reason_and_offset) {
    workplace w = workplace_new(NULL);
    int files = open_files();
    for (size_t i = 0; i < COUNT(malformed); i++) {
        ck_assert_msg(!tg_safetensors_open(w.ctx, put_header(&w, malformed[i].header, malformed[i].data)), "row %zu",
                      i);
        ck_assert_ptr_nonnull(strstr(tg_ctx_message(w.ctx), "h.safetensors"));
        expect_error(w.ctx, TG_ERR_FORMAT, malformed[i].words);
    }
    ck_assert_int_eq(open_files(), files);
    workplace_free(&w);
}
END_TEST

START_TEST(unusual_headers_are_accepted) {
    static const struct {
        const char *header;
        size_t data;
    } rows[] = {
        {"{}", 0},
        {"{ }  \n\t\r ", 0},
        {"{\"__metadata__\":{}}", 0},
        {"{ \"a\" : { \"shape\" : [ 1 , 2 ] , \"data_offsets\" : [ 0 , 2 ] , \"dtype\" : \"U8\" } }", 2},
        {"{" T("b", "U8", "[1]", "[1,2]") "," T("a", "U8", "[1]", "[0,1]") "}", 2},
        {"{" T("z", "U8", "[0]", "[1,1]") "," T("a", "U8", "[1]", "[0,1]") "," T("y", "F32", "[4,0]", "[0,0]") "}", 1},
        {"{" T("\\ud83d\\ude00\\/\\b\\f\\n\\r\\t\\\"\\\\", "F4", "[2]", "[0,1]") "}", 1},
    };
    workplace w = workplace_new(NULL);
    for (size_t i = 0; i < COUNT(rows); i++) {
        tg_safetensors *f = tg_safetensors_open(w.ctx, put_header(&w, rows[i].header, rows[i].data));
        ck_assert_msg(f != NULL, "row %zu: %s", i, tg_ctx_message(w.ctx));
        if (i == 6) ck_assert_str_eq(tg_safetensors_at(f, 0)->name, "\xf0\x9f\x98\x80/\b\f\n\r\t\"\\");
        tg_safetensors_close(f);
    }
    workplace_free(&w);
}
END_TEST

START_TEST(malformed_lengths_are_refused) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *words;
    } rows[] = {
        {"", 0, "has 0 bytes, expected a safetensors file"},
        {"\2\0\0\0\0\0\0", 7, "has 7 bytes"},
        {"\3\0\0\0\0\0\0\0{}", 10, "a header of 3 bytes, but only 2 follow"},
        {"\1\341\365\5\0\0\0\0{}", 10, "a header of 100000001 bytes, expected at most 100000000"},
        {"\377\377\377\377\377\377\377\377{}", 10, "18446744073709551615"},
    };
    workplace w = workplace_new(NULL);
    for (size_t i = 0; i < COUNT(rows); i++) {
        ck_assert_ptr_null(tg_safetensors_open(w.ctx, put_file(&w, "a", rows[i].bytes, rows[i].n)));
        expect_error(w.ctx, TG_ERR_FORMAT, rows[i].words);
    }
    workplace_free(&w);
}
END_TEST

/* With every bit of the header flipped in turn, and at every length, a file is refused or read; sanitizers find
 * nothing else. */
START_TEST(damaged_files_never_do_worse_than_fail) {
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"\\u00e9\"}," T("a", "F32", "[2,1]", "[0,8]") "," T("b", "U8", "[3]", "[8,11]") "}";
    char bytes[512];
    workplace w = workplace_new(NULL);
    put_header(&w, header, 11);
    size_t n = get_file(&w, "h.safetensors", bytes, sizeof bytes), refused = 0;
    for (size_t bit = 0; bit < (n - 11) * 8; bit++) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        tg_safetensors *f = tg_safetensors_open(w.ctx, put_file(&w, "d", bytes, n));
        for (int i = 0; i < tg_safetensors_count(f); i++)
            tg_drop(tg_safetensors_load(f, tg_safetensors_at(f, i)->name));
        refused += !f;
        tg_safetensors_close(f);
        tg_ctx_clear(w.ctx);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    ck_assert_uint_gt(refused, n * 6);
    for (size_t length = 0; length < n; length++) {
        ck_assert_ptr_null(tg_safetensors_open(w.ctx, put_file(&w, "d", bytes, length)));
        expect_error(w.ctx, TG_ERR_FORMAT, w.path);
    }
    workplace_free(&w);
}
END_TEST

/* Headers of the shortest possible members: memory stays within a few times their length. */
START_TEST(a_header_takes_a_few_times_its_length) {
    enum { MEMBERS = 20000, LONGEST = 64 };
    static const char *const members[] = {"\"%x\":\"\"", T("%x", "U8", "[0]", "[0,0]")};
    static const char *const frames[][2] = {{"{\"__metadata__\":{", "}}"}, {"{", "}"}};
    counted c = {0};
    workplace w = workplace_new(TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, &c}));
    char *bytes = malloc(MEMBERS * LONGEST);
    for (size_t kind = 0; kind < COUNT(members); kind++) {
        size_t n = 8 + (size_t)sprintf(bytes + 8, "%s", frames[kind][0]);
        for (unsigned i = 0; i < MEMBERS; i++) {
            if (i > 0) bytes[n++] = ',';
            n += (size_t)sprintf(bytes + n, members[kind], i);
        }
        n += (size_t)sprintf(bytes + n, "%s", frames[kind][1]);
        uint64_t length = n - 8;
        memcpy(bytes, &length, 8);
        size_t before = c.peak = c.bytes;
        tg_safetensors *f = tg_safetensors_open(w.ctx, put_file(&w, "a", bytes, n));
        ck_assert_int_eq(tg_safetensors_count(f) + tg_safetensors_metadata_count(f), MEMBERS);
        ck_assert_uint_lt(c.peak - before, 6 * n);
        tg_safetensors_close(f);
        ck_assert_uint_eq(c.bytes, before);
    }
    free(bytes);
    workplace_free(&w);
}
END_TEST

/* ---- Refused saves ---- */

START_TEST(bad_lists_are_refused) {
    static const tg_metadata twice[] = {{"k", "1"}, {"k", "2"}}, missing[] = {{"k", NULL}}, bytes[] = {{"k", "\xff"}};
    workplace w = workplace_new(NULL);
    tg_tensor *x = tg_zeros(w.ctx, TG_F32, TG_SHAPE(2)), *dead = tg_zeros(w.ctx, TG_F32, TG_SHAPE(2));
    tg_drop(dead);
    const struct {
        tg_named_tensor tensors[2];
        int n;
        const tg_metadata *metadata;
        int n_metadata;
        tg_status s;
        const char *words;
    } rows[] = {
        {{{NULL, x}}, 1, NULL, 0, TG_ERR_ARGUMENT, "the name of tensor 0 is NULL"},
        {{{"a", x}, {"\xc3", x}}, 2, NULL, 0, TG_ERR_ARGUMENT, "the name of tensor 1 is not UTF-8 from its byte 0"},
        {{{"__metadata__", x}}, 1, NULL, 0, TG_ERR_ARGUMENT, "reserves the name '__metadata__'"},
        {{{"a", x}, {"a", x}}, 2, NULL, 0, TG_ERR_ARGUMENT, "the name 'a' is given twice"},
        {{{"a", NULL}}, 1, NULL, 0, TG_ERR_ARGUMENT, "(tensor 'a')"},
        {{{"a", dead}}, 1, NULL, 0, TG_ERR_HANDLE, "(tensor 'a')"},
        {{{"a", x}}, 1, twice, 2, TG_ERR_ARGUMENT, "the metadata key 'k' is given twice"},
        {{{"a", x}}, 1, missing, 1, TG_ERR_ARGUMENT, "the value of metadata 0 is NULL"},
        {{{"a", x}}, 1, bytes, 1, TG_ERR_ARGUMENT, "the value of metadata 0 is not UTF-8"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        tg_safetensors_save(w.ctx, in(&w, "a"), rows[i].tensors, rows[i].n, rows[i].metadata, rows[i].n_metadata);
        expect_error(w.ctx, rows[i].s, rows[i].words);
        ck_assert_int_eq(entries_in(w.dir), 0);
    }
    workplace_free(&w);
}
END_TEST

/* ---- Every operation fails once ---- */

static tg_status save_and_load(tg_ctx *ctx, const char *path) {
    static const float data[] = {1, 2, 3, 4, 5, 6};
    static const tg_metadata metadata = {"format", "pt"};
    static const int64_t strides[] = {1, 3};
    tg_tensor *x = tg_wrap(ctx, TG_F32, TG_SHAPE(3, 2), strides, (void *)data, NULL, NULL);
    tg_named_tensor named = {"x", x};
    tg_safetensors_save(ctx, path, &named, 1, &metadata, 1);
    tg_safetensors *f = tg_safetensors_open(ctx, path);
    tg_tensor *y = tg_zeros(ctx, TG_BF16, TG_SHAPE(3, 2));
    tg_safetensors_read(f, "x", y, true);
    tg_drop(tg_safetensors_load(f, "x"));
    tg_safetensors_close(f);
    tg_drop(x);
    tg_drop(y);
    return tg_ctx_status(ctx);
}

static int unsynced(void *user, int fd) {
    (void)user;
    (void)fd;
    return 0;
}

START_TEST(any_failing_allocation_is_survived) {
    const tg_file_ops *fast = TG_FILE_OPS(.fsync = unsynced);
    for (int n = 1;; n++) {
        counted c = {0};
        workplace w =
            workplace_new(TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, &c}, .files = fast));
        int files = open_files(), held = c.held;
        c.fail = c.calls + n;
        tg_status s = save_and_load(w.ctx, in(&w, "a"));
        ck_assert(s == TG_OK || s == TG_ERR_MEMORY);
        ck_assert_int_eq(open_files(), files);
        ck_assert_int_le(entries_in(w.dir), 1);
        tg_ctx_clear(w.ctx);
        c.fail = 0;
        ck_assert_int_eq(save_and_load(w.ctx, in(&w, "a")), TG_OK);
        int once = c.held;
        ck_assert_int_eq(save_and_load(w.ctx, in(&w, "a")), TG_OK);
        ck_assert_int_eq(c.held, once); /* the context keeps memory only once */
        ck_assert_int_ge(once, held);
        workplace_free(&w);
        ck_assert_int_eq(c.held, 0);
        if (s == TG_OK) break;
        ck_assert_int_lt(n, 200);
    }
}
END_TEST

START_TEST(any_failing_call_is_survived) {
    faulty f = {.error = EIO};
    tg_file_ops ops = faulty_ops(&f);
    workplace w = workplace_new(TG_CONFIG(.files = &ops));
    int files = open_files();
    for (int n = 1;; n++) {
        f = (faulty){.fail = n, .error = EIO};
        tg_status s = save_and_load(w.ctx, in(&w, "a"));
        ck_assert_int_eq(open_files(), files);
        ck_assert_int_le(entries_in(w.dir), 1);
        if (f.calls < n) break;
        if (s != TG_OK) expect_error(w.ctx, TG_ERR_IO, w.dir);
    }
    ck_assert_int_gt(f.calls, 10);
    workplace_free(&w);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        every_dtype_comes_back,
        shapes_strides_names_and_metadata_come_back,
        large_tensors_pass_in_pieces,
        values_are_converted_only_when_asked,
        destinations_must_fit,
        a_bool_is_0_or_1,
        other_devices,
        malformed_headers_are_refused_with_reason_and_offset,
        unusual_headers_are_accepted,
        malformed_lengths_are_refused,
        damaged_files_never_do_worse_than_fail,
        a_header_takes_a_few_times_its_length,
        bad_lists_are_refused,
        any_failing_allocation_is_survived,
        any_failing_call_is_survived,
    };
    return tg_check_main("safetensors", tests, COUNT(tests));
}
