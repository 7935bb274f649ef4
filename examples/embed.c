/* Uses the library inside a program that has its own allocator and its own log, and that must not end on an error. The
 * program is a service that fits a line to the points of each request, and continues after a request that fails. */
#include <stdio.h>
#include <stdlib.h>

#include <tapegrad/optim.h>
#include <tapegrad/tapegrad.h>

/* Allocates memory in the program's own way, which here also counts it. */
static void *allocate(void *user, size_t bytes, size_t align) {
    *(size_t *)user += bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void release(void *user, void *p, size_t bytes) {
    *(size_t *)user -= bytes;
    free(p);
}

static void log_line(void *user, tg_log_level level, const char *message) {
    fprintf(user, "%s: %s\n", level == TG_LOG_WARNING ? "warning" : "info", message);
}

/* Fits y = slope x + offset to n points, which stay in the caller's memory. n_y is the length of y; it must be n. */
static tg_status fit(tg_ctx *ctx, float *x, float *y, int64_t n, int64_t n_y, double *slope, double *offset) {
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *xs = tg_wrap(ctx, TG_F32, TG_SHAPE(n, 1), NULL, x, NULL, NULL);
    tg_tensor *ys = tg_wrap(ctx, TG_F32, TG_SHAPE(n_y, 1), NULL, y, NULL, NULL);
    tg_tensor *p[] = {tg_param_new(ctx, "slope", TG_F32, TG_SHAPE(1, 1), 0),
                      tg_param_new(ctx, "offset", TG_F32, TG_SHAPE(1), 0)};
    tg_optim *opt = tg_sgd_new(ctx, p, 2, TG_SGD(.lr = 0.1));
    for (int step = 0; step < 300 && tg_ctx_status(ctx) == TG_OK; step++) {
        tg_backward(t, tg_mse(t, tg_linear(t, xs, p[0], p[1]), ys));
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        tg_tape_reset(t);
    }
    *slope = tg_item(p[0]);
    *offset = tg_item(p[1]);
    tg_optim_free(opt);
    tg_tape_free(t);
    tg_drop(p[0]), tg_drop(p[1]), tg_drop(xs), tg_drop(ys);
    return tg_ctx_status(ctx);
}

int main(void) {
    size_t taken = 0;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .memory = 1 << 20, .log = log_line, .log_user = stderr,
                                       .allocator = {allocate, release, &taken}));
    float x[] = {0, 1, 2, 3}, y[] = {1, 3, 5, 7};
    int64_t lengths[] = {4, 3, 4}; /* the second request is wrong */
    for (int i = 0; i < 3; i++) {
        double slope, offset;
        if (fit(ctx, x, y, 4, lengths[i], &slope, &offset) == TG_OK) {
            printf("request %d: y = %.2f x + %.2f\n", i, slope, offset);
        } else {
            printf("request %d failed: %s\n", i, tg_status_name(tg_ctx_status(ctx)));
            fprintf(stderr, "%s\n", tg_ctx_message(ctx));
            tg_ctx_clear(ctx); /* the context can be used again */
        }
    }
    tg_ctx_free(ctx);
    printf("%zu bytes are left\n", taken);
    return taken != 0;
}
