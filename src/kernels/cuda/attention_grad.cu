/* The gradient of attention. With P the probabilities (made again from the saved log-sum-exp), K the dropout's factors
 * and D = sum(gout out) of each query:
 *     gv = (P K)' gout,  gs = P (K (gout v') - D) scale,  gq = gs k,  gk = gs' q.
 * One kernel passes over the keys of a tile of queries, for gq; another over the queries of a tile of keys, of all
 * heads of its group, for gk and gv. So every sum has one owner and one order. */
#include "kernels/cuda/attention_scores.h"
#include "kernels/cuda/slots.h"

using namespace tg;

namespace {

/* ---- D ---- */

enum { DELTA_WARPS = 4 };

template <class T> __global__ void __launch_bounds__(DELTA_WARPS * 32) row_products(TG_PARAMETER(Attention) a) {
    const int64_t rows = a.batch * a.heads * a.sq, step = (int64_t)gridDim.x * DELTA_WARPS;
    for (int64_t r = (int64_t)blockIdx.x * DELTA_WARPS + threadIdx.x / 32; r < rows; r += step) {
        int64_t i = r % a.sq, h = r / a.sq % a.heads, b = r / a.sq / a.heads;
        const char *out = head_row(a.out, b, h, i), *gout = head_row(a.gout, b, h, i);
        T sum = 0;
        for (int j = threadIdx.x % 32; j < a.dv; j += 32)
            sum += load<T>(out, a.out.dtype, j * a.out.stride[3]) * load<T>(gout, a.gout.dtype, j * a.gout.stride[3]);
        for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
        if (threadIdx.x % 32 == 0) ((T *)a.delta)[r] = sum;
    }
}

/* ---- The queries' gradient ---- */

template <class E, int D, int WARPS, bool FULL>
__global__ void __launch_bounds__(WARPS * 32) attention_grad_q(TG_PARAMETER(Attention) a) {
    typedef typename Element<E>::T T;
    constexpr int ROWS = WARPS * 16, NS = ROWS / 8, NQ = D / 8;
    TG_DYN_SHARED(E, q);
    const int ld = tile_pitch<E>(D), ldp = tile_pitch<E>(ROWS), warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    E *o = q + ROWS * ld, *k = o + ROWS * ld, *v = k + ROWS * ld, *p = v + ROWS * ld + warp * 16 * ldp;
    T *mask = FULL && a.mask.data ? (T *)(v + ROWS * (ld + ldp)) : NULL;
    int64_t head = blockIdx.x / a.tiles, b = head / a.heads, h = head % a.heads;
    int64_t group = h / (a.heads / a.groups), first = (a.tiles - 1 - blockIdx.x % a.tiles) * ROWS;
    int64_t mine = first + warp * 16;
    int64_t last = first + ROWS < a.sq ? first + ROWS - 1 : a.sq - 1;
    int64_t begin = FULL ? tg_seen_by(&a.seen, b, first).first : 0;
    int64_t seen = FULL ? tg_seen_by(&a.seen, b, last).end : keys_seen(a, last);
    RowsSeen rows = {};
    if (FULL) rows = rows_seen(a, b, mine);
    T lse[2], delta[2], gq[NQ][4], one[2] = {1, 1}, scale = kept_scale<T>(a);
    for (int r = 0; r < 2; r++) row_terms<T>(a, b, h, mine + g + r * 8, &lse[r], &delta[r]);
    clear<NQ>(gq);
    tile_load<D>(q, a.q, b, h, first, ROWS, a.sq, a.dk);
    tile_load<D>(o, a.gout, b, h, first, ROWS, a.sq, a.dv);
    for (int64_t key = begin; key < seen; key += ROWS) {
        T s[NS][4], gs[NS][4];
        __syncthreads();
        if (FULL && mask && !mask_load<ROWS>(a, b, h, first, key, mask)) continue;
        tile_load<D>(k, a.k, b, group, key, ROWS, a.sk, a.dk);
        tile_load<D>(v, a.v, b, group, key, ROWS, a.sk, a.dv);
        __syncthreads();
        clear<NS>(s);
        clear<NS>(gs);
        tile_product<false, NS>(s, q + warp * 16 * ld, ld, k, ld, ROWS, a.wide_k);
        tile_product<false, NS>(gs, o + warp * 16 * ld, ld, v, ld, ROWS, a.wide_v);
        uint32_t bits = a.dropout > 0 ? kept<NS, false>(a, b, h, mine, key) : 0;
        int end[2];
        for (int r = 0; r < 2; r++) end[r] = FULL ? ROWS : within(keys_seen(a, mine + g + r * 8) - key, ROWS);
        if (FULL) scale_and_hide<NS>(a, rows, key, mask ? mask + warp * 16 * tile_pitch<T>(ROWS) : NULL, s);
        TG_UNROLL
        for (int n = 0; n < 4 * NS; n++) {
            int f = n / 4, e = n % 4;
            bool none = FULL ? s[f][e] == -(T)INFINITY : f * 8 + 2 * t + e % 2 >= end[e / 2];
            T keep = a.dropout > 0 ? (bits >> n & 1 ? scale : (T)0) : (T)1;
            score_grad<E, FULL, T>(a, none, keep, lse[e / 2], delta[e / 2], (T)a.scale, &s[f][e], &gs[f][e]);
        }
        tile_set<NS>(p, ldp, gs);
        __syncwarp();
        tile_product<true, NQ>(gq, p, ldp, k, ld, a.wide_k, ROWS);
        __syncwarp();
    }
    rows_put<E, NQ>(a.gq, b, h, mine, a.sq, a.dk, a.add_q, gq, one);
}

/* ---- The keys' and values' gradients ---- */

/* A tile of queries of head (b, h), from `first` on, and what a tile of keys has of it. Scores are transposed: rows are
 * keys. */
template <class E, int D, int WARPS, bool FULL> struct KeyTile {
    typedef typename Element<E>::T T;
    static constexpr int ROWS = WARPS * 16, NS = ROWS / 8, ND = D / 8;
    E *k, *v, *q, *o, *p; /* k, v, p: from this warp's rows on */
    T *lse, *delta;       /* of the tile of queries */
    T *mask;              /* FULL: a mask's tile, or NULL; */
    int *from, *to;       /* and of each query the keys that it sees among these */
    int64_t mine;         /* this warp's first key */
    T gk[ND][4], gv[ND][4];

    __device__ void load_queries(const Attention &a, int64_t b, int64_t h, int64_t first) {
        tile_load<D>(q, a.q, b, h, first, ROWS, a.sq, a.dk);
        tile_load<D>(o, a.gout, b, h, first, ROWS, a.sq, a.dv);
        for (int i = threadIdx.x; i < ROWS; i += blockDim.x) row_terms<T>(a, b, h, first + i, &lse[i], &delta[i]);
        if (!FULL) return;
        const int64_t key = mine - threadIdx.x / 32 * 16;
        for (int i = threadIdx.x; i < ROWS; i += blockDim.x) {
            tg_seen seen = {0, 0};
            if (first + i < a.sq) seen = tg_seen_by(&a.seen, b, first + i);
            from[i] = within(seen.first - key, ROWS);
            to[i] = first + i < a.sq ? within(seen.end - key, ROWS) : 0;
        }
    }

    /* Scaled, with what the mask adds, -inf where hidden. */
    __device__ void hide(const Attention &a, T (&s)[NS][4]) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, own = threadIdx.x / 32 * 16;
        TG_UNROLL
        for (int n = 0; n < 4 * NS; n++) {
            int i = n / 4 * 8 + 2 * t + n % 2, j = own + g + n % 4 / 2 * 8;
            T x = s[n / 4][n % 4] * (T)a.scale;
            if (mask) x += mask[i * tile_pitch<T>(ROWS) + j];
            s[n / 4][n % 4] = j >= from[i] && j < to[i] ? x : -(T)INFINITY;
        }
    }

    __device__ void pass(const Attention &a, int64_t b, int64_t h, int64_t first) {
        const int ld = tile_pitch<E>(D), ldp = tile_pitch<E>(ROWS);
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        T s[NS][4], gs[NS][4], scale = kept_scale<T>(a);
        clear<NS>(s);
        clear<NS>(gs);
        tile_product<false, NS>(s, k, ld, q, ld, ROWS, a.wide_k);
        tile_product<false, NS>(gs, v, ld, o, ld, ROWS, a.wide_v);
        uint32_t bits = a.dropout > 0 ? kept<NS, true>(a, b, h, first, mine) : 0;
        int start[2], end = within(a.sq - first, ROWS);
        for (int r = 0; r < 2; r++) {
            int64_t key = mine + g + r * 8;
            start[r] = FULL ? 0 : key < a.sk ? within(first_to_see(a, key) - first, ROWS) : ROWS;
        }
        if (FULL) hide(a, s);
        TG_UNROLL
        for (int n = 0; n < 4 * NS; n++) {
            int f = n / 4, e = n % 4, i = f * 8 + 2 * t + e % 2;
            bool none = FULL ? s[f][e] == -(T)INFINITY : i < start[e / 2] || i >= end;
            T keep = a.dropout > 0 ? (bits >> n & 1 ? scale : (T)0) : (T)1;
            score_grad<E, FULL, T>(a, none, keep, lse[i], delta[i], (T)a.scale, &s[f][e], &gs[f][e]);
        }
        tile_set<NS>(p, ldp, s);
        __syncwarp();
        if (a.gv.data) tile_product<true, ND>(gv, p, ldp, o, ld, a.wide_v, ROWS);
        __syncwarp();
        tile_set<NS>(p, ldp, gs);
        __syncwarp();
        if (a.gk.data) tile_product<true, ND>(gk, p, ldp, q, ld, a.wide_k, ROWS);
    }
};

/* The first query whose keys end (or begin, with FIRST) behind key: they rise. */
template <bool FIRST> __device__ inline int64_t query_behind(const Attention &a, int64_t b, int64_t key) {
    int64_t low = 0, high = a.sq;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        tg_seen s = tg_seen_by(&a.seen, b, middle);
        if ((FIRST ? s.first : s.end) > key)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

template <class E, int D, int WARPS, bool FULL>
__global__ void __launch_bounds__(WARPS * 32) attention_grad_kv(TG_PARAMETER(Attention) a) {
    typedef KeyTile<E, D, WARPS, FULL> Tile;
    constexpr int ROWS = Tile::ROWS;
    TG_DYN_SHARED(E, shared);
    const int ld = tile_pitch<E>(D), ldp = tile_pitch<E>(ROWS), warp = threadIdx.x / 32;
    typename Tile::T one[2] = {1, 1};
    E *k = shared, *v = k + ROWS * ld;
    Tile w;
    w.k = k + warp * 16 * ld, w.v = v + warp * 16 * ld, w.q = v + ROWS * ld, w.o = w.q + ROWS * ld;
    w.p = w.o + ROWS * ld + warp * 16 * ldp;
    w.lse = (typename Tile::T *)(w.o + ROWS * ld + ROWS * ldp), w.delta = w.lse + ROWS;
    w.from = (int *)(w.delta + ROWS), w.to = w.from + ROWS;
    w.mask = FULL && a.mask.data ? (typename Tile::T *)(w.to + ROWS) : NULL;
    int64_t head = blockIdx.x / a.tiles, b = head / a.groups, group = head % a.groups, per = a.heads / a.groups;
    int64_t key = blockIdx.x % a.tiles * ROWS;
    w.mine = key + warp * 16;
    clear<Tile::ND>(w.gk);
    clear<Tile::ND>(w.gv);
    tile_load<D>(k, a.k, b, group, key, ROWS, a.sk, a.dk);
    tile_load<D>(v, a.v, b, group, key, ROWS, a.sk, a.dv);
    const int64_t begin = FULL ? query_behind<false>(a, b, key) : first_to_see(a, key) / ROWS * ROWS;
    const int64_t queries = FULL ? query_behind<true>(a, b, key + ROWS - 1) : a.sq;
    for (int64_t h = group * per; h < (group + 1) * per; h++)
        for (int64_t first = begin; first < queries; first += ROWS) {
            __syncthreads();
            if (FULL && w.mask && !mask_load<ROWS>(a, b, h, first, key, w.mask)) continue;
            w.load_queries(a, b, h, first);
            __syncthreads();
            w.pass(a, b, h, first);
        }
    if (a.gk.data) rows_put<E, Tile::ND>(a.gk, b, group, w.mine, a.sk, a.dk, a.add_k, w.gk, one);
    if (a.gv.data) rows_put<E, Tile::ND>(a.gv, b, group, w.mine, a.sk, a.dv, a.add_v, w.gv, one);
}

/* ---- The slot ---- */

template <class T> tg_status launch_row_products(tg_ctx *ctx, const Attention &a) {
    int64_t blocks = (a.batch * a.heads * a.sq + DELTA_WARPS - 1) / DELTA_WARPS;
    if (!blocks) return TG_OK;
    TG_LAUNCH((row_products<T>), (unsigned)(blocks < 1 << 20 ? blocks : 1 << 20), DELTA_WARPS * 32, 0,
              tg_cuda_of(ctx)->compute, a);
    return tg_cuda_launched(ctx, "row_products");
}

template <class E, int D, bool FULL> tg_status launch_q(tg_ctx *ctx, Attention a) {
    constexpr int WARPS = warps_of<E, D, FULL>();
    constexpr size_t plain = shared_of<E, D, FULL>(4), masked = mask_bytes<typename Element<E>::T, WARPS * 16>();
    static_assert(plain + (FULL ? masked : 0) <= MOST_SHARED, "a block's tiles fit");
    size_t bytes = plain + (a.mask.data ? masked : 0);
    a.tiles = (a.sq + WARPS * 16 - 1) / (WARPS * 16);
    if (!a.gq.data || !a.tiles) return TG_OK;
    tg_status s = allow_shared(ctx, attention_grad_q<E, D, WARPS, FULL>, bytes);
    if (s != TG_OK) return s;
    TG_LAUNCH((attention_grad_q<E, D, WARPS, FULL>), (unsigned)(a.batch * a.heads * a.tiles), WARPS * 32, bytes,
              tg_cuda_of(ctx)->compute, a);
    return tg_cuda_launched(ctx, "attention_grad_q");
}

template <class E, int D, bool FULL> tg_status launch_kv(tg_ctx *ctx, Attention a) {
    typedef typename Element<E>::T T;
    constexpr int WARPS = warps_of<E, D, FULL>(), ROWS = WARPS * 16;
    constexpr size_t plain = shared_of<E, D, FULL>(4) + 2 * ROWS * (sizeof(T) + (FULL ? sizeof(int) : 0));
    constexpr size_t masked = mask_bytes<T, ROWS>();
    static_assert(plain + (FULL ? masked : 0) <= MOST_SHARED, "a block's tiles fit");
    size_t bytes = plain + (a.mask.data ? masked : 0);
    a.tiles = (a.sk + ROWS - 1) / ROWS;
    if ((!a.gk.data && !a.gv.data) || !a.tiles) return TG_OK;
    tg_status s = allow_shared(ctx, attention_grad_kv<E, D, WARPS, FULL>, bytes);
    if (s != TG_OK) return s;
    TG_LAUNCH((attention_grad_kv<E, D, WARPS, FULL>), (unsigned)(a.batch * a.groups * a.tiles), WARPS * 32, bytes,
              tg_cuda_of(ctx)->compute, a);
    return tg_cuda_launched(ctx, "attention_grad_kv");
}

template <class E, int D> tg_status run(tg_ctx *ctx, const Attention &a) {
    tg_status s = launch_row_products<typename Element<E>::T>(ctx, a);
    if (s == TG_OK) s = TG_ATTENTION_FULL(launch_q, E, D, ctx, a);
    return s == TG_OK ? TG_ATTENTION_FULL(launch_kv, E, D, ctx, a) : s;
}

} // namespace

tg_status tg_cuda_attention_grad(tg_ctx *ctx, const tg_attention_args *a) {
    Attention t = attention_of(a);
    int most = t.dk > t.dv ? t.dk : t.dv;
    tg_cuda_scratch delta;
    if (!t.batch || !t.groups) return attention_extras_grad(ctx, a, t);
    if (most > WIDEST_HEAD) return too_wide(ctx, most);
    size_t size = a->q.dtype == TG_F64 ? sizeof(double) : sizeof(float);
    tg_status s = tg_cuda_scratch_take(ctx, (size_t)(t.batch * t.heads * t.sq) * size, &delta);
    if (s != TG_OK) return s;
    t.delta = delta.data;
    s = TG_ATTENTION_KINDS(run, kind_of(a), most, ctx, t);
    if (s == TG_OK) s = attention_extras_grad(ctx, a, t);
    tg_cuda_scratch_give(ctx, &delta);
    return s;
}
