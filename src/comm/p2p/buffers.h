/* Sending and receiving through the message layer. */
#ifndef TG_P2P_BUFFERS_H
#define TG_P2P_BUFFERS_H

#include "comm/p2p/rank.h"

/* Allocates the buffers for messages, and posts the receives. */
tg_status tg_p2p_open(tg_p2p_rank *self);
/* Closes the layer, and frees the buffers. */
void tg_p2p_close(tg_p2p_rank *self);
/* Start to receive into the buffer from rank `source` (-1: any), or to send from it. The buffer is then in flight. */
tg_status tg_p2p_receive(tg_p2p_rank *self, tg_p2p_buffer *buffer, size_t capacity, int source, int tag);
tg_status tg_p2p_send(tg_p2p_rank *self, tg_p2p_buffer *buffer, size_t bytes, int to, int tag);
/* Returns an empty message, or NULL after an error. */
tg_p2p_message *tg_p2p_draft(tg_p2p_rank *self, tg_p2p_kind kind, const tg_p2p_group *g);
/* Writes the text of a draft. */
void tg_p2p_write(tg_p2p_message *m, const char *text);
/* Sends a draft; m NULL: does nothing. */
void tg_p2p_post(tg_p2p_rank *self, tg_p2p_message *m, int to);
/* Answers a request with an empty piece. */
void tg_p2p_refuse(tg_p2p_rank *self, int to, int tag);
/* Polls the layer: buffers that have completed are no longer in flight. */
void tg_p2p_poll(tg_p2p_rank *self);
/* Returns the oldest message that has arrived; NULL: none. tg_p2p_taken releases it. */
const tg_p2p_message *tg_p2p_next(tg_p2p_rank *self);
void tg_p2p_taken(tg_p2p_rank *self);
/* Returns whether the layer has sent all messages. */
bool tg_p2p_sent(const tg_p2p_rank *self);

#endif
