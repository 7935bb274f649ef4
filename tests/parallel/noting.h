/* A transport that moves nothing and notes its calls, so that a test sees in which order they start and are waited for.
 * A test that includes this file defines note() and names_of(). */
#ifndef TG_TEST_NOTING_H
#define TG_TEST_NOTING_H

#include <tapegrad/extend.h>

static void note(const char *what);
/* Returns two texts that last as long as the call: for its start, and for the end of the wait for it. */
static const char *const *names_of(const tg_transfer *call);

static inline tg_status noting_start(tg_ctx *ctx, void *state, const tg_transfer *call, void **request) {
    (void)ctx, (void)state;
    const char *const *names = names_of(call);
    note(names[0]);
    *request = (void *)&names[1];
    return TG_OK;
}

static inline bool noting_test(tg_ctx *ctx, void *state, void *request) {
    return (void)ctx, (void)state, (void)request, false;
}

static inline tg_status noting_wait(tg_ctx *ctx, void *state, void *request) {
    (void)ctx, (void)state;
    note(*(const char *const *)request);
    return TG_OK;
}

static inline void noting_drop(tg_ctx *ctx, void *state, void *request) { (void)ctx, (void)state, (void)request; }

static inline tg_status noting_split(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name,
                                     bool all, void **group) {
    (void)ctx, (void)state, (void)ranks, (void)n, (void)rank, (void)name, (void)all;
    *group = NULL;
    return TG_OK;
}

static inline void noting_close(tg_ctx *ctx, void *state) { (void)ctx, (void)state; }

static const tg_comm_ops noting = {.size = sizeof(tg_comm_ops),
                                   .name = "noting",
                                   .host = true,
                                   .start = noting_start,
                                   .test = noting_test,
                                   .wait = noting_wait,
                                   .drop = noting_drop,
                                   .split = noting_split,
                                   .close = noting_close};

#endif
