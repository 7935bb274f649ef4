/* For writers of ops, devices, communicators and bindings: the tables behind the API.
 *
 * An op is one static const tg_op; tg_apply records it, ours and yours alike. A device is one static const
 * tg_device_ops; every op of the table runs on it through its slots. A transport is one static const tg_comm_ops; every
 * collective passes through its slots.
 */
#ifndef TAPEGRAD_EXTEND_H
#define TAPEGRAD_EXTEND_H

#include <tapegrad/comm.h>
#include <tapegrad/tapegrad.h>

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

/* Attention over q [b,h,sq,dk], k [b,g,sk,dk], v [b,g,sk,dv], out [b,h,sq,dv]; h a multiple of g (grouped-query).
 * Query i sees keys j <= i + sk - sq when causal. The scores exist in tiles only. lse [b,h,sq]: log-sum-exp of each
 * row's scaled scores, float32 (float64 for float64). Dropout of element (b,h,i,j) takes the draw of position
 * ((b*H + h)*sq + i)*sk + j. */
typedef struct tg_attention_args {
    tg_array q, k, v, out, lse;
    double scale, dropout;
    bool causal;
    tg_draws draws;
    tg_array gout, gq, gk, gv; /* of the gradient; data NULL: not wanted */
    bool add_q, add_k, add_v;  /* add into gq, gk, gv instead of writing */
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
 * smoothing of PyTorch), 0 where target is ignore_index. lse and loss: float32 (float64 for float64). glogits
 * may be the logits' own memory. A target out of range is a data error: bad[0] receives row + 1 of the first.
 *
 * A shard of a vocabulary says so by `classes`: its logits are the columns from `first` on, perhaps none, of so many;
 * targets are in [0, classes). lse is then of these columns, and loss[r] their part of it, -(1 - s) x[target] if that
 * is here, less s / classes sum(x): the sum over the shards and the lse over all of them is the loss. In the gradient
 * lse is the one over all shards. */
typedef struct tg_cross_entropy_args {
    tg_array logits, target, loss, lse;
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

typedef struct tg_device_ops tg_device_ops;

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

    /* Optional: NULL is composed from the required ones. softmax and norm work on the last dim, any strides. */
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
    tg_status (*prepare)(tg_ctx *ctx, const tg_prepare_args *a); /* NULL: by the host, which reads and writes */
    tg_status (*adamw)(tg_ctx *ctx, const tg_adamw_args *a, int n); /* n parameters, in as few launches as can be */
    /* What kernels had found wrong in data when it was called last, as TG_ERR_DATA; each reset of a tape calls it, so
     * that errors are known two resets later. NULL: slots tell at once. A device that has it leaves bad[0] alone. */
    tg_status (*poll)(tg_ctx *ctx);
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

/* A context on the caller's own device, which must outlive it; config->device is ignored. Devices are arguments, there
 * is no registry. A table that is NULL, not of this version's size, or lacks a required slot is refused. */
TG_API tg_ctx *tg_ctx_new_on(const tg_device_ops *ops, const tg_config *config);
TG_API const tg_device_ops *tg_ctx_ops(const tg_ctx *ctx);
TG_API void *tg_ctx_device_state(const tg_ctx *ctx);
/* Runs body over [0, n) on the context's threads; chunk boundaries are up to the pool. */
TG_API void tg_parallel_run(tg_ctx *ctx, int64_t n, tg_range_fn body, void *arg);
/* Work memory of a slot, kept for the next call: at least bytes, 64-byte aligned, one block a slot number in
 * [0, TG_WORKSPACES). NULL after recording the error. */
enum { TG_WORKSPACES = 8 };
TG_API void *tg_workspace(tg_ctx *ctx, int slot, size_t bytes);

/* ---- Ops ---- */

typedef enum tg_grad_mode {
    TG_GRAD_NONE,  /* not needed: leave gin[i] alone (it is NULL) */
    TG_GRAD_WRITE, /* first contribution: overwrite whatever the memory holds */
    TG_GRAD_ADD,   /* add to what is there */
} tg_grad_mode;

/* One call of an op, as its functions see it. Absent optional inputs are NULL. */
typedef struct tg_call {
    tg_ctx *ctx;
    tg_tape *tape;
    const tg_op *op;
    void *params; /* the tape's copy; infer may complete it */
    void *state;  /* of a user-defined op */
    int n_in, n_out, n_saved;
    tg_tensor *const *in;
    tg_tensor **out;
    tg_tensor **saved;           /* private buffers declared by infer */
    uint32_t needs;              /* bit i: input i needs a gradient (31: any from 31 on) */
    uint32_t saves_in, saves_out; /* infer may clear bits that the needed gradients do not read */
    tg_tensor *const *gout;      /* backward: any strides; NULL where none came (it is zero); never all NULL */
    tg_tensor **gin;             /* backward: input i's gradient, of its shape, contiguous, as gin_mode[i] says */
    const uint8_t *gin_mode;     /* tg_grad_mode */
    uint32_t dims; /* infer: input 0's dims that the family calls reduced, cut or needed whole (bit mask) */
    void *impl;
} tg_call;

/* How an op's dims behave under a shard, and where it is linear (docs/placements.md). */
typedef enum tg_family {
    TG_FAMILY_STRICT, /* all dims whole, none linear: always safe */
    TG_FAMILY_POINTWISE, /* free, broadcasting; nonlinear */
    TG_FAMILY_SCALE,     /* free; linear in its first input (neg, times a constant, identity) */
    TG_FAMILY_ADDITIVE,  /* free, broadcasting; jointly linear in all inputs */
    TG_FAMILY_FACTORS,   /* free, broadcasting; linear in each input */
    TG_FAMILY_QUOTIENT,  /* free, broadcasting; linear in the first */
    TG_FAMILY_SELECT,    /* where: jointly linear in the last two */
    TG_FAMILY_MATMUL,
    TG_FAMILY_LINEAR,
    TG_FAMILY_SUM,
    TG_FAMILY_MEAN,
    TG_FAMILY_REDUCE,  /* reduced dims whole, nonlinear */
    TG_FAMILY_SOFTMAX, /* the last dim whole, the rest free, nonlinear */
    TG_FAMILY_SHAPE,   /* linear in all inputs; the op's infer moves shards */
    TG_FAMILY_TAKE,    /* embedding, gather: linear in the first */
    TG_FAMILY_LOSS,
    TG_FAMILY_ATTENTION,
    TG_FAMILY_CUSTOM, /* infer states roles and linear sets */
} tg_family;

/* ---- Samples: the inputs that every test from the op table runs an op on ---- */

typedef enum tg_sample_kind { TG_SAMPLE_FLOAT, TG_SAMPLE_INDEX, TG_SAMPLE_BOOL, TG_SAMPLE_ABSENT } tg_sample_kind;
typedef enum tg_sample_layout {
    TG_SAMPLE_ROWS,       /* row-major */
    TG_SAMPLE_TRANSPOSED, /* last two dims swapped in memory */
    TG_SAMPLE_STRIDED,    /* every second element along the last dim */
    TG_SAMPLE_EXPANDED,   /* stride 0 along the first dim */
} tg_sample_layout;

typedef struct tg_sample_input {
    tg_shape shape;
    tg_sample_kind kind;
    tg_sample_layout layout;
    double lo, hi; /* floats: uniform in [lo, hi); both 0: normal. INDEX: integers in [lo, hi) */
    bool frozen;   /* needs no gradient */
    tg_dtype dtype; /* of an input that must have another than the test's */
} tg_sample_input;

enum { TG_SAMPLE_INPUTS = 10 };
typedef struct tg_sample {
    const char *note;
    const void *params;
    int n_in;
    tg_sample_input in[TG_SAMPLE_INPUTS];
    tg_status refused; /* not TG_OK: this call must be refused so, when recorded (or by forward: TG_ERR_DATA) */
    double rtol;       /* of gradcheck; 0: 1e-6 */
    bool kinked;       /* values may sit near a kink: gradcheck may report kinks */
    bool bench;        /* big: for the bench, skipped by the tests */
    bool slow;         /* for the long suite */
    bool aliases;      /* one tensor is given for all inputs */
    int ranks;         /* of an op in which ranks meet: so many, 0: one; params begin with the tg_comm *, which whoever
                          runs the sample fills in */
} tg_sample;

/* Inputs of samples: TG_S(2, 3) is a normal float32 [2, 3]; TG_S_(scalar shape). TG_S_RANGE(lo, hi, dims...). */
#define TG_S_SHAPE(...) {.ndim = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dim = {__VA_ARGS__}}
#define TG_S(...) {.shape = TG_S_SHAPE(__VA_ARGS__)}
#define TG_S_SCALAR {.shape = {.ndim = 0, .dim = {0}}}
#define TG_S_IN(lo_, hi_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .lo = (lo_), .hi = (hi_)}
#define TG_S_AS(layout_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .layout = (layout_)}
#define TG_S_INDEX(n_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_INDEX, .hi = (n_)}
#define TG_S_BOOL(...) {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_BOOL}
#define TG_S_ABSENT {.kind = TG_SAMPLE_ABSENT}
#define TG_SAMPLES(s) \
    .samples = (s), .n_samples = (int)(sizeof(s) / sizeof((s)[0])), .sample_size = sizeof((s)[0])

struct tg_op {
    size_t size;
    const char *name, *formula; /* errors, docs, traces and benches use them */
    int n_in, n_out;            /* n_in < 0: variadic, at least -n_in; n_out < 0: infer says how many */
    size_t params_size;
    uint32_t saves_in, saves_out; /* bit masks of what backward reads (bit 31: all from 31 on) */
    uint32_t optional; /* bit mask of inputs that may be NULL */
    uint32_t passes; /* of inputs whose gradient backward gives by tg_call_pass or writes into tg_call_gin: no buffer is
                        made for them before the call */
    tg_family family;
    bool inplace; /* output 0 overwrites input 0's storage */
    bool sums_f32; /* backward can write or add float32 gradients of 16-bit inputs (main_grad) */
    /* Ranks meet in it. Its backward runs on every rank whenever one that needs it runs: where no gradient came on this
     * rank, gout is zeros, never pruned away, or its peers would wait for ever. */
    bool collective;
    tg_status (*infer)(tg_call *c);
    tg_status (*forward)(tg_call *c);  /* NULL: infer made views, nothing runs */
    tg_status (*backward)(tg_call *c); /* NULL: not differentiable */
    /* As taped ops (derivatives.h), of what the node saves and the tensors given, NULL where none came. */
    tg_status (*vjp)(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);
    tg_status (*jvp)(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
    int64_t (*flops)(const tg_node *n); /* of forward; NULL: counts as one an output element */
    const tg_sample *samples;
    int n_samples;
    size_t sample_size; /* sizeof(tg_sample), which may grow; 0: today's */
};

/* For infer. What these refuse they record; a NULL call is TG_ERR_ARGUMENT. */
TG_API tg_status tg_call_out(tg_call *c, int i, tg_dtype dtype, int ndim, const int64_t *shape);
/* Output i is a view of input 0: the same bytes, offset elements further, with these strides, and no others. */
TG_API tg_status tg_call_view(tg_call *c, int i, int64_t offset, int ndim, const int64_t *shape, const int64_t *stride);
TG_API tg_status tg_call_outputs(tg_call *c, int n); /* for n_out < 0: before the first tg_call_out */
TG_API tg_status tg_call_save(tg_call *c, int i, tg_dtype dtype, int ndim, const int64_t *shape);
/* Takes n draws (0 or more) of the default random stream: the state to draw from. */
TG_API tg_rng tg_call_draw(tg_call *c, int64_t n);
/* Takes the draws of a tensor that lies like x: as many as the global tensor has elements, on every rank, so that the
 * ranks' streams stay in step. Shards draw by global coordinates; an opaque tensor draws as if stacked by rank, and
 * what is the same on an axis draws the same. With TG_RNG_MEGATRON: x's own number, from the stream that tg_rng_mode
 * says. */
TG_API tg_draws tg_call_draws(tg_call *c, const tg_tensor *x);
/* The work will fill output i, whose readers wait for it. In a forward; takes w over (NULL: an error is there already).
 * What the work reads is its maker's care (tg_comm holds it). */
TG_API tg_status tg_call_out_in_flight(tg_call *c, int i, tg_work *w);
/* For ops whose dim roles are not their family's (docs/placements.md), and for TG_FAMILY_CUSTOM. Input dim d of input i
 * becomes output dim j (free), or is summed or whole; what is not stated is whole. The inputs' summed dims pair in
 * order. set: bit i for input i; up to 4 sets of inputs in which the op is jointly linear with no constant term, in
 * place of the family's; 0: there is none. */
enum { TG_WHOLE = -1, TG_SUMMED = -2 };
TG_API tg_status tg_call_role(tg_call *c, int i, int d, int j);
TG_API tg_status tg_call_linear(tg_call *c, uint32_t set);
/* For mappings (TG_FAMILY_CUSTOM): refuses unless input i is `from` on comm's axis, where output o gets `to`. Inputs
 * that no conversion names must be the same on every rank there, and need no gradient. Other axes follow the rule by
 * the roles and sets that infer states; of an op with one input they pass through, dim by dim, where it states none.
 * c->dims lists the dims along which rows move between the ranks. mend names what to do instead, in the error. A comm
 * without an axis converts nothing. */
TG_API tg_status tg_call_convert(tg_call *c, int i, tg_placement from, int o, tg_placement to, const tg_comm *comm,
                                 const char *mend);
/* Records an error that names the op, and every input's dtype and shape (TG_OK counts as TG_ERR_INTERNAL). */
TG_API tg_status tg_call_fail(tg_call *c, tg_status s, const char *format, ...) TG_PRINTF(3, 4);

/* For forward and backward: tensors are inert on error. A temporary of this call, gone when it returns. */
TG_API tg_tensor *tg_call_temp(tg_call *c, tg_dtype dtype, int ndim, const int64_t *shape);
/* Input i's gradient is g itself or a view of it, without a copy: g is an output gradient of this call or a
 * temporary, and has input i's shape. Honours gin_mode. In a backward only, as tg_call_gin and tg_call_in_flight. */
TG_API tg_status tg_call_pass(tg_call *c, int i, tg_tensor *g);
/* Input i's gradient to write or add into, made on demand; gin[i], where that is not NULL. Inert on error, and where
 * none is needed. */
TG_API tg_tensor *tg_call_gin(tg_call *c, int i);
/* A handle on g's bytes with another layout, for tg_call_pass; gone when the call returns. */
TG_API tg_tensor *tg_call_view_of(tg_call *c, tg_tensor *g, int64_t offset, int ndim, const int64_t *shape,
                                  const int64_t *stride);
/* Gives input i's gradient through a work that will fill g: nobody waits before a reader needs it. Takes w over, on an
 * error too: then it is aborted. w NULL: g is in flight already, filled by a collective of this call. */
TG_API tg_status tg_call_in_flight(tg_call *c, int i, tg_tensor *g, tg_work *w);

/* Records one op: copies params, infers, runs forward and, where a gradient is needed, keeps the node. state (may be
 * NULL) is the op's own, destroyed when its node ends, also on failure. site: the caller's return address (TG_SITE),
 * quoted in errors. out[] receives n_out handles, inert ones on failure. Lists have at most 65535 tensors. */
TG_API tg_status tg_apply(tg_tape *t, const tg_op *op, const void *params, tg_tensor *const *in, int n_in,
                          tg_tensor **out, int n_out, void *state, void (*destroy)(void *state), const void *site);
#define TG_SITE __builtin_return_address(0)

/* ---- Transports ---- */

/* One collective, checked: a group of two ranks or more, dtypes and counts that fit this rank's tensors, contiguous
 * data, in place only where comm.h allows it. Counts are elements. Where src and dst are NULL on every rank the ranks
 * compare and wait as ever, and nothing moves: a transport that moves data by other means calls another one so. */
typedef struct tg_transfer {
    size_t size;
    tg_collective kind;
    tg_dtype dtype;
    tg_reduce_op op;
    int root;                   /* or the peer of a send or receive */
    const void *src;            /* NULL where this rank has none, or no bytes */
    void *dst;
    int64_t count;              /* of a rank's part: src of a gather, dst of a scatter; of all without parts */
    const int64_t *send, *recv; /* elements for, and from, each rank, which replace count; NULL: equal parts. Good
                                   during start alone */
    const void *site;           /* of the call, for errors */
    uint64_t record;            /* the number of the call in this rank's record */
} tg_transfer;

TG_API double tg_ctx_deadline(const tg_ctx *ctx); /* seconds that a transport's wait may last; 0 for NULL */

/* How ranks reach each other. state is one rank's end of one group. All slots are called by the thread of the context;
 * those that fail call tg_ctx_fail. Every wait has the context's deadline. */
typedef struct tg_comm_ops {
    size_t size;
    const char *name; /* tg_comm_transport */
    bool host;        /* moves what the host can read: device memory is refused */
    bool silent;      /* moves nothing: any context will do */
    bool queued;      /* orders calls on the device: wait and drop return before the call is done, and the transport
                         itself tells the record of its end */

    /* Required. start posts the call and returns at once, whatever the others do; *request stands for it from then on,
     * until drop. A NULL request is a call that is done. A disagreement of the ranks is for the transport to find, on
     * all of them, before it moves data. */
    tg_status (*start)(tg_ctx *ctx, void *state, const tg_transfer *call, void **request);
    bool (*test)(tg_ctx *ctx, void *state, void *request); /* done or failed; helps it along */
    tg_status (*wait)(tg_ctx *ctx, void *state, void *request);
    /* Ends a request, done or not: when it returns nobody touches the call's memory any more. What cannot be finished
     * is aborted, and with it the group. Never fails. */
    void (*drop)(tg_ctx *ctx, void *state, void *request);
    /* The group of those ranks of this one, in this order; this rank is ranks[rank]. Every one of them calls it, for
     * several groups of theirs in the same order; the others need not, but where `all` is set: then every rank of this
     * group calls it at this point, for the one of several disjoint groups that it is in. */
    tg_status (*split)(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                       void **group);
    void (*close)(tg_ctx *ctx, void *state); /* frees state, after the last drop; ends the calls of peers that wait */

    /* Optional */
    tg_status (*batch)(tg_ctx *ctx, void *state, bool open); /* sends and receives that start together: NULL where
                                                                 start never waits */
    void (*abort)(tg_ctx *ctx, void *state, const char *why); /* this rank misses a call: peers that wait must fail */
    tg_status (*recover)(tg_ctx *ctx, void *state, int *rank, int *size); /* NULL: an abort is for good */
    /* For who waits elsewhere, as for a device, and has waited so many seconds: helps calls along, and tells whether
     * the group has failed, or a request (NULL: none) cannot be finished any more. waited < 0: no longer. Never
     * blocks. */
    tg_status (*look)(tg_ctx *ctx, void *state, void *request, double waited);
    /* Device memory that the group moves best (tg_symmetric): all three, or none. alloc: this rank's own; NULL without
     * an error: none is to be had. window: every rank makes what it has taken, of one size, known to the others. free
     * ends it, also behind close. */
    void *(*window_alloc)(tg_ctx *ctx, void *state, size_t bytes, void **window);
    tg_status (*window_join)(tg_ctx *ctx, void *state, void *window);
    void (*window_free)(tg_ctx *ctx, void *window);
} tg_comm_ops;

/* A communicator on the caller's own transport: of this rank among size. Closes state when it is freed, and at once on
 * an error. Inert on error. */
TG_API tg_comm *tg_comm_new_on(tg_ctx *ctx, const tg_comm_ops *ops, void *state, int rank, int size);

/* ---- Storage states ---- */

typedef enum tg_storage_state { TG_PRESENT, TG_IN_FLIGHT, TG_DISCARDED } tg_storage_state;
TG_API tg_storage_state tg_storage_state_of(const tg_tensor *x); /* TG_DISCARDED for NULL and dead handles */
/* Gives x's bytes back now; whoever reads them next calls refill, which writes dst. free ends user, on an error at
 * once. */
TG_API tg_status tg_discard_with(tg_tensor *x, tg_status (*refill)(void *user, tg_ctx *ctx, void *dst, size_t bytes),
                                 void (*free)(void *user), void *user);

/* ---- The op table, nodes ---- */

TG_API int tg_op_count(void);
TG_API const tg_op *tg_op_at(int i); /* in the order of op_list.h; NULL out of range */
TG_API const tg_op *tg_op_find(const char *name);

TG_API int64_t tg_tape_nodes(const tg_tape *t);
TG_API const tg_node *tg_tape_node(tg_tape *t, int64_t i); /* in recorded order; NULL out of range */
TG_API const tg_node *tg_node_of(const tg_tensor *x);      /* that made x; NULL for a leaf */
TG_API const tg_op *tg_node_op(const tg_node *n);
TG_API int tg_node_inputs(const tg_node *n);
TG_API int tg_node_outputs(const tg_node *n);
TG_API tg_tensor *tg_node_input(const tg_node *n, int i);
TG_API tg_tensor *tg_node_output(const tg_node *n, int i);
TG_API const void *tg_node_params(const tg_node *n);
TG_API int64_t tg_node_flops(const tg_node *n);
TG_API int64_t tg_node_saved_bytes(const tg_node *n);
TG_API size_t tg_node_site(const tg_node *n, char *buf, size_t size); /* "module path, symbol+offset" */

#ifdef __cplusplus
}
#endif

#include <tapegrad/derivatives.h>
#include <tapegrad/step.h>

#endif
