/* The data of a call: what each rank sends to each other rank, and moving it piece by piece. */
#ifndef TG_P2P_FLOW_H
#define TG_P2P_FLOW_H

#include "comm/p2p/call.h"

/* The data that one rank sends to another in one phase of a call, or a piece of this data. */
typedef struct tg_p2p_flow {
    char *data;
    int64_t n; /* number of elements */
} tg_p2p_flow;

size_t tg_p2p_element(const tg_p2p_call *c); /* bytes of an element */
bool tg_p2p_sums(const tg_p2p_call *c);      /* whether the call sums over ranks */
/* Returns whether the call is an all-reduce so small that every rank sums all of it. */
bool tg_p2p_whole(const tg_p2p_call *c);
/* Returns what this rank sends to member `to` in this phase. */
tg_p2p_flow tg_p2p_out(const tg_p2p_call *c, int to, int phase);
/* Returns where this rank stores what it receives from member `from` in this phase. The result's data is NULL if this
 * rank does not store what it receives, but sums it. */
tg_p2p_flow tg_p2p_in(const tg_p2p_call *c, int from, int phase);
/* Returns where this rank stores its sum. *own: this rank's own addend. */
tg_p2p_flow tg_p2p_sum(const tg_p2p_call *c, const char **own);
/* Returns whether the data f is so small that it is inline: contained in the message with which its sender arrives. */
bool tg_p2p_is_inline(const tg_p2p_call *c, tg_p2p_flow f, int phase);
/* Return the number of pieces into which the data f is cut, and piece number `index`. */
int64_t tg_p2p_piece_count(const tg_p2p_call *c, tg_p2p_flow f);
tg_p2p_flow tg_p2p_piece_of(const tg_p2p_call *c, tg_p2p_flow f, int64_t index);

/* ---- pieces.c ---- */

/* Begins to move the data of a call at which all members have arrived and agree. */
void tg_p2p_begin(tg_p2p_call *c);
/* Does what can be done for the call now, and ends it if it is done. */
void tg_p2p_advance(tg_p2p_call *c);
/* Stores the pieces that have arrived for the group, except those that are to be summed. */
void tg_p2p_use_pieces(tg_p2p_group *g);

#endif
