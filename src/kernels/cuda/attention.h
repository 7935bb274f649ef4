/* What attention's forward and backward share: operands, tiles, masks, and the choice of kernels.
 *
 * A block of WARPS warps owns a tile of 16 * WARPS rows, which are queries or keys. If they are queries, it goes
 * through the keys, and if they are keys, through the queries, in tiles of the same number of rows. Each warp owns 16
 * rows of the block's tile. The scores and sums of these rows are in its registers, distributed over the lanes as in
 * tile_product.h. Tiles are in shared memory. Their elements E have the dtype of the arrays if all arrays have the same
 * 16-bit dtype (kind_of); otherwise the compute type. The kernels for tensor cores divide rows otherwise
 * (attention_tensor.h). */
#ifndef TG_CUDA_ATTENTION_H
#define TG_CUDA_ATTENTION_H

#include <math.h>

#include "kernels/attention_mask.h"
#include "kernels/cuda/draw_state.h"
#include "kernels/cuda/tile_product.h"
#include "kernels/philox.h"
#include "kernels/scalar.h"

/* TG_PARAMETER declares a kernel parameter that functions read in place, without a copy for each thread. TG_NOINLINE
 * marks a function that is too long to be inlined in every caller. */
#ifdef __CUDACC__
#define TG_PARAMETER(type) const __grid_constant__ type
#define TG_NOINLINE        __noinline__
#else
#define TG_PARAMETER(type) const type
#define TG_NOINLINE
#endif

namespace tg {

/* An array [batch, heads, rows, cols] or [batch, heads, rows]. */
struct Heads {
    char *data; /* NULL: absent */
    int dtype, size;
    bool wide; /* four dims; rows are contiguous, and begin and end at multiples of 16 bytes */
    int64_t stride[4];
};

inline Heads heads_of(const tg_array &a) {
    Heads h = {(char *)a.data, a.dtype, 0, false, {0, 0, 0, 0}};
    if (!a.data) return h;
    h.size = tg_dtype_bits((tg_dtype)a.dtype) / 8;
    for (int d = 0; d < a.ndim; d++) h.stride[d] = a.stride[d];
    if (a.ndim < 4) return h;
    h.wide = (uintptr_t)a.data % 16 == 0 && a.shape[3] * h.size % 16 == 0 && (a.stride[3] == 1 || a.shape[3] == 1);
    for (int d = 0; d < 3; d++) h.wide = h.wide && (a.shape[d] == 1 || a.stride[d] * h.size % 16 == 0);
    return h;
}

struct Attention {
    Heads q, k, v, out, top, mass, gout, gq, gk, gv, mask, gmask;
    Heads sink, gsink; /* [heads]: only stride[1] is used */
    int64_t batch, heads, groups, sq, sk; /* groups: heads of k and v */
    int64_t tiles;                        /* number of tiles of the queries of a head, or of its keys */
    int dk, dv, wide_k, wide_v;           /* wide_k, wide_v: dk and dv rounded up to a multiple of 16 */
    double scale, dropout, softcap;
    bool causal, add_q, add_k, add_v, add_mask, add_sink;
    tg_mask_rules rules;
    tg_draws draws;
    void *delta; /* [batch, heads, sq] of the compute type: the sum of gout * out over a row */
    void *terms; /* TensorTerms of each query, for the gradients on tensor cores (attention_tensor.h) */
};

/* Returns an array [heads] as Heads. */
inline Heads head_vector_of(const tg_array &a) {
    Heads h = {(char *)a.data, a.dtype, 0, false, {0, 0, 0, 0}};
    if (!a.data) return h;
    h.size = tg_dtype_bits((tg_dtype)a.dtype) / 8;
    h.stride[1] = a.stride[0];
    return h;
}

inline Attention attention_of(const tg_attention_args *a) {
    Attention t = {};
    t.q = heads_of(a->q), t.k = heads_of(a->k), t.v = heads_of(a->v);
    t.out = heads_of(a->out), t.top = heads_of(a->top), t.mass = heads_of(a->mass), t.gout = heads_of(a->gout);
    t.gq = heads_of(a->gq), t.gk = heads_of(a->gk), t.gv = heads_of(a->gv);
    t.batch = a->q.shape[0], t.heads = a->q.shape[1], t.groups = a->k.shape[1];
    t.sq = a->q.shape[2], t.sk = a->k.shape[2];
    t.dk = (int)a->q.shape[3], t.dv = (int)a->v.shape[3];
    t.wide_k = (t.dk + 15) / 16 * 16, t.wide_v = (t.dv + 15) / 16 * 16;
    t.scale = a->scale, t.dropout = a->dropout, t.softcap = a->softcap, t.causal = a->causal, t.draws = a->draws;
    t.add_q = a->add_q, t.add_k = a->add_k, t.add_v = a->add_v;
    t.mask = heads_of(a->mask), t.gmask = heads_of(a->gmask), t.add_mask = a->add_mask;
    t.sink = head_vector_of(a->sink), t.gsink = head_vector_of(a->gsink), t.add_sink = a->add_sink;
    t.rules = tg_mask_rules_of(a);
    return t;
}

/* Returns the beginning of row i of head (b, h). */
__device__ inline char *head_row(const Heads &x, int64_t b, int64_t h, int64_t i) {
    return x.data + (b * x.stride[0] + h * x.stride[1] + i * x.stride[2]) * x.size;
}

/* Loads rows [first, first + rows) of a head, which has `total` rows, as a tile of D columns. Missing elements become
 * 0. */
template <int D, class E>
__device__ inline void tile_load(E *to, const Heads &x, int64_t b, int64_t h, int64_t first, int rows, int64_t total,
                                 int cols) {
    typedef typename TileElement<E>::T T;
    constexpr int N = 16 / sizeof(E), CHUNKS = D / N;
    const int ld = tile_pitch<E>(D), there = total - first < rows ? (int)(total - first) : rows;
    const char *from = head_row(x, b, h, first);
    const int64_t step = x.stride[2] * x.size;
    if (x.wide && x.size == sizeof(E)) {
        for (int c = threadIdx.x; c < rows * CHUNKS; c += blockDim.x) {
            int i = c / CHUNKS, j = c % CHUNKS * N;
            Sixteen<E> q = {};
            if (i < there && j < cols) q = *(const Sixteen<E> *)(from + i * step + j * sizeof(E));
            *(Sixteen<E> *)(to + i * ld + j) = q;
        }
        return;
    }
    TG_ROLLED
    for (int c = threadIdx.x; c < rows * D; c += blockDim.x) {
        int i = c / D, j = c % D;
        T v = i < there && j < cols ? load<T>(from + i * step, x.dtype, j * x.stride[3]) : (T)0;
        to[i * ld + j] = TileElement<E>::of(v);
    }
}

template <class T> __device__ TG_NOINLINE void put_element(char *row, int dtype, int64_t at, bool add, T v) {
    store<T>(row, dtype, at, add ? v + load<T>(row, dtype, at) : v);
}

/* Stores the warp's fragments (tile_product.h) to rows [first, first + 16) of a head, which has `total` rows.
 * Multiplies them by factor[0] in row g and by factor[1] in row g + 8. */
template <class E, int NF, class T>
__device__ inline void rows_put(const Heads &x, int64_t b, int64_t h, int64_t first, int64_t total, int cols, bool add,
                                const T (&c)[NF][4], const T (&factor)[2]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool wide = x.wide && x.dtype == TileElement<E>::DTYPE;
    TG_UNROLL
    for (int n = 0; n < 2 * NF; n++) {
        int r = n % 2, j = n / 2 * 8 + 2 * t;
        int64_t i = first + g + r * 8;
        if (i >= total || j >= cols) continue;
        char *row = head_row(x, b, h, i);
        T v[2] = {c[n / 2][2 * r] * factor[r], c[n / 2][2 * r + 1] * factor[r]};
        if (wide) {
            Two<E> *to = (Two<E> *)(row + j * sizeof(E)), old = {};
            if (add) old = *to;
            for (int e = 0; e < 2; e++) {
                if (add) v[e] += TileElement<E>::get(old.e[e]);
                old.e[e] = TileElement<E>::of(v[e]);
            }
            *to = old;
        } else {
            put_element<T>(row, x.dtype, j * x.stride[3], add, v[0]);
            if (j + 1 < cols) put_element<T>(row, x.dtype, (j + 1) * x.stride[3], add, v[1]);
        }
    }
}

/* Returns the number of keys that query i sees, under the causal rule alone; 0 or less if it sees none. Earlier queries
 * see at most that number. */
__device__ inline int64_t keys_seen(const Attention &a, int64_t i) {
    int64_t seen = a.causal ? i + 1 + a.sk - a.sq : a.sk;
    return seen < a.sk ? seen : a.sk;
}
/* Returns the first query that sees key j, under the causal rule alone. */
__device__ inline int64_t first_to_see(const Attention &a, int64_t j) {
    int64_t i = a.causal ? j - (a.sk - a.sq) : 0;
    return i > 0 ? i : 0;
}
/* Limits a position relative to the beginning of a tile to [0, rows]. */
__device__ inline int within(int64_t at, int rows) { return at < 0 ? 0 : at > rows ? rows : (int)at; }

/* ---- Masks, bounds of scores, and rules beyond the causal one ---- */

/* Returns whether the kernels compiled with FULL are needed. The others know only the causal rule, and are faster. */
inline bool is_full(const Attention &a) { return a.mask.data || a.softcap > 0 || a.rules.more; }

/* The keys [first, end) that are visible to the two queries of which a lane holds scores, in rows g and g + 8. */
struct RowsSeen {
    int64_t first[2], end[2];
};

/* Returns the visible keys of this lane's two queries. i is the warp's first query. */
__device__ inline RowsSeen rows_seen(const Attention &a, int64_t b, int64_t i) {
    RowsSeen s;
    for (int r = 0; r < 2; r++) {
        int64_t query = i + threadIdx.x % 32 / 4 + r * 8;
        tg_key_range k = tg_mask_keys(&a.rules, b, query < a.sq ? query : a.sq - 1);
        s.first[r] = k.first, s.end[r] = k.end;
    }
    return s;
}

/* Returns what the mask adds to a score; a bool mask adds 0 or -inf. */
template <class T> __device__ inline T mask_at(const Attention &a, int64_t b, int64_t h, int64_t i, int64_t j) {
    T v = load<T>(head_row(a.mask, b, h, i), a.mask.dtype, j * a.mask.stride[3]);
    return a.mask.dtype != TG_BOOL ? v : v != 0 ? (T)0 : -(T)INFINITY;
}

/* Loads a tile of the mask, [queries, keys], whose rows are tile_pitch<T>(ROWS) apart. Missing elements become 0.
 * Returns false, in all threads of the block, if the mask hides every key from every query of the tile. Ends with a
 * barrier. */
template <int ROWS, class T>
__device__ inline bool mask_load(const Attention &a, int64_t b, int64_t h, int64_t query, int64_t key, T *m) {
    int seen = 0;
    TG_ROLLED
    for (int c = threadIdx.x; c < ROWS * ROWS; c += blockDim.x) {
        int i = c / ROWS, j = c % ROWS;
        bool there = query + i < a.sq && key + j < a.sk;
        T v = there ? mask_at<T>(a, b, h, query + i, key + j) : (T)0;
        m[i * tile_pitch<T>(ROWS) + j] = v;
        seen |= there && v != -(T)INFINITY;
    }
    return __syncthreads_or(seen);
}

/* Returns the bytes of a tile of the mask. */
template <class T, int ROWS> constexpr size_t mask_bytes() {
    return sizeof(T) * (size_t)(ROWS * (ROWS + 16 / (int)sizeof(T)));
}

/* Returns where tile_set puts c[n / 4][n % 4] of this lane in a tile [16, 8 NF] of the warp. */
template <int NF, class E> __device__ inline int own_place(int n) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    return (g + n % 4 / 2 * 8) * tile_pitch<E>(8 * NF) + n / 4 * 8 + 2 * t + n % 2;
}

/* Scales the products c of the warp, and bounds them by softcap. If there is a bound and `slopes` is not NULL, writes
 * the derivatives of the bounded scores to `slopes`, a tile of the warp. */
template <int NF, class E, class T>
__device__ inline void scale_and_cap(const Attention &a, E *slopes, T (&c)[NF][4]) {
    TG_UNROLL
    for (int n = 0; n < 4 * NF; n++) c[n / 4][n % 4] = multiplied(c[n / 4][n % 4], (T)a.scale);
    if (a.softcap <= 0) return;
    const T cap = (T)a.softcap;
    TG_UNROLL
    for (int n = 0; n < 4 * NF; n++) {
        T y = tg_m_tanh(c[n / 4][n % 4] / cap);
        c[n / 4][n % 4] = cap * y;
        if (slopes) slopes[own_place<NF, E>(n)] = TileElement<E>::of(1 - y * y);
    }
}

/* Turns the products of the warp's 16 queries with the keys of a tile into scores: scales and bounds them, adds the
 * mask, and sets hidden ones to -inf. `slopes` is that of scale_and_cap. m is the mask's tile from the warp's first row
 * on; NULL if there is no mask. */
template <int NF, class E, class T>
__device__ inline void scale_and_hide(const Attention &a, const RowsSeen &seen, int64_t key, const T *m, E *slopes,
                                      T (&c)[NF][4]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int from[2], to[2];
    for (int r = 0; r < 2; r++) {
        from[r] = within(seen.first[r] - key, NF * 8);
        to[r] = within(seen.end[r] - key, NF * 8);
    }
    scale_and_cap<NF>(a, slopes, c);
    if (m) {
        TG_UNROLL
        for (int n = 0; n < 4 * NF; n++)
            c[n / 4][n % 4] += m[(g + n % 4 / 2 * 8) * tile_pitch<T>(NF * 8) + n / 4 * 8 + 2 * t + n % 2];
    }
    TG_UNROLL
    for (int n = 0; n < 4 * NF; n++) {
        int j = n / 4 * 8 + 2 * t + n % 2, r = n % 4 / 2;
        if (j < from[r] || j >= to[r]) c[n / 4][n % 4] = -(T)INFINITY;
    }
}

/* Returns which of the lane's scores dropout keeps: bit 4 f + e stands for c[f][e]. The rows of c are the queries from
 * i on, and its columns the keys from j on; with BY_KEY, rows are keys and columns queries. The loop is not unrolled,
 * because a draw takes many instructions. */
template <int NF, bool BY_KEY>
__device__ inline uint32_t kept(const Attention &a, int64_t b, int64_t h, int64_t i, int64_t j) {
    static_assert(4 * NF <= 32, "a bit each");
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int64_t from = (b * a.heads + h) * a.sq;
    const tg_rng rng = rng_now(a.draws.rng, a.draws.captured);
    uint32_t bits = 0;
    TG_ROLLED
    for (int n = 0; n < 4 * NF; n++) {
        int row = g + n / 2 % 2 * 8, column = n / 4 * 8 + 2 * t + n % 2;
        int64_t query = i + (BY_KEY ? column : row), key = j + (BY_KEY ? row : column);
        if (query >= a.sq || key >= a.sk) continue;
        uint64_t at = tg_draws_at(&a.draws, (from + query) * a.sk + key);
        bits |= (uint32_t)(tg_philox_uniform(&rng, at) >= (float)a.dropout) << n;
    }
    return bits;
}

/* Returns the factor by which dropout multiplies what it keeps. */
template <class T> __device__ inline T kept_scale(const Attention &a) {
    return a.dropout < 1 ? (T)(1 / (1 - a.dropout)) : (T)0;
}

/* Returns e^x. For tiles of 16-bit elements, a fast approximation is exact enough. */
template <class E> __device__ inline typename TileElement<E>::T score_exp(typename TileElement<E>::T x) {
#ifdef __CUDA_ARCH__
    if (sizeof(E) == 2) return __expf((float)x);
#endif
    return tg_m_exp(x);
}

/* ---- Launches ---- */

enum ElementKind { KIND_FLOAT, KIND_DOUBLE, KIND_BF16, KIND_F16 };

/* Returns the kind of the tiles' elements. Forward stores `out` in any dtype; the gradients load it. */
inline ElementKind kind_of(const tg_attention_args *a) {
    const tg_array *all[] = {&a->q, &a->k, &a->v, a->gout.data ? &a->out : &a->q, &a->gout};
    bool same = true;
    for (const tg_array *x : all) same = same && (!x->data || x->dtype == a->q.dtype);
    if (a->q.dtype == TG_F64) return KIND_DOUBLE;
    return !same ? KIND_FLOAT : a->q.dtype == TG_BF16 ? KIND_BF16 : a->q.dtype == TG_F16 ? KIND_F16 : KIND_FLOAT;
}

/* Returns the number of warps of a block for which its tiles, with rows of D elements, fit into shared memory. FULL is
 * for the kernels of gradients that may also have a tile of the mask. */
template <class E, int D, bool FULL = false> constexpr int warps_of() {
    if (FULL && sizeof(E) == 4 && D > 64) return 2;
    return sizeof(E) == 2 || (sizeof(E) == 4 && D <= 128) ? 4 : sizeof(E) == 8 && D > 128 ? 1 : 2;
}
/* Returns the bytes of this number of tiles of D columns and of one tile of scores. */
template <class E, int D, bool FULL = false> constexpr size_t shared_of(int tiles) {
    constexpr int rows = 16 * warps_of<E, D, FULL>(), pad = 16 / (int)sizeof(E);
    return sizeof(E) * (size_t)rows * (size_t)(tiles * (D + pad) + rows + pad);
}

/* The shared memory that a block can have on compute capability 8.0: 163 KiB. Capability 9.0 has more. Capabilities 8.6
 * and 8.9 have 99 KiB; launches that need more fail there. */
constexpr size_t MOST_SHARED = 163 * 1024;

/* The greatest size of a head for which shared memory suffices. */
enum { WIDEST_HEAD = 256 };

inline tg_status too_wide(tg_ctx *ctx, int size) {
    return tg_ctx_fail(ctx, TG_ERR_SHAPE, "attention: heads have size %d; device \"cuda\" supports sizes up to %d",
                       size, WIDEST_HEAD);
}

/* Fails if this is more than the number of blocks that a launch can have. */
inline tg_status check_blocks(tg_ctx *ctx, int64_t blocks) {
    if (blocks <= INT32_MAX) return TG_OK;
    return tg_ctx_fail(ctx, TG_ERR_SHAPE,
                       "attention: batch, heads and rows make %lld blocks of rows; device \"cuda\" supports up to %d: "
                       "divide the batch over several calls",
                       (long long)blocks, INT32_MAX);
}

/* Checks a launch of this number of blocks, and allows the kernel to have `most` bytes of shared memory, which launches
 * need above 48 KiB. The attribute belongs to the kernel, in all threads and contexts of the GPU, so `most` must be the
 * maximum over all launches of the kernel. */
template <class K> inline tg_status allow_launch(tg_ctx *ctx, K kernel, size_t most, int64_t blocks) {
    tg_status s = check_blocks(ctx, blocks);
    if (s != TG_OK || most <= 48 * 1024) return s;
    const cudaFuncAttribute what = cudaFuncAttributeMaxDynamicSharedMemorySize;
    tg_cuda_enter(ctx);
    return tg_cuda_check(ctx, cudaFuncSetAttribute((const void *)kernel, what, (int)most), "cudaFuncSetAttribute");
}

/* Calls f<E, D>(arguments...) for the kind of elements and for d, the greater of the two head sizes. */
#define TG_ATTENTION_WIDTHS(f, E, d, ...) \
    ((d) <= 64 ? f<E, 64>(__VA_ARGS__) : (d) <= 128 ? f<E, 128>(__VA_ARGS__) : f<E, 256>(__VA_ARGS__))
#define TG_ATTENTION_KINDS(f, kind, d, ...)                                                       \
    ((kind) == KIND_BF16     ? TG_ATTENTION_WIDTHS(f, __nv_bfloat16, d, __VA_ARGS__)              \
     : (kind) == KIND_F16    ? TG_ATTENTION_WIDTHS(f, __half, d, __VA_ARGS__)                     \
     : (kind) == KIND_DOUBLE ? TG_ATTENTION_WIDTHS(f, double, d, __VA_ARGS__)                     \
                             : TG_ATTENTION_WIDTHS(f, float, d, __VA_ARGS__))

/* Calls f<E, D, FULL> with the FULL that a requires. For 16-bit elements and D up to 128, most calls that do not
 * require FULL use the kernels of attention_tensor.h. So the few that remain use FULL, too. */
#define TG_ATTENTION_FULL(f, E, D, ctx, a) \
    (is_full(a) ? f<E, D, true>(ctx, a) : f<E, D, (sizeof(E) == 2 && D <= 128)>(ctx, a))

/* ---- attention_extras.cu ---- */

/* Reports invalid values of lengths, starts_q and starts_k as errors in data. */
tg_status attention_check(tg_ctx *ctx, const Attention &a);
/* Computes the gradients of mask and sink. */
tg_status attention_extras_grad(tg_ctx *ctx, const tg_attention_args *a, Attention t);

} // namespace tg

#endif
