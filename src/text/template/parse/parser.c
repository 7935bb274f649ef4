/* Parses expressions: operators. Names and order of the rules are those of Jinja (jinja2/parser.py). */
#include "text/template/parse/parser.h"

static tpl_node *unary(tpl_parser *p, bool with_filters) {
    tpl_node *n;
    bool minus = tg_tpl_at_op(p, '-');
    tg_tpl_down(p);
    if (minus || tg_tpl_at_op(p, '+')) {
        n = tg_tpl_node(p, minus ? TPL_N_NEGATE : TPL_N_PLUS, p->t++);
        n->left = unary(p, false);
    } else {
        n = tg_tpl_primary(p);
    }
    n = tg_tpl_postfix(p, n);
    if (with_filters) n = tg_tpl_filters_and_tests(p, n);
    p->depth--;
    return n;
}

static tpl_node *binary(tpl_parser *p, tpl_node_kind kind, const tpl_token *at, tpl_node *left) {
    tpl_node *n = tg_tpl_node(p, kind, at);
    n->op = at->op;
    n->left = left;
    return n;
}

static tpl_node *power(tpl_parser *p) {
    tpl_node *n = unary(p, true);
    while (tg_tpl_at_op(p, TPL_OP_POWER)) {
        n = binary(p, TPL_N_ARITHMETIC, p->t++, n);
        n->right = unary(p, true);
    }
    return n;
}

static tpl_node *product(tpl_parser *p) {
    tpl_node *n = power(p);
    while (tg_tpl_at_op(p, '*') || tg_tpl_at_op(p, '/') || tg_tpl_at_op(p, '%') || tg_tpl_at_op(p, TPL_OP_FLOOR)) {
        n = binary(p, TPL_N_ARITHMETIC, p->t++, n);
        n->right = power(p);
    }
    return n;
}

static tpl_node *concatenation(tpl_parser *p) {
    const tpl_token *t = p->t;
    tpl_node *one = product(p);
    tpl_nodes list = {0};
    if (!tg_tpl_at_op(p, '~')) return one;
    tg_tpl_nodes_add(&list, one);
    while (tg_tpl_skip_op(p, '~')) tg_tpl_nodes_add(&list, product(p));
    tpl_node *n = tg_tpl_node(p, TPL_N_CONCAT, t);
    n->first = list.first;
    return n;
}

static tpl_node *sum(tpl_parser *p) {
    tpl_node *n = concatenation(p);
    while (tg_tpl_at_op(p, '+') || tg_tpl_at_op(p, '-')) {
        n = binary(p, TPL_N_ARITHMETIC, p->t++, n);
        n->right = concatenation(p);
    }
    return n;
}

/* Returns the operator of comparison at p->t and the number of its tokens; 0: there is none. */
static int comparison_op(const tpl_parser *p, int *tokens) {
    int op = p->t->kind == TPL_T_OPERATOR ? p->t->op : 0;
    *tokens = 1;
    if (op == '<' || op == '>' || (op >= TPL_OP_EQ && op <= TPL_OP_GE)) return op;
    if (tg_tpl_at_word(p, "in")) return TPL_OP_IN;
    *tokens = 2;
    tpl_parser after = {.t = p->t + 1};
    return tg_tpl_at_word(p, "not") && tg_tpl_at_word(&after, "in") ? TPL_OP_NOT_IN : 0;
}

static tpl_node *comparison(tpl_parser *p) {
    tpl_node *n = sum(p);
    tpl_nodes operands = {0};
    int op, tokens;
    const tpl_token *t = p->t;
    while ((op = comparison_op(p, &tokens)) != 0) {
        tpl_node *operand = tg_tpl_node(p, TPL_N_OPERAND, p->t);
        p->t += tokens;
        operand->op = op;
        operand->left = sum(p);
        tg_tpl_nodes_add(&operands, operand);
    }
    if (!operands.first) return n;
    tpl_node *all = binary(p, TPL_N_COMPARE, t, n);
    all->first = operands.first;
    return all;
}

static tpl_node *negation(tpl_parser *p) {
    if (!tg_tpl_at_word(p, "not")) return comparison(p);
    tg_tpl_down(p);
    tpl_node *n = tg_tpl_node(p, TPL_N_NOT, p->t++);
    n->left = negation(p);
    p->depth--;
    return n;
}

static tpl_node *conjunction(tpl_parser *p) {
    tpl_node *n = negation(p);
    while (tg_tpl_at_word(p, "and")) {
        n = binary(p, TPL_N_AND, p->t++, n);
        n->right = negation(p);
    }
    return n;
}

tpl_node *tg_tpl_or(tpl_parser *p) {
    tpl_node *n = conjunction(p);
    while (tg_tpl_at_word(p, "or")) {
        n = binary(p, TPL_N_OR, p->t++, n);
        n->right = conjunction(p);
    }
    return n;
}

tpl_node *tg_tpl_expression(tpl_parser *p) {
    tg_tpl_down(p);
    tpl_node *n = tg_tpl_or(p);
    while (tg_tpl_at_word(p, "if")) {
        tpl_node *condition = tg_tpl_node(p, TPL_N_CONDITION, p->t++);
        condition->right = n;
        condition->left = tg_tpl_or(p);
        if (tg_tpl_skip_word(p, "else")) condition->third = tg_tpl_expression(p);
        n = condition;
    }
    p->depth--;
    return n;
}

static bool ends_tuple(const tpl_parser *p) {
    return p->t->kind == TPL_T_BLOCK_END || p->t->kind == TPL_T_PRINT_END || tg_tpl_at_op(p, ')') ||
           tg_tpl_at_word(p, "recursive");
}

tpl_node *tg_tpl_tuple(tpl_parser *p, bool with_condition) {
    const tpl_token *t = p->t;
    tpl_nodes items = {0};
    bool comma = false;
    while (!ends_tuple(p)) {
        tg_tpl_nodes_add(&items, with_condition ? tg_tpl_expression(p) : tg_tpl_or(p));
        if (!tg_tpl_skip_op(p, ',')) break;
        comma = true;
    }
    if (!items.first) tg_tpl_unexpected(p, "an expression");
    if (!comma) return items.first;
    tpl_node *n = tg_tpl_node(p, TPL_N_MAKE_TUPLE, t);
    n->first = items.first;
    return n;
}
