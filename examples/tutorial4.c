/* Tutorial, step 4: continues a text with the network that step 3 has saved. */
#include <string.h>

#include <tapegrad/io.h>

#include "tutorial_model.h"

static void load_params(tg_ctx *ctx, tg_tensor *p[PARAMS], const char *path) {
    make_params(ctx, p);
    tg_safetensors *f = tg_safetensors_open(ctx, path);
    for (int i = 0; i < PARAMS; i++) tg_safetensors_read(f, tg_name(p[i]), p[i], false);
    tg_safetensors_close(f);
}

/* Returns the most likely character after a window. */
static int32_t next_byte(tg_tape *t, tg_tensor *const p[PARAMS], tg_tensor *ids, const int32_t window[CONTEXT]) {
    tg_write(ids, window, CONTEXT * sizeof *window);
    double best = tg_item(tg_argmax(t, model(t, p, ids), -1, false));
    tg_tape_reset(t);
    return best == best ? (int32_t)best : 0; /* tg_item is NaN after an error */
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "tutorial.safetensors", *prompt = argc > 2 ? argv[2] : "You may ";
    tg_ctx *ctx = tg_ctx_new(NULL);
    tg_tape *t = tg_tape_new(ctx);
    tg_tape_set_grad_mode(t, false);
    tg_tensor *p[PARAMS], *ids = tg_zeros(ctx, TG_I32, TG_SHAPE(1, CONTEXT));
    load_params(ctx, p, path);

    int32_t window[CONTEXT];
    size_t n = strlen(prompt);
    for (size_t i = 0; i < CONTEXT; i++) window[i] = n + i < CONTEXT ? ' ' : (unsigned char)prompt[n + i - CONTEXT];
    printf("%s", prompt);
    for (int i = 0; i < 60 && tg_ctx_status(ctx) == TG_OK; i++) {
        int32_t next = next_byte(t, p, ids, window);
        putchar(next);
        memmove(window, window + 1, sizeof window - sizeof *window);
        window[CONTEXT - 1] = next;
    }
    putchar('\n');

    bool failed = tg_ctx_status(ctx) != TG_OK;
    if (failed) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return failed;
}
