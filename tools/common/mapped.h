/* Files that a context has mapped: their truncation is an error of the run, not the end of the program. */
#ifndef TAPEGRAD_MAPPED_H
#define TAPEGRAD_MAPPED_H

#include <tapegrad/io.h>

/* Handles SIGBUS for the files that ctx maps, until mapped_unwatch, which must be called before ctx is freed. Several
 * contexts may be watched, from several threads. */
void mapped_watch(tg_ctx *ctx);
void mapped_unwatch(tg_ctx *ctx);

#endif
