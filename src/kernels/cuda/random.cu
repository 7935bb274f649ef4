/* The CUDA device's random slot. Integers and float64 are drawn in float64, all other dtypes in float32, as on the
 * CPU. */
#include "kernels/cuda/draws.h"
#include "kernels/cuda/slots.h"
#include "kernels/cuda/vector.h"
#include "kernels/uniform.h"

namespace tg {
namespace {

enum { RANDOM_THREADS = 256 };

struct RandomJob {
    Draws draws;
    Walk<1> walk;
    char *out;
    int dtype, size;
    int64_t n;
    bool whole; /* four adjacent elements can be stored as quads */
    /* a, width: the beginning and the length of [a, b), or the mean and the standard deviation of normal draws. least,
     * below: the bounds of uniform draws (uniform.h). */
    double a, width, least, below;
};

__device__ inline float unit(uint32_t first, uint32_t, float) { return tg_uniform_of_word(first); }
__device__ inline double unit(uint32_t first, uint32_t second, double) { return tg_uniform_of_words(first, second); }

/* Returns a uniform number in [a, b). Clamps it, because rounding, here or to the tensor's dtype, could leave [a, b).
 * The product is rounded separately, as on the CPU. */
template <class T> __device__ inline T uniform_of(const RandomJob &job, uint32_t first, uint32_t second) {
    T v = added((T)job.a, multiplied((T)job.width, unit(first, second, T())));
    T least = (T)job.least, below = (T)job.below;
    v = v < below ? v : below;
    return v > least ? v : least;
}

/* Returns the normal number of a draw with these two words (Box-Muller). u is the uniform number of the first word. If
 * u is near 1, and so the radius near 0, the logarithm is computed from 1 - u, which is exact; in double it always is.
 * In float, the angle is reduced to an eighth of a turn in integers. */
__device__ inline float normal_of(uint32_t first, uint32_t second, float) {
    float u = ((float)first + 0.5f) * 0x1p-32f, rest = ((float)~first + 0.5f) * 0x1p-32f;
    float l = first >= 0xc0000000u ? log1pf(-rest) : logf(u);
    uint32_t quarter = (second + 0x20000000u) >> 30;
    float angle = (float)(int32_t)(second - (quarter << 30)) * 0x1p-30f * 1.57079633f;
    float y = quarter & 1 ? sinf(angle) : cosf(angle);
    return sqrtf(-2.0f * l) * (quarter == 1 || quarter == 2 ? -y : y);
}

__device__ inline double normal_of(uint32_t first, uint32_t second, double) {
    double radius = sqrt(-2 * log1p(-((double)~first + 0.5) * 0x1p-32));
    return radius * cos(6.283185307179586477 * (double)(int32_t)second * 0x1p-32);
}

template <class T, bool NORMAL> __global__ void __launch_bounds__(RANDOM_THREADS) random_fill(RandomJob job) {
    constexpr int Q = Quad<T>::size, PLANES = NORMAL || sizeof(T) == 8 ? 2 : 1;
    int64_t first = ((int64_t)blockIdx.x * RANDOM_THREADS + threadIdx.x) * DRAWS - job.draws.lead;
    uint32_t w[PLANES][DRAWS] = {};
    T y[DRAWS];
    if (first >= job.n) return;
    draw(job.draws, first, job.n, w);
    TG_UNROLL
    for (int k = 0; k < DRAWS; k++) {
        if constexpr (NORMAL)
            y[k] = (T)job.a + (T)job.width * normal_of(w[0][k], w[1][k], T());
        else
            y[k] = uniform_of<T>(job, w[0][k], w[PLANES - 1][k]);
    }
    if (job.whole && first + DRAWS <= job.n) {
        TG_UNROLL
        for (int k = 0; k < DRAWS; k += Q) {
            Raw r;
            encode<T>(r, job.dtype, y + k);
            put<Q>(r, job.out, job.size, first + k, 1, Q, true);
        }
        return;
    }
    TG_UNROLL
    for (int k = 0; k < DRAWS; k++) {
        int64_t at;
        if (first + k < 0 || first + k >= job.n) continue;
        offsets(job.walk, first + k, &at);
        store<T>(job.out, job.dtype, at, y[k]);
    }
}

template <class T> void launch_random(const RandomJob &job, bool normal, cudaStream_t stream) {
    unsigned grid = (unsigned)ceil_div(draw_threads(job.draws, job.n), RANDOM_THREADS);
    if (normal)
        TG_LAUNCH((random_fill<T, true>), grid, RANDOM_THREADS, 0, stream, job);
    else
        TG_LAUNCH((random_fill<T, false>), grid, RANDOM_THREADS, 0, stream, job);
}

} // namespace
} // namespace tg

extern "C" tg_status tg_cuda_random(tg_ctx *ctx, tg_random kind, tg_array out, double a, double b,
                                    const tg_draws *draws) {
    using namespace tg;
    bool normal = kind == TG_RANDOM_NORMAL, wide = out.dtype == TG_F64 || !is_real(out.dtype);
    if (out.numel == 0) return TG_OK;
    const tg_array *arrays[1] = {&out};
    Dims<1> m = dims_of(arrays);
    merge_dims(m);
    RandomJob job = {};
    job.draws = draws_of(*draws);
    job.walk = walk_of(m, m.n);
    job.out = (char *)out.data;
    job.dtype = out.dtype;
    job.size = element_size(out.dtype);
    job.n = out.numel;
    job.whole = m.n == 1 && m.stride[0][0] == 1 && aligned(out.data, 16) && job.draws.lead == 0;
    job.a = a;
    job.width = normal ? b : b - a;
    tg_uniform_ends((tg_dtype)out.dtype, a, b, &job.least, &job.below);
    cudaStream_t stream = tg_cuda_of(ctx)->compute;
    if (wide)
        launch_random<double>(job, normal, stream);
    else
        launch_random<float>(job, normal, stream);
    return tg_cuda_launched(ctx, "random");
}
