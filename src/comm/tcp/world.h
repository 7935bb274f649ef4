/* The part of the TCP transport that needs no header of libuv. */
#ifndef TG_TCP_WORLD_H
#define TG_TCP_WORLD_H

#include <tapegrad/tcp.h>

#include "base/plugin.h"

/* Connects the ranks, and makes their communicator. opts have been checked. Returns NULL or an inert
 * communicator after recording an error. */
typedef tg_comm *tg_tcp_world_fn(tg_ctx *ctx, const tg_tcp_opts *opts);
tg_tcp_world_fn tg_tcp_world;

/* What plugin "tcp" offers (base/plugin.h). */
typedef struct tg_tcp_plugin_table {
    tg_tcp_world_fn *world;
} tg_tcp_plugin_table;
extern TG_PRIVATE_API const tg_plugin tg_tcp_plugin;

#endif
