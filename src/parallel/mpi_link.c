/* What MPI does for the transport: messages and pieces that fly, and finding out what has landed. */
#include "parallel/mpi_transport.h"

enum { MESSAGE_TAG = 0, FIRST_ROOM = 128 };

/* The first error of MPI ends everything that needs it. */
static tg_status link_failed(tg_mpi_rank *self, const char *call, int error) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int n = 0;
    self->broken = true;
    MPI_Error_string(error, text, &n);
    return tg_fail(self->ctx, TG_ERR_IO, "%s failed: %s", call, text);
}

/* ---- What flies ---- */

static tg_status make_room(tg_mpi_rank *self) {
    if (self->flying < self->room) return TG_OK;
    tg_ctx *ctx = self->ctx;
    size_t was = (size_t)self->room, now = was ? 2 * was : FIRST_ROOM;
    MPI_Request *requests = tg_host_alloc(ctx, now * sizeof *requests);
    MPI_Status *statuses = tg_host_alloc(ctx, now * sizeof *statuses);
    int *landed = tg_host_alloc(ctx, now * sizeof *landed);
    tg_mpi_box **boxes = tg_host_alloc(ctx, now * sizeof *boxes);
    bool all = requests && statuses && landed && boxes;
    if (all && was) {
        memcpy(requests, self->requests, was * sizeof *requests);
        memcpy(boxes, self->boxes, was * sizeof *boxes);
    }
    tg_host_free(ctx, all ? self->requests : requests, (all ? was : now) * sizeof *requests);
    tg_host_free(ctx, all ? self->statuses : statuses, (all ? was : now) * sizeof *statuses);
    tg_host_free(ctx, all ? self->landed : landed, (all ? was : now) * sizeof *landed);
    tg_host_free(ctx, all ? self->boxes : boxes, (all ? was : now) * sizeof *boxes);
    if (!all) return ctx->status;
    self->requests = requests;
    self->statuses = statuses;
    self->landed = landed;
    self->boxes = boxes;
    self->room = (int)now;
    return TG_OK;
}

static tg_status flies(tg_mpi_rank *self, tg_mpi_box *box, bool incoming, int error) {
    if (error != MPI_SUCCESS) return link_failed(self, incoming ? "MPI_Irecv" : "MPI_Isend", error);
    self->boxes[self->flying++] = box;
    box->flying = true;
    box->incoming = incoming;
    return TG_OK;
}

tg_status tg_mpi_receive(tg_mpi_rank *self, tg_mpi_box *box, size_t room, int source, int tag) {
    TG_TRY(make_room(self));
    MPI_Request *r = &self->requests[self->flying];
    return flies(self, box, true, MPI_Irecv(box->data, (int)room, MPI_BYTE, source, tag, self->comm, r));
}

tg_status tg_mpi_send(tg_mpi_rank *self, tg_mpi_box *box, size_t bytes, int to, int tag) {
    TG_TRY(make_room(self));
    MPI_Request *r = &self->requests[self->flying];
    return flies(self, box, false, MPI_Isend(box->data, (int)bytes, MPI_BYTE, to, tag, self->comm, r));
}

void tg_mpi_poll(tg_mpi_rank *self) {
    int n = 0, kept = 0;
    if (self->broken) return;
    int error = MPI_Testsome(self->flying, self->requests, &n, self->landed, self->statuses);
    if (error != MPI_SUCCESS) {
        link_failed(self, "MPI_Testsome", error);
        return;
    }
    if (n <= 0 || n == MPI_UNDEFINED) return;
    for (int i = 0; i < n; i++) {
        tg_mpi_box *box = self->boxes[self->landed[i]];
        MPI_Get_count(&self->statuses[i], MPI_BYTE, &box->bytes);
        box->flying = false;
    }
    for (int i = 0; i < self->flying; i++) {
        if (self->requests[i] == MPI_REQUEST_NULL) continue;
        self->requests[kept] = self->requests[i];
        self->boxes[kept++] = self->boxes[i];
    }
    self->flying = kept;
}

/* ---- Messages out ---- */

/* A box and its message in one piece of memory; all of them are linked, too, through `all`. */
typedef struct sheet {
    tg_mpi_box box;
    struct sheet *all;
    _Alignas(16) char bytes[TG_MPI_MESSAGE];
} sheet;

static sheet *sheet_of(tg_mpi_message *m) { return (sheet *)((char *)m - offsetof(sheet, bytes)); }

/* Those that have landed are found again when there is no free one. */
static void collect(tg_mpi_rank *self) {
    self->out = NULL;
    for (sheet *s = (sheet *)self->all_out; s; s = s->all) {
        if (s->box.flying) continue;
        s->box.next = self->out;
        self->out = &s->box;
    }
}

static bool sheet_new(tg_mpi_rank *self) {
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

static sheet *sheet_take(tg_mpi_rank *self) {
    if (!self->out) collect(self);
    if (!self->out && !sheet_new(self)) return NULL;
    sheet *s = (sheet *)self->out;
    self->out = s->box.next;
    return s;
}

tg_mpi_message *tg_mpi_draft(tg_mpi_rank *self, tg_mpi_kind kind, const tg_mpi_group *g) {
    sheet *s = self->broken ? NULL : sheet_take(self);
    if (!s) return NULL;
    tg_mpi_message *m = (tg_mpi_message *)s->bytes;
    *m = (tg_mpi_message){.kind = (uint8_t)kind, .rank = self->me};
    if (g) {
        m->group = g->key;
        m->member = g->rank;
    }
    return m;
}

void tg_mpi_write(tg_mpi_message *m, const char *text) {
    size_t n = strnlen(text, TG_MPI_FAILURE - 1);
    memcpy(m->body, text, n);
    m->body[n] = 0;
    m->text = (uint32_t)n + 1;
}

void tg_mpi_post(tg_mpi_rank *self, tg_mpi_message *m, int to) {
    if (m) tg_mpi_send(self, &sheet_of(m)->box, sizeof *m + m->text + m->payload, to, MESSAGE_TAG);
}

void tg_mpi_refuse(tg_mpi_rank *self, int to, int tag) {
    sheet *s = self->broken ? NULL : sheet_take(self);
    if (s) tg_mpi_send(self, &s->box, 0, to, tag);
}

bool tg_mpi_sent(const tg_mpi_rank *self) {
    for (const sheet *s = (const sheet *)self->all_out; s; s = s->all)
        if (s->box.flying) return false;
    return true;
}

/* ---- Messages in ---- */

/* From anybody, in the order in which they were posted: so messages of one rank keep theirs. */
static tg_status listen(tg_mpi_rank *self, int i) {
    return tg_mpi_receive(self, &self->in[i], TG_MPI_MESSAGE, MPI_ANY_SOURCE, MESSAGE_TAG);
}

const tg_mpi_message *tg_mpi_next(tg_mpi_rank *self) {
    const tg_mpi_box *box = &self->in[self->next_in];
    return self->broken || box->flying ? NULL : box->data;
}

void tg_mpi_taken(tg_mpi_rank *self) {
    int i = self->next_in;
    self->next_in = (i + 1) % TG_MPI_RECEIVES;
    listen(self, i);
}

/* ---- Begin and end ---- */

tg_status tg_mpi_link_open(tg_mpi_rank *self) {
    enum { OUT = 32 };
    char *bytes = tg_host_alloc(self->ctx, (size_t)TG_MPI_RECEIVES * TG_MPI_MESSAGE);
    if (!bytes) return self->ctx->status;
    for (int i = 0; i < TG_MPI_RECEIVES; i++) self->in[i].data = bytes + (size_t)i * TG_MPI_MESSAGE;
    for (int i = 0; i < TG_MPI_RECEIVES; i++) TG_TRY(listen(self, i));
    for (int i = 0; i < OUT + 4 * self->size; i++)
        if (!sheet_new(self)) return self->ctx->status;
    return TG_OK;
}

/* Nothing comes any more, or nobody waits for it. What has not been sent by now never will be: its memory is MPI's. */
static bool ground_all(tg_mpi_rank *self) {
    bool all = true;
    for (int i = 0; i < self->flying; i++) {
        tg_mpi_box *box = self->boxes[i];
        if (box->incoming && MPI_Cancel(&self->requests[i]) == MPI_SUCCESS &&
            MPI_Wait(&self->requests[i], MPI_STATUS_IGNORE) == MPI_SUCCESS)
            box->flying = false;
        else
            all = false;
    }
    return all;
}

void tg_mpi_link_close(tg_mpi_rank *self) {
    tg_ctx *ctx = self->ctx;
    int over = 0;
    MPI_Finalized(&over);
    if (!over && ground_all(self) && !self->broken && self->comm != MPI_COMM_NULL) MPI_Comm_free(&self->comm);
    for (sheet *s = (sheet *)self->all_out, *next; s; s = next) {
        next = s->all;
        if (!s->box.flying || over) tg_host_free(ctx, s, sizeof *s);
    }
    tg_host_free(ctx, self->in[0].data, (size_t)TG_MPI_RECEIVES * TG_MPI_MESSAGE);
    tg_host_free(ctx, self->requests, (size_t)self->room * sizeof *self->requests);
    tg_host_free(ctx, self->statuses, (size_t)self->room * sizeof *self->statuses);
    tg_host_free(ctx, self->landed, (size_t)self->room * sizeof *self->landed);
    tg_host_free(ctx, self->boxes, (size_t)self->room * sizeof *self->boxes);
}
