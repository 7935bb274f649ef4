/* Connections: creating and ending them, reading blocks of a known size, and writing. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "base/memory/host_memory.h"
#include "comm/tcp/tcp.h"

/* ---- SIGPIPE ---- */

/* libuv's writes to a socket raise SIGPIPE if the peer has closed it, which would end this process. So this thread
 * blocks the signal while libuv may write, and then discards a pending one. That can only be libuv's: the signal was
 * not blocked before, so none was pending. If the signal was blocked before, the thread changes and discards
 * nothing. */
typedef struct blocked_pipe {
    bool here; /* the signal is blocked now, and was not before */
    sigset_t set, before;
} blocked_pipe;

static void block_pipe(blocked_pipe *b) {
    sigemptyset(&b->set);
    sigaddset(&b->set, SIGPIPE);
    b->here = pthread_sigmask(SIG_BLOCK, &b->set, &b->before) == 0 && !sigismember(&b->before, SIGPIPE);
}

static void unblock_pipe(const blocked_pipe *b) {
    const struct timespec now = {0};
    if (!b->here) return;
    while (sigtimedwait(&b->set, NULL, &now) < 0 && errno == EINTR) continue;
    pthread_sigmask(SIG_SETMASK, &b->before, NULL);
}

/* ---- The loop ---- */

void tg_tcp_run(tg_tcp_layer *l, bool wait) {
    blocked_pipe b;
    bool writes = l->writing > 0 || wait;
    if (writes) block_pipe(&b);
    uv_run(&l->loop, wait ? UV_RUN_ONCE : UV_RUN_NOWAIT);
    if (writes) unblock_pipe(&b);
}

/* ---- Begin and end ---- */

tg_tcp_connection *tg_tcp_connection_new(tg_tcp_layer *l) {
    tg_tcp_connection *c = tg_host_alloc(l->ctx, sizeof *c);
    if (!c) return NULL;
    uv_tcp_init(&l->loop, &c->socket);
    l->handles++;
    c->layer = l;
    c->rank = -1;
    return c;
}

static void on_closed(uv_handle_t *h) {
    tg_tcp_connection *c = (tg_tcp_connection *)h;
    c->layer->handles--;
    tg_host_free(c->layer->ctx, c, sizeof *c);
}

void tg_tcp_connection_end(tg_tcp_connection *c, int error) {
    if (uv_is_closing((uv_handle_t *)&c->socket)) return;
    uv_close((uv_handle_t *)&c->socket, on_closed);
    if (error && c->ended) c->ended(c, error);
}

/* ---- Reading ---- */

static void where_to(uv_handle_t *h, size_t suggested, uv_buf_t *buffer) {
    tg_tcp_connection *c = (tg_tcp_connection *)h;
    (void)suggested;
    *buffer = uv_buf_init(c->into + c->arrived, (unsigned)(c->wanted - c->arrived));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buffer) {
    tg_tcp_connection *c = (tg_tcp_connection *)s;
    (void)buffer;
    if (n < 0) {
        tg_tcp_connection_end(c, (int)n);
        return;
    }
    c->arrived += (size_t)n;
    if (n > 0 && c->arrived == c->wanted) c->then(c);
}

void tg_tcp_await(tg_tcp_connection *c, void *into, size_t n, void (*then)(tg_tcp_connection *c)) {
    bool reads = c->wanted > 0;
    c->into = into;
    c->wanted = n;
    c->arrived = 0;
    c->then = then;
    if (uv_is_closing((uv_handle_t *)&c->socket)) return;
    if (!n) uv_read_stop((uv_stream_t *)&c->socket);
    if (n && !reads) uv_read_start((uv_stream_t *)&c->socket, where_to, on_read);
}

/* ---- Writing ---- */

tg_tcp_write *tg_tcp_write_new(tg_tcp_layer *l, void *token) {
    tg_tcp_write *w = l->free_writes;
    if (w)
        l->free_writes = w->next;
    else if (!(w = tg_host_alloc(l->ctx, sizeof *w)))
        return NULL;
    *w = (tg_tcp_write){.layer = l, .token = token};
    return w;
}

void tg_tcp_write_over(tg_tcp_write *w) {
    tg_tcp_layer *l = w->layer;
    if (w->token) l->completed(w->token, 0);
    w->next = l->free_writes;
    l->free_writes = w;
}

static void on_written(uv_write_t *request, int status) {
    tg_tcp_write *w = (tg_tcp_write *)request;
    (void)status; /* the next read of the connection reports the error */
    w->layer->writing--;
    tg_tcp_write_over(w);
}

void tg_tcp_write_start(tg_tcp_connection *c, tg_tcp_write *w, bool head, const void *data, size_t n) {
    tg_tcp_layer *l = w->layer;
    uv_buf_t parts[] = {uv_buf_init((char *)&w->head, sizeof w->head), uv_buf_init((char *)data, (unsigned)n)};
    blocked_pipe b;
    bool sent = false;
    if (c) {
        block_pipe(&b);
        sent =
            uv_write(&w->request, (uv_stream_t *)&c->socket, head ? parts : parts + 1, head ? 2 : 1, on_written) == 0;
        unblock_pipe(&b);
    }
    if (sent) {
        l->writing++;
    } else {
        w->next = l->dropped;
        l->dropped = w;
    }
}
