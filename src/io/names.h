/* Lists of named things, found quickly, none twice. */
#ifndef TG_NAMES_H
#define TG_NAMES_H

#include "core/context.h"

/* Fills index[n] with pointers to items[n], sorted by name; each item is of size bytes and begins with its name, a
 * const char *. Returns a name that stands there twice, or NULL. */
const char *tg_index_names(const void *items, int n, size_t size, const void **index);
/* The item of that name, or NULL. */
const void *tg_find_name(const void *const *index, int n, const char *name);

#endif
