/* Attention's kernels for tensor cores: what they share, and when they are used.
 *
 * They take 16-bit arrays of one dtype whose rows can be copied in chunks of 16 bytes, heads of at most 128 elements, a
 * positive scale, and the causal rule but no other mask and no softcap; for_tensor_cores has all conditions. A block
 * owns ROWS queries and goes through the keys, or it owns ROWS keys and goes through the queries, in tiles of STEP
 * rows. While it works on a tile, the next one is copied. A warp owns M times 16 rows. Its operands and results are
 * fragments in registers, distributed over the lanes as tile_product.h describes: with g = lane / 4 and t = lane % 4,
 * c[m][n] holds elements (g, 2t), (g, 2t + 1), (g + 8, 2t) and (g + 8, 2t + 1) of a part of 16 x 8. Probabilities
 * become the left operand of the next product without leaving the registers. */
#ifndef TG_CUDA_ATTENTION_TENSOR_H
#define TG_CUDA_ATTENTION_TENSOR_H

#include "kernels/cuda/attention.h"

namespace tg {

/* D is the size of a head, rounded up to 64 or 128; rows of tiles are filled up with zeros. PITCH is the number of
 * bytes from row to row of a tile. */
template <int D> struct TensorShape {
    static constexpr int ROWS = 128, STEP = 64, M = 128 / D, WARPS = ROWS / 16 / M, THREADS = WARPS * 32;
    static constexpr int PITCH = 2 * (D + 8), KD = D / 16, ND = D / 8;
};

/* The rows of a head as copies read them. */
struct HeadRows {
    const char *at;
    int step, rows, cols; /* step: bytes from row to row */
};

__device__ inline HeadRows head_rows(const Heads &x, int64_t b, int64_t h, int64_t rows, int cols) {
    return HeadRows{head_row(x, b, h, 0), (int)(x.stride[2] * x.size), (int)rows, cols};
}

/* Starts to copy N rows, from row `first` on, to a tile. Missing elements become 0. */
template <int D, int N> __device__ inline void tile_copy(SharedAt to, const HeadRows &x, int first) {
    typedef TensorShape<D> Z;
    constexpr int CHUNKS = D / 8, PASS = Z::THREADS / CHUNKS;
    const int i = threadIdx.x / CHUNKS, j = threadIdx.x % CHUNKS;
    const char *from = x.at + (int64_t)(first + i) * x.step + j * 16;
    to += i * Z::PITCH + j * 16;
    TG_UNROLL
    for (int n = 0; n < N; n += PASS)
        copy_async<16>(to + n * Z::PITCH, from + (int64_t)n * x.step, first + i + n < x.rows && j * 8 < x.cols);
}

/* Return where in a tile a lane begins to load a left operand, or a right operand B. The tile holds the transpose of B,
 * [n, k], or with BY_K B itself, [k, n]. */
template <int PITCH> __device__ inline int lane_of_left() {
    return threadIdx.x % 16 * PITCH + threadIdx.x % 32 / 16 * 16;
}
template <bool BY_K, int PITCH> __device__ inline int lane_of_right() {
    const int lane = threadIdx.x % 32;
    return BY_K ? lane_of_left<PITCH>() : (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
}

/* Loads 16 columns of the warp's rows as a left operand. */
template <int PITCH, int M> __device__ inline void left_load(uint32_t (&a)[M][4], SharedAt at) {
    TG_UNROLL
    for (int m = 0; m < M; m++) load_matrices<false>(a[m], at + m * 16 * PITCH);
}

/* Converts columns [16 k, 16 k + 16) of c to a left operand. */
template <class E, int M, int N> __device__ inline void left_of(uint32_t (&a)[M][4], const float (&c)[M][N][4], int k) {
    TG_UNROLL
    for (int i = 0; i < 4 * M; i++) {
        const float(&x)[4] = c[i / 4][2 * k + i % 4 / 2];
        a[i / 4][i % 4] = packed<E>(x[i % 2 * 2], x[i % 2 * 2 + 1]);
    }
}

/* Adds to c the product of a and a part of B, 16 steps along k. The part begins at `at`. With BY_K it is 16 rows of the
 * tile of B, otherwise 16 columns of the tile of B's transpose. */
template <class E, bool BY_K, int PITCH, int M, int N>
__device__ inline void add_product(float (&c)[M][N][4], const uint32_t (&a)[M][4], SharedAt at) {
    TG_UNROLL
    for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        load_matrices<BY_K>(b, at + (BY_K ? n * 16 : n * 8 * PITCH));
        TG_UNROLL
        for (int m = 0; m < M; m++) {
            multiply(c[m][n], a[m], b[0], b[1], E());
            multiply(c[m][n + 1], a[m], b[2], b[3], E());
        }
    }
}

template <int M, int N> __device__ inline void clear(float (&c)[M][N][4]) {
    TG_UNROLL
    for (int m = 0; m < M; m++) clear<N>(c[m]);
}

/* ---- Scores ---- */

/* Returns the factor that turns a product of q and k into a score in units of log 2. */
__device__ inline float score_unit(const Attention &a) { return (float)(a.scale * 1.4426950408889634); }

/* Sets an element of c to `hidden` if the causal rule hides its key, or if that key does not exist. The rows of c are
 * queries from i on, and its columns keys from j on. */
template <int M, int N>
__device__ inline void hide_keys(const Attention &a, int i, int j, float hidden, float (&c)[M][N][4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    TG_UNROLL
    for (int m = 0; m < M; m++) {
        int seen[2];
        for (int r = 0; r < 2; r++) seen[r] = within(keys_seen(a, i + m * 16 + r * 8 + g) - j, N * 8);
        TG_UNROLL
        for (int n = 0; n < 4 * N; n++) {
            if (n / 4 * 8 + 2 * t + n % 2 >= seen[n % 4 / 2]) c[m][n / 4][n % 4] = hidden;
        }
    }
}

/* What the kernels of the gradients need of a query: the logarithm, to base 2, of its sum of exp(score), and D
 * (attention_grad.cu). log_sum is infinite if the row of the query has no score (tg_attention_args), or if the query
 * does not exist; then P is 0. */
struct alignas(8) TensorTerms {
    float log_sum, delta;
};

/* Returns the number of TensorTerms of a head: that of its queries, rounded up to whole tiles. */
__host__ __device__ inline int64_t terms_of_head(const Attention &a) { return (a.sq + 127) / 128 * 128; }

/* Head h of batch entry b. */
struct HeadAt {
    int64_t b, h;
};

/* Returns batch entry and head from the number of a head in the batch. Each batch entry has `heads` heads. */
__device__ inline HeadAt head_at(int number, int64_t heads) {
    return HeadAt{number / (int)heads, number % (int)heads};
}

/* ---- Launches ---- */

inline bool copied_by_chunks(const Heads &x) {
    return x.wide && x.stride[2] < (1 << 24) && x.stride[2] > -(1 << 24);
}

/* Return whether these kernels can be used for forward, and for the gradients. `most` is the greater of the two head
 * sizes. */
inline bool for_tensor_cores(const Attention &a, ElementKind kind, int most) {
    return (kind == KIND_BF16 || kind == KIND_F16) && most <= 128 && !is_full(a) && a.scale > 0 && a.scale < 1e30 &&
           copied_by_chunks(a.q) && copied_by_chunks(a.k) && copied_by_chunks(a.v) && a.sq < 1 << 30 &&
           a.sk < 1 << 30;
}
inline bool grad_for_tensor_cores(const Attention &a, ElementKind kind, int most) {
    return for_tensor_cores(a, kind, most) && copied_by_chunks(a.gout) && copied_by_chunks(a.out);
}

/* Calls f<E, D, DROP>(ctx, a). DROP tells whether there is dropout. */
#define TG_TENSOR_DROPOUT(f, E, D, ctx, a) ((a).dropout > 0 ? f<E, D, true>(ctx, a) : f<E, D, false>(ctx, a))
#define TG_TENSOR_WIDTHS(f, E, d, ctx, a) \
    ((d) <= 64 ? TG_TENSOR_DROPOUT(f, E, 64, ctx, a) : TG_TENSOR_DROPOUT(f, E, 128, ctx, a))
#define TG_TENSOR_KINDS(f, kind, d, ctx, a)                                 \
    ((kind) == KIND_BF16 ? TG_TENSOR_WIDTHS(f, __nv_bfloat16, d, ctx, a)    \
                         : TG_TENSOR_WIDTHS(f, __half, d, ctx, a))

/* Computes slot attention. */
tg_status attention_tensor(tg_ctx *ctx, const Attention &a, ElementKind kind, int most);
/* Computes a.delta, a.terms and the queries' gradient. */
tg_status attention_tensor_grad(tg_ctx *ctx, const Attention &a, ElementKind kind, int most);
/* Computes the gradients of keys and values, after attention_tensor_grad. */
tg_status attention_tensor_grad_keys(tg_ctx *ctx, const Attention &a, ElementKind kind, int most);

} // namespace tg

#endif
