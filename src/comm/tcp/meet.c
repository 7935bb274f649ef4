/* How ranks meet. Rank 0 listens on an address that all ranks know. The others connect to it and tell it on which
 * address each of them listens, and rank 0 sends the list of these addresses to all. Then each rank connects with the
 * ranks between rank 0 and itself.
 *
 * On every new connection the end that listens sends its greeting first. The other end answers only if that is the
 * greeting of the rank that it wants, so another service that has the port receives no byte. An end that does not
 * answer with the name of the run receives nothing but the greeting. */
#include "base/hash.h"
#include "base/memory/host_memory.h"
#include "base/os.h"
#include "base/text.h"
#include "comm/tcp/meet.h"

static const char magic[8] = {'t', 'a', 'p', 'e', 'g', 'r', 'a', 'd'};
enum { VERSION = 1, TICK_MS = 20, SPARE_STRANGERS = 64 };

/* ---- The end of a meeting ---- */

bool tg_tcp_meeting_fail(tg_tcp_meeting *m, tg_status status, const char *text) {
    if (!m->failed) tg_fail(m->layer->ctx, status, "tg_comm_tcp_new: %s", text);
    m->failed = true;
    return false;
}

void tg_tcp_meeting_lost(tg_tcp_connection *c, int error, const char *when) {
    char text[160];
    size_t at = 0;
    c->layer->connection[c->rank] = NULL;
    tg_text(text, sizeof text, &at, "rank %d has ended %s (%s)", c->rank, when, uv_strerror(error));
    tg_tcp_meeting_fail(c->layer->meeting, TG_ERR_REMOTE, text);
}

/* ---- Greetings ---- */

static tg_tcp_greeting own_greeting(const tg_tcp_meeting *m) {
    tg_tcp_greeting g = {.job = m->job,
                         .version = VERSION,
                         .ranks = (uint32_t)m->opts->ranks,
                         .rank = (uint32_t)m->opts->rank,
                         .port = m->port};
    memcpy(g.magic, magic, sizeof magic);
    return g;
}

void tg_tcp_greet(tg_tcp_meeting *m, tg_tcp_connection *c) {
    tg_tcp_write *w = tg_tcp_write_new(m->layer, NULL);
    c->mine = own_greeting(m);
    if (w) tg_tcp_write_start(c, w, false, &c->mine, sizeof c->mine);
}

bool tg_tcp_is_of_run(const tg_tcp_meeting *m, const tg_tcp_greeting *g) {
    return !memcmp(g->magic, magic, sizeof magic) && g->job == m->job;
}

bool tg_tcp_greeting_agrees(tg_tcp_meeting *m, const tg_tcp_greeting *g) {
    char text[256];
    size_t at = 0;
    if (g->version == VERSION && g->ranks == (uint32_t)m->opts->ranks) return true;
    if (g->version != VERSION)
        tg_text(text, sizeof text, &at,
                "another rank has another version of tapegrad; start all ranks with one version");
    else
        tg_text(text, sizeof text, &at,
                "rank %u was started as one of %u ranks, but rank %d as one of %d; start all "
                "ranks with the same number",
                g->rank, g->ranks, m->opts->rank, m->opts->ranks);
    return tg_tcp_meeting_fail(m, TG_ERR_STATE, text);
}

/* ---- Ranks that connect to this one ---- */

static void forget_stranger(tg_tcp_meeting *m, const tg_tcp_connection *c) {
    tg_tcp_connection **at = &m->strangers;
    while (*at && *at != c) at = &(*at)->next;
    if (!*at) return;
    *at = c->next;
    m->n_strangers--;
}

static void on_stranger_end(tg_tcp_connection *c, int error) {
    (void)error;
    forget_stranger(c->layer->meeting, c);
}

/* Ends the oldest connection that has not sent its greeting. */
static void end_oldest_stranger(tg_tcp_meeting *m) {
    tg_tcp_connection *c = m->strangers;
    while (c && c->next) c = c->next;
    if (c) tg_tcp_connection_end(c, UV_ECANCELED);
}

/* Returns whether this rank still awaits a rank of that number. If not, fails the meeting. */
static bool is_expected(tg_tcp_meeting *m, const tg_tcp_greeting *g) {
    char text[128];
    size_t at = 0;
    int me = m->opts->rank;
    if (g->rank > (uint32_t)me && g->rank < g->ranks && !m->come[g->rank]) return true;
    tg_text(text, sizeof text, &at,
            "two processes say that they are rank %u of this run; give each rank its own number", g->rank);
    return tg_tcp_meeting_fail(m, TG_ERR_STATE, text);
}

/* Called when the other end has answered this rank's greeting with its own. */
static void on_answer(tg_tcp_connection *c) {
    tg_tcp_meeting *m = c->layer->meeting;
    const tg_tcp_greeting *g = &c->in.greeting;
    bool welcome = tg_tcp_is_of_run(m, g) && tg_tcp_greeting_agrees(m, g) && is_expected(m, g);
    if (!welcome) {
        tg_tcp_connection_end(c, UV_EPROTO);
        return;
    }
    forget_stranger(m, c);
    c->rank = (int)g->rank;
    m->come[c->rank] = true;
    m->n_come++;
    m->arrived(m, c);
}

/* Called when a connection comes in. Accepts it, sends this rank's greeting, and awaits the answer. */
static void on_stranger(uv_stream_t *listener, int status) {
    tg_tcp_meeting *m = listener->data;
    tg_tcp_connection *c = status == 0 ? tg_tcp_connection_new(m->layer) : NULL;
    if (!c) return;
    c->ended = on_stranger_end;
    if (m->n_strangers >= m->opts->ranks + SPARE_STRANGERS) end_oldest_stranger(m);
    c->next = m->strangers;
    m->strangers = c;
    m->n_strangers++;
    if (uv_accept(listener, (uv_stream_t *)&c->socket)) {
        tg_tcp_connection_end(c, UV_ECANCELED);
        return;
    }
    uv_tcp_nodelay(&c->socket, 1);
    tg_tcp_greet(m, c);
    tg_tcp_await(c, &c->in.greeting, sizeof c->in.greeting, on_answer);
}

static void on_handle_closed(uv_handle_t *h) { ((tg_tcp_meeting *)h->data)->handles--; }

int tg_tcp_listen(tg_tcp_meeting *m, const struct sockaddr *at) {
    enum { BACKLOG = 1024 };
    struct sockaddr_storage bound = {0};
    int n = sizeof bound;
    while (m->handles > 1) tg_tcp_run(m->layer, true); /* until the listener of a failed attempt is closed */
    uv_tcp_init(&m->layer->loop, &m->listener);
    m->listener.data = m;
    m->handles++;
    int error = uv_tcp_bind(&m->listener, at, 0);
    if (!error) error = uv_listen((uv_stream_t *)&m->listener, BACKLOG, on_stranger);
    if (!error) error = uv_tcp_getsockname(&m->listener, (struct sockaddr *)&bound, &n);
    if (error) { /* does not wait for the end of the close, because a callback of libuv may have made this call */
        uv_close((uv_handle_t *)&m->listener, on_handle_closed);
        return error;
    }
    m->listens = true;
    m->port = tg_tcp_port_of((struct sockaddr *)&bound);
    return 0;
}

/* ---- Waiting ---- */

bool tg_tcp_have_all_come(tg_tcp_meeting *m) { return m->n_come == m->opts->ranks - 1; }

static void on_tick(uv_timer_t *t) { (void)t; } /* lets tg_tcp_run return */

/* Returns whether the meeting has failed, or the context has another error, such as that of an allocation in a callback
 * of libuv. */
static bool has_failed(tg_tcp_meeting *m) { return m->failed |= m->layer->ctx->run.status != TG_OK; }

bool tg_tcp_until(tg_tcp_meeting *m, bool (*done)(tg_tcp_meeting *m)) {
    while (!has_failed(m) && !done(m)) {
        if (tg_system_now() - m->begun > m->layer->ctx->run.deadline) return false;
        tg_tcp_run(m->layer, true);
    }
    return !m->failed;
}

/* ---- The meeting ---- */

void tg_tcp_meeting_close(tg_tcp_meeting *m, uv_handle_t *h) {
    h->data = m;
    uv_close(h, on_handle_closed);
    while (m->handles > (h != (uv_handle_t *)&m->tick)) tg_tcp_run(m->layer, true);
}

/* Ends a connection that does not outlast the meeting: one that carries no messages or, if the meeting has failed, any
 * connection. */
static void end_unused(uv_handle_t *h, void *layer) {
    tg_tcp_connection *c = (tg_tcp_connection *)h;
    tg_tcp_layer *l = layer;
    if (c->open && l->ctx->run.status == TG_OK) return;
    if (!c->open && c->rank >= 0) l->connection[c->rank] = NULL;
    tg_tcp_connection_end(c, c->open ? UV_ECANCELED : 0);
}

/* Closes what only the meeting needs: the listener, the timer, and connections that carry no messages. */
static void meeting_end(tg_tcp_meeting *m) {
    tg_ctx *ctx = m->layer->ctx;
    if (m->listens) tg_tcp_meeting_close(m, (uv_handle_t *)&m->listener);
    tg_tcp_meeting_close(m, (uv_handle_t *)&m->tick);
    uv_walk(&m->layer->loop, end_unused, m->layer);
    tg_host_free(ctx, m->come, (size_t)m->opts->ranks * sizeof *m->come);
    tg_host_free(ctx, m->addresses, (size_t)m->opts->ranks * sizeof *m->addresses);
}

tg_status tg_tcp_meet(tg_tcp_layer *l, const tg_tcp_opts *opts) {
    const char *job = opts->job ? opts->job : "";
    size_t n = (size_t)opts->ranks;
    tg_tcp_meeting m = {
        .layer = l, .opts = opts, .begun = tg_system_now(), .job = tg_hash_bytes(TG_HASH_START, job, strlen(job))};
    l->meeting = &m;
    uv_timer_init(&l->loop, &m.tick);
    m.handles++;
    uv_timer_start(&m.tick, on_tick, TICK_MS, TICK_MS);
    m.come = tg_host_alloc(l->ctx, n * sizeof *m.come);
    m.addresses = tg_host_alloc(l->ctx, n * sizeof *m.addresses);
    if (m.come && m.addresses) {
        if (opts->rank == 0)
            tg_tcp_receive_all(&m);
        else
            tg_tcp_join(&m);
    }
    meeting_end(&m);
    l->meeting = NULL;
    return l->ctx->run.status;
}
