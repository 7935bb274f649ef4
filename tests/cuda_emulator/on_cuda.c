/* Linked with -Wl,--wrap=tg_ctx_new, this makes a program's contexts on device cuda, although its source names the CPU.
 * */
#include <tapegrad/tapegrad.h>

tg_ctx *__real_tg_ctx_new(const tg_config *config);
tg_ctx *__wrap_tg_ctx_new(const tg_config *config);

tg_ctx *__wrap_tg_ctx_new(const tg_config *config) {
    tg_config c = config ? *config : *TG_CONFIG();
    c.device = "cuda";
    return __real_tg_ctx_new(&c);
}
