/* Sending and receiving through the message layer: buffers, and the messages in them. */
#include "base/memory/host_memory.h"
#include "comm/p2p/buffers.h"
#include "comm/p2p/group.h"

enum { MESSAGE_TAG = 0, ANYBODY = -1 };

/* ---- Sending and receiving ---- */

/* Records an error of the layer; 0 is none. `call` describes what failed. The first error ends all use of the layer,
 * except that the layer is closed. */
static tg_status check(tg_p2p_rank *self, const char *call, int error) {
    char text[256] = "";
    if (!error) return TG_OK;
    self->broken = true;
    self->layer->explain(self->state, error, text, sizeof text);
    return tg_fail(self->ctx, TG_ERR_IO, "%s: %s failed: %s", self->layer->name, call, text);
}

tg_status tg_p2p_receive(tg_p2p_rank *self, tg_p2p_buffer *buffer, size_t capacity, int source, int tag) {
    TG_TRY(check(self, "receiving", self->layer->receive(self->state, buffer->data, capacity, source, tag, buffer)));
    buffer->in_flight = true;
    return TG_OK;
}

tg_status tg_p2p_send(tg_p2p_rank *self, tg_p2p_buffer *buffer, size_t bytes, int to, int tag) {
    TG_TRY(check(self, "sending", self->layer->send(self->state, buffer->data, bytes, to, tag, buffer)));
    buffer->in_flight = true;
    return TG_OK;
}

/* Called by the layer when it is done with a buffer. */
static void completed(void *token, size_t bytes) {
    tg_p2p_buffer *buffer = token;
    buffer->bytes = bytes;
    buffer->in_flight = false;
}

void tg_p2p_poll(tg_p2p_rank *self) {
    if (!self->broken) check(self, "polling", self->layer->poll(self->state, completed));
}

/* ---- Outgoing messages ---- */

/* A buffer and its message in one block of memory. `all` links all of them; buffer.next links the free ones. */
typedef struct message_buffer {
    tg_p2p_buffer buffer;
    struct message_buffer *all;
    _Alignas(16) char bytes[TG_P2P_MESSAGE];
} message_buffer;

static message_buffer *buffer_of_message(tg_p2p_message *m) {
    return (message_buffer *)((char *)m - offsetof(message_buffer, bytes));
}

/* Makes a new list of free buffers from those that are no longer in flight. Called when the list is empty. */
static void collect(tg_p2p_rank *self) {
    self->out = NULL;
    for (message_buffer *s = (message_buffer *)self->all_out; s; s = s->all) {
        if (s->buffer.in_flight) continue;
        s->buffer.next = self->out;
        self->out = &s->buffer;
    }
}

static bool message_buffer_new(tg_p2p_rank *self) {
    message_buffer *s = tg_host_alloc(self->ctx, sizeof *s);
    if (!s) return false;
    s->buffer.data = s->bytes;
    s->all = (message_buffer *)self->all_out;
    self->all_out = &s->buffer;
    s->buffer.next = self->out;
    self->out = &s->buffer;
    return true;
}

static message_buffer *message_buffer_take(tg_p2p_rank *self) {
    if (!self->out) collect(self);
    if (!self->out && !message_buffer_new(self)) return NULL;
    message_buffer *s = (message_buffer *)self->out;
    self->out = s->buffer.next;
    return s;
}

tg_p2p_message *tg_p2p_draft(tg_p2p_rank *self, tg_p2p_kind kind, const tg_p2p_group *g) {
    message_buffer *s = self->broken ? NULL : message_buffer_take(self);
    if (!s) return NULL;
    tg_p2p_message *m = (tg_p2p_message *)s->bytes;
    *m = (tg_p2p_message){.kind = (uint8_t)kind, .rank = self->me};
    if (g) {
        m->group = g->key;
        m->member = g->control.rank;
    }
    return m;
}

void tg_p2p_write(tg_p2p_message *m, const char *text) {
    size_t n = strnlen(text, TG_P2P_FAILURE - 1);
    memcpy(m->body, text, n);
    m->body[n] = 0;
    m->text = (uint32_t)n + 1;
}

void tg_p2p_post(tg_p2p_rank *self, tg_p2p_message *m, int to) {
    if (m) tg_p2p_send(self, &buffer_of_message(m)->buffer, sizeof *m + m->text + m->payload, to, MESSAGE_TAG);
}

void tg_p2p_refuse(tg_p2p_rank *self, int to, int tag) {
    message_buffer *s = self->broken ? NULL : message_buffer_take(self);
    if (s) tg_p2p_send(self, &s->buffer, 0, to, tag);
}

bool tg_p2p_sent(const tg_p2p_rank *self) {
    for (const message_buffer *s = (const message_buffer *)self->all_out; s; s = s->all)
        if (s->buffer.in_flight) return false;
    return true;
}

/* ---- Incoming messages ---- */

/* Posts receive i, for a message from any rank. Receives complete in the order in which they were posted, so the
 * messages of each rank keep their order. */
static tg_status listen(tg_p2p_rank *self, int i) {
    return tg_p2p_receive(self, &self->in[i], TG_P2P_MESSAGE, ANYBODY, MESSAGE_TAG);
}

const tg_p2p_message *tg_p2p_next(tg_p2p_rank *self) {
    const tg_p2p_buffer *buffer = &self->in[self->next_in];
    return self->broken || buffer->in_flight ? NULL : buffer->data;
}

void tg_p2p_taken(tg_p2p_rank *self) {
    int i = self->next_in;
    self->next_in = (i + 1) % TG_P2P_RECEIVES;
    listen(self, i);
}

/* ---- Open and close ---- */

tg_status tg_p2p_open(tg_p2p_rank *self) {
    enum { OUT = 32 };
    char *bytes = tg_host_alloc(self->ctx, (size_t)TG_P2P_RECEIVES * TG_P2P_MESSAGE);
    if (!bytes) return self->ctx->run.status;
    for (int i = 0; i < TG_P2P_RECEIVES; i++) self->in[i].data = bytes + (size_t)i * TG_P2P_MESSAGE;
    for (int i = 0; i < TG_P2P_RECEIVES; i++) TG_TRY(listen(self, i));
    for (int i = 0; i < OUT + 4 * self->size; i++)
        if (!message_buffer_new(self)) return self->ctx->run.status;
    return TG_OK;
}

/* Leaks the buffers that are still in flight after the layer is closed, because the layer may still use them. */
void tg_p2p_close(tg_p2p_rank *self) {
    tg_ctx *ctx = self->ctx;
    bool listening = false;
    if (self->state) self->layer->close(self->state, self->quiet, completed);
    for (message_buffer *s = (message_buffer *)self->all_out, *next; s; s = next) {
        next = s->all;
        if (!s->buffer.in_flight) tg_host_free(ctx, s, sizeof *s);
    }
    for (int i = 0; i < TG_P2P_RECEIVES; i++) listening |= self->in[i].in_flight;
    if (!listening) tg_host_free(ctx, self->in[0].data, (size_t)TG_P2P_RECEIVES * TG_P2P_MESSAGE);
}
