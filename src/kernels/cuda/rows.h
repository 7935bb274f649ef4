/* Rows as the kernels of softmax, norms and cross-entropy read them. A group of threads works on a row. It keeps the
 * row in registers or in shared memory, or reads it again.
 *
 * A row consists of chunks of W elements. W is 8 if every row is contiguous and aligned, and a chunk is then one access
 * of 16 bytes, or two or four of them; otherwise W is 1. Thread t of a group of G threads has the chunks t, t + G, and
 * so on. A thread adds up its own chunks; then the sums of the group are added pairwise. So the order of a sum depends
 * on the length and the layout of the rows alone. */
#ifndef TG_CUDA_ROWS_H
#define TG_CUDA_ROWS_H

#include "kernels/cuda/array.h"
#include "kernels/cuda/cuda.h"

namespace tg {

/* An array as rows along its last dim. The leading dims number the rows; they are merged where their strides allow. */
struct Rows {
    char *data;                /* NULL for an absent array */
    int64_t count, n, stride;  /* number of rows; elements of a row, and the distance between them */
    int dtype, size, ndim;     /* size: bytes of an element; ndim: number of leading dims after merging, at least 1 */
    int64_t shape[TG_MAX_DIMS], step[TG_MAX_DIMS]; /* of the leading dims, the innermost first */
};

/* inner: 1 for rows along the last dim; 0 for an array with one value for each row. */
inline Rows rows_of(const tg_array &a, int inner) {
    Rows x = {};
    x.data = (char *)a.data;
    x.count = x.n = x.ndim = 1;
    x.shape[0] = 1;
    x.dtype = a.dtype;
    x.size = tg_dtype_bits((tg_dtype)a.dtype) / 8;
    if (!a.shape) return x;
    int lead = a.ndim, top = 0;
    if (inner && lead) {
        x.n = a.shape[--lead];
        x.stride = a.stride[lead];
    }
    for (int d = lead - 1; d >= 0; d--) {
        x.count *= a.shape[d];
        if (a.shape[d] == 1) continue;
        bool first = x.shape[top] == 1;
        if (!first && a.stride[d] != x.shape[top] * x.step[top]) {
            first = true;
            x.shape[++top] = 1;
        }
        if (first) x.step[top] = a.stride[d];
        x.shape[top] *= a.shape[d];
    }
    x.ndim = top + 1;
    return x;
}

enum { WIDE = 8 };

/* Whether chunks of WIDE elements can be used; true for an absent array. */
inline bool wide_rows(const Rows &x) {
    if (!x.data) return true;
    bool fits = x.n % WIDE == 0 && (x.stride == 1 || x.n == 0) && (uintptr_t)x.data % 16 == 0;
    for (int d = 0; d < x.ndim; d++) fits = fits && (x.shape[d] == 1 || x.step[d] * x.size % 16 == 0);
    return fits;
}

/* Returns the beginning of row r. */
__device__ inline char *row_at(const Rows &x, int64_t r) {
    int64_t at = 0;
    int last = x.ndim - 1;
    for (int d = 0; d < last; d++) {
        at += r % x.shape[d] * x.step[d];
        r /= x.shape[d];
    }
    return x.data + (at + r * x.step[last]) * x.size;
}

template <class T> __device__ inline T row_value(const Rows &x, int64_t r) { return load<T>(row_at(x, r), x.dtype, 0); }
template <class T> __device__ inline void row_set(const Rows &x, int64_t r, T v) {
    store<T>(row_at(x, r), x.dtype, 0, v);
}

/* ---- Chunks ---- */

/* Sixteen bytes as elements of type E: one access. */
template <class E> struct alignas(16) Sixteen {
    E e[16 / sizeof(E)];
};

template <class T, class E> __device__ inline void load_quads(const char *at, int dtype, T (&v)[WIDE]) {
    constexpr int N = 16 / sizeof(E);
    TG_UNROLL
    for (int q = 0; q < WIDE / N; q++) {
        Sixteen<E> x = ((const Sixteen<E> *)at)[q];
        TG_UNROLL
        for (int i = 0; i < N; i++) v[q * N + i] = load<T>((const char *)x.e, dtype, i);
    }
}

template <class T, class E> __device__ inline void store_quads(char *at, int dtype, const T (&v)[WIDE]) {
    constexpr int N = 16 / sizeof(E);
    TG_UNROLL
    for (int q = 0; q < WIDE / N; q++) {
        Sixteen<E> x;
        TG_UNROLL
        for (int i = 0; i < N; i++) store<T>((char *)x.e, dtype, i, v[q * N + i]);
        ((Sixteen<E> *)at)[q] = x;
    }
}

/* Load and store elements [j, j + W) of the row that begins at `row`. */
template <class T> __device__ inline void chunk_load(const Rows &x, const char *row, int64_t j, T (&v)[1]) {
    v[0] = load<T>(row, x.dtype, j * x.stride);
}
template <class T> __device__ inline void chunk_load(const Rows &x, const char *row, int64_t j, T (&v)[WIDE]) {
    const char *at = row + j * x.size;
    switch (x.dtype) {
    case TG_F32: load_quads<T, float>(at, TG_F32, v); break;
    case TG_F64: load_quads<T, double>(at, TG_F64, v); break;
    case TG_BF16: load_quads<T, __nv_bfloat16>(at, TG_BF16, v); break;
    case TG_F16: load_quads<T, __half>(at, TG_F16, v); break;
    default:
        for (int i = 0; i < WIDE; i++) v[i] = load<T>(row, x.dtype, j + i);
    }
}

template <class T> __device__ inline void chunk_store(const Rows &x, char *row, int64_t j, const T (&v)[1]) {
    store<T>(row, x.dtype, j * x.stride, v[0]);
}
template <class T> __device__ inline void chunk_store(const Rows &x, char *row, int64_t j, const T (&v)[WIDE]) {
    char *at = row + j * x.size;
    switch (x.dtype) {
    case TG_F32: store_quads<T, float>(at, TG_F32, v); break;
    case TG_F64: store_quads<T, double>(at, TG_F64, v); break;
    case TG_BF16: store_quads<T, __nv_bfloat16>(at, TG_BF16, v); break;
    case TG_F16: store_quads<T, __half>(at, TG_F16, v); break;
    default:
        for (int i = 0; i < WIDE; i++) store<T>(row, x.dtype, j + i, v[i]);
    }
}

/* Writes v, or with `add` adds it to what is there. */
template <class T, int W>
__device__ inline void chunk_put(const Rows &x, char *row, int64_t j, bool add, T (&v)[W]) {
    if (add) {
        T old[W];
        chunk_load<T>(x, row, j, old);
        TG_UNROLL
        for (int i = 0; i < W; i++) v[i] += old[i];
    }
    chunk_store<T>(x, row, j, v);
}

/* Loads elements of a vector of weights; each is `absent` if there is no such vector. */
template <class T, int W>
__device__ inline void chunk_or(const Rows &x, int64_t j, T absent, T (&v)[W]) {
    if (x.data) return chunk_load<T>(x, x.data, j, v);
    TG_UNROLL
    for (int i = 0; i < W; i++) v[i] = absent;
}

/* ---- Groups ---- */

/* The threads that work on one row: a power of two, at most 32 in one warp, or the whole block. */
struct Group {
    int thread, threads; /* this thread's index in the group; the group's size */
    int64_t n;           /* elements of the row; 0 if this group has no row */
    void *shared;        /* space for one value of each warp, used if the group is the whole block */
};

struct Sum {
    template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};
/* The maximum, which ignores NaN. A NaN reaches the results through the sums. */
struct Greatest {
    template <class T> __device__ T operator()(T a, T b) const { return b > a ? b : a; }
};

/* Joins the values v of a group's threads, all of which get the result. All threads of the block must call it
 * together. */
template <class T, class Join> __device__ inline T joined(const Group &g, T v, Join join) {
    for (int o = (g.threads < 32 ? g.threads : 32) / 2; o; o >>= 1) v = join(v, __shfl_xor_sync(~0u, v, o));
    if (g.threads <= 32) return v;
    T *part = (T *)g.shared;
    __syncthreads(); /* the last call's parts have been read */
    if (g.thread % 32 == 0) part[g.thread / 32] = v;
    __syncthreads();
    v = part[0];
    for (int w = 1; w < g.threads / 32; w++) v = join(v, part[w]);
    return v;
}

/* N rows of equal length that are read together: their arrays, and where the rows begin. */
template <int N> struct Sources {
    const Rows *x[N];
    const char *at[N];
};

template <class T, int W, int N> __device__ inline void chunks_load(const Sources<N> &s, int64_t j, T (&v)[N][W]) {
    TG_UNROLL
    for (int k = 0; k < N; k++) chunk_load<T>(*s.x[k], s.at[k], j, v[k]);
}

/* One thread's share of N rows, converted to T. read() loads the chunks and calls f(j, v, i) for each: j is the
 * position of its first element, and v holds its elements. again() does the same for the same chunks, from where they
 * are kept. With KEPT > 0, registers keep up to KEPT chunks of a thread, and i is the chunk's index among them. With
 * KEPT 0, the cache in shared memory keeps them, and i is 0. Without a cache, again() loads them once more. */
template <class T, int W, int KEPT, int N> struct Share {
    T kept[KEPT][N][W];
    __device__ Share(T *, int64_t) {}
    template <class F> __device__ void read(const Sources<N> &s, const Group &g, F f) {
        TG_UNROLL
        for (int i = 0; i < KEPT; i++) {
            int64_t j = ((int64_t)i * g.threads + g.thread) * W;
            if (j < g.n) {
                chunks_load<T, W, N>(s, j, kept[i]);
                f(j, kept[i], i);
            }
        }
    }
    template <class F> __device__ void again(const Sources<N> &, const Group &g, F f) {
        TG_UNROLL
        for (int i = 0; i < KEPT; i++) {
            int64_t j = ((int64_t)i * g.threads + g.thread) * W;
            if (j < g.n) f(j, kept[i], i);
        }
    }
};

template <class T, int W, int N> struct Share<T, W, 0, N> {
    T *cache; /* NULL: none. Element i of chunk c is cache[i * chunks + c], so a warp accesses adjacent elements */
    int64_t chunks;
    __device__ Share(T *space, int64_t n) : cache(space), chunks(n / W) {}
    template <class F> __device__ void read(const Sources<N> &s, const Group &g, F f) {
        for (int64_t j = (int64_t)g.thread * W; j < g.n; j += (int64_t)g.threads * W) {
            T v[N][W];
            chunks_load<T, W, N>(s, j, v);
            for (int i = 0; cache && i < N * W; i++) cache[i * chunks + j / W] = v[i / W][i % W];
            f(j, v, 0);
        }
    }
    template <class F> __device__ void again(const Sources<N> &s, const Group &g, F f) {
        for (int64_t j = (int64_t)g.thread * W; j < g.n; j += (int64_t)g.threads * W) {
            T v[N][W];
            if (cache)
                for (int i = 0; i < N * W; i++) v[i / W][i % W] = cache[i * chunks + j / W];
            else
                chunks_load<T, W, N>(s, j, v);
            f(j, v, 0);
        }
    }
};

/* ---- Launches ---- */

/* How rows are distributed. A unit is one row or several; each group works on one unit at a time. */
struct Plan {
    bool wide, kept, cached; /* chunks have WIDE elements; rows stay in registers; rows stay in the cache */
    int threads, groups;     /* threads of a group; groups of a block */
    unsigned grid;           /* blocks */
    size_t shared;           /* bytes of shared memory */
};

enum { PARTS = 256, CACHE_MOST = 44 * 1024 }; /* bytes of shared memory: for joined(); for the cache at most */

/* Returns the number of chunks that a thread keeps in registers. */
template <int W> constexpr int kept_chunks() { return W == 1 ? 16 : 4; }

/* Returns the cache, which begins after the space of joined(); NULL if rows are read again. */
template <class T> __device__ inline T *cache_of(const Plan &p, T *shared) {
    return p.cached ? shared + PARTS / sizeof(T) : nullptr;
}

/* n: elements of a row. size: bytes of the compute type. cache: how many rows a group reads at a time, if it is worth
 * caching them; otherwise 0. */
inline Plan plan_rows(int64_t units, int64_t n, bool wide, size_t size, int cache) {
    Plan p = {};
    int64_t chunks = wide ? n / WIDE : n, most = wide ? kept_chunks<WIDE>() : kept_chunks<1>();
    p.wide = wide;
    p.threads = 1;
    while (p.threads < chunks && p.threads < 32) p.threads *= 2;
    while (p.threads * most < chunks && p.threads < 256) p.threads *= 2;
    p.kept = p.threads * most >= chunks;
    if (!p.kept) p.threads = 512;
    size_t bytes = (size_t)n * size * (size_t)cache;
    p.cached = !p.kept && cache && bytes <= CACHE_MOST;
    p.groups = p.threads < 128 && p.threads <= 32 ? 128 / p.threads : 1;
    p.shared = PARTS + (p.cached ? bytes : 0);
    int64_t blocks = (units + p.groups - 1) / p.groups;
    p.grid = (unsigned)(blocks < 1 << 30 ? blocks : 1 << 30);
    return p;
}

/* Returns the unit of this thread's group in iteration `block`. All threads of a block take part in the same number of
 * iterations, because they synchronize. The unit may not exist; then the group works on a row of length 0. */
__device__ inline int64_t unit_of(const Plan &p, int64_t block) {
    return block * p.groups + (int)threadIdx.x / p.threads;
}
__device__ inline Group group_of(const Plan &p, void *shared, int64_t n) {
    return Group{(int)threadIdx.x % p.threads, p.threads, n, shared};
}

} // namespace tg

/* Launches kernel<T, W, KEPT>(plan, arguments...) by the plan. */
#define TG_LAUNCH_ROWS_OF(kernel, T, W, ctx, plan, ...)                                                         \
    do {                                                                                                        \
        unsigned threads_ = (unsigned)((plan).threads * (plan).groups);                                         \
        if ((plan).kept)                                                                                        \
            TG_LAUNCH((kernel<T, W, kept_chunks<W>()>), (plan).grid, threads_, (plan).shared,                   \
                      tg_cuda_of(ctx)->compute, plan, __VA_ARGS__);                                             \
        else                                                                                                    \
            TG_LAUNCH((kernel<T, W, 0>), (plan).grid, threads_, (plan).shared, tg_cuda_of(ctx)->compute, plan,  \
                      __VA_ARGS__);                                                                             \
    } while (0)
#define TG_LAUNCH_ROWS(kernel, T, ctx, plan, ...)                                \
    do {                                                                         \
        if ((plan).wide)                                                         \
            TG_LAUNCH_ROWS_OF(kernel, T, WIDE, ctx, plan, __VA_ARGS__);          \
        else                                                                     \
            TG_LAUNCH_ROWS_OF(kernel, T, 1, ctx, plan, __VA_ARGS__);             \
    } while (0)

#endif
