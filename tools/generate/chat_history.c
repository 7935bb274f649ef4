/* The messages of a conversation. */
#include <stdlib.h>
#include <string.h>

#include "generate/chat.h"

static bool no_memory(void) {
    fail("no memory for the messages of the conversation");
    return false;
}

/* Prints why a message could not become JSON: it is not UTF-8, or there is no memory. Returns false. */
static bool refuse(const char *text, size_t n) {
    json_t *unchecked = json_stringn_nocheck(text, n);
    if (!unchecked) return no_memory();
    json_decref(unchecked);
    fail("the message is not UTF-8; convert it, for example with iconv -t UTF-8");
    return false;
}

static const char *role_of(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static bool is_system(const json_t *message) { return !strcmp(role_of(message), "system"); }

/* Returns the number of messages before the turns: 1 if there is a system prompt, else 0. */
static size_t head(const chat_history *h) { return is_system(json_array_get(h->messages, 0)); }

static json_t *message_new(const char *role, const char *text, size_t n) {
    return json_pack("{s:s, s:s%}", "role", role, "content", text, n);
}

bool history_begin(chat_history *h, const char *system) {
    *h = (chat_history){.messages = json_array()};
    return h->messages ? !system || history_set_system(h, system) : no_memory();
}

void history_end(chat_history *h) {
    json_decref(h->messages);
    h->messages = NULL;
}

void history_reset(chat_history *h) {
    while (json_array_size(h->messages) > head(h)) json_array_remove(h->messages, json_array_size(h->messages) - 1);
    h->first = 0;
}

bool history_add(chat_history *h, const char *role, const char *text, size_t n) {
    return !json_array_append_new(h->messages, message_new(role, text, n)) || refuse(text, n);
}

void history_drop_last(chat_history *h) { json_array_remove(h->messages, json_array_size(h->messages) - 1); }

bool history_set_system(chat_history *h, const char *text) {
    json_t *message = message_new("system", text, strlen(text));
    int failed = head(h) ? json_array_set_new(h->messages, 0, message) : json_array_insert_new(h->messages, 0, message);
    return !failed || refuse(text, strlen(text));
}

const char *history_system(const chat_history *h) {
    return head(h) ? json_string_value(json_object_get(json_array_get(h->messages, 0), "content")) : NULL;
}

size_t history_leave_out(chat_history *h) {
    size_t from = head(h) + h->first, n = json_array_size(h->messages), to = from + 1;
    while (to < n && strcmp(role_of(json_array_get(h->messages, to)), "user") != 0) to++;
    if (to >= n) return 0;
    h->first += to - from;
    return to - from;
}

char *history_text(const chat_history *h) {
    json_t *list = json_array();
    size_t skip = head(h) + h->first;
    bool good = list != NULL;
    for (size_t i = 0; good && i < json_array_size(h->messages); i++)
        if (i < head(h) || i >= skip) good = !json_array_append(list, json_array_get(h->messages, i));
    char *text = good ? json_text(list, JSON_COMPACT) : NULL;
    json_decref(list);
    if (!text) no_memory();
    return text;
}

bool history_save(const chat_history *h, tg_ctx *ctx, const char *path) {
    char *text = json_text(h->messages, JSON_INDENT(2));
    if (!text) return no_memory();
    tg_status s = tg_file_save(ctx, path, text, strlen(text));
    free(text);
    return s == TG_OK;
}

/* Returns the number of the first message that is not an object with a role and a content of text, from 1; 0: all are.
 */
static size_t wrong_message(const json_t *messages) {
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m) {
        const char *role = role_of(m);
        bool known =
            !strcmp(role, "user") || !strcmp(role, "assistant") || !strcmp(role, "tool") || (!i && is_system(m));
        if (!known || !json_is_string(json_object_get(m, "content"))) return i + 1;
    }
    return 0;
}

bool history_load(chat_history *h, const char *path) {
    size_t n;
    json_error_t e;
    char *text = read_whole(path, &n);
    if (!text) return false;
    json_t *messages = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    free(text);
    size_t wrong = json_is_array(messages) ? wrong_message(messages) : 0;
    if (!messages)
        fail("'%s' is not JSON: line %d, column %d: %s", path, e.line, e.column, e.text);
    else if (!json_is_array(messages))
        fail("'%s' is not a JSON array of messages", path);
    else if (wrong)
        fail("'%s': message %zu has no \"content\" of text, or a \"role\" other than user, assistant, tool, and system "
             "at the beginning",
             path, wrong);
    if (!json_is_array(messages) || wrong) {
        json_decref(messages);
        return false;
    }
    json_decref(h->messages);
    *h = (chat_history){.messages = messages};
    return true;
}
