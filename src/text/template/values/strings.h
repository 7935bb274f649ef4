/* Operations on strings that methods and filters share: those of Python's str. */
#ifndef TG_TEXT_TEMPLATE_STRINGS_H
#define TG_TEXT_TEMPLATE_STRINGS_H

#include "text/template/values/value.h"

/* Removes characters at the ends: those in `set`, or white space if it is NULL. */
tpl_value tg_tpl_strip(tpl_run *r, const tpl_text *t, const tpl_text *set, bool left, bool right);
/* Replaces at most `most` occurrences; negative: all. */
tpl_value tg_tpl_replace(tpl_run *r, tpl_text *t, const tpl_text *old, const tpl_text *new, int64_t most);
/* Returns the list of the lines. */
tpl_value tg_tpl_lines(tpl_run *r, const tpl_text *t, bool keep_ends);
/* Returns the list of the parts between separators. At most `most` separators count, from the left or from the right;
 * negative: all. If separator is NULL, the parts are the words between white space. */
tpl_value tg_tpl_split(tpl_run *r, const tpl_text *t, const tpl_text *separator, int64_t most, bool from_right);
/* Joins the texts of items. If `any` is true, an item that is no text becomes one as by str(); if `any` is false, such
 * an item fails. */
tpl_value tg_tpl_join(tpl_run *r, const tpl_text *separator, tpl_value items, bool any);
tpl_value tg_tpl_change_case(tpl_run *r, const tpl_text *t, bool upper);
tpl_value tg_tpl_capitalize(tpl_run *r, const tpl_text *t);
/* A letter that begins a word becomes upper case, the others lower case. */
tpl_value tg_tpl_title(tpl_run *r, const tpl_text *t);
bool tg_tpl_is_cased(tpl_run *r, const tpl_text *t, bool upper); /* str.isupper, str.islower */
/* Returns the offset in t of the first or the last `what` within t[from, to), or -1. */
int64_t tg_tpl_find_text(tpl_run *r, const tpl_text *t, size_t from, size_t to, const tpl_text *what, bool last);

#endif
