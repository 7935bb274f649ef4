/* Marks the private functions that leave libtapegrad.so. */
#ifndef TG_PRIVATE_API_H
#define TG_PRIVATE_API_H

#include <tapegrad/types.h>

/* Before the declaration of a private function or table that a plugin, or the program tapegrad, uses. The library
 * exports it with the symbol version TAPEGRAD_PRIVATE (src/private_symbols.sh): it may change in every version, and is
 * for the plugins and the program of the same version only. */
#define TG_PRIVATE_API TG_API

#endif
