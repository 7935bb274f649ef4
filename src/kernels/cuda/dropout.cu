/* The CUDA device's dropout slot: y (+)= x keep / (1 - p). Forward and backward are the same operation. The kept
 * elements are exactly those that the CPU keeps. */
#include "kernels/cuda/draws.h"
#include "kernels/cuda/slots.h"
#include "kernels/cuda/vector.h"

namespace tg {
namespace {

enum { DROPOUT_THREADS = 256 };

struct DropoutSide {
    char *data;
    int dtype, size;
};

struct DropoutJob {
    Draws draws;
    Walk<2> walk; /* y, x */
    DropoutSide y, x;
    int64_t n;
    bool whole, add; /* whole: both arrays are contiguous, and their quads are aligned */
    float p;
    double scale;
};

/* Computes four adjacent elements, in whole quads (vector.h). w has their draws. */
template <class T> __device__ inline void drop_quads(const DropoutJob &job, int64_t first, const uint32_t *w) {
    constexpr int Q = Quad<T>::size;
    Raw x[DRAWS / Q], y[DRAWS / Q];
    TG_UNROLL
    for (int q = 0; q < DRAWS / Q; q++) {
        fetch<Q>(x[q], job.x.data, job.x.size, first + q * Q, 1, Q, true);
        if (job.add) fetch<Q>(y[q], job.y.data, job.y.size, first + q * Q, 1, Q, true);
    }
    TG_UNROLL
    for (int q = 0; q < DRAWS / Q; q++) {
        T v[Q], old[Q];
        decode<T>(x[q], job.x.dtype, v);
        if (job.add) decode<T>(y[q], job.y.dtype, old);
        TG_UNROLL
        for (int k = 0; k < Q; k++) {
            T kept = tg_uniform_of_word(w[q * Q + k]) >= job.p ? multiplied(v[k], (T)job.scale) : (T)0;
            v[k] = job.add ? old[k] + kept : kept;
        }
        encode<T>(y[q], job.y.dtype, v);
        put<Q>(y[q], job.y.data, job.y.size, first + q * Q, 1, Q, true);
    }
}

template <class T> __global__ void __launch_bounds__(DROPOUT_THREADS) drop(DropoutJob job) {
    int64_t first = ((int64_t)blockIdx.x * DROPOUT_THREADS + threadIdx.x) * DRAWS - job.draws.lead;
    uint32_t w[1][DRAWS] = {};
    if (first >= job.n) return;
    draw(job.draws, first, job.n, w);
    if (job.whole && first + DRAWS <= job.n) {
        drop_quads<T>(job, first, w[0]);
        return;
    }
    TG_UNROLL
    for (int k = 0; k < DRAWS; k++) {
        int64_t at[2];
        if (first + k < 0 || first + k >= job.n) continue;
        offsets(job.walk, first + k, at);
        T x = load<T>(job.x.data, job.x.dtype, at[1]);
        T kept = tg_uniform_of_word(w[0][k]) >= job.p ? multiplied(x, (T)job.scale) : (T)0;
        if (job.add) kept = load<T>(job.y.data, job.y.dtype, at[0]) + kept;
        store<T>(job.y.data, job.y.dtype, at[0], kept);
    }
}

DropoutSide side_of(const tg_array &x) { return DropoutSide{(char *)x.data, x.dtype, element_size(x.dtype)}; }

} // namespace
} // namespace tg

extern "C" tg_status tg_cuda_dropout(tg_ctx *ctx, tg_array y, tg_array x, double p, const tg_draws *draws, bool add) {
    using namespace tg;
    bool wide = x.dtype == TG_F64;
    int quad = wide ? Quad<double>::size : Quad<float>::size;
    if (x.numel == 0) return TG_OK;
    const tg_array *arrays[2] = {&y, &x};
    Dims<2> m = dims_of(arrays);
    merge_dims(m);
    DropoutJob job = {};
    job.draws = draws_of(*draws);
    job.walk = walk_of(m, m.n);
    job.y = side_of(y);
    job.x = side_of(x);
    job.n = x.numel;
    job.add = add;
    job.p = (float)p;
    job.scale = p < 1 ? 1 / (1 - p) : 0;
    job.whole = m.n == 1 && m.stride[0][0] == 1 && m.stride[1][0] == 1 && job.draws.lead == 0 &&
                aligned(y.data, 16) && aligned(x.data, 16) && job.y.size * quad <= 16;
    cudaStream_t stream = tg_cuda_of(ctx)->compute;
    unsigned grid = (unsigned)ceil_div(draw_threads(job.draws, job.n), DROPOUT_THREADS);
    if (wide)
        TG_LAUNCH(drop<double>, grid, DROPOUT_THREADS, 0, stream, job);
    else
        TG_LAUNCH(drop<float>, grid, DROPOUT_THREADS, 0, stream, job);
    return tg_cuda_launched(ctx, "dropout");
}
