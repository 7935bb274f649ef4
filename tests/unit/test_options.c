/* Structs of options: their descriptions, their defaults, and struct sizes of other versions. test_option_zeros.c has
 * what a zero in a field means. */
#include <stddef.h>
#include <string.h>

#include <tapegrad/attention.h>
#include <tapegrad/checkpoint.h>
#include <tapegrad/data.h>
#include <tapegrad/flat.h>
#include <tapegrad/generate.h>
#include <tapegrad/gpt.h>
#include <tapegrad/gradcheck.h>
#include <tapegrad/lbfgs.h>
#include <tapegrad/lm.h>
#include <tapegrad/lora.h>
#include <tapegrad/megatron.h>
#include <tapegrad/options_list.h>
#include <tapegrad/pipe.h>
#include <tapegrad/ranks.h>
#include <tapegrad/tcp.h>
#include <tapegrad/template.h>
#include <tapegrad/tensor_parallel.h>
#include <tapegrad/tokenizer.h>

#include "base/options.h"
#include "check_main.h"

enum { MOST = 512 }; /* bytes; no struct of options is larger */

/* A loop over the fields f of all structs s. */
#define EACH_FIELD(s, f)                                                                                               \
    for (int i_ = 0; i_ < tg_struct_count(); i_++)                                                                     \
        for (const tg_struct *s = tg_struct_at(i_); s; s = NULL)                                                       \
            for (const tg_field *f = s->fields; f < s->fields + s->n_fields; f++)

static const void *at(const void *s, const tg_field *f) { return (const char *)s + f->offset; }

/* ---- Defaults ---- */

/* Whether a field has the same value in two structs. Texts are compared, and not their addresses. */
static bool same_field(const void *a, const void *b, const tg_field *f) {
    a = at(a, f);
    b = at(b, f);
    if (!memcmp(a, b, f->bytes)) return true;
    const char *const *x = a, *const *y = b;
    return f->kind == TG_FIELD_TEXT && *x && *y && !strcmp(*x, *y);
}

static void check_filled(const char *name, const void *made, size_t size) {
    char filled[MOST];
    const tg_struct *s = tg_struct_find(name);
    ck_assert_msg(s && s->size == size && size <= MOST, "%s", name);
    memset(filled, 0x5A, sizeof filled);
    ck_assert_int_eq(tg_struct_fill(name, filled, size), TG_OK);
    ck_assert(*(const size_t *)filled == size && *(const size_t *)made == size);
    for (int i = 0; i < s->n_fields; i++)
        ck_assert_msg(same_field(made, filled, &s->fields[i]), "%s.%s", name, s->fields[i].name);
}

START_TEST(a_macro_and_the_fill_function_agree) {
#define TG_X(S, MACRO) check_filled(#S, TG_##MACRO(), sizeof(S));
    TG_OPTIONS_LIST(TG_X)
#undef TG_X
}
END_TEST

START_TEST(fills_what_fits_or_nothing) {
    tg_adamw_opts o;
    char kept[sizeof o];
    size_t small = offsetof(tg_adamw_opts, eps);
    memset(&o, 0x5A, sizeof o);
    memcpy(kept, &o, sizeof o);
    ck_assert_int_eq(tg_struct_fill("tg_adamw", &o, sizeof o), TG_ERR_ARGUMENT);
    ck_assert_int_eq(tg_struct_fill(NULL, &o, sizeof o), TG_ERR_ARGUMENT);
    ck_assert_int_eq(tg_struct_fill("tg_adamw_opts", NULL, sizeof o), TG_ERR_ARGUMENT);
    ck_assert_int_eq(tg_struct_fill("tg_adamw_opts", &o, sizeof o + 1), TG_ERR_ARGUMENT);
    ck_assert_int_eq(tg_struct_fill("tg_adamw_opts", &o, sizeof(size_t) - 1), TG_ERR_ARGUMENT);
    ck_assert(!memcmp(kept, &o, sizeof o));
    ck_assert_int_eq(tg_struct_fill("tg_adamw_opts", &o, small), TG_OK);
    ck_assert(o.size == small && o.lr == 1e-3 && o.beta1 == 0.9 && o.beta2 == 0.999);
    ck_assert(!memcmp(kept + small, (char *)&o + small, sizeof o - small));
}
END_TEST

/* A struct of an earlier version ends before some field; the bytes after it are none of the caller's. */
START_TEST(a_struct_of_an_earlier_version_is_completed_with_defaults) {
    char old[MOST], read[MOST];
    EACH_FIELD(s, f) {
        size_t size = f->offset;
        memset(old, 0x5A, sizeof old);
        memcpy(old, &size, sizeof size);
        tg_options_complete(read, s, old);
        ck_assert(*(const size_t *)read == s->size);
        ck_assert(!memcmp(read + sizeof size, old + sizeof size, f->offset - sizeof size));
        ck_assert(!memcmp(read + f->offset, (const char *)s->defaults + f->offset, s->size - f->offset));
        tg_options_complete(read, s, NULL);
        ck_assert(!memcmp(read, s->defaults, s->size));
    }
}
END_TEST

/* tg_module_load writes numbers to its options, of which an earlier version had fewer. */
START_TEST(results_are_given_back_as_far_as_the_callers_struct_goes) {
    tg_load_opts to = *TG_LOAD(.missing = 7, .unknown = 8), from = *TG_LOAD(.missing = 1, .unknown = 2);
    to.size = offsetof(tg_load_opts, unknown);
    tg_options_give(&to, &from);
    ck_assert(to.size == offsetof(tg_load_opts, unknown) && to.missing == 1 && to.unknown == 8);
}
END_TEST

START_TEST(a_family_sets_nothing_after_the_callers_struct) {
    enum { SIZE = offsetof(tg_lm_config, mtp) };
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    tg_lm_config c = *TG_LM(.vocab = 16, .layers = 1, .heads = 1, .hidden = 8, .positions = 16);
    char kept[sizeof c];
    c.size = SIZE;
    memset((char *)&c + SIZE, 0x5A, sizeof c - SIZE);
    memcpy(kept, &c, sizeof c);
    ck_assert_int_eq(tg_lm_family_config(ctx, "smollm3", &c), TG_OK);
    ck_assert(c.size == SIZE && c.tied);
    ck_assert(!memcmp(kept + SIZE, (const char *)&c + SIZE, sizeof c - SIZE));
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Descriptions ---- */

static size_t bytes_of(tg_field_kind kind) {
    static const size_t bytes[] = {[TG_FIELD_BOOL] = sizeof(bool),          [TG_FIELD_INT] = sizeof(int),
                                   [TG_FIELD_INT64] = sizeof(int64_t),      [TG_FIELD_UINT64] = sizeof(uint64_t),
                                   [TG_FIELD_SIZE] = sizeof(size_t),        [TG_FIELD_DOUBLE] = sizeof(double),
                                   [TG_FIELD_DTYPE] = sizeof(tg_dtype),     [TG_FIELD_ENUM] = sizeof(tg_axis),
                                   [TG_FIELD_TEXT] = sizeof(char *),        [TG_FIELD_TENSOR] = sizeof(tg_tensor *),
                                   [TG_FIELD_FUNCTION] = sizeof(tg_log_fn), [TG_FIELD_POINTER] = sizeof(void *)};
    return kind == TG_FIELD_STRUCT ? 0 : bytes[kind];
}

/* The fields stand in the order of the struct, and leave out only what aligns them. */
START_TEST(fields_cover_their_struct) {
    for (int i = 0; i < tg_struct_count(); i++) {
        const tg_struct *s = tg_struct_at(i);
        size_t end = sizeof(size_t);
        for (const tg_field *f = s->fields; f < s->fields + s->n_fields; f++) {
            size_t gap = f->offset - end, one = f->bytes / (size_t)f->count;
            ck_assert_msg(f->offset >= end && gap < sizeof(void *) && (gap == 0 || gap < one), "%s.%s is after a gap",
                          s->name, f->name);
            end = f->offset + f->bytes;
        }
        ck_assert_msg(s->size >= end && s->size - end < sizeof(void *), "%s has more fields", s->name);
    }
}
END_TEST

START_TEST(fields_are_described) {
    EACH_FIELD(s, f) {
        bool typed = f->kind == TG_FIELD_ENUM || f->kind == TG_FIELD_STRUCT || f->kind == TG_FIELD_POINTER;
        const tg_enum *e = f->kind == TG_FIELD_ENUM ? tg_enum_find(f->of) : NULL;
        size_t one = bytes_of(f->kind);
        ck_assert_msg(!one || f->bytes == one * (size_t)f->count, "%s.%s has another size", s->name, f->name);
        ck_assert_msg(typed == (f->of != NULL), "%s.%s", s->name, f->name);
        ck_assert_msg(f->doc && *f->doc && strchr(f->doc, '\n') == NULL, "%s.%s", s->name, f->name);
        ck_assert_msg(f->kind != TG_FIELD_ENUM || e, "%s.%s: no enum %s", s->name, f->name, f->of);
        int value = e ? *(const int *)at(s->defaults, f) : 0;
        for (int k = 0; e && value != e->values[k].value; k++) ck_assert_int_lt(k + 1, e->n_values);
    }
}
END_TEST

START_TEST(structs_and_enums_are_found) {
    for (int i = 0; i < tg_struct_count(); i++) {
        ck_assert_ptr_eq(tg_struct_find(tg_struct_at(i)->name), tg_struct_at(i));
        ck_assert(tg_struct_at(i)->doc && *tg_struct_at(i)->doc);
    }
    for (int i = 0; i < tg_enum_count(); i++) {
        const tg_enum *e = tg_enum_at(i);
        ck_assert_ptr_eq(tg_enum_find(e->name), e);
        for (int k = 0; k < e->n_values; k++) ck_assert(!strncmp(e->values[k].name, e->prefix, strlen(e->prefix)));
    }
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_macro_and_the_fill_function_agree,
                            fills_what_fits_or_nothing,
                            a_struct_of_an_earlier_version_is_completed_with_defaults,
                            results_are_given_back_as_far_as_the_callers_struct_goes,
                            a_family_sets_nothing_after_the_callers_struct,
                            fields_cover_their_struct,
                            fields_are_described,
                            structs_and_enums_are_found};
    return tg_check_main("options", tests, sizeof tests / sizeof *tests);
}
