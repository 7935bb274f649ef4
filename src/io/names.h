/* Lists of named things: valid names, found quickly, none twice. */
#ifndef TG_NAMES_H
#define TG_NAMES_H

#include "core/core.h"

/* Offset of the first byte that is not UTF-8 (RFC 3629: no overlong forms, no surrogates); n: there is none. */
size_t tg_utf8_check(const char *s, size_t n);

/* Fills index[n] with pointers to items[n], sorted by name; each item is of size bytes and begins with its name, a
 * const char *. Returns a name that stands there twice, or NULL. */
const char *tg_index_names(const void *items, int n, size_t size, const void **index);
/* The item of that name, or NULL. */
const void *tg_find_name(const void *const *index, int n, const char *name);

#endif
