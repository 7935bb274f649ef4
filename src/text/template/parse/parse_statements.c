/* Parses statements: the blocks between {% and %}, and what is printed. */
#include <stdio.h>
#include <string.h>

#include "base/runtime.h"
#include "text/template/parse/parser.h"

static tpl_node *body(tpl_parser *p, const char *const *ends);

static void end_block(tpl_parser *p) {
    if (p->t->kind != TPL_T_BLOCK_END) tg_tpl_unexpected(p, "the end of the tag, %}");
    p->t++;
}

/* Parses "%}" and the statements up to the tag of one of the words. p->t is then that word. */
static tpl_node *block(tpl_parser *p, const char *const *ends) {
    tg_tpl_skip_op(p, ':');
    end_block(p);
    tg_tpl_down(p);
    tpl_node *n = body(p, ends);
    p->depth--;
    return n;
}

static tpl_node *whole_block(tpl_parser *p, const char *end) {
    tpl_node *n = block(p, (const char *const[]){end, NULL});
    p->t++;
    return n;
}

/* ---- Targets ---- */

static tpl_node *target_name(tpl_parser *p) {
    tpl_node *n = tg_tpl_node(p, TPL_N_NAME, p->t);
    n->name = tg_tpl_expect_name(p, "a name")->value.text;
    return n;
}

/* A name, an attribute of a namespace if that is allowed, or a list in parentheses. */
static tpl_node *target_one(tpl_parser *p, bool attributes);

static tpl_node *target(tpl_parser *p, bool attributes) {
    const tpl_token *t = p->t;
    tpl_node *one = target_one(p, attributes);
    if (!tg_tpl_at_op(p, ',')) return one;
    tpl_nodes items = {0};
    tg_tpl_nodes_add(&items, one);
    while (tg_tpl_skip_op(p, ',')) {
        if (tg_tpl_at_word(p, "in") || tg_tpl_at_op(p, '=') || tg_tpl_at_op(p, ')')) break;
        tg_tpl_nodes_add(&items, target_one(p, attributes));
    }
    tpl_node *n = tg_tpl_node(p, TPL_N_MAKE_TUPLE, t);
    n->first = items.first;
    return n;
}

static tpl_node *target_one(tpl_parser *p, bool attributes) {
    if (tg_tpl_at_op(p, '(')) {
        tg_tpl_down(p);
        p->t++;
        tpl_node *n = target(p, attributes);
        tg_tpl_expect_op(p, ')');
        p->depth--;
        return n;
    }
    tpl_node *n = target_name(p);
    if (!attributes || !tg_tpl_skip_op(p, '.')) return n;
    tpl_node *attribute = tg_tpl_node(p, TPL_N_ATTR, p->t);
    attribute->left = n;
    attribute->name = tg_tpl_expect_name(p, "a name after '.'")->value.text;
    return attribute;
}

/* ---- Statements ---- */

static tpl_node *set(tpl_parser *p, const tpl_token *at) {
    tpl_node *n = tg_tpl_node(p, TPL_N_SET, at);
    n->left = target(p, true);
    if (tg_tpl_skip_op(p, '=')) {
        n->right = tg_tpl_tuple(p, true);
        return n;
    }
    n->kind = TPL_N_SET_BLOCK;
    n->right = tg_tpl_filters(p, NULL);
    n->first = whole_block(p, "endset");
    return n;
}

static tpl_node *conditional(tpl_parser *p, const tpl_token *at) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    tg_tpl_down(p);
    tpl_node *n = tg_tpl_node(p, TPL_N_IF, at);
    n->left = tg_tpl_tuple(p, false);
    n->first = block(p, ends);
    const tpl_token *t = p->t++;
    if (tg_tpl_is(t->value.text, "elif"))
        n->second = conditional(p, t);
    else if (tg_tpl_is(t->value.text, "else"))
        n->second = whole_block(p, "endif");
    p->depth--;
    return n;
}

static tpl_node *loop(tpl_parser *p, const tpl_token *at) {
    static const char *const ends[] = {"endfor", "else", NULL};
    tpl_node *n = tg_tpl_node(p, TPL_N_FOR, at);
    n->left = target(p, false);
    if (n->left->kind == TPL_N_NAME && tg_tpl_is(n->left->name, "loop")) {
        p->t--;
        tg_tpl_unexpected(p, "another name than 'loop'");
    }
    if (!tg_tpl_skip_word(p, "in")) tg_tpl_unexpected(p, "'in'");
    n->right = tg_tpl_tuple(p, false);
    if (tg_tpl_skip_word(p, "if")) n->third = tg_tpl_expression(p);
    n->op = tg_tpl_skip_word(p, "recursive");
    p->loops++;
    n->first = block(p, ends);
    p->loops--;
    if (tg_tpl_is(p->t++->value.text, "else")) n->second = whole_block(p, "endfor");
    return n;
}

static tpl_node *parameters(tpl_parser *p) {
    tpl_nodes list = {0};
    bool defaults = false;
    tg_tpl_expect_op(p, '(');
    while (!tg_tpl_at_op(p, ')')) {
        if (list.first) tg_tpl_expect_op(p, ',');
        tpl_node *n = target_name(p);
        n->kind = TPL_N_PARAMETER;
        if (tg_tpl_skip_op(p, '=')) {
            n->left = tg_tpl_expression(p);
            defaults = true;
        } else if (defaults) {
            tg_tpl_unexpected(p, "a default, as the parameter before has one");
        }
        tg_tpl_nodes_add(&list, n);
    }
    p->t++;
    return list.first;
}

/* Parses the body of a macro, of a call block or of a generation block, and notes in n->op what it uses. Break and
 * continue do not leave it. */
static void macro_body(tpl_parser *p, tpl_node *n, const char *end) {
    int uses = p->uses, loops = p->loops;
    p->uses = p->loops = 0;
    n->first = whole_block(p, end);
    n->op = p->uses;
    p->uses |= uses;
    p->loops = loops;
}

static tpl_node *macro(tpl_parser *p, const tpl_token *at) {
    tpl_node *n = tg_tpl_node(p, TPL_N_MACRO, at);
    n->name = tg_tpl_expect_name(p, "the name of the macro")->value.text;
    n->second = parameters(p);
    macro_body(p, n, "endmacro");
    return n;
}

static tpl_node *call_block(tpl_parser *p, const tpl_token *at) {
    tpl_node *n = tg_tpl_node(p, TPL_N_CALL_BLOCK, at);
    if (tg_tpl_at_op(p, '(')) n->second = parameters(p);
    const tpl_token *t = p->t;
    n->left = tg_tpl_expression(p);
    if (n->left->kind != TPL_N_CALL) {
        p->t = t;
        tg_tpl_unexpected(p, "a call");
    }
    macro_body(p, n, "endcall");
    return n;
}

static tpl_node *with(tpl_parser *p, const tpl_token *at) {
    tpl_node *n = tg_tpl_node(p, TPL_N_WITH, at);
    tpl_nodes list = {0};
    while (p->t->kind != TPL_T_BLOCK_END) {
        if (list.first) tg_tpl_expect_op(p, ',');
        tpl_node *one = tg_tpl_node(p, TPL_N_SET, p->t);
        one->left = target_one(p, false);
        tg_tpl_expect_op(p, '=');
        one->right = tg_tpl_expression(p);
        tg_tpl_nodes_add(&list, one);
    }
    n->second = list.first;
    n->first = whole_block(p, "endwith");
    return n;
}

static tpl_node *filter_block(tpl_parser *p, const tpl_token *at) {
    tpl_node *n = tg_tpl_node(p, TPL_N_FILTER_BLOCK, at);
    n->right = tg_tpl_filters(p, tg_tpl_filter(p, NULL));
    n->first = whole_block(p, "endfilter");
    return n;
}

static tpl_node *generation(tpl_parser *p, const tpl_token *at) {
    tpl_node *n = tg_tpl_node(p, TPL_N_GENERATION, at);
    macro_body(p, n, "endgeneration");
    return n;
}

static tpl_node *print(tpl_parser *p, const tpl_token *at) {
    tpl_node *n = tg_tpl_node(p, TPL_N_PRINT, at);
    tpl_nodes list = {0};
    while (p->t->kind != TPL_T_BLOCK_END) {
        if (list.first) tg_tpl_expect_op(p, ',');
        tg_tpl_nodes_add(&list, tg_tpl_expression(p));
    }
    n->first = list.first;
    return n;
}

static tpl_node *leave_loop(tpl_parser *p, const tpl_token *at) {
    if (!p->loops) {
        p->t = at;
        tg_tpl_unexpected(p, "it in a loop");
    }
    return tg_tpl_node(p, tg_tpl_is(at->value.text, "break") ? TPL_N_BREAK : TPL_N_CONTINUE, at);
}

static const struct {
    const char *word;
    tpl_node *(*parse)(tpl_parser *p, const tpl_token *at);
} statements[] = {
    {"set", set},
    {"if", conditional},
    {"for", loop},
    {"macro", macro},
    {"call", call_block},
    {"with", with},
    {"filter", filter_block},
    {"generation", generation},
    {"print", print},
    {"break", leave_loop},
    {"continue", leave_loop},
};

static void refuse_statement(tpl_parser *p, const char *const *ends) {
    static const char *const known[] = {"include", "import", "from", "extends", "block", "autoescape", "do", "trans"};
    const tpl_text *word = p->t->value.text;
    p->r->at = p->t->at;
    for (int i = 0; i < TG_LEN(known); i++)
        if (tg_tpl_is(word, known[i]))
            tg_tpl_fail(p->r, TG_ERR_UNSUPPORTED, "the tag '%s' is not supported in chat templates", known[i]);
    tg_tpl_fail(p->r, TG_ERR_FORMAT, "unknown tag '%.*s'%s%s%s", word->n < 40 ? (int)word->n : 40, word->bytes,
                ends ? "; expected '" : "", ends ? ends[0] : "", ends ? "', or a tag that begins a block" : "");
}

static tpl_node *statement(tpl_parser *p, const char *const *ends) {
    if (p->t->kind != TPL_T_NAME) tg_tpl_unexpected(p, "the name of a tag");
    for (int i = 0; i < TG_LEN(statements); i++) {
        if (!tg_tpl_at_word(p, statements[i].word)) continue;
        const tpl_token *at = p->t++;
        tpl_node *n = statements[i].parse(p, at);
        end_block(p);
        return n;
    }
    refuse_statement(p, ends);
    return NULL;
}

static tpl_node *output(tpl_parser *p) {
    tpl_node *n = tg_tpl_node(p, TPL_N_PRINT, p->t++);
    n->first = tg_tpl_tuple(p, true);
    if (p->t->kind != TPL_T_PRINT_END) tg_tpl_unexpected(p, "the end of the tag, }}");
    p->t++;
    return n;
}

static tpl_node *data(tpl_parser *p) {
    tpl_node *n = tg_tpl_node(p, TPL_N_CONST, p->t);
    n->value = p->t++->value;
    return n;
}

static bool at_end_tag(tpl_parser *p, const char *const *ends) {
    for (; ends && *ends; ends++)
        if (tg_tpl_at_word(p, *ends)) return true;
    return false;
}

static tpl_node *body(tpl_parser *p, const char *const *ends) {
    tpl_nodes list = {0};
    for (;;) {
        if (p->t->kind == TPL_T_END) {
            char expected[64];
            snprintf(expected, sizeof expected, "{%% %s %%}", ends ? ends[0] : "");
            if (ends) tg_tpl_unexpected(p, expected);
            return list.first;
        }
        if (p->t->kind == TPL_T_DATA) {
            tg_tpl_nodes_add(&list, data(p));
        } else if (p->t->kind == TPL_T_PRINT_BEGIN) {
            tg_tpl_nodes_add(&list, output(p));
        } else {
            p->t++;
            if (at_end_tag(p, ends)) return list.first;
            tg_tpl_nodes_add(&list, statement(p, ends));
        }
    }
}

const tpl_node *tg_tpl_parse(tpl_run *r) {
    tpl_parser p = {.r = r, .t = tg_tpl_tokens(r)};
    return body(&p, NULL);
}
