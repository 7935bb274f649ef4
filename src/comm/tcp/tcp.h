/* TCP as a message layer (tapegrad/p2p.h), over the streams of libuv. A plugin of its own, so that libtapegrad does not
 * need libuv.
 *
 * Two ranks share one connection. On it each message is a head, with the number of bytes and the tag, and then these
 * bytes. meet.c connects the ranks; then layer.c sends and receives. Both read a connection in blocks of a known size
 * (connection.c), so nothing that comes from a peer decides how much memory is used, except a head, whose numbers are
 * checked.
 *
 * Everything runs on the context's thread, inside the calls of the layer: libuv has a loop for each rank, and no thread
 * of its own. */
#ifndef TG_TCP_H
#define TG_TCP_H

#include <uv.h>

#include <tapegrad/p2p.h>

#include "comm/comm.h"
#include "comm/tcp/world.h"

typedef struct tg_tcp_layer tg_tcp_layer;
typedef struct tg_tcp_connection tg_tcp_connection;

/* ---- connection.c ---- */

/* The head of a message, which precedes its bytes. */
typedef struct tg_tcp_head {
    uint32_t bytes, tag;
} tg_tcp_head;

/* The first data that each end of a new connection sends (meet.c): first the end that listens, then the other end. */
typedef struct tg_tcp_greeting {
    char magic[8];
    uint64_t job;         /* hash of the name of the run */
    uint32_t version;     /* of the structs that ranks exchange */
    uint32_t ranks, rank; /* the number of ranks, and that of the sender */
    uint32_t port;        /* the port on which the sender listens for ranks above it */
} tg_tcp_greeting;

/* The address on which a rank listens, in the form in which rank 0 sends it to the other ranks. */
typedef struct tg_tcp_address {
    uint16_t family, port; /* port: in network byte order */
    uint32_t scope;
    uint8_t bytes[16]; /* an IPv4 address has only the first 4 */
} tg_tcp_address;

/* A connection. It awaits one block of bytes at a time; if `wanted` is 0, it reads nothing. */
struct tg_tcp_connection {
    uv_tcp_t socket; /* first */
    uv_connect_t connecting;
    tg_tcp_layer *layer;
    tg_tcp_connection *next;                        /* the next one in the list `strangers` (meet.h) */
    int rank;                                       /* the rank at the other end; -1: not known yet */
    bool open;                                      /* it carries messages (tg_tcp_layer_add) */
    char *into;                                     /* memory for the block */
    size_t wanted, arrived;                         /* bytes of the block; bytes that have arrived */
    void (*then)(tg_tcp_connection *c);             /* called when the block has arrived */
    void (*ended)(tg_tcp_connection *c, int error); /* called when the connection ends; error: libuv's number */
    union {
        tg_tcp_head head;
        tg_tcp_greeting greeting;
    } in;
    tg_tcp_greeting mine;           /* the greeting that this rank sends */
    /* Where the bytes of the message that is arriving now go: a receive or a letter. At most one is not NULL. */
    struct tg_tcp_receive *receive;
    struct tg_tcp_letter *letter;
};

/* A write in progress. The bytes to send must not change until it is over. */
typedef struct tg_tcp_write {
    uv_write_t request; /* first */
    tg_tcp_layer *layer;
    struct tg_tcp_write *next;
    tg_tcp_head head;
    void *token;
} tg_tcp_write;

/* Makes a connection whose socket is not connected yet. Returns NULL after recording the error. */
tg_tcp_connection *tg_tcp_connection_new(tg_tcp_layer *l);
/* Awaits n bytes, which are stored at `into`, and then calls `then`. n 0: reads nothing. */
void tg_tcp_await(tg_tcp_connection *c, void *into, size_t n, void (*then)(tg_tcp_connection *c));
/* Sends n bytes; if `head` is true, sends w->head before them. A later poll completes the token when they are sent. If
 * the connection is lost (c NULL) or libuv cannot send, drops the bytes, and the next poll completes the token. */
void tg_tcp_write_start(tg_tcp_connection *c, tg_tcp_write *w, bool head, const void *data, size_t n);
/* Returns a write; NULL after recording the error. token NULL: nothing is completed. */
tg_tcp_write *tg_tcp_write_new(tg_tcp_layer *l, void *token);
/* Completes the token, and frees the write. */
void tg_tcp_write_over(tg_tcp_write *w);
/* Ends a connection, and calls c->ended if error is not 0. c is freed when libuv has closed it. */
void tg_tcp_connection_end(tg_tcp_connection *c, int error);
/* Runs libuv's loop once: reads what has arrived, and sends what can be sent. If `wait` is true, first waits for an
 * event. */
void tg_tcp_run(tg_tcp_layer *l, bool wait);

/* ---- layer.c ---- */

/* A receive: one that waits for a message, or one that is complete, and that the next poll reports. */
typedef struct tg_tcp_receive {
    struct tg_tcp_receive *next;
    void *data, *token;
    size_t capacity, bytes;
    int from, tag; /* from: the sender; -1: any rank, until the receive is complete */
    bool taken; /* a connection is reading a message into it */
} tg_tcp_receive;

/* A message that could not be read into the memory of a receive: it came before its receive (in MPI's terms, an
 * unexpected message), or its receive is one from any rank, which gets only complete messages. */
typedef struct tg_tcp_letter {
    struct tg_tcp_letter *next;
    int from;
    tg_tcp_head head;
    size_t capacity;
    char data[];
} tg_tcp_letter;

struct tg_tcp_layer {
    uv_loop_t loop;
    tg_ctx *ctx;
    int rank, size;
    tg_tcp_connection **connection; /* to each rank; NULL: it is this rank, or not connected yet or any more */
    int *error;                     /* libuv's error with which the connection to each rank has ended; 0: it has not */
    int handles;                    /* number of connections that libuv has not closed yet */
    int writing;                    /* number of writes in progress */
    tg_p2p_completed_fn completed;  /* of the call of poll or close that is running; NULL: none */
    /* Receives that wait for a message, in the order in which they were posted; complete ones, which the next poll
     * reports; free ones. */
    tg_tcp_receive *receives, *complete, *free_receives;
    tg_tcp_letter *letters, *free_letters; /* letters in the order of arrival; free ones */
    struct tg_tcp_meeting *meeting;        /* NULL: it is over */
    tg_tcp_write *dropped, *free_writes;   /* writes that could not be sent, which the next poll reports; free ones */
};

extern const tg_p2p_ops tg_tcp_ops;
/* Returns a layer without connections, or NULL after recording the error. */
tg_tcp_layer *tg_tcp_layer_new(tg_ctx *ctx, int rank, int size);
/* Ends all connections, and frees the layer. Receives that still wait are completed with 0 bytes. completed NULL: the
 * layer has no operations in flight. */
void tg_tcp_layer_free(tg_tcp_layer *l, tg_p2p_completed_fn completed);
/* Makes c the connection with its rank, and begins to receive messages on it. */
void tg_tcp_layer_add(tg_tcp_layer *l, tg_tcp_connection *c);

/* ---- meet.c ---- */

/* Connects all ranks. */
tg_status tg_tcp_meet(tg_tcp_layer *l, const tg_tcp_opts *opts);

#endif
