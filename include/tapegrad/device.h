/* Devices: the table of functions that defines a device, and the arguments of its kernels. Programs that define a
 * device include this header, mostly through extend.h.
 *
 * A device is one static const tg_device_ops, a table of function pointers, which are called slots. All ops run on the
 * device through these slots.
 */
#ifndef TAPEGRAD_DEVICE_H
#define TAPEGRAD_DEVICE_H

#include <tapegrad/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Arrays ---- */

/* The bytes and the layout of a tensor, as a kernel gets them. An array is valid during one call. Strides are in
 * elements and may be negative; a dim that is broadcast has stride 0. If an optional array is absent, its data is NULL.
 * The data of an array without elements is not NULL. */
typedef struct tg_array {
    void *data; /* the element whose indices are all 0 */
    const int64_t *shape, *stride;
    int64_t numel;
    uint8_t ndim;
    uint8_t dtype;
    bool contiguous; /* row-major, without gaps */
} tg_array;

/* Returns the array of x. If the bytes of x were discarded, data is NULL. If x is NULL or has ended, all fields are
 * 0. */
TG_API tg_array tg_array_of(const tg_tensor *x);

/* ---- Devices ---- */

/* The number of an element-wise formula, from 0 to tg_formula_count() - 1: its row in src/kernels/scalar.h. */
typedef int tg_formula;
TG_API int tg_formula_count(void);
TG_API const char *tg_formula_name(tg_formula f); /* Returns its name; "?" if f is out of range. */
TG_API int tg_formula_inputs(tg_formula f);       /* Returns its number of inputs; 0 if f is out of range. */
/* Evaluates the formula on doubles. A test of a device can compare the results of its slot `apply` with those of this
 * function. in[] has the tg_formula_inputs(f) inputs, and p[2] the parameters; p NULL means zeros. Returns NaN if `in`
 * is NULL or f is out of range. */
TG_API double tg_formula_eval(tg_formula f, const double *in, const double *p);

/* TG_SUMSQ is the sum of squares. */
typedef enum tg_reduction { TG_SUM, TG_PROD, TG_MAX, TG_MIN, TG_ARGMAX, TG_ARGMIN, TG_SUMSQ } tg_reduction;
typedef enum tg_random { TG_RANDOM_UNIFORM, TG_RANDOM_NORMAL } tg_random;
/* TG_ACT_GELU is the exact formula, with erf; TG_ACT_GELU_TANH is the approximation by tanh. */
typedef enum tg_activation { TG_ACT_NONE, TG_ACT_RELU, TG_ACT_GELU_TANH, TG_ACT_GELU, TG_ACT_SILU } tg_activation;
typedef enum tg_copy_kind { TG_COPY_DEVICE, TG_COPY_TO_HOST, TG_COPY_FROM_HOST } tg_copy_kind;

/* A matrix, or a batch of batch[0] * batch[1] matrices (tg_gemm). Element (i, j) of matrix (u, v) is at
 * data + u * bs[0] + v * bs[1] + i * rs + j * cs, counted in elements. The strides are arbitrary. Swapping rs and cs
 * transposes the matrix. */
typedef struct tg_matrix {
    void *data;
    int64_t rs, cs, bs[2];
    tg_dtype dtype;
} tg_matrix;

/* The product C = act(alpha * (A @ B) + beta * C + bias) for every matrix of the batch. A is [m,k], B is [k,n], C is
 * [m,n], and bias is [n].
 *
 * A and B are floats of the same dtype. C has that dtype too, or, if A and B are 16-bit floats, may be float32. Sums
 * run in float32 (float64 for float64). The shapes and strides alone decide how the sum over k is split, and the parts
 * of the sum are added in a fixed order. So the bits of C depend neither on the number of threads nor on the values of
 * the other matrices of the batch. If k is 0, A @ B is 0. If beta is 0, C is not read. */
typedef struct tg_gemm {
    int64_t m, n, k, batch[2];
    tg_matrix a, b, c;
    double alpha, beta;
    const void *bias; /* [n], contiguous, of dtype bias_dtype; NULL means no bias */
    tg_dtype bias_dtype;
    tg_activation act;
    tg_matrix pre; /* [m,n] like c; receives the value before the activation, unless pre.data is NULL */
} tg_gemm;

/* Which draw of a random stream each element of an array takes.
 *
 * If n is 0, the element at row-major position p takes draw number rng.counter + p.
 *
 * If n is above 0, p is written with n digits in the mixed radix of extent[], outermost digit first. The outermost
 * digit may be extent[0] or more. The element takes draw number rng.counter + (the sum of digit * stride over the
 * digits). In this way the elements of a shard take the draws of their positions in the global tensor. The innermost
 * stride is mostly 1, so that neighboring elements take consecutive draws.
 *
 * If n is above 0, rows may be given; otherwise it is NULL. If rows is given, the element whose outermost digit is i
 * uses rows[i] in place of i.
 *
 * In a captured step (capture.h), `captured` points to a tg_rng on the device, which changes between replays. The
 * kernel must read it when it runs. captured->seed replaces rng.seed; captured->stream and captured->counter are added
 * to those of rng. */
enum { TG_DRAW_DIGITS = 8 };
typedef struct tg_draws {
    tg_rng rng;
    int n;
    int64_t extent[TG_DRAW_DIGITS], stride[TG_DRAW_DIGITS];
    const tg_rng *captured; /* NULL means that no step is captured */
    const int64_t *rows;    /* memory of the device, [extent[0]]; NULL for all ops but tg_dropout_rows */
} tg_draws;

/* Returns the number of the draw that the element at this row-major position takes; 0 if d is NULL. Ignores
 * d->captured. The host must be able to read d->rows. */
TG_API uint64_t tg_draw_number(const tg_draws *d, int64_t position);

/* Attention over q [b,h,sq,dk], k [b,g,sk,dk] and v [b,g,sk,dv] into out [b,h,sq,dv]. In slot `attention`, out has the
 * dtype of q, or is float32 (float64 for float64). h is a multiple of g, and each head of k and v serves h / g heads of
 * q (grouped-query attention). The scores are scale * (q @ k^T), plus the mask if the mask is float. The library's own
 * slots never store the matrix of all scores; a composed slot stores that of one head at a time.
 *
 * The row of a query is the list of its scores with the keys that it sees. If `sink` is given, each row of head u also
 * has the score sink[u], which belongs to no key. top is the greatest score of a row, and mass is the sum of exp(score
 * - top) over the row. If the row has no score, mass is 0, and top is -inf or the lowest finite number. top and mass
 * are [b,h,sq], float32 (float64 for float64). Slot `attention` writes them, unless their data is NULL. Slot
 * `attention_grad` reads them.
 *
 * Dropout of the score of query i and key j, in batch entry e and head u of the h heads, takes the draw of position
 * ((e * h + u) * sq + i) * sk + j.
 *
 * Query i of batch entry e sees key j if all of these hold, with p = i + sk - sq + shift * sq:
 * - j <= p, if causal;
 * - j <= p + right, if right_bound;
 * - j >= p - left, if left_bound;
 * - j < lengths[e], if lengths is given;
 * - the mask is true for i and j, if the mask is bool.
 *
 * A query that sees no key gives zeros.
 *
 * starts_q and starts_k are both given or both absent. If they are given, each batch entry packs several sequences.
 * Sequence s of the entry has the queries from starts_q[s] to starts_q[s + 1] - 1, and the keys from starts_k[s] to
 * starts_k[s + 1] - 1. A query sees only keys of its own sequence. p is then i + c + shift * m, where m is the number
 * of queries of the sequence. Each sequence has its own c, chosen so that i + c of its last query is the index of its
 * last key.
 *
 * shift is 0 except in context parallelism, where queries and keys are equally long blocks of longer sequences. There
 * shift is the number of blocks from the block of the keys to the block of the queries. */
typedef struct tg_attention_args {
    tg_array q, k, v, out, top, mass;
    double scale, dropout;
    double softcap; /* if above 0, softcap * tanh(score / softcap) replaces each score, before the mask is added */
    bool causal, left_bound, right_bound;
    int64_t left, right;       /* 0 or more; right is not used if causal */
    int64_t shift;             /* 0 or more */
    tg_array mask;             /* [b,h,sq,sk], with stride 0 where it is repeated; bool or float */
    tg_array sink;             /* [h]: one more score of each row; it is in the denominator of the softmax only */
    tg_array lengths;          /* [b], int64, in [0, sk] */
    /* int64 [b, sequences + 1], or [sequences + 1] for all entries; contiguous. The values of a row never fall. They
     * rise from 0 to sq in starts_q, and from 0 to sk in starts_k. */
    tg_array starts_q, starts_k;
    /* In slot `attention`: bad[0] receives 1 + the position of the first invalid value of lengths; or, if lengths has
     * none, of starts_q and starts_k, where the positions of starts_k follow those of starts_q. NULL means that these
     * arrays are known to be valid. */
    int64_t *bad;
    tg_draws draws;
    tg_array gout, gq, gk, gv; /* in slot `attention_grad`; data NULL means that a gradient is not wanted */
    bool add_q, add_k, add_v;  /* add to gq, gk, gv instead of overwriting them */
    tg_array gmask, gsink;     /* gmask has the strides of mask, and is summed along dims of stride 0 */
    bool add_mask, add_sink;   /* add to gmask, gsink instead of overwriting them */
} tg_attention_args;

/* Normalization of the rows of x along the last dim: y = (x - mean) * rstd * w + b, with rstd = 1 / sqrt(variance +
 * eps). If rms: y = x * rstd * w + b, with rstd = 1 / sqrt(mean of x^2 + eps), and mean is not used. w and b are [last
 * dim], and may be absent. mean and rstd are [rows], float32 (float64 for float64). Slot `norm` writes them, and slot
 * `norm_grad` reads them. */
typedef struct tg_norm_args {
    tg_array x, w, b, y, mean, rstd;
    double eps;
    bool rms;
    tg_array gy, gx, gw, gb; /* in slot `norm_grad`; data NULL means that a gradient is not wanted */
    bool add_x, add_w, add_b; /* add to gx, gw, gb instead of overwriting them */
} tg_norm_args;

/* Cross-entropy of logits [rows, columns], each row contiguous, with target [rows], int64. There is one column for each
 * class, unless the logits are a shard (below).
 *
 * With smoothing s, as PyTorch defines it, loss[r] = (1 - s) * -log(p[target]) + s * mean(-log(p)), where p are the
 * probabilities of row r. If the target is ignore_index, loss[r] is 0. A target that is out of range is a data error:
 * loss[r] is 0, and in slot `cross_entropy` bad[0] receives 1 + the index of the first such row. The gradient of a row
 * whose loss is 0 for one of these reasons is 0.
 *
 * Slot `cross_entropy` writes top and mass, and slot `cross_entropy_grad` reads them. top[r] is the greatest logit of
 * the row, and mass[r] is the sum of exp(x - top[r]) over its logits x. If no logit is above -inf, top[r] is -inf and
 * mass[r] is 0. The probability of a logit x is exp(x - top[r]) / mass[r]. top and mass are two numbers because one,
 * log(sum(exp(x))), would lose precision where logits are large. top, mass and loss are float32 (float64 for float64).
 * glogits may be the memory of logits.
 *
 * For a shard of the vocabulary, `classes` is the number of all classes, and logits has the columns of the classes from
 * `first` on, possibly none. Targets are in [0, classes). Slot `cross_entropy` then writes the top and the mass of
 * these columns only. Instead of the loss it writes the shard's part of the loss: loss[r] = hit - s / classes * sum(d).
 * Here d(x) is x - top[r] for each logit x of these columns (x itself if mass[r] is 0), and `hit` is -(1 - s) * d(logit
 * of the target), or 0 if the target is not in these columns. The whole row is the row with the logits of all shards.
 * To get its loss, the caller corrects each part for the difference between the shard's top and the top of the whole
 * row, sums the parts, and adds log(mass of the whole row). Slot `cross_entropy_grad` gets the top and the mass of
 * whole rows. */
typedef struct tg_cross_entropy_args {
    tg_array logits, target, loss, top, mass;
    int64_t ignore_index;
    int64_t first, classes; /* both 0 if the logits are whole */
    double smoothing;
    int64_t *bad;            /* in slot `cross_entropy` */
    tg_array gloss, glogits; /* in slot `cross_entropy_grad` */
    bool add;                /* add to glogits instead of overwriting it */
} tg_cross_entropy_args;

/* The arguments of an optimizer's step; step.h defines them. */
typedef struct tg_prepare_args tg_prepare_args;
typedef struct tg_adamw_args tg_adamw_args;

/* The table of a device. A slot that returns a status returns TG_OK, or records an error with tg_ctx_fail and returns
 * it. The table must outlive the contexts that tg_ctx_new_on makes with it. The library calls the slots of a context on
 * one thread at a time.
 *
 * The library has checked the arrays before it calls a slot: shapes fit, and dtypes are those with which ops compute
 * (TG_F32 to TG_BOOL). Only `apply` with formula `id`, `fill`, `take` and `put` get float8 as well (TG_F8E4M3 to
 * TG_F8E8M0); between arrays of the same dtype they move the bytes. Integers wrap around. If `add` is true, a slot
 * adds to the output. Otherwise it overwrites the output and does not read it; (+)= below stands for both. Outputs
 * do not overlap inputs, but the output of an element-wise slot may be exactly one of its inputs, and glogits may be
 * logits.
 *
 * bad[0] is in host memory, and is 0 before the call. Only a device without slot `poll` writes it. A device with poll
 * reports data errors through poll instead. */
struct tg_device_ops {
    size_t size; /* sizeof(tg_device_ops) */
    const char *name; /* required; tg_ctx_device returns it */
    bool host; /* the host may read and write the device's bytes directly */

    /* Required: memory and order. A device may queue the work of its slots. Queued work runs in the order of the
     * calls. */
    /* Sets *dev to the device's state for this context, which may be NULL. If open fails, close is not called. */
    tg_status (*open)(tg_ctx *ctx, void **dev);
    void (*close)(tg_ctx *ctx, void *dev); /* called when the context ends, after all other slots */
    /* Returns memory of the device, aligned to `align` bytes. Returns NULL if there is none left; the library then
     * records the error. */
    void *(*alloc)(tg_ctx *ctx, size_t bytes, size_t align);
    void (*free)(tg_ctx *ctx, void *p, size_t bytes);
    /* Copies bytes. When it returns, host memory that it reads may be reused, and host memory that it fills is
     * complete. */
    tg_status (*copy)(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind);
    tg_status (*sync)(tg_ctx *ctx); /* makes the host wait until all queued work is done */
    /* Makes *event stand for the present end of the queue. Creates the event, which event_free frees, if *event is
     * NULL. */
    tg_status (*event_record)(tg_ctx *ctx, void **event);
    tg_status (*event_wait)(tg_ctx *ctx, void *event); /* makes work that is queued from now on run after the event */
    void (*event_free)(tg_ctx *ctx, void *event);

    /* Required: the operations from which all others can be composed. They take any strides and dtypes, and convert
     * when they load and store (round to nearest even).
     *
     * apply: out (+)= formula(in..., p). Serves as map, zip, cast, permute and strided copy. Each of in[] has the shape
     * of out, with stride 0 in broadcast dims. Computes in float32, float64 or int64, as the widest input requires; if
     * add is true, out counts as an input. Integers are computed in float64 if the formula has no integer form. Numbers
     * of uint64 are compared, and converted to floats, as unsigned numbers. */
    tg_status (*apply)(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n_in, const double p[2],
                     bool add);
    /* Sets every element to value. */
    tg_status (*fill)(tg_ctx *ctx, tg_array out, double value);
    /* out[i] = start + i * step, where i is the row-major position. */
    tg_status (*iota)(tg_ctx *ctx, tg_array out, double start, double step);
    /* out (+)= scale * the reduction of `in`. The array `out` has the ndim of `in`, and size 1 (or stride 0) in the
     * reduced dims. Sums run in a fixed order. TG_ARGMAX and TG_ARGMIN give the int64 index in the one reduced dim; of
     * equal elements, the index of the first. scale and add do not apply to indices. In TG_MAX, TG_MIN, TG_ARGMAX and
     * TG_ARGMIN, NaN wins over any number. */
    tg_status (*reduce)(tg_ctx *ctx, tg_reduction kind, tg_array out, tg_array in, double scale, bool add);
    tg_status (*gemm)(tg_ctx *ctx, const tg_gemm *g); /* matrix products (tg_gemm) */
    /* take: out[.., i, ..] = src[.., index[.., i, ..], ..] along dim. put_add is the reverse:
     * dst[.., index[.., i, ..], ..] += src[.., i, ..]. put_add adds in row-major order of src, so that sums have a
     * fixed order. Sums of 16-bit elements of dst are computed in float32 and rounded once. index is int64 or int32,
     * and has the shape of out in take, and of src in put_add, with stride 0 in broadcast dims.
     *
     * Where an index is negative or too large, nothing is read or written. This is a data error unless bad is NULL:
     * bad[0] receives 1 + the row-major position of the first such index. */
    tg_status (*take)(tg_ctx *ctx, tg_array out, tg_array src, tg_array index, int dim, int64_t *bad);
    tg_status (*put_add)(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
    /* Fills each element from its draw (tg_draws): uniform in [a, b), or normal with mean a and standard deviation
     * b. */
    tg_status (*random)(tg_ctx *ctx, tg_random kind, tg_array out, double a, double b, const tg_draws *draws);

    /* Optional: a slot that is NULL is composed from the required ones, unless its comment says otherwise. For their
     * temporaries composed slots take memory of the device, which slot alloc has returned, or, if `host` is true, that
     * of tg_workspace.
     *
     * softmax, norm, scan and sort work on the last dim, with any strides. If log is true, the result y is the
     * logarithm of the softmax. */
    tg_status (*softmax)(tg_ctx *ctx, tg_array y, tg_array x, bool log);
    tg_status (*softmax_grad)(tg_ctx *ctx, tg_array gx, tg_array gy, tg_array y, bool log, bool add);
    tg_status (*norm)(tg_ctx *ctx, const tg_norm_args *a);
    tg_status (*norm_grad)(tg_ctx *ctx, const tg_norm_args *a);
    tg_status (*cross_entropy)(tg_ctx *ctx, const tg_cross_entropy_args *a);
    tg_status (*cross_entropy_grad)(tg_ctx *ctx, const tg_cross_entropy_args *a);
    /* If one of these two slots is NULL and `host` is false, its calls fail with TG_ERR_UNSUPPORTED
     * - with left_bound, lengths or starts_q;
     * - with right_bound without causal;
     * - with causal and a shift above 0. */
    tg_status (*attention)(tg_ctx *ctx, const tg_attention_args *a);
    tg_status (*attention_grad)(tg_ctx *ctx, const tg_attention_args *a);
    /* y (+)= x * keep / (1 - p). keep is 1 for an element whose draw, as a uniform number in [0, 1), is p or more, and
     * 0 for the others. If p is 1, all elements are dropped. Serves forward and backward. */
    tg_status (*dropout)(tg_ctx *ctx, tg_array y, tg_array x, double p, const tg_draws *draws, bool add);
    /* y[.., i] (+)= the sum (TG_SUM) or product (TG_PROD) of x[.., 0] to x[.., i]; if back is true, of x[.., i] to the
     * last element. Accumulates floating-point numbers in float64 and integers in int64, in an order that depends on
     * the shapes and strides alone. */
    tg_status (*scan)(tg_ctx *ctx, tg_reduction kind, tg_array y, tg_array x, bool back, bool add);
    /* Sorts each row of x in rising order, or falling if `falling` is true. y receives the first elements of the sorted
     * row, as many as a row of y has, in the dtype of x. order receives the positions that these elements have in the
     * row of x, int64. Equal elements keep their order. NaN counts as greater than any number. If the slot is
     * NULL, ops that sort fail with TG_ERR_UNSUPPORTED. */
    tg_status (*sort)(tg_ctx *ctx, tg_array y, tg_array order, tg_array x, bool falling);
    /* Like put_add, but overwrites elements of dst. If several elements of src go to the same element of dst, the last
     * one in row-major order wins. */
    tg_status (*put)(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
    /* Computes the scalars that one step of an optimizer needs (step.h) from the optimizer's state. If the slot is
     * NULL, the library computes them on the host: it copies the optimizer's state from the device, and the scalars
     * back. */
    tg_status (*prepare)(tg_ctx *ctx, const tg_prepare_args *a);
    /* Makes the optimizer's step for n parameters a[0] to a[n - 1] (step.h), in as few launches as possible. */
    tg_status (*adamw)(tg_ctx *ctx, const tg_adamw_args *a, int n);
    /* Returns TG_ERR_DATA if kernels have found a data error, such as an index out of range, since the last call. The
     * library calls poll at each reset of a tape, and before each replay of a captured step. poll must report an error
     * no later than at the second reset after the work was queued. If poll is NULL, the slots write bad[0] before they
     * return. */
    tg_status (*poll)(tg_ctx *ctx);
    /* Adds NaN to *sum, a float64 on the device, if kernels have found a data error that poll has not returned yet.
     * Otherwise leaves *sum unchanged. The addition is queued like other work. A device has both poll and fault_sum, or
     * neither. */
    tg_status (*fault_sum)(tg_ctx *ctx, double *sum);
    /* Captured steps (capture.h). A device has all four slots, or none. Between capture_begin and capture_end, the
     * other slots record the work that they would queue; `copy` from or to the host fails with TG_ERR_UNSUPPORTED.
     * capture_end sets *graph to what was recorded, and *nodes to the number of its nodes. If keep is false, or on an
     * error, capture_end discards what was recorded. capture_launch queues the work of the graph once. capture_free is
     * called after the last capture_launch of the graph, whose work may still be running. */
    tg_status (*capture_begin)(tg_ctx *ctx);
    tg_status (*capture_end)(tg_ctx *ctx, bool keep, void **graph, int64_t *nodes);
    tg_status (*capture_launch)(tg_ctx *ctx, void *graph);
    void (*capture_free)(tg_ctx *ctx, void *graph);
    /* Copies that run in parallel with kernels (work.h). A device has all five slots, or none. If it has none, the
     * library makes these copies with slot `copy`, and each is complete when the call returns.
     *
     * host_alloc returns host memory that the device can read and write by itself. It returns NULL, without an error,
     * if no more is available. copy_async copies between such memory and the device. The copy runs after the work that
     * slots have queued so far, and in parallel with the work that they queue later. copy_async then records *event,
     * which it creates if *event is NULL, so that the event follows the copy. On an error no copy is in flight. */
    void *(*host_alloc)(tg_ctx *ctx, size_t bytes);
    void (*host_free)(tg_ctx *ctx, void *p, size_t bytes);
    tg_status (*copy_async)(tg_ctx *ctx, void *dst, const void *src, size_t bytes, tg_copy_kind kind, void **event);
    bool (*event_test)(tg_ctx *ctx, void *event); /* true: reached, or failed; false: not yet */
    tg_status (*event_await)(tg_ctx *ctx, void *event); /* makes the host wait for the event */
};

/* Return the table of the context's device, and the state that its slot `open` has set; NULL if ctx is NULL, or if its
 * creation failed before that. */
TG_API const tg_device_ops *tg_ctx_ops(const tg_ctx *ctx);
TG_API void *tg_ctx_device_state(const tg_ctx *ctx);
/* Calls body(arg, begin, end) on disjoint ranges that together cover [0, n), on the threads of the context or by
 * tg_config.parallel_for. Returns when all calls have returned. The number of threads decides where the ranges begin
 * and end, so results must not depend on that. Does nothing if ctx is NULL or n is 0 or less, and records
 * TG_ERR_ARGUMENT if body is NULL. */
TG_API void tg_parallel_run(tg_ctx *ctx, int64_t n, tg_range_fn body, void *arg);
/* Returns work memory on the host of at least `bytes` bytes, aligned to 64 bytes. There are TG_WORKSPACES blocks, and
 * `block` is the number of the wanted one, from 0. A block lives until the context ends, or until a call with its
 * number asks for more than it has. That call frees the block and returns a larger one. The library's own slots use
 * these blocks too, so the contents last only until another slot runs. Returns NULL if ctx is NULL, and after recording
 * an error: TG_ERR_MEMORY, or TG_ERR_ARGUMENT if block is out of range. */
enum { TG_WORKSPACES = 8 };
TG_API void *tg_workspace(tg_ctx *ctx, int block, size_t bytes);

#ifdef __cplusplus
}
#endif

#include <tapegrad/step.h>

#endif
