// kernels.cu - example kernels for the test of the emulator, right ones and wrong ones. nvcc compiles the same file.
#include "kernels.h"
#include <cuda_runtime.h>
#ifdef __CUDACC__
#define TG_LAUNCH(kernel, grid, block, shmem, stream, ...) kernel<<<(grid), (block), (shmem), (stream)>>>(__VA_ARGS__)
#define TG_DYN_SHARED(type, name)                                                                                      \
    extern __shared__ __align__(16) unsigned char name##_bytes[];                                                      \
    type *name = reinterpret_cast<type *>(name##_bytes)
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <curand_philox4x32_x.h>

namespace {

template <class T> __device__ float load(const T *p) { return static_cast<float>(*p); }
template <> __device__ float load(const __nv_bfloat16 *p) { return __bfloat162float(*p); }

__device__ float warp_sum(float v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}

// y[row] = the sum of the row. If with_barrier is false, the barrier before the sum of the warps' sums is missing.
template <class T, bool with_barrier> __global__ void row_sum(const T *x, float *y, int columns) {
    __shared__ float part[32];
    const T *row = x + static_cast<size_t>(blockIdx.x) * columns;
    float v = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) v += load(row + i);
    v = warp_sum(v);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    if (with_barrier) __syncthreads();
    if (threadIdx.x >= 32) return;
    v = warp_sum(threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) y[blockIdx.x] = v;
}

__global__ void __launch_bounds__(256) axpy(float a, const float *__restrict__ x, float *__restrict__ y, size_t n) {
    size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}

template <class T, int width> __global__ void scale_vectors(T *x, T factor, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * width;
    for (int k = 0; k < width && i + k < n; k++) x[i + k] *= factor;
}

__global__ void transpose(const float *x, float *y, int n) {
    TG_DYN_SHARED(float, tile);
    int bx = blockIdx.x * 16, by = blockIdx.y * 16, tx = threadIdx.x, ty = threadIdx.y;
    tile[ty * 17 + tx] = x[static_cast<size_t>(by + ty) * n + bx + tx];
    __syncthreads();
    y[static_cast<size_t>(bx + ty) * n + by + tx] = tile[tx * 17 + ty];
}

__global__ void add_all(float *sum, const float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(sum, x[i]); // the order of float additions is that of threads and blocks
}

__global__ void atomics(unsigned long long *out, double *sum, int *most) {
    atomicAdd(out, 1ull);
    atomicAdd(sum, 0.5);
    atomicMax(most, static_cast<int>(threadIdx.x));
    atomicCAS(out + 1, 0ull, 7ull);
    atomicExch(out + 2, 9ull);
}

// Votes, all kinds of shuffles and counting barriers, each compared with the expected result; wrong[0] counts errors.
__global__ void warp_operations(int *wrong) {
    unsigned lane = threadIdx.x & 31;
    int bad = 0;
    bad += __ballot_sync(~0u, lane & 1) != 0xaaaaaaaau;
    bad += !__any_sync(~0u, lane == 3) || __any_sync(~0u, 0) || __all_sync(~0u, lane != 3) || !__all_sync(~0u, 1);
    bad += __shfl_sync(~0u, lane, 5) != 5 || __shfl_sync(~0u, lane, 9, 8) != (lane & ~7u) + 1;
    bad += __shfl_down_sync(~0u, lane, 1) != (lane < 31 ? lane + 1 : lane);
    bad += __shfl_up_sync(~0u, lane, 2, 16) != ((lane & 15) < 2 ? lane : lane - 2);
    bad += __shfl_xor_sync(~0u, static_cast<double>(lane), 8) != static_cast<double>(lane ^ 8);
    __syncwarp();
    bad += __syncthreads_count(threadIdx.x < 40) != 40;
    bad += !__syncthreads_or(threadIdx.x == 63) || __syncthreads_and(threadIdx.x != 63);
    if (bad) atomicAdd(wrong, bad);
}

__global__ void draw_philox(unsigned *out, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint4 r = curand_Philox4x32_10(make_uint4(i, 0, 0, 0), make_uint2(1, 2));
    out[i] = r.x ^ r.y ^ r.z ^ r.w;
}

__global__ void bug_unset(float *y) {
    __shared__ float s[33];
    s[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x + 1]; // the last element was never written
}

__global__ void bug_diverge(float *y) {
    if ((threadIdx.x & 31) < 16)
        __syncthreads(); // half of each warp waits here, the other half below
    else
        y[threadIdx.x] = __shfl_xor_sync(~0u, y[threadIdx.x], 1);
}

__global__ void bug_past_end(float *y) { y[threadIdx.x + 1] = 1.0f; }

// Both blocks write all of y; which one is last is undefined.
__global__ void bug_blocks_race(float *y) { y[threadIdx.x] = static_cast<float>(blockIdx.x); }

// A warp overwrites its part before all have read the previous one.
__global__ void bug_reused(float *y) {
    __shared__ float part[32];
    float sum = 0;
    for (int turn = 1; turn <= 2; turn++) {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = static_cast<float>(turn);
        __syncthreads();
        for (unsigned w = 0; w < blockDim.x / 32; w++) sum += part[w];
    }
    y[threadIdx.x] = sum;
}

unsigned blocks(size_t n, unsigned of) { return static_cast<unsigned>((n + of - 1) / of); }

} // namespace

cudaError_t k_row_sum(const float *x, float *y, int rows, int columns, bool barrier, cudaStream_t s) {
    if (barrier)
        TG_LAUNCH((row_sum<float, true>), rows, 256, 0, s, x, y, columns);
    else
        TG_LAUNCH((row_sum<float, false>), rows, 256, 0, s, x, y, columns);
    return cudaGetLastError();
}

cudaError_t k_row_sum_bf16(const void *x, float *y, int rows, int columns, cudaStream_t s) {
    TG_LAUNCH((row_sum<__nv_bfloat16, true>), rows, 256, 0, s, static_cast<const __nv_bfloat16 *>(x), y, columns);
    return cudaGetLastError();
}

cudaError_t k_axpy(float a, const float *x, float *y, size_t n, cudaStream_t s) {
    TG_LAUNCH(axpy, blocks(n, 256), 256, 0, s, a, x, y, n);
    return cudaGetLastError();
}

cudaError_t k_scale(float *x, float factor, int n, cudaStream_t s) {
    TG_LAUNCH((scale_vectors<float, 4>), blocks(static_cast<size_t>(n), 256), 64, 0, s, x, factor, n);
    return cudaGetLastError();
}

cudaError_t k_transpose(const float *x, float *y, int n, size_t shared, cudaStream_t s) {
    TG_LAUNCH(transpose, dim3(n / 16, n / 16), dim3(16, 16), shared, s, x, y, n);
    return cudaGetLastError();
}

const void *k_transpose_kernel() { return reinterpret_cast<const void *>(transpose); }

cudaError_t k_add_all(float *sum, const float *x, int n, cudaStream_t s) {
    TG_LAUNCH(add_all, blocks(static_cast<size_t>(n), 64), 64, 0, s, sum, x, n);
    return cudaGetLastError();
}

cudaError_t k_atomics(unsigned long long *out, double *sum, int *most, cudaStream_t s) {
    TG_LAUNCH(atomics, 2, 96, 0, s, out, sum, most);
    return cudaGetLastError();
}

cudaError_t k_warp_operations(int *wrong, cudaStream_t s) {
    TG_LAUNCH(warp_operations, 3, 64, 0, s, wrong);
    return cudaGetLastError();
}

cudaError_t k_draw_philox(unsigned *out, unsigned n, cudaStream_t s) {
    TG_LAUNCH(draw_philox, blocks(n, 64), 64, 0, s, out, n);
    return cudaGetLastError();
}

cudaError_t k_bug(Bug bug, float *y, int threads, cudaStream_t s) {
    switch (bug) {
    case Bug::unset:
        TG_LAUNCH(bug_unset, 1, threads, 0, s, y);
        break;
    case Bug::diverge:
        TG_LAUNCH(bug_diverge, 1, threads, 0, s, y);
        break;
    case Bug::past_end:
        TG_LAUNCH(bug_past_end, 1, threads, 0, s, y);
        break;
    case Bug::blocks_race:
        TG_LAUNCH(bug_blocks_race, 2, threads, 0, s, y);
        break;
    case Bug::reused:
        TG_LAUNCH(bug_reused, 1, threads, 0, s, y);
        break;
    }
    return cudaGetLastError();
}
