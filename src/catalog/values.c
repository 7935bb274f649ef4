/* Converts a named value to the kind of the member that receives it, or says why it cannot. */
#include "catalog/values.h"

#include <limits.h>
#include <math.h>
#include <strings.h>

#include "base/text.h"

/* ---- Messages ---- */

static void describe_list(const tg_value *v, char *buf, size_t size) {
    size_t at = 0;
    tg_text(buf, size, &at, "[");
    for (int i = 0; i < v->n && v->list; i++) tg_text(buf, size, &at, "%s%lld", i ? ", " : "", (long long)v->list[i]);
    tg_text(buf, size, &at, "]");
}

/* Writes v to buf as it should look in a message. */
static void describe(const tg_value *v, char *buf, size_t size) {
    size_t at = 0;
    switch (v->kind) {
    case TG_VALUE_DEFAULT:
        tg_text(buf, size, &at, "not given");
        break;
    case TG_VALUE_BOOL:
        tg_text(buf, size, &at, "%s", v->boolean ? "true" : "false");
        break;
    case TG_VALUE_INT:
        tg_text(buf, size, &at, "%lld", (long long)v->integer);
        break;
    case TG_VALUE_DOUBLE:
        tg_text(buf, size, &at, "%g", v->number);
        break;
    case TG_VALUE_TEXT:
        tg_text(buf, size, &at, v->text ? "\"%s\"" : "NULL%s", v->text ? v->text : "");
        break;
    case TG_VALUE_LIST:
        describe_list(v, buf, size);
        break;
    case TG_VALUE_TENSOR:
        tg_text(buf, size, &at, "a tensor");
        break;
    case TG_VALUE_POINTER:
        tg_text(buf, size, &at, "%s", v->pointer ? "a pointer" : "NULL");
        break;
    default:
        tg_text(buf, size, &at, "of the unknown kind %d", (int)v->kind);
    }
}

tg_status tg_value_refuse(tg_ctx *ctx, const tg_op *op, const char *name, const tg_value *v, const char *expected) {
    char got[128];
    describe(v, got, sizeof got);
    return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: argument %s is %s; expected %s", op->name, name, got, expected);
}

/* Returns the name of value i without the prefix of e: MEAN of TG_LOSS_MEAN. */
static const char *short_name(const tg_enum *e, int i) {
    size_t n = strlen(e->prefix);
    return e->values[i].name + (strncmp(e->values[i].name, e->prefix, n) == 0 ? n : 0);
}

/* Returns whether text names value i of e: its name in C, or its short name in capitals or small letters. */
static bool is_named(const tg_enum *e, int i, const char *text) {
    return strcmp(text, e->values[i].name) == 0 || strcasecmp(text, short_name(e, i)) == 0;
}

/* Appends text in small letters. */
static void append_lower(char *buf, size_t size, size_t *at, const char *text) {
    for (; *text; text++) tg_text(buf, size, at, "%c", *text >= 'A' && *text <= 'Z' ? *text - 'A' + 'a' : *text);
}

/* Writes the names of the values of e to buf, such as "mean, sum or none". */
static void enum_names(const tg_enum *e, char *buf, size_t size) {
    size_t at = 0;
    for (int i = 0; i < e->n_values; i++) {
        tg_text(buf, size, &at, "%s", i == 0 ? "" : i == e->n_values - 1 ? " or " : ", ");
        append_lower(buf, size, &at, short_name(e, i));
    }
}

/* Writes to buf what values an argument of this kind takes. */
static void expect(const tg_field *f, char *buf, size_t size) {
    static const char *const texts[] = {
        [TG_FIELD_BOOL] = "a bool",
        [TG_FIELD_INT] = "an integer of 32 bits",
        [TG_FIELD_INT64] = "an integer",
        [TG_FIELD_DOUBLE] = "a number",
        [TG_FIELD_SIZE] = "an integer of 0 or more",
        [TG_FIELD_DTYPE] = "the name of a dtype, such as f32",
        [TG_FIELD_TEXT] = "a text",
        [TG_FIELD_SHAPE] = "a shape, which is a list of integers",
        [TG_FIELD_DIMS] = "a list of dims, or the text all",
        [TG_FIELD_LIST] = "a list of integers",
    };
    const tg_enum *e = f->kind == TG_FIELD_ENUM ? tg_argument_enum(f->of) : NULL;
    size_t at = 0;
    if (e)
        enum_names(e, buf, size);
    else if (f->count > 1)
        tg_text(buf, size, &at, "one integer, or a list of %d", f->count);
    else if ((unsigned)f->kind < TG_LEN(texts) && texts[f->kind])
        tg_text(buf, size, &at, "%s", texts[f->kind]);
    else
        tg_text(buf, size, &at, "a pointer to %s", f->of ? f->of : "its type");
}

/* ---- Conversions. They return false if v is not such a value. ---- */

/* Also takes a double that is a whole number. The integer must be from low to high. */
static bool as_integer(const tg_value *v, int64_t low, int64_t high, int64_t *to) {
    bool whole = v->kind == TG_VALUE_DOUBLE && v->number == trunc(v->number) && fabs(v->number) < 0x1p63;
    if (v->kind != TG_VALUE_INT && !whole) return false;
    *to = whole ? (int64_t)v->number : v->integer;
    return *to >= low && *to <= high;
}

/* Also takes an integer that a double can represent exactly. */
static bool as_double(const tg_value *v, double *to) {
    if (v->kind == TG_VALUE_DOUBLE) {
        *to = v->number;
        return true;
    }
    *to = (double)v->integer;
    return v->kind == TG_VALUE_INT && fabs(*to) < 0x1p63 && (int64_t)*to == v->integer;
}

/* Takes the name or the number of a dtype. */
static bool as_dtype(const tg_value *v, tg_dtype *to) {
    int64_t value;
    for (int d = TG_DTYPE_DEFAULT; d < TG_DTYPE_COUNT; d++) {
        bool named = v->kind == TG_VALUE_TEXT && v->text && !strcmp(v->text, tg_dtype_name((tg_dtype)d));
        *to = (tg_dtype)d;
        if (named || (as_integer(v, d, d, &value))) return true;
    }
    return false;
}

/* Takes the name or the number of a value of the enum. */
static bool as_enum(const tg_field *f, const tg_value *v, void *to) {
    const tg_enum *e = tg_argument_enum(f->of);
    int64_t value;
    for (int i = 0; e && i < e->n_values; i++) {
        int known = e->values[i].value;
        bool named = v->kind == TG_VALUE_TEXT && v->text && is_named(e, i, v->text);
        if (!named && !as_integer(v, known, known, &value)) continue;
        memcpy(to, &known, f->bytes);
        return true;
    }
    return false;
}

/* Reads v as a list of integers. One integer is a list of one. For an empty list, *list is NULL. */
static bool as_list(const tg_value *v, const int64_t **list, int *n) {
    if (v->kind != TG_VALUE_INT && (v->kind != TG_VALUE_LIST || v->n < 0 || (v->n && !v->list))) return false;
    *n = v->kind == TG_VALUE_INT ? 1 : v->n;
    *list = v->kind == TG_VALUE_INT ? &v->integer : *n ? v->list : NULL;
    return true;
}

static bool as_dims(const tg_value *v, tg_dims *to) {
    const int64_t *list;
    int n;
    bool all = v->kind == TG_VALUE_TEXT && v->text && !strcmp(v->text, "all");
    if (!all && !as_list(v, &list, &n)) return false;
    *to = all ? (tg_dims){.n = -1} : tg_dims_make((size_t)n, list);
    return true;
}

static bool as_shape(const tg_value *v, tg_shape *to) {
    const int64_t *list;
    int n;
    if (!as_list(v, &list, &n)) return false;
    *to = tg_shape_make((size_t)n, list);
    return true;
}

/* Fills an array of integers. One integer stands for every element. */
static bool as_array(const tg_field *f, const tg_value *v, int64_t *to) {
    const int64_t *list;
    int n;
    if (f->kind != TG_FIELD_INT64 || !as_list(v, &list, &n) || (n != f->count && v->kind != TG_VALUE_INT)) return false;
    for (int i = 0; i < f->count; i++) to[i] = list[n == 1 ? 0 : i];
    return true;
}

/* Takes a pointer: copies the struct to which it points, or the pointer itself for a field of another kind. */
static bool as_pointed(const tg_field *f, const tg_value *v, void *to) {
    if (v->kind != TG_VALUE_POINTER || !v->pointer) return false;
    if (f->kind == TG_FIELD_STRUCT)
        memcpy(to, v->pointer, f->bytes);
    else
        memcpy(to, &v->pointer, sizeof v->pointer);
    return true;
}

/* ---- Storing ---- */

static bool store_int(const tg_value *v, int *to) {
    int64_t value;
    if (!as_integer(v, INT_MIN, INT_MAX, &value)) return false;
    *to = (int)value;
    return true;
}

static bool store_size(const tg_value *v, size_t *to) {
    int64_t value;
    if (!as_integer(v, 0, INT64_MAX, &value)) return false;
    *to = (size_t)value;
    return true;
}

static bool store_bool(const tg_value *v, bool *to) {
    if (v->kind == TG_VALUE_BOOL) *to = v->boolean;
    return v->kind == TG_VALUE_BOOL;
}

static bool store_text(const tg_value *v, const char **to) {
    if (v->kind == TG_VALUE_TEXT) *to = v->text;
    return v->kind == TG_VALUE_TEXT && v->text;
}

static bool store(const tg_field *f, const tg_value *v, char *params) {
    void *to = params + f->offset;
    if (f->count > 1) return as_array(f, v, to);
    switch (f->kind) {
    case TG_FIELD_BOOL:
        return store_bool(v, to);
    case TG_FIELD_INT:
        return store_int(v, to);
    case TG_FIELD_INT64:
        return as_integer(v, INT64_MIN, INT64_MAX, to);
    case TG_FIELD_DOUBLE:
        return as_double(v, to);
    case TG_FIELD_SIZE:
        return store_size(v, to);
    case TG_FIELD_DTYPE:
        return as_dtype(v, to);
    case TG_FIELD_ENUM:
        return as_enum(f, v, to);
    case TG_FIELD_TEXT:
        return store_text(v, to);
    case TG_FIELD_SHAPE:
        return as_shape(v, to);
    case TG_FIELD_DIMS:
        return as_dims(v, to);
    case TG_FIELD_LIST:
        return as_list(v, to, (int *)(void *)(params + f->length_at));
    default:
        return as_pointed(f, v, to);
    }
}

tg_status tg_value_store(tg_ctx *ctx, const tg_op *op, const tg_field *f, const tg_value *v, void *params) {
    char expected[192];
    if (v->kind == TG_VALUE_DEFAULT && !f->required) return TG_OK;
    if (store(f, v, params)) return TG_OK;
    expect(f, expected, sizeof expected);
    return tg_value_refuse(ctx, op, f->name, v, expected);
}
