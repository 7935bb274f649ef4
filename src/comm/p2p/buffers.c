/* What the layer does for the transport: messages and pieces that fly, and finding out what has landed. */
#include "comm/p2p/p2p.h"

enum { MESSAGE_TAG = 0, ANYBODY = -1 };

/* ---- What flies ---- */

/* The first error of the layer ends everything that needs it. */
static tg_status check(tg_link_rank *self, const char *call, int error) {
    char text[256] = "";
    if (!error) return TG_OK;
    self->broken = true;
    self->layer->explain(self->state, error, text, sizeof text);
    return tg_fail(self->ctx, TG_ERR_IO, "%s: %s failed: %s", self->layer->name, call, text);
}

tg_status tg_link_receive(tg_link_rank *self, tg_link_box *box, size_t room, int source, int tag) {
    TG_TRY(check(self, "receiving", self->layer->receive(self->state, box->data, room, source, tag, box)));
    box->flying = true;
    return TG_OK;
}

tg_status tg_link_send(tg_link_rank *self, tg_link_box *box, size_t bytes, int to, int tag) {
    TG_TRY(check(self, "sending", self->layer->send(self->state, box->data, bytes, to, tag, box)));
    box->flying = true;
    return TG_OK;
}

static void landed(void *token, size_t bytes) {
    tg_link_box *box = token;
    box->bytes = bytes;
    box->flying = false;
}

void tg_link_poll(tg_link_rank *self) {
    if (!self->broken) check(self, "polling", self->layer->poll(self->state, landed));
}

/* ---- Messages out ---- */

/* A box and its message in one piece of memory; all of them are linked, too, through `all`. */
typedef struct sheet {
    tg_link_box box;
    struct sheet *all;
    _Alignas(16) char bytes[TG_LINK_MESSAGE];
} sheet;

static sheet *sheet_of(tg_link_message *m) { return (sheet *)((char *)m - offsetof(sheet, bytes)); }

/* Those that have landed are found again when there is no free one. */
static void collect(tg_link_rank *self) {
    self->out = NULL;
    for (sheet *s = (sheet *)self->all_out; s; s = s->all) {
        if (s->box.flying) continue;
        s->box.next = self->out;
        self->out = &s->box;
    }
}

static bool sheet_new(tg_link_rank *self) {
    sheet *s = tg_host_alloc(self->ctx, sizeof *s);
    if (!s) return false;
    s->box.data = s->bytes;
    s->all = (sheet *)self->all_out;
    self->all_out = &s->box;
    s->box.next = self->out;
    self->out = &s->box;
    self->n_out++;
    return true;
}

static sheet *sheet_take(tg_link_rank *self) {
    if (!self->out) collect(self);
    if (!self->out && !sheet_new(self)) return NULL;
    sheet *s = (sheet *)self->out;
    self->out = s->box.next;
    return s;
}

tg_link_message *tg_link_draft(tg_link_rank *self, tg_link_kind kind, const tg_link_group *g) {
    sheet *s = self->broken ? NULL : sheet_take(self);
    if (!s) return NULL;
    tg_link_message *m = (tg_link_message *)s->bytes;
    *m = (tg_link_message){.kind = (uint8_t)kind, .rank = self->me};
    if (g) {
        m->group = g->key;
        m->member = g->rank;
    }
    return m;
}

void tg_link_write(tg_link_message *m, const char *text) {
    size_t n = strnlen(text, TG_LINK_FAILURE - 1);
    memcpy(m->body, text, n);
    m->body[n] = 0;
    m->text = (uint32_t)n + 1;
}

void tg_link_post(tg_link_rank *self, tg_link_message *m, int to) {
    if (m) tg_link_send(self, &sheet_of(m)->box, sizeof *m + m->text + m->payload, to, MESSAGE_TAG);
}

void tg_link_refuse(tg_link_rank *self, int to, int tag) {
    sheet *s = self->broken ? NULL : sheet_take(self);
    if (s) tg_link_send(self, &s->box, 0, to, tag);
}

bool tg_link_sent(const tg_link_rank *self) {
    for (const sheet *s = (const sheet *)self->all_out; s; s = s->all)
        if (s->box.flying) return false;
    return true;
}

/* ---- Messages in ---- */

/* From anybody, in the order in which they were posted: so messages of one rank keep theirs. */
static tg_status listen(tg_link_rank *self, int i) {
    return tg_link_receive(self, &self->in[i], TG_LINK_MESSAGE, ANYBODY, MESSAGE_TAG);
}

const tg_link_message *tg_link_next(tg_link_rank *self) {
    const tg_link_box *box = &self->in[self->next_in];
    return self->broken || box->flying ? NULL : box->data;
}

void tg_link_taken(tg_link_rank *self) {
    int i = self->next_in;
    self->next_in = (i + 1) % TG_LINK_RECEIVES;
    listen(self, i);
}

/* ---- Begin and end ---- */

tg_status tg_link_open(tg_link_rank *self) {
    enum { OUT = 32 };
    char *bytes = tg_host_alloc(self->ctx, (size_t)TG_LINK_RECEIVES * TG_LINK_MESSAGE);
    if (!bytes) return self->ctx->run.status;
    for (int i = 0; i < TG_LINK_RECEIVES; i++) self->in[i].data = bytes + (size_t)i * TG_LINK_MESSAGE;
    for (int i = 0; i < TG_LINK_RECEIVES; i++) TG_TRY(listen(self, i));
    for (int i = 0; i < OUT + 4 * self->size; i++)
        if (!sheet_new(self)) return self->ctx->run.status;
    return TG_OK;
}

/* What has not been sent by now never will be: its memory is the layer's, if that goes on. */
void tg_link_close(tg_link_rank *self) {
    tg_ctx *ctx = self->ctx;
    bool listening = false;
    if (self->state) self->layer->close(self->state, self->quiet, landed);
    for (sheet *s = (sheet *)self->all_out, *next; s; s = next) {
        next = s->all;
        if (!s->box.flying) tg_host_free(ctx, s, sizeof *s);
    }
    for (int i = 0; i < TG_LINK_RECEIVES; i++) listening |= self->in[i].flying;
    if (!listening) tg_host_free(ctx, self->in[0].data, (size_t)TG_LINK_RECEIVES * TG_LINK_MESSAGE);
}
