/* Calls of ops by name, with named arguments (op_call.h). */
#include <tapegrad/op_call.h>

#include <stdalign.h>
#include <stdio.h>

#include "autograd/apply.h"
#include "base/text.h"
#include "catalog/names.h"
#include "catalog/values.h"

enum {
    PARAMS = 1024, /* the greatest params_size of an op that can be called by name */
    INPUTS = 31,   /* the greatest n_in of such an op; lists of inputs may be longer */
};

/* ---- Names ---- */

static tg_status refuse_op(tg_ctx *ctx, const char *name) {
    tg_nearest near = {.wanted = name};
    for (int i = 0; i < tg_op_count(); i++) tg_nearest_offer(&near, tg_op_at(i)->name, (int)strlen(tg_op_at(i)->name));
    return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_op_call: there is no op \"%s\"%s%.*s", name,
                   near.best ? "; the nearest name is " : "; `tapegrad ops` lists all ops", near.n,
                   near.best ? near.best : "");
}

static tg_status refuse_argument(tg_ctx *ctx, const tg_op *op, const char *name) {
    char all[512] = "none";
    size_t at = 0;
    tg_nearest near = {.wanted = name};
    const char *word, *inputs = op->n_in < 0 ? NULL : op->inputs; /* a list of inputs is given by position only */
    for (int i = 0, n; (word = tg_word_at(inputs, i, &n)); i++) {
        tg_text(all, sizeof all, &at, "%s%.*s", at ? ", " : "", n, word);
        tg_nearest_offer(&near, word, n);
    }
    for (int i = 0; i < op->n_fields; i++) {
        tg_text(all, sizeof all, &at, "%s%s", at ? ", " : "", op->fields[i].name);
        tg_nearest_offer(&near, op->fields[i].name, (int)strlen(op->fields[i].name));
    }
    return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: there is no argument \"%s\"%s%.*s; the arguments are %s", op->name, name,
                   near.best ? "; the nearest is " : "", near.n, near.best ? near.best : "", all);
}

/* Looks up one name. Sets *at to the index of the field, or to -1 - i for input i. Returns false if op has no such
 * argument. */
static bool find_argument(const tg_op *op, const char *name, int16_t *at) {
    for (int i = 0; i < op->n_fields; i++) {
        *at = (int16_t)i;
        if (strcmp(op->fields[i].name, name) == 0) return true;
    }
    int input = tg_word_find(op->inputs, name);
    *at = (int16_t)(-1 - input);
    return input >= 0 && op->n_in >= 0;
}

static tg_status bind_name(tg_ctx *ctx, tg_op_binding *b, const char *name) {
    if (!name) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the name of argument %d is NULL", b->op->name, b->n);
    int16_t *at = &b->at[b->n];
    if (!find_argument(b->op, name, at)) return refuse_argument(ctx, b->op, name);
    for (int i = 0; i < b->n; i++)
        if (b->at[i] == *at) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: argument %s is given twice", b->op->name, name);
    b->n++;
    return TG_OK;
}

static bool is_bound(const tg_op_binding *b, int argument) {
    for (int i = 0; i < b->n; i++)
        if (b->at[i] == argument) return true;
    return false;
}

static tg_status check_required(tg_ctx *ctx, const tg_op_binding *b) {
    for (int i = 0; i < b->op->n_fields; i++)
        if (b->op->fields[i].required && !is_bound(b, i))
            return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: argument %s is missing; it has no default", b->op->name,
                           b->op->fields[i].name);
    return TG_OK;
}

/* Fills *b. The names of the arguments are names[] or, if that is NULL, those of values[]. */
static tg_status bind(tg_ctx *ctx, const tg_op *op, const char *const *names, const tg_value *values, int n,
                      tg_op_binding *b) {
    TG_TRY(tg_table_check(ctx, op->size, sizeof *op, "tg_op_bind: the op"));
    b->op = op; /* also if the call fails, because `fail` must know whether the op is a collective */
    b->n = 0;
    if (n < 0 || n > TG_OP_VALUES || (n && !names && !values))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the call has %s; expected 0 to %d, in an array that is not NULL",
                       op->name, tg_count(n, "named argument").text, TG_OP_VALUES);
    if (op->params_size > PARAMS || op->n_in > INPUTS)
        return tg_fail(ctx, TG_ERR_UNSUPPORTED,
                       "%s: the op has %s of params and %s; a call by name takes at most %d "
                       "and %d",
                       op->name, tg_count((int64_t)op->params_size, "byte").text, tg_count(op->n_in, "input").text,
                       PARAMS, INPUTS);
    for (int i = 0; i < n; i++) TG_TRY(bind_name(ctx, b, names ? names[i] : values[i].name));
    return check_required(ctx, b);
}

tg_status tg_op_bind(tg_ctx *ctx, const tg_op *op, const char *const *names, int n, tg_op_binding *b) {
    tg_op_binding made = TG_OP_BINDING();
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    if (!b) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_op_bind: the binding is NULL");
    TG_TRY(tg_table_check(ctx, b->size, sizeof *b, "tg_op_bind: the binding"));
    if (!op)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_op_bind: the op is NULL; tg_op_find returns NULL for a name that "
                       "no op has");
    TG_TRY(bind(ctx, op, names, NULL, n, &made));
    *b = made;
    return TG_OK;
}

/* ---- Arguments ---- */

/* The arguments of one call, as tg_apply takes them. */
typedef struct arguments {
    alignas(max_align_t) char params[PARAMS];
    tg_tensor *own[INPUTS];
    tg_tensor *const *input;
    int n_in;
} arguments;

/* Fills *a with the preset and with the inputs that are given by position. The other inputs are NULL. */
static tg_status begin(tg_ctx *ctx, const tg_op *op, tg_tensor *const *in, int n_in, arguments *a) {
    if (op->preset)
        memcpy(a->params, op->preset, op->params_size);
    else
        memset(a->params, 0, op->params_size);
    a->input = in;
    a->n_in = n_in;
    if (op->n_in < 0) return TG_OK; /* a list, which tg_apply checks */
    if (n_in > op->n_in)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the call has %s, expected %d", op->name, tg_count(n_in, "input").text,
                       op->n_in);
    if (n_in < 0 || (n_in && !in))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the array of inputs is NULL, or has fewer than 0", op->name);
    for (int i = 0; i < op->n_in; i++) a->own[i] = i < n_in ? in[i] : NULL;
    a->input = a->own;
    a->n_in = op->n_in;
    return TG_OK;
}

static tg_status give_input(tg_ctx *ctx, const tg_op *op, int i, const tg_value *v, arguments *a) {
    char name[64];
    int n = 0;
    const char *word = tg_word_at(op->inputs, i, &n);
    snprintf(name, sizeof name, "%.*s", n, word);
    bool absent = v->kind == TG_VALUE_DEFAULT && tg_bit(op->optional, i);
    if (!absent && (v->kind != TG_VALUE_TENSOR || !v->tensor)) return tg_value_refuse(ctx, op, name, v, "a tensor");
    if (a->own[i]) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: input %s is given twice", op->name, name);
    a->own[i] = absent ? NULL : v->tensor;
    return TG_OK;
}

static tg_status give(tg_ctx *ctx, const tg_op_binding *b, const tg_value *values, arguments *a) {
    if (b->n && !values) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the array of values is NULL", b->op->name);
    for (int i = 0; i < b->n; i++) {
        int at = b->at[i];
        TG_TRY(at < 0 ? give_input(ctx, b->op, -1 - at, &values[i], a)
                      : tg_value_store(ctx, b->op, &b->op->fields[at], &values[i], a->params));
    }
    return TG_OK;
}

/* Checks that the inputs without a value are optional. */
static tg_status check_inputs(tg_ctx *ctx, const tg_op *op, const arguments *a) {
    for (int i = 0; a->input == a->own && i < a->n_in; i++) {
        int n = 0;
        const char *word = tg_word_at(op->inputs, i, &n);
        if (!a->own[i] && !tg_bit(op->optional, i))
            return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: input %.*s is missing or NULL; it is not optional", op->name, n,
                           word ? word : "");
    }
    return TG_OK;
}

/* ---- Calls ---- */

static tg_status prepare(tg_tape *t, const tg_op_binding *b, tg_tensor *const *in, int n_in, const tg_value *values,
                         arguments *a) {
    TG_TRY(begin(t->ctx, b->op, in, n_in, a));
    TG_TRY(give(t->ctx, b, values, a));
    return check_inputs(t->ctx, b->op, a);
}

/* Ends a call that has failed before tg_apply in the way in which tg_apply ends a failed call: out[] receives inert
 * tensors. Returns s. */
static tg_status fail(tg_tape *t, const tg_op *op, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out,
                      tg_status s) {
    tg_tensor *inert = tg_tape_inert(t, in, in ? n_in : 0);
    if (op && op->collective) tg_ctx_skip(inert->ctx);
    for (int i = 0; out && i < n_out; i++) out[i] = inert;
    return s;
}

static tg_status run(tg_tape *t, const tg_op_binding *b, tg_tensor *const *in, int n_in, const tg_value *values,
                     tg_tensor **out, int n_out, const void *site) {
    arguments a;
    tg_status s = prepare(t, b, in, n_in, values, &a);
    if (s != TG_OK) return fail(t, b->op, in, n_in, out, n_out, s);
    return tg_apply(t, b->op, a.params, a.input, a.n_in, out, n_out, NULL, NULL, site);
}

static tg_status bind_by_name(tg_ctx *ctx, const char *name, const tg_value *values, int n, tg_op_binding *b) {
    if (!name) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_op_call: the name of the op is NULL");
    const tg_op *op = tg_op_find(name);
    return op ? bind(ctx, op, NULL, values, n, b) : refuse_op(ctx, name);
}

tg_status tg_op_call(tg_tape *t, const char *name, tg_tensor *const *in, int n_in, const tg_value *values, int n_values,
                     tg_tensor **out, int n_out) {
    tg_op_binding b = TG_OP_BINDING();
    tg_status s = tg_tape_check_with(t, in, in ? n_in : 0, name ? name : "tg_op_call");
    if (s == TG_OK) s = bind_by_name(t->ctx, name, values, n_values, &b);
    if (s != TG_OK) return fail(t, b.op, in, n_in, out, n_out, s);
    return run(t, &b, in, n_in, values, out, n_out, TG_SITE);
}

tg_status tg_op_call_bound(tg_tape *t, const tg_op_binding *b, tg_tensor *const *in, int n_in, const tg_value *values,
                           tg_tensor **out, int n_out) {
    const tg_op *op = b && b->size == sizeof *b ? b->op : NULL;
    tg_status s = tg_tape_check_with(t, in, in ? n_in : 0, op ? op->name : "tg_op_call_bound");
    if (s == TG_OK && !op)
        s = tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_op_call_bound: the binding is NULL, or tg_op_bind has not filled it");
    if (s != TG_OK) return fail(t, op, in, n_in, out, n_out, s);
    return run(t, b, in, n_in, values, out, n_out, TG_SITE);
}

int tg_op_output_count(tg_ctx *ctx, const tg_op_binding *b, const tg_value *values) {
    arguments a;
    if (!tg_ok(ctx)) return -1;
    if (!b || b->size != sizeof *b || !b->op) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_op_output_count: the binding is NULL, or tg_op_bind has not filled it");
        return -1;
    }
    if (b->op->n_out >= 0) return b->op->n_out;
    if (begin(ctx, b->op, NULL, 0, &a) != TG_OK || give(ctx, b, values, &a) != TG_OK) return -1;
    if (b->op->outputs_of) {
        int n = b->op->outputs_of(a.params);
        return n > 0 ? n : 0; /* the op refuses a number below 0; -1 would say that an error was recorded */
    }
    tg_fail(ctx, TG_ERR_UNSUPPORTED, "%s: only a call of the op tells how many outputs it has", b->op->name);
    return -1;
}
