/* How much memory the operating system leaves to this process. */
#ifndef TG_SYSTEM_MEMORY_H
#define TG_SYSTEM_MEMORY_H

#include <stdint.h>

#include "base/private_api.h"

/* Returns how many bytes this process can still obtain without swapping: what the system has available, or what the
 * control groups of the process leave, whichever is less. TG_NONE: the system does not say. root: "", or the directory
 * that holds the `proc` and `sys` to read, for tests. */
TG_PRIVATE_API int64_t tg_system_memory(const char *root);

#endif
