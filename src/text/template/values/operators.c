/* Operators on values: arithmetic, comparison, membership. As in Python, except that integers have 64 bits. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "base/runtime.h"
#include "text/template/evaluate.h"

static const char *op_name(int op) {
    static char const names[][2] = {"+", "-", "*", "/", "%"};
    for (int i = 0; i < TG_LEN(names); i++)
        if (op == names[i][0]) return names[i];
    return op == TPL_OP_FLOOR   ? "//"
           : op == TPL_OP_POWER ? "**"
           : op == TPL_OP_LE    ? "<="
           : op == TPL_OP_GE    ? ">="
           : op == '<'          ? "<"
                                : ">";
}

_Noreturn static void refuse(tpl_run *r, int op, tpl_value a, tpl_value b) {
    tg_tpl_fail(r, TG_ERR_DATA, "'%s' does not take a %s and a %s", op_name(op), tg_tpl_type_name(a),
                tg_tpl_type_name(b));
}

_Noreturn static void refuse_zero(tpl_run *r) { tg_tpl_fail(r, TG_ERR_DATA, "division by zero"); }

_Noreturn static void refuse_overflow(tpl_run *r) {
    tg_tpl_fail(r, TG_ERR_DATA, "the result is an integer of more than 64 bits");
}

/* ---- Integers ---- */

static int64_t floor_quotient(tpl_run *r, int64_t a, int64_t b) {
    if (!b) refuse_zero(r);
    if (a == INT64_MIN && b == -1) refuse_overflow(r);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t floor_rest(tpl_run *r, int64_t a, int64_t b) {
    if (!b) refuse_zero(r);
    int64_t rest = b == -1 ? 0 : a % b;
    return rest && (rest < 0) != (b < 0) ? rest + b : rest;
}

static tpl_value power_of_ints(tpl_run *r, int64_t a, int64_t b) {
    if (b < 0 && !a) refuse_zero(r);
    if (b < 0) return tg_tpl_real(pow((double)a, (double)b));
    int64_t v = 1;
    if (a == 0 || a == 1) return tg_tpl_int(b ? a : 1);
    if (a == -1) return tg_tpl_int(b % 2 ? -1 : 1);
    for (; b > 0; b--)
        if (__builtin_mul_overflow(v, a, &v)) refuse_overflow(r);
    return tg_tpl_int(v);
}

static tpl_value of_ints(tpl_run *r, int op, int64_t a, int64_t b) {
    int64_t v = 0;
    bool over = false;
    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &v);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &v);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &v);
        break;
    case '/':
        if (!b) refuse_zero(r);
        return tg_tpl_real((double)((long double)a / (long double)b));
    case TPL_OP_FLOOR:
        v = floor_quotient(r, a, b);
        break;
    case '%':
        v = floor_rest(r, a, b);
        break;
    default:
        return power_of_ints(r, a, b);
    }
    if (over) refuse_overflow(r);
    return tg_tpl_int(v);
}

/* ---- Reals ---- */

static double real_rest(double a, double b) {
    double rest = fmod(a, b);
    if (rest == 0) return copysign(0, b);
    return (rest < 0) != (b < 0) ? rest + b : rest;
}

/* Returns a // b, as CPython's float_divmod computes it. */
static double real_quotient(double a, double b) {
    double rest = fmod(a, b), q = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) q -= 1;
    if (q == 0) return copysign(0, a / b);
    double down = floor(q);
    return q - down > 0.5 ? down + 1 : down;
}

static double power_of_reals(tpl_run *r, double a, double b) {
    if (a == 0 && b < 0) refuse_zero(r);
    if (a < 0 && isfinite(b) && b != floor(b))
        tg_tpl_fail(r, TG_ERR_DATA, "'**' of a negative number has no real value");
    double v = pow(a, b);
    if (isinf(v) && isfinite(a) && isfinite(b)) tg_tpl_fail(r, TG_ERR_DATA, "the result of '**' is too large");
    return v;
}

static tpl_value of_reals(tpl_run *r, int op, double a, double b) {
    if (b == 0 && (op == '/' || op == '%' || op == TPL_OP_FLOOR)) refuse_zero(r);
    switch (op) {
    case '+':
        return tg_tpl_real(a + b);
    case '-':
        return tg_tpl_real(a - b);
    case '*':
        return tg_tpl_real(a * b);
    case '/':
        return tg_tpl_real(a / b);
    case '%':
        return tg_tpl_real(real_rest(a, b));
    case TPL_OP_FLOOR:
        return tg_tpl_real(real_quotient(a, b));
    default:
        return tg_tpl_real(power_of_reals(r, a, b));
    }
}

/* ---- Texts and lists ---- */

static tpl_value join_lists(tpl_run *r, tpl_value a, tpl_value b) {
    tpl_value v = tg_tpl_list_new(r, (tpl_kind)a.kind);
    for (int64_t i = 0; i < a.list->n; i++) tg_tpl_append(r, v.list, a.list->items[i]);
    for (int64_t i = 0; i < b.list->n; i++) tg_tpl_append(r, v.list, b.list->items[i]);
    return v;
}

static tpl_value join_texts(tpl_run *r, const tpl_text *a, const tpl_text *b) {
    tpl_buffer out = {0};
    tg_tpl_put(r, &out, a->bytes, a->n);
    tg_tpl_put(r, &out, b->bytes, b->n);
    return tg_tpl_take(r, &out);
}

static tpl_value repeat(tpl_run *r, tpl_value of, int64_t times) {
    tpl_buffer out = {0};
    if (of.kind == TPL_TEXT) {
        if (of.text->n && times > TPL_OUTPUT)
            tg_tpl_fail(r, TG_ERR_DATA, "the template makes a text of more than %d MiB", TPL_OUTPUT >> 20);
        for (; of.text->n && times > 0; times--) tg_tpl_put(r, &out, of.text->bytes, of.text->n);
        return tg_tpl_take(r, &out);
    }
    tpl_value v = tg_tpl_list_new(r, (tpl_kind)of.kind);
    for (; of.list->n && times > 0; times--)
        for (int64_t i = 0; i < of.list->n; i++) tg_tpl_append(r, v.list, of.list->items[i]);
    return v;
}

static bool is_sequence(tpl_value v) { return v.kind == TPL_TEXT || v.kind == TPL_LIST || v.kind == TPL_TUPLE; }

static bool is_whole(tpl_value v) { return v.kind == TPL_INT || v.kind == TPL_BOOL; }

tpl_value tg_tpl_arithmetic(tpl_run *r, int op, tpl_value a, tpl_value b) {
    if (is_whole(a) && is_whole(b)) return of_ints(r, op, tg_tpl_to_int(r, a, ""), tg_tpl_to_int(r, b, ""));
    if (tg_tpl_is_number(a) && tg_tpl_is_number(b))
        return of_reals(r, op, tg_tpl_to_real(r, a, ""), tg_tpl_to_real(r, b, ""));
    if (op == '%' && a.kind == TPL_TEXT) return tg_tpl_format(r, a.text, b);
    tg_tpl_require(r, a);
    tg_tpl_require(r, b);
    if (op == '+' && a.kind == b.kind && a.kind == TPL_TEXT) return join_texts(r, a.text, b.text);
    if (op == '+' && a.kind == b.kind && is_sequence(a)) return join_lists(r, a, b);
    if (op == '*' && is_sequence(a) && is_whole(b)) return repeat(r, a, tg_tpl_to_int(r, b, ""));
    if (op == '*' && is_whole(a) && is_sequence(b)) return repeat(r, b, tg_tpl_to_int(r, a, ""));
    refuse(r, op, a, b);
}

tpl_value tg_tpl_negate(tpl_run *r, tpl_value v) {
    if (v.kind == TPL_REAL) return tg_tpl_real(-v.real);
    int64_t i = tg_tpl_to_int(r, v, "the operand of '-'");
    if (i == INT64_MIN) refuse_overflow(r);
    return tg_tpl_int(-i);
}

/* ---- Comparison ---- */

static bool holds_item(tpl_run *r, tpl_value container, tpl_value item) {
    tpl_value v;
    for (tpl_iter i = tg_tpl_iterate(r, container); tg_tpl_next(r, &i, &v);)
        if (tg_tpl_equal(r, v, item)) return true;
    return false;
}

bool tg_tpl_contains(tpl_run *r, tpl_value container, tpl_value item) {
    if (container.kind == TPL_DICT) return tg_tpl_find(r, container.dict, item) != NULL;
    if (container.kind != TPL_TEXT) return holds_item(r, container, item);
    if (item.kind != TPL_TEXT)
        tg_tpl_fail(r, TG_ERR_DATA, "'in' looks for a string in a string, not for a %s", tg_tpl_type_name(item));
    tg_tpl_pass(r, container.text->n);
    return !item.text->n ||
           (container.text->n && memmem(container.text->bytes, container.text->n, item.text->bytes, item.text->n));
}

bool tg_tpl_compare(tpl_run *r, int op, tpl_value a, tpl_value b) {
    if (op == TPL_OP_EQ || op == TPL_OP_NE) return tg_tpl_equal(r, a, b) == (op == TPL_OP_EQ);
    if (op == TPL_OP_IN || op == TPL_OP_NOT_IN) return tg_tpl_contains(r, b, a) == (op == TPL_OP_IN);
    int order = tg_tpl_order(r, a, b, op_name(op));
    if (order == 2) return false;
    return op == '<' ? order < 0 : op == '>' ? order > 0 : op == TPL_OP_LE ? order <= 0 : order >= 0;
}
