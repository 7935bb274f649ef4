/* Attention's gradients on tensor cores: D and the other terms of the queries, and the queries' gradient.
 * attention_grad.cu has the formulas. */
#include "kernels/cuda/attention_dropout.h"
#include "kernels/cuda/attention_tensor.h"

using namespace tg;

namespace {

/* ---- The terms of queries ---- */

enum { TERMS_THREADS = 256, TERMS_LANES = 8 };

/* Eight lanes compute the terms of a query. A block has queries of one head. */
template <class E> __global__ void __launch_bounds__(TERMS_THREADS) tensor_terms(TG_PARAMETER(Attention) a) {
    constexpr int ROWS = TERMS_THREADS / TERMS_LANES;
    const int blocks = (int)(terms_of_head(a) / ROWS), number = blockIdx.x / blocks;
    const int i = (int)(blockIdx.x % blocks) * ROWS + (int)threadIdx.x / TERMS_LANES;
    const HeadAt at = head_at(number, a.heads);
    TensorTerms w = {INFINITY, 0};
    if (i < a.sq) {
        const char *out = head_row(a.out, at.b, at.h, i), *gout = head_row(a.gout, at.b, at.h, i);
        for (int j = threadIdx.x % TERMS_LANES * 8; j < a.dv; j += TERMS_LANES * 8) {
            Sixteen<E> x = *(const Sixteen<E> *)(out + j * 2), y = *(const Sixteen<E> *)(gout + j * 2);
            TG_UNROLL
            for (int e = 0; e < 8; e++) w.delta += TileElement<E>::get(x.e[e]) * TileElement<E>::get(y.e[e]);
        }
    }
    for (int o = TERMS_LANES / 2; o; o >>= 1) w.delta += __shfl_xor_sync(~0u, w.delta, o);
    if (threadIdx.x % TERMS_LANES) return;
    if (i < a.sq) {
        const float mass = *(const float *)head_row(a.mass, at.b, at.h, i);
        const float top = *(const float *)head_row(a.top, at.b, at.h, i);
        if (mass != 0) w.log_sum = fmaf(top, 1.44269504f, log2f(mass));
        ((float *)a.delta)[number * a.sq + i] = w.delta;
    }
    ((TensorTerms *)a.terms)[number * terms_of_head(a) + i] = w;
}

template <class E> tg_status launch_terms(tg_ctx *ctx, const Attention &a) {
    const int64_t blocks = a.batch * a.heads * terms_of_head(a) / (TERMS_THREADS / TERMS_LANES);
    if (!blocks) return TG_OK;
    tg_status s = check_blocks(ctx, blocks);
    if (s != TG_OK) return s;
    TG_LAUNCH((tensor_terms<E>), (unsigned)blocks, TERMS_THREADS, 0, tg_cuda_of(ctx)->compute, a);
    return tg_cuda_launched(ctx, "tensor_terms");
}

/* ---- The queries' gradient ---- */

/* The state of a warp: its queries, the gradients of their results, and their own gradients so far. */
template <class E, int D, bool DROP> struct QueryGrads {
    typedef TensorShape<D> Z;
    static constexpr int M = Z::M, PART = 32, NS = PART / 8; /* PART: number of keys of a step */
    uint32_t q[Z::KD][M][4], o[Z::KD][M][4];                 /* o: gout */
    float gq[M][Z::ND][4];
    TensorTerms terms[M][2];
    float unit, keep;
    int first, whole, some; /* as in QueryRows of attention_tensor.cu */

    __device__ QueryGrads(const Attention &a, const HeadAt &at, int i)
        : unit(score_unit(a)), keep(DROP ? kept_scale<float>(a) : 1.f), first(i) {
        const int last = i + M * 16 <= a.sq ? i + M * 16 - 1 : (int)a.sq - 1;
        const TensorTerms *from = (const TensorTerms *)a.terms + (at.b * a.heads + at.h) * terms_of_head(a);
        whole = (int)keys_seen(a, i);
        some = i < a.sq ? (int)keys_seen(a, last) : 0;
        clear<M, Z::ND>(gq);
        for (int m = 0; m < M; m++)
            for (int r = 0; r < 2; r++) terms[m][r] = from[i + m * 16 + r * 8 + threadIdx.x % 32 / 4];
    }

    __device__ void load(SharedAt queries, SharedAt gouts) {
        const int lane = lane_of_left<Z::PITCH>();
        TG_UNROLL
        for (int k = 0; k < Z::KD; k++) {
            left_load<Z::PITCH>(q[k], queries + lane + k * 32);
            left_load<Z::PITCH>(o[k], gouts + lane + k * 32);
        }
    }

    /* Processes PART keys from `key` on. k and v are the addresses of their keys and values in shared memory. The
     * exponentials of s do not wait for the products of gs. */
    __device__ void pass(const Attention &a, const Dropout &drop, const HeadAt &at, int key, SharedAt k, SharedAt v) {
        float s[M][NS][4], gs[M][NS][4];
        const int lane = lane_of_right<false, Z::PITCH>();
        const bool cut = key + PART > whole;
        clear<M, NS>(s);
        clear<M, NS>(gs);
        TG_UNROLL
        for (int i = 0; i < Z::KD; i++) add_product<E, false, Z::PITCH>(s, q[i], k + lane + i * 32);
        if (cut) hide_keys(a, first, key, -INFINITY, s);
        TG_UNROLL
        for (int i = 0; i < Z::KD; i++) add_product<E, false, Z::PITCH>(gs, o[i], v + lane + i * 32);
        TG_UNROLL
        for (int n = 0; n < M * 4 * NS; n++) {
            float &x = s[n / (4 * NS)][n / 4 % NS][n % 4];
            x = fast_exp2(fmaf(x, unit, -terms[n / (4 * NS)][n % 4 / 2].log_sum));
        }
        if (cut) hide_keys(a, first, key, 0, gs);
        if (DROP) drop_grads(a, drop, at, key, gs);
        TG_UNROLL
        for (int n = 0; n < M * 4 * NS; n++) {
            float &x = gs[n / (4 * NS)][n / 4 % NS][n % 4];
            x = s[n / (4 * NS)][n / 4 % NS][n % 4] * (x - terms[n / (4 * NS)][n % 4 / 2].delta);
        }
        k += lane_of_right<true, Z::PITCH>();
        TG_UNROLL
        for (int i = 0; i < PART / 16; i++) {
            uint32_t p[M][4];
            left_of<E>(p, gs, i);
            add_product<E, true, Z::PITCH>(gq, p, k + i * 16 * Z::PITCH);
        }
    }

    __device__ void drop_grads(const Attention &a, const Dropout &drop, const HeadAt &at, int key,
                               float (&gs)[M][NS][4]) const {
        TG_UNROLL
        for (int m = 0; m < M; m++) {
            uint32_t bits = kept_of<NS, false>(a, drop, at.b, at.h, first + m * 16, key);
            TG_UNROLL
            for (int n = 0; n < 4 * NS; n++) gs[m][n / 4][n % 4] *= bits >> n & 1 ? keep : 0.f;
        }
    }

    __device__ void put(const Attention &a, const HeadAt &at) const {
        const float factor[2] = {(float)a.scale, (float)a.scale};
        TG_UNROLL
        for (int m = 0; m < M; m++)
            rows_put<E, Z::ND>(a.gq, at.b, at.h, first + m * 16, a.sq, a.dk, a.add_q, gq[m], factor);
    }
};

/* Returns the bytes of the tiles in shared memory: the block's queries and their gout, two tiles of keys, and two of
 * values. */
template <int D> constexpr size_t tensor_shared() {
    typedef TensorShape<D> Z;
    return (size_t)Z::PITCH * (2 * Z::ROWS + 4 * Z::STEP);
}

template <class E, int D, bool DROP>
__global__ void __launch_bounds__(TensorShape<D>::THREADS) attention_tensor_grad_q(TG_PARAMETER(Attention) a) {
    typedef TensorShape<D> Z;
    typedef QueryGrads<E, D, DROP> Rows;
    constexpr int TILE = Z::STEP * Z::PITCH;
    TG_DYN_SHARED(E, shared);
    const SharedAt q = shared_at(shared), o = q + Z::ROWS * Z::PITCH, tiles = o + Z::ROWS * Z::PITCH;
    const int count = (int)a.tiles, mine = threadIdx.x / 32 * Z::M * 16;
    const HeadAt at = head_at(blockIdx.x / count, a.heads);
    const int64_t group = at.h / (a.heads / a.groups);
    const int first = (count - 1 - (int)(blockIdx.x % count)) * Z::ROWS;
    const int last = first + Z::ROWS <= a.sq ? first + Z::ROWS - 1 : (int)a.sq - 1, seen = (int)keys_seen(a, last);
    const HeadRows k = head_rows(a.k, at.b, group, a.sk, a.dk), v = head_rows(a.v, at.b, group, a.sk, a.dv);
    const Dropout drop(a, at.b, at.h);
    Rows rows(a, at, first + mine);
    tile_copy<D, Z::ROWS>(q, head_rows(a.q, at.b, at.h, a.sq, a.dk), first);
    tile_copy<D, Z::ROWS>(o, head_rows(a.gout, at.b, at.h, a.sq, a.dv), first);
    if (seen > 0) {
        tile_copy<D, Z::STEP>(tiles, k, 0);
        tile_copy<D, Z::STEP>(tiles + TILE, v, 0);
    }
    copies_wait();
    __syncthreads();
    rows.load(q + mine * Z::PITCH, o + mine * Z::PITCH);
    for (int key = 0, turn = 0; key < seen; key += Z::STEP, turn ^= 1) {
        const SharedAt now = tiles + turn * 2 * TILE, next = tiles + (turn ^ 1) * 2 * TILE;
        copies_wait();
        __syncthreads();
        if (key + Z::STEP < seen) {
            tile_copy<D, Z::STEP>(next, k, key + Z::STEP);
            tile_copy<D, Z::STEP>(next + TILE, v, key + Z::STEP);
        }
        TG_ROLLED
        for (int n = 0; n < Z::STEP && key + n < rows.some; n += Rows::PART)
            rows.pass(a, drop, at, key + n, now + n * Z::PITCH, now + TILE + n * Z::PITCH);
    }
    rows.put(a, at);
}

template <class E, int D, bool DROP> tg_status launch(tg_ctx *ctx, Attention a) {
    typedef TensorShape<D> Z;
    constexpr size_t bytes = tensor_shared<D>();
    static_assert(bytes <= MOST_SHARED, "a block's tiles fit");
    tg_status s = launch_terms<E>(ctx, a);
    if (s != TG_OK || !a.gq.data || !a.heads || !a.sq) return s;
    a.tiles = (a.sq + Z::ROWS - 1) / Z::ROWS;
    const int64_t blocks = a.batch * a.heads * a.tiles;
    s = allow_launch(ctx, attention_tensor_grad_q<E, D, DROP>, bytes, blocks);
    if (s != TG_OK) return s;
    TG_LAUNCH((attention_tensor_grad_q<E, D, DROP>), (unsigned)blocks, Z::THREADS, bytes, tg_cuda_of(ctx)->compute, a);
    return tg_cuda_launched(ctx, "attention_grad_q");
}

} // namespace

tg_status tg::attention_tensor_grad(tg_ctx *ctx, const Attention &a, ElementKind kind, int most) {
    return TG_TENSOR_KINDS(launch, kind, most, ctx, a);
}
