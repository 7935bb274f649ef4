/* The two actions of tapegrad tokenizer. */
#ifndef TAPEGRAD_PROGRAM_TOKENIZER_H
#define TAPEGRAD_PROGRAM_TOKENIZER_H

#include <tapegrad/tokenizer.h>

/* Prints what is known of a tokenizer, and, unless text is NULL, the tokens of that text. Returns the exit status. */
int show_tokenizer(const char *path, const char *text);

#endif
