/* Appends formatted text to a buffer, cuts paths, and checks UTF-8. */
#ifndef TG_TEXT_H
#define TG_TEXT_H

#include <tapegrad/types.h>

#include "base/private_api.h"

/* Writes formatted text at position *at of buf, which has n bytes, like snprintf: what does not fit is cut. Adds the
 * length of the whole text to *at, even if it did not fit. */
TG_PRIVATE_API void tg_text(char *buf, size_t n, size_t *at, const char *format, ...) TG_PRINTF(4, 5);
/* Returns the part of a path after its last slash. */
const char *tg_base_name(const char *path);
/* Returns the offset of the first byte that is not valid UTF-8 (RFC 3629: no overlong forms, no surrogates), or n if
 * there is none. */
size_t tg_utf8_check(const char *s, size_t n);

#endif
