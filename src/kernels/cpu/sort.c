/* The CPU's sort slot. Elements are mapped to integer keys of the same order, which are sorted together with their
 * positions. Long rows are sorted by radix sort over 8-bit digits, from the last digit to the first (Knuth, The Art of
 * Computer Programming, volume 3, 5.2.5). Rows of a few elements are sorted by insertion. If only a few of many
 * elements are wanted, a heap holds those that come first in sorted order among the elements seen so far. */
#include "base/dtype.h"
#include "base/runtime.h"
#include "kernels/convert.h"
#include "kernels/cpu/required.h"
#include "kernels/cpu/rows.h"

enum {
    PARALLEL_FROM = 16384, /* least number of elements of all rows for which several threads are used */
    FEW = 32,              /* greatest number of elements of a row that is sorted by insertion */
    DIGITS = 8,            /* digits of a key */
    DIGIT = 256            /* values of a digit */
};

typedef struct pair {
    uint64_t key;
    int64_t at;
} pair;

typedef struct sort_job {
    tg_rows x, y, order;
    bool falling;
    bool select;      /* few elements are wanted: uses the heap */
    int64_t per_unit; /* rows of a unit */
    pair *scratch;    /* `slice` pairs for each unit, which sorts its rows there one at a time */
    int64_t slice;
} sort_job;

/* ---- Keys ---- */

/* Returns the key of v. -0 and 0 have the same key, and every NaN has the greatest key. */
static uint64_t key_of_f32(float v) {
    uint32_t u = tg_bits_f32(v == 0 ? 0 : v);
    return v != v ? UINT32_MAX : u >> 31 ? ~u : u | 0x80000000u;
}

static uint64_t key_of_f64(double v) {
    uint64_t u;
    v = v == 0 ? 0 : v;
    memcpy(&u, &v, sizeof u);
    return v != v ? UINT64_MAX : u >> 63 ? ~u : u | 1ull << 63;
}

/* Fills p from a row of this type, and leaves the switch. For falling order all bits of the keys are flipped. */
#define KEYS(type, key)                                                                \
    for (int64_t i = 0; i < x->n; i++) {                                               \
        type v = ((const type *)row)[i * x->stride];                                   \
        p[i] = (pair){(key) ^ flip, i};                                                \
    }                                                                                  \
    break

/* Fills p with the keys and positions of row r. */
static void load_row(const tg_rows *x, int64_t r, bool falling, pair *p) {
    const char *row = tg_row_at(x, r, 0);
    uint64_t flip = falling ? UINT64_MAX : 0;
    if (tg_dtype_size(x->dtype) < 8) flip &= UINT32_MAX;
    switch (x->dtype) {
    case TG_F32: KEYS(float, key_of_f32(v));
    case TG_F64: KEYS(double, key_of_f64(v));
    case TG_BF16: KEYS(uint16_t, key_of_f32(tg_bf16_to_f32(v)));
    case TG_F16: KEYS(uint16_t, key_of_f32(tg_f16_to_f32(v)));
    case TG_I64: KEYS(int64_t, (uint64_t)v ^ 1ull << 63);
    case TG_I32: KEYS(int32_t, (uint32_t)v ^ 0x80000000u);
    case TG_I16: KEYS(int16_t, (uint32_t)v ^ 0x80000000u);
    case TG_I8: KEYS(int8_t, (uint32_t)v ^ 0x80000000u);
    case TG_U64: KEYS(uint64_t, v);
    case TG_U32: KEYS(uint32_t, v);
    case TG_U16: KEYS(uint16_t, v);
    default: KEYS(uint8_t, (uint64_t)(x->dtype == TG_BOOL ? v != 0 : v));
    }
}

/* ---- A few elements ---- */

/* Sorts n pairs by insertion. */
static void insert_all(pair *p, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        pair v = p[i];
        int64_t j = i;
        for (; j > 0 && p[j - 1].key > v.key; j--) p[j] = p[j - 1];
        p[j] = v;
    }
}

/* Returns whether a comes before b in sorted order. */
static bool before(const pair *a, const pair *b) { return a->key != b->key ? a->key < b->key : a->at < b->at; }

/* Puts v into the heap of n pairs, at the free place `at` or below it. In the heap no parent comes before its children
 * in sorted order. */
static void sift(pair *heap, int64_t n, int64_t at, pair v) {
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(&heap[child], &heap[child + 1])) child++;
        if (!before(&v, &heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = v;
}

/* Stores in p[0] to p[k - 1], sorted, the k of the n pairs that come first in sorted order. Goes through the pairs, and
 * keeps in a heap those k of them that so far come first in sorted order, with the last of these on top. At the end
 * empties the heap. */
static void select_first(pair *p, int64_t n, int64_t k) {
    for (int64_t i = k / 2 - 1; i >= 0; i--) sift(p, k, i, p[i]);
    for (int64_t i = k; i < n; i++)
        if (p[i].key < p[0].key) sift(p, k, 0, p[i]); /* of equal elements the earlier one is kept */
    for (int64_t i = k - 1; i > 0; i--) {
        pair last = p[i];
        p[i] = p[0];
        sift(p, i, 0, last);
    }
}

/* ---- Many elements ---- */

/* Distributes the pairs into `to` by one digit of their keys, in a stable way. starts holds how often each value of the
 * digit occurs, and is overwritten. */
static void distribute(const pair *from, pair *to, int64_t n, int shift, int64_t *starts) {
    int64_t sum = 0;
    for (int d = 0; d < DIGIT; d++) {
        int64_t count = starts[d];
        starts[d] = sum;
        sum += count;
    }
    for (int64_t i = 0; i < n; i++) to[starts[from[i].key >> shift & (DIGIT - 1)]++] = from[i];
}

/* Sorts n pairs. p has space for 2 n; returns the half that holds the sorted pairs. Skips digits that are equal in all
 * keys. */
static const pair *sort_all(pair *p, int64_t n) {
    int64_t counts[DIGITS][DIGIT] = {{0}};
    pair *other = p + n;
    for (int64_t i = 0; i < n; i++)
        for (int d = 0; d < DIGITS; d++) counts[d][p[i].key >> (8 * d) & (DIGIT - 1)]++;
    for (int d = 0; d < DIGITS; d++) {
        if (counts[d][p[0].key >> (8 * d) & (DIGIT - 1)] == n) continue;
        distribute(p, other, n, 8 * d, counts[d]);
        pair *t = p;
        p = other;
        other = t;
    }
    return p;
}

/* ---- Rows ---- */

/* Stores the elements that come first in sorted order, as many as a row of y has, and their positions. */
static void store_row(const sort_job *job, int64_t r, const pair *p) {
    const char *x = tg_row_at(&job->x, r, 0);
    char *y = tg_row_at(&job->y, r, 0);
    int64_t *order = (int64_t *)tg_row_at(&job->order, r, 0), size = job->x.size;
    for (int64_t i = 0; i < job->y.n; i++) {
        memcpy(y + i * job->y.stride * size, x + p[i].at * job->x.stride * size, (size_t)size);
        order[i * job->order.stride] = p[i].at;
    }
}

static void sort_rows(void *arg, int64_t begin, int64_t end) {
    const sort_job *job = arg;
    int64_t n = job->x.n;
    for (int64_t u = begin; u < end; u++) {
        pair *p = job->scratch + u * job->slice;
        for (int64_t r = u * job->per_unit; r < (u + 1) * job->per_unit && r < job->x.count; r++) {
            const pair *sorted = p;
            load_row(&job->x, r, job->falling, p);
            if (job->select)
                select_first(p, n, job->y.n);
            else if (n <= FEW)
                insert_all(p, n);
            else
                sorted = sort_all(p, n);
            store_row(job, r, sorted);
        }
    }
}

tg_status tg_cpu_sort(tg_ctx *ctx, tg_array y, tg_array order, tg_array x, bool falling) {
    sort_job job = {.x = tg_rows_of(&x, 1), .y = tg_rows_of(&y, 1), .order = tg_rows_of(&order, 1), .falling = falling};
    if (y.numel == 0) return TG_OK;
    bool parallel = x.numel >= PARALLEL_FROM;
    int64_t count = job.x.count, most = parallel ? tg_runtime_of(ctx)->threads : 1, units = count < most ? count : most;
    job.per_unit = (count + units - 1) / units;
    job.select = job.y.n <= job.x.n / 16;
    job.slice = (job.select ? 1 : 2) * job.x.n;
    job.scratch = tg_workspace(ctx, TG_WS_SORT, (size_t)(units * job.slice) * sizeof(pair));
    if (!job.scratch) return TG_ERR_MEMORY;
    if (parallel)
        tg_parallel_run(ctx, units, sort_rows, &job);
    else
        sort_rows(&job, 0, units);
    return TG_OK;
}
