/* Attention's forward on tensor cores. The kernels keep products of q and k instead of scores. They apply the scale
 * only in the argument of exp2, and to the maxima that they store. */
#include "kernels/cuda/attention_dropout.h"
#include "kernels/cuda/attention_softmax.h"
#include "kernels/cuda/attention_tensor.h"

using namespace tg;

namespace {

/* The state of a warp: its queries, and their softmax and results so far. Maxima are those of unscaled products. A
 * lane's sums cover its own keys only, until put joins them. */
template <class E, int D, bool DROP> struct QueryRows {
    typedef TensorShape<D> Z;
    static constexpr int M = Z::M, NS = Z::STEP / 8;
    uint32_t q[Z::KD][M][4];
    float o[M][Z::ND][4];
    Running<float> s[M];
    float unit;
    int first;       /* the warp's first query */
    int whole, some; /* all queries of the warp see the keys before `whole`, and none sees a key from `some` on */

    __device__ QueryRows(const Attention &a, int i) : unit(score_unit(a)), first(i) {
        const int last = i + M * 16 <= a.sq ? i + M * 16 - 1 : (int)a.sq - 1;
        whole = (int)keys_seen(a, i);
        some = i < a.sq ? (int)keys_seen(a, last) : 0;
        clear<M, Z::ND>(o);
        for (int m = 0; m < M; m++)
            for (int r = 0; r < 2; r++) s[m].max[r] = -INFINITY, s[m].sum[r] = 0, s[m].rescale[r] = 1;
    }

    /* Loads the warp's queries from shared memory, where `at` is their first row. */
    __device__ void load(SharedAt at) {
        TG_UNROLL
        for (int k = 0; k < Z::KD; k++) left_load<Z::PITCH>(q[k], at + lane_of_left<Z::PITCH>() + k * 32);
    }

    /* Replaces the products of 16 rows by exp(score - max) and updates the state of the rows. */
    __device__ void pass_rows(Running<float> &w, float (&c)[NS][4]) const {
        TG_UNROLL
        for (int r = 0; r < 2; r++) {
            float max = w.max[r], sum = 0;
            TG_UNROLL
            for (int i = 0; i < 2 * NS; i++) max = fmaxf(max, c[i / 2][2 * r + i % 2]);
            max = quad_joined(max, Greatest());
            const float ref = max == -INFINITY ? 0.f : max * unit;
            w.rescale[r] = fast_exp2(fmaf(w.max[r], unit, -ref));
            w.max[r] = max;
            TG_UNROLL
            for (int i = 0; i < 2 * NS; i++) {
                float e = fast_exp2(fmaf(c[i / 2][2 * r + i % 2], unit, -ref));
                c[i / 2][2 * r + i % 2] = e;
                sum += e;
            }
            w.sum[r] = fmaf(w.sum[r], w.rescale[r], sum);
        }
    }

    /* Multiplies the results so far by the rescale factors. Most often all of them are 1. */
    __device__ void rescale() {
        bool any = false;
        for (int m = 0; m < M; m++) any = any || s[m].rescale[0] != 1 || s[m].rescale[1] != 1;
        if (!__any_sync(~0u, any)) return;
        TG_UNROLL
        for (int m = 0; m < M; m++) {
            TG_UNROLL
            for (int n = 0; n < 4 * Z::ND; n++) o[m][n / 4][n % 4] *= s[m].rescale[n % 4 / 2];
        }
    }

    /* Processes the tile of keys from `key` on. k and v are the addresses of its keys and values in shared memory. */
    __device__ void pass(const Attention &a, const Dropout &drop, int64_t b, int64_t h, int key, SharedAt k,
                         SharedAt v) {
        float c[M][NS][4];
        clear<M, NS>(c);
        k += lane_of_right<false, Z::PITCH>();
        v += lane_of_right<true, Z::PITCH>();
        TG_UNROLL
        for (int i = 0; i < Z::KD; i++) add_product<E, false, Z::PITCH>(c, q[i], k + i * 32);
        if (key + Z::STEP > whole) hide_keys(a, first, key, -INFINITY, c);
        TG_UNROLL
        for (int m = 0; m < M; m++) pass_rows(s[m], c[m]);
        if (DROP) drop_scores(a, drop, b, h, key, c);
        rescale();
        TG_UNROLL
        for (int i = 0; i < Z::STEP / 16; i++) {
            uint32_t p[M][4];
            left_of<E>(p, c, i);
            add_product<E, true, Z::PITCH>(o, p, v + i * 16 * Z::PITCH);
        }
    }

    /* Clears what dropout does not keep. */
    __device__ void drop_scores(const Attention &a, const Dropout &drop, int64_t b, int64_t h, int key,
                                float (&c)[M][NS][4]) const {
        TG_UNROLL
        for (int m = 0; m < M; m++) {
            uint32_t bits = kept_of<NS, false>(a, drop, b, h, first + m * 16, key);
            TG_UNROLL
            for (int n = 0; n < 4 * NS; n++) c[m][n / 4][n % 4] = bits >> n & 1 ? c[m][n / 4][n % 4] : 0.f;
        }
    }

    __device__ void put(const Attention &a, int64_t b, int64_t h) {
        const float more = DROP ? kept_scale<float>(a) : 1.f;
        TG_UNROLL
        for (int m = 0; m < M; m++) {
            for (int r = 0; r < 2; r++) {
                s[m].sum[r] = quad_joined(s[m].sum[r], Sum());
                s[m].max[r] = multiplied(s[m].max[r], (float)a.scale);
            }
            finish<E, Z::ND>(a, b, h, first + m * 16, s[m], o[m], more);
        }
    }
};

/* Returns the bytes of the tiles in shared memory: the block's queries, two tiles of keys, and two of values. */
template <int D> constexpr size_t tensor_shared() {
    typedef TensorShape<D> Z;
    return (size_t)Z::PITCH * (Z::ROWS + 4 * Z::STEP);
}

template <class E, int D, bool DROP>
__global__ void __launch_bounds__(TensorShape<D>::THREADS) attention_tensor_kernel(TG_PARAMETER(Attention) a) {
    typedef TensorShape<D> Z;
    constexpr int TILE = Z::STEP * Z::PITCH;
    TG_DYN_SHARED(E, shared);
    const SharedAt q = shared_at(shared), tiles = q + Z::ROWS * Z::PITCH;
    const int count = (int)a.tiles, warp = threadIdx.x / 32;
    const HeadAt at = head_at(blockIdx.x / count, a.heads);
    const int64_t group = at.h / (a.heads / a.groups);
    /* The last queries come first: under the causal rule they have the most keys. */
    const int first = (count - 1 - (int)(blockIdx.x % count)) * Z::ROWS;
    const int last = first + Z::ROWS <= a.sq ? first + Z::ROWS - 1 : (int)a.sq - 1, seen = (int)keys_seen(a, last);
    const HeadRows k = head_rows(a.k, at.b, group, a.sk, a.dk), v = head_rows(a.v, at.b, group, a.sk, a.dv);
    const Dropout drop(a, at.b, at.h);
    QueryRows<E, D, DROP> rows(a, first + warp * Z::M * 16);
    tile_copy<D, Z::ROWS>(q, head_rows(a.q, at.b, at.h, a.sq, a.dk), first);
    if (seen > 0) {
        tile_copy<D, Z::STEP>(tiles, k, 0);
        tile_copy<D, Z::STEP>(tiles + TILE, v, 0);
    }
    copies_wait();
    __syncthreads();
    rows.load(q + warp * Z::M * 16 * Z::PITCH);
    for (int key = 0, turn = 0; key < seen; key += Z::STEP, turn ^= 1) {
        const SharedAt now = tiles + turn * 2 * TILE, next = tiles + (turn ^ 1) * 2 * TILE;
        copies_wait();
        __syncthreads();
        if (key + Z::STEP < seen) {
            tile_copy<D, Z::STEP>(next, k, key + Z::STEP);
            tile_copy<D, Z::STEP>(next + TILE, v, key + Z::STEP);
        }
        if (key < rows.some) rows.pass(a, drop, at.b, at.h, key, now, now + TILE);
    }
    rows.put(a, at.b, at.h);
}

template <class E, int D, bool DROP> tg_status launch(tg_ctx *ctx, Attention a) {
    typedef TensorShape<D> Z;
    constexpr size_t bytes = tensor_shared<D>();
    static_assert(bytes <= MOST_SHARED, "a block's tiles fit");
    a.tiles = (a.sq + Z::ROWS - 1) / Z::ROWS;
    const int64_t blocks = a.batch * a.heads * a.tiles;
    tg_status s = allow_launch(ctx, attention_tensor_kernel<E, D, DROP>, bytes, blocks);
    if (s != TG_OK) return s;
    TG_LAUNCH((attention_tensor_kernel<E, D, DROP>), (unsigned)blocks, Z::THREADS, bytes, tg_cuda_of(ctx)->compute, a);
    return tg_cuda_launched(ctx, "attention");
}

} // namespace

tg_status tg::attention_tensor(tg_ctx *ctx, const Attention &a, ElementKind kind, int most) {
    return TG_TENSOR_KINDS(launch, kind, most, ctx, a);
}
