/* Conversations as text, by the tokenizer's chat template. */
#ifndef TAPEGRAD_DATA_CHAT_H
#define TAPEGRAD_DATA_CHAT_H

#include "data/jsonl.h"

/* Appends the document of a conversation, an object with "messages" and perhaps "tools", which the template renders.
 * Only the assistant's texts are predicted: what the template writes in {% generation %} or, if it has none, what each
 * message of the assistant adds after the beginning of an answer. Returns false after printing what is wrong. */
bool chat_add(encoder *e, tg_token_writer *to, const json_t *object, jsonl_place at);

#endif
