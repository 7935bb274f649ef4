/* The CUDA device's attention slot. The matrix of scores is never stored: for each tile of queries, a block goes
 * through the tiles of keys, and keeps a running maximum and sum, from which the softmax follows (Milakov and
 * Gimelshein, arXiv 1805.02867; Dao, arXiv 2307.08691). */
#include "kernels/cuda/attention_softmax.h"
#include "kernels/cuda/attention_tensor.h"
#include "kernels/cuda/slots.h"

using namespace tg;

namespace {

/* Replaces the scores of a tile by exp(score - max) and updates the state. A row that has seen no key yet uses 0 as its
 * maximum, which avoids -inf - -inf. */
template <class E, int NF, class T> __device__ inline void pass_tile(Running<T> &s, T (&c)[NF][4]) {
    TG_UNROLL
    for (int r = 0; r < 2; r++) {
        T max = s.max[r], sum = 0;
        TG_UNROLL
        for (int i = 0; i < 2 * NF; i++) max = Greatest()(max, c[i / 2][2 * r + i % 2]);
        max = quad_joined(max, Greatest());
        T ref = max == -(T)INFINITY ? (T)0 : max;
        s.rescale[r] = score_exp<E>(s.max[r] - ref);
        s.max[r] = max;
        TG_UNROLL
        for (int i = 0; i < 2 * NF; i++) {
            T e = score_exp<E>(c[i / 2][2 * r + i % 2] - ref);
            c[i / 2][2 * r + i % 2] = e;
            sum += e;
        }
        s.sum[r] = s.sum[r] * s.rescale[r] + quad_joined(sum, Sum());
    }
}

/* Turns the products of the 16 queries from `first` on with the keys from `key` on into scores: scales them, and sets
 * hidden ones to -inf. */
template <int NF, class T>
__device__ inline void scale_and_mask(const Attention &a, int64_t first, int64_t key, T (&c)[NF][4]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int seen[2];
    for (int r = 0; r < 2; r++) seen[r] = within(keys_seen(a, first + g + r * 8) - key, NF * 8);
    TG_UNROLL
    for (int n = 0; n < 4 * NF; n++) {
        int f = n / 4, e = n % 4;
        c[f][e] = f * 8 + 2 * t + e % 2 < seen[e / 2] ? multiplied(c[f][e], (T)a.scale) : -(T)INFINITY;
    }
}

/* Applies dropout to the exponentials of a tile. */
template <int NF, class T>
__device__ inline void drop(const Attention &a, int64_t b, int64_t h, int64_t first, int64_t key, T (&c)[NF][4]) {
    uint32_t bits = kept<NF, false>(a, b, h, first, key);
    T scale = kept_scale<T>(a);
    TG_UNROLL
    for (int i = 0; i < 4 * NF; i++) c[i / 4][i % 4] *= bits >> i & 1 ? scale : (T)0;
}

template <class E, int D, int WARPS, bool FULL>
__global__ void __launch_bounds__(WARPS * 32) attention(TG_PARAMETER(Attention) a) {
    typedef typename TileElement<E>::T T;
    constexpr int ROWS = WARPS * 16, NS = ROWS / 8, NO = D / 8;
    TG_DYN_SHARED(E, q);
    const int ld = tile_pitch<E>(D), ldp = tile_pitch<E>(ROWS), warp = threadIdx.x / 32;
    E *k = q + ROWS * ld, *v = k + ROWS * ld, *p = v + ROWS * ld + warp * 16 * ldp, *own = q + warp * 16 * ld;
    T *mask = FULL && a.mask.data ? (T *)(v + ROWS * (ld + ldp)) : NULL;
    /* The last queries come first: under the causal rule they have the most keys. */
    int64_t head = blockIdx.x / a.tiles, b = head / a.heads, h = head % a.heads;
    int64_t group = h / (a.heads / a.groups), first = (a.tiles - 1 - blockIdx.x % a.tiles) * ROWS;
    int64_t mine = first + warp * 16;
    int64_t last = first + ROWS < a.sq ? first + ROWS - 1 : a.sq - 1;
    int64_t begin = FULL ? tg_mask_keys(&a.rules, b, first).first : 0;
    int64_t seen = FULL ? tg_mask_keys(&a.rules, b, last).end : keys_seen(a, last);
    RowsSeen rows = {};
    Running<T> s;
    T o[NO][4];
    if (FULL) rows = rows_seen(a, b, mine);
    for (int r = 0; r < 2; r++) s.max[r] = -(T)INFINITY, s.sum[r] = 0;
    clear<NO>(o);
    tile_load<D>(q, a.q, b, h, first, ROWS, a.sq, a.dk);
    for (int64_t key = begin; key < seen; key += ROWS) {
        T c[NS][4];
        __syncthreads();
        if (FULL && mask && !mask_load<ROWS>(a, b, h, first, key, mask)) continue;
        tile_load<D>(k, a.k, b, group, key, ROWS, a.sk, a.dk);
        tile_load<D>(v, a.v, b, group, key, ROWS, a.sk, a.dv);
        __syncthreads();
        clear<NS>(c);
        tile_product<false, NS>(c, own, ld, k, ld, ROWS, a.wide_k);
        if (FULL)
            scale_and_hide<NS>(a, rows, key, mask ? mask + warp * 16 * tile_pitch<T>(ROWS) : NULL, (E *)NULL, c);
        else
            scale_and_mask<NS>(a, mine, key, c);
        pass_tile<E, NS>(s, c);
        if (a.dropout > 0) drop<NS>(a, b, h, mine, key, c);
        tile_set<NS>(p, ldp, c);
        TG_UNROLL
        for (int i = 0; i < 4 * NO; i++) o[i / 4][i % 4] *= s.rescale[i % 4 / 2];
        __syncwarp();
        tile_product<true, NO>(o, p, ldp, v, ld, a.wide_v, ROWS);
        __syncwarp();
    }
    finish<E, NO>(a, b, h, mine, s, o);
}

template <class E, int D, bool FULL> tg_status launch(tg_ctx *ctx, Attention a) {
    constexpr int WARPS = warps_of<E, D>();
    constexpr size_t plain = shared_of<E, D>(3), masked = mask_bytes<typename TileElement<E>::T, WARPS * 16>();
    constexpr size_t all = plain + (FULL ? masked : 0);
    static_assert(all <= MOST_SHARED, "a block's tiles fit");
    size_t bytes = a.mask.data ? all : plain;
    a.tiles = (a.sq + WARPS * 16 - 1) / (WARPS * 16);
    const int64_t blocks = a.batch * a.heads * a.tiles;
    tg_status s = allow_launch(ctx, attention<E, D, WARPS, FULL>, all, blocks);
    if (s != TG_OK) return s;
    TG_LAUNCH((attention<E, D, WARPS, FULL>), (unsigned)blocks, WARPS * 32, bytes, tg_cuda_of(ctx)->compute, a);
    return tg_cuda_launched(ctx, "attention");
}

template <class E, int D> tg_status run(tg_ctx *ctx, const Attention &a) {
    return TG_ATTENTION_FULL(launch, E, D, ctx, a);
}

} // namespace

tg_status tg_cuda_attention(tg_ctx *ctx, const tg_attention_args *a) {
    Attention t = attention_of(a);
    int most = t.dk > t.dv ? t.dk : t.dv;
    if (a->bad) {
        tg_status s = attention_check(ctx, t);
        if (s != TG_OK) return s;
    }
    if (!t.batch || !t.heads || !t.sq) return TG_OK;
    if (most > WIDEST_HEAD) return too_wide(ctx, most);
    if (for_tensor_cores(t, kind_of(a), most)) return attention_tensor(ctx, t, kind_of(a), most);
    return TG_ATTENTION_KINDS(run, kind_of(a), most, ctx, t);
}
