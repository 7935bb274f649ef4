/* Communicators over TCP, for ranks on several nodes that MPI has not started. Include it in programs that number their
 * ranks themselves. Most programs call tg_comm_world_new (world.h), which reads the environment variables of the
 * launcher. */
#ifndef TAPEGRAD_TCP_H
#define TAPEGRAD_TCP_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_tcp_opts {
    size_t size;
    int rank, ranks; /* the number of this rank, from 0, and the number of all ranks, 1 to 1024 */
    /* Required: name or address of rank 0's node. Rank 0 listens there, and the others connect to it. If no address of
     * the host belongs to rank 0's node, as behind address translation, rank 0 listens on all addresses of its node. */
    const char *host;
    /* Rank 0 listens on the first free one of the `ports` ports that begin with `port` (1 to 65535). The other ranks
     * try all of these ports, and recognize rank 0 by its greeting. ports is 1 by default. */
    int port, ports;
    /* The name of the run, which must be the same on all ranks. Ranks of another run are refused. NULL means "". The
     * name is no password: any program that knows it can join. */
    const char *job;
    /* true: all ranks are on one node. Matters only if host is a name, other than "localhost", that has a loopback
     * address on rank 0's node, as the name of the node itself may have. With true, rank 0 listens on that address
     * only. With false, the default, rank 0 listens on all addresses of its node, because on other nodes the name has
     * another address. */
    bool one_node;
} tg_tcp_opts;

#define TG_TCP_DEFAULTS .size = sizeof(tg_tcp_opts), .ports = 1
#define TG_TCP(...)     (&(tg_tcp_opts){TG_TCP_DEFAULTS, __VA_ARGS__})

/* Creates a communicator over TCP. Every rank must make the call, and later call tg_comm_free, which may wait for the
 * other ranks. A communicator or group whose ranks are all of one node moves data through shared memory instead
 * (p2p.h). If ranks is 1, the result is that of tg_comm_self_new.
 *
 * The ranks meet at rank 0, and then connect with each other: two ranks have one connection. A rank stops listening
 * when all are connected. Like those of MPI and NCCL, the connections are neither encrypted nor authenticated, so use
 * them only in a network that you trust. Bytes from a stranger that does not know the name of the run are dropped, and
 * do no harm.
 *
 * If the process of a rank ends, or its connection breaks, the other ranks report which rank that is, and
 * tg_comm_recover goes on without it. TCP itself reports the failure of a whole node or network only after minutes;
 * until then tg_config.deadline limits the wait.
 *
 * On error returns an inert communicator (tapegrad.h). Fails with
 * - TG_ERR_TIMEOUT if some ranks have not connected within tg_config.deadline; the message of rank 0, and of the ranks
 *   that have reached it, names up to 8 of them;
 * - TG_ERR_REMOTE if a rank ends meanwhile;
 * - TG_ERR_STATE if the ports are in use, if two processes are the same rank, or if the ranks give different numbers of
 *   ranks or have different versions of the library;
 * - TG_ERR_ARGUMENT if opts is NULL, or if a value in it is wrong;
 * - TG_ERR_IO if host has no address, or if a rank cannot listen for another reason;
 * - TG_ERR_UNSUPPORTED if ranks is above 1024, or if plugin libtapegrad-tcp.so or libuv is missing;
 * - the errors of tg_comm_p2p_new (p2p.h), after the ranks have connected. */
TG_API tg_comm *tg_comm_tcp_new(tg_ctx *ctx, const tg_tcp_opts *opts);

#ifdef __cplusplus
}
#endif

#endif
