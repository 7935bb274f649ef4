/* Characters of UTF-8: counting, classes and cases, as Python's methods of strings have them. */
#ifndef TG_TEXT_TEMPLATE_CHARACTERS_H
#define TG_TEXT_TEMPLATE_CHARACTERS_H

#include "text/template/values/value.h"
#include "text/unicode.h"

int64_t tg_tpl_chars(tpl_run *r, tpl_text *t); /* the number of characters */
/* Returns the offset of character number i, which lies in 0 .. the number of characters. */
size_t tg_tpl_offset(tpl_run *r, tpl_text *t, int64_t i);

bool tg_tpl_is_space(uint32_t c);                      /* str.isspace */
bool tg_tpl_is_line_end(uint32_t c);                   /* where str.splitlines splits */
size_t tg_tpl_skip_space(const char *s, size_t n);     /* bytes of space at the start */
size_t tg_tpl_strip_end(const char *s, size_t n);      /* the length without space at the end */
bool tg_tpl_is_class(tpl_run *r, uint32_t c, char of); /* 'a' letter, 'd' digit, 'u' upper, 'l' lower, 'p' printable */
uint32_t tg_tpl_case(tpl_run *r, uint32_t c, bool upper);
/* Appends the text in upper or lower case. ß becomes SS in upper case; other characters change one by one. */
void tg_tpl_put_case(tpl_run *r, tpl_buffer *b, const char *s, size_t n, bool upper);

#endif
