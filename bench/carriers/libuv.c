/* libuv: a stream of bytes, cut into messages by a length before each. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "carrier.h"

static uv_loop_t loop;
static union {
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
} listener, peer;
static uv_write_t writes[2];
static uint64_t lengths[2], length;
static int in_flight, is_open, is_pipe;
static char *into;                /* where the message that is received lies */
static size_t had, arrived, size; /* bytes of its length, and of the message, that have come; its bytes */

static void need(int error) {
    if (error < 0) lost(uv_strerror(error));
}

static void on_accept(uv_stream_t *s, int status) {
    need(status);
    if (is_pipe)
        uv_pipe_init(&loop, &peer.pipe, 0);
    else
        uv_tcp_init(&loop, &peer.tcp);
    need(uv_accept(s, &peer.stream));
    is_open = 1;
}

static void on_connect(uv_connect_t *c, int status) {
    (void)c;
    need(status);
    is_open = 1;
}

static void where_to(uv_handle_t *h, size_t wanted, uv_buf_t *buf) {
    (void)h, (void)wanted;
    if (had < sizeof length)
        *buf = uv_buf_init((char *)&length + had, (unsigned)(sizeof length - had));
    else
        *buf = into && arrived < size ? uv_buf_init(into + arrived, (unsigned)(size - arrived)) : uv_buf_init(NULL, 0);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
    (void)buf;
    if (n == UV_ENOBUFS || n == 0) return; /* no message is wanted now */
    need((int)n);
    if (had < sizeof length)
        had += (size_t)n;
    else
        arrived += (size_t)n;
    if (arrived == size) uv_read_stop(s);
}

void carrier_open(int me, const char *where) {
    uv_connect_t c;
    struct sockaddr_in at;
    char name[128] = "", theirs[128];
    int n = sizeof at;
    is_pipe = strcmp(where, "tcp") != 0;
    uv_loop_init(&loop);
    uv_ip4_addr("127.0.0.1", 0, &at);
    if (me == 0) {
        snprintf(name, sizeof name, "/tmp/uv-pipe-%d", getpid());
        need(is_pipe ? uv_pipe_init(&loop, &listener.pipe, 0) : uv_tcp_init(&loop, &listener.tcp));
        need(is_pipe ? uv_pipe_bind(&listener.pipe, name) : uv_tcp_bind(&listener.tcp, (struct sockaddr *)&at, 0));
        need(uv_listen(&listener.stream, 1, on_accept));
        if (!is_pipe) need(uv_tcp_getsockname(&listener.tcp, (struct sockaddr *)name, &n));
    }
    swap_bytes(name, theirs, sizeof name);
    if (me) {
        need(is_pipe ? uv_pipe_init(&loop, &peer.pipe, 0) : uv_tcp_init(&loop, &peer.tcp));
        if (is_pipe)
            uv_pipe_connect(&c, &peer.pipe, theirs, on_connect);
        else
            need(uv_tcp_connect(&c, &peer.tcp, (struct sockaddr *)theirs, on_connect));
    }
    while (!is_open) uv_run(&loop, UV_RUN_ONCE);
    if (!is_pipe) uv_tcp_nodelay(&peer.tcp, 1);
}

static void on_sent(uv_write_t *w, int status) {
    (void)w;
    need(status);
    in_flight--;
}

void carrier_send(const void *data, size_t n) {
    int i = in_flight++;
    lengths[i] = n;
    uv_buf_t parts[] = {uv_buf_init((char *)&lengths[i], sizeof lengths[i]), uv_buf_init((char *)data, (unsigned)n)};
    need(uv_write(&writes[i], &peer.stream, parts, 2, on_sent));
}

void carrier_receive(void *data, size_t n) {
    into = data;
    size = n;
    had = arrived = 0;
    need(uv_read_start(&peer.stream, where_to, on_read));
    while (arrived < size) uv_run(&loop, UV_RUN_NOWAIT);
}

void carrier_flush(void) {
    while (in_flight) uv_run(&loop, UV_RUN_NOWAIT);
}
