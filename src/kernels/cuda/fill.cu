/* The CUDA device's fill and iota slots. */
#include <math.h>

#include "kernels/convert.h"
#include "kernels/cuda/slots.h"
#include "kernels/cuda/vector.h"
#include "kernels/cuda/walk.h"

namespace tg {
namespace {

enum { FILL_THREADS = 256, FILL_EACH = 4 };

/* Returns the bits of the element that holds this value. A float is rounded to nearest even, and an integer toward
 * zero. */
uint64_t element_of(double v, int dtype) {
    uint64_t bits = 0;
    float f = (float)v;
    switch (dtype) {
    case TG_F32: memcpy(&bits, &f, sizeof f); break;
    case TG_F64: memcpy(&bits, &v, sizeof v); break;
    case TG_BF16: bits = tg_f64_to_bf16(v); break;
    case TG_F16: bits = tg_f64_to_f16(v); break;
    case TG_I64: bits = (uint64_t)tg_f64_to_i64(v); break;
    case TG_I32: bits = (uint32_t)tg_f64_to_i32(v); break;
    case TG_I16: bits = (uint16_t)tg_f64_to_i16(v); break;
    case TG_I8: bits = (uint8_t)tg_f64_to_i8(v); break;
    case TG_U64: bits = tg_f64_to_u64(v); break;
    case TG_U32: bits = tg_f64_to_u32(v); break;
    case TG_U16: bits = tg_f64_to_u16(v); break;
    case TG_BOOL: bits = v != 0; break;
    case TG_F8E4M3: bits = tg_f32_to_f8e4m3(tg_f64_to_f32_odd(v)); break;
    case TG_F8E5M2: bits = tg_f32_to_f8e5m2(tg_f64_to_f32_odd(v)); break;
    case TG_F8E8M0: bits = tg_f32_to_f8e8m0(tg_f64_to_f32_odd(v)); break;
    default: bits = tg_f64_to_u8(v);
    }
    return bits;
}

/* Returns 16 bytes filled with this element. */
Raw repeated(uint64_t bits, int size) {
    Raw r;
    char e[sizeof r];
    for (size_t at = 0; at < sizeof r; at += (size_t)size) memcpy(e + at, &bits, (size_t)size); /* little-endian */
    memcpy(&r, e, sizeof r);
    return r;
}

/* Fills this many bytes of memory that begins at a multiple of 16. */
__global__ void __launch_bounds__(FILL_THREADS) fill_bytes(char *data, int64_t bytes, Raw value) {
    int64_t first = (int64_t)blockIdx.x * (FILL_THREADS * FILL_EACH) + threadIdx.x;
    char e[sizeof(Raw)];
    TG_UNROLL
    for (int k = 0; k < FILL_EACH; k++) {
        int64_t at = (first + (int64_t)k * FILL_THREADS) * 16;
        if (at + 16 <= bytes) {
            *(Raw *)(data + at) = value;
        } else if (at < bytes) {
            memcpy(e, &value, sizeof e);
            for (int b = 0; at + b < bytes; b++) data[at + b] = e[b];
        }
    }
}

__global__ void __launch_bounds__(FILL_THREADS) fill_each(Walk<1> walk, char *data, int size, int64_t n,
                                                          uint64_t bits) {
    int64_t i = (int64_t)blockIdx.x * FILL_THREADS + threadIdx.x, at;
    if (i >= n) return;
    offsets(walk, i, &at);
    put_one(data, size, at, bits);
}

/* Writes start + i step. If `exact` is true, start and step are integers of 64 bits and the dtype is not a float. The
 * values are then computed in int64, and wrap. */
__global__ void __launch_bounds__(FILL_THREADS) count_up(Walk<1> walk, char *data, int dtype, int64_t n, double start,
                                                         double step, bool exact) {
    int64_t i = (int64_t)blockIdx.x * FILL_THREADS + threadIdx.x, at;
    if (i >= n) return;
    offsets(walk, i, &at);
    if (exact)
        store<int64_t>(data, dtype, at, sum_of((int64_t)start, product_of(i, (int64_t)step)));
    else
        store<double>(data, dtype, at, added(start, multiplied((double)i, step)));
}

} // namespace
} // namespace tg

extern "C" tg_status tg_cuda_fill(tg_ctx *ctx, tg_array out, double value) {
    using namespace tg;
    if (out.numel == 0) return TG_OK;
    int size = element_size(out.dtype);
    uint64_t bits = element_of(value, out.dtype);
    cudaStream_t stream = tg_cuda_of(ctx)->compute;
    const tg_array *a[1] = {&out};
    Dims<1> m = dims_of(a);
    order_dims(m, 0);
    merge_dims(m);
    bool run = m.n == 0 || (m.n == 1 && m.stride[0][0] == 1);
    if (run && aligned(out.data, 16)) {
        int64_t bytes = out.numel * size;
        unsigned grid = (unsigned)ceil_div(bytes, 16 * FILL_THREADS * FILL_EACH);
        TG_LAUNCH(fill_bytes, grid, FILL_THREADS, 0, stream, (char *)out.data, bytes, repeated(bits, size));
    } else {
        unsigned grid = (unsigned)ceil_div(out.numel, FILL_THREADS);
        TG_LAUNCH(fill_each, grid, FILL_THREADS, 0, stream, walk_of(m, m.n), (char *)out.data, size, out.numel, bits);
    }
    return tg_cuda_launched(ctx, "fill");
}

extern "C" tg_status tg_cuda_iota(tg_ctx *ctx, tg_array out, double start, double step) {
    using namespace tg;
    if (out.numel == 0) return TG_OK;
    bool exact = !is_real(out.dtype) && start == floor(start) && step == floor(step) && start >= -0x1p63 &&
                 start < 0x1p64 && fabs(step) < 0x1p63;
    if (exact) start = tg_u64_param(start);
    const tg_array *a[1] = {&out};
    Dims<1> m = dims_of(a);
    merge_dims(m);
    unsigned grid = (unsigned)ceil_div(out.numel, FILL_THREADS);
    TG_LAUNCH(count_up, grid, FILL_THREADS, 0, tg_cuda_of(ctx)->compute, walk_of(m, m.n), (char *)out.data, out.dtype,
              out.numel, start, step, exact);
    return tg_cuda_launched(ctx, "iota");
}
