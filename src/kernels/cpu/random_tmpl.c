/* Uniform and normal draws. Each element is computed from the number of its draw. */
#include "base/dtype.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/span.h"
#include "kernels/philox.h"

#define IS_DOUBLE     (sizeof(T) == sizeof(double))
#define NORMAL_CAT(t) SPAN_CAT(tg_normal_, t)
#define NORMAL        NORMAL_CAT(TG_T)

static T unit_uniform(uint32_t first, uint32_t second) {
    return IS_DOUBLE ? (T)tg_uniform_of_words(first, second) : (T)tg_uniform_of_word(first);
}

/* Computes n uniform numbers. The bounds `least` and `below` ensure that no number leaves [a, b), neither by rounding
 * here nor by rounding to the tensor's dtype. */
static void uniforms(const tg_random_job *job, const uint32_t *first, const uint32_t *second, int64_t n, T *y) {
    T a = (T)job->a, width = (T)(job->b - job->a), least = (T)job->least, below = (T)job->below;
    for (int64_t i = 0; i < n; i++) {
        T v = a + width * unit_uniform(first[i], second[i]);
        v = v < below ? v : below;
        y[i] = v > least ? v : least;
    }
}

static void normals(const tg_random_job *job, const uint32_t *first, const uint32_t *second, int64_t n, T *y) {
    T mean = (T)job->a, deviation = (T)job->b;
    for (int64_t i = 0; i < n; i++) y[i] = mean + deviation * NORMAL(first[i], second[i]);
}

/* Fills elements [i, i + n), which begin at `at` and are `stride` elements apart. */
static void draw_run(const tg_random_job *job, int64_t i, int64_t n, char *at, int64_t stride) {
    uint32_t first[TG_RANDOM_TILE], second[TG_RANDOM_TILE];
    T y[TG_RANDOM_TILE];
    bool normal = job->kind == TG_RANDOM_NORMAL;
    tg_draws_row(&job->draws, i, n, 0, first);
    if (normal || IS_DOUBLE) tg_draws_row(&job->draws, i, n, 1, second);
    if (normal)
        normals(job, first, second, n, y);
    else
        uniforms(job, first, IS_DOUBLE ? second : first, n, y);
    span_store(at, job->out.dtype, stride, n, y);
}

static int64_t offset_of(const tg_array *x, int64_t i) {
    int64_t at = 0;
    for (int d = x->ndim - 1; d >= 0; d--) {
        at += i % x->shape[d] * x->stride[d];
        i /= x->shape[d];
    }
    return at;
}

static void fill(void *arg, int64_t begin, int64_t end) {
    const tg_random_job *job = arg;
    const tg_array *x = &job->out;
    int64_t last = end * job->per_unit < x->numel ? end * job->per_unit : x->numel, n;
    for (int64_t i = begin * job->per_unit; i < last; i += n) {
        int64_t left = job->inner - i % job->inner, at = x->contiguous ? i : offset_of(x, i);
        n = last - i < left ? last - i : left;
        n = n < TG_RANDOM_TILE ? n : TG_RANDOM_TILE;
        draw_run(job, i, n, (char *)x->data + at * (int64_t)tg_dtype_size(x->dtype),
                 x->contiguous || !x->ndim ? 1 : x->stride[x->ndim - 1]);
    }
}

const tg_random_kernels TG_K(random_kernels) = {.fill = fill};
