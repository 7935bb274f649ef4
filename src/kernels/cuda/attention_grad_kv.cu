/* The gradients of attention's keys and values; attention_grad.cu has the formulas. */
#include "kernels/cuda/attention_scores.h"

using namespace tg;

namespace {

/* The state of a warp: its 16 keys, and the block's tile of queries. The matrix of scores is transposed: its rows are
 * keys. */
template <class E, int D, int WARPS, bool FULL> struct KeyTile {
    typedef typename TileElement<E>::T T;
    static constexpr int ROWS = WARPS * 16, NS = ROWS / 8, ND = D / 8;
    E *k, *v, *q, *o, *p; /* o: gout; p: scores. k, v and p begin at this warp's rows */
    Terms<T> *terms;      /* of each query of the tile */
    T *mask;              /* FULL: the mask's tile, or NULL */
    int *from, *to;       /* FULL: the keys [from, to) of the block's tile that each query sees */
    int64_t mine;         /* this warp's first key */
    T gk[ND][4], gv[ND][4];

    /* Loads the tile of queries of head (b, h) from `first` on. */
    __device__ void load_queries(const Attention &a, int64_t b, int64_t h, int64_t first) {
        tile_load<D>(q, a.q, b, h, first, ROWS, a.sq, a.dk);
        tile_load<D>(o, a.gout, b, h, first, ROWS, a.sq, a.dv);
        for (int i = threadIdx.x; i < ROWS; i += blockDim.x) terms[i] = row_terms<T>(a, b, h, first + i);
        if (!FULL) return;
        const int64_t key = mine - threadIdx.x / 32 * 16;
        for (int i = threadIdx.x; i < ROWS; i += blockDim.x) {
            tg_key_range seen = {0, 0};
            if (first + i < a.sq) seen = tg_mask_keys(&a.rules, b, first + i);
            from[i] = within(seen.first - key, ROWS);
            to[i] = first + i < a.sq ? within(seen.end - key, ROWS) : 0;
        }
    }

    /* Turns products into scores, as scale_and_hide does. If scores are bounded, writes their derivatives to p, where
     * they stay until P K is stored there. */
    __device__ void hide(const Attention &a, T (&s)[NS][4]) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, own = threadIdx.x / 32 * 16;
        scale_and_cap<NS>(a, p, s);
        TG_UNROLL
        for (int n = 0; n < 4 * NS; n++) {
            int i = n / 4 * 8 + 2 * t + n % 2, j = own + g + n % 4 / 2 * 8;
            T x = s[n / 4][n % 4];
            if (mask) x += mask[i * tile_pitch<T>(ROWS) + j];
            s[n / 4][n % 4] = j >= from[i] && j < to[i] ? x : -(T)INFINITY;
        }
    }

    /* Adds what the tile of queries contributes to gk and gv. */
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
            T keep = a.dropout > 0 ? (bits >> n & 1 ? scale : (T)0) : (T)1, slope = (T)a.scale;
            if (FULL && a.softcap > 0) slope *= TileElement<E>::get(p[own_place<NS, E>(n)]);
            score_grad<E, FULL, T>(a, none, keep, terms[i], slope, &s[f][e], &gs[f][e]);
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

/* Returns the first query whose keys end (with FIRST: begin) after `key`, or the number of queries if there is none.
 * Neither end decreases from query to query. */
template <bool FIRST> __device__ inline int64_t first_query_after(const Attention &a, int64_t b, int64_t key) {
    int64_t low = 0, high = a.sq;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        tg_key_range s = tg_mask_keys(&a.rules, b, middle);
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
    w.terms = (Terms<typename Tile::T> *)(w.o + ROWS * ld + ROWS * ldp);
    w.from = (int *)(w.terms + ROWS), w.to = w.from + ROWS;
    w.mask = FULL && a.mask.data ? (typename Tile::T *)(w.to + ROWS) : NULL;
    int64_t head = blockIdx.x / a.tiles, b = head / a.groups, group = head % a.groups, per = a.heads / a.groups;
    int64_t key = blockIdx.x % a.tiles * ROWS;
    w.mine = key + warp * 16;
    clear<Tile::ND>(w.gk);
    clear<Tile::ND>(w.gv);
    tile_load<D>(k, a.k, b, group, key, ROWS, a.sk, a.dk);
    tile_load<D>(v, a.v, b, group, key, ROWS, a.sk, a.dv);
    const int64_t begin = FULL ? first_query_after<false>(a, b, key) : first_to_see(a, key) / ROWS * ROWS;
    const int64_t queries = FULL ? first_query_after<true>(a, b, key + ROWS - 1) : a.sq;
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

template <class E, int D, bool FULL> tg_status launch(tg_ctx *ctx, Attention a) {
    typedef typename TileElement<E>::T T;
    constexpr int WARPS = warps_of<E, D, FULL>(), ROWS = WARPS * 16;
    constexpr size_t plain = shared_of<E, D, FULL>(4) + ROWS * (sizeof(Terms<T>) + (FULL ? 2 * sizeof(int) : 0));
    constexpr size_t all = plain + (FULL ? mask_bytes<T, ROWS>() : 0);
    static_assert(all <= MOST_SHARED, "a block's tiles fit");
    size_t bytes = a.mask.data ? all : plain;
    a.tiles = (a.sk + ROWS - 1) / ROWS;
    if ((!a.gk.data && !a.gv.data) || !a.tiles) return TG_OK;
    const int64_t blocks = a.batch * a.groups * a.tiles;
    tg_status s = allow_launch(ctx, attention_grad_kv<E, D, WARPS, FULL>, all, blocks);
    if (s != TG_OK) return s;
    TG_LAUNCH((attention_grad_kv<E, D, WARPS, FULL>), (unsigned)blocks, WARPS * 32, bytes, tg_cuda_of(ctx)->compute, a);
    return tg_cuda_launched(ctx, "attention_grad_kv");
}

template <class E, int D> tg_status run(tg_ctx *ctx, const Attention &a) {
    return TG_ATTENTION_FULL(launch, E, D, ctx, a);
}

} // namespace

tg_status tg::attention_grad_keys(tg_ctx *ctx, const Attention &a, ElementKind kind, int most) {
    return TG_ATTENTION_KINDS(run, kind, most, ctx, a);
}
