/* The structs of options of templates. */
#include <tapegrad/template.h>

#include "base/options.h"

static const tg_field render_fields[] = {
    TG_FIELD(tg_render_opts, now, INT64,
             "The time that strftime_now tells, in seconds since 1970; TG_AUTO: the present."),
};
const tg_struct tg_render_opts_struct =
    TG_STRUCT(tg_render_opts, RENDER, render_fields, "Options of tg_template_render.");

static const tg_field chat_fields[] = {
    TG_FIELD(tg_chat_opts, generation_prompt, BOOL, "The text ends with the beginning of an answer."),
    TG_FIELD(tg_chat_opts, continue_last, BOOL, "The text ends within the last message."),
    TG_FIELD(tg_chat_opts, tools, TEXT, "JSON array: functions that the model may call."),
    TG_FIELD(tg_chat_opts, documents, TEXT, "JSON array: documents with title and text."),
    TG_FIELD(tg_chat_opts, variables, TEXT, "JSON object: further variables of the template."),
    TG_FIELD(tg_chat_opts, bos, TEXT, "The token that begins a text."),
    TG_FIELD(tg_chat_opts, eos, TEXT, "The token that ends a text."),
    TG_FIELD(tg_chat_opts, now, INT64,
             "The time that strftime_now tells, in seconds since 1970; TG_AUTO: the present."),
};
const tg_struct tg_chat_opts_struct = TG_STRUCT(tg_chat_opts, CHAT, chat_fields, "Options of tg_chat_render.");
