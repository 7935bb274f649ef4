/* The calls of a group: which members have arrived at a call, and whether they agree. */
#ifndef TG_P2P_CALL_H
#define TG_P2P_CALL_H

#include "comm/p2p/group.h"

/* What this rank knows of one member's part of a call. */
typedef struct tg_p2p_side {
    bool arrived;
    tg_signature signature;
    int64_t count, to_me, from_me; /* the fields count, to_you and from_you of the member's message */
    uint64_t balance;
    int64_t requested[TG_P2P_PHASES];      /* number of pieces that this rank has requested from the member */
    int64_t wanted[TG_P2P_PHASES];         /* number of pieces that the member has requested from this rank */
    int64_t served[TG_P2P_PHASES];         /* number of the wanted pieces that this rank has sent or refused */
    int tag[TG_P2P_PHASES][TG_P2P_PIECES]; /* tags of the wanted pieces that this rank has yet to send */
    char *inline_data;                     /* the data that the member's message contained */
    char site[TG_P2P_SITE];
} tg_p2p_side;

struct tg_p2p_call {
    tg_p2p_group *g;
    tg_p2p_request *request; /* of this rank; NULL: it has not arrived */
    uint64_t sequence;
    uint64_t collectives; /* of a send or a receive: number of the group's collectives before it */
    bool ready; /* all members have arrived and agree */
    bool pair;  /* a send or a receive */
    bool lost;  /* it cannot be finished, even if it precedes failed_at or its peer has arrived */
    int peer;   /* of a send or a receive: the other member */
    int arrived; /* number of members that have arrived; of a send or a receive: 1 if the peer has */
    /* Of an all-to-all: the sum of digests of the counts that this rank sends to each member, minus those of the counts
     * that it expects from each. If every two members agree, the sum of the balances of all ranks is 0. If this sum is
     * not 0, a rank that agrees with all members waits for the report of two members that disagree. */
    uint64_t balance;
    bool disputed; /* a member's call differs from this rank's; reported when all have arrived, or after 0.1 s */
    tg_transfer t;
    int64_t *send_at, *recv_at; /* where parts begin: size + 1 numbers, in `begins`; NULL: equal parts */
    int64_t *begins;
    void *copy; /* a copy of src, for an all-to-all in place; NULL: none */
    tg_signature signature;
    int64_t in, out;      /* number of pieces that have yet to be stored or summed, and that have yet to be sent */
    int64_t sums, summed; /* number of pieces of the part that this rank sums; number of those that it has summed */
    int64_t owed;         /* number of pieces requested from this rank that it has neither sent nor refused */
    tg_p2p_side *side;    /* one for each member; a send or a receive has one */
};

static inline tg_p2p_side *tg_p2p_side_of(const tg_p2p_call *c, int member) { return &c->side[c->pair ? 0 : member]; }
static inline tg_p2p_call *tg_p2p_call_at(tg_p2p_group *g, uint64_t sequence) {
    return &g->calls[sequence % (uint64_t)(2 * g->window)];
}
/* Returns the call's number, from 0, for tg_signature_entry. A send or receive has that of the next collective. */
static inline uint64_t tg_p2p_number(const tg_p2p_call *c) { return c->pair ? c->collectives : c->sequence; }
/* Returns the number of the first collective that is lost if the call fails. If the call is a send or a receive, that
 * is the next collective. */
static inline uint64_t tg_p2p_lost_from(const tg_p2p_call *c) { return c->pair ? c->g->sequence : c->sequence; }
/* Returns the call in the place of send or receive number `sequence`; NULL: there are no places yet. */
static inline tg_p2p_call *tg_p2p_pair_at(const tg_p2p_pair_calls *m, uint64_t sequence) {
    return m->capacity ? m->call[sequence % m->capacity] : NULL;
}

/* Starts a call: notifies the members that this rank has arrived, and compares the call with theirs. A send only
 * notifies, and a receive only compares. Waits while `window` collectives of the group are in flight. */
tg_status tg_p2p_start(tg_p2p_group *g, const tg_transfer *t, tg_p2p_request *r);
/* Handles a message for the group. */
void tg_p2p_deliver(tg_p2p_group *g, const tg_p2p_message *m);
/* The handlers of TG_P2P_CALL and TG_P2P_SEND, of TG_P2P_REQUEST, and of TG_P2P_TAKEN. */
void tg_p2p_arrival(tg_p2p_group *g, const tg_p2p_message *m);
void tg_p2p_requested(tg_p2p_rank *self, const tg_p2p_message *m);
void tg_p2p_send_taken(tg_p2p_group *g, const tg_p2p_message *m);
/* Ends the call for this rank and frees its place. */
void tg_p2p_end_call(tg_p2p_call *c);
/* Writes where this rank made a call. */
void tg_p2p_site(const tg_p2p_rank *self, const void *site, char *buf, size_t n);

#endif
