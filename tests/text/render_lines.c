/* Renders templates for scripts. Each line of standard input is a JSON object: "template", and either "variables" or
 * the arguments of tg_chat_render ("messages", "tools", "documents", "more", "bos", "eos", "prompt", "continue"), and
 * "now". Each line of output is {"text", "spans"} or {"error", "status"}. Parsed templates are not kept. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <tapegrad/context.h>
#include <tapegrad/template.h>

enum { DUMP = JSON_ENCODE_ANY | JSON_COMPACT };

static const char *text_at(const json_t *of, const char *key) { return json_string_value(json_object_get(of, key)); }

/* Returns the JSON text of a member, which the caller frees; NULL if there is none. */
static char *json_at(const json_t *of, const char *key) {
    json_t *v = json_object_get(of, key);
    return v && !json_is_null(v) ? json_dumps(v, DUMP) : NULL;
}

static void render(const json_t *line, const tg_template *t, tg_rendered *out) {
    json_t *now = json_object_get(line, "now");
    int64_t at = json_is_integer(now) ? json_integer_value(now) : TG_AUTO;
    char *variables = json_at(line, "variables"), *messages = json_at(line, "messages"),
         *tools = json_at(line, "tools");
    char *documents = json_at(line, "documents"), *more = json_at(line, "more");
    if (messages)
        tg_chat_render(t, messages,
                       TG_CHAT(.tools = tools, .documents = documents, .variables = more, .bos = text_at(line, "bos"),
                               .eos = text_at(line, "eos"), .now = at,
                               .generation_prompt = json_is_true(json_object_get(line, "prompt")),
                               .continue_last = json_is_true(json_object_get(line, "continue"))),
                       out);
    else
        tg_template_render(t, variables, TG_RENDER(.now = at), out);
    free(variables);
    free(messages);
    free(tools);
    free(documents);
    free(more);
}

static json_t *spans_of(const tg_rendered *r) {
    json_t *list = json_array();
    for (int64_t i = 0; i < r->n_spans; i++)
        json_array_append_new(list, json_pack("[II]", (json_int_t)r->spans[i].begin, (json_int_t)r->spans[i].stop));
    return list;
}

static json_t *answer(tg_ctx *ctx, const json_t *line) {
    tg_rendered r = {0};
    tg_template *t = tg_template_new(ctx, text_at(line, "template"), "template");
    if (t) render(line, t, &r);
    json_t *out =
        tg_ctx_status(ctx) == TG_OK
            ? json_pack("{s:s%, s:o}", "text", r.text, r.n_text, "spans", spans_of(&r))
            : json_pack("{s:s, s:s}", "error", tg_ctx_message(ctx), "status", tg_status_name(tg_ctx_status(ctx)));
    tg_rendered_free(&r);
    tg_template_free(t);
    tg_ctx_clear(ctx);
    return out;
}

int main(void) {
    char *text = NULL;
    size_t room = 0;
    ssize_t n;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    while ((n = getline(&text, &room, stdin)) > 0) {
        json_error_t e;
        json_t *line = json_loadb(text, (size_t)n, JSON_ALLOW_NUL, &e), *out = line ? answer(ctx, line) : NULL;
        char *dump = out ? json_dumps(out, DUMP) : NULL;
        puts(dump ? dump : "{\"error\": \"the line is not a JSON object\", \"status\": \"\"}");
        fflush(stdout);
        free(dump);
        json_decref(out);
        json_decref(line);
    }
    free(text);
    tg_ctx_free(ctx);
    return 0;
}
