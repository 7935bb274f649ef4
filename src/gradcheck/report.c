/* Reports of failed gradient checks: JSON files with everything that is needed to repeat the check. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tapegrad/gradcheck.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "base/text.h"
#include "gradcheck/difference.h"
#include "io/json.h"

static const char format_name[] = "tapegrad gradcheck";
enum { VERSION = 2, MOST_ELEMENTS = 1 << 18, MOST_INPUTS = 1 << 10 };

/* What was checked: a sample of an op, or, if op is NULL, a function of tensors. */
typedef struct subject {
    const tg_op *op;
    int sample;
    tg_tensor *const *input;
    int n_in, n_out;
} subject;

/* ---- Writing ---- */

/* Returns v as JSON: a number, or a string if v is not finite, because JSON has no such numbers. */
static json_t *number(double v) {
    if (isfinite(v)) return json_real(v);
    return json_string(isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
}

/* Returns s as a JSON string. JSON strings are UTF-8, so another text is returned if s is not. */
static json_t *text(const char *s) {
    size_t n = s ? strlen(s) : 0;
    return json_string(!n ? "" : tg_utf8_check(s, n) == n ? s : "(not UTF-8)");
}

/* Returns j, or NULL after freeing it if something in it has failed. json_pack then frees the rest. */
static json_t *unless(int failed, json_t *j) {
    if (!failed) return j;
    json_decref(j);
    return NULL;
}

static json_t *values_of(tg_ctx *ctx, tg_tensor *x) {
    int64_t n = tg_numel(x);
    double *v = tg_host_alloc(ctx, ((size_t)n + 1) * sizeof *v);
    json_t *all = v && tg_read_f64(x, v, n) == TG_OK ? json_array() : NULL;
    int failed = 0;
    for (int64_t i = 0; all && i < n; i++) failed |= json_array_append_new(all, number(v[i]));
    if (v) tg_host_free(ctx, v, ((size_t)n + 1) * sizeof *v);
    return unless(failed, all);
}

static json_t *input_of(tg_ctx *ctx, tg_tensor *x) {
    tg_shape s = tg_shape_of(x);
    json_t *shape = json_array();
    int failed = 0;
    for (int i = 0; i < s.ndim; i++) failed |= json_array_append_new(shape, json_integer(s.dim[i]));
    return json_pack("{s:s, s:b, s:o, s:o}", "dtype", tg_dtype_name(tg_dtype_of(x)), "requires_grad",
                     tg_requires_grad(x), "shape", unless(failed, shape), "values", values_of(ctx, x));
}

/* Returns the first index at which in[] has the tensor in[i]. A tensor that is given twice has one gradient. */
static int first_of(tg_tensor *const *in, int i) {
    int first = 0;
    while (in[first] != in[i]) first++;
    return first;
}

static json_t *inputs_of(tg_ctx *ctx, const subject *s) {
    int64_t n = 0;
    for (int i = 0; i < s->n_in; i++) n += tg_numel(s->input[i]);
    if (n > MOST_ELEMENTS || s->n_in > MOST_INPUTS) {
        tg_fail(ctx, TG_ERR_SHAPE, "%s with %s in total, but a report can have at most %d inputs and %d elements",
                tg_count(s->n_in, "input").text, tg_count(n, "element").text, (int)MOST_INPUTS, (int)MOST_ELEMENTS);
        return NULL;
    }
    json_t *all = json_array();
    int failed = 0;
    for (int i = 0; i < s->n_in; i++) {
        int first = first_of(s->input, i);
        failed |= json_array_append_new(all, first == i ? input_of(ctx, s->input[i])
                                                        : json_pack("{s:o}", "same_as", json_integer(first)));
    }
    return unless(failed, all);
}

static json_t *options_of(const tg_gradcheck_opts *given) {
    tg_gradcheck_opts o;
    tg_options_complete(&o, &tg_gradcheck_opts_struct, given);
    return json_pack("{s:f, s:f, s:f, s:i, s:I, s:b, s:b, s:b, s:o}", "eps", o.eps, "atol", o.atol, "rtol", o.rtol,
                     "projections", o.projections, "seed", (json_int_t)o.seed, "no_extras", o.no_extras, "strict",
                     o.strict, "second_order", o.second_order, "name", o.name ? text(o.name) : json_null());
}

static json_t *report_of(tg_ctx *ctx, const subject *s, const tg_gradcheck_opts *opts, const tg_gradcheck_info *r) {
    tg_rng rng;
    if (tg_rng_get(ctx, NULL, &rng) != TG_OK) return NULL;
    json_t *root = json_pack(
        "{s:s, s:i, s:s, s:s, s:o, s:{s:I, s:I, s:I}, s:{s:s, s:o, s:I, s:I, s:I}}", "format", format_name, "version",
        VERSION, "library", tg_version(), "device", tg_ctx_device(ctx), "options", options_of(opts), "stream", "seed",
        (json_int_t)rng.seed, "stream", (json_int_t)rng.stream, "counter", (json_int_t)rng.counter, "result", "cause",
        r->cause ? r->cause : "", "report", text(r->report), "checked", (json_int_t)r->checked, "kinks",
        (json_int_t)r->kinks, "unsure", (json_int_t)r->unsure);
    if (!root) return NULL;
    int failed = 0;
    if (s->op) {
        failed |= json_object_set_new(root, "op", text(s->op->name));
        failed |= json_object_set_new(root, "sample", json_integer(s->sample));
        failed |= json_object_set_new(root, "n_samples", json_integer(s->op->n_samples));
    } else {
        failed |= json_object_set_new(root, "outputs", json_integer(s->n_out));
        failed |= json_object_set_new(root, "inputs", inputs_of(ctx, s));
    }
    return unless(failed, root);
}

/* Writes the report of a failed check. When it is called, the context's error is the failure of the check. When it
 * returns, the error is that failure again, and its message also has the path of the report, or says why no report was
 * written. */
static tg_status write_report(tg_ctx *ctx, const char *path, const subject *s, const tg_gradcheck_opts *opts,
                              const tg_gradcheck_info *r) {
    char why[256];
    tg_ctx_clear(ctx);
    json_t *root = report_of(ctx, s, opts, r);
    tg_status saved = root ? tg_json_save(ctx, path, root) : tg_ctx_status(ctx);
    json_decref(root);
    if (root && saved == TG_OK) return tg_fail(ctx, TG_ERR_GRADIENT, "%s (report: '%s')", r->report, path);
    snprintf(why, sizeof why, "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    return tg_fail(ctx, TG_ERR_GRADIENT, "%s (no report: %s)", r->report, *why ? why : "no memory");
}

tg_status tg_gradcheck_report(tg_tape *t, const char *path, tg_fn fn, void *state, tg_tensor *const *in, int n_in,
                              int n_out, tg_gradcheck_info *info, const tg_gradcheck_opts *opts) {
    tg_gradcheck_info found = TG_GRADCHECK_INFO();
    TG_TRY(tg_gradcheck_info_check(tg_tape_ctx(t), info, "tg_gradcheck_report"));
    tg_status s = tg_gradcheck(t, fn, state, in, n_in, n_out, &found, opts);
    if (s == TG_ERR_GRADIENT && found.failed && path)
        s = write_report(tg_tape_ctx(t), path, &(subject){.input = in, .n_in = n_in, .n_out = n_out}, opts, &found);
    return tg_gradcheck_info_give(info, &found, s);
}

tg_status tg_gradcheck_report_op(tg_ctx *ctx, const char *path, const tg_op *op, int sample,
                                 tg_gradcheck_info *info, const tg_gradcheck_opts *opts) {
    tg_gradcheck_info found = TG_GRADCHECK_INFO();
    TG_TRY(tg_gradcheck_info_check(ctx, info, "tg_gradcheck_report_op"));
    tg_status s = tg_gradcheck_op(ctx, op, sample, &found, opts);
    if (s == TG_ERR_GRADIENT && found.failed && path)
        s = write_report(ctx, path, &(subject){.op = op, .sample = sample}, opts, &found);
    return tg_gradcheck_info_give(info, &found, s);
}

/* ---- Reading ---- */

static tg_status read_number(const tg_json *j, const json_t *v, double *out) {
    const char *s = json_string_value(v);
    if (json_is_number(v)) *out = json_number_value(v);
    else if (s && !strcmp(s, "nan")) *out = NAN;
    else if (s && !strcmp(s, "inf")) *out = INFINITY;
    else if (s && !strcmp(s, "-inf")) *out = -INFINITY;
    else
        return tg_fail(j->ctx, TG_ERR_FORMAT, "'%s': \"values\" contains an element that is not a number", j->path);
    return TG_OK;
}

static tg_status read_options(const tg_json *root, tg_gradcheck_opts *o) {
    tg_json j;
    int64_t projections, seed;
    *o = *TG_GRADCHECK();
    TG_TRY(tg_json_object(root, "options", &j));
    TG_TRY(tg_json_real(&j, "eps", &o->eps));
    TG_TRY(tg_json_real(&j, "atol", &o->atol));
    TG_TRY(tg_json_real(&j, "rtol", &o->rtol));
    TG_TRY(tg_json_int(&j, "projections", 0, INT32_MAX, &projections));
    TG_TRY(tg_json_int(&j, "seed", INT64_MIN, INT64_MAX, &seed));
    TG_TRY(tg_json_bool(&j, "no_extras", &o->no_extras));
    TG_TRY(tg_json_bool(&j, "strict", &o->strict));
    if (tg_json_has(&j, "second_order")) TG_TRY(tg_json_bool(&j, "second_order", &o->second_order));
    if (tg_json_has(&j, "name")) TG_TRY(tg_json_string(&j, "name", &o->name));
    o->projections = (int)projections;
    o->seed = (uint64_t)seed;
    return TG_OK;
}

static tg_status read_stream(const tg_json *root, tg_rng *rng) {
    tg_json j;
    int64_t seed, stream, counter;
    TG_TRY(tg_json_object(root, "stream", &j));
    TG_TRY(tg_json_int(&j, "seed", INT64_MIN, INT64_MAX, &seed));
    TG_TRY(tg_json_int(&j, "stream", INT64_MIN, INT64_MAX, &stream));
    TG_TRY(tg_json_int(&j, "counter", INT64_MIN, INT64_MAX, &counter));
    *rng = (tg_rng){.seed = (uint64_t)seed, .stream = (uint64_t)stream, .counter = (uint64_t)counter};
    return TG_OK;
}

static tg_status open_report(tg_json *root, tg_ctx *ctx, const char *path, const char *who) {
    const char *format = "";
    int64_t version;
    if (!path) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: path is NULL", who);
    TG_TRY(tg_json_load(root, ctx, path));
    tg_status s = tg_json_string(root, "format", &format);
    if (s == TG_OK && strcmp(format, format_name) != 0)
        s = tg_fail(ctx, TG_ERR_FORMAT, "'%s' has the format \"%.40s\", expected the report of a gradient check", path,
                    format);
    if (s == TG_OK) s = tg_json_int(root, "version", VERSION, VERSION, &version);
    if (s != TG_OK) tg_json_free(root);
    return s;
}

static tg_status read_shape(const tg_json *j, tg_shape *shape) {
    json_t *dims;
    *shape = (tg_shape){0};
    TG_TRY(tg_json_array(j, "shape", &dims));
    if (json_array_size(dims) > TG_MAX_DIMS)
        return tg_fail(j->ctx, TG_ERR_FORMAT, "'%s': a shape has %zu dims, expected at most %d", j->path,
                       json_array_size(dims), TG_MAX_DIMS);
    int64_t n = 1;
    for (size_t i = 0; i < json_array_size(dims); i++) {
        int64_t size = json_integer_value(json_array_get(dims, i));
        if (!json_is_integer(json_array_get(dims, i)) || size < 0 ||
            __builtin_mul_overflow(n, size ? size : 1, &n))
            return tg_fail(j->ctx, TG_ERR_FORMAT,
                           "'%s': dim %zu of a shape is invalid; expected an integer, 0 or more, and fewer than 2^63 "
                           "elements in total",
                           j->path, i);
        shape->dim[shape->ndim++] = size;
    }
    return TG_OK;
}

static tg_status read_dtype(const tg_json *j, tg_dtype *dtype) {
    const char *name;
    TG_TRY(tg_json_string(j, "dtype", &name));
    for (int d = TG_F32; strcmp(tg_dtype_name((tg_dtype)d), "?") != 0; d++)
        if (!strcmp(tg_dtype_name((tg_dtype)d), name)) {
            *dtype = (tg_dtype)d;
            return TG_OK;
        }
    return tg_fail(j->ctx, TG_ERR_FORMAT, "'%s': the dtype \"%.20s\" is unknown", j->path, name);
}

static tg_status fill_from(const tg_json *j, const json_t *values, tg_tensor *x) {
    size_t n = json_array_size(values), bytes = (n + 1) * sizeof(double);
    double *v = tg_host_alloc(j->ctx, bytes);
    if (!v) return tg_ctx_status(j->ctx);
    tg_status s = TG_OK;
    for (size_t i = 0; i < n && s == TG_OK; i++) s = read_number(j, json_array_get(values, i), &v[i]);
    if (s == TG_OK) s = tg_write_f64(x, v, (int64_t)n);
    tg_host_free(j->ctx, v, bytes);
    return s;
}

/* Reads input `at` of the report into in[at]. Creates a tensor for it, or uses that of an earlier input if the report
 * says that both are the same. */
static tg_status read_input(const tg_json *root, json_t *object, tg_tensor **in, int64_t at) {
    tg_tensor **x = &in[at];
    const tg_json j = {.ctx = root->ctx, .path = root->path, .object = object};
    tg_shape shape;
    tg_dtype dtype = TG_F64;
    bool grad;
    json_t *values;
    if (!json_is_object(object)) return tg_fail(j.ctx, TG_ERR_FORMAT, "'%s': an input is not an object", j.path);
    if (tg_json_has(&j, "same_as")) {
        int64_t first;
        TG_TRY(tg_json_int(&j, "same_as", 0, at - 1, &first));
        *x = in[first];
        return TG_OK;
    }
    TG_TRY(read_dtype(&j, &dtype));
    TG_TRY(tg_json_bool(&j, "requires_grad", &grad));
    TG_TRY(read_shape(&j, &shape));
    TG_TRY(tg_json_array(&j, "values", &values));
    int64_t n = tg_shape_numel(&shape);
    if (n != (int64_t)json_array_size(values))
        return tg_fail(j.ctx, TG_ERR_FORMAT, "'%s': %s for a shape of %s", j.path,
                       tg_count(json_array_size(values), "value").text, tg_count(n, "element").text);
    *x = tg_zeros(j.ctx, dtype, shape);
    TG_TRY(fill_from(&j, values, *x));
    if (grad) tg_set_requires_grad(*x, true);
    return tg_ctx_status(j.ctx);
}

/* ---- Repeating a check ---- */

/* Copies the state of the default random stream to *now. Then sets the stream to the state in the report, so that the
 * same numbers are drawn again. */
static tg_status enter_stream(const tg_json *root, tg_rng *now) {
    tg_rng then;
    TG_TRY(read_stream(root, &then));
    TG_TRY(tg_rng_get(root->ctx, NULL, now));
    return tg_rng_set(root->ctx, NULL, &then);
}

/* Restores the default random stream from *now. Returns s. If s is an error, the context has the same error
 * afterwards. */
static tg_status leave_stream(const tg_json *root, const tg_rng *now, tg_status s) {
    char message[sizeof((tg_gradcheck_info *)0)->report];
    snprintf(message, sizeof message, "%s", tg_ctx_message(root->ctx));
    if (s != TG_OK) tg_ctx_clear(root->ctx); /* a context with an error would refuse the stream */
    TG_TRY(tg_rng_set(root->ctx, NULL, now));
    return s == TG_OK ? s : tg_fail(root->ctx, s, "%s", message);
}

static tg_status run_with(const tg_json *root, tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in,
                          tg_gradcheck_info *result) {
    tg_gradcheck_opts o;
    tg_rng now;
    int64_t n_out;
    TG_TRY(read_options(root, &o));
    TG_TRY(tg_json_int(root, "outputs", 1, INT32_MAX, &n_out));
    TG_TRY(enter_stream(root, &now));
    return leave_stream(root, &now, tg_gradcheck(t, fn, state, in, n_in, (int)n_out, result, &o));
}

static tg_status replay(const tg_json *root, tg_tape *t, tg_fn fn, void *state, tg_gradcheck_info *result) {
    tg_tensor *in[MOST_INPUTS];
    json_t *inputs;
    if (tg_json_has(root, "op"))
        return tg_fail(root->ctx, TG_ERR_ARGUMENT, "'%s' is the report of an op; repeat it with tg_gradcheck_replay_op",
                       root->path);
    TG_TRY(tg_json_array(root, "inputs", &inputs));
    size_t n = json_array_size(inputs), made = 0;
    if (n == 0 || n > MOST_INPUTS)
        return tg_fail(root->ctx, TG_ERR_FORMAT, "'%s' has %s, expected 1 to %d", root->path, tg_count(n, "input").text,
                       (int)MOST_INPUTS);
    tg_status s = TG_OK;
    for (; made < n && s == TG_OK; made++) {
        in[made] = NULL;
        s = read_input(root, json_array_get(inputs, made), in, (int64_t)made);
    }
    if (s == TG_OK) s = run_with(root, t, fn, state, in, (int)n, result);
    for (size_t i = 0; i < made; i++)
        if (in[i] && first_of(in, (int)i) == (int)i) tg_drop(in[i]);
    return s;
}

tg_status tg_gradcheck_replay(tg_tape *t, const char *path, tg_fn fn, void *state, tg_gradcheck_info *info) {
    tg_ctx *ctx = tg_tape_ctx(t);
    tg_gradcheck_info found = TG_GRADCHECK_INFO();
    tg_json root;
    if (!ctx) return TG_ERR_ARGUMENT;
    TG_TRY(tg_io_enter(ctx));
    TG_TRY(tg_gradcheck_info_check(ctx, info, "tg_gradcheck_replay"));
    TG_TRY(open_report(&root, ctx, path, "tg_gradcheck_replay"));
    tg_status s = replay(&root, t, fn, state, &found);
    tg_json_free(&root);
    return tg_gradcheck_info_give(info, &found, s);
}

static tg_status replay_op(const tg_json *root, const tg_op *op, tg_gradcheck_info *result) {
    const char *name;
    tg_gradcheck_opts o;
    tg_rng now;
    int64_t sample, n_samples;
    if (!tg_json_has(root, "op"))
        return tg_fail(root->ctx, TG_ERR_ARGUMENT,
                       "'%s' is the report of a function; repeat it with tg_gradcheck_replay", root->path);
    TG_TRY(tg_json_string(root, "op", &name));
    if (!op && !(op = tg_op_find(name)))
        return tg_fail(root->ctx, TG_ERR_ARGUMENT,
                       "'%s': the library has no op '%.60s'; give the op to tg_gradcheck_replay_op", root->path, name);
    TG_TRY(tg_json_int(root, "n_samples", 1, INT32_MAX, &n_samples));
    TG_TRY(tg_json_int(root, "sample", 0, n_samples - 1, &sample));
    TG_TRY(read_options(root, &o));
    if (strcmp(name, op->name) != 0 || n_samples != op->n_samples)
        return tg_fail(root->ctx, TG_ERR_ARGUMENT, "'%s' is the report of op %.60s with %s, but op %s has %d",
                       root->path, name, tg_count(n_samples, "sample").text, op->name, op->n_samples);
    TG_TRY(enter_stream(root, &now));
    return leave_stream(root, &now, tg_gradcheck_op(root->ctx, op, (int)sample, result, &o));
}

tg_status tg_gradcheck_replay_op(tg_ctx *ctx, const char *path, const tg_op *op, tg_gradcheck_info *info) {
    tg_gradcheck_info found = TG_GRADCHECK_INFO();
    tg_json root;
    TG_TRY(tg_io_enter(ctx));
    TG_TRY(tg_gradcheck_info_check(ctx, info, "tg_gradcheck_replay_op"));
    TG_TRY(open_report(&root, ctx, path, "tg_gradcheck_replay_op"));
    tg_status s = replay_op(&root, op, &found);
    tg_json_free(&root);
    return tg_gradcheck_info_give(info, &found, s);
}
