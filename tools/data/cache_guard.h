/* Removes token files if a signal ends the program while they are needed. */
#ifndef TAPEGRAD_CACHE_GUARD_H
#define TAPEGRAD_CACHE_GUARD_H

#include <stdbool.h>

/* Begins to handle SIGINT, SIGTERM and SIGHUP: each of them removes the token files in the directory `cache`, and then
 * ends the program as it would have. A closed pipe no longer ends the program. Call it before the program starts other
 * threads, which inherit what this one blocks. cache: stays the caller's, and must exist until guard_end. Returns false
 * after printing that no thread could be started. */
bool guard_begin(const char *cache);
/* Leaves signals to the program again. Does nothing unless guard_begin has succeeded. */
void guard_end(void);

#endif
