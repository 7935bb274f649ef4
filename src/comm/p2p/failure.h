/* The end of groups: failures, disagreements, deadlocks, and the tables of the failure protocol. */
#ifndef TG_P2P_FAILURE_H
#define TG_P2P_FAILURE_H

#include "comm/p2p/call.h"

/* Returns whether the call cannot be finished because its group has failed. A collective before the first lost one goes
 * on: a member may have finished it and failed afterward. A send or a receive whose peer has arrived goes on too. No
 * call goes on that is itself marked as lost. */
bool tg_p2p_cannot_finish(const tg_p2p_call *c);
/* Answers with empty pieces the requests for pieces of the call that were not answered yet. */
void tg_p2p_refuse_all(tg_p2p_call *c);
/* Ends the group. The first failure is kept; only `from`, the first collective that is lost, may decrease later.
 * reporter: the rank that found the failure; if it is this rank, the function notifies the other members. */
void tg_p2p_fail(tg_p2p_group *g, tg_status status, int culprit, int reporter, const char *text, uint64_t from);
/* Handles TG_P2P_FAIL. */
void tg_p2p_failed(tg_p2p_group *g, const tg_p2p_message *m);
/* Notes that g and another group end because of a deadlock, unless g has failed before. Every message about the end of
 * g then contains the end of the other group, so that a rank learns of both at once. Otherwise it could announce its
 * own failure while it knows of one end only, and members of the other group would report that failure. */
void tg_p2p_end_with(tg_p2p_group *g, tg_p2p_end other);
/* Passes disagreements on: for every open group that has failed because of a disagreement that another rank reported,
 * sends the reason to its members once. Called before this rank announces its own failure. Otherwise a member could
 * receive that announcement first, and report it instead of the disagreement, because the message of the rank that
 * found the disagreement may still be in flight. */
void tg_p2p_pass_on(tg_p2p_rank *self);
/* Returns why nothing can come from that rank any more, though it has not sent TG_P2P_BYE: "" if its process has ended,
 * otherwise the layer's words. NULL: it is not so, or the layer cannot tell. */
const char *tg_p2p_lost(const tg_p2p_rank *self, int rank);
/* Returns whether nothing more is to be expected of that rank, and nothing need be sent to it. */
bool tg_p2p_is_gone(const tg_p2p_rank *self, int rank);
/* Returns whether the call still waits for that member to arrive. */
bool tg_p2p_awaited(const tg_p2p_call *c, int member);
/* Fills *q with the call of a member that has arrived. peer: the other member of a send or a receive. */
void tg_p2p_quote(const tg_p2p_call *c, int member, int peer, tg_quoted *q);
/* Ends the group if members that have arrived disagree about the call. If their signatures differ, every rank that does
 * this when all members have arrived writes the same text. */
void tg_p2p_report_dispute(tg_p2p_call *c);
/* Returns whether that member, which has arrived, agrees with this rank. */
bool tg_p2p_agree(const tg_p2p_call *c, int member);
/* Returns the listener that announces the context's errors to the other ranks. */
tg_listener tg_p2p_listener(void);
/* Notes that the context of a rank (which may be this one) holds an error. */
void tg_p2p_peer_failed(tg_p2p_rank *self, int rank, tg_status status, int cause, const char *text);

/* ---- deadlock.c ---- */

/* Sends a probe to the members that have not arrived at the call, if a probe is due. since: when this rank began to
 * wait. */
void tg_p2p_probe(const tg_p2p_call *c, double since);
/* Handles a probe. */
void tg_p2p_probed(tg_p2p_group *g, const tg_p2p_message *m);

/* ---- control.c ---- */

extern const tg_control_ops tg_p2p_control;
extern const tg_mover_ops tg_p2p_mover;
static inline tg_p2p_group *tg_p2p_of(tg_control *c) { return (tg_p2p_group *)c; }
/* Handles TG_P2P_RECOVER and TG_P2P_DECIDE. */
void tg_p2p_recovery(tg_p2p_group *g, const tg_p2p_message *m);

#endif
