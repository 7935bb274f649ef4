/* The public constructor of communicators over TCP. It checks its arguments and loads plugin "tcp", which makes the
 * communicator. A communicator of one rank needs no network. */
#include "base/options.h"
#include "base/plugin.h"
#include "comm/comm.h"
#include "comm/shm/region.h"
#include "comm/tcp/world.h"

static tg_status check(tg_ctx *ctx, const tg_tcp_opts *o) {
    if (o->ranks < 1 || o->rank < 0 || o->rank >= o->ranks)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_comm_tcp_new: rank is %d and ranks is %d, expected 0 <= rank < ranks",
                       o->rank, o->ranks);
    if (o->ranks > TG_MAX_RANKS)
        return tg_fail(ctx, TG_ERR_UNSUPPORTED, "tg_comm_tcp_new: ranks is %d, expected at most %d", o->ranks,
                       TG_MAX_RANKS);
    if (!o->host || !*o->host)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_comm_tcp_new: host is %s, expected the name or address of rank 0's node",
                       o->host ? "empty" : "NULL");
    if (o->port < 1 || o->ports < 1 || o->ports > 65535 || o->port > 65536 - o->ports)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_comm_tcp_new: port is %d and ports is %d, expected at least one port, from 1 to 65535",
                       o->port, o->ports);
    return TG_OK;
}

tg_comm *tg_comm_tcp_new(tg_ctx *ctx, const tg_tcp_opts *opts) {
    tg_tcp_opts o;
    bool valid = tg_ok(ctx) && tg_options(ctx, &o, &tg_tcp_opts_struct, opts, "tg_comm_tcp_new") == TG_OK &&
                 check(ctx, &o) == TG_OK;
    if (!valid) return tg_comm_or_inert(NULL);
    if (o.ranks == 1) return tg_comm_self_new(ctx);
    const tg_tcp_plugin_table *tcp = tg_plugin_table(ctx, "tcp", TG_ERR_UNSUPPORTED, "tg_comm_tcp_new");
    return tg_comm_or_inert(tcp ? tcp->world(ctx, &o) : NULL);
}
