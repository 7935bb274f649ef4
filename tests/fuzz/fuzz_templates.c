/* Takes any text as a chat template. It is refused with a reason, or it renders a conversation: to text that is UTF-8,
 * the same each time, with spans that lie in it; or it fails with a reason. */
#define _GNU_SOURCE
#include <tapegrad/template.h>

#include "base/text.h"
#include "files.h"

const char *const fuzz_words[] = {"{{",
                                  "}}",
                                  "{%",
                                  "%}",
                                  "{#",
                                  "#}",
                                  "{%-",
                                  "-%}",
                                  "if",
                                  "elif",
                                  "else",
                                  "endif",
                                  "for",
                                  "in",
                                  "endfor",
                                  "recursive",
                                  "set",
                                  "endset",
                                  "macro",
                                  "endmacro",
                                  "call",
                                  "endcall",
                                  "caller()",
                                  "with",
                                  "endwith",
                                  "filter",
                                  "endfilter",
                                  "raw",
                                  "endraw",
                                  "generation",
                                  "endgeneration",
                                  "break",
                                  "continue",
                                  "namespace(",
                                  "range(",
                                  "dict(",
                                  "messages",
                                  "m.role",
                                  "m['content']",
                                  "loop.index",
                                  "loop.last",
                                  "loop.length",
                                  "loop.previtem",
                                  "loop(",
                                  "tools",
                                  "|tojson",
                                  "|trim",
                                  "|join(",
                                  "|list",
                                  "|length",
                                  "|sort",
                                  "|map(attribute='role')",
                                  "|selectattr(",
                                  "|replace(",
                                  "|indent",
                                  "|int",
                                  "|float",
                                  "|round",
                                  "|batch(2)",
                                  "|unique",
                                  "|dictsort",
                                  "is defined",
                                  "is string",
                                  "not",
                                  "and",
                                  "or",
                                  "~",
                                  "**",
                                  "//",
                                  "[::-1]",
                                  "[1:",
                                  ".split(",
                                  ".strip()",
                                  ".items()",
                                  ".format",
                                  "'%s' % ",
                                  "\\u00e9",
                                  "\\x41",
                                  "none",
                                  "true",
                                  "1e308",
                                  "0x7f",
                                  "9223372036854775807",
                                  "raise_exception(",
                                  "strftime_now(",
                                  "(",
                                  ")",
                                  "[",
                                  "]",
                                  "{",
                                  "}",
                                  ",",
                                  ":",
                                  NULL};

size_t fuzz_seed(int i, uint8_t *out, size_t max) {
    static const char *const seeds[] = {
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m.content|trim }}{{ nothing|trim }}{% endfor %}",
        "{%- set ns = namespace(n=0) -%}\n{%- for m in messages[::-1] if m.content %}\n{% set ns.n = ns.n + loop.index "
        "%}\n"
        "{% else %}x{% endfor %}{{ ns.n }}",
        "{% macro f(s, d=1) %}{{ s|tojson(indent=2) }}{{ f(s.x, d + 1) if d < 3 }}{{ varargs }}{{ kwargs }}{% endmacro "
        "%}"
        "{{ f({'x': {'a': [1, 2.5, none]}}, k=1) }}{% call(v) f(1) %}{% endcall %}",
        "{% set t %}{% filter upper %}abc{{ 'x' ~ 1 }}{% endfilter %}{% endset %}{{ t[1:-1] }}{% raw %}{{ }}{% endraw "
        "%}",
        "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join(', ')|replace('e', '') }}",
        "{% with a = [3, 1, 2]|sort %}{{ a|sum / 2 ** 3 // 0.5 % 3 }}{{ a is iterable and 1 in a }}{% endwith %}",
        "{% for m in messages %}{% generation %}{{ m.content.split('o')|last }}{% endgeneration %}{% break %}{% endfor "
        "%}",
        "{{ '%5.1f|%-4s|%x' % (2.5, 'a', 255) }}{{ 'a b'.title().partition(' ') }}{{ {'b': 1, 'a': 2}|dictsort }}",
    };
    if (i >= (int)COUNT(seeds) || strlen(seeds[i]) > max) return 0;
    memcpy(out, seeds[i], strlen(seeds[i]));
    return strlen(seeds[i]);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    uint64_t state = seed;
    return fuzz_below(&state, 2) ? fuzz_mutate(data, size, max, &state) : LLVMFuzzerMutate(data, size, max);
}

static const tg_status reasons[] = {TG_ERR_FORMAT, TG_ERR_DATA, TG_ERR_UNSUPPORTED, TG_ERR_MEMORY};

static bool render(tg_ctx *ctx, const tg_template *t, tg_rendered *out) {
    static const char messages[] =
        "[{\"role\": \"user\", \"content\": \"Hell\xc3\xb6 \\n\"}, {\"role\": \"assistant\", "
        "\"content\": \"\", \"tool_calls\": [{\"function\": {\"arguments\": {\"a\": 1.5}}}]}]";
    if (tg_chat_render(t, messages, TG_CHAT(.tools = "[{\"name\": \"f\"}]", .bos = "<s>", .now = 0), out) == TG_OK)
        return true;
    fuzz_must(!out->text && !out->spans && !out->n_text, "a failed render has a text");
    fuzz_refused(ctx, reasons, COUNT(reasons));
    return false;
}

static void check_text(const tg_rendered *r) {
    fuzz_must(tg_utf8_check(r->text, r->n_text) == r->n_text, "the text is not UTF-8");
    fuzz_must(!r->text[r->n_text], "no zero follows the text");
    for (int64_t i = 0; i < r->n_spans; i++)
        fuzz_must(r->spans[i].begin <= r->spans[i].stop, "span %lld ends before it begins", (long long)i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char source[FUZZ_MAX + 1];
    tg_rendered one, two;
    if (size > FUZZ_MAX) return 0;
    memcpy(source, data, size);
    source[size] = 0;
    budget memory = {.limit = (size_t)8 << 20};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1, .allocator = BUDGET(&memory)));
    tg_template *t = tg_template_new(ctx, source, NULL);
    if (!t) {
        fuzz_refused(ctx, reasons, COUNT(reasons));
    } else if (render(ctx, t, &one)) {
        check_text(&one);
        fuzz_must(render(ctx, t, &two) && one.n_text == two.n_text && !memcmp(one.text, two.text, one.n_text),
                  "a second render differs");
        tg_rendered_free(&one);
        tg_rendered_free(&two);
    }
    tg_template_free(t);
    tg_ctx_free(ctx);
    fuzz_must(!memory.held, "%zu bytes are left", memory.held);
    return 0;
}
