/* The public constructors of communicators over NCCL. They check their arguments and load plugin "nccl", which makes
 * the communicator. A communicator of one rank needs no NCCL. */
#include <stdlib.h>

#include <tapegrad/nccl.h>

#include "base/plugin.h"
#include "comm/comm.h"
#include "comm/nccl/world.h"

/* Sets *world to the plugin's function; to NULL for one rank. */
static tg_status find_world(tg_ctx *ctx, const char *who, int size, tg_nccl_world_fn **world) {
    *world = NULL;
    if (strcmp(ctx->run.ops->name, "cuda") != 0)
        return tg_fail(ctx, TG_ERR_DEVICE, "%s: the context is on device \"%s\", expected \"cuda\"", who,
                       ctx->run.ops->name);
    if (getenv("NCCL_COMM_ID"))
        return tg_fail(ctx, TG_ERR_STATE,
                       "%s: the environment sets NCCL_COMM_ID, expected it unset: this call creates NCCL's id", who);
    if (size == 1) return TG_OK;
    const tg_nccl_plugin_table *nccl = tg_plugin_table(ctx, "nccl", TG_ERR_UNSUPPORTED, who);
    if (nccl) *world = nccl->world;
    return ctx->run.status;
}

static tg_status check_host(tg_comm *host) {
    if (host->ops->host || host->size == 1) return TG_OK;
    return tg_fail(host->ctx, TG_ERR_ARGUMENT,
                   "tg_comm_nccl_new: host is over transport \"%s\", expected one that moves host memory (threads, "
                   "shm, mpi, tcp)",
                   host->ops->name);
}

tg_comm *tg_comm_nccl_new(tg_comm *host) {
    if (!tg_comm_ok(host)) {
        tg_comm_note_missed(host, TG_ERR_ABORTED);
        return tg_comm_or_inert(NULL);
    }
    tg_nccl_world_fn *world = NULL;
    tg_status s = check_host(host);
    if (s == TG_OK) s = find_world(host->ctx, "tg_comm_nccl_new", host->size, &world);
    if (tg_comm_note_missed(host, s) != TG_OK) return tg_comm_or_inert(NULL);
    if (!world) return tg_comm_self_new(host->ctx);
    return tg_comm_or_inert(world(host->ctx, host, host->rank, host->size, NULL, NULL));
}

tg_comm *tg_comm_nccl_new_by(tg_ctx *ctx, int rank, int size, tg_nccl_broadcast_fn broadcast, void *user) {
    if (!tg_ok(ctx)) return tg_comm_or_inert(NULL);
    tg_nccl_world_fn *world = NULL;
    tg_status s = TG_OK;
    if (size < 1 || rank < 0 || rank >= size)
        s = tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_nccl_new_by: rank %d of %d, expected 0 <= rank < size", rank, size);
    else if (!broadcast)
        s = tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_nccl_new_by: broadcast is NULL, expected a function");
    if (s != TG_OK || find_world(ctx, "tg_comm_nccl_new_by", size, &world) != TG_OK) return tg_comm_or_inert(NULL);
    if (!world) return tg_comm_self_new(ctx);
    return tg_comm_or_inert(world(ctx, NULL, rank, size, broadcast, user));
}
