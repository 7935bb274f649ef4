/* Files and lines of addresses in the program. */
#ifndef TG_DEBUG_LINES_H
#define TG_DEBUG_LINES_H

#include <tapegrad/types.h>

/* Appends "file.c:12", the place of the call that returns to the address `site`, to the text at buf, as tg_text does.
 * Returns false, and appends nothing, if the program has no debug information there, if libdw is not installed, or if
 * the library was built without it; also if ctx is NULL or its creation failed. The debug information stays open until
 * tg_debug_lines_close. */
bool tg_debug_line(tg_ctx *ctx, const void *site, char *buf, size_t n, size_t *at);
/* Called when the context ends. */
void tg_debug_lines_close(tg_ctx *ctx);

#endif
