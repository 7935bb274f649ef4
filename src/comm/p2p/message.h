/* The messages that the ranks of the transport between nodes send to each other. */
#ifndef TG_P2P_MESSAGE_H
#define TG_P2P_MESSAGE_H

#include "comm/protocol.h"
#include "comm/signature.h"

enum {
    TG_P2P_MESSAGE = 2048, /* most bytes of a message */
    TG_P2P_SITE = TG_SITE_TEXT,
    TG_P2P_FAILURE = 1536 /* most bytes of an error's text, with the terminating 0 */
};

/* Identifies a group on all its members without an exchange. base: a digest of the parent and the members; ordinal:
 * the number of earlier groups with this digest. */
typedef struct tg_p2p_key {
    uint64_t base, ordinal;
} tg_p2p_key;

/* The end of a group: its key, and the first collective that is lost. */
typedef struct tg_p2p_end {
    tg_p2p_key group;
    uint64_t from;
} tg_p2p_end;

/* Kinds of messages. The sender and the receiver are those of the message. */
typedef enum tg_p2p_kind {
    TG_P2P_CALL,    /* the sender has arrived at a collective */
    TG_P2P_SEND,    /* the sender has arrived at a send (tg_comm_send) to the receiver */
    TG_P2P_TAKEN,   /* the sender has stored the inline data of a TG_P2P_SEND that it got from the receiver */
    TG_P2P_REQUEST, /* the sender requests the next piece of the data that the receiver has for it */
    TG_P2P_FAIL,    /* the group has failed; payload: the other group that a deadlock ends (tg_p2p_end), or nothing */
    TG_P2P_LEAVE,   /* the sender has freed its communicator of the group, or moved it to the group after a recovery */
    TG_P2P_MISSED,  /* states how many calls the sender has missed */
    TG_P2P_RECOVER, /* the sender has called tg_comm_recover */
    TG_P2P_DECIDE,  /* lists the members that form the next group */
    TG_P2P_FAILED,  /* the sender's context holds an error */
    TG_P2P_CLEARED, /* the sender's context no longer holds an error */
    TG_P2P_PROBE,   /* the sender waits for the receiver; serves to find deadlocks (deadlock.c) */
    TG_P2P_BYE,     /* the sender's last message */
} tg_p2p_kind;

/* A message. Fields that a kind does not use are 0. */
typedef struct tg_p2p_message {
    /* pair: of a request or a probe, whether its call is a send or receive. phase: of a request, the phase of the
     * piece; of a probe, 1 if the sender waits in a receive. */
    uint8_t kind, pair, phase, unused;
    int32_t rank, member;   /* the sender's number in the world and in the group */
    int32_t tag;            /* of a request: the tag that its answer must have */
    int32_t status, cause;  /* of a failure. cause: the rank that caused it; of a probe, the rank that sent it first */
    uint32_t text, payload; /* bytes in the body: a text with its terminating 0, then data for the receiver */
    tg_p2p_key group;
    uint64_t sequence; /* of the call; of FAIL: the first collective that is lost; of MISSED: number of missed calls */
    tg_signature signature;
    /* count: number of elements of the call; of a probe, the number of the probe. to_you, from_you: of an all-to-all,
     * numbers of elements that the sender sends to the receiver and expects from it. */
    int64_t count, to_you, from_you;
    uint64_t balance; /* of an all-to-all: see tg_p2p_call */
    char body[];
} tg_p2p_message;

#endif
