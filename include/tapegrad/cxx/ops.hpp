/* C++: the ops, made from the prototypes of ops.h, mappings.h, megatron.h by tests/conventions/cxx_ops.py. These
 * headers say what each op computes. An op records on the tape of its first operand that has one (tensor.hpp). Operands
 * that "may be NULL" are left out, or tensor(). dims() means all dims. tapegrad.hpp includes this header. */
#ifndef TAPEGRAD_CXX_OPS_HPP
#define TAPEGRAD_CXX_OPS_HPP

#include <tapegrad/cxx/call.hpp>
#include <tapegrad/mappings.h>
#include <tapegrad/megatron.h>

namespace tapegrad {
inline namespace TAPEGRAD_KIND {

/* ---- ops.h ---- */

inline tensor neg(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_neg, x); }
inline tensor abs(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_abs, x); }
inline tensor exp(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_exp, x); }
inline tensor log(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_log, x); }
inline tensor sqrt(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_sqrt, x); }
inline tensor rsqrt(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_rsqrt, x); }
inline tensor reciprocal(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_reciprocal, x); }
inline tensor square(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_square, x); }
inline tensor sin(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_sin, x); }
inline tensor cos(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_cos, x); }
inline tensor tanh(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_tanh, x); }
inline tensor sigmoid(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_sigmoid, x); }
inline tensor erf(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_erf, x); }
inline tensor erfc(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_erfc, x); }
inline tensor tan(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_tan, x); }
inline tensor asin(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_asin, x); }
inline tensor acos(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_acos, x); }
inline tensor atan(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_atan, x); }
inline tensor asinh(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_asinh, x); }
inline tensor acosh(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_acosh, x); }
inline tensor atanh(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_atanh, x); }
inline tensor sinh(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_sinh, x); }
inline tensor cosh(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_cosh, x); }
inline tensor log1p(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_log1p, x); }
inline tensor expm1(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_expm1, x); }
inline tensor log2(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_log2, x); }
inline tensor log10(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_log10, x); }
inline tensor exp2(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_exp2, x); }
inline tensor sign(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_sign, x); }
inline tensor floor(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_floor, x); }
inline tensor ceil(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_ceil, x); }
inline tensor round(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_round, x); }
inline tensor trunc(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_trunc, x); }
inline tensor relu(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_relu, x); }
inline tensor silu(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_silu, x); }
inline tensor gelu(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_gelu, x); }
inline tensor gelu_tanh(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_gelu_tanh, x); }
inline tensor mish(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_mish, x); }
inline tensor log_sigmoid(const tensor &x, const site &at = site::here()) {
    return detail::call(at, tg_log_sigmoid, x);
}
inline tensor softsign(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_softsign, x); }
inline tensor hardsigmoid(const tensor &x, const site &at = site::here()) {
    return detail::call(at, tg_hardsigmoid, x);
}
inline tensor hardswish(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_hardswish, x); }
inline tensor leaky_relu(const tensor &x, double slope, const site &at = site::here()) {
    return detail::call(at, tg_leaky_relu, x, slope);
}
inline tensor elu(const tensor &x, double alpha, const site &at = site::here()) {
    return detail::call(at, tg_elu, x, alpha);
}
inline tensor softplus(const tensor &x, double beta, double threshold, const site &at = site::here()) {
    return detail::call(at, tg_softplus, x, beta, threshold);
}
inline tensor pow_scalar(const tensor &x, double p, const site &at = site::here()) {
    return detail::call(at, tg_pow_scalar, x, p);
}
inline tensor clamp(const tensor &x, double lo, double hi, const site &at = site::here()) {
    return detail::call(at, tg_clamp, x, lo, hi);
}
inline tensor hardtanh(const tensor &x, double lo, double hi, const site &at = site::here()) {
    return detail::call(at, tg_hardtanh, x, lo, hi);
}
inline tensor scale(const tensor &x, double a, const site &at = site::here()) {
    return detail::call(at, tg_scale, x, a);
}
inline tensor add_scalar(const tensor &x, double b, const site &at = site::here()) {
    return detail::call(at, tg_add_scalar, x, b);
}
inline tensor cast(const tensor &x, tg_dtype dtype, const site &at = site::here()) {
    return detail::call(at, tg_cast, x, dtype);
}
inline tensor detach(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_detach, x); }
inline tensor isnan(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_isnan, x); }
inline tensor isinf(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_isinf, x); }
inline tensor isfinite(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_isfinite, x); }
inline tensor logical_not(const tensor &x, const site &at = site::here()) {
    return detail::call(at, tg_logical_not, x);
}
inline tensor bitwise_not(const tensor &x, const site &at = site::here()) {
    return detail::call(at, tg_bitwise_not, x);
}
inline tensor add(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_add, a, b);
}
inline tensor sub(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_sub, a, b);
}
inline tensor mul(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_mul, a, b);
}
inline tensor div(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_div, a, b);
}
inline tensor pow(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_pow, a, b);
}
inline tensor atan2(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_atan2, a, b);
}
inline tensor fmod(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_fmod, a, b);
}
inline tensor remainder(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_remainder, a, b);
}
inline tensor floor_divide(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_floor_divide, a, b);
}
inline tensor trunc_divide(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_trunc_divide, a, b);
}
inline tensor lerp(const tensor &a, const tensor &b, const tensor &w, const site &at = site::here()) {
    return detail::call(at, tg_lerp, a, b, w);
}
inline tensor lerp_scalar(const tensor &a, const tensor &b, double w, const site &at = site::here()) {
    return detail::call(at, tg_lerp_scalar, a, b, w);
}
inline tensor maximum(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_maximum, a, b);
}
inline tensor minimum(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_minimum, a, b);
}
inline tensor eq(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_eq, a, b);
}
inline tensor ne(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_ne, a, b);
}
inline tensor lt(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_lt, a, b);
}
inline tensor le(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_le, a, b);
}
inline tensor gt(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_gt, a, b);
}
inline tensor ge(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_ge, a, b);
}
inline tensor logical_and(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_logical_and, a, b);
}
inline tensor logical_or(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_logical_or, a, b);
}
inline tensor logical_xor(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_logical_xor, a, b);
}
inline tensor bitwise_and(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_bitwise_and, a, b);
}
inline tensor bitwise_or(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_bitwise_or, a, b);
}
inline tensor bitwise_xor(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_bitwise_xor, a, b);
}
inline tensor where(const tensor &c, const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_where, c, a, b);
}
inline tensor masked_fill(const tensor &x, const tensor &mask, double value, const site &at = site::here()) {
    return detail::call(at, tg_masked_fill, x, mask, value);
}
inline tensor add_(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_add_, a, b);
}
inline tensor sub_(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_sub_, a, b);
}
inline tensor mul_(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_mul_, a, b);
}
inline tensor relu_(const tensor &a, const site &at = site::here()) { return detail::call(at, tg_relu_, a); }
inline tensor copy_(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_copy_, a, b);
}
inline tensor sum(const tensor &x, const dims &dims = {}, bool keepdim = false, const site &at = site::here()) {
    return detail::call(at, tg_sum, x, dims, keepdim);
}
inline tensor mean(const tensor &x, const dims &dims = {}, bool keepdim = false, const site &at = site::here()) {
    return detail::call(at, tg_mean, x, dims, keepdim);
}
inline tensor var(const tensor &x, const dims &dims, int correction, bool keepdim = false, const site &at =
                  site::here()) {
    return detail::call(at, tg_var, x, dims, correction, keepdim);
}
inline tensor std(const tensor &x, const dims &dims, int correction, bool keepdim = false, const site &at =
                  site::here()) {
    return detail::call(at, tg_std, x, dims, correction, keepdim);
}
inline tensor prod(const tensor &x, const dims &dims = {}, bool keepdim = false, const site &at = site::here()) {
    return detail::call(at, tg_prod, x, dims, keepdim);
}
inline tensor norm(const tensor &x, double p, const dims &dims = {}, bool keepdim = false, const site &at =
                   site::here()) {
    return detail::call(at, tg_norm, x, p, dims, keepdim);
}
inline tensor max(const tensor &x, const dims &dims = {}, bool keepdim = false, const site &at = site::here()) {
    return detail::call(at, tg_max, x, dims, keepdim);
}
inline tensor min(const tensor &x, const dims &dims = {}, bool keepdim = false, const site &at = site::here()) {
    return detail::call(at, tg_min, x, dims, keepdim);
}
inline tensor logsumexp(const tensor &x, const dims &dims = {}, bool keepdim = false, const site &at = site::here()) {
    return detail::call(at, tg_logsumexp, x, dims, keepdim);
}
inline tensor argmax(const tensor &x, int dim, bool keepdim = false, const site &at = site::here()) {
    return detail::call(at, tg_argmax, x, dim, keepdim);
}
inline tensor argmin(const tensor &x, int dim, bool keepdim = false, const site &at = site::here()) {
    return detail::call(at, tg_argmin, x, dim, keepdim);
}
inline tensor any(const tensor &x, const dims &dims = {}, bool keepdim = false, const site &at = site::here()) {
    return detail::call(at, tg_any, x, dims, keepdim);
}
inline tensor all(const tensor &x, const dims &dims = {}, bool keepdim = false, const site &at = site::here()) {
    return detail::call(at, tg_all, x, dims, keepdim);
}
inline tensor median(const tensor &x, int dim, bool keepdim = false, tensor *index = nullptr, const site &at =
                     site::here()) {
    return detail::call(at, tg_median, x, dim, keepdim, index);
}
inline tensor cumsum(const tensor &x, int dim, const site &at = site::here()) {
    return detail::call(at, tg_cumsum, x, dim);
}
inline tensor cumprod(const tensor &x, int dim, const site &at = site::here()) {
    return detail::call(at, tg_cumprod, x, dim);
}
inline tensor cummax(const tensor &x, int dim, tensor *index = nullptr, const site &at = site::here()) {
    return detail::call(at, tg_cummax, x, dim, index);
}
inline tensor cummin(const tensor &x, int dim, tensor *index = nullptr, const site &at = site::here()) {
    return detail::call(at, tg_cummin, x, dim, index);
}
inline tensor sort(const tensor &x, int dim, bool descending = false, tensor *index = nullptr, const site &at =
                   site::here()) {
    return detail::call(at, tg_sort, x, dim, descending, index);
}
inline tensor topk(const tensor &x, int64_t k, int dim, bool largest, tensor *index = nullptr, const site &at =
                   site::here()) {
    return detail::call(at, tg_topk, x, k, dim, largest, index);
}
inline tensor argsort(const tensor &x, int dim, bool descending = false, const site &at = site::here()) {
    return detail::call(at, tg_argsort, x, dim, descending);
}
inline tensor matmul(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_matmul, a, b);
}
inline tensor linear(const tensor &x, const tensor &w, const tensor &b = {}, const site &at = site::here()) {
    return detail::call(at, tg_linear, x, w, b);
}
inline tensor linear_relu(const tensor &x, const tensor &w, const tensor &b = {}, const site &at = site::here()) {
    return detail::call(at, tg_linear_relu, x, w, b);
}
inline tensor linear_gelu(const tensor &x, const tensor &w, const tensor &b = {}, const site &at = site::here()) {
    return detail::call(at, tg_linear_gelu, x, w, b);
}
inline tensor linear_gelu_tanh(const tensor &x, const tensor &w, const tensor &b = {}, const site &at = site::here()) {
    return detail::call(at, tg_linear_gelu_tanh, x, w, b);
}
inline tensor linear_silu(const tensor &x, const tensor &w, const tensor &b = {}, const site &at = site::here()) {
    return detail::call(at, tg_linear_silu, x, w, b);
}
inline tensor outer(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_outer, a, b);
}
inline tensor dot(const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_dot, a, b);
}
inline tensor cdist(const tensor &a, const tensor &b, double p, const site &at = site::here()) {
    return detail::call(at, tg_cdist, a, b, p);
}
inline tensor einsum(const char *equation, const tensor &a, const tensor &b, const site &at = site::here()) {
    return detail::call(at, tg_einsum, equation, a, b);
}
inline tensor triangular_solve(const tensor &a, const tensor &b, const options<tg_solve_opts> &opts = {}, const site &at
                               = site::here()) {
    return detail::call(at, tg_triangular_solve, a, b, opts);
}
inline tensor cholesky(const tensor &a, const site &at = site::here()) { return detail::call(at, tg_cholesky, a); }
inline tensor reshape(const tensor &x, const shape &shape, const site &at = site::here()) {
    return detail::call(at, tg_reshape, x, shape);
}
inline tensor view(const tensor &x, const shape &shape, const site &at = site::here()) {
    return detail::call(at, tg_view, x, shape);
}
inline tensor permute(const tensor &x, const dims &order, const site &at = site::here()) {
    return detail::call(at, tg_permute, x, order);
}
inline tensor transpose(const tensor &x, int d0, int d1, const site &at = site::here()) {
    return detail::call(at, tg_transpose, x, d0, d1);
}
inline tensor expand(const tensor &x, const shape &shape, const site &at = site::here()) {
    return detail::call(at, tg_expand, x, shape);
}
inline tensor squeeze(const tensor &x, int dim, const site &at = site::here()) {
    return detail::call(at, tg_squeeze, x, dim);
}
inline tensor unsqueeze(const tensor &x, int dim, const site &at = site::here()) {
    return detail::call(at, tg_unsqueeze, x, dim);
}
inline tensor slice(const tensor &x, int dim, int64_t start, int64_t stop, int64_t step, const site &at = site::here())
                    {
    return detail::call(at, tg_slice, x, dim, start, stop, step);
}
inline tensor select(const tensor &x, int dim, int64_t index, const site &at = site::here()) {
    return detail::call(at, tg_select, x, dim, index);
}
inline tensor contiguous(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_contiguous, x); }
inline tensor concat(const tensors &x, int dim, const site &at = site::here()) {
    return detail::call(at, tg_concat, x, x.size(), dim);
}
inline tensor stack(const tensors &x, int dim, const site &at = site::here()) {
    return detail::call(at, tg_stack, x, x.size(), dim);
}
inline std::vector<tensor> split(const tensor &x, int dim, const std::vector<int64_t> &sizes, const site &at =
                                 site::here()) {
    return detail::call_n(detail::size(sizes), at, tg_split, x, dim, sizes.data(), detail::size(sizes));
}
inline std::vector<tensor> chunk(const tensor &x, int dim, int n, const site &at = site::here()) {
    return detail::call_n(n, at, tg_chunk, x, dim, n);
}
inline tensor pad(const tensor &x, int dim, int64_t before, int64_t after, double value, const site &at = site::here())
                  {
    return detail::call(at, tg_pad, x, dim, before, after, value);
}
inline tensor constant_pad(const tensor &x, const std::vector<int64_t> &pad, double value, const site &at =
                           site::here()) {
    return detail::call(at, tg_constant_pad, x, pad.data(), detail::size(pad), value);
}
inline tensor reflection_pad(const tensor &x, const std::vector<int64_t> &pad, const site &at = site::here()) {
    return detail::call(at, tg_reflection_pad, x, pad.data(), detail::size(pad));
}
inline tensor replication_pad(const tensor &x, const std::vector<int64_t> &pad, const site &at = site::here()) {
    return detail::call(at, tg_replication_pad, x, pad.data(), detail::size(pad));
}
inline tensor circular_pad(const tensor &x, const std::vector<int64_t> &pad, const site &at = site::here()) {
    return detail::call(at, tg_circular_pad, x, pad.data(), detail::size(pad));
}
inline tensor flip(const tensor &x, const dims &dims = {}, const site &at = site::here()) {
    return detail::call(at, tg_flip, x, dims);
}
inline tensor roll(const tensor &x, int64_t shift, int dim, const site &at = site::here()) {
    return detail::call(at, tg_roll, x, shift, dim);
}
inline tensor repeat(const tensor &x, int dim, int64_t times, const site &at = site::here()) {
    return detail::call(at, tg_repeat, x, dim, times);
}
inline tensor pixel_shuffle(const tensor &x, int64_t factor, const site &at = site::here()) {
    return detail::call(at, tg_pixel_shuffle, x, factor);
}
inline tensor pixel_unshuffle(const tensor &x, int64_t factor, const site &at = site::here()) {
    return detail::call(at, tg_pixel_unshuffle, x, factor);
}
inline tensor channel_shuffle(const tensor &x, int64_t groups, const site &at = site::here()) {
    return detail::call(at, tg_channel_shuffle, x, groups);
}
inline tensor unfold(const tensor &x, int dim, int64_t size, int64_t step, const site &at = site::here()) {
    return detail::call(at, tg_unfold, x, dim, size, step);
}
inline tensor as_strided(const tensor &x, const shape &shape, const tapegrad::shape &stride, int64_t offset, const site
                         &at = site::here()) {
    return detail::call(at, tg_as_strided, x, shape, stride, offset);
}
inline tensor tril(const tensor &x, int64_t k, const site &at = site::here()) {
    return detail::call(at, tg_tril, x, k);
}
inline tensor triu(const tensor &x, int64_t k, const site &at = site::here()) {
    return detail::call(at, tg_triu, x, k);
}
inline tensor diag(const tensor &x, int64_t k, const site &at = site::here()) {
    return detail::call(at, tg_diag, x, k);
}
inline tensor diagonal(const tensor &x, int64_t k, int d0, int d1, const site &at = site::here()) {
    return detail::call(at, tg_diagonal, x, k, d0, d1);
}
inline tensor slice_scatter(const tensor &x, const tensor &src, int dim, int64_t start, int64_t stop, int64_t step,
                            const site &at = site::here()) {
    return detail::call(at, tg_slice_scatter, x, src, dim, start, stop, step);
}
inline tensor select_scatter(const tensor &x, const tensor &src, int dim, int64_t index, const site &at = site::here())
                             {
    return detail::call(at, tg_select_scatter, x, src, dim, index);
}
inline tensor gather(const tensor &x, int dim, const tensor &index, const site &at = site::here()) {
    return detail::call(at, tg_gather, x, dim, index);
}
inline tensor scatter_add(const tensor &x, int dim, const tensor &index, const tensor &src, const site &at =
                          site::here()) {
    return detail::call(at, tg_scatter_add, x, dim, index, src);
}
inline tensor scatter(const tensor &x, int dim, const tensor &index, const tensor &src, const site &at = site::here()) {
    return detail::call(at, tg_scatter, x, dim, index, src);
}
inline tensor scatter_mean(const tensor &x, int dim, const tensor &index, const tensor &src, bool include_self, const
                           site &at = site::here()) {
    return detail::call(at, tg_scatter_mean, x, dim, index, src, include_self);
}
inline tensor scatter_prod(const tensor &x, int dim, const tensor &index, const tensor &src, bool include_self, const
                           site &at = site::here()) {
    return detail::call(at, tg_scatter_prod, x, dim, index, src, include_self);
}
inline tensor scatter_max(const tensor &x, int dim, const tensor &index, const tensor &src, bool include_self, const
                          site &at = site::here()) {
    return detail::call(at, tg_scatter_max, x, dim, index, src, include_self);
}
inline tensor scatter_min(const tensor &x, int dim, const tensor &index, const tensor &src, bool include_self, const
                          site &at = site::here()) {
    return detail::call(at, tg_scatter_min, x, dim, index, src, include_self);
}
inline tensor index_select(const tensor &x, int dim, const tensor &index, const site &at = site::here()) {
    return detail::call(at, tg_index_select, x, dim, index);
}
inline tensor index(const tensor &x, const dims &dims, const tensors &index, const site &at = site::here()) {
    return detail::call(at, tg_index, x, dims, index, index.size());
}
inline tensor index_put(const tensor &x, const dims &dims, const tensor &src, const tensors &index, bool accumulate,
                        const site &at = site::here()) {
    return detail::call(at, tg_index_put, x, dims, src, index, index.size(), accumulate);
}
inline tensor embedding(const tensor &table, const tensor &ids, const site &at = site::here()) {
    return detail::call(at, tg_embedding, table, ids);
}
inline tensor embedding_bag(const tensor &table, const tensor &ids, const tensor &offsets, const tensor &weights, const
                            options<tg_bag_opts> &opts = {}, const site &at = site::here()) {
    return detail::call(at, tg_embedding_bag, table, ids, offsets, weights, opts);
}
inline tensor masked_select(const tensor &x, const tensor &mask, int64_t count, const site &at = site::here()) {
    return detail::call(at, tg_masked_select, x, mask, count);
}
inline tensor masked_scatter(const tensor &x, const tensor &mask, const tensor &src, const site &at = site::here()) {
    return detail::call(at, tg_masked_scatter, x, mask, src);
}
inline tensor nonzero(const tensor &x, int64_t count, const site &at = site::here()) {
    return detail::call(at, tg_nonzero, x, count);
}
inline tensor arange(tg_tape *t, tg_dtype dtype, double start, double stop, double step, const site &at = site::here())
                     {
    return detail::call_on(t, at, tg_arange, dtype, start, stop, step);
}
inline tensor full(tg_tape *t, tg_dtype dtype, const shape &shape, double value, const site &at = site::here()) {
    return detail::call_on(t, at, tg_full, dtype, shape, value);
}
inline tensor one_hot(tg_dtype dtype, const tensor &ids, int64_t classes, const site &at = site::here()) {
    return detail::call(at, tg_one_hot, dtype, ids, classes);
}
inline tensor softmax(const tensor &x, int dim, const site &at = site::here()) {
    return detail::call(at, tg_softmax, x, dim);
}
inline tensor log_softmax(const tensor &x, int dim, const site &at = site::here()) {
    return detail::call(at, tg_log_softmax, x, dim);
}
inline tensor layer_norm(const tensor &x, const tensor &w, const tensor &b, double eps, const site &at = site::here()) {
    return detail::call(at, tg_layer_norm, x, w, b, eps);
}
inline tensor rms_norm(const tensor &x, const tensor &w, double eps, const site &at = site::here()) {
    return detail::call(at, tg_rms_norm, x, w, eps);
}
inline tensor group_norm(const tensor &x, int64_t groups, const tensor &w, const tensor &b, double eps, const site &at =
                         site::here()) {
    return detail::call(at, tg_group_norm, x, groups, w, b, eps);
}
inline tensor batch_norm(const tensor &x, const tensor &w, const tensor &b, const tensor &running_mean, const tensor
                         &running_var, double momentum, double eps, const site &at = site::here()) {
    return detail::call(at, tg_batch_norm, x, w, b, running_mean, running_var, momentum, eps);
}
inline tensor residual_rms_norm(const tensor &x, const tensor &residual, const tensor &w, double eps, tensor *sum =
                                nullptr, const site &at = site::here()) {
    return detail::call(at, tg_residual_rms_norm, x, residual, w, eps, sum);
}
inline tensor instance_norm(const tensor &x, const tensor &w, const tensor &b, double eps, const site &at =
                            site::here()) {
    return detail::call(at, tg_instance_norm, x, w, b, eps);
}
inline tensor local_response_norm(const tensor &x, int64_t size, double alpha, double beta, double k, const site &at =
                                  site::here()) {
    return detail::call(at, tg_local_response_norm, x, size, alpha, beta, k);
}
inline tensor dropout(const tensor &x, double p, const site &at = site::here()) {
    return detail::call(at, tg_dropout, x, p);
}
inline tensor dropout_rows(const tensor &x, double p, const tensor &rows, const site &at = site::here()) {
    return detail::call(at, tg_dropout_rows, x, p, rows);
}
inline tensor gumbel(const tensor &x, const site &at = site::here()) { return detail::call(at, tg_gumbel, x); }
inline tensor gumbel_softmax(const tensor &x, double tau, bool hard, int dim, const site &at = site::here()) {
    return detail::call(at, tg_gumbel_softmax, x, tau, hard, dim);
}
inline tensor rope(const tensor &x, double base, int64_t offset, const site &at = site::here()) {
    return detail::call(at, tg_rope, x, base, offset);
}
inline tensor rope_at(const tensor &x, const tensor &positions, double base, const site &at = site::here()) {
    return detail::call(at, tg_rope_at, x, positions, base);
}
inline tensor rope_with(const tensor &x, const options<tg_rope_opts> &opts = {}, const site &at = site::here()) {
    return detail::call(at, tg_rope_with, x, opts);
}
inline tensor swiglu(const tensor &gate, const tensor &up, const site &at = site::here()) {
    return detail::call(at, tg_swiglu, gate, up);
}
inline tensor glu(const tensor &x, int dim, const site &at = site::here()) { return detail::call(at, tg_glu, x, dim); }
inline tensor attention(const tensor &q, const tensor &k, const tensor &v, const options<tg_attention_opts> &opts = {},
                        const site &at = site::here()) {
    return detail::call(at, tg_attention, q, k, v, opts);
}
inline tensor conv1d(const tensor &x, const tensor &w, const tensor &b = {}, const options<tg_conv_opts> &opts = {},
                     const site &at = site::here()) {
    return detail::call(at, tg_conv1d, x, w, b, opts);
}
inline tensor conv2d(const tensor &x, const tensor &w, const tensor &b = {}, const options<tg_conv_opts> &opts = {},
                     const site &at = site::here()) {
    return detail::call(at, tg_conv2d, x, w, b, opts);
}
inline tensor conv3d(const tensor &x, const tensor &w, const tensor &b = {}, const options<tg_conv_opts> &opts = {},
                     const site &at = site::here()) {
    return detail::call(at, tg_conv3d, x, w, b, opts);
}
inline tensor conv_transpose1d(const tensor &x, const tensor &w, const tensor &b = {}, const options<tg_conv_opts> &opts
                               = {}, const site &at = site::here()) {
    return detail::call(at, tg_conv_transpose1d, x, w, b, opts);
}
inline tensor conv_transpose2d(const tensor &x, const tensor &w, const tensor &b = {}, const options<tg_conv_opts> &opts
                               = {}, const site &at = site::here()) {
    return detail::call(at, tg_conv_transpose2d, x, w, b, opts);
}
inline tensor conv_transpose3d(const tensor &x, const tensor &w, const tensor &b = {}, const options<tg_conv_opts> &opts
                               = {}, const site &at = site::here()) {
    return detail::call(at, tg_conv_transpose3d, x, w, b, opts);
}
inline tensor max_pool1d(const tensor &x, int64_t k, const options<tg_pool_opts> &opts = {}, const site &at =
                         site::here()) {
    return detail::call(at, tg_max_pool1d, x, k, opts);
}
inline tensor max_pool2d(const tensor &x, int64_t h, int64_t w, const options<tg_pool_opts> &opts = {}, const site &at =
                         site::here()) {
    return detail::call(at, tg_max_pool2d, x, h, w, opts);
}
inline tensor avg_pool1d(const tensor &x, int64_t k, const options<tg_pool_opts> &opts = {}, const site &at =
                         site::here()) {
    return detail::call(at, tg_avg_pool1d, x, k, opts);
}
inline tensor avg_pool2d(const tensor &x, int64_t h, int64_t w, const options<tg_pool_opts> &opts = {}, const site &at =
                         site::here()) {
    return detail::call(at, tg_avg_pool2d, x, h, w, opts);
}
inline tensor max_pool3d(const tensor &x, int64_t d, int64_t h, int64_t w, const options<tg_pool_opts> &opts = {}, const
                         site &at = site::here()) {
    return detail::call(at, tg_max_pool3d, x, d, h, w, opts);
}
inline tensor avg_pool3d(const tensor &x, int64_t d, int64_t h, int64_t w, const options<tg_pool_opts> &opts = {}, const
                         site &at = site::here()) {
    return detail::call(at, tg_avg_pool3d, x, d, h, w, opts);
}
inline tensor max_pool2d_with_indices(const tensor &x, int64_t h, int64_t w, const options<tg_pool_opts> &opts = {},
                                      tensor *index = nullptr, const site &at = site::here()) {
    return detail::call(at, tg_max_pool2d_with_indices, x, h, w, opts, index);
}
inline tensor max_pool3d_with_indices(const tensor &x, int64_t d, int64_t h, int64_t w, const options<tg_pool_opts>
                                      &opts = {}, tensor *index = nullptr, const site &at = site::here()) {
    return detail::call(at, tg_max_pool3d_with_indices, x, d, h, w, opts, index);
}
inline tensor adaptive_avg_pool(const tensor &x, const shape &size, const site &at = site::here()) {
    return detail::call(at, tg_adaptive_avg_pool, x, size);
}
inline tensor adaptive_max_pool(const tensor &x, const shape &size, tensor *index = nullptr, const site &at =
                                site::here()) {
    return detail::call(at, tg_adaptive_max_pool, x, size, index);
}
inline tensor im2col(const tensor &x, int64_t h, int64_t w, const options<tg_conv_opts> &opts = {}, const site &at =
                     site::here()) {
    return detail::call(at, tg_im2col, x, h, w, opts);
}
inline tensor col2im(const tensor &x, const shape &size, int64_t h, int64_t w, const options<tg_conv_opts> &opts = {},
                     const site &at = site::here()) {
    return detail::call(at, tg_col2im, x, size, h, w, opts);
}
inline tensor upsample_nearest(const tensor &x, const shape &size, const options<tg_upsample_opts> &opts = {}, const
                               site &at = site::here()) {
    return detail::call(at, tg_upsample_nearest, x, size, opts);
}
inline tensor upsample_linear(const tensor &x, const shape &size, const options<tg_upsample_opts> &opts = {}, const site
                              &at = site::here()) {
    return detail::call(at, tg_upsample_linear, x, size, opts);
}
inline tensor grid_sampler_2d(const tensor &x, const tensor &grid, const options<tg_grid_opts> &opts = {}, const site
                              &at = site::here()) {
    return detail::call(at, tg_grid_sampler_2d, x, grid, opts);
}
inline tensor cross_entropy(const tensor &logits, const tensor &target, const options<tg_cross_entropy_opts> &opts = {},
                            const site &at = site::here()) {
    return detail::call(at, tg_cross_entropy, logits, target, opts);
}
inline tensor linear_cross_entropy(const tensor &x, const tensor &w, const tensor &target, const
                                   options<tg_cross_entropy_opts> &opts = {}, const site &at = site::here()) {
    return detail::call(at, tg_linear_cross_entropy, x, w, target, opts);
}
inline tensor mse(const tensor &x, const tensor &y, const site &at = site::here()) {
    return detail::call(at, tg_mse, x, y);
}
inline tensor l1(const tensor &x, const tensor &y, const options<tg_loss_opts> &opts = {}, const site &at =
                 site::here()) {
    return detail::call(at, tg_l1, x, y, opts);
}
inline tensor smooth_l1(const tensor &x, const tensor &y, double beta, const options<tg_loss_opts> &opts = {}, const
                        site &at = site::here()) {
    return detail::call(at, tg_smooth_l1, x, y, beta, opts);
}
inline tensor huber(const tensor &x, const tensor &y, double delta, const options<tg_loss_opts> &opts = {}, const site
                    &at = site::here()) {
    return detail::call(at, tg_huber, x, y, delta, opts);
}
inline tensor bce_with_logits(const tensor &x, const tensor &y, const tensor &w, const tensor &pw, const
                              options<tg_loss_opts> &opts = {}, const site &at = site::here()) {
    return detail::call(at, tg_bce_with_logits, x, y, w, pw, opts);
}
inline tensor kl_div(const tensor &x, const tensor &y, const options<tg_loss_opts> &opts = {}, const site &at =
                     site::here()) {
    return detail::call(at, tg_kl_div, x, y, opts);
}
inline tensor nll(const tensor &x, const tensor &target, const tensor &w, const options<tg_loss_opts> &opts = {}, const
                  site &at = site::here()) {
    return detail::call(at, tg_nll, x, target, w, opts);
}
inline tensor cosine_similarity(const tensor &x, const tensor &y, int dim, double eps, const site &at = site::here()) {
    return detail::call(at, tg_cosine_similarity, x, y, dim, eps);
}

/* ---- mappings.h ---- */

inline tensor all_to_all(const tensor &x, const int64_t *send_counts, const int64_t *recv_counts, tg_comm *c, const site
                         &at = site::here()) {
    return detail::call(at, tg_all_to_all, x, send_counts, recv_counts, c);
}
inline tensor all_reduce(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_all_reduce, x, c);
}
inline tensor scatter_to(const tensor &x, int d, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_scatter_to, x, d, c);
}
inline tensor shard(const tensor &x, int d, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_shard, x, d, c);
}
inline tensor shard_as(const tensor &x, tg_placement to, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_shard_as, x, to, c);
}
inline tensor gather_from(const tensor &x, int d, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_gather_from, x, d, c);
}
inline tensor all_gather(const tensor &x, int d, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_all_gather, x, d, c);
}
inline tensor reduce_scatter(const tensor &x, int d, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_reduce_scatter, x, d, c);
}
inline tensor reshard(const tensor &x, int cat, int split, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_reshard, x, cat, split, c);
}
inline tensor shift(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_shift, x, c);
}
inline tensor broadcast(const tensor &x, int root, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_broadcast, x, root, c);
}
inline tensor all_reduce_max(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_all_reduce_max, x, c);
}
inline tensor as_partial(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_as_partial, x, c);
}
inline tensor as_opaque(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_as_opaque, x, c);
}
inline tensor as_shard(const tensor &x, int d, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_as_shard, x, d, c);
}
inline tensor i_to_p(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_i_to_p, x, c);
}
inline tensor r_to_i(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_r_to_i, x, c);
}
inline tensor recv(tg_tape *t, tg_comm *c, tg_dtype dtype, const shape &shape, int from, const site &at = site::here())
                   {
    return detail::call_on(t, at, tg_recv, c, dtype, shape, from);
}

/* ---- megatron.h ---- */

inline tensor copy_to_tp(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_copy_to_tp, x, c);
}
inline tensor reduce_from_tp(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_reduce_from_tp, x, c);
}
inline tensor scatter_to_tp(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_scatter_to_tp, x, c);
}
inline tensor gather_from_tp(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_gather_from_tp, x, c);
}
inline tensor scatter_to_sp(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_scatter_to_sp, x, c);
}
inline tensor gather_from_sp(const tensor &x, tg_comm *c, const options<tg_sp_opts> &opts = {}, const site &at =
                             site::here()) {
    return detail::call(at, tg_gather_from_sp, x, c, opts);
}
inline tensor reduce_scatter_to_sp(const tensor &x, tg_comm *c, const options<tg_sp_opts> &opts = {}, const site &at =
                                   site::here()) {
    return detail::call(at, tg_reduce_scatter_to_sp, x, c, opts);
}
inline tensor all_gather_last_dim(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_all_gather_last_dim, x, c);
}
inline tensor reduce_scatter_last_dim(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_reduce_scatter_last_dim, x, c);
}
inline tensor all_to_all_sp2hp(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_all_to_all_sp2hp, x, c);
}
inline tensor all_to_all_hp2sp(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_all_to_all_hp2sp, x, c);
}
inline std::vector<tensor> split_last_dim(const tensor &x, int n, bool contiguous, const site &at = site::here()) {
    return detail::call_n(n, at, tg_split_last_dim, x, n, contiguous);
}
inline tensor split_1d(const tensor &x, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_split_1d, x, c);
}
inline tensor gather_1d(const tensor &x, int64_t numel, tg_comm *c, const site &at = site::here()) {
    return detail::call(at, tg_gather_1d, x, numel, c);
}

} // namespace TAPEGRAD_KIND
} // namespace tapegrad

#endif
