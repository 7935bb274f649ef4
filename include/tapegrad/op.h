/* Ops: the table that defines an op, the functions that its callbacks may call, and the nodes of a tape. Those who
 * write an op include this header, mostly through extend.h. */
#ifndef TAPEGRAD_OP_H
#define TAPEGRAD_OP_H

#include <tapegrad/device.h>
#include <tapegrad/tape.h>
#include <tapegrad/work.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Ops ---- */

typedef enum tg_grad_mode {
    TG_GRAD_NONE,  /* no gradient is needed: leave gin[i] alone (it is NULL) */
    TG_GRAD_WRITE, /* first contribution: overwrite the memory, whatever it holds */
    TG_GRAD_ADD,   /* add to the values in memory */
} tg_grad_mode;

/* One call of an op, as its callbacks see it. Optional inputs that are absent are NULL. */
typedef struct tg_call {
    tg_ctx *ctx;
    tg_tape *tape;
    const tg_op *op;
    void *params; /* the tape's copy; infer may complete it */
    void *state;  /* state of a user-defined op (tg_apply) */
    int n_in, n_out, n_saved;
    tg_tensor *const *in;
    tg_tensor **out;
    tg_tensor **saved;           /* private buffers that infer declared */
    uint32_t needs;              /* bit i: input i needs a gradient (bit 31: any input from 31 on) */
    uint32_t saves_in, saves_out; /* infer may clear bits that the needed gradients do not read */
    uint32_t writes; /* bits of the inputs that forward writes; infer may clear those that this call does not write */
    tg_tensor *const *gout; /* backward: the gradients of the outputs, with any strides; NULL: zero; never all NULL */
    /* backward: the gradient of input i, with its shape, contiguous; gin_mode[i] says how to write it */
    tg_tensor **gin;
    const uint8_t *gin_mode;     /* tg_grad_mode */
    uint32_t dims; /* infer: bit mask of the dims of input 0 that the family reduces, cuts or needs whole */
    void *impl;
} tg_call;

/* How the dims of an op behave if they are sharded, and in which inputs the op is linear (docs/placements.md). "Free":
 * a dim may be sharded. "Whole": it may not. */
typedef enum tg_family {
    TG_FAMILY_STRICT, /* all dims whole, not linear: always safe */
    TG_FAMILY_POINTWISE, /* free, broadcasting; not linear */
    TG_FAMILY_SCALE,     /* free; linear in its first input (neg, times a constant, identity) */
    TG_FAMILY_ADDITIVE,  /* free, broadcasting; jointly linear in all inputs */
    TG_FAMILY_FACTORS,   /* free, broadcasting; linear in each input */
    TG_FAMILY_QUOTIENT,  /* free, broadcasting; linear in the first input */
    TG_FAMILY_SELECT,    /* where: jointly linear in the last two inputs */
    TG_FAMILY_MATMUL,  /* tg_matmul: linear in each input; a dim that both share may be sharded, and gives PARTIAL */
    TG_FAMILY_LINEAR,  /* tg_linear: linear in x and b together, and in w and b; the shared dim as in MATMUL */
    TG_FAMILY_SUM,     /* linear; reduced dims may be sharded, and give PARTIAL */
    TG_FAMILY_MEAN,    /* linear; reduced dims whole */
    TG_FAMILY_REDUCE,  /* reduced dims whole; not linear */
    TG_FAMILY_SOFTMAX, /* the last dim whole, the others free; not linear */
    TG_FAMILY_SHAPE,   /* linear in all inputs; the op's infer moves shards */
    TG_FAMILY_TAKE,    /* embedding, gather: linear in the first input; infer states the roles of dims */
    TG_FAMILY_LOSS,    /* not linear; dims whole unless infer states roles */
    TG_FAMILY_ATTENTION, /* tg_attention: batch and heads free; linear in v */
    TG_FAMILY_CUSTOM, /* infer states roles and linear sets (tg_call_role, tg_call_linear) */
} tg_family;

/* ---- Samples: the inputs on which the tests and the gradient check of the op table run an op ---- */

typedef enum tg_sample_kind {
    TG_SAMPLE_FLOAT,
    TG_SAMPLE_INDEX,  /* integers, int64 unless dtype is set */
    TG_SAMPLE_BOOL,
    TG_SAMPLE_ABSENT, /* an optional input that is NULL */
    TG_SAMPLE_STARTS, /* int64 numbers that rise from 0 to hi, in growing steps */
} tg_sample_kind;
typedef enum tg_sample_layout {
    TG_SAMPLE_ROWS,       /* row-major */
    TG_SAMPLE_TRANSPOSED, /* the last two dims are swapped in memory */
    TG_SAMPLE_STRIDED,    /* every second element along the last dim */
    TG_SAMPLE_EXPANDED,   /* stride 0 along the first dim */
} tg_sample_layout;

typedef struct tg_sample_input {
    tg_shape shape;
    tg_sample_kind kind;
    tg_sample_layout layout;
    /* floats: uniform in [lo, hi), or normal if both are 0. INDEX: integers in [lo, hi). BOOL: true where the position
     * modulo hi is at least lo; random if hi is 0 */
    double lo, hi;
    bool frozen;   /* requires no gradient */
    tg_dtype dtype; /* dtype of an input that does not follow the test's dtype */
    int zeros;      /* floats: one element in every `zeros`, the last, is 0; 0: none */
} tg_sample_input;

enum { TG_SAMPLE_INPUTS = 10 };
typedef struct tg_sample {
    const char *note;   /* what is special about it, for messages */
    const void *params; /* of tg_apply */
    int n_in;
    tg_sample_input in[TG_SAMPLE_INPUTS];
    /* not TG_OK: the status with which this call must fail when recorded (TG_ERR_DATA: in forward) */
    tg_status refused;
    double rtol;       /* tolerance of gradcheck; 0: 1e-6 */
    bool kinked;       /* values may be near a point without a derivative, so gradcheck may report kinks */
    bool bench;        /* large: for benchmarks; the tests skip it */
    bool slow;         /* only the long test suite runs it */
    bool aliases;      /* one tensor is given as all inputs */
    /* For a collective op: the number of ranks; 0: 1. Its params begin with a tg_comm *, which the caller that runs the
     * sample fills in. */
    int ranks;
} tg_sample;

/* Inputs of samples. TG_S(2, 3): normal floats [2, 3]. TG_S_SCALAR: a scalar. TG_S_IN(lo, hi, dims...): uniform floats.
 * TG_S_AS(layout, dims...): another layout. TG_S_INDEX(n, dims...): indices in [0, n). TG_S_BOOL(dims...): bools.
 * TG_S_ABSENT: an optional input that is NULL. TG_S_STARTS(hi, n): TG_SAMPLE_STARTS. TG_SAMPLES(array) fills the fields
 * of tg_op from an array of samples. */
#define TG_S_SHAPE(...) {.ndim = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dim = {__VA_ARGS__}}
#define TG_S(...) {.shape = TG_S_SHAPE(__VA_ARGS__)}
#define TG_S_SCALAR {.shape = {.ndim = 0, .dim = {0}}}
#define TG_S_IN(lo_, hi_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .lo = (lo_), .hi = (hi_)}
#define TG_S_AS(layout_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .layout = (layout_)}
#define TG_S_INDEX(n_, ...) {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_INDEX, .hi = (n_)}
#define TG_S_BOOL(...) {.shape = TG_S_SHAPE(__VA_ARGS__), .kind = TG_SAMPLE_BOOL}
#define TG_S_ABSENT {.kind = TG_SAMPLE_ABSENT}
#define TG_S_STARTS(hi_, n_) {.shape = TG_S_SHAPE(n_), .kind = TG_SAMPLE_STARTS, .hi = (hi_)}
#define TG_SAMPLES(s) \
    .samples = (s), .n_samples = (int)(sizeof(s) / sizeof((s)[0])), .sample_size = sizeof((s)[0])

/* The table that defines an op. A program makes one static const tg_op per op and calls it with tg_apply. */
struct tg_op {
    size_t size;
    const char *name, *formula; /* used in errors, docs, traces and benchmarks */
    int n_in, n_out;            /* n_in < 0: variadic, at least -n_in inputs; n_out < 0: infer sets the number */
    size_t params_size;         /* bytes of the params that tg_apply copies; 0: none */
    uint32_t saves_in, saves_out; /* bit masks of the inputs and outputs that backward reads (bit 31: all from 31 on) */
    uint32_t optional; /* bit mask of inputs that may be NULL */
    /* Bit mask of inputs whose gradient backward gives by tg_call_pass or writes into tg_call_gin. No buffer is made
     * for them before the call. */
    uint32_t passes;
    /* Bit mask of inputs that forward may write, as batch_norm writes its running statistics. They are buffers: a
     * written input requires no gradient, and shares its bytes with no other input or output. If a node saved it
     * earlier, backward reports that it was overwritten. The outputs must not depend on what these inputs held: in the
     * second run of a recomputation the bits of the call are clear, and forward leaves these inputs as the first run
     * made them. */
    uint32_t writes;
    tg_family family;
    bool inplace; /* output 0 overwrites the bytes of input 0 */
    bool sums_f32; /* backward can write or add float32 gradients of 16-bit inputs (main_grad) */
    /* The ranks run the op together. Its backward runs on every rank whenever any rank needs it. If no gradient came on
     * this rank, gout is zeros; the node is never skipped, because the other ranks would wait forever. */
    bool collective;
    /* Checks the inputs and params, and declares the outputs and what the op saves (tg_call_out and others). */
    tg_status (*infer)(tg_call *c);
    /* Fills the outputs. Ops that it records are in no-grad mode. NULL: infer made views of all outputs, and nothing
     * runs. */
    tg_status (*forward)(tg_call *c);
    tg_status (*backward)(tg_call *c); /* computes gin from gout; NULL: not differentiable */
    /* The derivatives as ops on a tape (derivatives.h), computed from what the node saves and from the given tensors,
     * which are NULL where no gradient came. */
    tg_status (*vjp)(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);
    tg_status (*jvp)(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
    int64_t (*flops)(const tg_node *n); /* of forward; NULL: one per output element */
    const tg_sample *samples;
    int n_samples;
    size_t sample_size; /* sizeof(tg_sample), which may grow in later versions; 0: its present size */
};

/* For infer: these functions record an error before they return it. A NULL call returns TG_ERR_ARGUMENT. shape and
 * stride have ndim entries; strides are in elements.
 *
 * Creates output i, which forward fills, with this dtype and shape.
 */
TG_API tg_status tg_call_out(tg_call *c, int i, tg_dtype dtype, int ndim, const int64_t *shape);
/* Makes output i a view of input 0: it has the same bytes, begins `offset` elements later, and has these strides. A
 * view outside the bytes of input 0 fails with TG_ERR_SHAPE. */
TG_API tg_status tg_call_view(tg_call *c, int i, int64_t offset, int ndim, const int64_t *shape, const int64_t *stride);
/* Sets the number of outputs if the op's n_out < 0. Call it before the first tg_call_out. */
TG_API tg_status tg_call_outputs(tg_call *c, int n);
/* Declares saved buffer i, which forward fills and backward reads. Buffers are declared in order, at most 8. */
TG_API tg_status tg_call_save(tg_call *c, int i, tg_dtype dtype, int ndim, const int64_t *shape);
/* Takes n draws (0 or more) from the stream that draws now (tg_rng_fork), and returns the state to draw from. */
TG_API tg_rng tg_call_draw(tg_call *c, int64_t n);
/* Takes the draws of a tensor placed like x: as many as the global tensor has elements, on every rank. So the streams
 * of the ranks stay in step. A shard draws by its place in the global tensor. An opaque tensor draws as if the ranks'
 * tensors were stacked by rank. Tensors that are the same on an axis draw the same numbers there. With TG_RNG_MEGATRON
 * none of this holds: it takes as many draws as x itself has elements, from the stream that tg_rng_mode names. */
TG_API tg_draws tg_call_draws(tg_call *c, const tg_tensor *x);
/* Makes work w fill output i; readers of the output wait for w. Only in forward. Takes over w, on an error too; w NULL
 * returns the error that is recorded. The work must keep the memory that it reads alive (a tg_comm does so). */
TG_API tg_status tg_call_out_in_flight(tg_call *c, int i, tg_work *w);
/* For ops whose dims do not behave like their family's (docs/placements.md), and for TG_FAMILY_CUSTOM.
 *
 * tg_call_role states that dim d of input i becomes output dim j (free), is summed (TG_SUMMED), or is whole (TG_WHOLE).
 * A dim without a role is whole. The summed dims of the inputs are paired in order.
 *
 * tg_call_linear states one set of inputs (bit i: input i) in which the op is jointly linear, without a constant term.
 * It may be called up to 4 times, and replaces the family's sets; 0 states that there is none.
 */
enum { TG_WHOLE = -1, TG_SUMMED = -2 };
TG_API tg_status tg_call_role(tg_call *c, int i, int d, int j);
TG_API tg_status tg_call_linear(tg_call *c, uint32_t set);
/* For ops of TG_FAMILY_CUSTOM that map a placement to another: requires that input i is `from` on comm's axis, and
 * gives output o the placement `to` there. Otherwise the op fails with TG_ERR_PLACEMENT, and the message quotes
 * `remedy`, which says what to do instead.
 *
 * Inputs that no conversion names must be the same on every rank of the axis, and need no gradient. Other axes follow
 * the rule, by the roles and linear sets that infer states. If infer states none and the op has one input, they pass
 * through dim by dim. c->dims lists the dims along which rows move between ranks. If comm belongs to no axis, or its
 * axis has one rank, the call only checks i, o and comm (TG_ERR_ARGUMENT), and the op follows the rule without it. An
 * op may state 8 conversions.
 */
TG_API tg_status tg_call_convert(tg_call *c, int i, tg_placement from, int o, tg_placement to, const tg_comm *comm,
                                 const char *remedy);
/* Records an error that names the op and the dtype and shape of every input. TG_OK counts as TG_ERR_INTERNAL. */
TG_API tg_status tg_call_fail(tg_call *c, tg_status s, const char *format, ...) TG_PRINTF(3, 4);

/* For forward and backward: these functions return inert tensors on an error.
 *
 * Creates a temporary tensor that is freed when the call returns.
 */
TG_API tg_tensor *tg_call_temp(tg_call *c, tg_dtype dtype, int ndim, const int64_t *shape);
/* Makes g, or a view of it, the gradient of input i, without a copy. g is an output gradient of this call or a
 * temporary, and has the shape of input i. Respects gin_mode. Only in a backward, like tg_call_gin and
 * tg_call_in_flight. */
TG_API tg_status tg_call_pass(tg_call *c, int i, tg_tensor *g);
/* Returns the gradient of input i to write or add into: gin[i] if that is not NULL, otherwise a buffer that is made
 * now. Inert on an error, and if no gradient is needed. */
TG_API tg_tensor *tg_call_gin(tg_call *c, int i);
/* Returns a handle on the bytes of g with another layout, for tg_call_pass. It ends when the call returns. */
TG_API tg_tensor *tg_call_view_of(tg_call *c, tg_tensor *g, int64_t offset, int ndim, const int64_t *shape,
                                  const int64_t *stride);
/* Makes g the gradient of input i, while work w fills it; nothing waits until a reader needs g. Takes over w; on an
 * error w is aborted. w NULL: g is in flight already, filled by a collective of this call. */
TG_API tg_status tg_call_in_flight(tg_call *c, int i, tg_tensor *g, tg_work *w);

/* Records one op: copies params, calls infer, runs forward and, if a gradient is needed, keeps the node.
 *
 * state, which may be NULL, belongs to the op: destroy(state) is called when its node ends, also on failure. site is
 * the caller's return address (TG_SITE), quoted in errors. out[] receives n_out handles, inert ones on failure. A list
 * has at most 65535 tensors.
 */
TG_API tg_status tg_apply(tg_tape *t, const tg_op *op, const void *params, tg_tensor *const *in, int n_in,
                          tg_tensor **out, int n_out, void *state, void (*destroy)(void *state), const void *site);

/* ---- The op table, nodes ---- */

TG_API int tg_op_count(void);
TG_API const tg_op *tg_op_at(int i); /* Returns the i-th op, in the order of op_list.h; NULL if out of range. */
/* Returns the op with this name; NULL if there is none. */
TG_API const tg_op *tg_op_find(const char *name);

/* Queries about a tape and its nodes. Nodes belong to the tape until its reset. NULL, and an index out of range, give 0
 * or NULL. */
TG_API int64_t tg_tape_nodes(const tg_tape *t);            /* Returns the number of nodes. */
/* Returns the i-th node in recorded order. */
TG_API const tg_node *tg_tape_node(tg_tape *t, int64_t i);
TG_API const tg_node *tg_node_of(const tg_tensor *x);      /* Returns the node that made x; NULL for a leaf. */
TG_API const tg_op *tg_node_op(const tg_node *n);
TG_API int tg_node_inputs(const tg_node *n);
TG_API int tg_node_outputs(const tg_node *n);
TG_API tg_tensor *tg_node_input(const tg_node *n, int i);
TG_API tg_tensor *tg_node_output(const tg_node *n, int i);
TG_API const void *tg_node_params(const tg_node *n);
TG_API int64_t tg_node_flops(const tg_node *n); /* Returns the floating-point operations of forward. */
/* Returns the bytes of the tape that the node keeps for backward; parameters and other leaves do not count. */
TG_API int64_t tg_node_saved_bytes(const tg_node *n);
/* Writes the path of scopes and the call site of the op, and returns the length of the whole text. */
TG_API size_t tg_node_site(const tg_node *n, char *buf, size_t size);

#ifdef __cplusplus
}
#endif

#endif
