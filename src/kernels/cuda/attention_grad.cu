/* The gradient of attention. With P the probabilities (made again from the saved log-sum-exp), K the dropout's factors
 * and D = sum(gout out) of each query:
 *     gv = (P K)' gout,  gs = P (K (gout v') - D) scale,  gq = gs k,  gk = gs' q.
 * One kernel passes over the keys of a tile of queries, for gq; another over the queries of a tile of keys, of all
 * heads of its group, for gk and gv. So every sum has one owner and one order. */
#include "kernels/cuda/attention.h"
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

/* Of query i: its log-sum-exp (0 where no key is seen: every score is -inf there) and D; zeros where there is none. */
template <class T>
__device__ inline void row_terms(const Attention &a, int64_t b, int64_t h, int64_t i, T *lse, T *delta) {
    T z = i < a.sq ? *(const T *)head_row(a.lse, b, h, i) : (T)0;
    *lse = z == -(T)INFINITY ? (T)0 : z;
    *delta = i < a.sq ? ((const T *)a.delta)[(b * a.heads + h) * a.sq + i] : (T)0;
}

/* From a score to P K, and from an element of gout v' to one of gs. */
template <class E, class T>
__device__ inline void score_grad(const Attention &a, bool none, T keep, T lse, T delta, T *s, T *gs) {
    T p = none ? (T)0 : score_exp<E>(*s * (T)a.scale - lse);
    *s = p * keep;
    *gs = none ? (T)0 : p * (*gs * keep - delta) * (T)a.scale;
}

/* ---- The queries' gradient ---- */

template <class E, int D, int WARPS>
__global__ void __launch_bounds__(WARPS * 32) attention_grad_q(TG_PARAMETER(Attention) a) {
    typedef typename Element<E>::T T;
    constexpr int ROWS = WARPS * 16, NS = ROWS / 8, NQ = D / 8;
    TG_DYN_SHARED(E, q);
    const int ld = tile_pitch<E>(D), ldp = tile_pitch<E>(ROWS), warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    E *o = q + ROWS * ld, *k = o + ROWS * ld, *v = k + ROWS * ld, *p = v + ROWS * ld + warp * 16 * ldp;
    int64_t head = blockIdx.x / a.tiles, b = head / a.heads, h = head % a.heads;
    int64_t group = h / (a.heads / a.groups), first = (a.tiles - 1 - blockIdx.x % a.tiles) * ROWS;
    int64_t mine = first + warp * 16;
    int64_t seen = keys_seen(a, first + ROWS < a.sq ? first + ROWS - 1 : a.sq - 1);
    T lse[2], delta[2], gq[NQ][4], one[2] = {1, 1}, scale = kept_scale<T>(a);
    for (int r = 0; r < 2; r++) row_terms<T>(a, b, h, mine + g + r * 8, &lse[r], &delta[r]);
    clear<NQ>(gq);
    tile_load<D>(q, a.q, b, h, first, ROWS, a.sq, a.dk);
    tile_load<D>(o, a.gout, b, h, first, ROWS, a.sq, a.dv);
    for (int64_t key = 0; key < seen; key += ROWS) {
        T s[NS][4], gs[NS][4];
        __syncthreads();
        tile_load<D>(k, a.k, b, group, key, ROWS, a.sk, a.dk);
        tile_load<D>(v, a.v, b, group, key, ROWS, a.sk, a.dv);
        __syncthreads();
        clear<NS>(s);
        clear<NS>(gs);
        tile_product<false, NS>(s, q + warp * 16 * ld, ld, k, ld, ROWS, a.wide_k);
        tile_product<false, NS>(gs, o + warp * 16 * ld, ld, v, ld, ROWS, a.wide_v);
        uint32_t bits = a.dropout > 0 ? kept<NS, false>(a, b, h, mine, key) : 0;
        int end[2];
        for (int r = 0; r < 2; r++) end[r] = within(keys_seen(a, mine + g + r * 8) - key, ROWS);
        TG_UNROLL
        for (int n = 0; n < 4 * NS; n++) {
            int f = n / 4, e = n % 4;
            bool none = f * 8 + 2 * t + e % 2 >= end[e / 2];
            T keep = a.dropout > 0 ? (bits >> n & 1 ? scale : (T)0) : (T)1;
            score_grad<E, T>(a, none, keep, lse[e / 2], delta[e / 2], &s[f][e], &gs[f][e]);
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
template <class E, int D, int WARPS> struct KeyTile {
    typedef typename Element<E>::T T;
    static constexpr int ROWS = WARPS * 16, NS = ROWS / 8, ND = D / 8;
    E *k, *v, *q, *o, *p; /* k, v, p: from this warp's rows on */
    T *lse, *delta;       /* of the tile of queries */
    int64_t mine;         /* this warp's first key */
    T gk[ND][4], gv[ND][4];

    __device__ void load_queries(const Attention &a, int64_t b, int64_t h, int64_t first) {
        tile_load<D>(q, a.q, b, h, first, ROWS, a.sq, a.dk);
        tile_load<D>(o, a.gout, b, h, first, ROWS, a.sq, a.dv);
        for (int i = threadIdx.x; i < ROWS; i += blockDim.x) row_terms<T>(a, b, h, first + i, &lse[i], &delta[i]);
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
            start[r] = key < a.sk ? within(first_to_see(a, key) - first, ROWS) : ROWS;
        }
        TG_UNROLL
        for (int n = 0; n < 4 * NS; n++) {
            int f = n / 4, e = n % 4, i = f * 8 + 2 * t + e % 2;
            bool none = i < start[e / 2] || i >= end;
            T keep = a.dropout > 0 ? (bits >> n & 1 ? scale : (T)0) : (T)1;
            score_grad<E, T>(a, none, keep, lse[i], delta[i], &s[f][e], &gs[f][e]);
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

template <class E, int D, int WARPS>
__global__ void __launch_bounds__(WARPS * 32) attention_grad_kv(TG_PARAMETER(Attention) a) {
    typedef KeyTile<E, D, WARPS> Tile;
    constexpr int ROWS = Tile::ROWS;
    TG_DYN_SHARED(E, shared);
    const int ld = tile_pitch<E>(D), ldp = tile_pitch<E>(ROWS), warp = threadIdx.x / 32;
    typename Tile::T one[2] = {1, 1};
    E *k = shared, *v = k + ROWS * ld;
    Tile w;
    w.k = k + warp * 16 * ld, w.v = v + warp * 16 * ld, w.q = v + ROWS * ld, w.o = w.q + ROWS * ld;
    w.p = w.o + ROWS * ld + warp * 16 * ldp;
    w.lse = (typename Tile::T *)(w.o + ROWS * ld + ROWS * ldp), w.delta = w.lse + ROWS;
    int64_t head = blockIdx.x / a.tiles, b = head / a.groups, group = head % a.groups, per = a.heads / a.groups;
    int64_t key = blockIdx.x % a.tiles * ROWS;
    w.mine = key + warp * 16;
    clear<Tile::ND>(w.gk);
    clear<Tile::ND>(w.gv);
    tile_load<D>(k, a.k, b, group, key, ROWS, a.sk, a.dk);
    tile_load<D>(v, a.v, b, group, key, ROWS, a.sk, a.dv);
    for (int64_t h = group * per; h < (group + 1) * per; h++)
        for (int64_t first = first_to_see(a, key) / ROWS * ROWS; first < a.sq; first += ROWS) {
            __syncthreads();
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

template <class E, int D> tg_status launch_q(tg_ctx *ctx, Attention a) {
    constexpr int WARPS = warps_of<E, D>();
    constexpr size_t bytes = shared_of<E, D>(4);
    a.tiles = (a.sq + WARPS * 16 - 1) / (WARPS * 16);
    if (!a.gq.data || !a.tiles) return TG_OK;
    tg_status s = allow_shared(ctx, attention_grad_q<E, D, WARPS>, bytes);
    if (s != TG_OK) return s;
    TG_LAUNCH((attention_grad_q<E, D, WARPS>), (unsigned)(a.batch * a.heads * a.tiles), WARPS * 32, bytes,
              tg_cuda_of(ctx)->compute, a);
    return tg_cuda_launched(ctx, "attention_grad_q");
}

template <class E, int D> tg_status launch_kv(tg_ctx *ctx, Attention a) {
    constexpr int WARPS = warps_of<E, D>();
    constexpr size_t bytes = shared_of<E, D>(4) + 2 * WARPS * 16 * sizeof(typename Element<E>::T);
    a.tiles = (a.sk + WARPS * 16 - 1) / (WARPS * 16);
    if ((!a.gk.data && !a.gv.data) || !a.tiles) return TG_OK;
    tg_status s = allow_shared(ctx, attention_grad_kv<E, D, WARPS>, bytes);
    if (s != TG_OK) return s;
    TG_LAUNCH((attention_grad_kv<E, D, WARPS>), (unsigned)(a.batch * a.groups * a.tiles), WARPS * 32, bytes,
              tg_cuda_of(ctx)->compute, a);
    return tg_cuda_launched(ctx, "attention_grad_kv");
}

template <class E, int D> tg_status run(tg_ctx *ctx, const Attention &a) {
    tg_status s = launch_row_products<typename Element<E>::T>(ctx, a);
    if (s == TG_OK) s = launch_q<E, D>(ctx, a);
    return s == TG_OK ? launch_kv<E, D>(ctx, a) : s;
}

} // namespace

tg_status tg_cuda_attention_grad(tg_ctx *ctx, const tg_attention_args *a) {
    Attention t = attention_of(a);
    int most = t.dk > t.dv ? t.dk : t.dv;
    tg_cuda_scratch delta;
    if (!t.batch || !t.groups) return TG_OK;
    if (a->mask.data || a->sink.data || tg_seen_rules_of(a).more) return not_yet(ctx);
    if (most > WIDEST_HEAD) return too_wide(ctx, most);
    size_t size = a->q.dtype == TG_F64 ? sizeof(double) : sizeof(float);
    tg_status s = tg_cuda_scratch_take(ctx, (size_t)(t.batch * t.heads * t.sq) * size, &delta);
    if (s != TG_OK) return s;
    t.delta = delta.data;
    s = TG_ATTENTION_KINDS(run, kind_of(a), most, ctx, t);
    tg_cuda_scratch_give(ctx, &delta);
    return s;
}
