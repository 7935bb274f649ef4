/* Communicators over any point-to-point message layer. Include this header to use a message layer of your own.
 * tg_comm_mpi_new (mpi.h) and tg_comm_tcp_new (tcp.h) are built on this interface. */
#ifndef TAPEGRAD_P2P_H
#define TAPEGRAD_P2P_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tg_p2p_phase {
    TG_P2P_OPENING, /* some ranks have not connected yet */
    TG_P2P_OPEN,    /* all ranks are connected */
    /* The layer has ended, as MPI does in MPI_Finalize. It no longer accesses memory that it was given. No call may be
     * in flight then, and the program may only free the communicators. The library then calls none of the layer's
     * functions except phase and close. */
    TG_P2P_ENDED,
} tg_p2p_phase;

/* A function of the library, which it passes to poll and close. In these two slots, a layer calls it to report that the
 * operation with this token is complete. For a receive, bytes is the number of bytes received. For a send it is
 * ignored. */
typedef void (*tg_p2p_completed_fn)(void *token, size_t bytes);

/* The functions of a message layer. `state` is one rank's end of the layer, which carries messages of 0 bytes to 128
 * KiB between the ranks. A receive takes the first message of its sender and tag, as in MPI: messages from one rank to
 * another with the same tag (0 to 32000) arrive in the order of sending, and receives that match the same messages
 * complete in the order in which they were started. A message may arrive before its receive.
 *
 * The context's thread calls every slot, and every slot must return at once. Slots that return int return 0 on success,
 * and on failure an error number of the layer's own. The first error ends all communicators over the layer
 * (TG_ERR_IO). */
typedef struct tg_p2p_ops {
    size_t size;      /* sizeof(tg_p2p_ops) */
    const char *name; /* returned by tg_comm_transport; required */

    /* Required slots. send and receive start an operation. The layer may use the memory until poll has called
     * `completed` with the token of the operation. `to` and `from` are ranks, counted from 0. A receive whose `from` is
     * -1 accepts a message from any rank. No message is longer than the capacity of its receive. */
    int (*send)(void *state, const void *data, size_t bytes, int to, int tag, void *token);
    int (*receive)(void *state, void *data, size_t capacity, int from, int tag, void *token);
    /* Calls `completed` once for each operation that has become complete since the last poll. */
    int (*poll)(void *state, tg_p2p_completed_fn completed);
    /* Writes the text of an error number to buf: at most n bytes, including the terminating 0. */
    void (*explain)(void *state, int error, char *buf, size_t n);
    /* Frees state. Calls `completed`, with 0 bytes, for each receive that is not complete, unless the layer may still
     * write to its memory. Sends may stay incomplete. The library never frees the memory of operations that have not
     * been completed. If quiet is true, every rank has sent its last message. If it is false, more messages may arrive;
     * a state that is created later must not receive them. */
    void (*close)(void *state, bool quiet, tg_p2p_completed_fn completed);

    /* Optional slot. Returns the phase of the layer. While the ranks connect, the library calls only this slot and
     * close, so phase must advance the connecting. NULL means that the layer is always TG_P2P_OPEN. */
    tg_p2p_phase (*phase)(void *state);
    /* Optional slot. Returns NULL while messages of that rank can still arrive, or have arrived and wait for a receive.
     * Otherwise the rank is lost: returns "" if its process has ended, or the reason why it cannot be reached, such as
     * "connection timed out"; this text lives as long as state. Sends to a lost rank then complete, and receives from
     * it complete with 0 bytes; neither is an error. NULL means that the layer cannot tell: ranks whose process ends
     * are then reported at the deadline. */
    const char *(*lost)(void *state, int rank);
} tg_p2p_ops;

/* Creates a communicator of `size` ranks, 1 to 1024, over the given layer. Every rank must make the call, and later
 * call tg_comm_free, which waits for the other ranks while the layer is in use. A communicator whose ranks are all of
 * one node, such as a group that was split from the result, moves data through shared memory instead of the layer. It
 * uses the layer if several ranks of the node are threads of one process, if the context of a rank uses the shared
 * memory of an earlier communicator, or if the node's ranks cannot share memory.
 *
 * The library calls ops->close when the last communicator over state is freed. If size is above 1 and all ranks share
 * the memory of one node, the result needs no layer: tg_comm_p2p_new calls ops->close before it returns, and the
 * transport is "shm". ops is not copied; it must stay valid until the library has called ops->close. state must not be
 * NULL.
 *
 * Fails with TG_ERR_ARGUMENT if an argument is wrong or ops lacks a required slot, with TG_ERR_UNSUPPORTED if size is
 * above 1024, with TG_ERR_STATE if the layer has ended, with TG_ERR_TIMEOUT if it has not opened within
 * tg_config.deadline, and with TG_ERR_DEVICE on device "meta" if ranks share a node. On error calls ops->close before
 * it returns, provided that state is not NULL and ops->size includes that slot, and returns an inert communicator
 * (tapegrad.h). If a rank fails after the layer has opened, while the ranks find out which of them share a node, the
 * call fails with the error of a collective (comm.h), and first waits for the other ranks as tg_comm_free does. */
TG_API tg_comm *tg_comm_p2p_new(tg_ctx *ctx, const tg_p2p_ops *ops, void *state, int rank, int size);

#ifdef __cplusplus
}
#endif

#endif
