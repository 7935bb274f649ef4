/* The CUDA device's attention_grad slot. P are the probabilities, computed again from the scores and each query's saved
 * maximum and sum. K are the dropout factors, D is the sum of gout * out over each query's row, and ' is a
 * transposition. P, K and gout v' are multiplied element by element:
 *     gv = (P K)' gout,  gs = P (K (gout v') - D) scale slope,  gq = gs k,  gk = gs' q.
 * slope is 1, or the derivative of a bounded score (tg_attention_args), which the tile p holds until gs is there.
 * For gq, a block has a tile of queries and goes through the keys. For gk and gv, a block of the kernel in
 * attention_grad_kv.cu has a tile of keys and goes through the queries of all heads of the group. So one block adds
 * each sum, in a fixed order. */
#include "kernels/cuda/attention_scores.h"
#include "kernels/cuda/attention_tensor.h"
#include "kernels/cuda/slots.h"

using namespace tg;

namespace {

/* ---- D ---- */

enum { DELTA_WARPS = 4 };

/* A warp computes D of a query. */
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
    typedef typename TileElement<E>::T T;
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
    int64_t begin = FULL ? tg_mask_keys(&a.rules, b, first).first : 0;
    int64_t seen = FULL ? tg_mask_keys(&a.rules, b, last).end : keys_seen(a, last);
    RowsSeen rows = {};
    if (FULL) rows = rows_seen(a, b, mine);
    Terms<T> terms[2];
    T gq[NQ][4], one[2] = {1, 1}, scale = kept_scale<T>(a);
    for (int r = 0; r < 2; r++) terms[r] = row_terms<T>(a, b, h, mine + g + r * 8);
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
        if (FULL) scale_and_hide<NS>(a, rows, key, mask ? mask + warp * 16 * tile_pitch<T>(ROWS) : NULL, p, s);
        TG_UNROLL
        for (int n = 0; n < 4 * NS; n++) {
            int f = n / 4, e = n % 4;
            bool none = FULL ? s[f][e] == -(T)INFINITY : f * 8 + 2 * t + e % 2 >= end[e / 2];
            T keep = a.dropout > 0 ? (bits >> n & 1 ? scale : (T)0) : (T)1, slope = (T)a.scale;
            if (FULL && a.softcap > 0) slope *= TileElement<E>::get(p[own_place<NS, E>(n)]);
            score_grad<E, FULL, T>(a, none, keep, terms[e / 2], slope, &s[f][e], &gs[f][e]);
        }
        tile_set<NS>(p, ldp, gs);
        __syncwarp();
        tile_product<true, NQ>(gq, p, ldp, k, ld, a.wide_k, ROWS);
        __syncwarp();
    }
    rows_put<E, NQ>(a.gq, b, h, mine, a.sq, a.dk, a.add_q, gq, one);
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
    constexpr size_t plain = shared_of<E, D, FULL>(4), masked = mask_bytes<typename TileElement<E>::T, WARPS * 16>();
    constexpr size_t all = plain + (FULL ? masked : 0);
    static_assert(all <= MOST_SHARED, "a block's tiles fit");
    size_t bytes = a.mask.data ? all : plain;
    a.tiles = (a.sq + WARPS * 16 - 1) / (WARPS * 16);
    if (!a.gq.data || !a.heads || !a.tiles) return TG_OK;
    const int64_t blocks = a.batch * a.heads * a.tiles;
    tg_status s = allow_launch(ctx, attention_grad_q<E, D, WARPS, FULL>, all, blocks);
    if (s != TG_OK) return s;
    TG_LAUNCH((attention_grad_q<E, D, WARPS, FULL>), (unsigned)blocks, WARPS * 32, bytes, tg_cuda_of(ctx)->compute, a);
    return tg_cuda_launched(ctx, "attention_grad_q");
}

template <class E, int D> tg_status run(tg_ctx *ctx, const Attention &a) {
    tg_status s = launch_row_products<typename TileElement<E>::T>(ctx, a);
    return s == TG_OK ? TG_ATTENTION_FULL(launch_q, E, D, ctx, a) : s;
}

} // namespace

tg_status tg_cuda_attention_grad(tg_ctx *ctx, const tg_attention_args *a) {
    Attention t = attention_of(a);
    int most = t.dk > t.dv ? t.dk : t.dv;
    tg_cuda_scratch scratch;
    if (!t.batch || !t.groups) return attention_extras_grad(ctx, a, t);
    if (most > WIDEST_HEAD) return too_wide(ctx, most);
    const ElementKind kind = kind_of(a);
    const bool tensor = grad_for_tensor_cores(t, kind, most);
    const size_t size = a->q.dtype == TG_F64 ? sizeof(double) : sizeof(float), heads = (size_t)(t.batch * t.heads);
    const size_t terms = tensor ? heads * (size_t)terms_of_head(t) * sizeof(TensorTerms) : 0;
    tg_status s = tg_cuda_scratch_take(ctx, terms + heads * (size_t)t.sq * size, &scratch);
    if (s != TG_OK) return s;
    t.terms = scratch.data;
    t.delta = (char *)scratch.data + terms;
    if (tensor) {
        s = attention_tensor_grad(ctx, t, kind, most);
        if (s == TG_OK) s = attention_tensor_grad_keys(ctx, t, kind, most);
    } else {
        s = TG_ATTENTION_KINDS(run, kind, most, ctx, t);
        if (s == TG_OK) s = attention_grad_keys(ctx, t, kind, most);
    }
    if (s == TG_OK) s = attention_extras_grad(ctx, a, t);
    tg_cuda_scratch_give(ctx, &scratch);
    return s;
}
