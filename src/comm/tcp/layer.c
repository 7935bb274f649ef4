/* The functions of the message layer (tg_p2p_ops): sends messages, and matches those that arrive with receives. */
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "comm/tcp/tcp.h"

enum {
    LONGEST = 128 << 10, /* bytes of the longest message (tapegrad/p2p.h) */
    LAST_TAG = 32000, /* the largest tag */
    /* Capacity in bytes of the letters that are reused. All messages that a receive from any rank takes fit into it
     * (TG_P2P_MESSAGE). */
    LETTER = 2048
};

/* ---- Memory ---- */

static tg_tcp_receive *receive_new(tg_tcp_layer *l) {
    tg_tcp_receive *r = l->free_receives;
    if (!r) return tg_host_alloc(l->ctx, sizeof *r);
    l->free_receives = r->next;
    return r;
}

static tg_tcp_letter *letter_new(tg_tcp_layer *l, size_t bytes) {
    tg_tcp_letter *m = l->free_letters;
    if (m && bytes <= LETTER) {
        l->free_letters = m->next;
        return m;
    }
    size_t capacity = bytes > LETTER ? bytes : LETTER;
    m = tg_host_alloc(l->ctx, sizeof *m + capacity);
    if (m) m->capacity = capacity;
    return m;
}

static void letter_free(tg_tcp_layer *l, tg_tcp_letter *m) {
    if (m->capacity > LETTER) {
        tg_host_free(l->ctx, m, sizeof *m + m->capacity);
    } else {
        m->next = l->free_letters;
        l->free_letters = m;
    }
}

/* ---- Matching ---- */

static bool fits(const tg_tcp_receive *r, int from, const tg_tcp_head *h) {
    return !r->taken && (r->from < 0 || r->from == from) && (uint32_t)r->tag == h->tag && h->bytes <= r->capacity;
}

/* Removes a receive from those that wait. */
static void unlink_receive(tg_tcp_layer *l, const tg_tcp_receive *r) {
    tg_tcp_receive **at = &l->receives;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
}

/* Appends the receive to those that the next poll reports. from: the sender. */
static void complete(tg_tcp_layer *l, tg_tcp_receive *r, int from, size_t bytes) {
    tg_tcp_receive **end = &l->complete;
    while (*end) end = &(*end)->next;
    r->from = from;
    r->bytes = bytes;
    r->next = NULL;
    *end = r;
}

static tg_tcp_receive *first_that_fits(const tg_tcp_layer *l, int from, const tg_tcp_head *h) {
    tg_tcp_receive *r = l->receives;
    while (r && !fits(r, from, h)) r = r->next;
    return r;
}

/* Copies a letter that has arrived completely to the first receive that fits, or else stores it. */
static void deliver(tg_tcp_layer *l, tg_tcp_letter *m) {
    tg_tcp_receive *r = first_that_fits(l, m->from, &m->head);
    tg_tcp_letter **end = &l->letters;
    if (r) {
        unlink_receive(l, r);
        memcpy(r->data, m->data, m->head.bytes);
        complete(l, r, m->from, m->head.bytes);
        letter_free(l, m);
        return;
    }
    while (*end) end = &(*end)->next;
    m->next = NULL;
    *end = m;
}

/* ---- Reading messages ---- */

static void on_head(tg_tcp_connection *c);

static void next_message(tg_tcp_connection *c) { tg_tcp_await(c, &c->in.head, sizeof c->in.head, on_head); }

/* Called when all bytes of a message have arrived. */
static void on_message(tg_tcp_connection *c) {
    tg_tcp_layer *l = c->layer;
    if (c->receive) {
        unlink_receive(l, c->receive);
        complete(l, c->receive, c->rank, c->in.head.bytes);
    } else {
        deliver(l, c->letter);
    }
    c->receive = NULL;
    c->letter = NULL;
    next_message(c);
}

/* If the first receive that fits names this sender, the message is read directly into that receive's memory. Otherwise
 * it is stored first. A receive from any rank must not be given to a message of which only a part has arrived, because
 * messages of other ranks would then have to wait for the rest. */
static void on_head(tg_tcp_connection *c) {
    tg_tcp_layer *l = c->layer;
    const tg_tcp_head h = c->in.head;
    if (h.bytes > LONGEST || h.tag > LAST_TAG) {
        tg_tcp_connection_end(c, UV_EPROTO);
        return;
    }
    tg_tcp_receive *r = first_that_fits(l, c->rank, &h);
    if (r && r->from >= 0) {
        c->receive = r;
        r->taken = true;
    } else if ((c->letter = letter_new(l, h.bytes))) {
        c->letter->from = c->rank;
        c->letter->head = h;
    } else {
        tg_tcp_connection_end(c, UV_ENOMEM);
        return;
    }
    if (h.bytes)
        tg_tcp_await(c, c->receive ? c->receive->data : c->letter->data, h.bytes, on_message);
    else
        on_message(c);
}

/* Completes, with 0 bytes, the receives from a rank whose connection has ended. */
static void complete_receives_from(tg_tcp_layer *l, int rank) {
    for (tg_tcp_receive *r = l->receives, *next; r; r = next) {
        next = r->next;
        if (r->from != rank) continue;
        unlink_receive(l, r);
        complete(l, r, rank, 0);
    }
}

/* Called when a connection that carries messages has ended. */
static void on_end(tg_tcp_connection *c, int error) {
    tg_tcp_layer *l = c->layer;
    l->connection[c->rank] = NULL;
    l->error[c->rank] = error;
    if (c->letter) letter_free(l, c->letter);
    complete_receives_from(l, c->rank);
}

void tg_tcp_layer_add(tg_tcp_layer *l, tg_tcp_connection *c) {
    l->connection[c->rank] = c;
    c->ended = on_end;
    c->open = true;
    next_message(c);
}

/* ---- The slots ---- */

static int tcp_send(void *state, const void *data, size_t bytes, int to, int tag, void *token) {
    tg_tcp_layer *l = state;
    tg_tcp_write *w = tg_tcp_write_new(l, token);
    if (!w) return UV_ENOMEM;
    w->head = (tg_tcp_head){(uint32_t)bytes, (uint32_t)tag};
    tg_tcp_write_start(l->connection[to], w, true, data, bytes);
    return 0;
}

/* Returns the first stored letter for the receive, removed from its list; NULL: there is none. */
static tg_tcp_letter *stored_for(tg_tcp_layer *l, const tg_tcp_receive *r) {
    tg_tcp_letter **at = &l->letters, *m;
    while ((m = *at) && !fits(r, m->from, &m->head)) at = &m->next;
    if (m) *at = m->next;
    return m;
}

static int tcp_receive(void *state, void *data, size_t capacity, int from, int tag, void *token) {
    tg_tcp_layer *l = state;
    tg_tcp_receive *r = receive_new(l), **end = &l->receives;
    if (!r) return UV_ENOMEM;
    *r = (tg_tcp_receive){.data = data, .token = token, .capacity = capacity, .from = from, .tag = tag};
    tg_tcp_letter *m = stored_for(l, r);
    if (m) {
        memcpy(data, m->data, m->head.bytes);
        complete(l, r, m->from, m->head.bytes);
        letter_free(l, m);
    } else if (from >= 0 && l->error[from]) {
        complete(l, r, from, 0);
    } else {
        while (*end) end = &(*end)->next;
        *end = r;
    }
    return 0;
}

static void report(tg_tcp_layer *l) {
    for (tg_tcp_write *w; (w = l->dropped);) {
        l->dropped = w->next;
        tg_tcp_write_over(w);
    }
    for (tg_tcp_receive *r; (r = l->complete);) {
        l->complete = r->next;
        r->next = l->free_receives;
        l->free_receives = r;
        l->completed(r->token, r->bytes);
    }
}

static int tcp_poll(void *state, tg_p2p_completed_fn completed) {
    tg_tcp_layer *l = state;
    l->completed = completed;
    tg_tcp_run(l, false);
    report(l);
    l->completed = NULL;
    return 0;
}

static void tcp_explain(void *state, int error, char *buf, size_t n) {
    (void)state;
    snprintf(buf, n, "%s", uv_strerror(error));
}

/* The rank is not lost yet if one of its messages waits for a receive, or if a receive from it waits for the next
 * poll. */
static const char *tcp_lost(void *state, int rank) {
    const tg_tcp_layer *l = state;
    if (!l->error[rank]) return NULL;
    for (const tg_tcp_letter *m = l->letters; m; m = m->next)
        if (m->from == rank) return NULL;
    for (const tg_tcp_receive *r = l->complete; r; r = r->next)
        if (r->from == rank) return NULL;
    bool by_its_end = l->error[rank] == UV_EOF || l->error[rank] == UV_ECONNRESET;
    return by_its_end ? "" : uv_strerror(l->error[rank]);
}

static void tcp_close(void *state, bool quiet, tg_p2p_completed_fn completed) {
    (void)quiet; /* each layer has its own connections, so no later layer can receive messages that still arrive */
    tg_tcp_layer_free(state, completed);
}

const tg_p2p_ops tg_tcp_ops = {.size = sizeof(tg_p2p_ops),
                               .name = "tcp",
                               .send = tcp_send,
                               .receive = tcp_receive,
                               .poll = tcp_poll,
                               .explain = tcp_explain,
                               .close = tcp_close,
                               .lost = tcp_lost};

/* ---- Begin and end ---- */

tg_tcp_layer *tg_tcp_layer_new(tg_ctx *ctx, int rank, int size) {
    tg_tcp_layer *l = tg_host_alloc(ctx, sizeof *l);
    if (!l) return NULL;
    *l = (tg_tcp_layer){.ctx = ctx, .rank = rank, .size = size};
    int error = uv_loop_init(&l->loop);
    if (error) {
        tg_fail(ctx, TG_ERR_IO, "tg_comm_tcp_new: libuv cannot start: %s", uv_strerror(error));
        tg_host_free(ctx, l, sizeof *l);
        return NULL;
    }
    l->connection = tg_host_alloc(ctx, (size_t)size * sizeof *l->connection);
    l->error = tg_host_alloc(ctx, (size_t)size * sizeof *l->error);
    if (l->connection && l->error) return l;
    tg_tcp_layer_free(l, NULL);
    return NULL;
}

/* Closes all connections. First sends those of the queued bytes that the peers accept at once. */
static void end_connections(tg_tcp_layer *l) {
    tg_tcp_run(l, false);
    for (int i = 0; l->connection && i < l->size; i++)
        if (l->connection[i]) tg_tcp_connection_end(l->connection[i], UV_ECANCELED);
    while (l->handles) tg_tcp_run(l, true);
    uv_loop_close(&l->loop);
}

static void free_lists(tg_tcp_layer *l) {
    tg_ctx *ctx = l->ctx;
    for (tg_tcp_receive *r = l->free_receives, *next; r; r = next) next = r->next, tg_host_free(ctx, r, sizeof *r);
    for (tg_tcp_write *w = l->free_writes, *next; w; w = next) next = w->next, tg_host_free(ctx, w, sizeof *w);
    for (tg_tcp_letter *m = l->letters, *next; m; m = next) next = m->next, letter_free(l, m);
    for (tg_tcp_letter *m = l->free_letters, *next; m; m = next) {
        next = m->next;
        tg_host_free(ctx, m, sizeof *m + m->capacity);
    }
}

static void nothing_completed(void *token, size_t bytes) { (void)token, (void)bytes; }

void tg_tcp_layer_free(tg_tcp_layer *l, tg_p2p_completed_fn completed) {
    tg_ctx *ctx = l->ctx;
    l->completed = completed ? completed : nothing_completed;
    end_connections(l);
    for (tg_tcp_receive *r; (r = l->receives);) {
        l->receives = r->next;
        complete(l, r, r->from, 0);
    }
    report(l);
    free_lists(l);
    tg_host_free(ctx, l->connection, (size_t)l->size * sizeof *l->connection);
    tg_host_free(ctx, l->error, (size_t)l->size * sizeof *l->error);
    tg_host_free(ctx, l, sizeof *l);
}

tg_comm *tg_tcp_world(tg_ctx *ctx, const tg_tcp_opts *opts) {
    tg_tcp_layer *l = tg_tcp_layer_new(ctx, opts->rank, opts->ranks);
    if (l && tg_tcp_meet(l, opts) == TG_OK) return tg_comm_p2p_new(ctx, &tg_tcp_ops, l, opts->rank, opts->ranks);
    if (l) tg_tcp_layer_free(l, NULL);
    return NULL;
}
