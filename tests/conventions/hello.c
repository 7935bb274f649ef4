/* The smallest program of a user: it must build by `pkg-config --cflags --libs tapegrad` alone. */
#include <stdio.h>
#include <string.h>
#include <tapegrad/tapegrad.h>

int main(void) {
    tg_ctx *ctx = tg_ctx_new(NULL);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *w = tg_param_new(ctx, "w", TG_F32, TG_SHAPE(3), 0);
    tg_backward(
        t, tg_sum(t, tg_mul(t, w, tg_from_host(ctx, TG_F32, TG_SHAPE(3), (float[]){1, 2, 3})), TG_ALL_DIMS, false));
    float g[3] = {0};
    tg_read(tg_grad_of(w), g, sizeof g);
    if (tg_ctx_status(ctx) != TG_OK) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return strcmp(tg_version(), TG_VERSION) || g[0] != 1 || g[1] != 2 || g[2] != 3;
}
