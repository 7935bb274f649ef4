/* The tokens of a template. */
#ifndef TG_TEXT_TEMPLATE_LEXER_H
#define TG_TEXT_TEMPLATE_LEXER_H

#include "text/template/parse/node.h"

typedef enum tpl_token_kind {
    TPL_T_END,
    TPL_T_DATA, /* text between the tags */
    TPL_T_BLOCK_BEGIN,
    TPL_T_BLOCK_END,
    TPL_T_PRINT_BEGIN,
    TPL_T_PRINT_END,
    TPL_T_NAME,
    TPL_T_CONSTANT, /* a number */
    TPL_T_STRING,
    TPL_T_OPERATOR,
} tpl_token_kind;

typedef struct tpl_token {
    tpl_token_kind kind;
    int op;
    size_t at, n;    /* place and bytes in the source */
    tpl_value value; /* of data, numbers and strings; of a name, its text */
} tpl_token;

/* Returns the tokens of r->source, with TPL_T_END at the end. */
const tpl_token *tg_tpl_tokens(tpl_run *r);

#endif
