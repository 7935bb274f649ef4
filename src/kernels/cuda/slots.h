/* The slots of the CUDA device that compute; tg_device_ops in device.h says what each does. tg_cuda_map is slot apply.
 * Each is implemented in the file of its kernels; gemm, which has none, in gemm.c. */
#ifndef TG_CUDA_SLOTS_H
#define TG_CUDA_SLOTS_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

tg_status tg_cuda_map(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n_in, const double p[2],
                      bool add);
tg_status tg_cuda_fill(tg_ctx *ctx, tg_array out, double value);
tg_status tg_cuda_iota(tg_ctx *ctx, tg_array out, double start, double step);
tg_status tg_cuda_reduce(tg_ctx *ctx, tg_reduction kind, tg_array out, tg_array in, double scale, bool add);
tg_status tg_cuda_gemm(tg_ctx *ctx, const tg_gemm *g);
tg_status tg_cuda_take(tg_ctx *ctx, tg_array out, tg_array src, tg_array index, int dim, int64_t *bad);
tg_status tg_cuda_put_add(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
tg_status tg_cuda_scan(tg_ctx *ctx, tg_reduction kind, tg_array y, tg_array x, bool back, bool add);
tg_status tg_cuda_sort(tg_ctx *ctx, tg_array y, tg_array order, tg_array x, bool falling);
tg_status tg_cuda_put(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
tg_status tg_cuda_random(tg_ctx *ctx, tg_random kind, tg_array out, double a, double b, const tg_draws *draws);
tg_status tg_cuda_softmax(tg_ctx *ctx, tg_array y, tg_array x, bool log);
tg_status tg_cuda_softmax_grad(tg_ctx *ctx, tg_array gx, tg_array gy, tg_array y, bool log, bool add);
tg_status tg_cuda_norm(tg_ctx *ctx, const tg_norm_args *a);
tg_status tg_cuda_norm_grad(tg_ctx *ctx, const tg_norm_args *a);
tg_status tg_cuda_cross_entropy(tg_ctx *ctx, const tg_cross_entropy_args *a);
tg_status tg_cuda_cross_entropy_grad(tg_ctx *ctx, const tg_cross_entropy_args *a);
tg_status tg_cuda_attention(tg_ctx *ctx, const tg_attention_args *a);
tg_status tg_cuda_attention_grad(tg_ctx *ctx, const tg_attention_args *a);
tg_status tg_cuda_dropout(tg_ctx *ctx, tg_array y, tg_array x, double p, const tg_draws *draws, bool add);
tg_status tg_cuda_fault_sum(tg_ctx *ctx, double *sum);
tg_status tg_cuda_prepare(tg_ctx *ctx, const tg_prepare_args *a);
/* Each launch steps many parameters of one compute type. */
tg_status tg_cuda_adamw(tg_ctx *ctx, const tg_adamw_args *a, int n);

#ifdef __cplusplus
}
#endif

#endif
