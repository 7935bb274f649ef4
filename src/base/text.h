/* Appends formatted and escaped text to a buffer, finds the last component of a path, reads and writes numbers, and
 * checks UTF-8. */
#ifndef TG_TEXT_H
#define TG_TEXT_H

#include <tapegrad/types.h>

#include "base/private_api.h"

/* Writes formatted text at position *at of buf, which has n bytes, like snprintf: what does not fit is cut. Adds the
 * length of the whole text to *at, even if it did not fit. */
TG_PRIVATE_API void tg_text(char *buf, size_t n, size_t *at, const char *format, ...) TG_PRINTF(4, 5);
/* Writes a string like tg_text, escaped for TG_JSON or TG_DOT. Bytes that are not valid UTF-8, for example because the
 * string was cut within a character, become U+FFFD. */
void tg_text_escaped(char *buf, size_t n, size_t *at, tg_format format, const char *s);
void tg_text_json(char *buf, size_t n, size_t *at, const char *s); /* writes a JSON string, with its quotation marks */
/* Returns the part of a path after its last slash. */
const char *tg_base_name(const char *path);
/* Returns the offset of the first byte that is not valid UTF-8 (RFC 3629: no overlong forms, no surrogates), or n if
 * there is none. */
size_t tg_utf8_check(const char *s, size_t n);
/* Reads a text that is one decimal number, of at least `least`. White space and a sign may precede the digits. Returns
 * false if the text is anything else, or no number that an int holds. */
bool tg_text_int(const char *text, int least, int *value);
/* Replaces, in a finite number that snprintf has written, the decimal point of the program's locale by ".". That point
 * may be a comma or several bytes. */
void tg_text_point(char *text);
/* A number for a file that programs read: with "." as its decimal point in every locale. */
typedef struct tg_decimal {
    char text[48];
} tg_decimal;
/* Returns v as printf writes it with this conversion, 'f' or 'g', and precision. A text that does not fit is cut. */
tg_decimal tg_decimal_of(char conversion, int precision, double v);
/* Removes a character that is incomplete from the end of a text that did not fit into its buffer. */
void tg_utf8_cut(char *s);

#endif
