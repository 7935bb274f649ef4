/* The general matrix product: both operands are packed into panels, and panels are multiplied tile by tile (Goto and
 * van de Geijn, Anatomy of high-performance matrix multiplication, ACM TOMS 2008).
 *
 * K, the dim over which products are summed, is divided into blocks. They are so short that one panel of A, or a few
 * (near_bytes), and a few panels of B stay in the first two cache levels. All threads together pack a chunk of A: some
 * of its rows, over some blocks of K. Then every thread computes a share of the chunk's tiles, and packs the part of B
 * that it needs. If K has several blocks, partial sums are kept in a buffer from block to block, so that C is accessed
 * only once. A batch of many products, or of small ones, is divided by product instead: one thread computes each
 * product.
 *
 * gemm.h explains panels, tiles and units. */
#include "base/runtime.h"
#include "kernels/cpu/gemm/gemm.h"

enum {
    PANEL_BYTES = 3072,      /* greatest number of bytes of one row of A or column of B in a block of K */
    GROUP_BYTES = 320 << 10, /* the same of the packed B panels of a thread */
    CHUNK_BYTES = 3 << 20,   /* the same of a packed chunk of A */
    SUMS_BYTES = 8 << 20,    /* the same of the partial sums of a chunk */
    SMALL = 1 << 15,         /* number of multiplications below which no other thread is started */
};

/* How a product is divided, which depends on its shape alone. Lengths along K count units. */
typedef struct plan {
    const tg_gemm_kernels *kn;
    int64_t depth, blocks;        /* units in a block of K; number of blocks */
    int64_t group, near;          /* columns of a thread's B panels, a multiple of nr; A panels that stay in cache */
    int64_t rows, cols, chunk;    /* of a chunk: rows (multiple of mr), columns (multiple of group), blocks of K */
    size_t a_bytes, b_bytes, sum_bytes; /* sizes of buffers: for a chunk's A, a thread's B, and a chunk's sums */
} plan;

/* One product in progress, with the current chunk. */
typedef struct progress {
    const plan *p;
    tg_gemm_item t;
    tg_ctx *ctx;
    int shares;           /* number of shares of the work; 1: the calling thread does all the work */
    bool stores_directly; /* whole tiles are stored to the output without a buffer */
    char *a, *b, *sum;    /* packed A of the chunk, packed B of every share, partial sums of the chunk */
    int64_t row, rows, col, cols, block, blocks; /* first row, column and block of the chunk, and their numbers */
} progress;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
static int64_t clamp(int64_t a, int64_t low, int64_t high) { return a < low ? low : a > high ? high : a; }

static plan make_plan(const tg_gemm_kernels *kn, const tg_gemm *g) {
    plan p = {.kn = kn};
    int64_t units = ceil_div(g->k, kn->pair), mr = kn->mr, nr = kn->nr, size = kn->unit_size;
    p.blocks = clamp(ceil_div(units * size, PANEL_BYTES), 1, INT64_MAX);
    p.depth = ceil_div(units, p.blocks);
    int64_t column = clamp(p.depth * size, 1, INT64_MAX);
    p.group = min_of(round_up(g->n, nr), clamp(GROUP_BYTES / column / nr, 1, INT64_MAX) * nr);
    p.near = clamp(kn->near_bytes / (mr * column), 1, INT64_MAX);
    p.rows = min_of(round_up(g->m, mr), clamp(CHUNK_BYTES / column / mr, 1, INT64_MAX) * mr);
    p.chunk = clamp(CHUNK_BYTES / (column * p.rows), 1, p.blocks);
    p.cols = round_up(g->n, p.group);
    if (p.blocks > 1) p.cols = clamp(SUMS_BYTES / (p.rows * kn->sum_size) / p.group * p.group, p.group, p.cols);
    p.a_bytes = (size_t)(p.rows * p.depth * p.chunk * size);
    p.b_bytes = (size_t)(p.group * p.depth * size);
    p.sum_bytes = p.blocks > 1 ? (size_t)(p.rows * p.cols * kn->sum_size) : 0;
    return p;
}

/* Runs body over [0, n), in parallel if there are several shares. */
static void run(progress *w, int64_t n, tg_range_fn body) {
    if (w->shares > 1) tg_parallel_run(w->ctx, n, body, w);
    else body(w, 0, n);
}

/* Returns the number of units in block i of K. */
static int64_t units_of(const progress *w, int64_t i) {
    int64_t units = ceil_div(w->t.k, w->p->kn->pair);
    return min_of(w->p->depth, units - i * w->p->depth);
}

/* Returns the A panel of block i of K that starts at row r of the chunk. */
static char *panel_of(const progress *w, int64_t i, int64_t r) {
    const plan *p = w->p;
    return w->a + ((i - w->block) * p->rows + r) * p->depth * p->kn->unit_size;
}

/* Packs panels [begin, end) of the chunk's A, over all its blocks. */
static void pack_rows(void *arg, int64_t begin, int64_t end) {
    const progress *w = arg;
    const plan *p = w->p;
    const tg_matrix *a = &w->t.a;
    for (int64_t i = w->block; i < w->block + w->blocks; i++) {
        int64_t q = i * p->depth * p->kn->pair, nk = min_of(p->depth * p->kn->pair, w->t.k - q);
        for (int64_t r = begin * p->kn->mr; r < end * p->kn->mr; r += p->kn->mr) {
            int64_t at = (w->row + r) * a->rs + q * a->cs, remaining = w->t.m - w->row - r;
            const char *src = (const char *)a->data + at * (tg_dtype_bits(a->dtype) / 8);
            p->kn->pack_a(panel_of(w, i, r), src, a->rs, a->cs, remaining, nk, a->dtype);
        }
    }
}

/* Packs the B panels of columns [j, j + cols) in block i of K. */
static void pack_group(const progress *w, char *to, int64_t i, int64_t j, int64_t cols) {
    const plan *p = w->p;
    const tg_matrix *b = &w->t.b;
    int64_t q = i * p->depth * p->kn->pair, nk = min_of(p->depth * p->kn->pair, w->t.k - q);
    for (int64_t c = 0; c < cols; c += p->kn->nr, to += p->kn->nr * p->depth * p->kn->unit_size) {
        const char *src = (const char *)b->data + ((j + c) * b->cs + q * b->rs) * (tg_dtype_bits(b->dtype) / 8);
        p->kn->pack_b(to, src, b->cs, b->rs, w->t.n - j - c, nk, b->dtype);
    }
}

/* Prefetches the lines of C to which a tile will be added or stored. */
static void fetch_out(const tg_gemm_out *o, int64_t i, int64_t j, int64_t rows, int64_t cols) {
    int64_t size = tg_dtype_bits(o->c.dtype) / 8;
    if (o->c.cs != 1) return;
    for (int64_t r = 0; r < rows; r++) {
        const char *line = (const char *)o->c.data + ((i + r) * o->c.rs + j) * size;
        for (int64_t b = 0; b < cols * size; b += 64) __builtin_prefetch(line + b, 1);
    }
}

/* Adds the products of block i of K to the tile at row r and column c of the chunk. If i is the last block, also stores
 * the tile in the output. b is the B panel. */
static void compute_tile(const progress *w, int64_t i, int64_t r, int64_t c, const char *b) {
    const plan *p = w->p;
    const tg_gemm_kernels *kn = p->kn;
    _Alignas(64) char own[4096];
    int64_t rows = min_of(kn->mr, w->t.m - w->row - r), cols = min_of(kn->nr, w->t.n - w->col - c);
    bool first = i == 0, last = i == p->blocks - 1;
    void *sum = own;
    if (p->blocks > 1) sum = w->sum + (r * p->cols + c * kn->mr) * kn->sum_size;
    if (last && w->stores_directly && rows == kn->mr && cols == kn->nr) {
        kn->tile_out(&w->t.out, w->row + r, w->col + c, first ? NULL : sum, panel_of(w, i, r), b, units_of(w, i));
        return;
    }
    if (last) fetch_out(&w->t.out, w->row + r, w->col + c, rows, cols);
    kn->tile(sum, panel_of(w, i, r), b, units_of(w, i), cols, !first);
    if (last) kn->finish(&w->t.out, w->row + r, w->col + c, rows, cols, sum, kn->nr);
}

/* Multiplies row panels [begin, end) with the group of columns that starts at c, over the chunk's blocks of K. b is
 * memory for the packed B panels of the group. */
static void compute_group(const progress *w, char *b, int64_t c, int64_t begin, int64_t end) {
    const plan *p = w->p;
    int64_t cols = min_of(p->group, w->cols - c), mr = p->kn->mr, nr = p->kn->nr, column = p->depth * p->kn->unit_size;
    for (int64_t i = w->block; i < w->block + w->blocks; i++) {
        pack_group(w, b, i, w->col + c, cols);
        for (int64_t first = begin; first < end; first += p->near)
            for (int64_t j = 0; j < cols; j += nr)
                for (int64_t r = first; r < min_of(first + p->near, end); r++)
                    compute_tile(w, i, r * mr, c + j, b + j * column);
    }
}

/* A position in the order of a chunk's tiles: groups of columns are outermost, then panels of rows, then the tiles of a
 * panel. */
typedef struct position {
    int64_t group, panel;
} position;

/* Returns the position after this number of tiles, rounded down to the beginning of a panel. Shares are counted in
 * tiles, not in panels, because the last group may be narrower. */
static position position_of(const progress *w, int64_t tiles) {
    int64_t nr = w->p->kn->nr, panels = ceil_div(w->rows, w->p->kn->mr), full = w->p->group / nr;
    int64_t group = tiles / (panels * full), here = min_of(full, ceil_div(w->cols, nr) - group * full);
    return (position){group, here > 0 ? tiles % (panels * full) / here : 0};
}

/* Computes shares [begin, end) of the chunk. */
static void compute_shares(void *arg, int64_t begin, int64_t end) {
    const progress *w = arg;
    int64_t panels = ceil_div(w->rows, w->p->kn->mr), all = panels * ceil_div(w->cols, w->p->kn->nr);
    for (int64_t share = begin; share < end; share++) {
        char *b = w->b + share * (int64_t)w->p->b_bytes;
        position at = position_of(w, all * share / w->shares), stop = position_of(w, all * (share + 1) / w->shares);
        for (; at.group < stop.group; at = (position){at.group + 1, 0})
            if (at.panel < panels) compute_group(w, b, at.group * w->p->group, at.panel, panels);
        if (at.panel < stop.panel) compute_group(w, b, at.group * w->p->group, at.panel, stop.panel);
    }
}

/* Returns whether the output has the form that tile_out takes. */
static bool can_store_directly(const tg_gemm_out *o, const tg_gemm_kernels *kn) {
    return o->c.cs == 1 && tg_dtype_bits(o->c.dtype) == 8 * kn->sum_size && !(o->bias && o->bias_by_row) &&
           !o->pre.data && o->act == TG_ACT_NONE;
}

/* Computes one product, chunk by chunk. */
static void compute_item(progress *w) {
    const plan *p = w->p;
    w->stores_directly = can_store_directly(&w->t.out, p->kn);
    for (w->row = 0; w->row < w->t.m; w->row += p->rows) {
        w->rows = min_of(p->rows, w->t.m - w->row);
        for (w->col = 0; w->col < w->t.n; w->col += p->cols) {
            w->cols = min_of(p->cols, w->t.n - w->col);
            for (w->block = 0; w->block < p->blocks; w->block += p->chunk) {
                w->blocks = min_of(p->chunk, p->blocks - w->block);
                run(w, ceil_div(w->rows, p->kn->mr), pack_rows);
                run(w, w->shares, compute_shares);
            }
        }
    }
}

/* A batch of products that is divided into shares of whole products, each with buffers of its own. */
typedef struct batch {
    const plan *p;
    const tg_gemm *g;
    bool bias_by_row;
    int shares;
    char *a, *b, *sum;
} batch;

/* Computes shares [begin, end) of a batch. */
static void compute_products(void *arg, int64_t begin, int64_t end) {
    const batch *s = arg;
    const plan *p = s->p;
    int64_t n = s->g->batch[0] * s->g->batch[1];
    for (int64_t share = begin; share < end; share++) {
        progress w = {.p = p, .shares = 1};
        w.a = s->a + share * (int64_t)p->a_bytes;
        w.b = s->b + share * (int64_t)p->b_bytes;
        w.sum = s->sum + share * (int64_t)p->sum_bytes;
        for (int64_t i = n * share / s->shares; i < n * (share + 1) / s->shares; i++) {
            w.t = tg_gemm_item_of(s->g, i);
            w.t.out.bias_by_row = s->bias_by_row;
            compute_item(&w);
        }
    }
}

tg_status tg_gemm_blocked(tg_ctx *ctx, const tg_gemm_kernels *kn, const tg_gemm *g, bool bias_by_row) {
    plan p = make_plan(kn, g);
    int64_t n = g->batch[0] * g->batch[1], threads = tg_runtime_of(ctx)->threads;
    double work = (double)g->m * (double)g->n * (double)g->k;
    bool by_product = n >= 4 * threads || work < SMALL;
    int shares = work * (double)n < SMALL ? 1 : (int)threads;
    int64_t copies = by_product ? shares : 1; /* number of buffers for A and for the sums */
    char *a = tg_workspace(ctx, 0, p.a_bytes * (size_t)copies + 64);
    char *b = tg_workspace(ctx, 1, p.b_bytes * (size_t)shares + 64);
    char *sum = tg_workspace(ctx, 2, p.sum_bytes * (size_t)copies + 64);
    if (!a || !b || !sum) return TG_ERR_MEMORY;
    if (by_product) {
        batch s = {&p, g, bias_by_row, shares, a, b, sum};
        if (shares > 1) tg_parallel_run(ctx, shares, compute_products, &s);
        else compute_products(&s, 0, 1);
        return TG_OK;
    }
    progress w = {.p = &p, .ctx = ctx, .shares = shares, .a = a, .b = b, .sum = sum};
    for (int64_t i = 0; i < n; i++) {
        w.t = tg_gemm_item_of(g, i);
        w.t.out.bias_by_row = bias_by_row;
        compute_item(&w);
    }
    return TG_OK;
}
