/* Makes tokens of text, by a tokenizer or of its bytes, and adds the tokens that begin and end documents. Functions
 * that put, end or flush return false after printing what is wrong. */
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
/* encoder_put appends a part of a document. context: its tokens are not predicted. encoder_end ends the document by the
 * token that ends a text. Without a tokenizer, or if it has no such token, it appends a line break, unless `last`, the
 * last byte of the text, is one. A tokenizer's texts wait until there are many, and are then encoded by several
 * threads. */
bool encoder_put(encoder *e, tg_token_writer *to, const char *text, size_t n, bool context);
bool encoder_end(encoder *e, tg_token_writer *to, char last);
/* Ends a document that is a file of text: as encoder_end does, but never appends a line break. */
bool encoder_end_file(encoder *e, tg_token_writer *to);
/* Renders a conversation by the tokenizer's chat template (tg_chat_render). messages and tools are JSON; tools may be
 * NULL. prompt: with the beginning of an answer at the end. The caller frees *out. Returns NULL, or the message of an
 * error, which is valid until the next call. */
const char *encoder_render(encoder *e, const char *messages, const char *tools, bool prompt, tg_rendered *out);
/* Appends text that a template has made: special tokens in it are encoded as such, and no token is added at the
 * beginning of a document. */
bool encoder_put_markup(encoder *e, tg_token_writer *to, const char *text, size_t n, bool context);
/* Ends the document of such text, without a token for it. */
bool encoder_end_markup(encoder *e, tg_token_writer *to);
/* Encodes the texts that wait, and appends their ids to the dataset. */
bool encoder_flush(encoder *e, tg_token_writer *to);

#endif
