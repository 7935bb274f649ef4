/* The prompts of tapegrad generate: from the command line, from a file, or from standard input. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "generate/generate.h"

/* ---- Lists ---- */

/* Returns a new prompt at the end of the list; NULL after printing that there is no memory. */
static given_prompt *add_prompt(given_prompts *p) {
    if (p->n == p->capacity) {
        int64_t capacity = p->capacity ? 2 * p->capacity : 16;
        given_prompt *at = realloc(p->at, (size_t)capacity * sizeof *at);
        if (!at) return fail("no memory for the prompts"), NULL;
        p->at = at;
        p->capacity = capacity;
    }
    p->at[p->n] = (given_prompt){0};
    return &p->at[p->n++];
}

static bool add_text(given_prompts *p, const char *text, size_t n) {
    given_prompt *q = add_prompt(p);
    if (!q) return false;
    q->text = malloc(n + 1);
    if (!q->text) return !fail("no memory for the prompts");
    memcpy(q->text, text, n);
    q->text[n] = 0;
    q->n_text = n;
    return true;
}

static bool add_id(given_prompt *q, int64_t id) {
    if (q->ids.count == q->ids.capacity) {
        int64_t capacity = q->ids.capacity ? 2 * q->ids.capacity : 64;
        int64_t *ids = realloc(q->ids.ids, (size_t)capacity * sizeof *ids);
        if (!ids) return !fail("no memory for the tokens of the prompt");
        q->ids.ids = ids;
        q->ids.capacity = capacity;
    }
    q->ids.ids[q->ids.count++] = id;
    return true;
}

void prompts_free(given_prompts *p) {
    for (int64_t i = 0; i < p->n; i++) {
        free(p->at[i].text);
        tg_ids_free(&p->at[i].ids);
    }
    free(p->at);
    *p = (given_prompts){0};
}

/* ---- The command line ---- */

static int not_an_id(const char *text, int64_t i, int64_t at, int64_t vocab) {
    return usage_error(&generate_command,
                       "--prompt-ids '%s': id %lld, at character %lld, is not a whole number from 0 to %lld", text,
                       (long long)i + 1, (long long)at + 1, (long long)vocab - 1);
}

/* Parses ids that are separated by commas. The vocabulary is not known yet, so a number may still be too large. A part
 * that is no number from 0 on becomes -1, and what follows it is not parsed. */
static int parse_ids(given_prompts *p, const char *text) {
    given_prompt *q = add_prompt(p);
    if (!q) return 1;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        bool good = !errno && end != at && id >= 0 && (!*end || *end == ',');
        if (!add_id(q, good ? id : -1)) return 1;
        if (!good || !*end) return 0;
        at = end;
    }
}

/* Checks the ids of --prompt-ids. */
static int check_given_ids(const char *text, const given_prompt *q, int64_t vocab) {
    const char *at = text;
    for (int64_t i = 0; i < q->ids.count; i++) {
        if (q->ids.ids[i] < 0 || q->ids.ids[i] >= vocab) return not_an_id(text, i, at - text, vocab);
        at = strchr(at, ',');
        at = at ? at + 1 : text;
    }
    return 0;
}

/* ---- Files ---- */

/* Adds the prompt of a JSON object: {"prompt": "text"} or {"ids": [1, 2]}. Other members are ignored. */
static bool add_json(given_prompts *p, const json_t *line, const char *path, int64_t number) {
    const json_t *text = json_object_get(line, "prompt"), *ids = json_object_get(line, "ids");
    if (json_is_string(text) && !ids) return add_text(p, json_string_value(text), json_string_length(text));
    given_prompt *q = json_is_array(ids) && !text ? add_prompt(p) : NULL;
    bool good = q && json_array_size(ids) > 0;
    for (size_t i = 0; good && i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        good = json_is_integer(id) && json_integer_value(id) >= 0 && add_id(q, json_integer_value(id));
    }
    return good || !fail("line %lld of '%s' has no prompt, expected a member \"prompt\" that is a string, or \"ids\", "
                         "an array of ids",
                         (long long)number, path);
}

static bool add_line(given_prompts *p, const char *line, size_t n, bool json, const char *path, int64_t number) {
    json_error_t e;
    if (!n) return true;
    if (!json) return add_text(p, line, n);
    json_t *object = json_loadb(line, n, JSON_REJECT_DUPLICATES, &e);
    bool good = object ? add_json(p, object, path, number)
                       : !fail("line %lld of '%s' is not JSON: %s", (long long)number, path, e.text);
    json_decref(object);
    return good;
}

/* Reads all of standard input; the caller frees it. NULL after printing what is wrong. */
static char *read_input(size_t *n) {
    size_t capacity = 1 << 16;
    char *bytes = malloc(capacity);
    for (*n = 0; bytes;) {
        *n += fread(bytes + *n, 1, capacity - *n, stdin);
        if (*n < capacity) break;
        char *more = realloc(bytes, capacity *= 2);
        if (!more) free(bytes);
        bytes = more;
    }
    if (!bytes) return fail("no memory for the prompts"), NULL;
    if (!ferror(stdin)) return bytes;
    fail("cannot read standard input: %s", strerror(errno));
    free(bytes);
    return NULL;
}

/* Returns whether the lines are JSON: the file's name says so, or the first byte does. */
static bool are_json(const char *path, const char *bytes, size_t n) {
    size_t length = strlen(path);
    return (length > 6 && !strcmp(path + length - 6, ".jsonl")) || (n && bytes[0] == '{');
}

static int read_file(given_prompts *p, const char *path) {
    bool standard = !strcmp(path, "-"), good = true;
    size_t n = 0;
    char *bytes = standard ? read_input(&n) : read_whole(path, &n);
    if (!bytes) return 1;
    size_t mark = text_mark(bytes, n); /* it is no part of a prompt */
    bool json = are_json(path, bytes + mark, n - mark);
    int64_t number = 1;
    for (size_t at = mark; at < n && good; number++) {
        const char *end = memchr(bytes + at, '\n', n - at);
        size_t length = end ? (size_t)(end - bytes) - at : n - at, shown = length;
        if (shown && bytes[at + shown - 1] == '\r') shown--;
        good = add_line(p, bytes + at, shown, json, standard ? "standard input" : path, number);
        at += length + 1;
    }
    free(bytes);
    if (good && !p->n)
        good = !fail("'%s' has no prompts, expected one on each line", standard ? "standard input" : path);
    return good ? 0 : 1;
}

int prompts_read(given_prompts *p, const generate_options *o) {
    if (o->prompt_file) return read_file(p, o->prompt_file);
    if (o->prompt_ids) return parse_ids(p, o->prompt_ids);
    return add_text(p, o->prompt, strlen(o->prompt)) ? 0 : 1;
}

/* ---- The vocabulary ---- */

static int no_tokenizer(const generate_options *o, const model_files *m) {
    return usage_error(&generate_command,
                       "the model in '%s' has a vocabulary of %lld ids, and --prompt gives the 256 bytes: give "
                       "--prompt-ids, or the model's tokenizer by --tokenizer, or put its tokenizer.json into its "
                       "directory",
                       o->model, (long long)m->config.vocab);
}

int prompts_check(const given_prompts *p, const generate_options *o, const model_files *m) {
    if (o->prompt_ids) return check_given_ids(o->prompt_ids, &p->at[0], m->config.vocab);
    for (int64_t i = 0; i < p->n; i++) {
        const given_prompt *q = &p->at[i];
        if (q->text && !model_has_tokenizer(m)) return no_tokenizer(o, m);
        for (int64_t k = 0; k < q->ids.count; k++)
            if (q->ids.ids[k] >= m->config.vocab)
                return fail("prompt %lld has id %lld, expected 0 to %lld", (long long)i + 1, (long long)q->ids.ids[k],
                            (long long)m->config.vocab - 1);
    }
    return 0;
}

bool prompts_encode(given_prompts *p, tg_ctx *ctx, const tg_tokenizer *tokenizer) {
    for (int64_t i = 0; i < p->n; i++) {
        given_prompt *q = &p->at[i];
        if (!q->text || q->ids.count) continue;
        tg_tokenizer_encode(tokenizer, q->text, q->n_text, TG_ENCODE(.special = true), &q->ids);
        if (!check(ctx)) return false;
        if (!q->ids.count) return !fail("prompt %lld has no tokens, expected 1 or more", (long long)i + 1);
    }
    return true;
}

/* ---- Stop strings ---- */

char **stops_parse(const char *text, int64_t *n) {
    json_t *list = text[0] == '[' ? json_loads(text, 0, NULL) : NULL;
    size_t count = list ? json_array_size(list) : 1, bytes = strlen(text) + 1;
    char **stops = malloc(count * sizeof *stops + bytes), *at = (char *)(stops + count);
    bool good = stops && (text[0] != '[' || json_is_array(list)) && count;
    for (size_t i = 0; good && i < count; i++) {
        const char *stop = list ? json_string_value(json_array_get(list, i)) : text;
        if (!(good = stop && stop[0])) break;
        stops[i] = strcpy(at, stop);
        at += strlen(stop) + 1;
    }
    json_decref(list);
    *n = (int64_t)count;
    if (good) return stops;
    free(stops);
    usage_error(&generate_command,
                "--stop is '%s', expected a string, or a JSON array of strings such as [\"a\", \"b\"]", text);
    return NULL;
}
