/* The data that each rank of a call sends to each other rank, as elements of src and dst. */
#include "comm/p2p/flow.h"

static const tg_p2p_flow nothing = {NULL, 0};

size_t tg_p2p_element(const tg_p2p_call *c) { return tg_dtype_size(c->t.dtype ? c->t.dtype : TG_U8); }

bool tg_p2p_sums(const tg_p2p_call *c) { return c->t.kind == TG_ALL_REDUCE || c->t.kind == TG_REDUCE_SCATTER; }

bool tg_p2p_whole(const tg_p2p_call *c) {
    return c->t.kind == TG_ALL_REDUCE && (size_t)c->t.count <= c->g->inline_bytes / tg_p2p_element(c);
}

bool tg_p2p_is_inline(const tg_p2p_call *c, tg_p2p_flow f, int phase) {
    return phase == 0 && (size_t)f.n <= c->g->inline_bytes / tg_p2p_element(c);
}

/* ---- Parts ---- */

static tg_p2p_flow flow(const tg_p2p_call *c, const void *base, int64_t at, int64_t n) {
    if (!n || !base) return nothing;
    return (tg_p2p_flow){(char *)base + at * (int64_t)tg_p2p_element(c), n};
}

/* Returns part i of base. at: where the parts begin; NULL: equal parts. */
static tg_p2p_flow part(const tg_p2p_call *c, const void *base, const int64_t *at, int i) {
    return flow(c, base, tg_part_begin(at, c->t.count, i), tg_part_size(at, c->t.count, i));
}

/* Returns the part of an all-reduce that member i sums. Parts differ by at most one element. */
static tg_p2p_flow share(const tg_p2p_call *c, const void *base, int i) {
    int64_t each = c->t.count / c->g->control.size, rest = c->t.count % c->g->control.size;
    return flow(c, base, each * i + (i < rest ? i : rest), each + (i < rest));
}

/* ---- Flows ---- */

static tg_p2p_flow out_of_all_reduce(const tg_p2p_call *c, int to, int phase) {
    if (phase) return tg_p2p_whole(c) ? nothing : share(c, c->t.dst, c->g->control.rank);
    return tg_p2p_whole(c) ? flow(c, c->t.src, 0, c->t.count) : share(c, c->t.src, to);
}

tg_p2p_flow tg_p2p_out(const tg_p2p_call *c, int to, int phase) {
    const tg_transfer *t = &c->t;
    bool root = c->g->control.rank == t->root;
    if (t->kind == TG_ALL_REDUCE) return out_of_all_reduce(c, to, phase);
    if (phase) return nothing;
    switch (t->kind) {
    case TG_REDUCE_SCATTER: return part(c, t->src, c->send_at, to);
    case TG_ALL_TO_ALL: return part(c, t->src, c->send_at, to);
    case TG_SCATTER: return root ? part(c, t->src, NULL, to) : nothing;
    case TG_BROADCAST: return root ? flow(c, t->dst, 0, t->count) : nothing;
    case TG_GATHER: return to == t->root ? flow(c, t->src, 0, t->count) : nothing;
    case TG_ALL_GATHER:
    case TG_SEND: return flow(c, t->src, 0, t->count);
    default: return nothing;
    }
}

tg_p2p_flow tg_p2p_in(const tg_p2p_call *c, int from, int phase) {
    const tg_transfer *t = &c->t;
    const char *own;
    if (t->kind == TG_ALL_REDUCE && phase) return tg_p2p_whole(c) ? nothing : share(c, t->dst, from);
    if (phase) return nothing;
    switch (t->kind) {
    case TG_ALL_REDUCE:
    case TG_REDUCE_SCATTER: return (tg_p2p_flow){NULL, tg_p2p_sum(c, &own).n};
    case TG_ALL_TO_ALL:
    case TG_ALL_GATHER: return part(c, t->dst, c->recv_at, from);
    case TG_GATHER: return c->g->control.rank == t->root ? part(c, t->dst, NULL, from) : nothing;
    case TG_SCATTER:
    case TG_BROADCAST: return from == t->root ? flow(c, t->dst, 0, t->count) : nothing;
    case TG_RECV: return flow(c, t->dst, 0, t->count);
    default: return nothing;
    }
}

tg_p2p_flow tg_p2p_sum(const tg_p2p_call *c, const char **own) {
    const tg_transfer *t = &c->t;
    tg_p2p_flow mine;
    if (t->kind == TG_REDUCE_SCATTER) {
        mine = part(c, t->src, c->send_at, c->g->control.rank);
        *own = mine.data;
        return flow(c, t->dst, 0, mine.n);
    }
    mine = tg_p2p_whole(c) ? flow(c, t->src, 0, t->count) : share(c, t->src, c->g->control.rank);
    *own = mine.data;
    return tg_p2p_whole(c) ? flow(c, t->dst, 0, t->count) : share(c, t->dst, c->g->control.rank);
}

/* ---- Pieces ---- */

static int64_t piece_elements(const tg_p2p_call *c) { return (int64_t)(c->g->piece / tg_p2p_element(c)); }

int64_t tg_p2p_piece_count(const tg_p2p_call *c, tg_p2p_flow f) {
    int64_t each = piece_elements(c);
    return (f.n + each - 1) / each;
}

tg_p2p_flow tg_p2p_piece_of(const tg_p2p_call *c, tg_p2p_flow f, int64_t index) {
    int64_t each = piece_elements(c), at = index * each, left = f.n - at;
    char *data = f.data ? f.data + at * (int64_t)tg_p2p_element(c) : NULL;
    return (tg_p2p_flow){data, left < each ? left : each};
}
