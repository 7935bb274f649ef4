/* The meeting: the phase in which the ranks connect with each other (meet.c). Its state, and the functions that its
 * files share. */
#ifndef TG_TCP_MEET_H
#define TG_TCP_MEET_H

#include "comm/tcp/tcp.h"

typedef struct tg_tcp_meeting tg_tcp_meeting;

/* Rank 0 sends this to the ranks that have connected. TG_OK: all ranks have, and the list of addresses follows. Any
 * other status: the reason why the ranks cannot meet. */
typedef struct tg_tcp_news {
    uint32_t status; /* tg_status */
    char text[1020]; /* the message of the error */
} tg_tcp_news;

struct tg_tcp_meeting {
    tg_tcp_layer *layer;
    const tg_tcp_opts *opts;
    double begun;    /* time when it began; the deadline counts from here */
    uint64_t job;    /* hash of the name of the run */
    bool failed;     /* the context has the error */
    uv_timer_t tick; /* wakes a rank that waits, so that it checks the deadline */
    uv_tcp_t listener;
    bool listens;
    int handles;                  /* how many of tick and listener libuv has not closed yet */
    uint32_t port;                /* the port on which this rank listens */
    tg_tcp_connection *strangers; /* accepted connections whose greeting has not arrived yet, the newest first */
    int n_strangers;
    bool *come; /* whether each rank is connected with this one */
    int n_come; /* number of such ranks */
    void (*arrived)(tg_tcp_meeting *m, tg_tcp_connection *c); /* called when a rank has connected to this one */
    tg_tcp_address *addresses;                                /* of each rank but rank 0 */
    tg_tcp_news news;                                         /* sent by rank 0, received by the others */

    /* Of ranks above 0: how they connect to rank 0 */
    struct addrinfo *hosts;     /* all addresses of rank 0's host */
    int attempts;               /* number of attempts until rank 0 was reached */
    tg_tcp_connection *attempt; /* the attempt that is running; NULL: none */
    double tried;               /* time at which the last attempt began */
    int refusal;                /* libuv's error of the last attempt that failed; 0: none has failed */
    bool reached;               /* an attempt has reached rank 0, so all later ones go to the same place */
    bool listed;                /* the list of addresses has arrived */
};

/* ---- meet.c ---- */

/* Records the error, unless the meeting has failed before. Returns false. */
bool tg_tcp_meeting_fail(tg_tcp_meeting *m, tg_status status, const char *text);
/* Fails the meeting because connection c, whose rank is known, has ended with a libuv error. Removes c from the layer's
 * connections. when: the time in words, such as "while the ranks connected". */
void tg_tcp_meeting_lost(tg_tcp_connection *c, int error, const char *when);
/* Sends this rank's greeting on c. */
void tg_tcp_greet(tg_tcp_meeting *m, tg_tcp_connection *c);
/* Returns whether the greeting is one of this run. */
bool tg_tcp_is_of_run(const tg_tcp_meeting *m, const tg_tcp_greeting *g);
/* Returns whether the sender has the same version and number of ranks. If not, fails the meeting. */
bool tg_tcp_greeting_agrees(tg_tcp_meeting *m, const tg_tcp_greeting *g);
/* Listens on an address. Returns 0, or libuv's error. A callback of libuv may call it only once. */
int tg_tcp_listen(tg_tcp_meeting *m, const struct sockaddr *at);
/* Returns whether all other ranks are connected with this one. */
bool tg_tcp_have_all_come(tg_tcp_meeting *m);
/* Waits until done(m). Returns false if the meeting fails or the deadline passes first. */
bool tg_tcp_until(tg_tcp_meeting *m, bool (*done)(tg_tcp_meeting *m));
/* Closes a handle of the meeting, and waits until it is closed. */
void tg_tcp_meeting_close(tg_tcp_meeting *m, uv_handle_t *h);

/* ---- address.c ---- */

/* Returns the addresses of the host in the options, which freeaddrinfo frees; NULL after failing the meeting. */
struct addrinfo *tg_tcp_resolve(tg_tcp_meeting *m);
uint32_t tg_tcp_port_of(const struct sockaddr *a);
void tg_tcp_set_port(struct sockaddr *a, uint32_t port);
bool tg_tcp_is_loopback(const struct sockaddr *a);
/* Replaces the address by the wildcard, which means all addresses of this node. */
void tg_tcp_set_any(struct sockaddr *a);
/* Convert an address to the form in which ranks send it, with another port, and back. */
void tg_tcp_pack(const struct sockaddr *a, uint32_t port, tg_tcp_address *out);
void tg_tcp_unpack(const tg_tcp_address *a, struct sockaddr_storage *out);

/* ---- first.c, join.c ---- */

/* The part of rank 0: waits until all ranks have connected, and sends them the list of addresses. */
void tg_tcp_receive_all(tg_tcp_meeting *m);
/* The part of any other rank: connects to rank 0, receives the list, and connects with the other ranks. */
void tg_tcp_join(tg_tcp_meeting *m);

#endif
