/* Text as tokens: the ids of a text by a tokenizer, or its bytes, and what ends a document. */
#ifndef TAPEGRAD_DATA_ENCODE_H
#define TAPEGRAD_DATA_ENCODE_H

#include <tapegrad/io.h>
#include <tapegrad/template.h>

typedef struct encoder encoder;

/* Makes an encoder. tokenizer: a tokenizer.json, or a directory that has one; NULL: each byte is a token. Returns NULL
 * after printing what is wrong. */
encoder *encoder_new(tg_ctx *ctx, const char *tokenizer);
void encoder_free(encoder *e);
int64_t encoder_vocab(const encoder *e); /* ids are 0 to vocab - 1 */
bool encoder_is_bytes(const encoder *e);
/* Says where the next text comes from, for messages. line: from 1; 0: the text is a whole file. path must live until
 * the next encoder_flush. */
void encoder_at(encoder *e, const char *path, int64_t line);
/* Append a text, and then the end of the document: the token that ends a text or, if the tokenizer has none, a line
 * break, unless the last byte of the text, `last`, is one. context: the tokens are not predicted. A tokenizer's texts
 * wait until there are many, and are then encoded by several threads. Return false after printing what is wrong. */
bool encoder_put(encoder *e, tg_token_writer *to, const char *text, size_t n, bool context);
bool encoder_end(encoder *e, tg_token_writer *to, char last);
/* Ends the document without a token for it if there is none: for files of text. */
bool encoder_end_file(encoder *e, tg_token_writer *to);
/* Renders a conversation by the tokenizer's chat template (tg_chat_render). messages and tools are JSON; tools may be
 * NULL. The caller frees *out. Returns NULL, or what is wrong, which is valid until the next call. */
const char *encoder_render(encoder *e, const char *messages, const char *tools, bool prompt, tg_rendered *out);
/* Appends text that a template has made: special tokens in it count, and no token is added where a document begins. */
bool encoder_put_markup(encoder *e, tg_token_writer *to, const char *text, size_t n, bool context);
/* Ends the document of such text. */
bool encoder_end_markup(encoder *e, tg_token_writer *to);
/* Encodes the texts that wait. */
bool encoder_flush(encoder *e, tg_token_writer *to);

#endif
