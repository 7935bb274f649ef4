/* Examples in JSONL: an object on each line. */
#ifndef TAPEGRAD_DATA_JSONL_H
#define TAPEGRAD_DATA_JSONL_H

#include <jansson.h>

#include "data/encode.h"

/* Where an example comes from, for messages. */
typedef struct jsonl_place {
    const char *path;
    int64_t line; /* from 1 */
} jsonl_place;

/* Appends the document of one line to the dataset:
 * - {"text": ...} is predicted as a whole;
 * - {"prompt": ..., "completion": ...}: the prompt is context, the completion is predicted;
 * - {"messages": [...]}: a conversation (data/chat.h).
 * "messages" comes before "text", and "text" before "prompt", in an object that has several. Other keys are
 * ignored. A blank line and an empty "text" are left out. Returns false after printing what is wrong. */
bool jsonl_add(encoder *e, tg_token_writer *to, const char *line, size_t n, jsonl_place at);

#endif
