/* Text from files, for the terminal and from command lines: finds byte order marks, makes names that come from files
 * safe to print, shortens messages of the library, and reads numbers of bytes and parts of paths. */
#ifndef TAPEGRAD_TEXT_H
#define TAPEGRAD_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the ending of a noun that follows the number n: "" for 1, else "s". */
static inline const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

/* Copies text to out (of n bytes, n >= 1) with control characters, and bytes that are not UTF-8, written as "\n", "\t"
 * or "\x1b", so that a name in a file cannot move a terminal's cursor or start a line. Text that does not fit is
 * truncated. Returns out. */
char *text_escape(char *out, size_t n, const char *text);

/* Writes text as one word of a shell command, in quotes if it needs them, to out of n bytes, n >= 1. A word that does
 * not fit is truncated. Returns out. */
char *text_shell_word(char *out, size_t n, const char *text);

/* Replaces each byte of the text that is not part of a character of UTF-8, and each byte 0, by '?'. */
void text_make_utf8(char *text, size_t n);

/* Returns whether the text ends with `ending`. */
bool text_ends_with(const char *text, const char *ending);

/* Returns the last part of a path, and sets *n to its length: "b" of "a/b" and of "a/b/". It is empty for "/". */
const char *text_last_part(const char *path, size_t *n);

/* Reads a number of bytes, such as "900M", "1.5G" or "4096": a number, which K, M, G or T may follow for KiB, MiB, GiB
 * or TiB. Returns -1 if the text is anything else, or the number is negative or more than INT64_MAX. */
int64_t text_read_bytes(const char *text);

/* Returns the length of the byte order mark of UTF-8 with which a text of n bytes begins: 3, or 0 if it has none. */
size_t text_mark(const char *text, size_t n);

/* Removes from a message of the library, in place, the call sites that are addresses of this program ("called from
 * tapegrad+0x40de9"), which do not help its user. */
void text_drop_sites(char *message);

#endif
