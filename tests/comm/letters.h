/* A message layer for tests (tapegrad/p2p.h): its ranks are threads of one process, and its messages are letters in
 * their inboxes. It can hold back the letters of one rank to another, so that messages of different ranks arrive in
 * orders that are rare elsewhere, and let a rank end between two letters. */
#ifndef TG_TEST_LETTERS_H
#define TG_TEST_LETTERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/p2p.h>

enum { LETTER_RANKS = 4, LETTERS_IN_FLIGHT = 128 };

typedef struct letter {
    struct letter *next;
    int from, tag;
    size_t bytes;
    char data[];
} letter;

/* A receive that waits for its letter. */
typedef struct receiving {
    void *data, *token;
    size_t capacity;
    int from, tag;
} receiving;

struct line;

typedef struct wires {
    pthread_mutex_t lock;
    void (*sends)(struct line *l, const void *data, int tag); /* called before each letter is sent; NULL: nothing */
    letter *inbox[LETTER_RANKS];
    atomic_bool held; /* letters from holder to waiter are held back */
    int holder, waiter;
    atomic_bool ended[LETTER_RANKS]; /* it sends nothing more, as if its process had ended: set by wires.sends */
} wires;

/* One rank's end. */
typedef struct line {
    wires *w;
    int me, n_receives, n_sent, n_failures; /* n_failures: used by wires.sends */
    bool quiet; /* as the transport said at the end */
    bool cut;   /* every poll fails */
    bool slow;  /* letters arrive, but their sends stay in flight */
    bool over;  /* the layer has ended */
    int n_late; /* number of calls after that */
    int closed; /* number of calls of close */
    receiving receives[LETTERS_IN_FLIGHT];
    void *sent[LETTERS_IN_FLIGHT];
} line;

static inline int line_send(void *state, const void *data, size_t bytes, int to, int tag, void *token) {
    line *l = state;
    l->n_late += l->over;
    if (l->w->sends) l->w->sends(l, data, tag);
    if (l->n_sent == LETTERS_IN_FLIGHT) return 1;
    l->sent[l->n_sent++] = token;
    if (atomic_load(&l->w->ended[l->me])) return 0;
    letter *m = malloc(sizeof *m + bytes);
    if (!m) return l->n_sent--, 1;
    *m = (letter){.from = l->me, .tag = tag, .bytes = bytes};
    memcpy(m->data, data, bytes);
    pthread_mutex_lock(&l->w->lock);
    letter **end = &l->w->inbox[to];
    while (*end) end = &(*end)->next;
    *end = m;
    pthread_mutex_unlock(&l->w->lock);
    return 0;
}

static inline int line_receive(void *state, void *data, size_t capacity, int from, int tag, void *token) {
    line *l = state;
    l->n_late += l->over;
    if (l->n_receives == LETTERS_IN_FLIGHT) return 1;
    l->receives[l->n_receives++] = (receiving){data, token, capacity, from, tag};
    return 0;
}

/* Returns the first letter that matches the receive. Later letters of its sender stay in their order. */
static inline letter *take_letter(line *l, const receiving *r, bool held) {
    wires *w = l->w;
    letter **at = &w->inbox[l->me], *m;
    while ((m = *at) && (m->tag != r->tag || (r->from >= 0 && m->from != r->from) || (held && m->from == w->holder)))
        at = &m->next;
    if (m) *at = m->next;
    return m;
}

/* Returns whether the rank has ended and all its letters to this rank have been received. Holds the lock. */
static inline bool is_lost(line *l, int rank) {
    letter *m = l->w->inbox[l->me];
    while (m && m->from != rank) m = m->next;
    return !m && atomic_load(&l->w->ended[rank]);
}

static inline int deliver_letters(line *l, tg_p2p_completed_fn completed) {
    bool held = l->me == l->w->waiter && atomic_load(&l->w->held);
    for (int i = 0; i < l->n_receives; i++) {
        receiving r = l->receives[i];
        letter *m = take_letter(l, &r, held);
        if (!m && (r.from < 0 || !is_lost(l, r.from))) continue;
        size_t n = m ? m->bytes : 0;
        if (n && n <= r.capacity) memcpy(r.data, m->data, n);
        free(m);
        if (n > r.capacity) return 2;
        memmove(&l->receives[i], &l->receives[i + 1], (size_t)(--l->n_receives - i) * sizeof r);
        i--;
        completed(r.token, n);
    }
    return 0;
}

/* Holds the lock: a letter that came meanwhile would land in a later receive than the next one. */
static inline int line_poll(void *state, tg_p2p_completed_fn completed) {
    line *l = state;
    l->n_late += l->over;
    if (l->cut || atomic_load(&l->w->ended[l->me])) return 3;
    while (l->n_sent && !l->slow) completed(l->sent[--l->n_sent], 0);
    pthread_mutex_lock(&l->w->lock);
    int error = deliver_letters(l, completed);
    pthread_mutex_unlock(&l->w->lock);
    return error;
}

static inline void line_explain(void *state, int error, char *buf, size_t n) {
    static const char *const texts[] = {"no capacity", "a letter is too long", "the line is cut"};
    (void)state;
    snprintf(buf, n, "%s", texts[error - 1]);
}

static inline const char *line_lost(void *state, int rank) {
    line *l = state;
    pthread_mutex_lock(&l->w->lock);
    bool lost = is_lost(l, rank);
    pthread_mutex_unlock(&l->w->lock);
    return lost ? "" : NULL;
}

static inline tg_p2p_phase line_phase(void *state) {
    const line *l = state;
    return l->over ? TG_P2P_ENDED : TG_P2P_OPEN;
}

static inline void line_close(void *state, bool quiet, tg_p2p_completed_fn completed) {
    line *l = state;
    l->quiet = quiet;
    l->closed++;
    while (l->n_sent) completed(l->sent[--l->n_sent], 0);
    while (l->n_receives) completed(l->receives[--l->n_receives].token, 0);
}

static const tg_p2p_ops line_ops = {.size = sizeof(tg_p2p_ops),
                                    .name = "letters",
                                    .send = line_send,
                                    .receive = line_receive,
                                    .poll = line_poll,
                                    .explain = line_explain,
                                    .close = line_close,
                                    .phase = line_phase,
                                    .lost = line_lost};

/* Frees the letters that were never received. */
static inline void wires_free(wires *w) {
    for (int r = 0; r < LETTER_RANKS; r++)
        for (letter *m = w->inbox[r], *next; m; m = next) next = m->next, free(m);
}

#endif
