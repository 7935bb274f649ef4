/* The tree of a parsed template. */
#ifndef TG_TEXT_TEMPLATE_NODE_H
#define TG_TEXT_TEMPLATE_NODE_H

#include "text/template/values/value.h"

typedef enum tpl_node_kind {
    /* Expressions */
    TPL_N_CONST, /* value; as a statement: the text between tags, which is written */
    TPL_N_NAME,  /* name */
    TPL_N_MAKE_LIST,
    TPL_N_MAKE_TUPLE,   /* first: items; a tuple is a target too */
    TPL_N_MAKE_DICT,    /* first: PAIR nodes */
    TPL_N_PAIR,         /* left: key; right: value */
    TPL_N_ATTR,         /* left.name; a target is an attribute of a namespace */
    TPL_N_ITEM,         /* left[right] */
    TPL_N_SLICE,        /* left:right:third, each may be NULL */
    TPL_N_CALL,         /* left(first); the arguments are expressions, KEYWORD, SPREAD or SPREAD_NAMED nodes */
    TPL_N_KEYWORD,      /* name=left */
    TPL_N_SPREAD,       /* *left */
    TPL_N_SPREAD_NAMED, /* **left */
    TPL_N_FILTER, /* left|name(first); at the start of the chain of a block, left is NULL: the text of the block */
    TPL_N_TEST,   /* left is name(first) */
    TPL_N_NEGATE,
    TPL_N_PLUS,
    TPL_N_NOT,
    TPL_N_AND,
    TPL_N_OR,
    TPL_N_ARITHMETIC, /* left op right */
    TPL_N_CONCAT,     /* first: operands of ~ */
    TPL_N_COMPARE,    /* left, then first: OPERAND nodes */
    TPL_N_OPERAND,    /* op left */
    TPL_N_CONDITION,  /* right if left else third; third may be NULL */
    /* Statements */
    TPL_N_PRINT,        /* first: expressions */
    TPL_N_IF,           /* left: test; first: body; second: what else runs */
    TPL_N_FOR,          /* for left in right if third; first: body; second: else; op: recursive */
    TPL_N_SET,          /* left = right */
    TPL_N_SET_BLOCK,    /* left = right (filters or NULL) of first */
    TPL_N_WITH,         /* second: SET nodes; first: body */
    TPL_N_MACRO,        /* name(second: parameters); first: body */
    TPL_N_PARAMETER,    /* name; left: default or NULL */
    TPL_N_CALL_BLOCK,   /* left: call; second: parameters; first: body */
    TPL_N_FILTER_BLOCK, /* right: filters of first */
    TPL_N_GENERATION,   /* first: what the assistant has said */
    TPL_N_BREAK,
    TPL_N_CONTINUE,
} tpl_node_kind;

/* An operator of one character is that character; these have two, or are words. */
enum { TPL_OP_FLOOR = 256, TPL_OP_POWER, TPL_OP_EQ, TPL_OP_NE, TPL_OP_LE, TPL_OP_GE, TPL_OP_IN, TPL_OP_NOT_IN };

/* What the body of a macro uses: `op` of a MACRO or CALL_BLOCK. */
enum { TPL_USES_VARARGS = 1, TPL_USES_KWARGS = 2, TPL_USES_CALLER = 4 };

typedef struct tpl_filter tpl_filter;
typedef struct tpl_test tpl_test;

typedef struct tpl_node {
    uint8_t kind; /* tpl_node_kind */
    int op;
    size_t at;             /* place in the source */
    struct tpl_node *next; /* in the list that the node is in */
    struct tpl_node *left, *right, *third, *first, *second;
    tpl_text *name;
    union {
        tpl_value value;
        const tpl_filter *filter;
        const tpl_test *test;
    };
} tpl_node;

/* Parses r->source. Returns the first statement; NULL: the template is empty. */
const tpl_node *tg_tpl_parse(tpl_run *r);

#endif
