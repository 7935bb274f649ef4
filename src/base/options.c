/* Reading the caller's structs of options; see options.h. */
#include "base/options.h"

void tg_options_complete(void *to, const tg_struct *s, const void *from) {
    size_t given = from ? *(const size_t *)from : 0;
    memcpy(to, s->defaults, s->size);
    if (given >= sizeof given && given <= s->size) memcpy(to, from, given);
    memcpy(to, &s->size, sizeof s->size);
}

tg_status tg_options(tg_ctx *ctx, void *to, const tg_struct *s, const void *from, const char *who) {
    tg_options_complete(to, s, from);
    return from ? tg_size_check(ctx, *(const size_t *)from, s->size, who) : TG_OK;
}

void tg_options_give(void *to, const void *from) {
    size_t size = *(const size_t *)to;
    memcpy(to, from, size);
    memcpy(to, &size, sizeof size);
}
