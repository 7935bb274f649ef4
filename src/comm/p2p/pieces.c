/* Moves the data of a call at which all members have arrived: inline data, and pieces. Requests pieces, sends those
 * that others request, and stores or sums those that have arrived. */
#include "kernels/cpu/rank_sums.h"
#include "comm/p2p/buffers.h"
#include "comm/p2p/failure.h"
#include "comm/p2p/flow.h"
#include "comm/shm/region.h"

/* ---- Sums ---- */

static void sum(const tg_p2p_call *c, const void *const *src, tg_p2p_flow to) {
    void *dst = to.data;
    tg_ranks_fn kernel = tg_ranks_kernel(tg_cpu_level(c->g->self->ctx), c->t.dtype);
    if (to.n) kernel(c->t.op, src, c->g->control.size, &dst, 1, to.n);
}

/* Sums the addends, all of which are inline. */
static void sum_inline(tg_p2p_call *c) {
    const void *src[TG_MAX_RANKS];
    const char *own;
    tg_p2p_flow to = tg_p2p_sum(c, &own);
    for (int i = 0; i < c->g->control.size; i++) src[i] = i == c->g->control.rank ? own : c->side[i].inline_data;
    sum(c, src, to);
}

/* Returns the piece of this number that has arrived from the member; NULL: it has not arrived. */
static tg_p2p_piece *arrived(const tg_p2p_call *c, int from, int phase, int64_t index) {
    for (int k = 0; k < TG_P2P_PIECES; k++) {
        tg_p2p_piece *p = &c->g->member[from].in[phase][k];
        if (p->call == c && p->index == index && !p->buffer.in_flight) return p;
    }
    return NULL;
}

/* Sums the next piece if it has arrived from all members. Returns whether it has. */
static bool sum_next(tg_p2p_call *c) {
    const void *src[TG_MAX_RANKS];
    const char *own;
    tg_p2p_flow all = tg_p2p_sum(c, &own), to = tg_p2p_piece_of(c, all, c->summed);
    for (int i = 0; i < c->g->control.size; i++) {
        const tg_p2p_piece *p = i == c->g->control.rank ? NULL : arrived(c, i, 0, c->summed);
        if (i != c->g->control.rank && !p) return false;
        src[i] = p ? p->buffer.data : own + c->summed * (int64_t)c->g->piece;
    }
    sum(c, src, to);
    for (int i = 0; i < c->g->control.size; i++)
        if (i != c->g->control.rank) arrived(c, i, 0, c->summed)->call = NULL;
    c->summed++;
    c->in -= c->g->control.size - 1;
    return true;
}

/* ---- Start ---- */

static void copy_inline(tg_p2p_call *c, int from, tg_p2p_flow f) {
    if (f.data) memcpy(f.data, tg_p2p_side_of(c, from)->inline_data, (size_t)f.n * tg_p2p_element(c));
}

/* Stores the inline data of the member, or counts the pieces that must come from it. Counts the pieces that must be
 * sent to it. */
static void expect(tg_p2p_call *c, int member) {
    for (int phase = 0; phase < TG_P2P_PHASES; phase++) {
        tg_p2p_flow in = tg_p2p_in(c, member, phase), out = tg_p2p_out(c, member, phase);
        if (tg_p2p_is_inline(c, in, phase))
            copy_inline(c, member, in);
        else
            c->in += tg_p2p_piece_count(c, in);
        if (!tg_p2p_is_inline(c, out, phase)) c->out += tg_p2p_piece_count(c, out);
    }
}

/* Begins a send or a receive. A receive of inline data requests no pieces, so it notifies the sender. */
static void begin_pair_call(tg_p2p_call *c) {
    tg_p2p_rank *self = c->g->self;
    bool recv = c->t.kind == TG_RECV;
    tg_p2p_flow f = recv ? tg_p2p_in(c, c->peer, 0) : tg_p2p_out(c, c->peer, 0);
    expect(c, c->peer);
    if (!recv || !tg_p2p_is_inline(c, f, 0)) return;
    tg_p2p_message *m = tg_p2p_draft(self, TG_P2P_TAKEN, c->g);
    if (m) m->sequence = c->sequence;
    tg_p2p_post(self, m, c->g->member[c->peer].rank);
}

void tg_p2p_begin(tg_p2p_call *c) {
    int me = c->g->control.rank;
    const char *own;
    c->ready = true;
    if (c->pair) {
        begin_pair_call(c);
        return;
    }
    for (int i = 0; i < c->g->control.size; i++)
        if (i != me) expect(c, i);
    if (tg_p2p_sums(c)) {
        tg_p2p_flow to = tg_p2p_sum(c, &own);
        c->sums = tg_p2p_piece_count(c, to);
        if (!tg_p2p_is_inline(c, to, 0)) return;
        sum_inline(c);
        c->summed = c->sums;
        return;
    }
    tg_p2p_flow from = tg_p2p_out(c, me, 0), to = tg_p2p_in(c, me, 0);
    if (to.data && from.data && to.data != from.data) memcpy(to.data, from.data, (size_t)to.n * tg_p2p_element(c));
}

/* ---- Requests ---- */

static tg_p2p_piece *free_piece(tg_p2p_group *g, int from, int phase) {
    for (int k = 0; k < TG_P2P_PIECES; k++) {
        tg_p2p_piece *p = &g->member[from].in[phase][k];
        if (!p->call && !p->buffer.in_flight) return p;
    }
    return NULL;
}

/* Returns the tag of the next piece. The pieces in flight have different tags. */
static int next_tag(tg_p2p_peer *peer) {
    enum { TAGS = 32000 };
    peer->tag = peer->tag % TAGS + 1;
    return peer->tag;
}

/* Requests the next piece. Returns false if no buffer is free, or after an error; a later call may then succeed. */
static bool request_piece(tg_p2p_call *c, int from, int phase) {
    tg_p2p_group *g = c->g;
    tg_p2p_piece *p = free_piece(g, from, phase);
    tg_p2p_message *m = p ? tg_p2p_draft(g->self, TG_P2P_REQUEST, g) : NULL;
    int rank = g->member[from].rank;
    if (!m) return false;
    int tag = next_tag(&g->self->peer[rank]);
    if (tg_p2p_receive(g->self, &p->buffer, g->piece, rank, tag) != TG_OK) return false;
    p->call = c;
    p->index = tg_p2p_side_of(c, from)->requested[phase]++;
    m->pair = c->pair;
    m->phase = (uint8_t)phase;
    m->tag = tag;
    m->sequence = c->sequence;
    tg_p2p_post(g->self, m, rank);
    return true;
}

/* Requests pieces from the member. Returns whether all were requested. */
static bool request_from(tg_p2p_call *c, int from, int phase) {
    tg_p2p_flow f = tg_p2p_in(c, from, phase);
    int64_t pieces = tg_p2p_is_inline(c, f, phase) ? 0 : tg_p2p_piece_count(c, f);
    while (tg_p2p_side_of(c, from)->requested[phase] < pieces)
        if (!request_piece(c, from, phase)) return false;
    return true;
}

/* Requests the pieces of a collective. tg_p2p_progress comes to older calls first. If a collective cannot request all
 * that it needs, younger collectives of the group request nothing (held). Otherwise two of them could each hold buffers
 * that the other one needs, and wait forever: a sum keeps its buffers until the pieces of all members have arrived.
 * Receives do not keep theirs, so they need not wait. */
static void request_all(tg_p2p_call *c) {
    tg_p2p_group *g = c->g;
    for (int phase = 0; phase < TG_P2P_PHASES; phase++) {
        bool all = true;
        if (g->held[phase]) continue;
        for (int i = 0; i < g->control.size; i++)
            if (i != g->control.rank) all &= request_from(c, i, phase);
        g->held[phase] = !all;
    }
}

/* ---- Serving requests ---- */

static tg_p2p_buffer *free_out(tg_p2p_member *m) {
    for (int k = 0; k < TG_P2P_PIECES; k++)
        if (!m->out[k].in_flight) return &m->out[k];
    return NULL;
}

/* Sends the next piece that the member has requested. Returns false if the member has requested none, if no buffer is
 * free, if the piece is not summed yet, or after an error. */
static bool serve(tg_p2p_call *c, int to, int phase) {
    tg_p2p_side *side = tg_p2p_side_of(c, to);
    tg_p2p_member *m = &c->g->member[to];
    tg_p2p_buffer *buffer = free_out(m);
    int64_t index = side->served[phase];
    if (index >= side->wanted[phase] || !buffer || (phase && index >= c->summed)) return false;
    tg_p2p_flow f = tg_p2p_piece_of(c, tg_p2p_out(c, to, phase), index);
    size_t bytes = (size_t)f.n * tg_p2p_element(c);
    memcpy(buffer->data, f.data, bytes);
    if (tg_p2p_send(c->g->self, buffer, bytes, m->rank, side->tag[phase][index % TG_P2P_PIECES]) != TG_OK) return false;
    side->served[phase]++;
    c->owed--;
    c->out--;
    return true;
}

static void serve_member(tg_p2p_call *c, int to) {
    for (int phase = 0; phase < TG_P2P_PHASES; phase++)
        while (serve(c, to, phase)) continue;
}

/* ---- Pieces that have arrived ---- */

/* Stores a piece that has arrived. A piece of a sum stays in its buffer until sum_next. Drops a piece whose call cannot
 * be finished: the call may have been given up since, and its memory freed. */
static void use_piece(tg_p2p_group *g, int from, int phase, tg_p2p_piece *p) {
    tg_p2p_call *c = p->call;
    if (!c || p->buffer.in_flight) return;
    if (tg_p2p_cannot_finish(c)) {
        p->call = NULL;
        return;
    }
    tg_p2p_flow f = tg_p2p_piece_of(c, tg_p2p_in(c, from, phase), p->index);
    size_t bytes = (size_t)f.n * tg_p2p_element(c);
    if (p->buffer.bytes == 0) {
        p->call = NULL; /* refused, as the group has failed (a message says so), or the member is lost (tg_p2p_lost) */
        c->lost = true;
    } else if ((size_t)p->buffer.bytes != bytes) {
        p->call = NULL;
        c->lost = true;
        tg_p2p_fail(g, TG_ERR_INTERNAL, -1, g->self->me, "a piece has arrived with another size than requested",
                    c->sequence);
    } else if (f.data) {
        memcpy(f.data, p->buffer.data, bytes);
        p->call = NULL;
        c->in--;
    }
}

void tg_p2p_use_pieces(tg_p2p_group *g) {
    for (int i = 0; g->buffers && i < g->control.size; i++)
        for (int phase = 0; phase < TG_P2P_PHASES; phase++)
            for (int k = 0; k < TG_P2P_PIECES; k++) use_piece(g, i, phase, &g->member[i].in[phase][k]);
}

/* Returns whether the balances of all members have the sum 0 (tg_p2p_call). */
static bool is_balanced(const tg_p2p_call *c) {
    uint64_t sum = 0;
    for (int i = 0; !c->pair && i < c->g->control.size; i++) sum += c->side[i].balance;
    return sum == 0;
}

/* Returns whether all members have arrived and agree. If they have arrived and disagree, reports that. */
static bool agreed(tg_p2p_call *c) {
    if (c->ready) return true;
    if (c->arrived < (c->pair ? 1 : c->g->control.size)) return false;
    if (!c->disputed && is_balanced(c)) return true;
    tg_p2p_report_dispute(c);
    return false;
}

void tg_p2p_advance(tg_p2p_call *c) {
    if (!agreed(c)) return;
    if (!c->ready) tg_p2p_begin(c);
    if (c->in || c->out) {
        if (tg_p2p_buffers(c->g) != TG_OK) return;
        while (c->summed < c->sums && sum_next(c)) continue;
        if (c->pair && c->t.kind == TG_RECV) request_from(c, c->peer, 0);
        if (!c->pair) request_all(c);
        for (int i = 0; i < c->g->control.size && c->owed; i++)
            if (i != c->g->control.rank && (!c->pair || i == c->peer)) serve_member(c, i);
    }
    if (!c->in && !c->out && c->summed == c->sums) tg_p2p_end_call(c);
}
