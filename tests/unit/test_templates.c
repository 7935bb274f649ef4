/* Chat templates: texts, spans, errors with their places, and limits. test_templates.py compares with Jinja. */
#include <string.h>

#include <tapegrad/tapegrad.h>
#include <tapegrad/template.h>

#include "check_main.h"

enum { NOON = 43200 };

static tg_ctx *context(void) { return tg_ctx_new(TG_CONFIG(.threads = 1)); }

/* ---- Texts ---- */

typedef struct row {
    const char *source, *variables, *text;
} row;

static void check_row(tg_ctx *ctx, const row *x) {
    tg_rendered r;
    tg_template *t = tg_template_new(ctx, x->source, NULL);
    ck_assert_msg(t != NULL, "%s: %s", x->source, tg_ctx_message(ctx));
    ck_assert_msg(tg_template_render(t, x->variables, TG_RENDER(.now = NOON), &r) == TG_OK, "%s: %s", x->source,
                  tg_ctx_message(ctx));
    ck_assert_msg(r.n_text == strlen(x->text) && !strcmp(r.text, x->text), "%s: found '%s', expected '%s'", x->source,
                  r.text, x->text);
    tg_rendered_free(&r);
    ck_assert(!r.text && !r.n_text);
    tg_template_free(t);
}

static void check_rows(const row *rows, size_t n) {
    tg_ctx *ctx = context();
    for (size_t i = 0; i < n; i++) check_row(ctx, &rows[i]);
    tg_ctx_free(ctx);
}

#define ROWS(...)                                                                                                      \
    static const row rows[] = {__VA_ARGS__};                                                                           \
    check_rows(rows, sizeof rows / sizeof rows[0])

START_TEST(values_are_written_as_python_writes_them) {
    ROWS(
        {"{{ x }}|{{ y }}|{{ z }}|{{ none }}|{{ missing }}", "{\"x\": 1, \"y\": true, \"z\": \"s\"}", "1|True|s|None|"},
        {"{{ [1.0, 0.1, 1e16, 1e-5, -0.0, 1e22] }}", NULL, "[1.0, 0.1, 1e+16, 1e-05, -0.0, 1e+22]"},
        {"{{ ['a', \"it's\", '\\n'] }}{{ (1,) }}{{ {'k': none} }}", NULL, "['a', \"it's\", '\\n'](1,){'k': None}"},
        {"{{ x|tojson }}", "{\"x\": {\"b\": [1, 2.5, \"\\u00e9\\n\"], \"a\": null}}",
         "{\"b\": [1, 2.5, \"\xc3\xa9\\n\"], \"a\": null}"},
        {"{{ {'a': [1, {}]}|tojson(indent=2) }}", NULL, "{\n  \"a\": [\n    1,\n    {}\n  ]\n}"});
}
END_TEST

START_TEST(white_space_is_trimmed_around_blocks) {
    ROWS({"a\n  {% if true %}\n  b\n  {% endif %}\nc\n", NULL, "a\n  b\nc"},
         {"a {%- if true -%} b {%- endif %} c", NULL, "ab c"}, {"  {%+ if true %}x{% endif +%}\ny", NULL, "  x\ny"},
         {"a {{- 1 -}} b", NULL, "a1b"}, {"  {# comment #}\nx", NULL, "x"},
         {"{% raw %}{{ x }}{% endraw %}", NULL, "{{ x }}"}, {"a\r\nb\rc", NULL, "a\nb\nc"});
}
END_TEST

START_TEST(operators_follow_python) {
    ROWS({"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 }}", NULL, "3 -4 2 3.5 8"},
         {"{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ 'b' in 'abc' }} {{ 2 not in [1] }}", NULL, "True True True True"},
         {"{{ 'a' ~ 1 ~ none }} {{ 'ab' * 2 }} {{ [1] + [2] }}", NULL, "a1None abab [1, 2]"},
         {"{{ 'x' if 0 else 'y' }}{{ 'x' if 0 }} {{ 0 or 'o' }} {{ not '' }}", NULL, "y o True"},
         {"{{ 'hello'[1:-1] }} {{ 'hello'[::-1] }} {{ [1,2,3][-1] }} {{ [1,2,3][::2] }}", NULL, "ell olleh 3 [1, 3]"},
         {"{{ range(0, 5, 2) }} {{ range(5, 0) }} {{ range(10)[2:5:2] }} {{ range(10)[::-1] }}", NULL,
          "range(0, 5, 2) range(5, 0) range(2, 5, 2) range(9, -1, -1)"},
         {"{{ range(-9223372036854775807, 9223372036854775807, 4611686018427387904)|list }}", NULL,
          "[-9223372036854775807, -4611686018427387903, 1, 4611686018427387905]"},
         {"{{ 0x_1f }} {{ 0b1_0 }} {{ 00 }} {{ 0_0 }} {{ '0x_1f'|int(0, 16) }} {{ '0x_'|int(7, 16) }}", NULL,
          "31 2 0 0 31 7"},
         {"{{ dict({1e999 - 1e999: 1, 'a': 2}) }}", NULL, "{nan: 1, 'a': 2}"},
         {"{{ '%s=%03d %.2f' % ('a', 7, 1.5) }}", NULL, "a=007 1.50"},
         {"{{ '%a %r' % ('\xc3\xa9\xf0\x9f\x91\x8d', '\xc3\xa9') }}", NULL, "'\\xe9\\U0001f44d' '\xc3\xa9'"},
         {"{{ '%*d|%-*d|%.*f' % (3, 7, 3, 7, -1, 1.5) }}", NULL, "  7|7  |2"});
}
END_TEST

START_TEST(scopes_are_those_of_jinja) {
    ROWS({"{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 9 %}{{ x }}{% endfor %}{{ x }}", NULL, "19191"},
         {"{% set n = namespace(v=0) %}{% for i in [1, 2] %}{% set n.v = n.v + i %}{% endfor %}{{ n.v }}", NULL, "3"},
         {"{% if true %}{% set x = 1 %}{% endif %}{{ x }}", NULL, "1"},
         {"{% with a = 1 %}{{ a }}{% endwith %}{{ a }}", NULL, "1"},
         {"{% set y %} t {% endset %}[{{ y }}]", NULL, "[ t ]"},
         {"{% macro m(a, b=a ~ '!') %}{{ a }}{{ b }}{{ varargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, 3) }}", NULL,
          "11!()12(3,)"},
         {"{% macro w() %}<{{ caller('x') }}>{% endmacro %}{% call(v) w() %}{{ v }}{% endcall %}", NULL, "<x>"});
}
END_TEST

START_TEST(loops_know_their_place) {
    ROWS({"{% for i in 'abc' %}{{ loop.index0 }}{{ i }}{{ ',' if not loop.last }}{% endfor %}", NULL, "0a,1b,2c"},
         {"{% for i in [1, 2, 3] if i != 2 %}{{ i }}/{{ loop.length }} {% endfor %}", NULL, "1/2 3/2 "},
         {"{% for i in [] %}x{% else %}none{% endfor %}", NULL, "none"},
         {"{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", NULL, "13"},
         {"{% for i in [1, 2, 3] %}{{ loop.previtem }}-{{ loop.nextitem }} {% endfor %}", NULL, "-2 1-3 2- "},
         {"{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", NULL, "a1"},
         {"{% for i in t recursive %}{{ i.n }}{{ loop(i.c) if i.c }}{% endfor %}",
          "{\"t\": [{\"n\": 1, \"c\": [{\"n\": 2}]}, {\"n\": 3}]}", "123"});
}
END_TEST

START_TEST(filters_and_tests_work_on_messages) {
    static const char messages[] = "{\"m\": [{\"role\": \"user\", \"n\": 2}, {\"role\": \"tool\", \"n\": 1}]}";
    ROWS({"{{ m|selectattr('role', 'equalto', 'user')|list|length }}", messages, "1"},
         {"{{ m|map(attribute='role')|join(',') }} {{ (m|sort(attribute='n'))[0].role }}", messages, "user,tool tool"},
         {"{{ m|map(attribute='x.y', default='-')|join }} {{ m|map(attribute='role.x', default=4)|list }}", messages,
          "-- [4, 4]"},
         {"{{ m[0].x is defined }} {{ m is iterable }} {{ m[0] is mapping }} {{ m[0].role is string }}", messages,
          "False True True True"},
         {"{{ ' a '|trim }}|{{ 'a-b'|replace('-', '+')|upper }}|{{ none|default('d', true) }}", NULL, "a|A+B|d"},
         {"{{ strftime_now('%Y') }}[{{ strftime_now('') }}]", NULL, "1970[]"},
         {"{{ strftime_now('%Y-%j ' * 500) == '1970-001 ' * 500 }}", NULL, "True"},
         {"{{ 42|round }} {{ true|round }} {{ 3.7|round }} {{ 3|round(0, 'ceil') }}", NULL, "42 1 4.0 3.0"},
         {"{{ 1250|round(-2) }} {{ 1350|round(-2) }} {{ (-1250)|round(-2) }}", NULL, "1200 1400 -1200"},
         {"{{ (-0.4)|round(0, 'ceil') }} {{ (-0.4)|round }}", NULL, "0.0 -0.0"},
         {"{{ 15|round(-1) }} {{ 7|round(-30) }}", NULL, "20 0"}, {"{{ 'x' % range(3) }}{{ 'x' % [1] }}", NULL, "xx"},
         {"{{ ['.5', '5.', '5.e1', '1_0.5', ' -2e1 ']|map('float')|list }}", NULL, "[0.5, 5.0, 50.0, 10.5, -20.0]"},
         {"{{ ['.', '._5', '1._5', '.e5', '1.5_', '']|map('float', 7)|list }}", NULL, "[7, 7, 7, 7, 7, 7]"},
         {"{{ [1, 2, 3]|batch(0)|list }} {{ []|batch(0)|list }}", NULL, "[[], [1, 2, 3]] []"},
         {"{{ [1, 2, 3]|batch(2, 9)|list }} {{ [1, 2, 3]|batch(-1)|list }}", NULL, "[[1, 2], [3, 9]] [[1, 2, 3]]"},
         {"{{ {}[[]] is defined }} {{ {}[([],)] is defined }} {{ {(1, (2,)): 3}[(1, (2,))] }}", NULL, "False False 3"},
         {"{{ 1250.0|round(-2) }} {{ 1234|round(-2, 'floor') }}", NULL, "1200.0 1200.0"},
         {"{{ '\xc3\x84\xc3\x9f'|lower }} {{ '\xc3\xa4\xc3\x9f'|upper }} {{ '\xe4\xb8\x96'|length }}", NULL,
          "\xc3\xa4\xc3\x9f \xc3\x84SS 1"});
}
END_TEST

/* ---- Errors ---- */

static void check_error(const char *source, const char *variables, tg_status status, const char *says) {
    tg_ctx *ctx = context();
    tg_rendered r;
    tg_template *t = tg_template_new(ctx, source, "t");
    if (t) {
        ck_assert_int_eq(tg_template_render(t, variables, NULL, &r), status);
        ck_assert(!r.text);
    }
    ck_assert_msg(tg_ctx_status(ctx) == status && strstr(tg_ctx_message(ctx), says),
                  "%.100s: found '%s', expected '%s'", source, tg_ctx_message(ctx), says);
    tg_template_free(t);
    tg_ctx_free(ctx);
}

START_TEST(errors_name_line_and_column) {
    check_error("a\n {{ x + }}", NULL, TG_ERR_FORMAT, "t, line 2, column 9: found '}}', expected an expression");
    check_error("{% if x %}", NULL, TG_ERR_FORMAT, "line 1, column 11: the template ends, expected {% elif %}");
    check_error("\xc3\xa9{{ 'a", NULL, TG_ERR_FORMAT, "line 1, column 5: the string has no end");
    check_error("{% frob %}", NULL, TG_ERR_FORMAT, "column 4: unknown tag 'frob'");
    check_error("{{ 1|frob }}", NULL, TG_ERR_FORMAT, "there is no filter 'frob'");
    check_error("{{ 1 is frob }}", NULL, TG_ERR_FORMAT, "there is no test 'frob'");
    check_error("{% include 'x' %}", NULL, TG_ERR_UNSUPPORTED, "the tag 'include' is not supported");
    check_error("{{ 1|urlize }}", NULL, TG_ERR_UNSUPPORTED, "the filter 'urlize' is not supported");
    check_error("\n{{ x.y.z }}", "{\"x\": {}}", TG_ERR_DATA,
                "line 2, column 8: a value of type dict has no attribute or element 'y'");
    check_error("{{ x + 1 }}", NULL, TG_ERR_DATA, "column 6: 'x' is undefined");
    check_error("{{ 9223372036854775807|round(-1) }}", NULL, TG_ERR_DATA, "an integer of more than 64 bits");
    check_error("{{ 5.5|round(400, 'ceil') }}", NULL, TG_ERR_DATA, "the precision is too large");
    check_error("{{ 5.5|round(-400, 'floor') }}", NULL, TG_ERR_DATA, "the precision is too large");
    check_error("{{ strftime_now('%999999999d') }}", NULL, TG_ERR_DATA, "the template needs more than");
    check_error("{{ strftime_now('ab\\0') }}", NULL, TG_ERR_DATA, "the format has a zero byte");
    check_error("{{ 'a' + 1 }}", NULL, TG_ERR_DATA, "'+' does not take a str and a int");
    check_error("{{ raise_exception('no ' ~ 1) }}", NULL, TG_ERR_DATA, "refuses the conversation: no 1");
    check_error("{{ [].append(1) }}", NULL, TG_ERR_DATA, "a template may not use 'append'");
    check_error("{{ 9223372036854775807 + 1 }}", NULL, TG_ERR_DATA, "more than 64 bits");
    check_error("{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}", NULL, TG_ERR_DATA, "'f' is given parameter 'a' twice");
    check_error("{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", NULL, TG_ERR_DATA, "'f' has no parameter 'b'");
    check_error("{{ '%.*f' % ('x', 1) }}", NULL, TG_ERR_DATA,
                "the precision of a format is a str, expected an integer");
    check_error("{{ '%.20000f' % 1 }}", NULL, TG_ERR_DATA, "the precision of a format is at most 10000");
    check_error("{{ '%f' % 'x' }}", NULL, TG_ERR_DATA, "is a str, expected a number");
    check_error("{{ 'x'|round }}", NULL, TG_ERR_DATA, "the operand of 'round' is a str, expected a number");
    check_error("x", "[1]", TG_ERR_FORMAT, "found a JSON array, expected an object");
    check_error("x", "{", TG_ERR_FORMAT, "not JSON");
    check_error("\xff", NULL, TG_ERR_FORMAT, "is not UTF-8 at offset 0");
}
END_TEST

START_TEST(templates_without_end_are_refused) {
    static char deep[8192];
    check_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", NULL, TG_ERR_DATA, "nested deeper");
    check_error("{% set r = range(9999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}", NULL, TG_ERR_DATA,
                "more than 50000000 steps");
    check_error("{{ 'aaaaaaaaaaaaaaaa' * 100000000 }}", NULL, TG_ERR_DATA, "more than 64 MiB");
    check_error("{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}", NULL,
                TG_ERR_DATA, "MiB");
    check_error("{{ range(1000000)|list }}", NULL, TG_ERR_DATA, "at most 100000 numbers");
    check_error("{% set n = namespace(t=1) %}"
                "{% for i in range(9999) %}{% set n.t = (n.t,) %}{% endfor %}{{ {n.t: 1} }}",
                NULL, TG_ERR_DATA, "nested deeper");
    check_error("{{ ('a' * 800000).rfind('a' * 400000 ~ 'b') }}", NULL, TG_ERR_DATA, "more than 50000000 steps");
    check_error("{% set a = range(9999)|list %}{% set b = range(9999)|list %}{% for i in a %}{{ a == b }}{% endfor %}",
                NULL, TG_ERR_DATA, "more than 50000000 steps");
    memset(deep, '(', sizeof deep - 1);
    memcpy(deep, "{{", 2);
    check_error(deep, NULL, TG_ERR_FORMAT, "nested deeper than 200");
    for (size_t i = 2; i + 8 < sizeof deep; i += 4) memcpy(deep + i, "not 1}}", 8);
    check_error(deep, NULL, TG_ERR_FORMAT, "nested deeper than 200");
}
END_TEST

/* The steps of a search are those of what it passes over, so that a text of many lines may be long. */
START_TEST(long_texts_are_no_loops) {
    ROWS({"{% set x = 'some words\n' * 50000 %}{{ x|replace('\n', '')|length }} {{ x.count('\n') }} "
          "{{ x.split('\n')|length }} {{ x.rsplit('\n')|length }} {{ x.rfind('some') }}",
          NULL, "500000 50000 50001 50001 549989"});
}
END_TEST

/* ---- Conversations ---- */

static const char turns[] =
    "[{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yes \"}]";
static const char plain[] =
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }};{% else %}"
    "A:{% generation %}{{ m.content|trim }}{% endgeneration %};{% endif %}{% endfor %}"
    "{{ 'A:' if add_generation_prompt }}{{ extra }}{{ tools|length if tools }}";

static void check_chat(const tg_chat_opts *o, const char *text, size_t begin, size_t end) {
    tg_ctx *ctx = context();
    tg_rendered r;
    tg_template *t = tg_template_new(ctx, plain, NULL);
    ck_assert_msg(tg_chat_render(t, turns, o, &r) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert_str_eq(r.text, text);
    ck_assert_int_eq(r.n_spans, 1);
    ck_assert_uint_eq(r.spans[0].begin, begin);
    ck_assert_uint_eq(r.spans[0].stop, end);
    tg_rendered_free(&r);
    tg_template_free(t);
    tg_ctx_free(ctx);
}

START_TEST(chats_get_the_variables_of_transformers) {
    check_chat(NULL, "U:Hi;A:Yes;", 7, 10);
    check_chat(TG_CHAT(.bos = "<s>", .generation_prompt = true), "<s>U:Hi;A:Yes;A:", 10, 13);
    check_chat(TG_CHAT(.variables = "{\"extra\": \"+\"}", .tools = "[{}, {}]"), "U:Hi;A:Yes;+2", 7, 10);
    check_chat(TG_CHAT(.continue_last = true), "U:Hi;A:Yes", 7, 10);
}
END_TEST

START_TEST(a_message_with_a_zero_byte_goes_on_whole) {
    tg_ctx *ctx = context();
    tg_rendered r;
    tg_template *t = tg_template_new(ctx, "{{ messages[0].content }}.", NULL);
    ck_assert_int_eq(tg_chat_render(t, "[{\"content\": \"a\\u0000b\"}]", TG_CHAT(.continue_last = true), &r), TG_OK);
    ck_assert(r.n_text == 3 && !memcmp(r.text, "a\0b", 4));
    tg_rendered_free(&r);
    tg_template_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(names_of_reasoning_have_the_order_of_transformers) {
    tg_ctx *ctx = context();
    tg_rendered r;
    tg_template *t = tg_template_new(ctx, "{% for m in messages %}{{ m|tojson }}{% endfor %}", NULL);
    static const char reasoning[] = "[{\"a\": 1, \"reasoning\": \"r\"}, {\"a\": 1, \"thinking\": \"t\"}]";
    ck_assert_int_eq(tg_chat_render(t, reasoning, NULL, &r), TG_OK);
    ck_assert_str_eq(r.text, "{\"thinking\": \"r\", \"a\": 1, \"reasoning\": \"r\", \"reasoning_content\": \"r\"}"
                             "{\"thinking\": \"t\", \"a\": 1, \"reasoning_content\": \"t\"}");
    tg_rendered_free(&r);
    tg_template_free(t);
    tg_ctx_free(ctx);
}
END_TEST

static void check_chat_error(const char *messages, const tg_chat_opts *o, tg_status status, const char *says) {
    tg_ctx *ctx = context();
    tg_rendered r;
    tg_template *t = tg_template_new(ctx, "{{ messages[0].role }}", NULL);
    ck_assert_int_eq(tg_chat_render(t, messages, o, &r), status);
    ck_assert_msg(strstr(tg_ctx_message(ctx), says), "found '%s', expected '%s'", tg_ctx_message(ctx), says);
    tg_template_free(t);
    tg_ctx_free(ctx);
}

START_TEST(wrong_chats_are_refused) {
    check_chat_error("{}", NULL, TG_ERR_FORMAT, "messages: found a JSON object, expected an array");
    check_chat_error("[1]", NULL, TG_ERR_FORMAT, "message 1 is not a JSON object");
    check_chat_error("[]", TG_CHAT(.continue_last = true), TG_ERR_DATA, "there is no last message");
    check_chat_error(turns, TG_CHAT(.continue_last = true), TG_ERR_DATA, "leaves out the last message");
    check_chat_error(turns, TG_CHAT(.continue_last = true, .generation_prompt = true), TG_ERR_ARGUMENT, "both set");
    check_chat_error(turns, TG_CHAT(.tools = "{}"), TG_ERR_FORMAT, "tools: found a JSON object");
    check_chat_error(turns, TG_CHAT(.bos = "<\xff"), TG_ERR_FORMAT, "bos_token is not UTF-8 at offset 1");
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        values_are_written_as_python_writes_them,
        white_space_is_trimmed_around_blocks,
        operators_follow_python,
        scopes_are_those_of_jinja,
        loops_know_their_place,
        filters_and_tests_work_on_messages,
        errors_name_line_and_column,
        templates_without_end_are_refused,
        long_texts_are_no_loops,
        chats_get_the_variables_of_transformers,
        a_message_with_a_zero_byte_goes_on_whole,
        names_of_reasoning_have_the_order_of_transformers,
        wrong_chats_are_refused,
    };
    return tg_check_main("templates", tests, sizeof tests / sizeof tests[0]);
}
