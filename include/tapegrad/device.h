/* Devices: the table of functions that makes a device, and the arrays that a kernel gets. Those who write a device
 * include this header, mostly through extend.h.
 *
 * A device is one static const tg_device_ops. Every op runs on it through its slots.
 */
#ifndef TAPEGRAD_DEVICE_H
#define TAPEGRAD_DEVICE_H

#include <tapegrad/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Arrays: what a kernel gets ---- */

/* The bytes of a tensor and their layout, found when a kernel is launched and valid during one call. Strides are in
 * elements; a dim that is broadcast has stride 0. data is NULL for an absent array. */
typedef struct tg_array {
    void *data;
    const int64_t *shape, *stride;
    int64_t numel;
    uint8_t ndim;
    uint8_t dtype;
    bool contiguous; /* row-major, without gaps */
} tg_array;

/* Returns the array of x; all zero for NULL and for a tensor whose bytes are gone. */
TG_API tg_array tg_array_of(const tg_tensor *x);

/* ---- Devices ---- */

/* The number of an element-wise formula, a row of src/kernels/scalar.h: 0 to tg_formula_count() - 1. */
typedef int tg_formula;
TG_API int tg_formula_count(void);
TG_API const char *tg_formula_name(tg_formula f); /* "?" if out of range */
TG_API int tg_formula_inputs(tg_formula f);       /* how many inputs it has; 0 if out of range */
/* Evaluates the formula on doubles; a device's map is compared with this. in[] holds the inputs, p two parameters
 * (NULL: zeros). Returns NaN if f is out of range or in is NULL. */
TG_API double tg_formula_eval(tg_formula f, const double *in, const double *p);

typedef enum tg_reduction { TG_SUM, TG_PROD, TG_MAX, TG_MIN, TG_ARGMAX, TG_ARGMIN, TG_SUMSQ } tg_reduction;
typedef enum tg_random { TG_RANDOM_UNIFORM, TG_RANDOM_NORMAL } tg_random;
typedef enum tg_activation { TG_ACT_NONE, TG_ACT_RELU, TG_ACT_GELU_TANH, TG_ACT_GELU, TG_ACT_SILU } tg_activation;
typedef enum tg_copy_kind { TG_COPY_DEVICE, TG_COPY_TO_HOST, TG_COPY_FROM_HOST } tg_copy_kind;

/* A matrix, or batch[0] x batch[1] matrices. Element (i, j) of matrix (u, v) is at data + u bs[0] + v bs[1] + i rs + j
 * cs, in elements. The strides are arbitrary; swapping rs and cs transposes. */
typedef struct tg_matrix {
    void *data;
    int64_t rs, cs, bs[2];
    tg_dtype dtype;
} tg_matrix;

/* C[m,n] = act(alpha A[m,k] B[k,n] + beta C + bias[n]), for every batch. A and B have the same dtype. C has that dtype,
 * or float32 with 16-bit A and B. Sums run in float32 (float64 for float64). The k dim is split by shape alone, in a
 * fixed order, so the bits depend neither on the number of threads nor on the other matrices of the batch. If beta is
 * 0, C is not read. */
typedef struct tg_gemm {
    int64_t m, n, k, batch[2];
    tg_matrix a, b, c;
    double alpha, beta;
    const void *bias; /* [n], contiguous, of bias_dtype; NULL: none */
    tg_dtype bias_dtype;
    tg_activation act;
    tg_matrix pre; /* data not NULL: receives the value before the activation, in this layout */
} tg_gemm;

/* Which draw of a random stream each element of an array takes.
 *
 * Write the row-major position of the element in the mixed radix of extent[], outermost digit first. The outermost
 * digit takes what remains. The element takes draw number rng.counter + (the sum of digit times stride). n 0: draw
 * number rng.counter + position. In this way the elements of a shard draw by their place in the global tensor. The
 * innermost stride is mostly 1, so that a run of that digit draws consecutive numbers.
 *
 * In a captured step `captured` is on the device. Its seed and stream replace those of rng, and its counter is added to
 * rng.counter.
 */
enum { TG_DRAW_DIGITS = 8 };
typedef struct tg_draws {
    tg_rng rng;
    int n;
    int64_t extent[TG_DRAW_DIGITS], stride[TG_DRAW_DIGITS];
    const tg_rng *captured; /* NULL: no captured step */
} tg_draws;

/* Returns the number of the draw, rng.counter included; 0 if d is NULL. */
TG_API uint64_t tg_draw_number(const tg_draws *d, int64_t position);

/* Attention over q [b,h,sq,dk], k [b,g,sk,dk], v [b,g,sk,dv] into out [b,h,sq,dv]. h is a multiple of g
 * (grouped-query). The scores, scale q k^T + mask, exist only in tiles. top [b,h,sq] is a row's greatest score, its
 * sink's included. mass [b,h,sq] is the sum of exp(score - top), 0 if the row sees no key. Both are float32 (float64
 * for float64). Dropout of element (b,h,i,j) takes the draw of position ((b*H + h)*sq + i)*sk + j.
 *
 * Query i sees these keys j, with p = i + sk - sq:
 * - j <= p, if causal;
 * - j <= p + right and j >= p - left, where these are bounds;
 * - j < lengths[b], if lengths is given;
 * - those for which the mask is true, if the mask is bool.
 *
 * If starts_q and starts_k are given, they pack several sequences. Sequence s has the queries from starts_q[s] to
 * starts_q[s + 1] and the keys likewise. A query sees only the keys of its own sequence, and p is counted so that
 * the last query of the sequence is at the place of its last key. A query that sees no key gives zeros.
 */
typedef struct tg_attention_args {
    tg_array q, k, v, out, top, mass;
    double scale, dropout;
    bool causal, left_bound, right_bound;
    int64_t left, right;       /* 0 or more */
    tg_array mask;             /* of shape [b,h,sq,sk], stride 0 where it is repeated; bool or float */
    tg_array sink;             /* [h]: a logit that is added to the denominator only */
    tg_array lengths;          /* [b], int64, in [0, sk] */
    tg_array starts_q, starts_k; /* [n + 1], int64, contiguous, from 0 to sq and sk, never falling; b is 1 */
    /* Forward: bad[0] receives 1 + the position of the first invalid entry of lengths, or of starts_q and starts_k,
     * which are counted as one array. NULL: they have been checked. */
    int64_t *bad;
    tg_draws draws;
    tg_array gout, gq, gk, gv; /* for the gradient; data NULL: not wanted */
    bool add_q, add_k, add_v;  /* add to gq, gk, gv instead of writing them */
    tg_array gmask, gsink;     /* gmask is laid out as the mask, and is summed along dims of stride 0 */
    bool add_mask, add_sink;
} tg_attention_args;

/* Normalization of the rows along the last dim. y = (x - mean) rstd w + b, or with rms: y = x rstd w. mean and rstd are
 * [rows], float32 (float64 for float64); with rms, mean is not written. w and b are [last dim]; data NULL: absent. */
typedef struct tg_norm_args {
    tg_array x, w, b, y, mean, rstd;
    double eps;
    bool rms;
    tg_array gy, gx, gw, gb; /* for the gradient; data NULL: not wanted */
    bool add_x, add_w, add_b;
} tg_norm_args;

/* Cross entropy over logits [rows, classes], each row contiguous, and target [rows], int64.
 *
 * loss[r] = (1 - s) nll + s mean(-log p), with PyTorch's smoothing s; 0 if the target is ignore_index. top[r] is the
 * row's greatest logit, and mass[r] the sum of exp(x - top[r]). They are -inf and 0 if no logit is above -inf. The
 * probability of x is exp(x - top) / mass. There are two numbers because log(sum exp) alone loses precision where
 * logits are large. top, mass and loss are float32 (float64 for float64). glogits may be the memory of logits. A target
 * out of range is a data error: bad[0] receives row + 1 of the first.
 *
 * A shard of the vocabulary sets `classes`, the number of all classes. Its logits are the columns from `first` on,
 * possibly none; targets are in [0, classes). top and mass are then of these columns. With d = x - top (x itself if
 * mass is 0), loss[r] is their part of the loss: -(1 - s) d[target] if the target is here, minus s / classes sum(d). If
 * d were instead relative to the top of all shards, the loss would be the sum of the parts plus log(mass) over all
 * shards. In the gradient, top and mass are those over all shards.
 */
typedef struct tg_cross_entropy_args {
    tg_array logits, target, loss, top, mass;
    int64_t ignore_index;
    int64_t first, classes; /* 0, 0: the logits are whole */
    double smoothing;
    int64_t *bad;
    tg_array gloss, glogits; /* for the gradient */
    bool add;
} tg_cross_entropy_args;

/* The arguments of an optimizer's step; step.h defines them. */
typedef struct tg_prepare_args tg_prepare_args;
typedef struct tg_adamw_args tg_adamw_args;

/* The table of a device. A slot returns TG_OK or calls tg_ctx_fail. The caller has checked the arrays: shapes fit, and
 * dtypes are among the eight core ones. `add` true: the slot adds to the output; otherwise it writes the output and
 * does not read it. Outputs do not overlap inputs, except that the output of an element-wise slot may be exactly one of
 * its inputs. */
struct tg_device_ops {
    size_t size;
    const char *name;
    bool host; /* the host may read and write the device's bytes directly */

    /* Required: memory and order. A device may queue the work of the slots below; it then runs in the order of
     * calls. */
    tg_status (*open)(tg_ctx *ctx, void **dev); /* sets *dev to the context's state of the device */
    void (*close)(tg_ctx *ctx, void *dev);      /* called when the context ends */
    void *(*alloc)(tg_ctx *ctx, size_t bytes, size_t align); /* NULL: no memory, which the library reports */
    void (*free)(tg_ctx *ctx, void *p, size_t bytes);
    /* Copies bytes. When it returns, host memory has been read or filled, and may be reused. */
    tg_status (*copy)(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind);
    tg_status (*sync)(tg_ctx *ctx); /* waits on the host until all queued work is done */
    /* Marks the present end of the queue. Creates an event if *event is NULL. */
    tg_status (*event_record)(tg_ctx *ctx, void **event);
    tg_status (*event_wait)(tg_ctx *ctx, void *event); /* makes work queued from now on run after the event */
    void (*event_free)(tg_ctx *ctx, void *event);

    /* Required: the operations from which all others can be composed. They take any strides and dtypes, and convert as
     * they load and store (round to nearest even). */
    /* out = formula(in...): map, zip, cast, permute and strided copy in one. in[] has the shape of out (a broadcast dim
     * has stride 0). Computes in float32, float64 or int64, by the widest input. */
    tg_status (*map)(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n_in, const double p[2],
                     bool add);
    /* Sets every element to value. */
    tg_status (*fill)(tg_ctx *ctx, tg_array out, double value);
    /* out[i] = start + i step, in row-major order. */
    tg_status (*iota)(tg_ctx *ctx, tg_array out, double start, double step);
    /* out = scale * reduction. out has the ndim of in, with size 1 (or stride 0) in the reduced dims. The order of the
     * sums is fixed. TG_ARGMAX and TG_ARGMIN give the int64 index in the one reduced dim, the first of equals. In
     * TG_MAX, TG_MIN and their ARG forms, NaN wins over any number. */
    tg_status (*reduce)(tg_ctx *ctx, tg_reduction kind, tg_array out, tg_array in, double scale, bool add);
    tg_status (*gemm)(tg_ctx *ctx, const tg_gemm *g); /* matrix products, see tg_gemm */
    /* take: out[.., i, ..] = src[.., index[.., i, ..], ..] along dim. index (int64 or int32) has the shape of out,
     * stride 0 where broadcast. put_add adds src into dst at index, in row-major order of src, so sums have a fixed
     * order. bad[0] receives 1 + the position of the first index out of range, where nothing is read or written. bad
     * NULL: such positions are skipped without an error. */
    tg_status (*take)(tg_ctx *ctx, tg_array out, tg_array src, tg_array index, int dim, int64_t *bad);
    tg_status (*put_add)(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
    /* Fills each element from its draw: uniform in [a, b), or normal with mean a and standard deviation b. */
    tg_status (*random)(tg_ctx *ctx, tg_random kind, tg_array out, double a, double b, const tg_draws *draws);

    /* Optional: a NULL slot is composed from the required ones. softmax, norm, scan and sort work on the last dim, with
     * any strides. */
    tg_status (*softmax)(tg_ctx *ctx, tg_array y, tg_array x, bool log); /* log: the logarithm of the softmax */
    tg_status (*softmax_grad)(tg_ctx *ctx, tg_array gx, tg_array gy, tg_array y, bool log, bool add);
    tg_status (*norm)(tg_ctx *ctx, const tg_norm_args *a);
    tg_status (*norm_grad)(tg_ctx *ctx, const tg_norm_args *a);
    tg_status (*cross_entropy)(tg_ctx *ctx, const tg_cross_entropy_args *a);
    tg_status (*cross_entropy_grad)(tg_ctx *ctx, const tg_cross_entropy_args *a);
    tg_status (*attention)(tg_ctx *ctx, const tg_attention_args *a);
    tg_status (*attention_grad)(tg_ctx *ctx, const tg_attention_args *a);
    /* y (+)= x keep / (1 - p), where keep of an element is true if its draw, as a uniform number, is >= p. Serves
     * forward and backward. */
    tg_status (*dropout)(tg_ctx *ctx, tg_array y, tg_array x, double p, const tg_draws *draws, bool add);
    /* y[.., i] (+)= the sum (TG_SUM) or product (TG_PROD) of x[.., 0] to x[.., i]; with back, of x[.., i] to the last.
     * Runs in float32, float64 or int64, by the wider of the two, in an order that the shape alone fixes. */
    tg_status (*scan)(tg_ctx *ctx, tg_reduction kind, tg_array y, tg_array x, bool back, bool add);
    /* Sorts the rows of x in rising (or falling) order, and keeps the first, as many as y has. y[.., i] is an element,
     * of x's dtype; order[.., i], int64, is its place in x. Equal elements keep their order. NaN is greater than any
     * number. NULL: the ops that sort fail with TG_ERR_UNSUPPORTED. */
    tg_status (*sort)(tg_ctx *ctx, tg_array y, tg_array order, tg_array x, bool falling);
    /* Like put_add, but overwrites elements of dst. If several write the same element, the last in row-major order
     * wins. */
    tg_status (*put)(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
    /* Prepares one step (step.h). NULL: the host does it, reading and writing the device's memory. */
    tg_status (*prepare)(tg_ctx *ctx, const tg_prepare_args *a);
    /* Steps n parameters, in as few launches as possible. */
    tg_status (*adamw)(tg_ctx *ctx, const tg_adamw_args *a, int n);
    /* Reports data errors that kernels have found, as TG_ERR_DATA. Each reset of a tape calls it, so an error is known
     * two resets later. NULL: slots report at once. A device with this slot leaves bad[0] alone. */
    tg_status (*poll)(tg_ctx *ctx);
    /* Adds NaN to *sum, a float64 on the device, if kernels have found a data error that poll has not returned yet;
     * otherwise leaves it alone. Queued like other work. A device with poll also has this slot. NULL: slots report such
     * errors at once. */
    tg_status (*fault_sum)(tg_ctx *ctx, double *sum);
    /* Captured steps (capture.h): all four slots, or none. From begin to end, slots record what they would queue.
     * capture_end returns what was recorded and its number of nodes; if keep is false, or on an error, it returns
     * nothing. capture_free is called after the last capture_launch, whose work may still be running. */
    tg_status (*capture_begin)(tg_ctx *ctx);
    tg_status (*capture_end)(tg_ctx *ctx, bool keep, void **graph, int64_t *nodes);
    tg_status (*capture_launch)(tg_ctx *ctx, void *graph);
    void (*capture_free)(tg_ctx *ctx, void *graph);
    /* Copies in parallel with kernels (work.h): all five slots, or none; NULL: the slot copy does them at once.
     * host_alloc returns host memory that the device reaches by itself; NULL without an error: no more is available.
     * copy_async copies between such memory and the device, after what slots have queued so far and in parallel with
     * what they queue later. It records *event after the copy, and creates the event if *event is NULL. On an error no
     * copy is in flight. */
    void *(*host_alloc)(tg_ctx *ctx, size_t bytes);
    void (*host_free)(tg_ctx *ctx, void *p, size_t bytes);
    tg_status (*copy_async)(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind, void **event);
    bool (*event_test)(tg_ctx *ctx, void *event); /* Returns whether the event has been reached, or has failed. */
    tg_status (*event_await)(tg_ctx *ctx, void *event); /* waits on the host */
};

/* Return the table of the context's device, and the state that its slot open has made. */
TG_API const tg_device_ops *tg_ctx_ops(const tg_ctx *ctx);
TG_API void *tg_ctx_device_state(const tg_ctx *ctx);
/* Runs body over [0, n) on the threads of the context, or by tg_config.parallel_for. The pool chooses the boundaries of
 * the chunks. */
TG_API void tg_parallel_run(tg_ctx *ctx, int64_t n, tg_range_fn body, void *arg);
/* Returns work memory of at least `bytes` bytes, 64-byte aligned, kept for the next call. There is one block for each
 * slot number in [0, TG_WORKSPACES). NULL after recording the error. */
enum { TG_WORKSPACES = 8 };
TG_API void *tg_workspace(tg_ctx *ctx, int slot, size_t bytes);

#ifdef __cplusplus
}
#endif

#include <tapegrad/step.h>

#endif
