/* Rank 0's part of the meeting: listens, waits until all ranks have connected, and sends them the list of addresses, or
 * the reason why they cannot meet. */
#include <netdb.h>

#include "base/os.h"
#include "base/text.h"
#include "comm/tcp/meet.h"

/* ---- Listening ---- */

/* Returns whether `a` is a loopback address to which only this node resolves the host's name, although other nodes
 * reach this one by that name. Debian, for example, resolves a node's own name to 127.0.1.1. */
static bool is_only_here(const tg_tcp_meeting *m, const struct sockaddr *a) {
    struct sockaddr_storage numeric;
    const char *host = m->opts->host;
    bool literal = uv_ip4_addr(host, 0, (struct sockaddr_in *)&numeric) == 0 ||
                   uv_ip6_addr(host, 0, (struct sockaddr_in6 *)&numeric) == 0 || !strcmp(host, "localhost");
    return tg_tcp_is_loopback(a) && !m->opts->one_node && !literal;
}

/* Listens on this port of the first address of the host that this node has. If the node has none of them, because the
 * network translates addresses, listens on all addresses of the node. Returns 0, or libuv's error. */
static int listen_on(tg_tcp_meeting *m, const struct addrinfo *hosts, uint32_t port) {
    struct sockaddr_storage at;
    int error = UV_EADDRNOTAVAIL;
    for (const struct addrinfo *h = hosts; h && error == UV_EADDRNOTAVAIL; h = h->ai_next) {
        memcpy(&at, h->ai_addr, h->ai_addrlen);
        tg_tcp_set_port((struct sockaddr *)&at, port);
        if (is_only_here(m, (struct sockaddr *)&at)) tg_tcp_set_any((struct sockaddr *)&at);
        error = tg_tcp_listen(m, (struct sockaddr *)&at);
    }
    if (error != UV_EADDRNOTAVAIL) return error;
    tg_tcp_set_any((struct sockaddr *)&at);
    return tg_tcp_listen(m, (struct sockaddr *)&at);
}

/* Listens on the first free port. Fails the meeting if none is free, or if the host has no address. */
static void listen_on_any_port(tg_tcp_meeting *m) {
    const tg_tcp_opts *o = m->opts;
    struct addrinfo *hosts = tg_tcp_resolve(m);
    char text[512];
    size_t at = 0;
    int error = UV_EADDRINUSE, tried = 0;
    if (!hosts) return;
    while (error == UV_EADDRINUSE && tried < o->ports) error = listen_on(m, hosts, (uint32_t)(o->port + tried++));
    freeaddrinfo(hosts);
    if (m->listens) return;
    bool busy = error == UV_EADDRINUSE;
    tg_text(text, sizeof text, &at, "rank 0 cannot listen on port %d", busy ? o->port : o->port + tried - 1);
    if (busy && tried > 1) tg_text(text, sizeof text, &at, ", nor on the %d after it", tried - 1);
    tg_text(text, sizeof text, &at,
            " of \"%s\": %s; choose another port (environment variable TAPEGRAD_PORT, on all "
            "ranks)",
            o->host, uv_strerror(error));
    tg_tcp_meeting_fail(m, busy ? TG_ERR_STATE : TG_ERR_IO, text);
}

/* ---- Ranks that connect ---- */

static void on_early_end(tg_tcp_connection *c, int error) {
    tg_tcp_meeting_lost(c, error, "before all ranks had connected");
}

/* Called if a rank sends a byte before it has the list. Ranks of this library do not. */
static void on_early_byte(tg_tcp_connection *c) { tg_tcp_connection_end(c, UV_EPROTO); }

/* Called when a rank has connected. Stores the address on which it listens. */
static void on_arrival(tg_tcp_meeting *m, tg_tcp_connection *c) {
    struct sockaddr_storage peer = {0};
    int n = sizeof peer;
    uv_tcp_getpeername(&c->socket, (struct sockaddr *)&peer, &n);
    tg_tcp_pack((struct sockaddr *)&peer, c->in.greeting.port, &m->addresses[c->rank]);
    m->layer->connection[c->rank] = c;
    c->ended = on_early_end;
    tg_tcp_await(c, &c->in, 1, on_early_byte);
}

/* Fails the meeting, and names the ranks that are missing. */
static void name_missing(tg_tcp_meeting *m) {
    const tg_tcp_opts *o = m->opts;
    char text[512];
    size_t at = 0;
    int missing = o->ranks - 1 - m->n_come, named = 0;
    tg_text(text, sizeof text, &at, missing > 1 ? "ranks " : "rank ");
    for (int i = 1; i < o->ranks && named < 8; i++)
        if (!m->come[i]) tg_text(text, sizeof text, &at, "%s%d", named++ ? ", " : "", i);
    if (missing > named) tg_text(text, sizeof text, &at, " and %d more", missing - named);
    tg_text(text, sizeof text, &at,
            " of %d %s not connected to \"%s\", port %u, within the deadline of %g s; see what %s printed, and whether "
            "%s can reach that port",
            o->ranks, missing > 1 ? "have" : "has", o->host, (unsigned)m->port, m->layer->ctx->run.deadline,
            missing > 1 ? "they have" : "it has", missing > 1 ? "they" : "it");
    tg_tcp_meeting_fail(m, TG_ERR_TIMEOUT, text);
}

/* ---- The list ---- */

static void send_to(tg_tcp_connection *c, const void *data, size_t n) {
    tg_tcp_write *w = tg_tcp_write_new(c->layer, NULL);
    if (w) tg_tcp_write_start(c, w, false, data, n);
}

static bool is_all_sent(tg_tcp_meeting *m) { return m->layer->writing == 0; }

/* Sends the reason why the ranks cannot meet to all ranks that have connected. */
static void send_failure(tg_tcp_meeting *m) {
    const double patience = 2;
    const tg_ctx *ctx = m->layer->ctx;
    double since = tg_system_now();
    size_t at = 0;
    m->news.status = (uint32_t)ctx->run.status;
    tg_text(m->news.text, sizeof m->news.text, &at, "%s", ctx->run.message);
    for (int i = 1; i < m->opts->ranks; i++)
        if (m->layer->connection[i]) send_to(m->layer->connection[i], &m->news, sizeof m->news);
    while (!is_all_sent(m) && tg_system_now() - since < patience) tg_tcp_run(m->layer, true);
}

/* Sends the list to all ranks. Adds each connection to the layer, because a rank that has the list may send messages at
 * once. */
static void send_list(tg_tcp_meeting *m) {
    m->news.status = TG_OK;
    for (int i = 1; i < m->opts->ranks; i++) {
        tg_tcp_connection *c = m->layer->connection[i];
        send_to(c, &m->news, sizeof m->news);
        send_to(c, m->addresses, (size_t)m->opts->ranks * sizeof *m->addresses);
        tg_tcp_layer_add(m->layer, c);
    }
    if (!tg_tcp_until(m, is_all_sent) && !m->failed)
        tg_tcp_meeting_fail(m, TG_ERR_TIMEOUT,
                            "the list of ranks could not be sent to all of them within the deadline");
}

void tg_tcp_receive_all(tg_tcp_meeting *m) {
    m->arrived = on_arrival;
    listen_on_any_port(m);
    if (!tg_tcp_until(m, tg_tcp_have_all_come) && !m->failed) name_missing(m);
    if (m->failed)
        send_failure(m);
    else
        send_list(m);
}
