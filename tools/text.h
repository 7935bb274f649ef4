/* Text for the terminal: makes names from files, and messages of the library, safe to print. */
#ifndef TAPEGRAD_TEXT_H
#define TAPEGRAD_TEXT_H

#include <stddef.h>

/* Copies text to out (of n bytes, n >= 1) with control characters, and bytes that are not UTF-8, written as "\n", "\t"
 * or "\x1b", so that a name in a file cannot move a terminal's cursor or start a line. Longer text is cut. Returns
 * out. */
char *text_escape(char *out, size_t n, const char *text);

/* Removes from a message of the library, in place, the call sites that are addresses of this program ("called from
 * tapegrad+0x40de9"): they tell its user nothing. */
void text_drop_sites(char *message);

#endif
