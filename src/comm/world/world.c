/* The communicator of all ranks that a launcher has started. */
#include "comm/world/world.h"

#include <tapegrad/tcp.h>

static tg_comm *over_mpi(tg_ctx *ctx, const tg_world_info *i) {
    const tg_mpi_plugin_table *mpi = tg_plugin_table(ctx, "mpi", TG_ERR_UNSUPPORTED, "tg_comm_world_new");
    return tg_comm_or_inert(mpi ? mpi->world(ctx, i->rank, i->ranks) : NULL);
}

static tg_comm *over_tcp(tg_ctx *ctx, const tg_world_info *i) {
    return tg_comm_tcp_new(ctx, TG_TCP(.rank = i->rank, .ranks = i->ranks, .host = i->host, .port = i->port,
                                       .ports = i->ports, .job = i->job, .one_node = i->local_ranks == i->ranks));
}

tg_comm *tg_comm_world_new(tg_ctx *ctx, const tg_world_info *given) {
    tg_world_info i = TG_WORLD_INFO();
    char message[512];
    if (!tg_ok(ctx)) return tg_comm_or_inert(NULL);
    if (given && given->size != sizeof i) {
        tg_fail(ctx, TG_ERR_ARGUMENT,
                "tg_comm_world_new: info->size is %zu, expected %zu; fill info with tg_world_query", given->size,
                sizeof i);
        return tg_comm_or_inert(NULL);
    }
    tg_status s = given ? TG_OK : tg_world_query(&i, message, sizeof message);
    if (s != TG_OK) {
        tg_fail(ctx, s, "tg_comm_world_new: %s", message);
        return tg_comm_or_inert(NULL);
    }
    if (given) i = *given;
    switch (i.transport) {
    case TG_WORLD_ALONE:
        return tg_comm_self_new(ctx);
    case TG_WORLD_SHM:
        return tg_comm_launched_new(ctx);
    case TG_WORLD_MPI:
        return over_mpi(ctx, &i);
    case TG_WORLD_TCP:
        return over_tcp(ctx, &i);
    }
    tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_world_new: info->transport is %d, expected a tg_world_transport",
            (int)i.transport);
    return tg_comm_or_inert(NULL);
}
