/* Numbers and strings as templates write them, and numbers in text. */
#ifndef TG_TEXT_TEMPLATE_LITERALS_H
#define TG_TEXT_TEMPLATE_LITERALS_H

#include "text/template/values/value.h"

/* Reads the number with which the n bytes at s begin; the first one is a digit. Returns its length in bytes. after_dot:
 * it is an integer, as the index in x.0. */
size_t tg_tpl_number(tpl_run *r, const char *s, size_t n, bool after_dot, tpl_value *out);
/* Returns the text of a string literal without its quotes, whose escapes are Python's. */
tpl_value tg_tpl_unescape(tpl_run *r, const char *s, size_t n);
/* Python's int(text, base) and float(text). Return false if the text is no such number. Integers beyond 64 bits fail.
 */
bool tg_tpl_parse_int(tpl_run *r, const tpl_text *t, int base, int64_t *out);
bool tg_tpl_parse_real(tpl_run *r, const tpl_text *t, double *out);

#endif
