/* Rows as the kernels of softmax, norms and cross-entropy read them. A group of threads works on a row. It keeps the
 * row in registers or in shared memory, or reads it again.
 *
 * A row consists of chunks of W elements. W is 8 if every row is contiguous and aligned and has a multiple of 8
 * elements (in double, also if all arrays are float64), and a chunk is then one access of 16 bytes, or two or four of
 * them; otherwise W is 1. Thread t of a group of G threads has the chunks t, t + G, and so on. A thread adds up its own
 * chunks. Then the sums of each warp of the group are added pairwise, and the sums of several warps one after another.
 * So the order of a sum depends on the length, the layout and the dtypes of the rows alone.
 *
 * Kernels are compiled for wide rows (W is 8) that all have the same dtype D, so that a thread starts the loads of
 * several chunks before it waits for the first. For other rows D is ANY_DTYPE, and each access looks up the dtype. */
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

/* Returns the rows of a. inner is 1 for rows along the last dim, and 0 for an array with one value for each row. */
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

enum { WIDE = 8, ANY_DTYPE = -1 };

/* Returns whether chunks of WIDE elements can be used; true for an absent array. */
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

/* Returns the dtype of all these arrays, of which some may be absent; ANY_DTYPE if they have several, or none is
 * present. */
template <int N> inline int common_dtype(const Rows *const (&x)[N]) {
    int dtype = ANY_DTYPE;
    for (int k = 0; k < N; k++) {
        if (!x[k]->data) continue;
        if (dtype != ANY_DTYPE && dtype != x[k]->dtype) return ANY_DTYPE;
        dtype = x[k]->dtype;
    }
    return dtype;
}

/* ---- Chunks ---- */

/* Sixteen bytes as elements of type E: one access. */
template <class E> struct alignas(16) Sixteen {
    E e[16 / sizeof(E)];
};

template <int D> struct Element;
template <> struct Element<TG_F32> { typedef float type; };
template <> struct Element<TG_F64> { typedef double type; };
template <> struct Element<TG_BF16> { typedef __nv_bfloat16 type; };
template <> struct Element<TG_F16> { typedef __half type; };

/* W elements between fetch and decode: as they are in memory, of dtype D, or as T if D is ANY_DTYPE. Elements as in
 * memory are kept as words, because the compiler would give each element of 16 bits a register. */
template <class T, int W, int D> struct alignas(16) Chunk {
    uint32_t word[W * sizeof(typename Element<D>::type) / 4];
};
template <class T, int W> struct Chunk<T, W, ANY_DTYPE> {
    T e[W];
};

template <class T, int W, class E> __device__ inline void load_as(const char *at, int dtype, T (&v)[W]) {
    struct alignas(16) Wide {
        E e[W];
    } x = *(const Wide *)at;
    TG_UNROLL
    for (int i = 0; i < W; i++) v[i] = load<T>((const char *)x.e, dtype, i);
}

template <class T, int W, class E> __device__ inline void store_as(char *at, int dtype, const T (&v)[W]) {
    struct alignas(16) Wide {
        E e[W];
    } x;
    TG_UNROLL
    for (int i = 0; i < W; i++) store<T>((char *)x.e, dtype, i, v[i]);
    *(Wide *)at = x;
}

/* One row: where it begins, and how its elements are stored. */
struct Source {
    const char *row; /* NULL for an absent row, which reads as zeros */
    int64_t stride;
    int dtype, size;
};

__device__ inline Source source(const Rows &x, const char *row) { return Source{row, x.stride, x.dtype, x.size}; }

/* Starts to load elements [j, j + W); decode waits for them. */
template <class T, int W, int D> __device__ inline void fetch(const Source &x, int64_t j, Chunk<T, W, D> &c) {
    if (!x.row) {
        c = {};
    } else if constexpr (D != ANY_DTYPE) {
        c = *(const Chunk<T, W, D> *)(x.row + j * (int)(sizeof c / W));
    } else if constexpr (W == 1) {
        c.e[0] = load<T>(x.row, x.dtype, j * x.stride);
    } else {
        const char *at = x.row + j * x.size;
        switch (x.dtype) {
        case TG_F32: load_as<T, W, float>(at, TG_F32, c.e); break;
        case TG_F64: load_as<T, W, double>(at, TG_F64, c.e); break;
        case TG_BF16: load_as<T, W, __nv_bfloat16>(at, TG_BF16, c.e); break;
        case TG_F16: load_as<T, W, __half>(at, TG_F16, c.e); break;
        default:
            for (int i = 0; i < W; i++) c.e[i] = load<T>(x.row, x.dtype, j + i);
        }
    }
}

template <class T, int W, int D> __device__ inline void decode(const Chunk<T, W, D> &c, T (&v)[W]) {
    if constexpr (D == ANY_DTYPE) {
        TG_UNROLL
        for (int i = 0; i < W; i++) v[i] = c.e[i];
    } else if constexpr (D == TG_BF16) {
        TG_UNROLL
        for (int i = 0; i < W; i++) {
            uint32_t bits = i % 2 ? c.word[i / 2] & 0xffff0000u : c.word[i / 2] << 16; /* of a float */
            float x;
            memcpy(&x, &bits, sizeof x);
            v[i] = (T)x;
        }
    } else {
        typename Element<D>::type e[W];
        memcpy(e, c.word, sizeof e);
        TG_UNROLL
        for (int i = 0; i < W; i++) v[i] = load<T>((const char *)e, D, i);
    }
}

/* Hides from the compiler what the words of a chunk are, so that it decodes them once more instead of keeping the
 * decoded elements. Decoded elements of 16 bits take twice the registers of the chunk. */
template <class T, int W, int D> __device__ inline void veil(Chunk<T, W, D> &c) {
#ifdef __CUDA_ARCH__
    if constexpr (D == TG_BF16 || D == TG_F16) {
        TG_UNROLL
        for (int i = 0; i < W / 2; i++) asm volatile("" : "+r"(c.word[i]));
    }
#endif
    (void)c;
}

/* Load and store elements [j, j + W) of the row that begins at `row`. */
template <class T, int D, int W>
__device__ inline void chunk_load(const Rows &x, const char *row, int64_t j, T (&v)[W]) {
    Chunk<T, W, D> c;
    fetch<T, W, D>(source(x, row), j, c);
    decode<T, W, D>(c, v);
}

template <class T, int D, int W>
__device__ inline void chunk_store(const Rows &x, char *row, int64_t j, const T (&v)[W]) {
    char *at = row + j * x.size;
    if constexpr (D != ANY_DTYPE) {
        store_as<T, W, typename Element<D>::type>(at, D, v);
    } else if constexpr (W == 1) {
        store<T>(row, x.dtype, j * x.stride, v[0]);
    } else {
        switch (x.dtype) {
        case TG_F32: store_as<T, W, float>(at, TG_F32, v); break;
        case TG_F64: store_as<T, W, double>(at, TG_F64, v); break;
        case TG_BF16: store_as<T, W, __nv_bfloat16>(at, TG_BF16, v); break;
        case TG_F16: store_as<T, W, __half>(at, TG_F16, v); break;
        default:
            for (int i = 0; i < W; i++) store<T>(row, x.dtype, j + i, v[i]);
        }
    }
}

/* Stores v in elements [j, j + W) of the row, or with `add` adds v to them. */
template <class T, int D, int W>
__device__ inline void chunk_put(const Rows &x, char *row, int64_t j, bool add, T (&v)[W]) {
    if (add) {
        T old[W];
        chunk_load<T, D>(x, row, j, old);
        TG_UNROLL
        for (int i = 0; i < W; i++) v[i] += old[i];
    }
    chunk_store<T, D>(x, row, j, v);
}

/* Loads elements [j, j + W) of a vector of weights. If there is no such vector, sets them to `absent`. */
template <class T, int D, int W> __device__ inline void chunk_or(const Rows &x, int64_t j, T absent, T (&v)[W]) {
    if (x.data) return chunk_load<T, D>(x, x.data, j, v);
    TG_UNROLL
    for (int i = 0; i < W; i++) v[i] = absent;
}

/* ---- Groups ---- */

/* The threads that work on one row: a power of two. They are in one warp, or they are the whole block. */
struct Group {
    int thread, threads; /* this thread's index in the group; the group's size */
    int64_t n;           /* elements of the row; 0 if this group has no row */
    void *shared;        /* space for the values of each warp in join(), used if the group is the whole block */
};

struct Sum {
    template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};
/* The maximum, which ignores a NaN in b; a is never NaN. A NaN reaches the results through the sums. */
struct Greatest {
    template <class T> __device__ T operator()(T a, T b) const { return b > a ? b : a; }
};

/* Joins the values of a group's threads, N of each thread. All threads of the group get the N results. All threads of
 * the block must call this function together. */
template <class T, int N, class Join> __device__ inline void join(const Group &g, T (&v)[N], Join how) {
    TG_UNROLL
    for (int k = 0; k < N; k++)
        for (int o = (g.threads < 32 ? g.threads : 32) / 2; o; o >>= 1) v[k] = how(v[k], __shfl_xor_sync(~0u, v[k], o));
    if (g.threads <= 32) return;
    T *part = (T *)g.shared;
    __syncthreads(); /* the last call's parts have been read */
    TG_UNROLL
    for (int k = 0; k < N; k++)
        if (g.thread % 32 == 0) part[g.thread / 32 * N + k] = v[k];
    __syncthreads();
    TG_UNROLL
    for (int k = 0; k < N; k++) {
        v[k] = part[k];
        for (int w = 1; w < g.threads / 32; w++) v[k] = how(v[k], part[w * N + k]);
    }
}

template <class T, class Join> __device__ inline T joined(const Group &g, T v, Join how) {
    T values[1] = {v};
    join(g, values, how);
    return values[0];
}

/* One thread's share of N rows of equal length. start() begins to load the chunks. read() calls f(j, v, i) for each
 * position j at which the thread has a chunk of every row: v[k] holds the elements of row k from j on, converted to T.
 * again() makes the same calls once more, with the chunks as they were kept. With KEPT > 0, registers keep up to KEPT
 * chunks of each row, and i is the index of the chunk among them; after read(), start() may be called for the next
 * rows. With KEPT 0, start() does nothing, the cache in shared memory keeps the chunks, and i is 0. Without a cache,
 * again() loads them once more. */
template <class T, int W, int D, int KEPT, int N> struct Share {
    Chunk<T, W, D> next[KEPT][N], kept[KEPT][N];
    __device__ Share(T *, int64_t) {}
    __device__ void start(const Source (&s)[N], const Group &g) {
        TG_UNROLL
        for (int i = 0; i < KEPT; i++) {
            int64_t j = ((int64_t)i * g.threads + g.thread) * W;
            TG_UNROLL
            for (int k = 0; k < N; k++)
                if (j < g.n) fetch<T, W, D>(s[k], j, next[i][k]);
        }
    }
    template <class F> __device__ void read(const Source (&s)[N], const Group &g, F f) {
        TG_UNROLL
        for (int i = 0; i < KEPT * N; i++) kept[i / N][i % N] = next[i / N][i % N];
        again(s, g, f);
    }
    template <class F> __device__ void again(const Source (&)[N], const Group &g, F f) {
        TG_UNROLL
        for (int i = 0; i < KEPT; i++) {
            int64_t j = ((int64_t)i * g.threads + g.thread) * W;
            if (j >= g.n) continue;
            T v[N][W];
            TG_UNROLL
            for (int k = 0; k < N; k++) {
                veil<T, W, D>(kept[i][k]);
                decode<T, W, D>(kept[i][k], v[k]);
            }
            f(j, v, i);
        }
    }
};

/* Number of chunks that a thread fetches before it decodes the first, where registers do not keep the row. */
template <int W, int N> constexpr int chunks_ahead() { return W == 1 ? 8 : N == 1 ? 4 : 2; }

template <class T, int W, int D, int N> struct Share<T, W, D, 0, N> {
    T *cache; /* NULL: none. Element i of chunk c is cache[i * chunks + c], so a warp accesses adjacent elements */
    int64_t chunks;
    __device__ Share(T *space, int64_t n) : cache(space), chunks(n / W) {}
    __device__ void start(const Source (&)[N], const Group &) {}
    template <class F> __device__ void read(const Source (&s)[N], const Group &g, F f) {
        constexpr int AHEAD = chunks_ahead<W, N>();
        const int64_t step = (int64_t)g.threads * W;
        for (int64_t first = (int64_t)g.thread * W; first < g.n; first += AHEAD * step) {
            Chunk<T, W, D> c[AHEAD][N];
            TG_UNROLL
            for (int a = 0; a < AHEAD * N; a++)
                if (first + a / N * step < g.n) fetch<T, W, D>(s[a % N], first + a / N * step, c[a / N][a % N]);
            TG_UNROLL
            for (int a = 0; a < AHEAD; a++)
                if (first + a * step < g.n) use(c[a], first + a * step, f);
        }
    }
    template <class F> __device__ void again(const Source (&s)[N], const Group &g, F f) {
        if (!cache) return read(s, g, f);
        for (int64_t j = (int64_t)g.thread * W; j < g.n; j += (int64_t)g.threads * W) {
            T v[N][W];
            for (int i = 0; i < N * W; i++) v[i / W][i % W] = cache[i * chunks + j / W];
            f(j, v, 0);
        }
    }

  private:
    template <class F> __device__ void use(const Chunk<T, W, D> (&c)[N], int64_t j, F f) {
        T v[N][W];
        TG_UNROLL
        for (int k = 0; k < N; k++) decode<T, W, D>(c[k], v[k]);
        for (int i = 0; cache && i < N * W; i++) cache[i * chunks + j / W] = v[i / W][i % W];
        f(j, v, 0);
    }
};

/* ---- Launches ---- */

/* How rows are distributed. A unit is one row or several; each group works on one unit at a time. */
struct Plan {
    bool wide, kept, cached; /* chunks have WIDE elements; rows stay in registers; rows stay in the cache */
    int dtype;               /* of all rows; ANY_DTYPE if they have several. Used only if they are wide */
    int threads, groups;     /* threads of a group; groups of a block */
    unsigned grid;           /* blocks */
    size_t shared;           /* bytes of shared memory */
};

enum { PARTS = 512, CACHE_MOST = 44 * 1024 }; /* bytes of shared memory: those of join(); greatest size of the cache */

/* The numbers of chunks that a thread keeps in registers: of narrow rows, and of wide rows of each compute type.
 * threads is the greatest number of threads of a block. */
struct Keeps {
    int narrow, wide_float, wide_double, threads;
};
constexpr Keeps KEEPS_ROW = {16, 4, 2, 256};

/* The attributes of a kernel with KEEPS_ROW. Three of its greatest blocks must fit on a multiprocessor, so that enough
 * loads are in flight. */
#define TG_ROW_KERNEL __global__ void __launch_bounds__(KEEPS_ROW.threads, 3)

template <class T> constexpr int kept_chunks(Keeps k, bool wide) {
    return !wide ? k.narrow : sizeof(T) == 8 ? k.wide_double : k.wide_float;
}

/* Returns the cache, which begins after the space of join(); NULL if rows are read again. */
template <class T> __device__ inline T *cache_of(const Plan &p, T *shared) {
    return p.cached ? shared + PARTS / sizeof(T) : nullptr;
}

/* Returns the plan for `units` units of the arrays x. `reads` is the number of arrays whose rows a group reads
 * together. `again` tells whether the group reads them again; only then a cache is useful. With compute type double,
 * rows are wide only if all arrays are float64. */
template <class T, int N>
inline Plan plan_rows(int64_t units, const Rows *const (&x)[N], Keeps keeps, int reads, bool again) {
    Plan p = {};
    p.wide = true;
    for (int k = 0; k < N; k++) p.wide = p.wide && wide_rows(*x[k]);
    p.dtype = common_dtype(x);
    if (sizeof(T) == 8 && p.dtype != TG_F64) p.wide = false;
    int64_t n = x[0]->n, chunks = p.wide ? n / WIDE : n, most = kept_chunks<T>(keeps, p.wide);
    p.threads = 1;
    while (p.threads < chunks && p.threads < 32) p.threads *= 2;
    while (p.threads * most < chunks && p.threads < keeps.threads) p.threads *= 2;
    p.kept = p.threads * most >= chunks;
    if (!p.kept) p.threads = keeps.threads;
    size_t bytes = (size_t)n * sizeof(T) * (size_t)reads;
    p.cached = !p.kept && again && bytes <= CACHE_MOST;
    p.groups = p.threads <= 32 ? 128 / p.threads : 1;
    p.shared = PARTS + (p.cached ? bytes : 0);
    int64_t blocks = (units + p.groups - 1) / p.groups;
    p.grid = (unsigned)(blocks < 1 << 30 ? blocks : 1 << 30);
    return p;
}

/* Returns the unit of this thread's group in iteration `block`. All threads of a block take part in the same number of
 * iterations, because they synchronize. So the unit may not exist; the group then works on a row of length 0. */
__device__ inline int64_t unit_of(const Plan &p, int64_t block) {
    return block * p.groups + (int)threadIdx.x / p.threads;
}
__device__ inline Group group_of(const Plan &p, void *shared, int64_t n) {
    return Group{(int)threadIdx.x % p.threads, p.threads, n, shared};
}

} // namespace tg

/* Launch kernel<T, W, D, KEPT>(plan, arguments...) by the plan, which was made with the same `keeps`. */
#define TG_LAUNCH_ROWS_OF(kernel, T, W, D, keeps, ctx, plan, ...)                                                    \
    do {                                                                                                             \
        unsigned threads_ = (unsigned)((plan).threads * (plan).groups);                                              \
        cudaStream_t stream_ = tg_cuda_of(ctx)->compute;                                                             \
        if ((plan).kept)                                                                                             \
            TG_LAUNCH((kernel<T, W, D, kept_chunks<T>(keeps, W == WIDE)>), (plan).grid, threads_, (plan).shared,     \
                      stream_, plan, __VA_ARGS__);                                                                   \
        else                                                                                                         \
            TG_LAUNCH((kernel<T, W, D, 0>), (plan).grid, threads_, (plan).shared, stream_, plan, __VA_ARGS__);       \
    } while (0)
#define TG_LAUNCH_FLOAT_ROWS(kernel, keeps, ctx, plan, ...)                                              \
    do {                                                                                                 \
        if (!(plan).wide)                                                                                \
            TG_LAUNCH_ROWS_OF(kernel, float, 1, ANY_DTYPE, keeps, ctx, plan, __VA_ARGS__);               \
        else if ((plan).dtype == TG_BF16)                                                                \
            TG_LAUNCH_ROWS_OF(kernel, float, WIDE, TG_BF16, keeps, ctx, plan, __VA_ARGS__);              \
        else if ((plan).dtype == TG_F16)                                                                 \
            TG_LAUNCH_ROWS_OF(kernel, float, WIDE, TG_F16, keeps, ctx, plan, __VA_ARGS__);               \
        else if ((plan).dtype == TG_F32)                                                                 \
            TG_LAUNCH_ROWS_OF(kernel, float, WIDE, TG_F32, keeps, ctx, plan, __VA_ARGS__);               \
        else                                                                                             \
            TG_LAUNCH_ROWS_OF(kernel, float, WIDE, ANY_DTYPE, keeps, ctx, plan, __VA_ARGS__);            \
    } while (0)
#define TG_LAUNCH_DOUBLE_ROWS(kernel, keeps, ctx, plan, ...)                                  \
    do {                                                                                      \
        if ((plan).wide)                                                                      \
            TG_LAUNCH_ROWS_OF(kernel, double, WIDE, TG_F64, keeps, ctx, plan, __VA_ARGS__);   \
        else                                                                                  \
            TG_LAUNCH_ROWS_OF(kernel, double, 1, ANY_DTYPE, keeps, ctx, plan, __VA_ARGS__);   \
    } while (0)

#endif
