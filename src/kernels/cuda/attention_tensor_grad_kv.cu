/* The gradients of attention's keys and values on tensor cores; attention_grad.cu has the formulas. */
#include "kernels/cuda/attention_dropout.h"
#include "kernels/cuda/attention_tensor.h"

using namespace tg;

namespace {

/* A tile of queries in shared memory: q, gout, and the terms. Shared memory holds two of these tiles, and the block's
 * keys and values. */
template <int D> struct QueryTile {
    typedef TensorShape<D> Z;
    static constexpr int GOUT = Z::STEP * Z::PITCH, TERMS = 2 * GOUT;
    static constexpr int BYTES = TERMS + Z::STEP * (int)sizeof(TensorTerms);
    static constexpr size_t SHARED = 2 * (size_t)Z::ROWS * Z::PITCH + 2 * (size_t)BYTES;

    /* Starts to copy the tile of head (b, h) from `first` on. */
    static __device__ void copy(const Attention &a, SharedAt to, const HeadAt &at, int first) {
        const TensorTerms *terms = (const TensorTerms *)a.terms + (at.b * a.heads + at.h) * terms_of_head(a) + first;
        tile_copy<D, Z::STEP>(to, head_rows(a.q, at.b, at.h, a.sq, a.dk), first);
        tile_copy<D, Z::STEP>(to + GOUT, head_rows(a.gout, at.b, at.h, a.sq, a.dv), first);
        if (threadIdx.x < Z::STEP)
            copy_async<8>(to + TERMS + threadIdx.x * (int)sizeof(TensorTerms), terms + threadIdx.x, true);
    }
};

/* The terms of the two adjacent queries of which a lane holds scores in a fragment. */
struct alignas(16) TwoTerms {
    TensorTerms of[2];
};

/* The state of a warp: the places of its keys and values in shared memory, and their gradients so far. The matrix of
 * scores is transposed: its rows are keys. */
template <class E, int D, bool DROP> struct KeyRows {
    typedef TensorShape<D> Z;
    typedef QueryTile<D> Tile;
    static constexpr int M = Z::M, PART = 32, NS = PART / 8; /* PART: number of queries of a step */
    SharedAt k, v;
    float gk[M][Z::ND][4], gv[M][Z::ND][4];
    float unit, keep;
    int first;       /* the warp's first key */
    int some, whole; /* queries before `some` see none of the warp's keys; queries from `whole` on see all of them */

    __device__ KeyRows(const Attention &a, int j, SharedAt keys, SharedAt values)
        : k(keys + lane_of_left<Z::PITCH>()), v(values + lane_of_left<Z::PITCH>()), unit(score_unit(a)),
          keep(DROP ? kept_scale<float>(a) : 1.f), first(j) {
        some = j < a.sk ? (int)first_to_see(a, j) : (int)a.sq;
        whole = (int)first_to_see(a, j + M * 16 - 1);
        clear<M, Z::ND>(gk);
        clear<M, Z::ND>(gv);
    }

    /* Adds to c the products of the warp's rows, which begin at `left`, and the queries' rows, which begin at `at`. */
    static __device__ void add_scores(float (&c)[M][NS][4], SharedAt left, SharedAt at) {
        at += lane_of_right<false, Z::PITCH>();
        TG_UNROLL
        for (int i = 0; i < Z::KD; i++) {
            uint32_t x[M][4];
            left_load<Z::PITCH>(x, left + i * 32);
            add_product<E, false, Z::PITCH>(c, x, at + i * 32);
        }
    }

    /* Adds to sum the product of c, which holds probabilities or gradients of scores, and the rows from `at` on. */
    static __device__ void add_grads(float (&sum)[M][Z::ND][4], const float (&c)[M][NS][4], SharedAt at) {
        at += lane_of_right<true, Z::PITCH>();
        TG_UNROLL
        for (int i = 0; i < PART / 16; i++) {
            uint32_t x[M][4];
            left_of<E>(x, c, i);
            add_product<E, true, Z::PITCH>(sum, x, at + i * 16 * Z::PITCH);
        }
    }

    /* Sets c to `hidden` for queries, from i on, that do not see a key. */
    __device__ void hide(const Attention &a, int i, float hidden, float (&c)[M][NS][4]) const {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        TG_UNROLL
        for (int m = 0; m < M; m++) {
            int start[2];
            for (int r = 0; r < 2; r++) start[r] = within(first_to_see(a, first + m * 16 + r * 8 + g) - i, PART);
            TG_UNROLL
            for (int n = 0; n < 4 * NS; n++)
                if (n / 4 * 8 + 2 * t + n % 2 < start[n % 4 / 2]) c[m][n / 4][n % 4] = hidden;
        }
    }

    /* Turns products into probabilities. */
    __device__ void to_probabilities(float (&s)[M][NS][4], const TwoTerms *terms) const {
        TG_UNROLL
        for (int n = 0; n < NS; n++) {
            const TwoTerms w = terms[n * 4];
            TG_UNROLL
            for (int e = 0; e < 4 * M; e++) {
                float &x = s[e / 4][n][e % 4];
                x = fast_exp2(fmaf(x, unit, -w.of[e % 2].log_sum));
            }
        }
    }

    /* Turns gs, the elements of gout v', into the gradients of scores. */
    __device__ void to_grads(const float (&p)[M][NS][4], float (&gs)[M][NS][4], const TwoTerms *terms) const {
        TG_UNROLL
        for (int n = 0; n < NS; n++) {
            const TwoTerms w = terms[n * 4];
            TG_UNROLL
            for (int e = 0; e < 4 * M; e++) {
                float &x = gs[e / 4][n][e % 4];
                x = p[e / 4][n][e % 4] * (x - w.of[e % 2].delta);
            }
        }
    }

    /* Multiplies elements by `factor` where dropout keeps them, and by 0 elsewhere. */
    static __device__ void drop(const uint32_t (&bits)[M], float factor, float (&c)[M][NS][4]) {
        TG_UNROLL
        for (int n = 0; n < M * 4 * NS; n++)
            c[n / (4 * NS)][n / 4 % NS][n % 4] *= bits[n / (4 * NS)] >> n % (4 * NS) & 1 ? factor : 0.f;
    }

    /* Processes PART queries from i on, which begin in row n of the tile. The exponentials of s do not wait for the
     * products of gs, and neither do the products that use s. */
    __device__ void pass(const Attention &a, const HeadAt &at, int i, SharedAt tile, const char *terms_of_tile, int n) {
        float s[M][NS][4], gs[M][NS][4];
        uint32_t bits[M];
        const SharedAt q = tile + n * Z::PITCH, o = q + Tile::GOUT;
        const TwoTerms *terms = (const TwoTerms *)terms_of_tile + n / 2 + threadIdx.x % 4;
        clear<M, NS>(s);
        clear<M, NS>(gs);
        add_scores(s, k, q);
        if (i < whole) hide(a, i, -INFINITY, s);
        if (DROP) {
            const Dropout drop(a, at.b, at.h);
            TG_UNROLL
            for (int m = 0; m < M; m++) bits[m] = kept_of<NS, true>(a, drop, at.b, at.h, i, first + m * 16);
        }
        add_scores(gs, v, o);
        to_probabilities(s, terms);
        if (i < whole) hide(a, i, 0, gs);
        if (DROP) drop(bits, keep, gs);
        to_grads(s, gs, terms);
        if (DROP) drop(bits, 1, s);
        add_grads(gv, s, o);
        add_grads(gk, gs, q);
    }

    __device__ void put(const Attention &a, int64_t b, int64_t group) const {
        const float scale[2] = {(float)a.scale, (float)a.scale}, kept[2] = {keep, keep};
        TG_UNROLL
        for (int m = 0; m < M; m++) {
            const int j = first + m * 16;
            if (a.gk.data) rows_put<E, Z::ND>(a.gk, b, group, j, a.sk, a.dk, a.add_k, gk[m], scale);
            if (a.gv.data) rows_put<E, Z::ND>(a.gv, b, group, j, a.sk, a.dv, a.add_v, gv[m], kept);
        }
    }
};

template <class E, int D, bool DROP>
__global__ void __launch_bounds__(TensorShape<D>::THREADS) attention_tensor_grad_kv(TG_PARAMETER(Attention) a) {
    typedef TensorShape<D> Z;
    typedef QueryTile<D> Tile;
    typedef KeyRows<E, D, DROP> Rows;
    TG_DYN_SHARED(char, shared);
    const SharedAt k = shared_at(shared), v = k + Z::ROWS * Z::PITCH, tiles = v + Z::ROWS * Z::PITCH;
    const char *terms = shared + 2 * Z::ROWS * Z::PITCH + Tile::TERMS;
    const int count = (int)a.tiles, mine = threadIdx.x / 32 * Z::M * 16, key = blockIdx.x % count * Z::ROWS;
    const HeadAt group = head_at(blockIdx.x / count, a.groups);
    const int per = (int)(a.heads / a.groups), begin = (int)first_to_see(a, key) / Z::STEP * Z::STEP;
    HeadAt at = {group.b, group.h * per};
    Rows rows(a, key + mine, k + mine * Z::PITCH, v + mine * Z::PITCH);
    int64_t left = begin < a.sq ? (a.sq - begin + Z::STEP - 1) / Z::STEP * per : 0; /* tiles of queries, of all heads */
    tile_copy<D, Z::ROWS>(k, head_rows(a.k, group.b, group.h, a.sk, a.dk), key);
    tile_copy<D, Z::ROWS>(v, head_rows(a.v, group.b, group.h, a.sk, a.dv), key);
    if (left) Tile::copy(a, tiles, at, begin);
    for (int first = begin, turn = 0; left; left--, turn ^= 1) {
        const HeadAt now = at;
        const int i = first;
        copies_wait();
        __syncthreads();
        first += Z::STEP;
        if (first >= a.sq) first = begin, at.h++;
        if (left > 1) Tile::copy(a, tiles + (turn ^ 1) * Tile::BYTES, at, first);
        TG_ROLLED
        for (int n = 0; n < Z::STEP; n += Rows::PART)
            if (i + n + Rows::PART > rows.some && i + n < a.sq)
                rows.pass(a, now, i + n, tiles + turn * Tile::BYTES, terms + turn * Tile::BYTES, n);
    }
    copies_wait();
    rows.put(a, group.b, group.h);
}

template <class E, int D, bool DROP> tg_status launch(tg_ctx *ctx, Attention a) {
    typedef TensorShape<D> Z;
    constexpr size_t bytes = QueryTile<D>::SHARED;
    static_assert(bytes <= MOST_SHARED, "a block's tiles fit");
    a.tiles = (a.sk + Z::ROWS - 1) / Z::ROWS;
    if ((!a.gk.data && !a.gv.data) || !a.tiles) return TG_OK;
    const int64_t blocks = a.batch * a.groups * a.tiles;
    tg_status s = allow_launch(ctx, attention_tensor_grad_kv<E, D, DROP>, bytes, blocks);
    if (s != TG_OK) return s;
    TG_LAUNCH((attention_tensor_grad_kv<E, D, DROP>), (unsigned)blocks, Z::THREADS, bytes, tg_cuda_of(ctx)->compute, a);
    return tg_cuda_launched(ctx, "attention_grad_kv");
}

} // namespace

tg_status tg::attention_tensor_grad_keys(tg_ctx *ctx, const Attention &a, ElementKind kind, int most) {
    return TG_TENSOR_KINDS(launch, kind, most, ctx, a);
}
