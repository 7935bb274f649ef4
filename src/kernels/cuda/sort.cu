/* The CUDA device's sort slot. Elements are mapped to integers that have the same order. All rows are sorted at once:
 * by a key of row and integer if both fit into 64 bits; otherwise by the integer, and then stably by the row. */
#include "kernels/cuda/sort.h"
#include "kernels/cuda/slots.h"
#include "kernels/cuda/vector.h"

namespace tg {
namespace {

enum { ORDER_THREADS = 256 };
enum { ORDER_X, ORDER_Y, ORDER_PLACES, ORDER_ARRAYS };

struct OrderJob {
    char *x, *y;
    int64_t *places;
    int dtype, size;
    bool falling, with_row; /* with_row: the upper 32 bits of a key are the row, the lower 32 the element's integer */
    Walk<ORDER_ARRAYS> walk; /* of the rows */
    int64_t step[ORDER_ARRAYS];
    Divider n, k; /* number of elements of a row of x, and of y */
    int64_t count, wanted;
};

/* Returns the integer of an element. -0 and 0 are equal, and every NaN is greatest. */
__device__ inline uint64_t key_of(float v) {
    uint32_t u;
    v = v == 0 ? 0 : v;
    memcpy(&u, &v, sizeof u);
    return v != v ? 0xffffffffu : u >> 31 ? ~u : u | 0x80000000u;
}

__device__ inline uint64_t key_of(double v) {
    uint64_t u;
    v = v == 0 ? 0 : v;
    memcpy(&u, &v, sizeof u);
    return v != v ? ~(uint64_t)0 : u >> 63 ? ~u : u | (uint64_t)1 << 63;
}

__device__ inline uint64_t key_of_element(const OrderJob &job, int64_t i) {
    switch (job.dtype) {
    case TG_F64: return key_of(((const double *)job.x)[i]);
    case TG_I64: return ((const uint64_t *)job.x)[i] ^ (uint64_t)1 << 63;
    case TG_I32: return ((const uint32_t *)job.x)[i] ^ 0x80000000u;
    case TG_I16: return (uint32_t)((const int16_t *)job.x)[i] ^ 0x80000000u;
    case TG_I8: return (uint32_t)((const int8_t *)job.x)[i] ^ 0x80000000u;
    case TG_U64: return ((const uint64_t *)job.x)[i];
    case TG_U32: return ((const uint32_t *)job.x)[i];
    case TG_U16: return ((const uint16_t *)job.x)[i];
    case TG_U8: return ((const uint8_t *)job.x)[i];
    case TG_BOOL: return ((const uint8_t *)job.x)[i] != 0;
    default: return key_of(load<float>(job.x, job.dtype, i));
    }
}

__global__ void __launch_bounds__(ORDER_THREADS) order_keys(OrderJob job, uint64_t *keys) {
    int64_t i = (int64_t)blockIdx.x * ORDER_THREADS + threadIdx.x, at[ORDER_ARRAYS];
    if (i >= job.count) return;
    int64_t row = quotient(i, job.n);
    offsets(job.walk, row, at);
    uint64_t key = key_of_element(job, at[ORDER_X] + (i - row * job.n.by) * job.step[ORDER_X]);
    if (job.falling) key = job.size == 8 ? ~key : key ^ 0xffffffffu;
    keys[i] = job.with_row ? (uint64_t)row << 32 | key : key;
}

__global__ void __launch_bounds__(ORDER_THREADS) order_by_row(OrderJob job, uint64_t *keys, const uint64_t *order) {
    int64_t i = (int64_t)blockIdx.x * ORDER_THREADS + threadIdx.x;
    if (i < job.count) keys[i] = (uint64_t)quotient((int64_t)order[i], job.n);
}

/* Writes the first elements of each sorted row, and their positions. In `order` the sorted rows follow one another. */
__global__ void __launch_bounds__(ORDER_THREADS) order_out(OrderJob job, const uint64_t *order) {
    int64_t i = (int64_t)blockIdx.x * ORDER_THREADS + threadIdx.x, at[ORDER_ARRAYS];
    if (i >= job.wanted) return;
    int64_t row = quotient(i, job.k), j = i - row * job.k.by;
    int64_t place = (int64_t)order[row * job.n.by + j] - row * job.n.by;
    offsets(job.walk, row, at);
    uint64_t bits = fetch_one(job.x, job.size, at[ORDER_X] + place * job.step[ORDER_X]);
    put_one(job.y, job.size, at[ORDER_Y] + j * job.step[ORDER_Y], bits);
    job.places[at[ORDER_PLACES] + j * job.step[ORDER_PLACES]] = place;
}

tg_status launch_order(tg_ctx *ctx, const OrderJob &job, int64_t rows) {
    int64_t n = job.count, tiles = ceil_div(n, SORT_TILE);
    cudaStream_t stream = tg_cuda_of(ctx)->compute;
    unsigned grid = (unsigned)ceil_div(n, ORDER_THREADS), out_grid = (unsigned)ceil_div(job.wanted, ORDER_THREADS);
    int row_bits = bits_of(rows - 1), in;
    tg_cuda_scratch scratch;
    tg_status status = tg_cuda_scratch_take(ctx, (size_t)(4 * n + SORT_DIGITS * tiles) * sizeof(uint64_t), &scratch);
    if (status != TG_OK) return status;
    uint64_t *at = (uint64_t *)scratch.data;
    SortJob<uint64_t> sort = {{at, at + n}, {at + 2 * n, at + 3 * n}, at + 4 * n, n, tiles};
    TG_LAUNCH(order_keys, grid, ORDER_THREADS, 0, stream, job, sort.keys[0]);
    in = sort_stably(sort, job.with_row ? 32 + row_bits : 64, stream);
    if (!job.with_row && row_bits) {
        const uint64_t *order = sort.order[in];
        TG_LAUNCH(order_by_row, grid, ORDER_THREADS, 0, stream, job, sort.keys[in], order);
        in = sort_further(sort, in, row_bits, stream);
    }
    const uint64_t *order = sort.order[in];
    TG_LAUNCH(order_out, out_grid, ORDER_THREADS, 0, stream, job, order);
    status = tg_cuda_launched(ctx, "sort");
    tg_cuda_scratch_give(ctx, &scratch);
    return status;
}

} // namespace
} // namespace tg

extern "C" tg_status tg_cuda_sort(tg_ctx *ctx, tg_array y, tg_array order, tg_array x, bool falling) {
    using namespace tg;
    if (y.numel == 0) return TG_OK;
    int last = x.ndim - 1;
    Dims<ORDER_ARRAYS> rows = {};
    rows.count = 1;
    for (int d = 0; d < last; d++) {
        int64_t stride[ORDER_ARRAYS] = {x.stride[d], y.stride[d], order.stride[d]};
        push_dim(rows, x.shape[d], stride);
    }
    merge_dims(rows);
    OrderJob job = {};
    job.x = (char *)x.data, job.y = (char *)y.data, job.places = (int64_t *)order.data;
    job.dtype = x.dtype, job.size = element_size(x.dtype);
    job.falling = falling;
    job.with_row = job.size < 8 && rows.count >> 31 == 0;
    job.walk = walk_of(rows, rows.n);
    job.step[ORDER_X] = x.stride[last];
    job.step[ORDER_Y] = y.stride[last];
    job.step[ORDER_PLACES] = order.stride[last];
    job.n = divider_of(x.shape[last]), job.k = divider_of(y.shape[last]);
    job.count = x.numel, job.wanted = y.numel;
    return launch_order(ctx, job, rows.count);
}
