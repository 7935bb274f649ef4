/* For writers of devices: the table of slots, and what a kernel sees.
 *
 * A device is one static const tg_device_ops; every op of the table runs on it through its slots.
 */
#ifndef TAPEGRAD_DEVICE_H
#define TAPEGRAD_DEVICE_H

#include <tapegrad/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What a kernel sees ---- */

/* Bytes resolved at launch, with their layout; valid during one call. Strides are in elements, 0 where a dim is
 * broadcast. data is NULL for an absent array. */
typedef struct tg_array {
    void *data;
    const int64_t *shape, *stride;
    int64_t numel;
    uint8_t ndim;
    uint8_t dtype;
    bool contiguous; /* row-major without gaps */
} tg_array;

TG_API tg_array tg_array_of(const tg_tensor *x); /* all zero for NULL and for what has no bytes any more */

/* ---- Devices ---- */

/* Element-wise formulas, by number: the rows of src/kernels/scalar.h. */
typedef int tg_formula;
TG_API int tg_formula_count(void);
TG_API const char *tg_formula_name(tg_formula f); /* "?" out of range */
TG_API int tg_formula_inputs(tg_formula f);       /* 0 out of range */
/* The formula on doubles: the reference for a device's map. in[] holds its inputs, p two parameters (NULL: zeros). NaN
 * for a number out of range, or without in. */
TG_API double tg_formula_eval(tg_formula f, const double *in, const double *p);

typedef enum tg_reduction { TG_SUM, TG_PROD, TG_MAX, TG_MIN, TG_ARGMAX, TG_ARGMIN, TG_SUMSQ } tg_reduction;
typedef enum tg_random { TG_RANDOM_UNIFORM, TG_RANDOM_NORMAL } tg_random;
typedef enum tg_activation { TG_ACT_NONE, TG_ACT_RELU, TG_ACT_GELU_TANH, TG_ACT_GELU, TG_ACT_SILU } tg_activation;
typedef enum tg_copy_kind { TG_COPY_DEVICE, TG_COPY_TO_HOST, TG_COPY_FROM_HOST } tg_copy_kind;

/* A matrix, or batch[0] x batch[1] of them: element (i, j) of the one at (u, v) lies at
 * data + u bs[0] + v bs[1] + i rs + j cs, in elements. Any strides; transposition is a swap of rs and cs. */
typedef struct tg_matrix {
    void *data;
    int64_t rs, cs, bs[2];
    tg_dtype dtype;
} tg_matrix;

/* C[m,n] = act(alpha A[m,k] B[k,n] + beta C + bias[n]), for every batch. A and B have one dtype; C that dtype, or
 * float32 beside 16-bit operands; sums run in float32 (float64 for float64). K is cut by shape alone, in a fixed
 * order: bits depend neither on the thread count nor on neighbours in the batch. beta 0 never reads C. */
typedef struct tg_gemm {
    int64_t m, n, k, batch[2];
    tg_matrix a, b, c;
    double alpha, beta;
    const void *bias; /* [n], contiguous, of bias_dtype; NULL: none */
    tg_dtype bias_dtype;
    tg_activation act;
    tg_matrix pre; /* data not NULL: receives the value before the activation, laid out as it says */
} tg_gemm;

/* Which draw each element of an array takes. Write the element's row-major position in the mixed radix of extent[],
 * outermost digit first, where the outermost takes what is left over: it draws number rng.counter + the sum of digit
 * times stride. n 0: number rng.counter + position. So the elements of a shard draw by their places in the global
 * tensor; the innermost stride is mostly 1, and a run of that digit draws consecutive numbers. In a captured step moved
 * is on the device: its seed and stream are the ones to take, and its counter is added to rng.counter. */
enum { TG_DRAW_DIGITS = 8 };
typedef struct tg_draws {
    tg_rng rng;
    int n;
    int64_t extent[TG_DRAW_DIGITS], stride[TG_DRAW_DIGITS];
    const tg_rng *moved; /* NULL: not captured */
} tg_draws;

TG_API uint64_t tg_draw_number(const tg_draws *d, int64_t position); /* rng.counter and all; 0 for NULL */

/* Attention over q [b,h,sq,dk], k [b,g,sk,dk], v [b,g,sk,dv], out [b,h,sq,dv]; h a multiple of g (grouped-query). The
 * scores, scale q k^T + mask, exist in tiles only. top [b,h,sq]: a row's greatest score, its sink's included; mass
 * [b,h,sq]: the sum of exp(score - top), 0 where the row sees no key; both float32 (float64 for float64). Dropout of
 * element (b,h,i,j) takes the draw of position ((b*H + h)*sq + i)*sk + j.
 * Which keys query i sees: with p = i + sk - sq, its place among them, those j <= p when causal, j <= p + right and
 * j >= p - left where these are bounds, j < lengths[b]; and where the mask is bool, those for which it holds. With
 * starts sequence s is the queries from starts_q[s] to starts_q[s + 1] and the keys alike: a query sees keys of its own
 * sequence only, and p is the place in which the last of both meet. A query that sees none gives zeros. */
typedef struct tg_attention_args {
    tg_array q, k, v, out, top, mass;
    double scale, dropout;
    bool causal, left_bound, right_bound;
    int64_t left, right;       /* 0 or more */
    tg_array mask;             /* seen as [b,h,sq,sk], stride 0 where it is repeated; bool or float */
    tg_array sink;             /* [h]: a logit that joins the denominator only */
    tg_array lengths;          /* [b] int64, in [0, sk] */
    tg_array starts_q, starts_k; /* [n + 1] int64, contiguous, from 0 to sq and sk, never falling; b is 1 */
    int64_t *bad; /* forward: bad[0] receives 1 + the position of the first wrong one of lengths, or of starts_q and
                     starts_k behind it; NULL: they are right */
    tg_draws draws;
    tg_array gout, gq, gk, gv; /* of the gradient; data NULL: not wanted */
    bool add_q, add_k, add_v;  /* add into gq, gk, gv instead of writing */
    tg_array gmask, gsink;     /* gmask as the mask: summed along dims of stride 0 */
    bool add_mask, add_sink;
} tg_attention_args;

/* Rows of the last dim. y = (x - mean) rstd w + b, or with rms: y = x rstd w. mean and rstd are [rows], float32
 * (float64 for float64); rms leaves mean alone. w, b: [last dim], data NULL: absent. */
typedef struct tg_norm_args {
    tg_array x, w, b, y, mean, rstd;
    double eps;
    bool rms;
    tg_array gy, gx, gw, gb; /* of the gradient; data NULL: not wanted */
    bool add_x, add_w, add_b;
} tg_norm_args;

/* Rows of logits [rows, classes], contiguous rows; target [rows] int64. loss[r] = (1 - s) nll + s mean(-log p) (the
 * smoothing of PyTorch), 0 where target is ignore_index. top[r]: the row's greatest logit, and mass[r]: the sum of
 * exp(x - top[r]), -inf and 0 where there is none above -inf; the probability of x is exp(x - top) / mass. Their
 * log-sum-exp as one number would cost as many digits as the logits are large. top, mass and loss: float32 (float64 for
 * float64). glogits may be the logits' own memory. A target out of range is a data error: bad[0] receives row + 1 of
 * the first.
 *
 * A shard of a vocabulary says so by `classes`: its logits are the columns from `first` on, perhaps none, of so many;
 * targets are in [0, classes). top and mass are then of these columns, and with d = x - top (x itself where mass is 0)
 * loss[r] is their part of it: -(1 - s) d[target] if that is here, less s / classes sum(d). Were d less the top of all
 * shards, the sum of the parts and log(mass) over all shards would be the loss. In the gradient top and mass are those
 * over all shards. */
typedef struct tg_cross_entropy_args {
    tg_array logits, target, loss, top, mass;
    int64_t ignore_index;
    int64_t first, classes; /* 0, 0: the logits are whole */
    double smoothing;
    int64_t *bad;
    tg_array gloss, glogits; /* of the gradient */
    bool add;
} tg_cross_entropy_args;

/* Of an optimiser's step: in step.h. */
typedef struct tg_prepare_args tg_prepare_args;
typedef struct tg_adamw_args tg_adamw_args;

/* Slots return TG_OK or call tg_ctx_fail. Arrays have been checked by the caller: shapes fit, dtypes are among the
 * eight of the core. `add` adds to the output instead of writing; a writing slot never reads its output. Outputs do not
 * overlap inputs, except where an element-wise slot's output is exactly an input. */
struct tg_device_ops {
    size_t size;
    const char *name;
    bool host; /* the host may read and write the device's bytes directly */

    /* Required: memory and order */
    tg_status (*open)(tg_ctx *ctx, void **dev);
    void (*close)(tg_ctx *ctx, void *dev);
    void *(*alloc)(tg_ctx *ctx, size_t bytes, size_t align);
    void (*free)(tg_ctx *ctx, void *p, size_t bytes);
    tg_status (*copy)(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind);
    tg_status (*sync)(tg_ctx *ctx);
    tg_status (*event_record)(tg_ctx *ctx, void **event); /* *event NULL: makes one */
    tg_status (*event_wait)(tg_ctx *ctx, void *event);
    void (*event_free)(tg_ctx *ctx, void *event);

    /* Required: the operations that every other can be composed of. All take any strides and dtypes: they convert as
     * they load and store (round to nearest even). */
    /* out = formula(in...): map, zip, cast, permute and strided copy in one. in[] has out's shape (broadcast by stride
     * 0). Computes in float32, float64 or int64, by the widest input. */
    tg_status (*map)(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n_in, const double p[2],
                     bool add);
    tg_status (*fill)(tg_ctx *ctx, tg_array out, double value);
    /* out[i] = start + i step, in row-major order. */
    tg_status (*iota)(tg_ctx *ctx, tg_array out, double start, double step);
    /* out has in's ndim, with size 1 (or stride 0) in the reduced dims. Fixed order. ARG*: int64 index within the one
     * reduced dim, the first of equals; NaN wins over any number, as in MAX and MIN. out = scale * reduction. */
    tg_status (*reduce)(tg_ctx *ctx, tg_reduction kind, tg_array out, tg_array in, double scale, bool add);
    tg_status (*gemm)(tg_ctx *ctx, const tg_gemm *g);
    /* out[.., i, ..] = src[.., index[.., i, ..], ..] along dim; index (int64 or int32) has out's shape, stride 0 where
     * broadcast. put_add adds src into dst at index, in row-major order of src (sums of fixed order).
     * bad[0] receives 1 + position of the first index out of range, where nothing is read or written; bad NULL: such
     * positions are left out, and no error. */
    tg_status (*take)(tg_ctx *ctx, tg_array out, tg_array src, tg_array index, int dim, int64_t *bad);
    tg_status (*put_add)(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
    /* Each element from its draw: uniform in [a, b), or normal of mean a and deviation b. */
    tg_status (*random)(tg_ctx *ctx, tg_random kind, tg_array out, double a, double b, const tg_draws *draws);

    /* Optional: NULL is composed from the required ones. softmax, norm, scan and sort work on the last dim, any
     * strides. */
    tg_status (*softmax)(tg_ctx *ctx, tg_array y, tg_array x, bool log);
    tg_status (*softmax_grad)(tg_ctx *ctx, tg_array gx, tg_array gy, tg_array y, bool log, bool add);
    tg_status (*norm)(tg_ctx *ctx, const tg_norm_args *a);
    tg_status (*norm_grad)(tg_ctx *ctx, const tg_norm_args *a);
    tg_status (*cross_entropy)(tg_ctx *ctx, const tg_cross_entropy_args *a);
    tg_status (*cross_entropy_grad)(tg_ctx *ctx, const tg_cross_entropy_args *a);
    tg_status (*attention)(tg_ctx *ctx, const tg_attention_args *a);
    tg_status (*attention_grad)(tg_ctx *ctx, const tg_attention_args *a);
    /* y (+)= x keep / (1 - p), where keep of an element is its draw, as a uniform, >= p. Serves both directions. */
    tg_status (*dropout)(tg_ctx *ctx, tg_array y, tg_array x, double p, const tg_draws *draws, bool add);
    /* y[.., i] (+)= the sum (kind TG_SUM) or product (TG_PROD) of x[.., 0] to x[.., i]; back: of x[.., i] to the last.
     * Runs in float32, float64 or int64, by the wider of the two, in an order that the shape alone fixes. */
    tg_status (*scan)(tg_ctx *ctx, tg_reduction kind, tg_array y, tg_array x, bool back, bool add);
    /* The first places of x's rows in rising (falling) order, as many as y has: y[.., i] is the element, of x's dtype,
     * and order[.., i], int64, where it stood. Equal ones stay in their order; NaN is greater than any number. NULL:
     * the ops that sort are refused (TG_ERR_UNSUPPORTED). */
    tg_status (*sort)(tg_ctx *ctx, tg_array y, tg_array order, tg_array x, bool falling);
    /* As put_add, but dst's elements become src's: of several that land on one, the last in row-major order. */
    tg_status (*put)(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
    tg_status (*prepare)(tg_ctx *ctx, const tg_prepare_args *a); /* NULL: by the host, which reads and writes */
    tg_status (*adamw)(tg_ctx *ctx, const tg_adamw_args *a, int n); /* n parameters, in as few launches as can be */
    /* What kernels had found wrong in data when it was called last, as TG_ERR_DATA; each reset of a tape calls it, so
     * that errors are known two resets later. NULL: slots tell at once. A device that has it leaves bad[0] alone. */
    tg_status (*poll)(tg_ctx *ctx);
    /* Adds NaN to *sum, a float64 on the device, if kernels have found an error in data that poll has not returned yet;
     * else leaves it alone. Queued like other work. A device that has poll has it. NULL: slots return such errors at
     * once. */
    tg_status (*fault_sum)(tg_ctx *ctx, double *sum);
    /* Captured steps (capture.h): all four, or none. From begin to end slots record what they would queue. end: what
     * was recorded, and how many nodes it has; keep false, or an error: nothing. free comes behind all launches. */
    tg_status (*capture_begin)(tg_ctx *ctx);
    tg_status (*capture_end)(tg_ctx *ctx, bool keep, void **graph, int64_t *nodes);
    tg_status (*capture_launch)(tg_ctx *ctx, void *graph);
    void (*capture_free)(tg_ctx *ctx, void *graph);
    /* Copies beside the kernels (work.h): all five, or none; NULL: copy does them, at once. host_alloc: memory of the
     * host that the device reaches by itself; NULL without an error: there is no more. copy_beside copies between such
     * memory and the device, behind what slots have queued so far and beside what they queue from now on; *event is
     * recorded behind it, made where it is NULL. On an error nothing is under way. */
    void *(*host_alloc)(tg_ctx *ctx, size_t bytes);
    void (*host_free)(tg_ctx *ctx, void *p, size_t bytes);
    tg_status (*copy_beside)(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind, void **event);
    bool (*event_test)(tg_ctx *ctx, void *event); /* has it come so far, or failed? */
    tg_status (*event_await)(tg_ctx *ctx, void *event); /* the host waits */
};

TG_API const tg_device_ops *tg_ctx_ops(const tg_ctx *ctx);
TG_API void *tg_ctx_device_state(const tg_ctx *ctx);
/* Runs body over [0, n) on the context's threads; chunk boundaries are up to the pool. */
TG_API void tg_parallel_run(tg_ctx *ctx, int64_t n, tg_range_fn body, void *arg);
/* Work memory of a slot, kept for the next call: at least bytes, 64-byte aligned, one block a slot number in
 * [0, TG_WORKSPACES). NULL after recording the error. */
enum { TG_WORKSPACES = 8 };
TG_API void *tg_workspace(tg_ctx *ctx, int slot, size_t bytes);

#ifdef __cplusplus
}
#endif

#include <tapegrad/step.h>

#endif
