/* Lists of named items: detection of duplicate names, and lookup by binary search. */
#ifndef TG_NAMES_H
#define TG_NAMES_H

#include "core/context.h"

/* Fills index[n] with pointers to the n items, sorted by name. An item has `size` bytes and begins with its name, a
 * const char *. Returns a name that occurs twice, or NULL. */
const char *tg_index_names(const void *items, int n, size_t size, const void **index);
/* Returns the item with that name, or NULL. */
const void *tg_find_name(const void *const *index, int n, const char *name);

#endif
