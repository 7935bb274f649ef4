/* Calls by name: every op of the table on each of its samples, with named values that are read from the sample's
 * params, must give the bits and gradients that tg_apply gives with these params. */
#include "ops/registry.h"

#include <tapegrad/backward.h>

/* ---- The fields of an op ---- */

enum { PARAMS = 1024 };

/* The value that field f has in params. */
static tg_value value_of(const tg_field *f, const void *params) {
    const char *at = (const char *)params + f->offset;
    tg_value v = {.name = f->name, .kind = TG_VALUE_INT};
    if (f->count > 1) return v.kind = TG_VALUE_LIST, v.n = f->count, v.list = (const int64_t *)at, v;
    switch (f->kind) {
    case TG_FIELD_BOOL:
        v.kind = TG_VALUE_BOOL, v.boolean = *(const bool *)at;
        break;
    case TG_FIELD_INT:
    case TG_FIELD_ENUM:
        v.integer = *(const int *)at;
        break;
    case TG_FIELD_DTYPE:
        v.kind = TG_VALUE_TEXT, v.text = tg_dtype_name(*(const tg_dtype *)at);
        break;
    case TG_FIELD_INT64:
        v.integer = *(const int64_t *)at;
        break;
    case TG_FIELD_DOUBLE:
        v.kind = TG_VALUE_DOUBLE, v.number = *(const double *)at;
        break;
    case TG_FIELD_TEXT:
        v.kind = TG_VALUE_TEXT, v.text = *(const char *const *)at;
        break;
    case TG_FIELD_SHAPE:
        v.kind = TG_VALUE_LIST, v.n = (int)((const tg_shape *)at)->ndim, v.list = ((const tg_shape *)at)->dim;
        break;
    case TG_FIELD_LIST:
        v.kind = TG_VALUE_LIST, v.list = *(const int64_t *const *)at;
        v.n = *(const int *)((const char *)params + f->length_at);
        break;
    case TG_FIELD_STRUCT:
        v.kind = TG_VALUE_POINTER, v.pointer = at;
        break;
    default:
        v.kind = TG_VALUE_POINTER, v.pointer = *(const void *const *)at;
    }
    return v;
}

/* Makes the value of a list of dims, whose elements it writes to room[]. */
static tg_value dims_value(const tg_field *f, const void *params, int64_t *room) {
    const tg_dims *d = (const void *)((const char *)params + f->offset);
    if (d->n < 0) return (tg_value){.name = f->name, .kind = TG_VALUE_TEXT, .text = "all"};
    for (int i = 0; i < d->n && i < TG_MAX_DIMS; i++) room[i] = d->dim[i];
    return (tg_value){.name = f->name, .kind = TG_VALUE_LIST, .n = d->n, .list = room};
}

/* Reads the values of all fields, and returns their number. Pointers that are NULL are left out: they have no value. */
static int read_fields(const tg_op *op, const void *params, tg_value *v, int64_t *room) {
    int n = 0;
    for (int i = 0; i < op->n_fields; i++) {
        const tg_field *f = &op->fields[i];
        v[n] = f->kind == TG_FIELD_DIMS ? dims_value(f, params, room) : value_of(f, params);
        bool nothing = (v[n].kind == TG_VALUE_POINTER && !v[n].pointer) || (v[n].kind == TG_VALUE_TEXT && !v[n].text) ||
                       (f->kind == TG_FIELD_LIST && !v[n].list);
        n += !nothing;
    }
    return n;
}

/* Overwrites the fields with bytes that no sample has, so that only a named value can restore them. */
static void poison(const tg_op *op, char *params) {
    for (int i = 0; i < op->n_fields; i++) {
        const tg_field *f = &op->fields[i];
        bool pointer = f->kind == TG_FIELD_POINTER || f->kind == TG_FIELD_TEXT || f->kind == TG_FIELD_LIST;
        memset(params + f->offset, pointer ? 0 : 0x5a, f->bytes);
    }
}

/* ---- One sample ---- */

typedef struct named_case {
    const tg_case *c;
    const tg_op *op; /* the op whose preset is to be used */
    tg_op_binding binding;
    tg_value values[TG_OP_VALUES];
    int n_values;
    bool in_by_name;
} named_case;

/* Records the op by name. Of the inputs, every second one is given by name if in_by_name is true. */
static tg_status call_by_name(named_case *n, tg_tape *t, tg_tensor *const *in, tg_tensor **out) {
    tg_tensor *given[TG_SAMPLE_INPUTS];
    for (int i = 0; i < n->c->n_in; i++) given[i] = in[i];
    if (n->op->inplace && tg_requires_grad(in[0])) given[0] = tg_scale(t, in[0], 1);
    const char *names[TG_OP_VALUES];
    for (int i = 0; i < n->n_values; i++) names[i] = n->values[i].name;
    n->binding = TG_OP_BINDING();
    tg_op_bind(n->c->ctx, n->op, names, n->n_values, &n->binding);
    int n_out = tg_op_output_count(n->c->ctx, &n->binding, n->values);
    if (n_out > n->c->n_out) return TG_ERR_INTERNAL;
    if (tg_ctx_status(n->c->ctx) == TG_OK) /* a count below 1 is refused by the op itself */
        tg_op_call_bound(t, &n->binding, given, n->c->n_in, n->values, out, n_out > 0 ? n_out : 1);
    return tg_ctx_status(n->c->ctx);
}

/* Runs forward and backward of one sample, as run_sample does, by name. */
static tg_status run_named(tg_ctx *ctx, const tg_op *op, const tg_op *named, int i, const tg_case_opts *opts,
                           outcome *o) {
    tg_case c;
    int64_t room[TG_MAX_DIMS];
    tg_tensor *out[TG_CASE_OUTPUTS] = {NULL}, *roots[TG_CASE_OUTPUTS], *seeds[TG_CASE_OUTPUTS];
    tg_rng rng = {.seed = 7};
    *o = (outcome){0};
    tg_rng_set(ctx, NULL, &rng);
    if (tg_case_open(&c, ctx, op, i, opts) != TG_OK) return tg_ctx_status(ctx);
    named_case n = {.c = &c, .op = named};
    n.n_values = c.sample->params ? read_fields(op, c.sample->params, n.values, room) : 0;
    tg_tape *t = tg_tape_new(ctx);
    if (call_by_name(&n, t, c.input, out) == TG_OK) {
        o->n_out = count_out(&c, out);
        for (int k = 0; k < o->n_out; k++) o->out[k] = read_values(out[k]);
        int roots_n = seed_all(&c, out, o->n_out, roots, seeds);
        if (roots_n) tg_backward_with(t, roots, roots_n, TG_BACKWARD(.seeds = seeds));
        for (int k = 0; roots_n && k < c.n_in; k++)
            if (tg_requires_grad(c.input[k]) &&
                tg_has_grad(c.input[k])) o->grad[k] = read_values(tg_grad_of(c.input[k]));
        drop_all(seeds, roots_n);
    }
    tg_tape_free(t);
    tg_case_close(&c);
    return tg_ctx_status(ctx);
}

/* Whether the preset of op, with the fields of params, is params. */
static bool preset_suffices(const tg_op *op, const void *params) {
    char made[PARAMS] = {0};
    if (op->preset) memcpy(made, op->preset, op->params_size);
    for (int i = 0; i < op->n_fields; i++) {
        const tg_field *f = &op->fields[i];
        memcpy(made + f->offset, (const char *)params + f->offset, f->bytes);
        if (f->kind == TG_FIELD_LIST) memcpy(made + f->length_at, (const char *)params + f->length_at, sizeof(int));
    }
    return op->params_size == 0 || memcmp(made, params, op->params_size) == 0;
}

static void compare(tally *y, tg_ctx *ctx, const tg_op *op, const tg_op *named, int i, const char *what) {
    const tg_sample *s = tg_sample_at(op, i);
    const tg_case_opts o = {.dtype = TG_F64, .seed = 5};
    outcome expected, got;
    tg_status status = run_sample(ctx, op, i, &o, &expected);
    tg_ctx_clear(ctx);
    tg_status by_name = run_named(ctx, op, named, i, &o, &got);
    /* The call by name may find a missing argument before the op does. */
    bool alike = by_name == status || (s->refused && by_name == TG_ERR_ARGUMENT);
    if (verdict(y, alike, op, s, "%s: %s, expected %s: %s", what, tg_status_name(by_name), tg_status_name(status),
                tg_ctx_message(ctx)) &&
        status == TG_OK)
        agree(y, op, s, &got, &expected, &(margin){0}, what);
    tg_ctx_clear(ctx);
    outcome_free(&expected);
    outcome_free(&got);
}

/* Returns whether the preset that the op itself has was used. */
static bool check_sample(tally *y, tg_ctx *ctx, const tg_op *op, int i) {
    _Alignas(max_align_t) char params[PARAMS] = {0};
    const tg_sample *s = tg_sample_at(op, i);
    tg_op named = *op;
    if (s->params) memcpy(params, s->params, op->params_size);
    if (!s->refused) poison(op, params);
    named.preset = params;
    compare(y, ctx, op, &named, i, "by name");
    if (s->params && !preset_suffices(op, s->params)) return false;
    compare(y, ctx, op, op, i, "with the preset");
    return true;
}

/* ---- Descriptions ---- */

static size_t bytes_of(const tg_field *f) {
    static const size_t bytes[] = {
        [TG_FIELD_BOOL] = sizeof(bool),     [TG_FIELD_INT] = sizeof(int),        [TG_FIELD_INT64] = sizeof(int64_t),
        [TG_FIELD_DOUBLE] = sizeof(double), [TG_FIELD_DTYPE] = sizeof(tg_dtype), [TG_FIELD_ENUM] = sizeof(int),
        [TG_FIELD_TEXT] = sizeof(char *),   [TG_FIELD_POINTER] = sizeof(void *), [TG_FIELD_SHAPE] = sizeof(tg_shape),
        [TG_FIELD_DIMS] = sizeof(tg_dims),  [TG_FIELD_LIST] = sizeof(int64_t *),
    };
    return f->kind == TG_FIELD_STRUCT ? f->bytes : (size_t)f->count * bytes[f->kind];
}

static int words(const char *text) {
    int n = text && *text;
    for (; text && *text; text++) n += *text == ' ';
    return n;
}

static void check_description(tally *y, const tg_op *op) {
    bool list = op->inputs && strstr(op->inputs, "..");
    verdict(y, list ? op->n_in < 0 : words(op->inputs) == op->n_in, op, NULL, "inputs \"%s\" for n_in %d",
            op->inputs ? op->inputs : "", op->n_in);
    if (op->outputs)
        verdict(y, strstr(op->outputs, "..") ? op->n_out < 0 : words(op->outputs) == op->n_out, op, NULL,
                "outputs \"%s\" for n_out %d", op->outputs, op->n_out);
    else
        verdict(y, op->n_out == 1, op, NULL, "no names for %d outputs", op->n_out);
    for (int i = 0; i < op->n_fields; i++) {
        const tg_field *f = &op->fields[i];
        size_t n = f->doc ? strlen(f->doc) : 0;
        verdict(y, n > 3 && f->doc[n - 1] == '.', op, NULL, "field %s has no doc that ends with a period", f->name);
        verdict(y, f->bytes == bytes_of(f), op, NULL, "field %s has %zu bytes, expected %zu", f->name, f->bytes,
                bytes_of(f));
        verdict(y, f->offset + f->bytes <= op->params_size, op, NULL, "field %s is outside the params", f->name);
        verdict(y, f->kind != TG_FIELD_ENUM || tg_enum_find(f->of), op, NULL, "field %s: no enum %s", f->name,
                f->of ? f->of : "NULL");
    }
}

static void check_op(tally *y, tg_ctx *ctx, const tg_op *op) {
    bool preset = false, some = false;
    check_description(y, op);
    for (int i = 0; i < op->n_samples; i++) {
        const tg_sample *s = tg_sample_at(op, i);
        if (!small(s)) continue;
        some = true;
        preset |= check_sample(y, ctx, op, i);
    }
    verdict(y, preset || !some || op->params_size == 0, op, NULL, "no sample has the preset and the fields alone");
}

int main(int argc, char **argv) {
    tally y = {0};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.dtype = TG_F64, .threads = 1));
    for (int i = 0; i < tg_op_count(); i++)
        if (chosen(tg_op_at(i), argc, argv)) check_op(&y, ctx, tg_op_at(i));
    tg_ctx_free(ctx);
    return conclude(&y);
}
