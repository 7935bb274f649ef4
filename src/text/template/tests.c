/* The tests: x is defined, x is string, and so on. */
#include <string.h>

#include "base/runtime.h"
#include "text/template/evaluate.h"
#include "text/template/values/strings.h"

static bool leaves(tpl_run *r, tpl_value v, tpl_value by, int64_t rest) {
    return tg_tpl_equal(r, tg_tpl_arithmetic(r, '%', v, by), tg_tpl_int(rest));
}

#define TEST(name) static bool name(tpl_run *r, tpl_value v, tpl_value a)

TEST(is_defined) { return (void)r, (void)a, v.kind != TPL_UNDEFINED; }
TEST(is_undefined) { return (void)r, (void)a, v.kind == TPL_UNDEFINED; }
TEST(is_none) { return (void)r, (void)a, v.kind == TPL_NONE; }
TEST(is_boolean) { return (void)r, (void)a, v.kind == TPL_BOOL; }
TEST(is_true) { return (void)r, (void)a, v.kind == TPL_BOOL && v.truth; }
TEST(is_false) { return (void)r, (void)a, v.kind == TPL_BOOL && !v.truth; }
TEST(is_integer) { return (void)r, (void)a, v.kind == TPL_INT; }
TEST(is_float) { return (void)r, (void)a, v.kind == TPL_REAL; }
TEST(is_number) { return (void)r, (void)a, tg_tpl_is_number(v); }
TEST(is_string) { return (void)r, (void)a, v.kind == TPL_TEXT; }
TEST(is_mapping) { return (void)r, (void)a, v.kind == TPL_DICT; }
TEST(is_iterable) { return (void)r, (void)a, tg_tpl_can_iterate(v); }
TEST(is_callable) { return (void)r, (void)a, v.kind == TPL_UNDEFINED || v.kind >= TPL_LOOP; }
TEST(is_escaped) { return (void)r, (void)v, (void)a, false; }
TEST(is_odd) { return (void)a, leaves(r, v, tg_tpl_int(2), 1); }
TEST(is_even) { return (void)a, leaves(r, v, tg_tpl_int(2), 0); }
TEST(is_divisible) { return leaves(r, v, a, 0); }
TEST(is_in) { return tg_tpl_contains(r, a, v); }
TEST(is_equal) { return tg_tpl_compare(r, TPL_OP_EQ, v, a); }
TEST(is_unequal) { return tg_tpl_compare(r, TPL_OP_NE, v, a); }
TEST(is_greater) { return tg_tpl_compare(r, '>', v, a); }
TEST(is_at_least) { return tg_tpl_compare(r, TPL_OP_GE, v, a); }
TEST(is_less) { return tg_tpl_compare(r, '<', v, a); }
TEST(is_at_most) { return tg_tpl_compare(r, TPL_OP_LE, v, a); }

TEST(is_sequence) {
    (void)r, (void)a;
    return v.kind == TPL_UNDEFINED || v.kind == TPL_TEXT || v.kind == TPL_LIST || v.kind == TPL_TUPLE ||
           v.kind == TPL_RANGE || v.kind == TPL_DICT;
}

/* Python's `is`: one object. Values without parts are one object if they are equal and of one type. */
TEST(is_same) {
    if (v.kind != a.kind) return false;
    return v.kind == TPL_INT || v.kind == TPL_BOOL || v.kind == TPL_NONE ? tg_tpl_equal(r, v, a) : v.list == a.list;
}

TEST(is_lower) { return (void)a, tg_tpl_is_cased(r, tg_tpl_to_text(r, v).text, false); }
TEST(is_upper) { return (void)a, tg_tpl_is_cased(r, tg_tpl_to_text(r, v).text, true); }

TEST(is_filter) { return (void)r, (void)a, v.kind == TPL_TEXT && tg_tpl_is_filter(v.text); }
TEST(is_test);

static const tpl_test tests[] = {
    {"defined", 0, is_defined},
    {"undefined", 0, is_undefined},
    {"none", 0, is_none},
    {"boolean", 0, is_boolean},
    {"true", 0, is_true},
    {"false", 0, is_false},
    {"integer", 0, is_integer},
    {"float", 0, is_float},
    {"number", 0, is_number},
    {"string", 0, is_string},
    {"mapping", 0, is_mapping},
    {"iterable", 0, is_iterable},
    {"sequence", 0, is_sequence},
    {"callable", 0, is_callable},
    {"escaped", 0, is_escaped},
    {"odd", 0, is_odd},
    {"even", 0, is_even},
    {"divisibleby", 1, is_divisible},
    {"in", 1, is_in},
    {"sameas", 1, is_same},
    {"lower", 0, is_lower},
    {"upper", 0, is_upper},
    {"filter", 0, is_filter},
    {"test", 0, is_test},
    {"==", 1, is_equal},
    {"eq", 1, is_equal},
    {"equalto", 1, is_equal},
    {"!=", 1, is_unequal},
    {"ne", 1, is_unequal},
    {">", 1, is_greater},
    {"gt", 1, is_greater},
    {"greaterthan", 1, is_greater},
    {">=", 1, is_at_least},
    {"ge", 1, is_at_least},
    {"<", 1, is_less},
    {"lt", 1, is_less},
    {"lessthan", 1, is_less},
    {"<=", 1, is_at_most},
    {"le", 1, is_at_most},
};

static const tpl_test *find(const tpl_text *name) {
    for (int i = 0; i < TG_LEN(tests); i++)
        if (tg_tpl_is(name, tests[i].name)) return &tests[i];
    return NULL;
}

TEST(is_test) { return (void)r, (void)a, v.kind == TPL_TEXT && find(v.text); }

const tpl_test *tg_tpl_find_test(tpl_run *r, const tpl_text *name) {
    const tpl_test *t = find(name);
    if (!t) tg_tpl_fail(r, TG_ERR_FORMAT, "there is no test '%.*s'", name->n < 40 ? (int)name->n : 40, name->bytes);
    return t;
}

bool tg_tpl_holds(tpl_run *r, const tpl_test *t, tpl_value on, const tpl_call *c) {
    if (c->n != t->arguments || c->named.n)
        tg_tpl_fail(r, TG_ERR_DATA, "the test '%s' takes %s, not %lld", t->name,
                    tg_count(t->arguments, "argument").text, (long long)(c->n + c->named.n));
    return t->holds(r, on, t->arguments ? c->args[0] : (tpl_value){.kind = TPL_ABSENT});
}
