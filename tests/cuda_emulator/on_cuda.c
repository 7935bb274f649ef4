/* Replaces tg_ctx_new in a program that is linked with -Wl,--wrap=tg_ctx_new: its contexts are on device cuda, although
 * its source names the CPU. */
#include <tapegrad/tapegrad.h>

tg_ctx *__real_tg_ctx_new(const tg_config *config);
tg_ctx *__wrap_tg_ctx_new(const tg_config *config);

tg_ctx *__wrap_tg_ctx_new(const tg_config *config) {
    tg_config c = config ? *config : *TG_CONFIG();
    c.device = "cuda";
    return __real_tg_ctx_new(&c);
}
