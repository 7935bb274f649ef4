/* The public constructors of communicators over NCCL. In a build without NCCL they fail. */
#include <stdlib.h>

#include <tapegrad/nccl.h>

#include "comm/comm.h"

#ifdef TG_HAVE_NCCL
#include "kernels/cuda/device_table.h"
#include "comm/nccl/world.h"

static tg_status check_device(tg_ctx *ctx, const char *who) {
    if (ctx->run.ops != &tg_cuda_device)
        return tg_fail(ctx, TG_ERR_DEVICE, "%s: the context is on device \"%s\", expected \"cuda\"", who,
                       ctx->run.ops->name);
    if (getenv("NCCL_COMM_ID"))
        return tg_fail(ctx, TG_ERR_STATE,
                       "%s: the environment sets NCCL_COMM_ID, expected it unset: this call creates NCCL's id", who);
    return TG_OK;
}

static tg_comm *world(tg_ctx *ctx, tg_comm *host, int rank, int size, tg_nccl_broadcast_fn broadcast, void *user) {
    return tg_nccl_world(ctx, host, rank, size, broadcast, user);
}
#else
static tg_status check_device(tg_ctx *ctx, const char *who) {
    return tg_fail(ctx, TG_ERR_UNSUPPORTED,
                   "%s: this library was built without CUDA and NCCL; build it with Meson option cuda=enabled where "
                   "nvcc and NCCL are installed",
                   who);
}

static tg_comm *world(tg_ctx *ctx, tg_comm *host, int rank, int size, tg_nccl_broadcast_fn broadcast, void *user) {
    return (void)ctx, (void)host, (void)rank, (void)size, (void)broadcast, (void)user, NULL;
}
#endif

static tg_status check_host(tg_comm *host) {
    tg_ctx *ctx = host->ctx;
    if (!host->ops->host && host->size > 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_comm_nccl_new: host is over transport \"%s\", expected one that moves host memory (threads, "
                       "shm, mpi)",
                       host->ops->name);
    return check_device(ctx, "tg_comm_nccl_new");
}

tg_comm *tg_comm_nccl_new(tg_comm *host) {
    if (!tg_comm_ok(host)) {
        tg_comm_note_missed(host, TG_ERR_ABORTED);
        return tg_comm_or_inert(NULL);
    }
    tg_ctx *ctx = host->ctx;
    if (tg_comm_note_missed(host, check_host(host)) != TG_OK) return tg_comm_or_inert(NULL);
    if (host->size == 1) return tg_comm_self_new(ctx);
    return tg_comm_or_inert(world(ctx, host, host->rank, host->size, NULL, NULL));
}

tg_comm *tg_comm_nccl_new_by(tg_ctx *ctx, int rank, int size, tg_nccl_broadcast_fn broadcast, void *user) {
    if (!tg_ok(ctx)) return tg_comm_or_inert(NULL);
    tg_status s = TG_OK;
    if (size < 1 || rank < 0 || rank >= size)
        s = tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_nccl_new_by: rank %d of %d, expected 0 <= rank < size", rank, size);
    else if (!broadcast)
        s = tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_nccl_new_by: broadcast is NULL, expected a function");
    if (s != TG_OK || check_device(ctx, "tg_comm_nccl_new_by") != TG_OK) return tg_comm_or_inert(NULL);
    if (size == 1) return tg_comm_self_new(ctx);
    return tg_comm_or_inert(world(ctx, NULL, rank, size, broadcast, user));
}
