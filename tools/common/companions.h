/* The files that go with a model besides its config and weights: its tokenizer, and how it generates text. */
#ifndef TAPEGRAD_COMPANIONS_H
#define TAPEGRAD_COMPANIONS_H

#include "common/program.h"

/* Returns the name of the i-th of them, from 0; NULL if there is none. */
const char *companion(size_t i);
/* Copies those files that the directory `from` has to the directory `to`, each whole or not at all, by calls of ctx's
 * files. Returns false after an error, which ctx has. */
bool copy_companions(tg_ctx *ctx, const char *from, const char *to);
/* Copies a tokenizer and the files next to it that belong to it to the directory `to`, where it is tokenizer.json.
 * from: its directory, or its file, which may have another name. Returns false after printing what is wrong. */
bool tokenizer_copy(tg_ctx *ctx, const char *from, const char *to);

#endif
