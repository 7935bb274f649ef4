/* Parses what operators apply to: names, literals, items, calls, filters and tests. */
#include "text/template/parse/parser.h"

#include <string.h>

#include "text/template/evaluate.h"

/* ---- Tokens ---- */

tpl_node *tg_tpl_node(tpl_parser *p, tpl_node_kind kind, const tpl_token *at) {
    tpl_node *n = tg_tpl_alloc(p->r, sizeof *n);
    *n = (tpl_node){.kind = (uint8_t)kind, .at = at->at};
    return n;
}

void tg_tpl_down(tpl_parser *p) {
    p->r->at = p->t->at;
    if (++p->depth > TPL_NESTING)
        tg_tpl_fail(p->r, TG_ERR_FORMAT, "the template is nested deeper than %d", TPL_NESTING);
}

void tg_tpl_unexpected(tpl_parser *p, const char *expected) {
    const tpl_token *t = p->t;
    p->r->at = t->at;
    int n = t->n < 40 ? (int)t->n : 40;
    if (t->kind == TPL_T_END) tg_tpl_fail(p->r, TG_ERR_FORMAT, "the template ends, expected %s", expected);
    if (t->kind == TPL_T_DATA) tg_tpl_fail(p->r, TG_ERR_FORMAT, "found text, expected %s", expected);
    tg_tpl_fail(p->r, TG_ERR_FORMAT, "found '%.*s', expected %s", n, p->r->source + t->at, expected);
}

bool tg_tpl_at_op(const tpl_parser *p, int op) { return p->t->kind == TPL_T_OPERATOR && p->t->op == op; }

bool tg_tpl_at_word(const tpl_parser *p, const char *word) {
    return p->t->kind == TPL_T_NAME && tg_tpl_is(p->t->value.text, word);
}

bool tg_tpl_skip_op(tpl_parser *p, int op) {
    bool there = tg_tpl_at_op(p, op);
    p->t += there;
    return there;
}

bool tg_tpl_skip_word(tpl_parser *p, const char *word) {
    bool there = tg_tpl_at_word(p, word);
    p->t += there;
    return there;
}

void tg_tpl_expect_op(tpl_parser *p, int op) {
    char expected[4] = {'\'', (char)op, '\''};
    if (!tg_tpl_skip_op(p, op)) tg_tpl_unexpected(p, expected);
}

const tpl_token *tg_tpl_expect_name(tpl_parser *p, const char *what) {
    if (p->t->kind != TPL_T_NAME) tg_tpl_unexpected(p, what);
    return p->t++;
}

/* ---- Literals ---- */

static tpl_node *constant(tpl_parser *p, const tpl_token *at, tpl_value v) {
    tpl_node *n = tg_tpl_node(p, TPL_N_CONST, at);
    n->value = v;
    return n;
}

static tpl_node *name(tpl_parser *p) {
    const tpl_token *t = p->t++;
    const tpl_text *word = t->value.text;
    if (tg_tpl_is(word, "true") || tg_tpl_is(word, "True")) return constant(p, t, tg_tpl_bool(true));
    if (tg_tpl_is(word, "false") || tg_tpl_is(word, "False")) return constant(p, t, tg_tpl_bool(false));
    if (tg_tpl_is(word, "none") || tg_tpl_is(word, "None")) return constant(p, t, tg_tpl_none());
    if (tg_tpl_is(word, "varargs")) p->uses |= TPL_USES_VARARGS;
    if (tg_tpl_is(word, "kwargs")) p->uses |= TPL_USES_KWARGS;
    if (tg_tpl_is(word, "caller")) p->uses |= TPL_USES_CALLER;
    tpl_node *n = tg_tpl_node(p, TPL_N_NAME, t);
    n->name = t->value.text;
    return n;
}

static tpl_node *strings(tpl_parser *p) {
    const tpl_token *t = p->t++;
    if (p->t->kind != TPL_T_STRING) return constant(p, t, t->value);
    tpl_buffer b = {0};
    tg_tpl_put_value(p->r, &b, t->value);
    for (; p->t->kind == TPL_T_STRING; p->t++) tg_tpl_put_value(p->r, &b, p->t->value);
    return constant(p, t, tg_tpl_take(p->r, &b));
}

static tpl_node *list(tpl_parser *p) {
    tpl_node *n = tg_tpl_node(p, TPL_N_MAKE_LIST, p->t++);
    tpl_nodes items = {0};
    while (!tg_tpl_at_op(p, ']')) {
        if (items.first) tg_tpl_expect_op(p, ',');
        if (tg_tpl_at_op(p, ']')) break;
        tg_tpl_nodes_add(&items, tg_tpl_expression(p));
    }
    p->t++;
    n->first = items.first;
    return n;
}

static tpl_node *dict(tpl_parser *p) {
    tpl_node *n = tg_tpl_node(p, TPL_N_MAKE_DICT, p->t++);
    tpl_nodes pairs = {0};
    while (!tg_tpl_at_op(p, '}')) {
        if (pairs.first) tg_tpl_expect_op(p, ',');
        if (tg_tpl_at_op(p, '}')) break;
        tpl_node *pair = tg_tpl_node(p, TPL_N_PAIR, p->t);
        pair->left = tg_tpl_expression(p);
        tg_tpl_expect_op(p, ':');
        pair->right = tg_tpl_expression(p);
        tg_tpl_nodes_add(&pairs, pair);
    }
    p->t++;
    n->first = pairs.first;
    return n;
}

static tpl_node *parentheses(tpl_parser *p) {
    const tpl_token *t = p->t++;
    tpl_node *n = tg_tpl_at_op(p, ')') ? tg_tpl_node(p, TPL_N_MAKE_TUPLE, t) : tg_tpl_tuple(p, true);
    tg_tpl_expect_op(p, ')');
    return n;
}

tpl_node *tg_tpl_primary(tpl_parser *p) {
    if (p->t->kind == TPL_T_NAME) return name(p);
    if (p->t->kind == TPL_T_STRING) return strings(p);
    if (p->t->kind == TPL_T_CONSTANT) return p->t++, constant(p, p->t - 1, p->t[-1].value);
    if (tg_tpl_at_op(p, '(')) return parentheses(p);
    if (tg_tpl_at_op(p, '[')) return list(p);
    if (tg_tpl_at_op(p, '{')) return dict(p);
    tg_tpl_unexpected(p, "an expression");
}

/* ---- Attributes, items, calls ---- */

static tpl_node *subscript_part(tpl_parser *p) {
    bool ends = tg_tpl_at_op(p, ':') || tg_tpl_at_op(p, ']') || tg_tpl_at_op(p, ',');
    return ends ? NULL : tg_tpl_expression(p);
}

static tpl_node *subscript(tpl_parser *p) {
    const tpl_token *t = p->t;
    tpl_node *first = tg_tpl_at_op(p, ':') ? NULL : tg_tpl_expression(p);
    if (!tg_tpl_skip_op(p, ':')) return first;
    tpl_node *n = tg_tpl_node(p, TPL_N_SLICE, t);
    n->left = first;
    n->right = subscript_part(p);
    if (tg_tpl_skip_op(p, ':')) n->third = subscript_part(p);
    return n;
}

static tpl_node *item(tpl_parser *p, tpl_node *of) {
    tpl_node *n = tg_tpl_node(p, TPL_N_ITEM, p->t++);
    tpl_nodes parts = {0};
    if (tg_tpl_at_op(p, ']')) tg_tpl_unexpected(p, "an expression");
    while (!tg_tpl_at_op(p, ']')) {
        if (parts.first) tg_tpl_expect_op(p, ',');
        tg_tpl_nodes_add(&parts, subscript(p));
    }
    p->t++;
    n->left = of;
    n->right = parts.first;
    if (parts.first->next) {
        n->right = tg_tpl_node(p, TPL_N_MAKE_TUPLE, p->t);
        n->right->first = parts.first;
    }
    return n;
}

static tpl_node *attribute(tpl_parser *p, tpl_node *of) {
    const tpl_token *t = p->t++;
    tpl_node *n = tg_tpl_node(p, TPL_N_ATTR, p->t);
    n->left = of;
    if (p->t->kind == TPL_T_CONSTANT && p->t->value.kind == TPL_INT) {
        n->kind = TPL_N_ITEM;
        n->right = constant(p, t, p->t++->value);
    } else {
        n->name = tg_tpl_expect_name(p, "a name or number after '.'")->value.text;
    }
    return n;
}

/* Parses an argument of a call. *stage is the latest kind of argument so far: 0 plain, 1 name=value, 2 *list, 3 **dict.
 * Kinds come in this order, but name=value may also come after *list. */
static tpl_node *argument(tpl_parser *p, int *stage) {
    bool named = p->t->kind == TPL_T_NAME && p->t[1].kind == TPL_T_OPERATOR && p->t[1].op == '=';
    bool all = tg_tpl_at_op(p, '*'), all_named = tg_tpl_at_op(p, TPL_OP_POWER);
    int now = all_named ? 3 : all ? 2 : named ? 1 : 0;
    if (*stage == 3 || now < *stage - (named && *stage == 2) || (all && *stage == 2))
        tg_tpl_unexpected(p, "arguments in the order: plain ones, name=value, *list, **dict");
    if (!(named && *stage == 2)) *stage = now;
    if (!now) return tg_tpl_expression(p);
    tpl_node *n = tg_tpl_node(p, all_named ? TPL_N_SPREAD_NAMED : all ? TPL_N_SPREAD : TPL_N_KEYWORD, p->t);
    if (named) n->name = p->t->value.text;
    p->t += named ? 2 : 1;
    n->left = tg_tpl_expression(p);
    return n;
}

static tpl_node *arguments(tpl_parser *p) {
    tpl_nodes list = {0};
    int stage = 0;
    p->t++;
    while (!tg_tpl_at_op(p, ')')) {
        if (list.first) tg_tpl_expect_op(p, ',');
        if (tg_tpl_at_op(p, ')')) break;
        tg_tpl_nodes_add(&list, argument(p, &stage));
    }
    p->t++;
    return list.first;
}

static tpl_node *call(tpl_parser *p, tpl_node *of) {
    tpl_node *n = tg_tpl_node(p, TPL_N_CALL, p->t);
    n->left = of;
    n->first = arguments(p);
    return n;
}

tpl_node *tg_tpl_postfix(tpl_parser *p, tpl_node *n) {
    for (;;) {
        if (tg_tpl_at_op(p, '.'))
            n = attribute(p, n);
        else if (tg_tpl_at_op(p, '['))
            n = item(p, n);
        else if (tg_tpl_at_op(p, '('))
            n = call(p, n);
        else
            return n;
    }
}

/* ---- Filters and tests ---- */

static tpl_text *dotted_name(tpl_parser *p, const char *what) {
    const tpl_token *t = tg_tpl_expect_name(p, what);
    if (tg_tpl_at_op(p, '.')) tg_tpl_unexpected(p, "a name without a dot");
    return t->value.text;
}

tpl_node *tg_tpl_filter(tpl_parser *p, tpl_node *of) {
    tpl_node *n = tg_tpl_node(p, TPL_N_FILTER, p->t);
    n->name = dotted_name(p, "the name of a filter");
    n->left = of;
    p->r->at = n->at;
    n->filter = tg_tpl_find_filter(p->r, n->name);
    if (tg_tpl_at_op(p, '(')) n->first = arguments(p);
    return n;
}

tpl_node *tg_tpl_filters(tpl_parser *p, tpl_node *of) {
    while (tg_tpl_skip_op(p, '|')) of = tg_tpl_filter(p, of);
    return of;
}

static bool begins_argument(const tpl_parser *p) {
    if (p->t->kind == TPL_T_NAME)
        return !tg_tpl_at_word(p, "else") && !tg_tpl_at_word(p, "or") && !tg_tpl_at_word(p, "and");
    return p->t->kind == TPL_T_STRING || p->t->kind == TPL_T_CONSTANT || tg_tpl_at_op(p, '[') || tg_tpl_at_op(p, '{');
}

static tpl_node *test(tpl_parser *p, tpl_node *of) {
    tpl_node *n = tg_tpl_node(p, TPL_N_TEST, p->t++), *opposite;
    bool negated = tg_tpl_skip_word(p, "not");
    n->name = dotted_name(p, "the name of a test");
    n->left = of;
    p->r->at = n->at;
    n->test = tg_tpl_find_test(p->r, n->name);
    if (tg_tpl_at_op(p, '(')) {
        n->first = arguments(p);
    } else if (begins_argument(p)) {
        if (tg_tpl_at_word(p, "is")) tg_tpl_unexpected(p, "one test; tests cannot be chained with 'is'");
        n->first = tg_tpl_postfix(p, tg_tpl_primary(p));
    }
    if (!negated) return n;
    opposite = tg_tpl_node(p, TPL_N_NOT, p->t);
    opposite->left = n;
    return opposite;
}

tpl_node *tg_tpl_filters_and_tests(tpl_parser *p, tpl_node *n) {
    for (;;) {
        if (tg_tpl_at_op(p, '|'))
            n = tg_tpl_filters(p, n);
        else if (tg_tpl_at_word(p, "is"))
            n = test(p, n);
        else if (tg_tpl_at_op(p, '('))
            n = call(p, n);
        else
            return n;
    }
}
