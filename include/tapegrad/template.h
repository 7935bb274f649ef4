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
 * `break`, `continue` and {% generation %} are supported. docs/chat.md says what is supported and what differs.
 * Anything else fails with TG_ERR_UNSUPPORTED, and the message names it.
 *
 * A template may come from anywhere. It reads nothing but the values that it gets. Limits bound its size and nesting
 * (TG_ERR_FORMAT), and the steps, calls, memory and output of a render (TG_ERR_DATA). Messages name the template, the
 * line and the column.
 *
 * Templates, messages and texts are UTF-8. Errors are recorded in the context. Free a template before its context. */
#ifndef TAPEGRAD_TEMPLATE_H
#define TAPEGRAD_TEMPLATE_H

#include <tapegrad/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_template tg_template;

/* Parses a template of at most 1 MiB. name names it in messages; NULL: "chat template". Returns NULL on an error:
 * TG_ERR_FORMAT if it is malformed, TG_ERR_UNSUPPORTED if it needs what this library does not have. */
TG_API tg_template *tg_template_new(tg_ctx *ctx, const char *source, const char *name);
TG_API void tg_template_free(tg_template *t); /* t may be NULL */

/* A part of a text: the bytes from begin to stop - 1. */
typedef struct tg_text_span {
    size_t begin, stop;
} tg_text_span;

/* A text that a template has made. The memory is malloc's; tg_rendered_free frees it. */
typedef struct tg_rendered {
    char *text; /* n_text bytes and a 0; the text may contain zeros too */
    size_t n_text;
    /* What the {% generation %} blocks of the template have written, in their order: the text of the assistant, which
     * a model is trained on. */
    tg_text_span *spans;
    int64_t n_spans;
} tg_rendered;

TG_API void tg_rendered_free(tg_rendered *r); /* also empties it; r may be NULL */

/* Options of a render. */
typedef struct tg_render_opts {
    size_t size;
    /* The time that strftime_now tells, in seconds since 1970-01-01 00:00 UTC. It is shown as local time. TG_AUTO, the
     * default, means the present. */
    int64_t now;
} tg_render_opts;

#define TG_RENDER_DEFAULTS .size = sizeof(tg_render_opts), .now = TG_AUTO
#define TG_RENDER(...)     (&(tg_render_opts){TG_RENDER_DEFAULTS, __VA_ARGS__})

/* Renders a template with variables, the text of a JSON object; NULL: there are none. opts may be NULL. The caller
 * frees *out with tg_rendered_free. On an error *out is empty: TG_ERR_FORMAT if the JSON is malformed, TG_ERR_DATA if
 * the template fails or calls raise_exception. */
TG_API tg_status tg_template_render(const tg_template *t, const char *variables, const tg_render_opts *opts,
                                    tg_rendered *out);

/* Options of the render of a conversation. The JSON texts tools, documents and variables are NULL by default, which
 * leaves them out. */
typedef struct tg_chat_opts {
    size_t size;
    bool generation_prompt; /* the text ends with the beginning of an answer; false by default */
    /* The text ends within the last message, so that the model goes on with it. The message must have its content as a
     * string, or as a list with a part that has a "text" (TG_ERR_DATA). false by default. Not with generation_prompt
     * (TG_ERR_ARGUMENT). */
    bool continue_last;
    const char *tools;     /* a JSON array: functions that the model may call, as JSON schemas */
    const char *documents; /* a JSON array: documents with title and text */
    const char *variables; /* a JSON object: further variables, such as {"enable_thinking": false} */
    const char *bos, *eos; /* bos_token and eos_token; NULL, the default: undefined */
    int64_t now;           /* as in tg_render_opts */
} tg_chat_opts;

#define TG_CHAT_DEFAULTS .size = sizeof(tg_chat_opts), .now = TG_AUTO
#define TG_CHAT(...)     (&(tg_chat_opts){TG_CHAT_DEFAULTS, __VA_ARGS__})

/* Renders a conversation: messages is the text of a JSON array of objects, each with "role" and mostly "content". The
 * template gets the variables that transformers' apply_chat_template gives: messages, tools, documents,
 * add_generation_prompt, bos_token, eos_token and opts.variables. As there, the reasoning of a message has both names
 * "reasoning_content" and "thinking" if it has one of them or "reasoning". opts may be NULL. Otherwise like
 * tg_template_render. */
TG_API tg_status tg_chat_render(const tg_template *t, const char *messages, const tg_chat_opts *opts, tg_rendered *out);

#ifdef __cplusplus
}
#endif

#endif
