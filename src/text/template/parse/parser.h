/* The state of the parser, and the functions that its files share. */
#ifndef TG_TEXT_TEMPLATE_PARSER_H
#define TG_TEXT_TEMPLATE_PARSER_H

#include "text/template/parse/lexer.h"

typedef struct tpl_parser {
    tpl_run *r;
    const tpl_token *t; /* the next token */
    int depth, loops;   /* nested rules; loops around the statement within its macro */
    int uses;           /* TPL_USES_* of the names seen so far in the macro */
} tpl_parser;

/* A list of nodes that grows at its end. */
typedef struct tpl_nodes {
    tpl_node *first, **end;
} tpl_nodes;

static inline void tg_tpl_nodes_add(tpl_nodes *list, tpl_node *n) {
    if (!list->first) list->end = &list->first;
    *list->end = n;
    list->end = &n->next;
}

tpl_node *tg_tpl_node(tpl_parser *p, tpl_node_kind kind, const tpl_token *at);
/* Enters a nested rule, which subtracts 1 from p->depth at its end. Fails if there are too many. */
void tg_tpl_down(tpl_parser *p);
/* Fails at the next token. */
_Noreturn void tg_tpl_unexpected(tpl_parser *p, const char *expected);
bool tg_tpl_at_op(const tpl_parser *p, int op);
bool tg_tpl_at_word(const tpl_parser *p, const char *word);
/* Skip an operator or a word if it is the next token. Return whether it was. */
bool tg_tpl_skip_op(tpl_parser *p, int op);
bool tg_tpl_skip_word(tpl_parser *p, const char *word);
void tg_tpl_expect_op(tpl_parser *p, int op);
const tpl_token *tg_tpl_expect_name(tpl_parser *p, const char *what);

tpl_node *tg_tpl_expression(tpl_parser *p);
tpl_node *tg_tpl_or(tpl_parser *p); /* an expression without 'if' */
/* Parses one expression, or a tuple if there are commas. with_condition: each may be an inline if. */
tpl_node *tg_tpl_tuple(tpl_parser *p, bool with_condition);
tpl_node *tg_tpl_primary(tpl_parser *p);
tpl_node *tg_tpl_postfix(tpl_parser *p, tpl_node *n); /* the attributes, items and calls after n */
tpl_node *tg_tpl_filters_and_tests(tpl_parser *p, tpl_node *n);
tpl_node *tg_tpl_filters(tpl_parser *p, tpl_node *of); /* |a|b */
tpl_node *tg_tpl_filter(tpl_parser *p, tpl_node *of);  /* the name and arguments of one */

#endif
