/* Ranks over TCP, and the world of a launcher: calls that are refused before anything is opened. Their correct use, and
 * contradictions of the environment, have tests of their own (comm/). */
#include <tapegrad/tcp.h>
#include <tapegrad/world.h>

#include "misuse/misuse.h"

static bool is_inert_comm(tg_comm *c) { return c && tg_comm_size(c) == 1 && tg_comm_barrier(c) != TG_OK; }

static bool refuses_tcp(tg_ctx *ctx, const tg_tcp_opts *opts) { return is_inert_comm(tg_comm_tcp_new(ctx, opts)); }

static void misuse_tcp(misuse_world *b) {
    tg_tcp_opts sizeless = {.ranks = 2, .host = "localhost", .port = 1}, later = *TG_TCP(.ranks = 2);
    later.size += 8;
    QUIET(tg_comm_tcp_new,
          refuses_tcp(NULL, TG_TCP(.ranks = 2, .host = "localhost", .port = 1)) && refuses_tcp(NULL, NULL));
    GIVES(tg_comm_tcp_new, ARGUMENT, "rank is 0 and ranks is 0", refuses_tcp(b->ctx, NULL));
    GIVES(tg_comm_tcp_new, ARGUMENT, "size is 0", refuses_tcp(b->ctx, &sizeless));
    GIVES(tg_comm_tcp_new, ARGUMENT, "later version", refuses_tcp(b->ctx, &later));
    GIVES(tg_comm_tcp_new, ARGUMENT, "rank is 2 and ranks is 2, expected 0 <= rank < ranks",
          refuses_tcp(b->ctx, TG_TCP(.rank = 2, .ranks = 2, .host = "localhost", .port = 1)));
    GIVES(tg_comm_tcp_new, ARGUMENT, "rank is -1",
          refuses_tcp(b->ctx, TG_TCP(.rank = -1, .ranks = 2, .host = "localhost", .port = 1)));
    GIVES(tg_comm_tcp_new, UNSUPPORTED, "ranks is 1025, expected at most 1024",
          refuses_tcp(b->ctx, TG_TCP(.ranks = 1025, .host = "localhost", .port = 1)));
    GIVES(tg_comm_tcp_new, ARGUMENT, "host is NULL", refuses_tcp(b->ctx, TG_TCP(.ranks = 2, .port = 1)));
    GIVES(tg_comm_tcp_new, ARGUMENT, "host is empty", refuses_tcp(b->ctx, TG_TCP(.ranks = 2, .host = "", .port = 1)));
    GIVES(tg_comm_tcp_new, ARGUMENT, "port is 0 and ports is 1",
          refuses_tcp(b->ctx, TG_TCP(.ranks = 2, .host = "localhost")));
    GIVES(tg_comm_tcp_new, ARGUMENT, "port is 65535 and ports is 2",
          refuses_tcp(b->ctx, TG_TCP(.ranks = 2, .host = "localhost", .port = 65535, .ports = 2)));
    GIVES(tg_comm_tcp_new, ARGUMENT, "ports is 0",
          refuses_tcp(b->ctx, TG_TCP(.ranks = 2, .host = "localhost", .port = 1, .ports = 0)));
}

/* The process of this test has no launcher. */
void misuse_world_of_ranks(misuse_world *b) {
    tg_world_info info = TG_WORLD_INFO(), sizeless = {.ranks = 2}, odd = TG_WORLD_INFO();
    char text[256];
    misuse_tcp(b);
    QUIET(tg_world_query, tg_world_query(NULL, NULL, 0) == TG_ERR_ARGUMENT &&
                              tg_world_query(&sizeless, text, sizeof text) == TG_ERR_ARGUMENT &&
                              strstr(text, "initialize out with TG_WORLD_INFO()"));
    QUIET(tg_world_query, tg_world_query(&info, text, sizeof text) == TG_OK && !*text && info.ranks == 1);
    odd.launcher = (tg_launcher)99;
    QUIET(tg_world_text, tg_world_text(NULL, text, sizeof text) == 0 && !*text &&
                             tg_world_text(&sizeless, text, sizeof text) == 0 &&
                             tg_world_text(&odd, text, sizeof text) == 0 && tg_world_text(&info, NULL, 0) > 0);
    QUIET(tg_comm_world_new, is_inert_comm(tg_comm_world_new(NULL, NULL)));
    GIVES(tg_comm_world_new, ARGUMENT, "info->size is 0", is_inert_comm(tg_comm_world_new(b->ctx, &sizeless)));
    odd.transport = (tg_world_transport)99;
    GIVES(tg_comm_world_new, ARGUMENT, "info->transport is 99", is_inert_comm(tg_comm_world_new(b->ctx, &odd)));
    odd.transport = TG_WORLD_SHM;
    GIVES(tg_comm_world_new, STATE, "tapegrad run", is_inert_comm(tg_comm_world_new(b->ctx, &odd)));
    odd.transport = TG_WORLD_TCP;
    GIVES(tg_comm_world_new, ARGUMENT, "rank is 0 and ranks is 0", is_inert_comm(tg_comm_world_new(b->ctx, &odd)));
}
