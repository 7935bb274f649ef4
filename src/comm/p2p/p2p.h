/* The transport between nodes, over a layer of non-blocking messages (tapegrad/p2p.h), which may be MPI.
 *
 * There are two kinds of traffic: messages and pieces. Messages are small. A rank that starts a collective sends every
 * member a message with the call's signature and call site. If the data for that member is small, the message contains
 * it too (inline data). Larger data travels in pieces: when all members have arrived and agree, each requests what it
 * needs from the others, piece by piece. The answer to a request is a piece or, if the group has failed, an empty one.
 * Pieces pass through buffers of the transport at both ends. So a piece that is still in flight when its call is given
 * up never touches a tensor. Every piece that arrives was requested, so there is a buffer for it. A rank moves only
 * data of calls that it has started itself, and only while it is in a call of the library.
 *
 * Every rank sums its own part (of a small all-reduce: all of it), over the ranks in their order, element by element,
 * with the kernels of the shared-memory transport. So both transports give the same bits. */
#ifndef TG_P2P_H
#define TG_P2P_H

#include "comm/p2p/group.h"

/* A communicator's state. If its members share memory on one node, inner is its state in that node's transport, and g
 * is NULL. Otherwise g is its group, which tg_comm_recover replaces, and inner is NULL. */
typedef struct tg_p2p_handle {
    tg_p2p_rank *self;
    tg_p2p_group *g;
    void *inner;
} tg_p2p_handle;

extern const tg_comm_ops tg_p2p_transport;

/* ---- node.c ---- */

/* Connects the ranks of each node through shared memory. Collective over world. *node: receives the communicator of the
 * ranks of this node; unchanged if they cannot share memory, or if this rank is the only one. *in_one: whether all
 * ranks are connected in one node. Stores the node and the process of each rank in self. */
tg_status tg_p2p_meet(tg_p2p_rank *self, tg_comm *world, tg_comm **node, bool *in_one);

#endif
