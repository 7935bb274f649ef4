/* The model of tapegrad chat: opens it, and answers by its template. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/ranks.h"
#include "generate/chat.h"

/* What a model without a template gets. */
static const char plain_template[] =
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ m.content }}\n\n{% else %}{{ m.role|capitalize }}: {{ m.content|trim }}\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}";

/* ---- Opening ---- */

static bool open_tokenizer(chat_model *m) {
    m->tokenizer = model_open_tokenizer(&m->files, m->ctx);
    if (m->tokenizer || model_has_tokenizer(&m->files)) return m->tokenizer != NULL;
    return !fail("'%s' has no tokenizer.json, and its vocabulary of %lld ids is not the 256 bytes; give --tokenizer",
                 m->files.dir, (long long)m->files.config.vocab);
}

/* Returns the text of --template, which the caller frees. NULL after printing what is wrong. */
static char *read_template(const char *path) {
    size_t n;
    char *bytes = read_whole(path, &n), *text = bytes ? malloc(n + 1) : NULL;
    if (text) {
        memcpy(text, bytes, n);
        text[n] = 0;
    }
    free(bytes);
    if (bytes && !text) fail("no memory for the template");
    if (!text || strlen(text) == n) return text;
    fail("'%s' is not a template: it has a zero byte", path);
    free(text);
    return NULL;
}

static bool open_template(chat_model *m) {
    const char *own = tg_tokenizer_chat_template(m->tokenizer), *name = "the model's chat template";
    char *given = m->o->template ? read_template(m->o->template) : NULL;
    if (m->o->template && !given) return false;
    m->plain = !given && !own;
    if (m->plain && (m->o->tools || m->o->variables))
        return !fail("--%s is for a chat template, and '%s' has none; give --template FILE, or leave --%s out",
                     m->o->tools ? "tools" : "variables", m->files.dir, m->o->tools ? "tools" : "variables");
    if (given) name = m->o->template;
    m->template = tg_template_new(m->ctx, given ? given : m->plain ? plain_template : own, name);
    free(given);
    return check(m->ctx);
}

static bool open_tools(chat_model *m) {
    size_t n;
    json_error_t e;
    if (!m->o->tools) return true;
    char *text = read_whole(m->o->tools, &n);
    if (!text) return false;
    json_t *list = json_loadb(text, n, 0, &e);
    free(text);
    bool is_array = json_is_array(list);
    m->tools = is_array ? json_text(list, JSON_COMPACT) : NULL;
    json_decref(list);
    if (m->tools) return true;
    return fail(is_array ? "no memory for the tools of '%s'" : "'%s' is not a JSON array of tools", m->o->tools), false;
}

static tg_status render(chat_model *m, const char *messages, bool prompt, tg_rendered *out) {
    int64_t first = -1;
    tg_tokenizer_ends(m->tokenizer, &first, 1);
    return tg_chat_render(m->template, messages,
                          TG_CHAT(.generation_prompt = prompt, .tools = m->tools, .variables = m->o->variables,
                                  .bos = tg_tokenizer_token(m->tokenizer, tg_tokenizer_bos(m->tokenizer)),
                                  .eos = tg_tokenizer_token(m->tokenizer, first)),
                          out);
}

/* The template writes special tokens itself. The plain one leaves them to the tokenizer. */
static bool encode(chat_model *m, const char *text, size_t n, tg_ids *out) {
    return tg_tokenizer_encode(m->tokenizer, text, n, TG_ENCODE(.special = m->plain), out) == TG_OK;
}

/* Appends the special token that the template writes after an answer, if there is one: a model was trained to end its
 * answers with it, also where no file calls it an end. An error of the template is ignored. */
static void add_end_of_answer(chat_model *m) {
    static const char word[] = "answer", messages[] = "[{\"role\": \"user\", \"content\": \"question\"}, "
                                                      "{\"role\": \"assistant\", \"content\": \"answer\"}]";
    tg_rendered r = {0};
    tg_ids ids = {0};
    if (m->plain) return;
    if (render(m, messages, false, &r) == TG_OK) {
        const char *at = strstr(r.text, word);
        for (const char *next; at && (next = strstr(at + 1, word));) at = next;
        const char *rest = at ? at + strlen(word) : NULL;
        if (rest && encode(m, rest, r.n_text - (size_t)(rest - r.text), &ids) && ids.count &&
            tg_tokenizer_is_special(m->tokenizer, ids.ids[0]) && m->n_ends < (int)(sizeof m->ends / sizeof m->ends[0]))
            m->ends[m->n_ends++] = ids.ids[0];
    }
    tg_ctx_clear(m->ctx);
    tg_ids_free(&ids);
    tg_rendered_free(&r);
}

static void find_ends(chat_model *m) {
    int most = (int)(sizeof m->ends / sizeof m->ends[0]), n = tg_tokenizer_ends(m->tokenizer, m->ends, most);
    m->n_ends = n < most ? n : most;
    add_end_of_answer(m);
}

bool chat_open(chat_model *m, tg_ctx *ctx) {
    m->ctx = ctx;
    if (!open_tokenizer(m) || !open_template(m) || !open_tools(m)) return false;
    m->lm = load_on_ranks(ctx, NULL, &m->files.config, m->files.dir, true);
    model_adapt(&m->files, m->lm);
    if (!check(ctx)) return false;
    m->generator = tg_generator_new(m->lm, NULL);
    if (!check(ctx)) return false;
    find_ends(m);
    return true;
}

void chat_close(chat_model *m) {
    tg_generator_free(m->generator);
    tg_template_free(m->template);
    tg_tokenizer_free(m->tokenizer);
    tg_module_free(m->lm);
    free(m->tools);
}

/* ---- The prompt ---- */

/* Makes the ids of the conversation. false after an error, which is in the context or printed. */
static bool encode_history(chat_model *m, const chat_history *h, tg_ids *ids) {
    tg_rendered r = {0};
    char *messages = history_text(h);
    tg_ids_free(ids);
    bool good = messages && render(m, messages, true, &r) == TG_OK && encode(m, r.text, r.n_text, ids);
    free(messages);
    tg_rendered_free(&r);
    return good;
}

/* Returns how many positions are kept for the answer: as many as it may have tokens, but at most half of the context,
 * and at least one. */
static int64_t positions_for_answer(const chat_model *m) {
    int64_t half = m->files.config.positions / 2;
    return m->o->tokens < half ? m->o->tokens : half > 0 ? half : 1;
}

/* Makes the ids of as many of the newest turns as fit. */
static bool fit_history(chat_model *m, chat_history *h, tg_ids *ids) {
    int64_t most = m->files.config.positions - positions_for_answer(m);
    size_t dropped = 0, n;
    for (;;) {
        if (!encode_history(m, h, ids)) return false;
        if (ids->count <= most) break;
        if (!(n = history_leave_out(h)))
            return !fail(
                "the message has %lld tokens with all that the template adds, expected at most %lld: the context "
                "has %lld, and an answer gets %lld of them (--tokens)",
                (long long)ids->count, (long long)most, (long long)m->files.config.positions,
                (long long)positions_for_answer(m));
        dropped += n;
    }
    if (dropped)
        warn("the context of %lld tokens is full: the model no longer gets the oldest %zu messages",
             (long long)m->files.config.positions, dropped);
    if (!ids->count) return !fail("the conversation has no tokens");
    return true;
}

/* ---- The answer ---- */

typedef struct answer {
    char *text; /* n bytes, as they came */
    size_t n, capacity;
    bool skip; /* nothing was printed yet, and white space at the beginning is not */
    bool interactive, failed;
} answer;

static void keep(answer *a, const char *text, size_t n) {
    if (a->n + n > a->capacity) {
        size_t now = 2 * (a->n + n);
        char *p = realloc(a->text, now);
        if (!p) {
            a->failed = true;
            return;
        }
        a->text = p;
        a->capacity = now;
    }
    memcpy(a->text + a->n, text, n);
    a->n += n;
}

/* Returns whether a character controls the terminal. Those from U+0080 to U+009F, of two bytes, do too. */
static bool is_control(const char *text, size_t n) {
    unsigned char c = (unsigned char)text[0], next = n > 1 ? (unsigned char)text[1] : 0;
    return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || (c == 0xc2 && next >= 0x80 && next < 0xa0);
}

/* Prints a part of the answer. On a terminal, control characters, by which a model could change it, are shown as
 * text. */
static void print(answer *a, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (a->skip && isspace(c)) continue;
        a->skip = false;
        if (!a->interactive || !is_control(text + i, n - i))
            putchar(c);
        else
            printf("\\x%02x", c == 0xc2 ? (unsigned char)text[++i] : c);
    }
    fflush(stdout);
}

static tg_generate_next take_token(void *state, const tg_token *token) {
    answer *a = state;
    if (token->n_text) {
        keep(a, token->text, token->n_text);
        print(a, token->text, token->n_text);
    }
    return a->failed || chat_was_interrupted() ? TG_GENERATE_END : TG_GENERATE_CONTINUE;
}

static void say_end(const chat_model *m, const tg_generated *g) {
    if (g->finish == TG_FINISH_LENGTH)
        warn("the answer ended after %lld tokens (--tokens)", (long long)g->count);
    else if (g->finish == TG_FINISH_POSITIONS)
        warn("the answer ended because the context of %lld tokens is full", (long long)m->files.config.positions);
    else if (g->finish == TG_FINISH_CALLER && chat_is_interactive())
        say("(stopped)\n");
}

static bool generate(chat_model *m, const tg_ids *ids, answer *a) {
    static const char *const stop[] = {"\nUser:", "\nSystem:"};
    const chat_options *o = m->o;
    tg_prompt prompt = {ids->ids, ids->count};
    set_line_open(true);
    tg_status s = tg_generator_run(
        m->generator, &prompt, 1,
        TG_GENERATE(.tokens = o->tokens, .stop_ids = m->ends, .n_stop_ids = m->n_ends, .stop = m->plain ? stop : NULL,
                    .n_stop = m->plain ? 2 : 0, .tokenizer = m->tokenizer, .on_token = take_token, .state = a,
                    .sampling = TG_SAMPLING(.temperature = o->temperature, .top_k = o->top_k, .top_p = o->top_p,
                                            .min_p = o->min_p, .repetition_penalty = o->repetition_penalty,
                                            .seed = (uint64_t)o->seed + (uint64_t)m->turns++)));
    putchar('\n');
    set_line_open(false);
    if (a->failed) return !fail("no memory for the answer");
    if (s == TG_OK) say_end(m, tg_generator_result(m->generator, 0, 0));
    return s == TG_OK;
}

/* Adds the answer to the history, without white space at its ends: templates put that around a message themselves. */
static bool add_answer(chat_history *h, const answer *a) {
    size_t begin = 0, end = a->n;
    while (begin < end && isspace((unsigned char)a->text[begin])) begin++;
    while (end > begin && isspace((unsigned char)a->text[end - 1])) end--;
    return history_add(h, "assistant", a->n ? a->text + begin : "", end - begin);
}

bool chat_answer(chat_model *m, chat_history *h) {
    size_t first = h->first;
    tg_ids ids = {0};
    answer a = {.interactive = chat_is_interactive(), .skip = true};
    bool good = fit_history(m, h, &ids) && generate(m, &ids, &a) && add_answer(h, &a);
    if (!good) h->first = first; /* the next message may leave room for the turns that this one displaced */
    free(a.text);
    tg_ids_free(&ids);
    return good;
}
