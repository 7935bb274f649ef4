/* Removes token files if a signal ends the program while they are needed. */
#ifndef TAPEGRAD_CACHE_GUARD_H
#define TAPEGRAD_CACHE_GUARD_H

#include <stdbool.h>

/* Begins to handle those of SIGINT, SIGTERM and SIGHUP that are not ignored: each removes the token files in the
 * directory `cache`, and then ends the program as it would have. From then on, also after guard_end, SIGPIPE is
 * ignored, so a closed pipe does not end the program. Call it before the program starts other threads, which inherit
 * what this one blocks. cache: stays the caller's; the string must live until guard_end. Returns false after printing
 * that no thread could be started. */
bool guard_begin(const char *cache);
/* Leaves these three signals to the program again. Does nothing unless guard_begin has succeeded. */
void guard_end(void);

#endif
