/* tg_print writes arrays as NumPy does. */
#include "world.h"

#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

#include <tapegrad/explain.h>
#include <tapegrad/pipe.h>

/* An array and NumPy's text for it. Its elements are given as bytes in base 16, or as (i % modulus) * scale. */
typedef struct print_case {
    const char *name;
    tg_dtype dtype;
    int ndim;
    int64_t shape[TG_MAX_DIMS];
    const char *bytes;
    double scale;
    int64_t modulus;
    const char *text;
} print_case;

#include "print_cases.h"

static tg_tensor *tensor_of(const print_case *c) {
    static double values[4096];
    static unsigned char bytes[4096];
    tg_shape shape = tg_shape_make((size_t)c->ndim, c->shape);
    size_t n = c->bytes ? strlen(c->bytes) / 2 : 0;
    for (size_t i = 0; i < n; i++) {
        char two[3] = {c->bytes[2 * i], c->bytes[2 * i + 1]};
        bytes[i] = (unsigned char)strtoul(two, NULL, 16);
    }
    if (c->bytes) return tg_from_host(ctx, c->dtype, shape, bytes);
    tg_tensor *x = tg_zeros(ctx, c->dtype, shape);
    for (int64_t i = 0; i < tg_numel(x); i++) values[i] = (double)(i % c->modulus) * c->scale;
    tg_write_f64(x, values, tg_numel(x));
    return x;
}

START_TEST(arrays_are_printed_as_numpy_does) {
    begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[8192];
        size_t n = tg_print(tensor_of(&cases[i]), text, sizeof text, TG_PRINT(.values_only = true));
        bool same = n == strlen(text) && strcmp(text, cases[i].text) == 0;
        ck_assert_msg(same, "%s:\n%s\nexpected\n%s", cases[i].name, text, cases[i].text);
    }
    end();
}
END_TEST

START_TEST(views_are_printed_in_their_own_order) {
    static const double v[] = {1, 2, 3, 4, 5, 6};
    char text[256];
    begin();
    tg_tensor *x = tg_transpose(t, tg_from_host(ctx, TG_F64, TG_SHAPE(2, 3), v), 0, 1);
    tg_print(x, text, sizeof text, NULL);
    ck_assert_str_eq(text, "[[1. 4.]\n [2. 5.]\n [3. 6.]]\nf64[3, 2]");
    tg_print(tg_sum(t, x, TG_ALL_DIMS, false), text, sizeof text, NULL);
    ck_assert_str_eq(text, "21.0 f64[]");
    end();
}
END_TEST

START_TEST(the_decimal_point_is_no_comma) {
    static const double v[] = {1.5, 0.25, 3e5, 2e9};
    char text[256];
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8")) return; /* the machine has no locale that writes commas */
    begin();
    tg_print(tg_from_host(ctx, TG_F64, TG_SHAPE(2), v), text, sizeof text, NULL);
    ck_assert_str_eq(text, "[1.5  0.25]\nf64[2]");
    tg_print(tg_from_host(ctx, TG_F64, TG_SHAPE(4), v), text, sizeof text, NULL);
    ck_assert_str_eq(text, "[1.5e+00 2.5e-01 3.0e+05 2.0e+09]\nf64[4]");
    tg_print(tg_from_host(ctx, TG_F64, TG_SHAPE(), v + 3), text, sizeof text, NULL);
    ck_assert_str_eq(text, "2000000000.0 f64[]");
    char dump[4096];
    tg_tape_set_timing(t, true);
    tg_exp(t, leaf(1));
    tg_tape_dump(t, TG_JSON, dump, sizeof dump);
    const char *time = strstr(strstr(dump, "\"op\": \"exp\""), "\"forward_s\": ") + 13;
    ck_assert_msg(!strncmp(time + strspn(time, "0123456789.e-"), ", \"", 3), "%s", time);
    const double times[] = {1.25, 1.25};
    static char svg[1 << 14];
    tg_pipe_plan *plan =
        tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_FORWARD, .stages = 2, .micros = 2, .f = times));
    ck_assert_int_lt(tg_pipe_plan_text(plan, TG_SVG, svg, sizeof svg), sizeof svg);
    ck_assert_msg(strstr(svg, "F1, stage 1, 2.5 to 3.75") && strstr(svg, "fill-opacity=\"1.00\""), "%s", svg);
    tg_pipe_plan_free(plan);
    end();
    setlocale(LC_NUMERIC, "C");
}
END_TEST

START_TEST(texts_are_cut_as_by_snprintf) {
    begin();
    char whole[256], part[256];
    tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(3, 4), 1.5);
    size_t n = tg_print(x, NULL, 0, NULL);
    ck_assert(tg_print(x, whole, sizeof whole, NULL) == n && strlen(whole) == n);
    for (size_t k = 1; k <= n; k++) {
        ck_assert(tg_print(x, part, k, NULL) == n);
        ck_assert(strlen(part) == k - 1 && memcmp(part, whole, k - 1) == 0);
    }
    end();
}
END_TEST

START_TEST(options_change_what_is_shown) {
    char text[512];
    begin();
    tg_tensor *x = tg_arange(t, TG_F64, 0, 10, 1), *third = tg_full(t, TG_F64, TG_SHAPE(1), 1. / 3);
    tg_print(x, text, sizeof text, TG_PRINT(.threshold = 5, .edge = 2, .values_only = true));
    ck_assert_str_eq(text, "[0. 1. ... 8. 9.]");
    tg_print(x, text, sizeof text, TG_PRINT(.threshold = 5, .edge = INT_MAX, .values_only = true));
    ck_assert_str_eq(text, "[0. 1. 2. 3. 4. 5. 6. 7. 8. 9.]");
    tg_print(x, text, sizeof text, TG_PRINT(.width = 12, .values_only = true));
    ck_assert_str_eq(text, "[0. 1. 2.\n 3. 4. 5.\n 6. 7. 8.\n 9.]");
    tg_print(third, text, sizeof text, TG_PRINT(.precision = 4, .values_only = true));
    ck_assert_str_eq(text, "[0.3333]");
    ck_assert(tg_print(x, text, sizeof text, TG_PRINT(.edge = -1)) == 0 && !*text);
    ck_says("edge -1");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {arrays_are_printed_as_numpy_does, views_are_printed_in_their_own_order,
                            the_decimal_point_is_no_comma, texts_are_cut_as_by_snprintf,
                            options_change_what_is_shown};
    return tg_check_main("print", tests, sizeof tests / sizeof *tests);
}
