/* Reductions along rows and columns, and the positions of maxima and minima. */
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/span.h"

#define LOWEST_f32       -INFINITY
#define LOWEST_f64       -INFINITY
#define LOWEST_i64       INT64_MIN
#define HIGHEST_f32      INFINITY
#define HIGHEST_f64      INFINITY
#define HIGHEST_i64      INT64_MAX
#define IS_NAN_f32(x)    isnan(x)
#define IS_NAN_f64(x)    isnan(x)
#define IS_NAN_i64(x)    ((void)(x), false)
#define IS_NAN           SPAN_CAT(IS_NAN_, TG_T)
#define MASK_f32         int32_t
#define MASK_f64         int64_t
#define MASK_i64         int64_t
#define SCALED_f32(x, s) ((s) == 1 ? (x) : (float)((x) * (s)))
#define SCALED_f64(x, s) ((x) * (s))
#define SCALED_i64(x, s) ((s) == 1 ? (x) : tg_f64_to_i64((double)(x) * (s)))
#define SCALED           SPAN_CAT(SCALED_, TG_T)

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX2__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif
enum { LANES = VEC_BYTES / (int)sizeof(T), VECS = 4 };
typedef T vec __attribute__((vector_size(VEC_BYTES)));
typedef SPAN_CAT(MASK_, TG_T) vec_mask __attribute__((vector_size(VEC_BYTES)));
#define INLINE static inline __attribute__((always_inline))

/* Returns the result of a reduction of no elements. */
INLINE T identity(tg_reduction kind) {
    switch (kind) {
    case TG_PROD:
        return 1;
    case TG_MAX:
    case TG_ARGMAX:
        return SPAN_CAT(LOWEST_, TG_T);
    case TG_MIN:
    case TG_ARGMIN:
        return SPAN_CAT(HIGHEST_, TG_T);
    default:
        return 0;
    }
}

/* Combines two results. For maxima and minima NaN wins over any number. */
INLINE T join(tg_reduction kind, T a, T b) {
    switch (kind) {
    case TG_PROD:
        return a * b;
    case TG_MAX:
    case TG_ARGMAX:
        return a > b ? a : a <= b ? b : a + b;
    case TG_MIN:
    case TG_ARGMIN:
        return a < b ? a : a >= b ? b : a + b;
    default:
        return a + b;
    }
}

/* Combines a vector of elements, or for TG_SUMSQ their squares, with acc, lane by lane. */
INLINE void step(tg_reduction kind, vec *acc, const T *at) {
    vec x;
    memcpy(&x, at, sizeof x);
    vec_mask take = ~((x <= 0) | (x >= 0)); /* lanes with NaN */
    switch (kind) {
    case TG_SUM:
        *acc += x;
        return;
    case TG_SUMSQ:
        *acc += x * x;
        return;
    case TG_PROD:
        *acc *= x;
        return;
    case TG_MAX:
        take |= x > *acc;
        break;
    default:
        take |= x < *acc;
    }
    *acc = (vec)(((vec_mask)x & take) | ((vec_mask)*acc & ~take));
}

/* Reduces n elements in the lanes of VECS vectors, and then the lanes pairwise. */
INLINE T run_of(tg_reduction kind, int64_t n, const T *x) {
    vec acc[VECS];
    T lane[VECS * LANES];
    int64_t i = 0;
    for (int l = 0; l < VECS * LANES; l++) lane[l] = identity(kind);
    memcpy(acc, lane, sizeof acc);
    for (; i + VECS * LANES <= n; i += VECS * LANES)
        for (int v = 0; v < VECS; v++) step(kind, &acc[v], x + i + v * LANES);
    if (i < n) {
        memcpy(lane, x + i, (size_t)(n - i) * sizeof(T));
        for (int v = 0; v < VECS; v++) step(kind, &acc[v], lane + v * LANES);
    }
    memcpy(lane, acc, sizeof acc);
    for (int half = VECS * LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) lane[l] = join(kind, lane[l], lane[l + half]);
    return lane[0];
}

/* Calls run_of with a constant kind, so that each kind has a loop of its own. */
static T reduce_run(tg_reduction kind, int64_t n, const T *x) {
    switch (kind) {
    case TG_SUM:
        return run_of(TG_SUM, n, x);
    case TG_SUMSQ:
        return run_of(TG_SUMSQ, n, x);
    case TG_PROD:
        return run_of(TG_PROD, n, x);
    case TG_MAX:
    case TG_ARGMAX:
        return run_of(TG_MAX, n, x);
    default:
        return run_of(TG_MIN, n, x);
    }
}

/* Combines any number of results pairwise and in order: level l holds the combination of 2^l results if bit l of
 * count is set. */
typedef struct cascade {
    uint64_t count;
    T level[64];
} cascade;

static void cascade_push(cascade *c, tg_reduction kind, T v) {
    int l = 0;
    for (; c->count >> l & 1; l++) v = join(kind, c->level[l], v);
    c->level[l] = v;
    c->count++;
}

static T cascade_end(const cascade *c, tg_reduction kind) {
    bool any = false;
    T v = identity(kind);
    for (int l = 0; c->count >> l; l++) {
        if (!(c->count >> l & 1)) continue;
        v = any ? join(kind, c->level[l], v) : c->level[l];
        any = true;
    }
    return v;
}

/* Returns the offset in the input of the element with flat index i over these dims, in elements. *out receives the
 * offset in the output. */
static int64_t locate(const tg_reduce_dims *d, int64_t i, int64_t *out) {
    int64_t in = 0;
    *out = 0;
    for (int k = d->n - 1; k >= 0; k--) {
        int64_t at = i % d->shape[k];
        i /= d->shape[k];
        in += at * d->in[k];
        *out += at * d->out[k];
    }
    return in;
}

/* Returns the reduced elements from i on, at most TG_REDUCE_RUN and not beyond `end`: in place if they are contiguous
 * and of type T, otherwise copied into buf. *n receives their number. */
static const T *next_run(const tg_reduce_plan *m, const char *base, int64_t i, int64_t end, T *buf, int64_t *n) {
    const tg_reduce_dims *d = &m->reduced;
    int64_t inner = d->n ? d->shape[d->n - 1] : 1, stride = d->n ? d->in[d->n - 1] : 1, unused, have = 0;
    int64_t want = end - i < TG_REDUCE_RUN ? end - i : TG_REDUCE_RUN;
    *n = want;
    if (m->in_dtype == SPAN_DTYPE && stride == 1 && i % inner + want <= inner)
        return (const T *)(base + locate(d, i, &unused) * m->in_size);
    while (have < want) {
        int64_t left = inner - (i + have) % inner, take = want - have < left ? want - have : left;
        span_load(buf + have, base + locate(d, i + have, &unused) * m->in_size, m->in_dtype, stride, take);
        have += take;
    }
    return buf;
}

/* Scales the n results in v, adds the present values of the output if m->add is true, and stores the sums. Overwrites
 * v. */
static void finish(const tg_reduce_plan *m, char *out, int64_t stride, int64_t n, T *v) {
    for (int64_t j = 0; j < n; j++) v[j] = SCALED(v[j], m->scale);
    if (m->add) {
        T old[TG_REDUCE_RUN];
        old[0] = 0; /* some compilers warn of it, because they do not know that n is above 0 */
        span_load(old, out, m->out_dtype, stride, n);
        for (int64_t j = 0; j < n; j++) v[j] += old[j];
    }
    span_store(out, m->out_dtype, stride, n, v);
}

/* Returns the end of a part, as an index of reduced elements. */
static int64_t part_end(const tg_reduce_plan *m, int64_t part) {
    int64_t end = (part + 1) * m->part_len;
    return end < m->reduced.count ? end : m->reduced.count;
}

/* Reduces the elements of one output and one part. */
static void reduce_row(const tg_reduce_plan *m, int64_t tile) {
    int64_t part = tile % m->parts, end = part_end(m, part), n, out;
    const char *base = m->in + locate(&m->kept, tile / m->parts, &out) * m->in_size;
    T buf[TG_REDUCE_RUN], v;
    if (m->reduced.count == 0) {
        v = identity(m->kind);
    } else if (end - part * m->part_len <= TG_REDUCE_RUN) {
        const T *x = next_run(m, base, part * m->part_len, end, buf, &n);
        v = reduce_run(m->kind, n, x);
    } else {
        cascade c;
        c.count = 0;
        for (int64_t i = part * m->part_len; i < end; i += n) {
            const T *x = next_run(m, base, i, end, buf, &n);
            cascade_push(&c, m->kind, reduce_run(m->kind, n, x));
        }
        v = cascade_end(&c, m->kind);
    }
    finish(m, m->out + (out + part * m->part_step) * m->out_size, 1, 1, &v);
}

/* Combines x with acc, element by element; if `first`, sets acc to x. If `squares`, the elements of x are squared
 * first. */
static void fold(tg_reduction kind, bool first, bool squares, int64_t n, T *restrict acc, const T *restrict x) {
    if (squares)
        for (int64_t j = 0; j < n; j++) acc[j] = first ? x[j] * x[j] : acc[j] + x[j] * x[j];
    else if (first)
        memcpy(acc, x, (size_t)n * sizeof(T));
    else if (kind == TG_PROD)
        for (int64_t j = 0; j < n; j++) acc[j] *= x[j];
    else if (kind == TG_MAX)
        for (int64_t j = 0; j < n; j++) acc[j] = join(TG_MAX, acc[j], x[j]);
    else if (kind == TG_MIN)
        for (int64_t j = 0; j < n; j++) acc[j] = join(TG_MIN, acc[j], x[j]);
    else
        for (int64_t j = 0; j < n; j++) acc[j] += x[j];
}

/* Combines rows in blocks of TG_REDUCE_BLOCK rows, then these in blocks of blocks, and so on: for whole rows, what the
 * cascade does for single results. */
typedef struct blocks {
    int filled[TG_REDUCE_LEVELS]; /* rows or blocks that each level has combined */
    T level[TG_REDUCE_LEVELS][TG_REDUCE_RUN];
} blocks;

static void blocks_push(blocks *b, tg_reduction kind, int64_t n, const T *x) {
    fold(kind, b->filled[0] == 0, kind == TG_SUMSQ, n, b->level[0], x);
    b->filled[0]++;
    for (int l = 0; l + 1 < TG_REDUCE_LEVELS && b->filled[l] == TG_REDUCE_BLOCK; l++) {
        fold(kind, b->filled[l + 1] == 0, false, n, b->level[l + 1], b->level[l]);
        b->filled[l + 1]++;
        b->filled[l] = 0;
    }
}

static T *blocks_end(blocks *b, tg_reduction kind, int64_t n) {
    T *sum = NULL;
    for (int l = 0; l < TG_REDUCE_LEVELS; l++) {
        if (!b->filled[l]) continue;
        if (sum) fold(kind, false, false, n, b->level[l], sum);
        sum = b->level[l];
    }
    for (int64_t j = 0; !sum && j < n; j++) b->level[0][j] = identity(kind);
    return sum ? sum : b->level[0];
}

/* Reduces the elements of up to TG_REDUCE_RUN neighboring outputs and one part. */
static void reduce_col(const tg_reduce_plan *m, int64_t tile) {
    const tg_reduce_dims *kept = &m->kept;
    int64_t width = kept->n ? kept->shape[kept->n - 1] : 1, across = (width + TG_REDUCE_RUN - 1) / TG_REDUCE_RUN;
    int64_t part = tile % m->parts, group = tile / m->parts, first = group % across * TG_REDUCE_RUN, out, unused;
    int64_t n = width - first < TG_REDUCE_RUN ? width - first : TG_REDUCE_RUN;
    int64_t in_step = kept->n ? kept->in[kept->n - 1] : 1, out_step = kept->n ? kept->out[kept->n - 1] : 1;
    const char *base = m->in + locate(kept, group / across * width + first, &out) * m->in_size;
    bool direct = m->in_dtype == SPAN_DTYPE && in_step == 1;
    blocks b;
    memset(b.filled, 0, sizeof b.filled);
    for (int64_t i = part * m->part_len, end = part_end(m, part); i < end; i++) {
        const char *row = base + locate(&m->reduced, i, &unused) * m->in_size;
        T buf[TG_REDUCE_RUN];
        if (!direct) span_load(buf, row, m->in_dtype, in_step, n);
        blocks_push(&b, m->kind, n, direct ? (const T *)row : buf);
    }
    T *sum = blocks_end(&b, m->kind, n);
    finish(m, m->out + (out + part * m->part_step) * m->out_size, out_step, n, sum);
}

/* Returns the first position of v, which is in x; the first position of a NaN if v is NaN. */
static int64_t find(int64_t n, const T *x, T v) {
    int64_t j = 0;
    while (j + 1 < n && x[j] != v && !(IS_NAN(v) && IS_NAN(x[j]))) j++;
    return j;
}

/* Finds the best value run by run, and its position in the run that has it. */
static void reduce_arg(const tg_reduce_plan *m, int64_t tile) {
    tg_reduction kind = m->kind;
    int64_t out, at = 0, n;
    const char *base = m->in + locate(&m->kept, tile, &out) * m->in_size;
    T buf[TG_REDUCE_RUN], best = identity(kind);
    for (int64_t i = 0; i < m->reduced.count; i += n) {
        const T *x = next_run(m, base, i, m->reduced.count, buf, &n);
        T v = reduce_run(kind, n, x);
        bool better = kind == TG_ARGMAX ? v > best : v < best;
        if (i == 0 || better || (IS_NAN(v) && !IS_NAN(best))) {
            best = v;
            at = i + find(n, x, v);
        }
    }
    char *dst = m->out + out * m->out_size;
    if (m->out_dtype == TG_I64)
        memcpy(dst, &at, sizeof at);
    else
        memcpy(dst, &(int32_t){(int32_t)at}, sizeof(int32_t));
}

static int64_t last_tile(const tg_reduce_plan *m, int64_t end) {
    return end * m->per_unit < m->tiles ? end * m->per_unit : m->tiles;
}

static void rows(void *plan, int64_t begin, int64_t end) {
    const tg_reduce_plan *m = plan;
    for (int64_t t = begin * m->per_unit, last = last_tile(m, end); t < last; t++) reduce_row(m, t);
}

static void cols(void *plan, int64_t begin, int64_t end) {
    const tg_reduce_plan *m = plan;
    for (int64_t t = begin * m->per_unit, last = last_tile(m, end); t < last; t++) reduce_col(m, t);
}

static void arg(void *plan, int64_t begin, int64_t end) {
    const tg_reduce_plan *m = plan;
    for (int64_t t = begin * m->per_unit, last = last_tile(m, end); t < last; t++) reduce_arg(m, t);
}

const tg_reduce_kernels TG_K(reduce_kernels) = {.rows = rows, .cols = cols, .arg = arg};
