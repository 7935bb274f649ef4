/* Communicators over any point-to-point message layer. tg_comm_mpi_new (tapegrad/mpi.h) is built on this interface.
 * Include it to use another message layer. */
#ifndef TAPEGRAD_P2P_H
#define TAPEGRAD_P2P_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tg_p2p_phase {
    TG_P2P_OPENING, /* other ranks have not connected yet */
    TG_P2P_OPEN,
    /* The layer has ended: none of its functions may be called, and it no longer accesses memory that it was given. */
    TG_P2P_ENDED,
} tg_p2p_phase;

/* Reports that the operation of `token` is complete, and how many bytes were received. */
typedef void (*tg_p2p_completed_fn)(void *token, size_t bytes);

/* One rank's end of a layer that carries messages of up to 128 KiB between ranks 0 to size - 1. Messages from one
 * rank to another with the same tag (0 to 32000) arrive in the order of sending. The context's thread calls every
 * slot, and every slot returns at once. Errors are the layer's own numbers; 0: no error. The first error ends the
 * communicators. */
typedef struct tg_p2p_ops {
    size_t size;
    const char *name; /* returned by tg_comm_transport */

    /* Required. send and receive give the memory to the layer until poll calls completed with its token. from -1: any
     * rank. */
    int (*send)(void *state, const void *data, size_t bytes, int to, int tag, void *token);
    int (*receive)(void *state, void *data, size_t capacity, int from, int tag, void *token);
    /* Calls `completed` once for each operation that was completed since the last poll. */
    int (*poll)(void *state, tg_p2p_completed_fn completed);
    /* Writes the text of an error number, at most n bytes with the terminating 0. */
    void (*explain)(void *state, int error, char *buf, size_t n);
    /* Frees state. Calls completed, with 0 bytes, for each receive that has not completed. The layer may keep the
     * memory of unfinished sends forever. quiet: every rank has sent its last message. If it is false, more messages
     * may arrive, and a state created later must not receive them. */
    void (*close)(void *state, bool quiet, tg_p2p_completed_fn completed);

    /* Optional */
    tg_p2p_phase (*phase)(void *state); /* NULL: the layer is always open */
} tg_p2p_ops;

/* Creates a communicator of `size` ranks over the given layer. It is collective over these ranks. tg_comm_free is
 * collective too, and waits for the other ranks. Processes of one node use shared memory and not the layer; if ranks
 * of a node are threads of one process, the ranks of that node use the layer. The library closes state when the last
 * communicator over it is freed, or at once on an error, if the table's size includes the close slot. Returns an
 * inert communicator on error. */
TG_API tg_comm *tg_comm_p2p_new(tg_ctx *ctx, const tg_p2p_ops *ops, void *state, int rank, int size);

#ifdef __cplusplus
}
#endif

#endif
