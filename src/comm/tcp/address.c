/* Addresses of IPv4 and IPv6: resolving a host, changing an address, and converting it for other ranks. */
#include <netdb.h>
#include <netinet/in.h>

#include "base/text.h"
#include "comm/tcp/meet.h"

/* Return the address as the struct of its family. */
static struct sockaddr_in *four(const struct sockaddr *a) { return (struct sockaddr_in *)(uintptr_t)a; }
static struct sockaddr_in6 *six(const struct sockaddr *a) { return (struct sockaddr_in6 *)(uintptr_t)a; }
static bool is_four(const struct sockaddr *a) { return a->sa_family == AF_INET; }

struct addrinfo *tg_tcp_resolve(tg_tcp_meeting *m) {
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *all = NULL;
    char text[512];
    size_t at = 0;
    int error = getaddrinfo(m->opts->host, NULL, &wanted, &all);
    if (!error) return all;
    tg_text(text, sizeof text, &at,
            "host \"%s\", where rank 0 is, has no address: %s; give a name or address that every "
            "rank can resolve",
            m->opts->host, gai_strerror(error));
    tg_tcp_meeting_fail(m, TG_ERR_IO, text);
    return NULL;
}

uint32_t tg_tcp_port_of(const struct sockaddr *a) { return ntohs(is_four(a) ? four(a)->sin_port : six(a)->sin6_port); }

void tg_tcp_set_port(struct sockaddr *a, uint32_t port) {
    if (is_four(a))
        four(a)->sin_port = htons((uint16_t)port);
    else
        six(a)->sin6_port = htons((uint16_t)port);
}

bool tg_tcp_is_loopback(const struct sockaddr *a) {
    if (is_four(a)) return ntohl(four(a)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return IN6_IS_ADDR_LOOPBACK(&six(a)->sin6_addr);
}

void tg_tcp_set_any(struct sockaddr *a) {
    if (is_four(a))
        four(a)->sin_addr.s_addr = htonl(INADDR_ANY);
    else
        six(a)->sin6_addr = in6addr_any;
}

void tg_tcp_pack(const struct sockaddr *a, uint32_t port, tg_tcp_address *out) {
    *out = (tg_tcp_address){.family = a->sa_family, .port = htons((uint16_t)port)};
    if (is_four(a)) {
        memcpy(out->bytes, &four(a)->sin_addr, sizeof four(a)->sin_addr);
    } else {
        memcpy(out->bytes, &six(a)->sin6_addr, sizeof six(a)->sin6_addr);
        out->scope = six(a)->sin6_scope_id;
    }
}

void tg_tcp_unpack(const tg_tcp_address *a, struct sockaddr_storage *out) {
    struct sockaddr *s = (struct sockaddr *)out;
    *out = (struct sockaddr_storage){.ss_family = a->family};
    if (is_four(s)) {
        memcpy(&four(s)->sin_addr, a->bytes, sizeof four(s)->sin_addr);
        four(s)->sin_port = a->port;
    } else {
        memcpy(&six(s)->sin6_addr, a->bytes, sizeof six(s)->sin6_addr);
        six(s)->sin6_port = a->port;
        six(s)->sin6_scope_id = a->scope;
    }
}
