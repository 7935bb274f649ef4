/* Divides a collective into pieces, and does the pieces. */
#include "kernels/cpu/rank_sums.h"
#include "comm/shm/shm.h"

/* LEAST_PIECE, MOST_PIECE: bytes of a piece; smaller pieces would not be worth the overhead. PIECES: the number of
 * pieces for each rank at which the division aims. */
enum { LEAST_PIECE = 8 << 10, MOST_PIECE = 64 << 10, PIECES = 4 };

bool tg_shm_enter(tg_shm_group *s) {
    tg_rank_slot *rank_slot = &s->self->view.region->rank_slot[s->self->view.me];
    atomic_store_explicit(&rank_slot->busy, s->g->id, memory_order_seq_cst);
    if (!atomic_load_explicit(&s->g->failed, memory_order_seq_cst)) return true;
    tg_shm_exit(s);
    return false;
}

void tg_shm_exit(tg_shm_group *s) {
    atomic_store_explicit(&s->self->view.region->rank_slot[s->self->view.me].busy, 0, memory_order_release);
}

/* ---- Parts ---- */

static int64_t begin_of(const tg_region_view *v, tg_shared at, int64_t count, int part) {
    return tg_part_begin(tg_at(v, at), count, part);
}

static int64_t count_of(const tg_region_view *v, tg_shared at, int64_t count, int part) {
    return tg_part_size(tg_at(v, at), count, part);
}

/* Returns the number of elements of the largest part of the call. */
static int64_t largest_part(const tg_shm_group *s, const tg_slot *slot) {
    const tg_region_view *v = &s->self->view;
    const tg_post *p = slot->post;
    int64_t largest = 0;
    if (p->signature.kind == TG_ALL_TO_ALL) {
        for (int i = 0; i < s->control.size; i++)
            for (int j = 0; j < s->control.size; j++) {
                int64_t n = count_of(v, p[i].send_at, p[i].count, j);
                if (n > largest) largest = n;
            }
        return largest;
    }
    for (int i = 0; i < s->control.size; i++) /* the count of member i is the size of its own part */
        if (p[i].count > largest) largest = p[i].count;
    return largest;
}

/* Returns the number of parts of a call among n ranks. */
static int64_t parts_of(tg_collective kind, int n) {
    switch (kind) {
    case TG_ALL_REDUCE:
    case TG_BROADCAST: return 1;
    case TG_ALL_TO_ALL: return (int64_t)n * n;
    case TG_BARRIER: return 0;
    default: return n;
    }
}

/* Returns whether any rank has bytes to move. A call without bytes is only compared between ranks. */
static bool has_bytes(const tg_shm_group *s, const tg_slot *slot) {
    for (int i = 0; i < s->control.size; i++)
        if (slot->post[i].src || slot->post[i].dst) return true;
    return false;
}

void tg_shm_cut(tg_shm_group *s, tg_slot *slot) {
    const tg_signature *g = &slot->post[0].signature;
    int64_t largest = has_bytes(s, slot) ? largest_part(s, slot) : 0;
    int64_t size = (int64_t)tg_dtype_size(g->dtype ? g->dtype : TG_U8);
    slot->parts = parts_of(g->kind, s->control.size);
    int64_t bytes = slot->parts * largest * size / (PIECES * s->control.size) & -LEAST_PIECE;
    bytes = bytes < LEAST_PIECE ? LEAST_PIECE : bytes > MOST_PIECE ? MOST_PIECE : bytes;
    slot->piece = bytes / size;
    slot->pieces = (largest + slot->piece - 1) / slot->piece;
}

/* ---- One piece ---- */

/* One piece: elements of part number `part`, from element `at` of that part on. */
typedef struct piece {
    const tg_shm_group *s;
    const tg_slot *slot;
    const tg_signature *signature;
    tg_ranks_fn kernel;
    size_t size; /* of an element */
    int part;
    int64_t at;
} piece;

static char *of_src(const piece *p, int member, int64_t at) {
    char *data = tg_at(&p->s->self->view, p->slot->post[member].src);
    return data ? data + at * (int64_t)p->size : NULL;
}

static char *of_dst(const piece *p, int member, int64_t at) {
    char *data = tg_at(&p->s->self->view, p->slot->post[member].dst);
    return data ? data + at * (int64_t)p->size : NULL;
}

/* Returns how many elements from p->at on belong to this piece, in a part of `count` elements. */
static int64_t length(const piece *p, int64_t count) {
    int64_t left = count - p->at;
    return left < 0 ? 0 : left < p->slot->piece ? left : p->slot->piece;
}

static void copy(const piece *p, char *dst, const char *src, int64_t n) {
    if (n && dst != src) memcpy(dst, src, (size_t)n * p->size);
}

static void reduce(const piece *p, void *const *dst, int n_dst, int64_t src_at, int64_t n) {
    const void *src[TG_MAX_RANKS];
    for (int i = 0; i < p->s->control.size; i++) src[i] = of_src(p, i, src_at);
    p->kernel(p->signature->op, src, p->s->control.size, dst, n_dst, n);
}

static void all_reduce(const piece *p) {
    void *dst[TG_MAX_RANKS];
    int64_t n = length(p, p->slot->post[0].count);
    for (int i = 0; i < p->s->control.size; i++) dst[i] = of_dst(p, i, p->at);
    if (n) reduce(p, dst, p->s->control.size, p->at, n);
}

static void reduce_scatter(const piece *p) {
    const tg_post *post = &p->slot->post[p->part];
    int64_t n = length(p, post->count), begin = begin_of(&p->s->self->view, post->send_at, post->count, p->part);
    void *dst = of_dst(p, p->part, p->at);
    if (n) reduce(p, &dst, 1, begin + p->at, n);
}

static void broadcast(const piece *p) {
    int root = p->signature->root;
    int64_t n = length(p, p->slot->post[root].count);
    for (int i = 0; n && i < p->s->control.size; i++)
        if (i != root) copy(p, of_dst(p, i, p->at), of_dst(p, root, p->at), n);
}

static void all_gather(const piece *p) {
    const tg_post *post = &p->slot->post[p->part];
    int64_t n = length(p, post->count), begin = begin_of(&p->s->self->view, post->recv_at, post->count, p->part);
    for (int i = 0; n && i < p->s->control.size; i++)
        copy(p, of_dst(p, i, begin + p->at), of_src(p, p->part, p->at), n);
}

static void gather(const piece *p) {
    int64_t count = p->slot->post[p->part].count, n = length(p, count);
    if (n) copy(p, of_dst(p, p->signature->root, count * p->part + p->at), of_src(p, p->part, p->at), n);
}

static void scatter(const piece *p) {
    int64_t count = p->slot->post[p->part].count, n = length(p, count);
    if (n) copy(p, of_dst(p, p->part, p->at), of_src(p, p->signature->root, count * p->part + p->at), n);
}

/* The elements of a piece that one member sends to another: their destination, their source and their number. */
typedef struct flow {
    char *dst;
    const char *src;
    int64_t n;
} flow;

static flow flow_of(const piece *p, int from, int to) {
    const tg_region_view *v = &p->s->self->view;
    const tg_post *a = &p->slot->post[from], *b = &p->slot->post[to];
    int64_t n = length(p, count_of(v, a->send_at, a->count, to));
    if (!n) return (flow){NULL, NULL, 0};
    return (flow){of_dst(p, to, begin_of(v, b->recv_at, b->count, from) + p->at),
                  of_src(p, from, begin_of(v, a->send_at, a->count, to) + p->at), n};
}

/* Moves the data between a pair of members, in both directions, as one piece. If src and dst of a member are the same
 * memory, each direction overwrites what the other one reads. The data are then swapped through a buffer. */
static void all_to_all(const piece *p) {
    enum { BUFFER = 4096 };
    int i = p->part / p->s->control.size, j = p->part % p->s->control.size;
    char buffer[BUFFER];
    if (i > j) return;
    flow there = flow_of(p, i, j), back = flow_of(p, j, i);
    if (i == j || !there.n || !back.n || (there.src != back.dst && back.src != there.dst)) {
        copy(p, there.dst, there.src, there.n);
        if (i != j) copy(p, back.dst, back.src, back.n);
        return;
    }
    size_t bytes = (size_t)there.n * p->size;
    for (size_t at = 0; at < bytes; at += BUFFER) {
        size_t n = bytes - at < BUFFER ? bytes - at : BUFFER;
        memcpy(buffer, there.src + at, n);
        memmove(back.dst + at, back.src + at, n);
        memcpy(there.dst + at, buffer, n);
    }
}

static void run_piece(const piece *p) {
    switch (p->signature->kind) {
    case TG_ALL_REDUCE: all_reduce(p); break;
    case TG_ALL_GATHER: all_gather(p); break;
    case TG_REDUCE_SCATTER: reduce_scatter(p); break;
    case TG_BROADCAST: broadcast(p); break;
    case TG_ALL_TO_ALL: all_to_all(p); break;
    case TG_GATHER: gather(p); break;
    case TG_SCATTER: scatter(p); break;
    default: break;
    }
}

/* Returns the number of the first piece of member m's share. The n members share `all` pieces. */
static int64_t share(int64_t all, int n, int m) { return all / n * m + (all % n < m ? all % n : m); }

/* Returns whether member m's share has pieces that no rank has taken. */
static bool has_untaken(const tg_shm_group *s, const tg_slot *slot, int64_t all, int m) {
    int64_t taken = atomic_load_explicit(&slot->post[m].next, memory_order_relaxed);
    return taken < share(all, s->control.size, m + 1) - share(all, s->control.size, m);
}

/* Does the pieces of member m's share that no rank has taken. Returns how many it did. */
static int64_t run_share(piece *p, tg_slot *slot, int64_t all, int m) {
    int64_t first = share(all, p->s->control.size, m), n = share(all, p->s->control.size, m + 1) - first, done = 0;
    for (int64_t i; (i = atomic_fetch_add_explicit(&slot->post[m].next, 1, memory_order_relaxed)) < n; done++) {
        p->part = (int)((first + i) / slot->pieces);
        p->at = (first + i) % slot->pieces * slot->piece;
        run_piece(p);
        if (tg_shm_has_failed(p->s)) break;
    }
    return done;
}

/* What the threads of a context share while they work on one call. */
typedef struct run_state {
    piece p;
    tg_slot *slot;
    int64_t all;          /* number of pieces of the call */
    _Atomic int64_t done; /* number of pieces that these threads have done */
} run_state;

/* Does this rank's own share first, then pieces that other ranks have not started. */
static void work(void *arg, int64_t begin, int64_t end) {
    run_state *r = arg;
    piece p = r->p;
    int64_t done = 0;
    int n = p.s->control.size;
    (void)begin, (void)end;
    for (int k = 0; k < n; k++) {
        int m = p.s->control.rank + k < n ? p.s->control.rank + k : p.s->control.rank + k - n;
        if (has_untaken(p.s, r->slot, r->all, m)) done += run_share(&p, r->slot, r->all, m);
    }
    atomic_fetch_add_explicit(&r->done, done, memory_order_acq_rel);
}

void tg_shm_run(tg_shm_group *s, tg_slot *slot) {
    enum { WORTH = 8 }; /* several threads are used if a member's share has at least this many pieces for each thread */
    int64_t all = slot->parts * slot->pieces;
    tg_ctx *ctx = s->self->ctx;
    bool left = false;
    for (int m = 0; m < s->control.size && !left; m++) left = has_untaken(s, slot, all, m);
    if (!left || !tg_shm_enter(s)) return;
    const tg_signature *signature = &slot->post[0].signature;
    tg_dtype dtype = signature->dtype ? signature->dtype : TG_U8;
    run_state r = {.slot = slot, .all = all};
    r.p = (piece){.s = s,
                  .slot = slot,
                  .signature = signature,
                  .kernel = tg_ranks_kernel(tg_cpu_level(ctx), dtype),
                  .size = tg_dtype_size(dtype)};
    if (all / s->control.size >= (int64_t)WORTH * ctx->run.threads)
        tg_parallel_run(ctx, ctx->run.threads, work, &r);
    else
        work(&r, 0, 1);
    int64_t mine = atomic_load_explicit(&r.done, memory_order_acquire);
    bool last = mine && atomic_fetch_add_explicit(&slot->done, mine, memory_order_acq_rel) + mine == all;
    tg_shm_exit(s);
    if (last) tg_shm_wake(s);
}
