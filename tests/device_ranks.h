/* Ranks on the device that TG_TEST_DEVICE names. On "cuda" each thread has a GPU, and the rank function gets NCCL's
 * communicator. */
#ifndef TG_TEST_DEVICE_RANKS_H
#define TG_TEST_DEVICE_RANKS_H

#include <stdlib.h>
#include <string.h>

#include <tapegrad/nccl.h>
#include <tapegrad/parallel.h>
#include <tapegrad/ranks.h>

typedef struct gpu_rank {
    tg_rank_fn fn;
    void *arg;
} gpu_rank;

static inline bool ranks_on_gpus(void) {
    const char *device = getenv("TG_TEST_DEVICE");
    return device && !strcmp(device, "cuda");
}

static inline tg_status run_on_gpu(void *arg, tg_ctx *ctx, tg_comm *host) {
    const gpu_rank *r = arg;
    tg_comm *world = tg_comm_nccl_new(host);
    tg_status s = tg_ctx_status(ctx);
    if (s == TG_OK) s = r->fn(r->arg, ctx, world);
    tg_comm_free(world);
    return s;
}

/* Like tg_ranks_run. */
static inline tg_status run_ranks(int n, tg_rank_fn fn, void *arg, const tg_ranks_opts *given) {
    tg_config config = *TG_CONFIG(.threads = 1);
    tg_ranks_opts o = *given;
    gpu_rank r = {fn, arg};
    if (!ranks_on_gpus()) return tg_ranks_run(n, fn, arg, given);
    if (o.config) config = *o.config;
    config.device = "cuda";
    o.config = &config;
    return tg_ranks_run(n, run_on_gpu, &r, &o);
}

#endif
