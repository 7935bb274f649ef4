/* What the library asks of the operating system: memory, the number of cores, the time. */
#ifndef TG_SYSTEM_H
#define TG_SYSTEM_H

#include <tapegrad/types.h>

/* The allocator of a context whose config names none. */
tg_allocator tg_system_allocator(void);
/* Returns the number of cores that this process may run on; at least 1. */
int tg_system_cores(void);
double tg_system_now(void); /* seconds on a monotonic clock */

#endif
