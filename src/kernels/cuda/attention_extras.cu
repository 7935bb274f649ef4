/* What only some calls of attention need: checks of lengths and starts, and the gradients of mask and sink. The mask's
 * gradient is that of the scaled and bounded scores. The sink's gradient is the sum of -P D over all queries, with the
 * sink's own probability P; attention_grad.cu defines D. The mask's gradient is summed along each dim along which the
 * mask is repeated. Its kernel computes the scores once more, so that one block adds each sum, in a fixed order. */
#include "kernels/cuda/attention_scores.h"
#include "kernels/cuda/slots.h"

namespace tg {
namespace {

enum { THREADS = 256 };

/* ---- Lengths and starts ---- */

/* Returns whether entry i of starts is invalid. */
__device__ bool bad_start(const int64_t *starts, int64_t sequences, int64_t total, int64_t i) {
    const int64_t s = i % (sequences + 1);
    starts += i - s;
    if (s == 0) return starts[0] != 0;
    return starts[s] < starts[s - 1] || starts[s] > total || (s == sequences && starts[s] != total);
}

/* Reports the first invalid entry of lengths, or of starts_q followed by starts_k. Lengths and starts are never given
 * together (ops.h). */
__global__ void __launch_bounds__(THREADS)
    check_extents(TG_PARAMETER(tg_mask_rules) r, int64_t batch, tg_cuda_fault fault) {
    const int64_t starts = r.entries * (r.sequences + 1), n = r.lengths ? batch : 2 * starts;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        bool bad = r.lengths ? r.lengths[i * r.length_stride] < 0 || r.lengths[i * r.length_stride] > r.sk
                   : i < starts ? bad_start(r.starts_q, r.sequences, r.sq, i)
                                : bad_start(r.starts_k, r.sequences, r.sk, i - starts);
        if (bad) atomicMin(fault.word, fault.call << 40 | (unsigned long long)i);
    }
}

/* ---- The mask's gradient ---- */

/* The arguments of attention_grad_mask. The four dims are batches, heads, tiles of queries and tiles of keys. */
struct MaskJob {
    Attention a;
    bool summed[4];           /* the mask is repeated along the dim, so its gradient is summed along it */
    int64_t all[4], parts[4]; /* the size of the dim; the number of blocks along it, 1 if summed */
};

/* The state of a block: tiles of queries of head (b, h) from `first` on, of keys, and of the mask. */
template <class E, int D, int WARPS> struct MaskTile {
    typedef typename TileElement<E>::T T;
    static constexpr int ROWS = WARPS * 16, NS = ROWS / 8;
    E *q, *o, *k, *v;
    T *mask;
    int64_t b, h, first;
    RowsSeen rows;
    Terms<T> terms[2];
    T sum[NS][4];

    __device__ void load_queries(const Attention &a) {
        const int64_t mine = first + threadIdx.x / 32 * 16;
        __syncthreads();
        tile_load<D>(q, a.q, b, h, first, ROWS, a.sq, a.dk);
        tile_load<D>(o, a.gout, b, h, first, ROWS, a.sq, a.dv);
        rows = rows_seen(a, b, mine);
        for (int r = 0; r < 2; r++) terms[r] = row_terms<T>(a, b, h, mine + threadIdx.x % 32 / 4 + r * 8);
    }

    /* Adds the gradients of the scores with the keys from `key` on to sum. */
    __device__ void pass(const Attention &a, int64_t key) {
        const int ld = tile_pitch<E>(D), warp = threadIdx.x / 32;
        const int64_t group = h / (a.heads / a.groups);
        T s[NS][4], gs[NS][4], scale = kept_scale<T>(a);
        __syncthreads();
        if (!mask_load<ROWS>(a, b, h, first, key, mask)) return;
        tile_load<D>(k, a.k, b, group, key, ROWS, a.sk, a.dk);
        tile_load<D>(v, a.v, b, group, key, ROWS, a.sk, a.dv);
        __syncthreads();
        clear<NS>(s);
        clear<NS>(gs);
        tile_product<false, NS>(s, q + warp * 16 * ld, ld, k, ld, ROWS, a.wide_k);
        tile_product<false, NS>(gs, o + warp * 16 * ld, ld, v, ld, ROWS, a.wide_v);
        uint32_t bits = a.dropout > 0 ? kept<NS, false>(a, b, h, first + warp * 16, key) : 0;
        scale_and_hide<NS>(a, rows, key, mask + warp * 16 * tile_pitch<T>(ROWS), (E *)NULL, s);
        TG_UNROLL
        for (int n = 0; n < 4 * NS; n++) {
            int f = n / 4, e = n % 4;
            bool none = s[f][e] == -(T)INFINITY;
            T keep = a.dropout > 0 ? (bits >> n & 1 ? scale : (T)0) : (T)1;
            score_grad<E, true, T>(a, none, keep, terms[e / 2], (T)1, &s[f][e], &gs[f][e]);
            sum[f][e] += gs[f][e];
        }
    }

    /* Stores the sums. First moves them to the mask's tile in shared memory. If the mask is repeated along queries or
     * keys, adds them up there along that dim. */
    __device__ void put(const MaskJob &job, const int64_t (&at)[4]) {
        const Attention &a = job.a;
        const int pitch = tile_pitch<T>(ROWS), m = job.summed[2] ? 1 : ROWS, n = job.summed[3] ? 1 : ROWS;
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, own = threadIdx.x / 32 * 16;
        __syncthreads();
        TG_UNROLL
        for (int c = 0; c < 4 * NS; c++)
            mask[(own + g + c % 4 / 2 * 8) * pitch + c / 4 * 8 + 2 * t + c % 2] = sum[c / 4][c % 4];
        __syncthreads();
        for (int c = threadIdx.x; c < m * n; c += blockDim.x) {
            int64_t i = at[2] * ROWS + c / n, j = at[3] * ROWS + c % n;
            if (i >= (job.summed[2] ? 1 : a.sq) || j >= (job.summed[3] ? 1 : a.sk)) continue;
            T total = 0;
            for (int y = c / n; y < (job.summed[2] ? ROWS : c / n + 1); y++)
                for (int x = c % n; x < (job.summed[3] ? ROWS : c % n + 1); x++) total += mask[y * pitch + x];
            put_element<T>(head_row(a.gmask, at[0], at[1], i), a.gmask.dtype, j * a.gmask.stride[3], a.add_mask, total);
        }
    }
};

template <class E, int D, int WARPS>
__global__ void __launch_bounds__(WARPS * 32) attention_grad_mask(TG_PARAMETER(MaskJob) job) {
    typedef MaskTile<E, D, WARPS> Tile;
    constexpr int ROWS = Tile::ROWS;
    const Attention &a = job.a;
    const int ld = tile_pitch<E>(D);
    int64_t first[4], last[4], u = blockIdx.x;
    TG_DYN_SHARED(E, shared);
    Tile w;
    w.q = shared, w.o = w.q + ROWS * ld, w.k = w.o + ROWS * ld, w.v = w.k + ROWS * ld;
    w.mask = (typename Tile::T *)(w.v + ROWS * ld);
    for (int d = 3; d >= 0; u /= job.parts[d], d--) {
        first[d] = job.summed[d] ? 0 : u % job.parts[d];
        last[d] = job.summed[d] ? job.all[d] : first[d] + 1;
    }
    clear<Tile::NS>(w.sum);
    for (w.b = first[0]; w.b < last[0]; w.b++)
        for (w.h = first[1]; w.h < last[1]; w.h++)
            for (int64_t tile = first[2]; tile < last[2]; tile++) {
                w.first = tile * ROWS;
                int64_t end = w.first + ROWS < a.sq ? w.first + ROWS - 1 : a.sq - 1;
                int64_t from = tg_mask_keys(&a.rules, w.b, w.first).first, to = tg_mask_keys(&a.rules, w.b, end).end;
                w.load_queries(a);
                for (int64_t key = first[3] * ROWS; key < last[3] * ROWS; key += ROWS)
                    if (key < to && key + ROWS > from) w.pass(a, key);
            }
    w.put(job, first);
}

template <class E, int D> tg_status launch_mask(tg_ctx *ctx, const Attention &a) {
    constexpr int WARPS = warps_of<E, D, true>(), ROWS = WARPS * 16;
    constexpr size_t bytes = shared_of<E, D, true>(4) + mask_bytes<typename TileElement<E>::T, ROWS>();
    static_assert(bytes <= MOST_SHARED, "a block's tiles fit");
    MaskJob job = {a, {}, {a.batch, a.heads, (a.sq + ROWS - 1) / ROWS, (a.sk + ROWS - 1) / ROWS}, {}};
    int64_t blocks = 1;
    for (int d = 0; d < 4; d++) {
        job.summed[d] = a.gmask.stride[d] == 0;
        job.parts[d] = job.summed[d] ? 1 : job.all[d];
        blocks *= job.parts[d];
    }
    if (!blocks) return TG_OK;
    tg_status s = allow_launch(ctx, attention_grad_mask<E, D, WARPS>, bytes, blocks);
    if (s != TG_OK) return s;
    TG_LAUNCH((attention_grad_mask<E, D, WARPS>), (unsigned)blocks, WARPS * 32, bytes, tg_cuda_of(ctx)->compute, job);
    return tg_cuda_launched(ctx, "attention_grad_mask");
}

/* ---- The sink's gradient ---- */

/* A block computes the gradient of one head's sink, from all rows of the head. */
template <class T> __global__ void __launch_bounds__(THREADS) attention_grad_sink(TG_PARAMETER(Attention) a) {
    __shared__ double part[THREADS];
    const int64_t h = blockIdx.x;
    const double sink = load<double>(head_row(a.sink, 0, h, 0), a.sink.dtype, 0);
    double sum = 0;
    for (int64_t r = threadIdx.x; r < a.batch * a.sq; r += THREADS) {
        Terms<T> w = row_terms<T>(a, r / a.sq, h, r % a.sq);
        sum -= tg_m_exp(sink - (double)w.top) * (double)w.inverse_mass * (double)w.delta;
    }
    part[threadIdx.x] = sum;
    for (unsigned n = THREADS / 2; n; n /= 2) {
        __syncthreads();
        if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
    }
    if (threadIdx.x == 0) put_element<T>(head_row(a.gsink, 0, h, 0), a.gsink.dtype, 0, a.add_sink, (T)part[0]);
}

} // namespace

tg_status attention_check(tg_ctx *ctx, const Attention &a) {
    if (!a.rules.lengths && !a.rules.starts_q) return TG_OK;
    TG_LAUNCH(check_extents, 1, THREADS, 0, tg_cuda_of(ctx)->compute, a.rules, a.batch,
              tg_cuda_fault_for(ctx, "attention", 1));
    return tg_cuda_launched(ctx, "check_extents");
}

tg_status attention_extras_grad(tg_ctx *ctx, const tg_attention_args *a, Attention t) {
    int most = t.dk > t.dv ? t.dk : t.dv;
    if (t.gmask.data && most > WIDEST_HEAD) return too_wide(ctx, most);
    tg_status s = t.gmask.data ? TG_ATTENTION_KINDS(launch_mask, kind_of(a), most, ctx, t) : TG_OK;
    if (s != TG_OK || !t.gsink.data || !t.heads) return s;
    if (a->q.dtype == TG_F64)
        TG_LAUNCH((attention_grad_sink<double>), (unsigned)t.heads, THREADS, 0, tg_cuda_of(ctx)->compute, t);
    else
        TG_LAUNCH((attention_grad_sink<float>), (unsigned)t.heads, THREADS, 0, tg_cuda_of(ctx)->compute, t);
    return tg_cuda_launched(ctx, "attention_grad_sink");
}

} // namespace tg
