/* tapegrad tokenizer show, which tokenizer.c calls. */
#ifndef TAPEGRAD_PROGRAM_TOKENIZER_H
#define TAPEGRAD_PROGRAM_TOKENIZER_H

#include <tapegrad/tokenizer.h>

/* Prints the tokens of a text or, if text is NULL, the special tokens of the tokenizer. Returns the exit status. */
int show_tokenizer(const char *path, const char *text);

#endif
