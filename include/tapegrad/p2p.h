/* Ranks over any layer of messages: what tg_comm_mpi_new (tapegrad/mpi.h) is made of, for those who have another. */
#ifndef TAPEGRAD_P2P_H
#define TAPEGRAD_P2P_H

#include <tapegrad/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tg_p2p_phase {
    TG_P2P_OPENING, /* other ranks have yet to come */
    TG_P2P_OPEN,
    TG_P2P_ENDED, /* from below: nothing may be called any more, and nobody reads or writes what was given to it */
} tg_p2p_phase;

/* Tells that an operation is over, and how many bytes were received. */
typedef void (*tg_p2p_landed)(void *token, size_t bytes);

/* One rank's end of a layer that carries messages of bytes, at most 128 KiB long, between ranks 0 to size - 1. What one
 * rank sends another with one tag (0 to 32000) arrives in that order. All slots are called by the thread of the context
 * and return at once. Errors are the layer's own numbers, 0: none; the first one ends the communicators. */
typedef struct tg_p2p_ops {
    size_t size;
    const char *name; /* tg_comm_transport */

    /* Required. The memory is the layer's until poll has told that token has landed. from: -1 is any rank. */
    int (*send)(void *state, const void *data, size_t bytes, int to, int tag, void *token);
    int (*receive)(void *state, void *data, size_t room, int from, int tag, void *token);
    int (*poll)(void *state, tg_p2p_landed landed); /* of all that has landed since the last poll */
    void (*explain)(void *state, int error, char *buf, size_t n);
    /* Frees state. Receives that have not landed are taken back, with landed; what has not been sent by now may stay
     * the layer's for good. quiet: every rank has sent its last message; else some may still come, and no later state
     * may get them. */
    void (*close)(void *state, bool quiet, tg_p2p_landed landed);

    /* Optional */
    tg_p2p_phase (*phase)(void *state); /* NULL: open all the time */
} tg_p2p_ops;

/* A communicator of size ranks that reach each other so; collective over them, as is tg_comm_free, which waits for the
 * others. Processes of one node meet in its memory and need the layer no more; where ranks of a node are threads of one
 * process, that node's meet through the layer. Closes state when the last communicator over it is freed, and at once on
 * an error, if the table's size reaches that slot. Inert on error. */
TG_API tg_comm *tg_comm_p2p_new(tg_ctx *ctx, const tg_p2p_ops *ops, void *state, int rank, int size);

#ifdef __cplusplus
}
#endif

#endif
