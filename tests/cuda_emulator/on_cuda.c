/* Linked with -Wl,--wrap=tg_ctx_new: a program that knows nothing of GPUs makes its contexts on device cuda. */
#include <tapegrad/tapegrad.h>

tg_ctx *__real_tg_ctx_new(const tg_config *config);
tg_ctx *__wrap_tg_ctx_new(const tg_config *config);

tg_ctx *__wrap_tg_ctx_new(const tg_config *config) {
    tg_config c = config ? *config : *TG_CONFIG(0);
    c.device = "cuda";
    return __real_tg_ctx_new(&c);
}
