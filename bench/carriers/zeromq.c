/* ZeroMQ: a pair of sockets, whose messages its own thread carries. */
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "carrier.h"

static void *ends;

void carrier_open(int me, const char *where) {
    char name[256] = "", theirs[256];
    size_t n = sizeof name;
    int no = 0;
    ends = zmq_socket(zmq_ctx_new(), ZMQ_PAIR);
    zmq_setsockopt(ends, ZMQ_SNDHWM, &no, sizeof no);
    zmq_setsockopt(ends, ZMQ_RCVHWM, &no, sizeof no);
    zmq_setsockopt(ends, ZMQ_LINGER, &no, sizeof no);
    if (me == 0) {
        if (zmq_bind(ends, strcmp(where, "tcp") ? "ipc://*" : "tcp://127.0.0.1:*")) lost(zmq_strerror(zmq_errno()));
        zmq_getsockopt(ends, ZMQ_LAST_ENDPOINT, name, &n);
    }
    swap_bytes(name, theirs, sizeof name);
    if (me && zmq_connect(ends, theirs)) lost(zmq_strerror(zmq_errno()));
}

void carrier_send(const void *data, size_t n) {
    if (zmq_send(ends, data, n, 0) < 0) lost(zmq_strerror(zmq_errno()));
}

void carrier_receive(void *data, size_t n) {
    if (zmq_recv(ends, data, n, 0) < 0) lost(zmq_strerror(zmq_errno()));
}

void carrier_flush(void) {}
