/* The part of the ranks above 0 in the meeting: each connects to rank 0, tells it where it listens, receives the list
 * of addresses, and connects with the ranks between rank 0 and itself. */
#include <netdb.h>

#include "base/os.h"
#include "base/text.h"
#include "comm/tcp/meet.h"

/* ---- The list ---- */

/* Called when the connection with rank 0 ends after its news (tg_tcp_news) and before the list. */
static void on_lost(tg_tcp_connection *c, int error) { tg_tcp_meeting_lost(c, error, "while the ranks connected"); }

/* Called when the list of addresses has arrived. */
static void on_list(tg_tcp_connection *c) {
    tg_tcp_meeting *m = c->layer->meeting;
    m->listed = true;
    m->come[0] = true;
    m->n_come++;
    tg_tcp_layer_add(m->layer, c);
}

/* Called when rank 0 has sent whether the ranks can meet. If so, awaits the list. */
static void on_news(tg_tcp_connection *c) {
    tg_tcp_meeting *m = c->layer->meeting;
    tg_tcp_news *news = &m->news;
    news->text[sizeof news->text - 1] = 0;
    c->ended = on_lost;
    if (news->status == TG_OK) {
        tg_tcp_await(c, m->addresses, (size_t)m->opts->ranks * sizeof *m->addresses, on_list);
        return;
    }
    tg_fail(m->layer->ctx, (tg_status)news->status, "%s", news->text);
    m->failed = true;
    tg_tcp_await(c, NULL, 0, NULL);
}

/* ---- To rank 0 ---- */

/* Called when an attempt has failed. If rank 0 no longer listens where it was reached before, it has ended. */
static void on_attempt_end(tg_tcp_connection *c, int error) {
    tg_tcp_meeting *m = c->layer->meeting;
    m->refusal = error;
    m->attempt = NULL;
    if (m->reached && error == UV_ECONNREFUSED)
        tg_tcp_meeting_fail(m, TG_ERR_REMOTE, "rank 0 has ended before it sent the list of ranks");
}

/* Called when rank 0 has been reached, and the connection ends before its news (tg_tcp_news) has arrived. Either rank 0
 * has closed it, as it does when too many connections wait, or rank 0 has ended. The next attempt shows which. */
static void on_unlisted_end(tg_tcp_connection *c, int error) {
    tg_tcp_meeting *m = c->layer->meeting;
    m->refusal = error;
    m->layer->connection[0] = NULL;
}

/* Listens on the address from which this rank reaches rank 0, so only in that network. If it listens already, does
 * nothing. Returns 0, or libuv's error. */
static int listen_near(tg_tcp_meeting *m, const tg_tcp_connection *c) {
    struct sockaddr_storage at = {0};
    int n = sizeof at, error = uv_tcp_getsockname(&c->socket, (struct sockaddr *)&at, &n);
    if (error || m->listens) return error;
    tg_tcp_set_port((struct sockaddr *)&at, 0);
    return tg_tcp_listen(m, (struct sockaddr *)&at);
}

/* Handles the greeting of rank 0, or of another program that listens there. */
static void on_first_greeting(tg_tcp_connection *c) {
    tg_tcp_meeting *m = c->layer->meeting;
    const tg_tcp_greeting *g = &c->in.greeting;
    if (!tg_tcp_is_of_run(m, g) || g->rank != 0) {
        tg_tcp_connection_end(c, UV_EPROTO);
        return;
    }
    if (!tg_tcp_greeting_agrees(m, g)) {
        tg_tcp_greet(m, c); /* so that rank 0 reports it, too */
        return;
    }
    int error = listen_near(m, c);
    if (error) {
        tg_tcp_meeting_fail(m, TG_ERR_IO, uv_strerror(error));
        tg_tcp_connection_end(c, error);
        return;
    }
    c->ended = on_unlisted_end;
    m->attempt = NULL;
    m->reached = true;
    m->layer->connection[0] = c;
    tg_tcp_greet(m, c);
    tg_tcp_await(c, &m->news, sizeof m->news, on_news);
}

static void on_connected(uv_connect_t *request, int status) {
    tg_tcp_connection *c = request->data;
    if (uv_is_closing((uv_handle_t *)&c->socket)) return;
    if (status) {
        tg_tcp_connection_end(c, status);
        return;
    }
    uv_tcp_nodelay(&c->socket, 1);
    tg_tcp_await(c, &c->in.greeting, sizeof c->in.greeting, c->then);
}

/* Connects with a rank, and calls `greeted` when the greeting of the other end has arrived. Returns NULL after an
 * error. */
static tg_tcp_connection *connect_to(tg_tcp_meeting *m, int rank, const struct sockaddr *at,
                                     void (*greeted)(tg_tcp_connection *c),
                                     void (*ended)(tg_tcp_connection *c, int error)) {
    tg_tcp_connection *c = tg_tcp_connection_new(m->layer);
    if (!c) {
        m->failed = true;
        return NULL;
    }
    c->rank = rank;
    c->connecting.data = c;
    c->then = greeted;
    c->ended = ended;
    int error = uv_tcp_connect(&c->connecting, &c->socket, at, on_connected);
    if (!error) return c;
    tg_tcp_connection_end(c, error);
    return NULL;
}

/* Fills *at with the address and port of attempt number k. A round tries all addresses of the host on one port: every
 * second round on the first port, the rounds between on the other ports in turn. If a firewall drops what is sent to
 * the other ports, each attempt there takes seconds, and a rank 0 that starts late, on the first port, must still be
 * found soon. */
static void place_of(const tg_tcp_meeting *m, int k, struct sockaddr_storage *at) {
    const struct addrinfo *host = m->hosts;
    int hosts = 0, ports = m->opts->ports;
    for (const struct addrinfo *h = m->hosts; h; h = h->ai_next) hosts++;
    for (int i = k % hosts; i > 0; i--) host = host->ai_next;
    int round = k / hosts, port = round % 2 && ports > 1 ? 1 + round / 2 % (ports - 1) : 0;
    memcpy(at, host->ai_addr, host->ai_addrlen);
    tg_tcp_set_port((struct sockaddr *)at, (uint32_t)(m->opts->port + port));
}

/* Starts an attempt to reach rank 0 if none is running. Gives up one that takes long, because another program may
 * listen there and send nothing. */
static void try_first(tg_tcp_meeting *m) {
    const double patience = 3, pause = 0.02;
    struct sockaddr_storage at;
    double since = tg_system_now() - m->tried;
    if (m->attempt && since > patience) tg_tcp_connection_end(m->attempt, UV_ETIMEDOUT);
    if (m->attempt || m->layer->connection[0] || since < pause) return;
    if (!m->reached) m->attempts++;
    place_of(m, m->attempts - 1, &at);
    m->tried = tg_system_now();
    m->attempt = connect_to(m, 0, (struct sockaddr *)&at, on_first_greeting, on_attempt_end);
}

static bool is_listed(tg_tcp_meeting *m) {
    try_first(m);
    return m->listed;
}

/* Called at this rank's deadline. If rank 0 was reached, waits some seconds more: rank 0 sends the names of the missing
 * ranks at its own deadline, which may be a little later. Fails the meeting if nothing arrives. */
static void fail_without_list(tg_tcp_meeting *m) {
    const tg_tcp_opts *o = m->opts;
    const double patience = 5;
    char text[512];
    size_t at = 0;
    m->begun += patience;
    if (m->layer->connection[0] && (tg_tcp_until(m, is_listed) || m->failed)) return;
    tg_text(text, sizeof text, &at, "rank 0 %s within the deadline of %g s at \"%s\", port %d",
            m->layer->connection[0] ? "has not sent the list of ranks" : "has not been reached",
            m->layer->ctx->run.deadline, o->host, o->port);
    if (o->ports > 1) tg_text(text, sizeof text, &at, " to %d", o->port + o->ports - 1);
    tg_text(text, sizeof text, &at, " (%s); see what rank 0 has printed, and whether this node can reach that port",
            m->refusal ? uv_strerror(m->refusal) : "no answer");
    tg_tcp_meeting_fail(m, TG_ERR_TIMEOUT, text);
}

/* ---- To the ranks between rank 0 and this one ---- */

/* Called when an attempt to connect with a rank between rank 0 and this one has failed. */
static void on_unreached(tg_tcp_connection *c, int error) {
    tg_tcp_meeting *m = c->layer->meeting;
    char text[256];
    size_t at = 0;
    tg_text(text, sizeof text, &at,
            "rank %d cannot connect with rank %d (%s); see whether rank %d has ended, and whether their nodes can "
            "reach each other",
            m->opts->rank, c->rank, uv_strerror(error), c->rank);
    tg_tcp_meeting_fail(m, TG_ERR_REMOTE, text);
}

static void enter(tg_tcp_meeting *m, tg_tcp_connection *c) { tg_tcp_layer_add(m->layer, c); }

/* Called when a rank between rank 0 and this one has sent its greeting. */
static void on_peer_greeting(tg_tcp_connection *c) {
    tg_tcp_meeting *m = c->layer->meeting;
    const tg_tcp_greeting *g = &c->in.greeting;
    if (!tg_tcp_is_of_run(m, g) || g->rank != (uint32_t)c->rank || !tg_tcp_greeting_agrees(m, g)) {
        tg_tcp_connection_end(c, UV_EPROTO);
        return;
    }
    tg_tcp_greet(m, c);
    m->come[c->rank] = true;
    m->n_come++;
    tg_tcp_layer_add(m->layer, c);
}

static void connect_with_others(tg_tcp_meeting *m) {
    struct sockaddr_storage at;
    for (int i = 1; i < m->opts->rank && !m->failed; i++) {
        tg_tcp_unpack(&m->addresses[i], &at);
        connect_to(m, i, (struct sockaddr *)&at, on_peer_greeting, on_unreached);
    }
}

static void name_missing(tg_tcp_meeting *m) {
    char text[256];
    size_t at = 0;
    int first = 0;
    while (first == m->opts->rank || m->come[first]) first++;
    tg_text(text, sizeof text, &at,
            "rank %d has not connected with rank %d within the deadline of %g s, though both have "
            "reached rank 0; see whether their nodes can reach each other",
            first, m->opts->rank, m->layer->ctx->run.deadline);
    tg_tcp_meeting_fail(m, TG_ERR_TIMEOUT, text);
}

void tg_tcp_join(tg_tcp_meeting *m) {
    m->arrived = enter;
    m->hosts = tg_tcp_resolve(m);
    if (!m->hosts) return;
    if (!tg_tcp_until(m, is_listed) && !m->failed) fail_without_list(m);
    if (!m->failed) connect_with_others(m);
    if (!m->failed && !tg_tcp_until(m, tg_tcp_have_all_come) && !m->failed) name_missing(m);
    freeaddrinfo(m->hosts);
}
