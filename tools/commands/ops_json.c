/* The manifest: the table of ops and the structs of options as JSON, from which bindings, stubs and documentation are
 * generated. */
#include "commands/ops_json.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* ---- Fields ---- */

static const char *kind_name(tg_field_kind kind) {
    static const char *const names[] = {
        [TG_FIELD_BOOL] = "bool",       [TG_FIELD_INT] = "int",       [TG_FIELD_INT64] = "int64",
        [TG_FIELD_UINT64] = "uint64",   [TG_FIELD_SIZE] = "size",     [TG_FIELD_DOUBLE] = "double",
        [TG_FIELD_DTYPE] = "dtype",     [TG_FIELD_ENUM] = "enum",     [TG_FIELD_TEXT] = "text",
        [TG_FIELD_TENSOR] = "tensor",   [TG_FIELD_STRUCT] = "struct", [TG_FIELD_FUNCTION] = "function",
        [TG_FIELD_POINTER] = "pointer", [TG_FIELD_SHAPE] = "shape",   [TG_FIELD_DIMS] = "dims",
        [TG_FIELD_LIST] = "list",
    };
    return names[kind];
}

/* Returns the name of value i of e as a call by name takes it: "mean" for TG_LOSS_MEAN. */
static json_t *enum_name(const tg_enum *e, int i) {
    char text[64];
    size_t n = 0;
    for (const char *c = e->values[i].name + strlen(e->prefix); *c && n < sizeof text; c++)
        text[n++] = (char)tolower((unsigned char)*c);
    return json_stringn(text, n);
}

static json_t *enum_names(const tg_enum *e) {
    json_t *all = json_array();
    for (int i = 0; i < e->n_values; i++) json_array_append_new(all, enum_name(e, i));
    return all;
}

static json_t *enum_default(const tg_enum *e, int value) {
    for (int i = 0; i < e->n_values; i++)
        if (e->values[i].value == value) return enum_name(e, i);
    return json_null();
}

/* JSON has no infinity, so an infinite default is a text. */
static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_string(x > 0 ? "inf" : "-inf"); }

static json_t *integers(const int64_t *at, int n) {
    json_t *all = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(all, json_integer(at[i]));
    return all;
}

static json_t *dims(const tg_dims *d) {
    int64_t at[TG_MAX_DIMS];
    if (d->n < 0) return json_string("all");
    for (int i = 0; i < d->n; i++) at[i] = d->dim[i];
    return integers(at, d->n);
}

/* Returns what the field holds in `defaults`; null for texts, lists, tensors, structs, functions and pointers. */
static json_t *default_of(const tg_field *f, const void *defaults) {
    const void *at = (const char *)defaults + f->offset;
    if (f->kind == TG_FIELD_INT64 && f->count > 1) return integers(at, f->count);
    if (f->count > 1) return json_null();
    switch (f->kind) {
    case TG_FIELD_BOOL:
        return json_boolean(*(const bool *)at);
    case TG_FIELD_INT:
        return json_integer(*(const int *)at);
    case TG_FIELD_INT64:
        return json_integer(*(const int64_t *)at);
    case TG_FIELD_UINT64:
        return json_integer((json_int_t) * (const uint64_t *)at);
    case TG_FIELD_SIZE:
        return json_integer((json_int_t) * (const size_t *)at);
    case TG_FIELD_DOUBLE:
        return number(*(const double *)at);
    case TG_FIELD_DTYPE:
        return json_string(tg_dtype_name(*(const tg_dtype *)at));
    case TG_FIELD_ENUM:
        return tg_enum_find(f->of) ? enum_default(tg_enum_find(f->of), *(const int *)at) : json_null();
    case TG_FIELD_SHAPE:
        return integers(((const tg_shape *)at)->dim, (int)((const tg_shape *)at)->ndim);
    case TG_FIELD_DIMS:
        return dims(at);
    default:
        return json_null();
    }
}

static json_t *field_json(const tg_field *f, const void *defaults) {
    json_t *j = json_pack("{s:s, s:s, s:s}", "name", f->name, "kind", kind_name(f->kind), "doc", f->doc);
    if (f->count > 1) json_object_set_new(j, "count", json_integer(f->count));
    if (f->of) json_object_set_new(j, "of", json_string(f->of));
    if (f->kind == TG_FIELD_ENUM && tg_enum_find(f->of))
        json_object_set_new(j, "values", enum_names(tg_enum_find(f->of)));
    json_object_set_new(j, "required", json_boolean(f->required));
    if (!f->required) json_object_set_new(j, "default", defaults ? default_of(f, defaults) : json_null());
    return j;
}

static json_t *fields_json(const tg_field *fields, int n, const void *defaults) {
    json_t *all = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(all, field_json(&fields[i], defaults));
    return all;
}

/* ---- Ops ---- */

/* Adds an object for each word of `words` to a new array. A word that ends with ".." names a list. */
static json_t *names_json(const char *words, uint32_t optional) {
    json_t *all = json_array();
    int i = 0;
    for (const char *w = words; w && *w; i++) {
        size_t n = strcspn(w, " ");
        bool list = n > 2 && w[n - 1] == '.' && w[n - 2] == '.';
        json_array_append_new(all, json_pack("{s:o, s:b, s:b}", "name", json_stringn(w, list ? n - 2 : n), "optional",
                                             (int)(optional >> i & 1), "list", list));
        w += n + (w[n] == ' ');
    }
    return all;
}

static json_t *op_json(const tg_op *op) {
    static const char zeros[1024]; /* an op without a preset takes 0 for each argument that is left out */
    const void *defaults = op->preset ? op->preset : op->params_size <= sizeof zeros ? zeros : NULL;
    json_t *j =
        json_pack("{s:s, s:s, s:o, s:o, s:o}", "name", op->name, "formula", op->formula, "inputs",
                  names_json(op->inputs, op->optional), "outputs", names_json(op->outputs ? op->outputs : "y", 0),
                  "arguments", fields_json(op->fields, op->n_fields, defaults));
    if (op->alias) json_object_set_new(j, "alias", json_string(op->alias));
    json_object_set_new(j, "family", json_string(op->compose ? "composed" : family_name(op->family)));
    json_object_set_new(j, "composed", json_boolean(op->compose != NULL));
    json_object_set_new(j, "in_place", json_boolean(op->inplace));
    json_object_set_new(j, "collective", json_boolean(op->collective));
    json_object_set_new(j, "differentiable", json_boolean(op->backward || op->compose));
    json_object_set_new(j, "second_derivative", json_boolean(op->vjp || op->compose));
    json_object_set_new(j, "forward_mode", json_boolean(op->jvp || op->compose));
    json_object_set_new(j, "samples", json_integer(op->n_samples));
    return j;
}

static json_t *struct_json(const tg_struct *s) {
    return json_pack("{s:s, s:s, s:o}", "name", s->name, "doc", s->doc, "fields",
                     fields_json(s->fields, s->n_fields, s->defaults));
}

json_t *ops_json(void) {
    json_t *all = json_array(), *structs = json_array();
    for (int i = 0; i < tg_op_count(); i++) json_array_append_new(all, op_json(tg_op_at(i)));
    for (int i = 0; i < tg_struct_count(); i++) json_array_append_new(structs, struct_json(tg_struct_at(i)));
    return json_pack("{s:s, s:o, s:o}", "version", TG_VERSION, "ops", all, "structs", structs);
}
