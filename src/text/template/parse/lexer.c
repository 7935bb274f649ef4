/* Cuts a template into tokens, with the rules for white space that transformers sets: trim_blocks and lstrip_blocks. */
#include "text/template/parse/lexer.h"

#include <stdlib.h>
#include <string.h>

#include "text/template/values/characters.h"
#include "text/template/parse/literals.h"

typedef struct lexer {
    tpl_run *r;
    const char *s;
    size_t at, n;
    tpl_token *tokens;
    int64_t count, capacity;
    char open[TPL_NESTING]; /* the closing brackets that are due */
    int depth;
} lexer;

static tpl_token *add(lexer *l, tpl_token_kind kind, size_t at, size_t n) {
    l->tokens = tg_tpl_grow(l->r, l->tokens, l->count, &l->capacity, sizeof *l->tokens);
    l->tokens[l->count] = (tpl_token){.kind = kind, .at = at, .n = n};
    return &l->tokens[l->count++];
}

static bool starts(const lexer *l, size_t at, const char *with) {
    size_t n = strlen(with);
    return n <= l->n - at && !memcmp(l->s + at, with, n);
}

static size_t find(const lexer *l, size_t from, const char *what) {
    for (; from < l->n; from++)
        if (starts(l, from, what)) return from;
    return l->n;
}

static size_t skip_space(const lexer *l, size_t at) { return at + tg_tpl_skip_space(l->s + at, l->n - at); }

/* ---- Text between tags ---- */

/* Without a sign, a tag other than {{ takes the white space before it, back to the start of its line, if nothing else
 * stands there. Returns the end of the text that is left. */
static size_t strip_line(const lexer *l, size_t begin, size_t end) {
    size_t line = end;
    while (line > begin && l->s[line - 1] != '\n') line--;
    bool at_start = line > begin || begin == 0 || l->s[begin - 1] == '\n';
    return at_start && skip_space(l, line) >= end ? line : end;
}

static void add_data(lexer *l, size_t begin, size_t end) {
    if (end > begin) add(l, TPL_T_DATA, begin, end - begin)->value = tg_tpl_text(l->r, l->s + begin, end - begin);
}

static void add_stripped(lexer *l, size_t begin, size_t end, char sign, bool print) {
    if (sign == '-')
        end = begin + tg_tpl_strip_end(l->s + begin, end - begin);
    else if (sign != '+' && !print)
        end = strip_line(l, begin, end);
    add_data(l, begin, end);
}

static char sign_at(const lexer *l, size_t at) {
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
}

/* If a tag ends at `at`, with `close` and perhaps a sign before it, returns the offset after it and after the white
 * space that it takes; otherwise 0. `trims`: the tag takes a line end after it. */
static size_t close_tag(const lexer *l, size_t at, const char *close, bool trims) {
    char sign = sign_at(l, at);
    if (sign == '+' && !trims) return 0;
    if (!starts(l, at + (sign != 0), close)) return 0;
    at += (sign != 0) + strlen(close);
    if (sign == '-') return skip_space(l, at);
    return trims && !sign && at < l->n && l->s[at] == '\n' ? at + 1 : at;
}

/* ---- Comments and raw blocks ---- */

static void skip_comment(lexer *l, size_t at) {
    size_t end = find(l, l->at, "#}");
    if (end == l->n) {
        l->r->at = at;
        tg_tpl_fail(l->r, TG_ERR_FORMAT, "the end of the comment, #}, is missing");
    }
    if (end > l->at && sign_at(l, end - 1)) end--;
    l->at = close_tag(l, end, "#}", true);
}

/* If a tag {% WORD begins at `at`, returns the offset after WORD and the white space after it; otherwise 0. */
static size_t tag_word(const lexer *l, size_t at, const char *word) {
    if (!starts(l, at, "{%")) return 0;
    at = skip_space(l, at + 2 + (sign_at(l, at + 2) != 0));
    return starts(l, at, word) ? skip_space(l, at + strlen(word)) : 0;
}

static bool begins_raw(const lexer *l, size_t at, size_t *body) {
    size_t after = tag_word(l, at, "raw");
    if (!after) return false;
    bool strips = starts(l, after, "-%}");
    if (!strips && !starts(l, after, "%}")) return false;
    *body = strips ? skip_space(l, after + 3) : after + 2;
    return true;
}

static void read_raw(lexer *l, size_t tag, size_t body) {
    for (size_t at = body; at < l->n; at++) {
        size_t after = tag_word(l, at, "endraw"), end = after ? close_tag(l, after, "%}", true) : 0;
        if (!end) continue;
        add_stripped(l, body, at, sign_at(l, at + 2), false);
        l->at = end;
        return;
    }
    l->r->at = tag;
    tg_tpl_fail(l->r, TG_ERR_FORMAT, "the end of the raw block, {%% endraw %%}, is missing");
}

/* ---- Inside tags ---- */

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static void read_name(lexer *l) {
    size_t begin = l->at;
    while (l->at < l->n && is_word(l->s[l->at])) l->at++;
    add(l, TPL_T_NAME, begin, l->at - begin)->value = tg_tpl_text(l->r, l->s + begin, l->at - begin);
}

static void read_string(lexer *l) {
    size_t begin = l->at++;
    char quote = l->s[begin];
    for (; l->at < l->n && l->s[l->at] != quote; l->at++)
        if (l->s[l->at] == '\\') l->at++;
    l->r->at = begin;
    if (l->at >= l->n) tg_tpl_fail(l->r, TG_ERR_FORMAT, "the string has no end");
    l->at++;
    tpl_value v = tg_tpl_unescape(l->r, l->s + begin + 1, l->at - begin - 2);
    add(l, TPL_T_STRING, begin, l->at - begin)->value = v;
}

static void track_bracket(lexer *l, char c) {
    static const char opens[] = "([{", closes[] = ")]}";
    const char *open = strchr(opens, c);
    if (open) {
        if (l->depth == TPL_NESTING)
            tg_tpl_fail(l->r, TG_ERR_FORMAT, "brackets are nested deeper than %d", TPL_NESTING);
        l->open[l->depth++] = closes[open - opens];
        return;
    }
    if (!strchr(closes, c)) return;
    if (!l->depth) tg_tpl_fail(l->r, TG_ERR_FORMAT, "'%c' closes no bracket", c);
    if (l->open[--l->depth] != c) tg_tpl_fail(l->r, TG_ERR_FORMAT, "found '%c', expected '%c'", c, l->open[l->depth]);
}

static void read_operator(lexer *l) {
    static const struct {
        char text[3];
        int op;
    } two[] = {{"//", TPL_OP_FLOOR}, {"**", TPL_OP_POWER}, {"==", TPL_OP_EQ},
               {"!=", TPL_OP_NE},    {"<=", TPL_OP_LE},    {">=", TPL_OP_GE}};
    l->r->at = l->at;
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++) {
        if (!starts(l, l->at, two[i].text)) continue;
        add(l, TPL_T_OPERATOR, l->at, 2)->op = two[i].op;
        l->at += 2;
        return;
    }
    char c = l->s[l->at];
    if (!c || !strchr("+-/*%~[](){}<>=.:|,;", c)) {
        size_t n;
        tg_char_at(l->s + l->at, &n);
        tg_tpl_fail(l->r, TG_ERR_FORMAT, "unexpected character '%.*s' in a tag", (int)n, l->s + l->at);
    }
    track_bracket(l, c);
    add(l, TPL_T_OPERATOR, l->at++, 1)->op = (unsigned char)c;
}

static void read_number(lexer *l) {
    size_t begin = l->at;
    l->r->at = begin;
    tpl_value v;
    bool after_dot = begin > 0 && l->s[begin - 1] == '.';
    l->at += tg_tpl_number(l->r, l->s + begin, l->n - begin, after_dot, &v);
    add(l, TPL_T_CONSTANT, begin, l->at - begin)->value = v;
}

static void read_one(lexer *l) {
    char c = l->s[l->at];
    if (c >= '0' && c <= '9')
        read_number(l);
    else if (is_word(c))
        read_name(l);
    else if (c == '\'' || c == '"')
        read_string(l);
    else
        read_operator(l);
}

static void read_tag(lexer *l, size_t tag, bool print) {
    add(l, print ? TPL_T_PRINT_BEGIN : TPL_T_BLOCK_BEGIN, tag, l->at - tag);
    for (l->depth = 0;;) {
        size_t end = l->depth ? 0 : close_tag(l, l->at, print ? "}}" : "%}", !print);
        if (end) {
            add(l, print ? TPL_T_PRINT_END : TPL_T_BLOCK_END, l->at, end - l->at);
            l->at = end;
            return;
        }
        l->at = skip_space(l, l->at);
        if (l->at >= l->n) break;
        if (!l->depth && close_tag(l, l->at, print ? "}}" : "%}", !print)) continue;
        read_one(l);
    }
    l->r->at = tag;
    tg_tpl_fail(l->r, TG_ERR_FORMAT, "the end of the tag, %s, is missing", print ? "}}" : "%}");
}

/* ---- The whole ---- */

static size_t next_tag(const lexer *l) {
    for (size_t at = l->at; at + 1 < l->n; at++)
        if (l->s[at] == '{' && strchr("{%#", l->s[at + 1]) && l->s[at + 1]) return at;
    return l->n;
}

static void read_next(lexer *l) {
    size_t begin = l->at, tag = next_tag(l), body;
    if (tag == l->n) {
        add_data(l, begin, l->n);
        l->at = l->n;
        return;
    }
    char sign = sign_at(l, tag + 2);
    bool print = l->s[tag + 1] == '{';
    add_stripped(l, begin, tag, sign, print);
    l->at = tag + 2 + (sign != 0);
    if (begins_raw(l, tag, &body))
        read_raw(l, tag, body);
    else if (l->s[tag + 1] == '#')
        skip_comment(l, tag);
    else
        read_tag(l, tag, print);
}

const tpl_token *tg_tpl_tokens(tpl_run *r) {
    lexer *l = tg_tpl_alloc(r, sizeof *l);
    *l = (lexer){.r = r, .s = r->source, .n = r->bytes};
    while (l->at < l->n) read_next(l);
    add(l, TPL_T_END, l->n, 0);
    return l->tokens;
}
