/* nng: a pair of sockets, whose messages its own threads carry. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>

#include "carrier.h"

static nng_socket ends;

static void need(int error) {
    if (error) lost(nng_strerror(error));
}

void carrier_open(int me, const char *where) {
    char name[128] = "", theirs[128];
    need(nng_pair0_open(&ends));
    nng_socket_set_size(ends, NNG_OPT_RECVMAXSZ, 0);
    if (me == 0) {
        nng_listener l;
        int port = 0;
        snprintf(name, sizeof name, strcmp(where, "tcp") ? "ipc:///tmp/nng-pair-%d" : "tcp://127.0.0.1:0", getpid());
        need(nng_listen(ends, name, &l, 0));
        if (!strcmp(where, "tcp") && !nng_listener_get_int(l, NNG_OPT_TCP_BOUND_PORT, &port))
            snprintf(name, sizeof name, "tcp://127.0.0.1:%d", port);
    }
    swap_bytes(name, theirs, sizeof name);
    if (me) need(nng_dial(ends, theirs, NULL, 0));
}

void carrier_send(const void *data, size_t n) { need(nng_send(ends, (void *)data, n, 0)); }

void carrier_receive(void *data, size_t n) { need(nng_recv(ends, data, &n, 0)); }

void carrier_flush(void) {}
