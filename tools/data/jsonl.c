/* Reads the examples of JSONL files. */
#include <string.h>

#include <jansson.h>

#include "common/program.h"
#include "common/text.h"
#include "data/chat.h"
#include "data/jsonl.h"

static bool refuse(jsonl_place at, const char *what) {
    return fail("'%s' line %lld: %s", at.path, (long long)at.line, what), false;
}

/* Returns the string of a key; NULL after printing that it is missing, or not a string. */
static const json_t *string_of(const json_t *object, const char *key, jsonl_place at) {
    const json_t *value = json_object_get(object, key);
    char what[64];
    if (json_is_string(value)) return value;
    snprintf(what, sizeof what, "\"%s\" is %s, expected a string", key, value ? "something else" : "missing");
    return refuse(at, what), NULL;
}

static bool put(encoder *e, tg_token_writer *to, const json_t *text, bool context) {
    return encoder_put(e, to, json_string_value(text), json_string_length(text), context);
}

static bool end(encoder *e, tg_token_writer *to, const json_t *text) {
    size_t n = json_string_length(text);
    return encoder_end(e, to, n ? json_string_value(text)[n - 1] : 0);
}

static bool add_text(encoder *e, tg_token_writer *to, const json_t *object, jsonl_place at) {
    const json_t *text = string_of(object, "text", at);
    if (!text) return false;
    return !json_string_length(text) || (put(e, to, text, false) && end(e, to, text));
}

static bool add_pair(encoder *e, tg_token_writer *to, const json_t *object, jsonl_place at) {
    const json_t *prompt = string_of(object, "prompt", at);
    const json_t *completion = prompt ? string_of(object, "completion", at) : NULL;
    if (!completion) return false;
    return put(e, to, prompt, true) && put(e, to, completion, false) && end(e, to, completion);
}

static bool add_object(encoder *e, tg_token_writer *to, const json_t *object, jsonl_place at) {
    if (!json_is_object(object)) return refuse(at, "expected an object, such as {\"text\": \"...\"}");
    if (json_object_get(object, "messages")) return chat_add(e, to, object, at);
    if (json_object_get(object, "text")) return add_text(e, to, object, at);
    if (json_object_get(object, "prompt") || json_object_get(object, "completion")) return add_pair(e, to, object, at);
    return refuse(at, "the object has neither \"text\", nor \"prompt\" and \"completion\"");
}

bool jsonl_add(encoder *e, tg_token_writer *to, const char *line, size_t n, jsonl_place at) {
    json_error_t error;
    size_t mark = at.line == 1 ? text_mark(line, n) : 0;
    line += mark, n -= mark;
    if (n == strspn(line, " \t\r")) return true;
    encoder_at(e, at.path, at.line);
    json_t *object = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    char what[256];
    if (!object) {
        snprintf(what, sizeof what, "not JSON: %.160s, at character %d", error.text, error.position);
        return refuse(at, what);
    }
    bool good = add_object(e, to, object, at);
    json_decref(object);
    return good;
}
