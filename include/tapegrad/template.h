/* Chat templates: the text that a language model gets for a conversation, by the template that its files come with.
 *
 *     tg_template *t = tg_template_new(ctx, source, "chat_template.jinja");
 *     tg_rendered chat;
 *     tg_chat_render(t, "[{\"role\": \"user\", \"content\": \"Hello!\"}]",
 *                    TG_CHAT(.bos = "<s>", .generation_prompt = true), &chat);
 *     ...                       // chat.text
 *     tg_rendered_free(&chat);
 *     tg_template_free(t);
 *
 * Templates are written in Jinja (jinja.palletsprojects.com, version 3.1), and texts are those that Hugging Face's
 * transformers makes with it: blocks are trimmed (trim_blocks, lstrip_blocks), and raise_exception, strftime_now,
 * `break`, `continue` and {% generation %} are supported. docs/chat.md says what is supported and what differs. A
 * template that uses another part of Jinja fails with TG_ERR_UNSUPPORTED, in tg_template_new or when it is rendered,
 * and the message names what it uses.
 *
 * A template may come from a source that is not trusted. It can read nothing but its variables and the time. Its size
 * and nesting are limited (TG_ERR_FORMAT), and so are the steps, the depth of calls, the memory and the output of a
 * render (TG_ERR_DATA). Messages name the template, the line and the column.
 *
 * Templates, messages and texts are UTF-8 (TG_ERR_FORMAT). Errors are recorded in the context. Free a template before
 * its context. The functions that render return TG_ERR_ARGUMENT if t is NULL. */
#ifndef TAPEGRAD_TEMPLATE_H
#define TAPEGRAD_TEMPLATE_H

#include <tapegrad/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_template tg_template;

/* Parses a template, a source text of at most 1 MiB. name stands for the template in messages; NULL means "chat
 * template". Both strings are copied. Returns NULL on an error. Fails with TG_ERR_FORMAT if the template is malformed,
 * and with TG_ERR_ARGUMENT if source is NULL. */
TG_API tg_template *tg_template_new(tg_ctx *ctx, const char *source, const char *name);
TG_API void tg_template_free(tg_template *t); /* t may be NULL */

/* A part of a text: the bytes from begin to stop - 1. */
typedef struct tg_text_span {
    size_t begin, stop;
} tg_text_span;

/* A text that a template has made. The memory comes from malloc; tg_rendered_free frees it. */
typedef struct tg_rendered {
    char *text; /* n_text bytes and a 0; the text may contain zeros too */
    size_t n_text;
    /* [n_spans]: the parts of the text that the {% generation %} blocks of the template have written, in the order in
     * which the blocks ended. These are the words of the assistant, which a model is trained on. */
    tg_text_span *spans;
    int64_t n_spans;
} tg_rendered;

TG_API void tg_rendered_free(tg_rendered *r); /* also empties it; r may be NULL */

/* Options of a render. */
typedef struct tg_render_opts {
    size_t size;
    /* The time that strftime_now shows, as local time, in seconds since 1970-01-01 00:00 UTC. TG_AUTO, the default,
     * means the time of the call. */
    int64_t now;
} tg_render_opts;

#define TG_RENDER_DEFAULTS .size = sizeof(tg_render_opts), .now = TG_AUTO
#define TG_RENDER(...)     (&(tg_render_opts){TG_RENDER_DEFAULTS, __VA_ARGS__})

/* Renders a template. variables is the text of a JSON object; NULL means that there are no variables. opts may be NULL.
 * *out is overwritten, and what it had before is not freed. The caller frees it with tg_rendered_free. On an error *out
 * is empty. Fails with TG_ERR_FORMAT if variables is not a JSON object, and with TG_ERR_DATA if the template fails or
 * calls raise_exception. */
TG_API tg_status tg_template_render(const tg_template *t, const char *variables, const tg_render_opts *opts,
                                    tg_rendered *out);

/* Options of the render of a conversation. */
typedef struct tg_chat_opts {
    size_t size;
    /* Sets add_generation_prompt, so that templates end the text with the beginning of an answer. false by default. */
    bool generation_prompt;
    /* The text ends within the last message, so that the model goes on with that message. The content of the message
     * must be a string, or a list with a part that has a "text", and the template must write it unchanged or trimmed
     * (TG_ERR_DATA). false by default. Cannot be set together with generation_prompt (TG_ERR_ARGUMENT). */
    bool continue_last;
    const char *tools;     /* a JSON array: functions that the model may call, as JSON schemas; NULL by default */
    const char *documents; /* a JSON array: documents with title and text; NULL by default */
    /* A JSON object: further variables, such as {"enable_thinking": false}. They replace other variables of the same
     * names. NULL, the default, means that there are none. */
    const char *variables;
    const char *bos, *eos; /* bos_token and eos_token; NULL, the default, leaves them undefined */
    int64_t now;           /* as in tg_render_opts */
} tg_chat_opts;

#define TG_CHAT_DEFAULTS .size = sizeof(tg_chat_opts), .now = TG_AUTO
#define TG_CHAT(...)     (&(tg_chat_opts){TG_CHAT_DEFAULTS, __VA_ARGS__})

/* Renders a conversation. messages is the text of a JSON array of objects (TG_ERR_FORMAT). Templates expect a "role" in
 * each of them, and mostly a "content". The template gets the variables that transformers' apply_chat_template gives:
 * messages, tools, documents, add_generation_prompt, bos_token, eos_token and those of tg_chat_opts.variables. If tools
 * or documents is NULL, that variable is none, which Jinja counts as defined. If a message has one of
 * "reasoning_content", "thinking" and "reasoning", the template finds this text under both of the first two names, as
 * in transformers. opts may be NULL. Results and errors are otherwise as for tg_template_render. */
TG_API tg_status tg_chat_render(const tg_template *t, const char *messages, const tg_chat_opts *opts, tg_rendered *out);

#ifdef __cplusplus
}
#endif

#endif
