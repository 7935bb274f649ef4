/* Groups of the transport between nodes: their keys, their memory, and messages that came before their group. */
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "comm/p2p/buffers.h"
#include "comm/p2p/failure.h"

/* ---- Keys ---- */

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

uint64_t tg_p2p_digest(const tg_p2p_key *key) { return mix(key->base, key->ordinal); }

/* Returns the entry that counts the groups with this base; NULL: there is no such group yet. Members that form several
 * groups of the same list, split from the same group, form them in the same order. So the n-th of these groups has the
 * same key on all its members. */
static tg_p2p_base *base_of(tg_p2p_rank *self, uint64_t base) {
    for (tg_p2p_base *b = self->bases; b; b = b->next)
        if (b->base == base) return b;
    return NULL;
}

/* Sets *key to the key of the next group of these ranks. parent: that of tg_p2p_group_new. */
static tg_status name_group(tg_p2p_rank *self, const tg_p2p_key *parent, const int *ranks, int n, tg_p2p_key *key) {
    key->base = parent ? mix(tg_p2p_digest(parent), (uint64_t)n) : 0;
    for (int i = 0; i < n; i++) key->base = mix(key->base, (uint64_t)ranks[i] + 1);
    tg_p2p_base *b = base_of(self, key->base);
    if (!b) {
        b = tg_host_alloc(self->ctx, sizeof *b);
        if (!b) return self->ctx->run.status;
        *b = (tg_p2p_base){.next = self->bases, .base = key->base};
        self->bases = b;
    }
    key->ordinal = b->made;
    return TG_OK;
}

/* ---- Memory ---- */

static size_t round_up(size_t n) { return (n + 63) / 64 * 64; }

/* Chooses the window (most collectives in flight) and the sizes of the group's buffers. They are smaller if the group
 * has more members. */
static void size_group(tg_p2p_group *g) {
    enum { BUFFERS = 8 << 20, LARGEST = 128 << 10, SMALLEST = 4 << 10 };
    size_t all = (size_t)g->control.size * TG_P2P_PIECES * (TG_P2P_PHASES + 1);
    g->window = g->control.size <= 64 ? 32 : 8;
    g->inline_bytes = g->control.size <= 8 ? 1024 : g->control.size <= 64 ? 256 : 64;
    for (g->piece = LARGEST; g->piece > SMALLEST && g->piece * all > BUFFERS;) g->piece /= 2;
}

tg_p2p_call *tg_p2p_calls_new(tg_p2p_group *g, int n, int members, size_t *bytes) {
    size_t sides = (size_t)n * (size_t)members, begins = (size_t)n * 2 * (size_t)(members + 1);
    size_t at_sides = round_up((size_t)n * sizeof(tg_p2p_call)), at_begins = at_sides + sides * sizeof(tg_p2p_side);
    size_t at_inline = at_begins + begins * sizeof(int64_t);
    *bytes = at_inline + sides * g->inline_bytes;
    char *p = tg_host_alloc(g->self->ctx, *bytes);
    tg_p2p_call *calls = (tg_p2p_call *)p;
    for (int i = 0; p && i < n; i++) {
        size_t side = (size_t)i * (size_t)members;
        calls[i].g = g;
        calls[i].side = (tg_p2p_side *)(p + at_sides) + side;
        calls[i].begins = (int64_t *)(p + at_begins) + (size_t)i * 2 * (size_t)(members + 1);
        for (int j = 0; j < members; j++)
            calls[i].side[j].inline_data = p + at_inline + (side + (size_t)j) * g->inline_bytes;
    }
    return calls;
}

/* ---- Places of sends and receives ---- */

static bool is_taken(const tg_p2p_call *c) { return c->request || c->arrived; }

/* Allocates n more calls for sends to that member, or receives from it. */
static tg_p2p_call *block_new(tg_p2p_group *g, int n, int member) {
    tg_p2p_block *b = tg_host_alloc(g->self->ctx, sizeof *b);
    if (!b) return NULL;
    *b = (tg_p2p_block){.next = g->blocks, .calls = tg_p2p_calls_new(g, n, 1, &b->bytes)};
    if (!b->calls) {
        tg_host_free(g->self->ctx, b, sizeof *b);
        return NULL;
    }
    for (int i = 0; i < n; i++) {
        b->calls[i].pair = true;
        b->calls[i].peer = member;
    }
    g->blocks = b;
    return b->calls;
}

/* Doubles the places. A call that is in use moves to the place of its number; free calls fill the other places. */
static bool grow(tg_p2p_group *g, tg_p2p_pair_calls *m, int member) {
    tg_ctx *ctx = g->self->ctx;
    uint64_t capacity = m->capacity ? 2 * m->capacity : TG_P2P_PAIR_CALLS, n = capacity - m->capacity, at = 0;
    tg_p2p_call **call = tg_host_alloc(ctx, capacity * sizeof(tg_p2p_call *));
    tg_p2p_call *more = call ? block_new(g, (int)n, member) : NULL;
    if (!more) {
        tg_host_free(ctx, call, capacity * sizeof(tg_p2p_call *));
        return false;
    }
    for (uint64_t i = 0; i < capacity; i++) call[i] = NULL;
    for (uint64_t i = 0; i < m->capacity; i++)
        if (is_taken(m->call[i])) call[m->call[i]->sequence % capacity] = m->call[i];
    for (uint64_t i = 0, old = 0; i < capacity; i++) {
        if (call[i]) continue;
        while (old < m->capacity && is_taken(m->call[old])) old++;
        call[i] = old < m->capacity ? m->call[old++] : &more[at++];
    }
    tg_host_free(ctx, m->call, m->capacity * sizeof(tg_p2p_call *));
    m->call = call;
    m->capacity = capacity;
    return true;
}

tg_p2p_call *tg_p2p_pair_place(tg_p2p_group *g, int member, bool send, uint64_t sequence) {
    tg_p2p_pair_calls *m = send ? &g->member[member].send : &g->member[member].recv;
    for (;;) {
        tg_p2p_call *c = tg_p2p_pair_at(m, sequence);
        if (c && (!is_taken(c) || c->sequence == sequence)) return c;
        if (!grow(g, m, member)) return NULL;
    }
}

tg_status tg_p2p_buffers(tg_p2p_group *g) {
    enum { EACH = TG_P2P_PIECES * (TG_P2P_PHASES + 1) };
    if (g->buffers) return TG_OK;
    g->buffer_bytes = (size_t)g->control.size * EACH * g->piece;
    char *p = g->buffers = tg_host_alloc(g->self->ctx, g->buffer_bytes);
    if (!p) return g->self->ctx->run.status;
    for (int i = 0; i < g->control.size; i++)
        for (int k = 0; k < EACH; k++, p += g->piece) {
            int phase = k / TG_P2P_PIECES, which = k % TG_P2P_PIECES;
            *(phase < TG_P2P_PHASES ? &g->member[i].in[phase][which].buffer.data : &g->member[i].out[which].data) = p;
        }
    return TG_OK;
}

/* ---- Copies of data that a call overwrites in place ---- */

static bool fits(const tg_p2p_copy *c, size_t bytes) { return !c->used && c->bytes >= bytes; }

void *tg_p2p_copy_of(tg_p2p_group *g, const void *data, size_t bytes) {
    tg_p2p_copy *best = NULL;
    for (tg_p2p_copy *c = g->copies; c; c = c->next)
        if (fits(c, bytes) && (!best || c->bytes < best->bytes)) best = c;
    if (!best) {
        best = tg_host_alloc(g->self->ctx, sizeof *best + bytes);
        if (!best) return NULL;
        best->bytes = bytes;
        best->next = g->copies;
        g->copies = best;
    }
    best->used = true;
    memcpy(best->data, data, bytes);
    return best->data;
}

void tg_p2p_copy_end(tg_p2p_group *g, const void *data) {
    for (tg_p2p_copy *c = g->copies; c; c = c->next)
        if (c->data == data) c->used = false;
}

/* ---- Messages that came before their group ---- */

static bool same_key(const tg_p2p_key *a, const tg_p2p_key *b) {
    return a->base == b->base && a->ordinal == b->ordinal;
}

/* Keeps a message for a group that this rank may yet form. If there is no memory, records the error and loses the
 * message. */
static void keep_early(tg_p2p_rank *self, const tg_p2p_message *m) {
    size_t bytes = sizeof *m + m->text + m->payload;
    tg_p2p_early *e = tg_host_alloc(self->ctx, sizeof *e + bytes);
    if (!e) return;
    e->bytes = sizeof *e + bytes;
    e->m = (tg_p2p_message *)(e + 1);
    memcpy(e->m, m, bytes);
    *self->early_end = e;
    self->early_end = &e->next;
}

tg_p2p_group *tg_p2p_with_key(const tg_p2p_rank *self, const tg_p2p_key *key) {
    tg_p2p_group *g = self->groups;
    while (g && !same_key(&g->key, key)) g = g->next;
    return g;
}

tg_p2p_group *tg_p2p_find(tg_p2p_rank *self, const tg_p2p_message *m) {
    tg_p2p_group *g = tg_p2p_with_key(self, &m->group);
    if (g) return g->closed ? NULL : g;
    tg_p2p_base *b = base_of(self, m->group.base);
    if (m->kind != TG_P2P_REQUEST && m->kind != TG_P2P_PROBE && (!b || m->group.ordinal >= b->made))
        keep_early(self, m);
    return NULL;
}

/* Handles the messages that came before the group was formed. */
static void deliver_early(tg_p2p_rank *self, tg_p2p_group *g) {
    for (tg_p2p_early **at = &self->early; *at;) {
        tg_p2p_early *e = *at;
        if (!same_key(&e->m->group, &g->key)) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        if (!e->next) self->early_end = at;
        tg_p2p_deliver(g, e->m);
        tg_host_free(self->ctx, e, e->bytes);
    }
}

/* ---- Start and end ---- */

static bool has_buffers_in_flight(const tg_p2p_group *g) {
    for (int i = 0; i < g->control.size; i++)
        for (int k = 0; k < TG_P2P_PIECES; k++) {
            const tg_p2p_member *m = &g->member[i];
            if (m->in[0][k].buffer.in_flight || m->in[1][k].buffer.in_flight || m->out[k].in_flight) return true;
        }
    return false;
}

static void group_free(tg_p2p_group *g) {
    tg_ctx *ctx = g->self->ctx;
    for (int i = 0; i < g->control.size; i++) {
        tg_host_free(ctx, g->member[i].send.call, g->member[i].send.capacity * sizeof(tg_p2p_call *));
        tg_host_free(ctx, g->member[i].recv.call, g->member[i].recv.capacity * sizeof(tg_p2p_call *));
    }
    for (tg_p2p_block *b = g->blocks, *next; b; b = next) {
        next = b->next;
        tg_host_free(ctx, b->calls, b->bytes);
        tg_host_free(ctx, b, sizeof *b);
    }
    for (tg_p2p_copy *c = g->copies, *next; c; c = next) {
        next = c->next;
        tg_host_free(ctx, c, sizeof *c + c->bytes);
    }
    tg_host_free(ctx, g->calls, g->calls_bytes);
    if (!has_buffers_in_flight(g)) /* otherwise the layer may still use the buffers, which are never freed */
        tg_host_free(ctx, g->buffers, g->buffer_bytes);
    tg_host_free(ctx, g, g->bytes);
}

tg_p2p_group *tg_p2p_group_new(tg_p2p_rank *self, const tg_p2p_key *parent, const int *ranks, int n, int rank,
                               const char *name) {
    size_t bytes = sizeof(tg_p2p_group) + (size_t)n * (sizeof(tg_p2p_member) + sizeof(bool)), at = 0;
    tg_p2p_key key;
    if (name_group(self, parent, ranks, n, &key) != TG_OK) return NULL;
    tg_p2p_group *g = tg_host_alloc(self->ctx, bytes);
    if (!g) return NULL;
    g->self = self;
    g->key = key;
    g->control = (tg_control){.ops = &tg_p2p_control,
                              .mover = &tg_p2p_mover,
                              .ctx = self->ctx,
                              .name = g->name,
                              .me = self->me,
                              .rank = rank,
                              .size = n,
                              .cause = &self->cause,
                              .patience = self->spins,
                              .missed = self->ctx->run.missed};
    g->bytes = bytes;
    g->world = !parent;
    g->culprit = g->reporter = -1;
    g->list = (bool *)&g->member[n];
    tg_text(g->name, sizeof g->name, &at, "%s", name ? name : "");
    for (int i = 0; i < n; i++) g->member[i].rank = ranks[i];
    size_group(g);
    g->calls = tg_p2p_calls_new(g, 2 * g->window, n, &g->calls_bytes);
    if (!g->calls) {
        group_free(g);
        return NULL;
    }
    base_of(self, key.base)->made++;
    g->next = self->groups;
    self->groups = g;
    deliver_early(self, g);
    return g;
}

void tg_p2p_group_close(tg_p2p_group *g) {
    for (int i = 0; i < g->control.size; i++)
        if (i != g->control.rank && !g->self->peer[g->member[i].rank].gone)
            tg_p2p_post(g->self, tg_p2p_draft(g->self, TG_P2P_LEAVE, g), g->member[i].rank);
    g->closed = true;
}

bool tg_p2p_groups_sweep(tg_p2p_rank *self) {
    bool clean = true;
    for (tg_p2p_group **at = &self->groups; *at;) {
        tg_p2p_group *g = *at;
        if (!g->closed || has_buffers_in_flight(g)) {
            clean &= !g->closed;
            at = &g->next;
            continue;
        }
        *at = g->next;
        group_free(g);
    }
    return clean;
}

void tg_p2p_groups_free(tg_p2p_rank *self) {
    for (tg_p2p_group *g = self->groups, *next; g; g = next) {
        next = g->next;
        group_free(g);
    }
    for (tg_p2p_early *e = self->early, *next; e; e = next) {
        next = e->next;
        tg_host_free(self->ctx, e, e->bytes);
    }
    for (tg_p2p_base *b = self->bases, *next; b; b = next) {
        next = b->next;
        tg_host_free(self->ctx, b, sizeof *b);
    }
}
