/* Communicators over any point-to-point message layer. Include this header to use a message layer of your own.
 * tg_comm_mpi_new (tapegrad/mpi.h) is built on this interface. */
#ifndef TAPEGRAD_P2P_H
#define TAPEGRAD_P2P_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tg_p2p_phase {
    TG_P2P_OPENING, /* some ranks have not connected yet */
    TG_P2P_OPEN,    /* all ranks are connected */
    /* The layer has ended. The library calls none of its functions any more except close, and the layer no longer
     * accesses memory that it was given. */
    TG_P2P_ENDED,
} tg_p2p_phase;

/* A function of the library. A layer calls it to report that the operation with this token is complete. For a receive,
 * bytes is the number of bytes received. For a send it is ignored. */
typedef void (*tg_p2p_completed_fn)(void *token, size_t bytes);

/* The functions of a message layer. `state` is one rank's end of the layer, which carries messages of up to 128 KiB
 * between the ranks. Messages from one rank to another with the same tag (0 to 32000) must arrive in the order of
 * sending. The context's thread calls every slot, and every slot must return at once. Slots that return int return 0 on
 * success, and on failure an error number of the layer's own. The first error ends all communicators over the layer. */
typedef struct tg_p2p_ops {
    size_t size;      /* sizeof(tg_p2p_ops) */
    const char *name; /* returned by tg_comm_transport */

    /* Required slots. send and receive start an operation. The layer may use the memory until poll has called
     * `completed` with the token of the operation. `to` and `from` are ranks, counted from 0. A receive whose `from` is
     * -1 accepts a message from any rank. */
    int (*send)(void *state, const void *data, size_t bytes, int to, int tag, void *token);
    int (*receive)(void *state, void *data, size_t capacity, int from, int tag, void *token);
    /* Calls `completed` once for each operation that has become complete since the last poll. */
    int (*poll)(void *state, tg_p2p_completed_fn completed);
    /* Writes the text of an error number to buf: at most n bytes, including the terminating 0. */
    void (*explain)(void *state, int error, char *buf, size_t n);
    /* Frees state. Calls `completed`, with 0 bytes, for each receive that is not complete. Sends may stay
     * incomplete: the layer may go on reading their memory, which the library then never frees. quiet true means that
     * every rank has sent its last message. If quiet is false, more messages may arrive; a state that is
     * created later must not receive them. */
    void (*close)(void *state, bool quiet, tg_p2p_completed_fn completed);

    /* Optional slot. Returns the phase of the layer. NULL means that the layer is always TG_P2P_OPEN. */
    tg_p2p_phase (*phase)(void *state);
    /* Optional slot. Returns NULL while messages of that rank can still arrive, or wait for a receive. Otherwise the
     * rank is lost: returns "" if its process has ended, and else why it cannot be reached, such as "connection timed
     * out". Sends to a lost rank then complete, and receives from it complete with 0 bytes; neither is an error. NULL
     * means that the layer cannot tell: ranks whose process ends are then reported at the deadline. */
    const char *(*lost)(void *state, int rank);
} tg_p2p_ops;

/* Creates a communicator of `size` ranks over the given layer. Every rank must make the call, and later call
 * tg_comm_free, which waits for the other ranks. Ranks of one node that are processes exchange data through shared
 * memory instead of the layer. If several ranks of a node are threads of one process, all ranks of that node use the
 * layer.
 *
 * The library calls ops->close when the last communicator over state is freed. If tg_comm_p2p_new fails, it calls
 * ops->close before it returns, provided that ops->size includes that slot, and returns an inert communicator
 * (tapegrad.h). */
TG_API tg_comm *tg_comm_p2p_new(tg_ctx *ctx, const tg_p2p_ops *ops, void *state, int rank, int size);

#ifdef __cplusplus
}
#endif

#endif
