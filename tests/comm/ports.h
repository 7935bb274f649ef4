/* Ports of this machine for tests of TCP. */
#ifndef TG_TEST_PORTS_H
#define TG_TEST_PORTS_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tapegrad/tcp.h>

static inline struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Returns a socket that listens on a port of the loopback address, which the system chooses, and sets *port to it. */
static inline int listen_somewhere(int *port) {
    struct sockaddr_in at = loopback(0);
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bind(fd, (struct sockaddr *)&at, n);
    listen(fd, 16);
    getsockname(fd, (struct sockaddr *)&at, &n);
    *port = ntohs(at.sin_port);
    return fd;
}

/* Returns a port that is free now. Another program may take it before it is used, so ranks try those after it, too. */
static inline int free_port(void) {
    int port;
    close(listen_somewhere(&port));
    return port < 65000 ? port : free_port();
}

/* Returns a socket that is connected with the port, or -1. */
static inline int connect_to_port(int port) {
    struct sockaddr_in at = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
    close(fd);
    return -1;
}

#endif
