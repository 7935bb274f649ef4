/* kernels.h - the launchers of kernels.cu. */
#ifndef TG_CUDA_EMULATOR_KERNELS_H
#define TG_CUDA_EMULATOR_KERNELS_H

#include <cuda_runtime_api.h>
#include <cstddef>

enum class Bug { unset, diverge, past_end, blocks_race, reused };

cudaError_t k_row_sum(const float *x, float *y, int rows, int columns, bool barrier, cudaStream_t s);
cudaError_t k_row_sum_bf16(const void *x, float *y, int rows, int columns, cudaStream_t s);
cudaError_t k_axpy(float a, const float *x, float *y, size_t n, cudaStream_t s);
cudaError_t k_scale(float *x, float factor, int n, cudaStream_t s);
cudaError_t k_transpose(const float *x, float *y, int n, size_t shared, cudaStream_t s);
const void *k_transpose_kernel();
cudaError_t k_add_all(float *sum, const float *x, int n, cudaStream_t s);
cudaError_t k_atomics(unsigned long long *out, double *sum, int *most, cudaStream_t s);
cudaError_t k_warp_operations(int *wrong, cudaStream_t s);
cudaError_t k_draw_philox(unsigned *out, unsigned n, cudaStream_t s);
cudaError_t k_bug(Bug bug, float *y, int threads, cudaStream_t s);

#endif
