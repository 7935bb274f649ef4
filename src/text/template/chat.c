/* Conversations: the variables of a template, as transformers' apply_chat_template sets them, and texts that end within
 * the last message. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/text.h"
#include "core/context.h"
#include "text/template/values/characters.h"
#include "text/template/template.h"

/* What stands after the text that the model goes on with; the text is cut before it. transformers uses the same. */
static const char marker[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* ---- Messages ---- */

/* Gives the reasoning of a message the names that templates read. As in transformers, "thinking" becomes the first key
 * of the message, with the value that it has if it is there, and "reasoning_content" keeps its place or becomes the
 * last key. Returns false if there is no memory.
 */
static bool name_reasoning(json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *reasoning = NULL;
    for (int i = 0; i < TG_LEN(names) && !reasoning; i++) {
        reasoning = json_object_get(message, names[i]);
        if (json_is_null(reasoning)) reasoning = NULL;
    }
    if (!reasoning) return true;
    json_t *named = json_object();
    bool good = named && !json_object_set(named, "thinking", reasoning) && !json_object_update(named, message) &&
                !json_object_set(named, "reasoning_content", reasoning) && !json_object_clear(message) &&
                !json_object_update(message, named);
    json_decref(named);
    return good;
}

static tg_status check_messages(tg_ctx *ctx, const json_t *messages) {
    size_t i;
    json_t *message;
    json_array_foreach(messages, i, message) {
        if (!json_is_object(message))
            return tg_fail(ctx, TG_ERR_FORMAT, "tg_chat_render: message %zu is not a JSON object", i + 1);
        if (!name_reasoning(message)) return tg_fail(ctx, TG_ERR_MEMORY, "tg_chat_render: no memory for the messages");
    }
    return TG_OK;
}

/* ---- Continuing the last message ---- */

/* Returns the object and the key of the text that the model goes on with; NULL: there is none. */
static json_t *last_text(const json_t *messages, const char **key) {
    json_t *message = json_array_get(messages, json_array_size(messages) - 1);
    json_t *content = json_object_get(message, "content");
    *key = "content";
    if (json_is_string(content)) return message;
    *key = "text";
    for (size_t i = json_array_size(content); i-- > 0;)
        if (json_is_string(json_object_get(json_array_get(content, i), "text"))) return json_array_get(content, i);
    return NULL;
}

/* Returns the text with the marker after it; NULL if there is no memory. json_sprintf would end the text at its first
 * zero byte. */
static json_t *with_marker(const json_t *text) {
    size_t n = json_string_length(text), whole = n + sizeof marker - 1;
    char *bytes = malloc(whole);
    if (!bytes) return NULL;
    memcpy(bytes, json_string_value(text), n);
    memcpy(bytes + n, marker, sizeof marker - 1);
    json_t *marked = json_stringn_nocheck(bytes, whole);
    free(bytes);
    return marked;
}

/* Appends the marker to the text of the last message. Sets *text to a new reference to the text without the marker,
 * also if memory ran out after that. */
static tg_status mark_last(tg_ctx *ctx, const json_t *messages, json_t **text) {
    const char *key;
    json_t *of = json_array_size(messages) ? last_text(messages, &key) : NULL;
    if (!of)
        return tg_fail(ctx, TG_ERR_DATA,
                       "tg_chat_render: continue_last is set, but there is no last message with text");
    *text = json_incref(json_object_get(of, key));
    json_t *marked = with_marker(*text);
    if (!marked || json_object_set_new(of, key, marked))
        return tg_fail(ctx, TG_ERR_MEMORY, "tg_chat_render: no memory for the messages");
    return TG_OK;
}

/* Returns the offset in the text of the last occurrence of n bytes; -1 if there is none. */
static int64_t last_of(const tg_rendered *r, const char *what, size_t n) {
    for (size_t at = r->n_text + 1; at-- > 0;)
        if (n <= r->n_text - at && !memcmp(r->text + at, what, n)) return (int64_t)at;
    return -1;
}

static void cut_spans(tg_rendered *r) {
    for (int64_t i = 0; i < r->n_spans; i++) {
        if (r->spans[i].stop > r->n_text) r->spans[i].stop = r->n_text;
        if (r->spans[i].begin > r->n_text) r->spans[i].begin = r->n_text;
    }
}

/* Cuts the text at the marker. If the template has trimmed the message, so is what is left. */
static tg_status cut_at_marker(tg_ctx *ctx, tg_rendered *r, const json_t *message) {
    const char *text = json_string_value(message);
    size_t n = json_string_length(message), whole = sizeof marker - 1, begin = tg_tpl_skip_space(text, n);
    n = tg_tpl_strip_end(text + begin, n - begin);
    int64_t at = last_of(r, marker, whole - 1);
    if (at < 0 || !memmem(r->text, r->n_text, text + begin, n))
        return tg_fail(ctx, TG_ERR_DATA,
                       "tg_chat_render: continue_last is set, but the template changes or leaves out the "
                       "last message");
    bool kept = (size_t)at + whole <= r->n_text && r->text[(size_t)at + whole - 1] == ' ';
    r->n_text = kept ? (size_t)at : tg_tpl_strip_end(r->text, (size_t)at);
    r->text[r->n_text] = 0;
    cut_spans(r);
    return TG_OK;
}

/* ---- Variables ---- */

static tg_status fail_memory(tg_ctx *ctx) {
    return tg_fail(ctx, TG_ERR_MEMORY, "tg_chat_render: no memory for the variables of the template");
}

/* Sets a variable to a text. NULL leaves the variable undefined. */
static tg_status set_text(tg_ctx *ctx, json_t *variables, const char *name, const char *text) {
    size_t n = text ? strlen(text) : 0, wrong = n ? tg_utf8_check(text, n) : 0;
    if (wrong < n) return tg_fail(ctx, TG_ERR_FORMAT, "tg_chat_render: %s is not UTF-8 at offset %zu", name, wrong);
    return text && json_object_set_new(variables, name, json_string(text)) ? fail_memory(ctx) : TG_OK;
}

/* Sets a variable to the array of a text of JSON, or to none. */
static tg_status set_array(tg_ctx *ctx, json_t *variables, const char *name, const char *text) {
    char what[64];
    snprintf(what, sizeof what, "tg_chat_render: %s", name);
    json_t *j = text ? tg_template_json(ctx, text, false, what) : json_null();
    if (!j) return ctx->run.status;
    return json_object_set_new(variables, name, j) ? fail_memory(ctx) : TG_OK;
}

static tg_status add_variables(tg_ctx *ctx, json_t *variables, const char *text) {
    if (!text) return TG_OK;
    json_t *more = tg_template_json(ctx, text, true, "tg_chat_render: variables");
    if (!more) return ctx->run.status;
    int failed = json_object_update(variables, more);
    json_decref(more);
    return failed ? fail_memory(ctx) : TG_OK;
}

static tg_status set_variables(tg_ctx *ctx, json_t *variables, json_t *messages, const tg_chat_opts *o) {
    TG_TRY(set_array(ctx, variables, "tools", o->tools));
    TG_TRY(set_array(ctx, variables, "documents", o->documents));
    TG_TRY(set_text(ctx, variables, "bos_token", o->bos));
    TG_TRY(set_text(ctx, variables, "eos_token", o->eos));
    int failed = json_object_set(variables, "messages", messages) |
                 json_object_set_new(variables, "add_generation_prompt", json_boolean(o->generation_prompt));
    if (failed) return fail_memory(ctx);
    return add_variables(ctx, variables, o->variables);
}

static tg_status render(const tg_template *t, json_t *messages, const tg_chat_opts *o, tg_rendered *out) {
    json_t *variables = json_object(), *text = NULL;
    tg_status s = variables ? TG_OK : fail_memory(t->ctx);
    if (s == TG_OK) s = check_messages(t->ctx, messages);
    if (s == TG_OK && o->continue_last) s = mark_last(t->ctx, messages, &text);
    if (s == TG_OK) s = set_variables(t->ctx, variables, messages, o);
    if (s == TG_OK) s = tg_template_render_json(t, variables, o->now, out);
    if (s == TG_OK && o->continue_last) s = cut_at_marker(t->ctx, out, text);
    if (s != TG_OK) tg_rendered_free(out);
    json_decref(text);
    json_decref(variables);
    return s;
}

tg_status tg_chat_render(const tg_template *t, const char *messages, const tg_chat_opts *opts, tg_rendered *out) {
    tg_chat_opts o;
    if (out) *out = (tg_rendered){0};
    if (!t) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = t->ctx;
    TG_TRY(ctx->run.status);
    if (!messages || !out)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_chat_render: %s is NULL, expected %s", messages ? "out" : "messages",
                       messages ? "where the text goes" : "a JSON array");
    TG_TRY(tg_options(ctx, &o, &tg_chat_opts_struct, opts, "tg_chat_render"));
    if (o.continue_last && o.generation_prompt)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_chat_render: continue_last and generation_prompt are both set, expected "
                       "at most one of them");
    json_t *j = tg_template_json(ctx, messages, false, "tg_chat_render: messages");
    if (!j) return ctx->run.status;
    tg_status s = render(t, j, &o, out);
    json_decref(j);
    return s;
}
