/* Renders conversations by a chat template, and finds the parts that the assistant says. */
#include <stdlib.h>
#include <string.h>

#include "common/program.h"
#include "data/chat.h"

/* A conversation that is being added. */
typedef struct chat {
    encoder *encoder;
    tg_token_writer *to;
    const json_t *messages;
    char *tools; /* JSON; NULL: none */
    jsonl_place at;
    tg_rendered whole;
    size_t done; /* bytes of the whole text that have been added */
} chat;

static bool refuse(const chat *c, const char *what) {
    return fail("'%s' line %lld: %s", c->at.path, (long long)c->at.line, what), false;
}

/* Renders the first n messages. prompt: followed by the beginning of an answer. The caller frees *out. */
static bool render(const chat *c, size_t n, bool prompt, tg_rendered *out) {
    json_t *some = json_array();
    for (size_t i = 0; some && i < n; i++) json_array_append(some, json_array_get(c->messages, i));
    char *text = json_text(some, JSON_COMPACT);
    json_decref(some);
    *out = (tg_rendered){0};
    const char *wrong = text ? encoder_render(c->encoder, text, c->tools, prompt, out) : "no memory for the messages";
    free(text);
    return !wrong || refuse(c, wrong);
}

/* Adds the text from c->done to byte `end`. context: it is not predicted. */
static bool add(chat *c, size_t end, bool context) {
    size_t begin = c->done;
    if (end < begin) end = begin;
    c->done = end;
    return encoder_put_markup(c->encoder, c->to, c->whole.text + begin, end - begin, context);
}

/* Adds what the template marks by {% generation %} as predicted, and the text before each as context. */
static bool add_spans(chat *c) {
    for (int64_t i = 0; i < c->whole.n_spans; i++)
        if (!add(c, c->whole.spans[i].begin, true) || !add(c, c->whole.spans[i].stop, false)) return false;
    return true;
}

static bool begins_with(const tg_rendered *whole, const tg_rendered *part) {
    return part->n_text <= whole->n_text && !memcmp(whole->text, part->text, part->n_text);
}

/* Adds message i of the assistant, and the text before it as context. The message's text is what rendering i + 1
 * messages adds to rendering i messages and the beginning of an answer. */
static bool add_answer(chat *c, size_t i) {
    tg_rendered before, after = {0};
    bool good = render(c, i, true, &before) && render(c, i + 1, false, &after);
    if (good && (!begins_with(&c->whole, &before) || !begins_with(&c->whole, &after)))
        good = refuse(c, "the chat template has no {% generation %}, and writes earlier messages in another way when "
                         "others follow, so the assistant's text cannot be found");
    good = good && add(c, before.n_text, true) && add(c, after.n_text, false);
    tg_rendered_free(&before);
    tg_rendered_free(&after);
    return good;
}

static bool is_answer(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && !strcmp(role, "assistant");
}

static bool add_answers(chat *c) {
    for (size_t i = 0; i < json_array_size(c->messages); i++)
        if (is_answer(json_array_get(c->messages, i)) && !add_answer(c, i)) return false;
    return true;
}

static bool add_all(chat *c) {
    if (!render(c, json_array_size(c->messages), false, &c->whole)) return false;
    bool good = c->whole.n_spans ? add_spans(c) : add_answers(c);
    return good && add(c, c->whole.n_text, true) && encoder_end_markup(c->encoder, c->to);
}

bool chat_add(encoder *e, tg_token_writer *to, const json_t *object, jsonl_place at) {
    chat c = {.encoder = e, .to = to, .messages = json_object_get(object, "messages"), .at = at};
    const json_t *tools = json_object_get(object, "tools");
    bool has_tools = tools && !json_is_null(tools);
    if (!json_is_array(c.messages)) return refuse(&c, "\"messages\" is not an array");
    if (has_tools && !json_is_array(tools)) return refuse(&c, "\"tools\" is not an array");
    if (has_tools && !(c.tools = json_text(tools, JSON_COMPACT))) return refuse(&c, "no memory for the tools");
    bool good = add_all(&c);
    tg_rendered_free(&c.whole);
    free(c.tools);
    return good;
}
