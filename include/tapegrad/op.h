/* Ops: the table that defines an op, the functions that its callbacks may call, and the nodes of a tape. Programs that
 * define an op include this header, mostly through extend.h. */
#ifndef TAPEGRAD_OP_H
#define TAPEGRAD_OP_H

#include <tapegrad/device.h>
#include <tapegrad/fields.h>
#include <tapegrad/tape.h>
#include <tapegrad/work.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Ops ---- */

/* How backward must write the gradient of an input i. */
typedef enum tg_grad_mode {
    TG_GRAD_NONE,  /* input i needs no gradient; gin[i] is NULL */
    TG_GRAD_WRITE, /* overwrite the memory of gin[i], whatever it holds */
    TG_GRAD_ADD,   /* add to the values that gin[i] holds */
} tg_grad_mode;

/* One call of an op: what its functions (tg_op.infer, forward and backward) see of it. infer and forward get the same
 * struct. Each call of backward gets another one, in which writes and dims are 0. The struct and its arrays are valid
 * until the function returns. */
typedef struct tg_call {
    tg_ctx *ctx;
    tg_tape *tape;
    const tg_op *op;
    void *params; /* the tape's copy of the params, NULL if the op has none; infer may change it */
    void *state;  /* the state that tg_apply was given */
    int n_in, n_out, n_saved;
    /* The inputs and the outputs. An optional input that is absent is NULL. Before infer has made output i, out[i] is
     * NULL. Backward may read the elements only of those that the call saves (saves_in, saves_out); of the others it
     * may read shape, dtype and placement. */
    tg_tensor *const *input;
    tg_tensor **out;
    tg_tensor **saved; /* private buffers that infer has declared (tg_call_save) */
    /* Bit mask of the inputs that need a gradient. It is 0 in no-grad mode, and if the op has neither backward nor vjp.
     * In backward: the inputs whose gradient backward must compute. Bit 31 is set if any input from 31 on needs one. */
    uint32_t needs;
    /* Bit masks of the inputs and outputs to save for backward. They begin as the masks of the op (tg_op). infer may
     * clear the bits of tensors that backward does not read when it computes the gradients in `needs`. */
    uint32_t saves_in, saves_out;
    /* Bit mask of the inputs that forward writes. It begins as the mask of the op (tg_op.writes) without the absent
     * inputs. In the second run of a recomputation, and if a jvp records the op again (tg_jvp_linear), it begins as 0.
     * infer may clear the bits of inputs that this call does not write. */
    uint32_t writes;
    /* In backward: the gradients of the outputs, with any strides. gout[i] NULL means that the gradient of output i is
     * zero. At least one entry is not NULL. Backward must not write these gradients. */
    tg_tensor *const *gout;
    /* In backward: the gradients of the inputs, to be written as gin_mode says. gin[i] is contiguous, and has the shape
     * and the dtype of input i; if the op has sums_f32, it may be float32 for a 16-bit input. gin[i] is NULL if input i
     * needs no gradient. If input i is in tg_op.passes, gin[i] is also NULL when backward begins. */
    tg_tensor **gin;
    const uint8_t *gin_mode; /* in backward: the tg_grad_mode of each input */
    /* Bit mask of dims of input 0. The mask begins as 0, and infer sets it. For TG_FAMILY_SUM, MEAN, REDUCE and
     * SOFTMAX: the dims that the op reduces or needs whole. For an op that calls tg_call_convert: the dims along which
     * it moves rows between ranks. */
    uint32_t dims;
    void *internal; /* for the library only */
} tg_call;

/* Which dims of the inputs may be sharded, and in which inputs the op is linear (docs/placements.md). A dim is "free"
 * if it may be sharded and becomes a dim of the output, and "whole" if it must not be sharded. "Broadcast" means that
 * the dims of all inputs are paired from the right, as in broadcasting. "Linear" means linear without a constant term,
 * and "jointly linear" in several inputs means linear in all of them together. The result of an op that sums over a
 * sharded dim is PARTIAL.
 *
 * infer may state other roles of dims (tg_call_role) and other linear inputs (tg_call_linear) than the family. A dim to
 * which neither infer nor the family gives a role is whole. */
typedef enum tg_family {
    TG_FAMILY_STRICT,    /* all dims whole; not linear; always safe */
    TG_FAMILY_POINTWISE, /* all dims free, and broadcast; not linear */
    TG_FAMILY_SCALE,     /* all dims free; linear in the first input (negation, product with a constant, identity) */
    TG_FAMILY_ADDITIVE,  /* all dims free, and broadcast; jointly linear in all inputs */
    TG_FAMILY_FACTORS,   /* all dims free, and broadcast; linear in each of two inputs */
    TG_FAMILY_QUOTIENT,  /* all dims free, and broadcast; linear in the first input */
    TG_FAMILY_SELECT,    /* tg_where: all dims free, and broadcast; jointly linear in the last two inputs */
    TG_FAMILY_MATMUL,    /* tg_matmul: all dims may be sharded, also the contracted dim; linear in each input */
    TG_FAMILY_LINEAR,    /* tg_linear: as MATMUL; jointly linear in x and bias, and jointly linear in w and bias */
    TG_FAMILY_SUM,       /* all dims may be sharded, also those that are summed (tg_call.dims); linear */
    TG_FAMILY_MEAN,      /* the reduced dims (tg_call.dims) whole, the others free; linear */
    TG_FAMILY_REDUCE,    /* the reduced dims (tg_call.dims) whole, the others free; not linear */
    TG_FAMILY_SOFTMAX,   /* the dims in tg_call.dims (if 0, the last dim) whole, the others free; not linear */
    TG_FAMILY_SHAPE,     /* dims whole unless infer states roles; jointly linear in all inputs */
    TG_FAMILY_TAKE,      /* embedding, gather: dims whole unless infer states roles; linear in the first input */
    TG_FAMILY_LOSS,      /* dims whole unless infer states roles; not linear */
    TG_FAMILY_ATTENTION, /* tg_attention: batch, heads, the rows of q and the last dim of v free; linear in v */
    TG_FAMILY_CUSTOM,    /* dims whole unless infer states roles; not linear unless infer states linear inputs */
} tg_family;

/* ---- Samples: the inputs on which the tests and the gradient check of the op table run an op ---- */

typedef enum tg_sample_kind {
    TG_SAMPLE_FLOAT,
    TG_SAMPLE_INDEX,  /* integers */
    TG_SAMPLE_BOOL,
    TG_SAMPLE_ABSENT, /* an optional input that is NULL */
    TG_SAMPLE_STARTS, /* integers that rise from 0 to hi along the last dim, with different steps in each row */
} tg_sample_kind;
typedef enum tg_sample_layout {
    TG_SAMPLE_ROWS,       /* row-major */
    TG_SAMPLE_TRANSPOSED, /* the last two dims are swapped in memory */
    TG_SAMPLE_STRIDED,    /* every second element along the last dim */
    TG_SAMPLE_EXPANDED,   /* stride 0 along the first dim */
} tg_sample_layout;

/* One input of a sample. FLOAT, INDEX, BOOL and STARTS below are the values of kind. */
typedef struct tg_sample_input {
    tg_shape shape;
    tg_sample_kind kind;
    tg_sample_layout layout;
    /* FLOAT: values are uniform in [lo, hi), or of the standard normal distribution if lo and hi are 0. INDEX: values
     * are integers in [lo, hi). BOOL: element i, counted in row-major order, is true if i % hi >= lo; if hi is 0,
     * values are random. STARTS: hi is the last value of each row; a row of one element has the value 0. */
    double lo, hi;
    bool frozen; /* the input requires no gradient; only float inputs ever require one */
    /* Dtype of the input. 0 means the dtype of the test (FLOAT), int64 (INDEX, STARTS) or bool (BOOL). */
    tg_dtype dtype;
    int zeros; /* FLOAT: the last of every `zeros` elements has the value 0; 0 means that there are no such elements */
} tg_sample_input;

enum { TG_SAMPLE_INPUTS = 10 }; /* the greatest number of inputs of a sample */
/* One sample: the params and inputs of a call, and what is expected of it. */
typedef struct tg_sample {
    const char *note;   /* what is special about the sample, for messages */
    const void *params; /* the params for tg_apply */
    int n_in;           /* at most TG_SAMPLE_INPUTS */
    tg_sample_input input[TG_SAMPLE_INPUTS];
    /* If not TG_OK, tg_apply must fail with this status. An op finds TG_ERR_DATA in forward, and other errors in
     * infer. */
    tg_status refused;
    double rtol;       /* relative tolerance of tg_gradcheck_op; 0 means 1e-6 */
    bool kinked;       /* values may be near a point without a derivative, so a gradient check may report kinks */
    bool bench;        /* the sample is large: only benchmarks run it */
    bool slow;         /* only the long test suite runs the sample */
    bool aliases;      /* the tensor of input[0] is given as every input that is not absent */
    /* For a collective op: the number of ranks that run the sample; 0 means 1. The params of such an op begin with a
     * tg_comm *, which the program that runs the sample sets. */
    int ranks;
} tg_sample;

/* Initializers of a tg_sample_input:
 * - TG_S(2, 3): normal floats of shape [2, 3].
 * - TG_S_SCALAR: one normal float, a scalar.
 * - TG_S_IN(lo, hi, dims...): uniform floats in [lo, hi).
 * - TG_S_AS(layout, dims...): normal floats in this layout.
 * - TG_S_INDEX(n, dims...): integers in [0, n).
 * - TG_S_BOOL(dims...): random bools.
 * - TG_S_ABSENT: an optional input that is NULL.
 * - TG_S_STARTS(hi, n): n integers of kind TG_SAMPLE_STARTS.
 *
 * TG_SAMPLES(array) initializes the fields samples, n_samples and sample_size of a tg_op. */
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

/* The table that defines an op. A program makes one static const tg_op per op and calls it with tg_apply. The table
 * must live as long as the nodes of the op. size, name, and infer or compose are required. Every other member may be 0,
 * false or NULL. In all bit masks, bit i stands for tensor i, and bit 31 for all tensors from 31 on. */
struct tg_op {
    size_t size;                /* sizeof(tg_op) */
    const char *name, *formula; /* used in errors, docs, traces and benchmarks */
    /* Numbers of inputs and outputs. n_in < 0 means any number of inputs, but at least -n_in. n_out < 0 means that
     * infer sets the number of outputs (tg_call_outputs). */
    int n_in, n_out;
    /* Bytes of the params, which tg_apply copies; 0 means that the op has no params. What pointers in the params point
     * to is not copied. It must stay valid as long as the node, unless infer replaces the pointers. */
    size_t params_size;
    uint32_t saves_in, saves_out; /* bit masks of the inputs and outputs that backward, vjp and jvp read */
    uint32_t optional;            /* bit mask of the inputs that may be NULL */
    /* Bit mask of the inputs whose gradients backward gives by tg_call_pass, tg_call_in_flight or tg_call_gin. For
     * these inputs gin[i] is NULL when backward begins. */
    uint32_t passes;
    /* Bit mask of the inputs that forward may write, as batch_norm writes its running statistics. The call fails with
     * TG_ERR_ARGUMENT if such an input needs a gradient, if it shares bytes with another input or an output, or if its
     * elements share memory. If an earlier node has saved the input, the backward of that node fails with
     * TG_ERR_VERSION.
     *
     * The outputs must not depend on what these inputs hold before the call. Forward must leave those inputs unchanged
     * that are not in tg_call.writes, as in the second run of a recomputation. */
    uint32_t writes;
    tg_family family;
    /* Output 0 overwrites the bytes of input 0. The two have the same dtype and number of elements (TG_ERR_SHAPE).
     * After the call, out[0] replaces input 0, and later uses of input 0 fail; but if input 0 belongs to the context,
     * it stays valid, and is out[0] itself. If an earlier node has saved input 0, the backward of that node fails with
     * TG_ERR_VERSION.
     *
     * The call fails with TG_ERR_STATE
     * - if input 0 is a view or not contiguous;
     * - if another live handle or another input shares its bytes;
     * - in grad mode, if input 0 is a leaf that requires a gradient;
     * - in grad mode, if input 0 belongs to the context and another input requires a gradient. */
    bool inplace;
    /* The op moves or converts elements. So its inputs may have every dtype that a tensor can have. If false, inputs of
     * the dtypes with which no op computes, such as TG_F8E4M3, fail with TG_ERR_DTYPE. */
    bool moves;
    bool sums_f32; /* if input i is a 16-bit float, backward can also write to a gin[i] of dtype float32 */
    /* The ranks run the op together, so every rank must call it. Backward runs on every rank on which the roots of
     * tg_backward depend on the op, even if no gradient reaches the op there, because other ranks would otherwise wait
     * forever. The missing gradients in gout are then tensors of zeros. */
    bool collective;
    /* The functions of the op, except flops and outputs_of, return TG_OK or an error. If the function has not recorded
     * the error (tg_call_fail), the library records one with this status.
     *
     * infer checks the inputs and params, and declares the outputs and what the op saves (tg_call_out and others). */
    tg_status (*infer)(tg_call *c);
    /* Fills the outputs and the saved buffers. Ops that forward records are in no-grad mode. NULL means that infer
     * makes every output a view (tg_call_view), so that nothing runs. */
    tg_status (*forward)(tg_call *c);
    /* Computes gin from gout. May run several times for one call. If only backward is NULL, tg_backward through the op
     * fails with TG_ERR_UNSUPPORTED. If both backward and vjp are NULL, the outputs require no gradient. */
    tg_status (*backward)(tg_call *c);
    /* vjp and jvp compute derivatives by recording ops on t (derivatives.h). Both may read the elements of the
     * given tensors and of what the node saves. vjp (vector-Jacobian product) sets gin[], the gradients of the
     * inputs, from gout[], the gradients of the outputs. jvp (Jacobian-vector product) sets dout[], the tangents of
     * the outputs, from din[], the tangents of the inputs. In all four arrays NULL means zero. gin[] and dout[] are
     * NULL at first. */
    tg_status (*vjp)(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);
    tg_status (*jvp)(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);
    /* Returns the number of floating-point operations of forward. NULL means one per element of the outputs, or 0 if
     * the op has no forward. */
    int64_t (*flops)(const tg_node *n);
    const tg_sample *samples;
    int n_samples;
    size_t sample_size; /* sizeof(tg_sample) of the program; 0 means that of the library */
    /* A second name for tg_op_find: the name of the C function without "tg_", if that is not `name`. NULL: none. */
    const char *alias;
    /* The names of the inputs and of the outputs, with a space between names: "x w b". "x.." names a list of any
     * length. inputs NULL means that the inputs have no names. outputs NULL means that the only output is "y". */
    const char *inputs, *outputs;
    /* The members of params that a caller sets, under the names of the arguments of the C function. */
    const tg_field *fields;
    int n_fields;
    /* Params with the defaults of the fields, and with the members that are the same in every call. NULL: all zero. */
    const void *preset;
    /* For an op with n_out < 0: returns the number of outputs of a call with these params. NULL: only infer knows. */
    int (*outputs_of)(const void *params);
    /* For an op without infer: records other ops, and sets out[] to their outputs. tg_apply calls compose with its own
     * arguments params, in, out and site, and keeps no node of this op. If compose fails, what it has recorded ends. */
    tg_status (*compose)(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out, const void *site);
};

/* Initializers of a tg_field that describes a member of the params of an op:
 * - TG_ARG(slice_params, start, INT64, "..."): the member `start`, which is the argument start.
 * - TG_ARG_AS(sort_params, falling, "descending", BOOL, "..."): a member whose argument has another name.
 * - TG_ARG_ARRAY(conv_params, w.pad, "padding", INT64, n, "..."): the first n elements of this array.
 * Further arguments initialize more members of tg_field, such as .required = true. TG_FIELDS(array) initializes fields
 * and n_fields of a tg_op. */
#define TG_ARG(params_, member_, kind_, ...) TG_ARG_AS(params_, member_, #member_, kind_, __VA_ARGS__)
#define TG_ARG_AS(params_, member_, name_, kind_, ...) \
    TG_ARG_ARRAY(params_, member_, name_, kind_, 1, __VA_ARGS__)
#define TG_ARG_ARRAY(params_, member_, name_, kind_, n_, ...)                                    \
    {.name = name_, .kind = TG_FIELD_##kind_, .count = n_, .offset = offsetof(params_, member_), \
     .bytes = sizeof(((params_ *)0)->member_), .doc = __VA_ARGS__}
#define TG_FIELDS(f) .fields = (f), .n_fields = (int)(sizeof(f) / sizeof((f)[0]))

/* ---- Functions that infer calls ----
 *
 * Those that return a status record an error in the context before they return it; if c is NULL they only return
 * TG_ERR_ARGUMENT. tg_call_draw and tg_call_draws return no status; if the context has an error after the call, infer
 * must return tg_ctx_status(c->ctx). shape and stride have ndim entries, may be NULL if ndim is 0, and are copied. ndim
 * is at most TG_MAX_DIMS. Strides are in elements and may be 0 or negative. */

/* Creates output i, which forward fills, with this dtype and shape. Every output must be made once, by tg_call_out or
 * tg_call_view (TG_ERR_INTERNAL). An op without forward cannot call tg_call_out (TG_ERR_ARGUMENT). */
TG_API tg_status tg_call_out(tg_call *c, int i, tg_dtype dtype, int ndim, const int64_t *shape);
/* Makes output i a view of input 0. The view shares the bytes of input 0, and has its dtype. It begins `offset`
 * elements after the first element of input 0, and has this shape and stride. Fails with TG_ERR_SHAPE if the view
 * reaches outside the bytes of input 0, and with TG_ERR_ARGUMENT if input 0 is absent. */
TG_API tg_status tg_call_view(tg_call *c, int i, int64_t offset, int ndim, const int64_t *shape, const int64_t *stride);
/* Sets the number of outputs of an op with n_out < 0: n is from 0 to the n_out of tg_apply (TG_ERR_ARGUMENT). Without
 * this call the op has that many. Call it before the first output is made. */
TG_API tg_status tg_call_outputs(tg_call *c, int n);
/* Declares saved buffer i, which forward fills and backward reads. Declare buffers in order from 0, at most 8. */
TG_API tg_status tg_call_save(tg_call *c, int i, tg_dtype dtype, int ndim, const int64_t *shape);
/* Takes n draws, 0 or more (TG_ERR_ARGUMENT), from the current random stream: the stream that tg_rng_fork has selected,
 * or the default one. With an open key (tg_key_open) the draws are those of the key. Returns the state from which these
 * draws begin. While a captured step is recorded (capture.h), n > 0 fails with TG_ERR_UNSUPPORTED, because every replay
 * would take the same draws; tg_call_draws works there. */
TG_API tg_rng tg_call_draw(tg_call *c, int64_t n);
/* Takes draws for a tensor that has the shape and the placement of x, one for each element, and returns them.
 *
 * Every rank takes as many draws as the global tensor has elements, so the streams of all ranks stay equal. Each
 * element gets the draw of its position in the global tensor. If x is opaque on an axis (TG_OPAQUE), the global tensor
 * is the stack of the tensors of that axis's ranks, in rank order; with an open key (tg_key_open) the call then fails
 * with TG_ERR_PLACEMENT. On an axis on which x is not VARYING, all ranks get the same draws if their streams are equal.
 *
 * With TG_RNG_MEGATRON (parallel.h) the call takes only as many draws as x has elements on this rank, from the stream
 * that TG_RNG_MEGATRON assigns to x, or from the one that tg_rng_fork has selected. */
TG_API tg_draws tg_call_draws(tg_call *c, const tg_tensor *x);
/* State how the dims of inputs may be sharded, and in which inputs the op is linear (docs/placements.md). These
 * functions are for ops that differ from their family in this, and for TG_FAMILY_CUSTOM.
 *
 * tg_call_role states the role of dim d of input i. j >= 0 means that dim d is free, and becomes dim j of the output.
 * TG_SUMMED means that the op sums over dim d, and TG_WHOLE that dim d must not be sharded. If several inputs have
 * summed dims, these are paired in order: the first summed dims of all inputs are one index of the sum, the second ones
 * are another, and so on.
 *
 * tg_call_linear states one set of inputs in which the op is jointly linear, without a constant term; bit i of `set`
 * stands for input i. An op may call it up to 4 times. The stated sets replace those of the family. If the only call
 * has set 0, the op is linear in no input. */
enum { TG_WHOLE = -1, TG_SUMMED = -2 };
TG_API tg_status tg_call_role(tg_call *c, int i, int d, int j);
TG_API tg_status tg_call_linear(tg_call *c, uint32_t set);
/* States that the op converts input i to output o: input i must have the placement `from` on comm's axis, and output o
 * gets the placement `to` there. It is for ops of TG_FAMILY_CUSTOM. If input i has another placement, the op fails with
 * TG_ERR_PLACEMENT, and the message quotes `remedy`, a text that says what to do instead. INVARIANT and REPLICATED
 * count as the same for an input that needs no gradient. If several axes shard one dim, only the minor one can be
 * converted. An op may state at most 8 conversions. Fails with TG_ERR_ARGUMENT if comm is NULL, or if i or o is out of
 * range.
 *
 * On comm's axis, an input that is in no conversion must be the same on every rank and need no gradient
 * (TG_ERR_PLACEMENT). infer must set c->dims to the dims along which the op moves rows between ranks: the op fails with
 * TG_ERR_PLACEMENT if another axis shards one of them.
 *
 * On all other axes, placements follow the general rule (docs/placements.md), applied to the roles and linear sets that
 * infer states. If the op has one input, a dim of that input without a stated role is free and becomes the same dim of
 * the output. If infer states no linear set, an op with one input is linear in it.
 *
 * If comm belongs to no axis, or if its axis has one rank, the call only checks its arguments. */
TG_API tg_status tg_call_convert(tg_call *c, int i, tg_placement from, int o, tg_placement to, const tg_comm *comm,
                                 const char *remedy);
/* Records an error with status s and this text, and returns the status of the context. If the context has an error
 * already, that error stays. The message also names the op and its call site and, unless backward calls this function,
 * the dtypes and shapes of the first 8 inputs. s TG_OK means TG_ERR_INTERNAL. forward and backward may call it too. */
TG_API tg_status tg_call_fail(tg_call *c, tg_status s, const char *format, ...) TG_PRINTF(3, 4);

/* ---- Functions that forward and backward call ----
 *
 * Those that return a tensor return an inert one after recording an error. c, shape and stride are as for infer. */

/* Creates a temporary tensor with undefined elements. It is freed after the forward or backward that has created it has
 * returned. */
TG_API tg_tensor *tg_call_temp(tg_call *c, tg_dtype dtype, int ndim, const int64_t *shape);
/* Only in forward: lets work w fill output i, which tg_call_out has created (TG_ERR_ARGUMENT). Readers of the output
 * wait for w.
 *
 * Takes over w, and aborts it on an error. The work must keep alive the memory that it reads, as the works of a tg_comm
 * do. w may be NULL if the call that should have started the work has failed. In that case returns the status of the
 * context, which has the error of that call. */
TG_API tg_status tg_call_out_in_flight(tg_call *c, int i, tg_work *w);
/* Only in backward: gives g as the gradient of input i. g is an output gradient of this call (gout), a temporary
 * (tg_call_temp), or a view of one of them (tg_call_view_of). g has the shape (TG_ERR_SHAPE) and the dtype
 * (TG_ERR_DTYPE) of input i, and may have any strides. The call does not take over the handle g. Do not write the bytes
 * of g after it.
 *
 * If the gradient of input i has no memory yet, g becomes the gradient, without a copy. Otherwise writes g into that
 * memory or adds it, as gin_mode[i] says. Does nothing if input i needs no gradient. Fails with TG_ERR_STATE if this
 * backward has already given the gradient of input i by tg_call_pass or tg_call_in_flight; an op that computes the
 * gradient in parts passes their sum. */
TG_API tg_status tg_call_pass(tg_call *c, int i, tg_tensor *g);
/* Only in backward: returns the gradient of input i, to be written as gin_mode[i] says. This is gin[i], which the call
 * creates if it is NULL. If input i needs no gradient, returns an inert tensor without recording an error. */
TG_API tg_tensor *tg_call_gin(tg_call *c, int i);
/* Returns a view of g, for tg_call_pass: a handle that shares the bytes of g, begins `offset` elements after the first
 * element of g, and has this shape and stride. The handle is freed like a temporary. Fails with TG_ERR_SHAPE if the
 * view would reach outside the bytes of g. */
TG_API tg_tensor *tg_call_view_of(tg_call *c, tg_tensor *g, int64_t offset, int ndim, const int64_t *shape,
                                  const int64_t *stride);
/* Only in backward: gives g, which work w still fills, as the gradient of input i. g is as for tg_call_pass. Nothing
 * waits for w until the gradient is read. Takes over w, and aborts it on an error. w may be NULL if a collective that
 * this backward function has started fills g already; otherwise NULL fails with TG_ERR_ARGUMENT. */
TG_API tg_status tg_call_in_flight(tg_call *c, int i, tg_tensor *g, tg_work *w);

/* ---- Recording an op ---- */

/* Records one op. Copies params, calls infer, runs forward and, if an input needs a gradient (tg_call.needs), keeps a
 * node. For an op without infer, calls compose instead.
 *
 * The inputs belong to t or to its context (TG_ERR_HANDLE). in[i] may be NULL only if input i is optional, and params
 * only if the op has none (TG_ERR_ARGUMENT). out[] receives n_out handles, which are inert on an error. If the op has
 * n_out < 0, n_out is the size of out[]; entries after the last output become NULL. n_in and n_out are at most 65535,
 * and 0 if the array is NULL. Invalid numbers, arrays or tables fail with TG_ERR_ARGUMENT.
 *
 * state may be NULL. Otherwise the op takes it over: destroy(state) is called when the node ends, or, if no node is
 * kept, before tg_apply returns, also on an error. destroy may be NULL. site is the caller's return address (TG_SITE),
 * which errors quote. */
TG_API tg_status tg_apply(tg_tape *t, const tg_op *op, const void *params, tg_tensor *const *in, int n_in,
                          tg_tensor **out, int n_out, void *state, void (*destroy)(void *state), const void *site);

/* ---- The op table, nodes ---- */

TG_API int tg_op_count(void); /* Returns the number of ops of the library. */
/* Returns the i-th op of the library, in the order of docs/ops.md; NULL if i is out of range. */
TG_API const tg_op *tg_op_at(int i);
/* Returns the op of the library with this name or alias; NULL if there is none. */
TG_API const tg_op *tg_op_find(const char *name);

/* Queries about a tape and its nodes. Nodes belong to the tape. A node is valid until the tape is reset or freed, or
 * until the node ends with its results (tg_release, tg_tape_collect). A leaf that requires a gradient also has a node
 * once a recorded op has used it. The op of this node has the name "leaf", no inputs, and the leaf as its output. The
 * functions return 0 or NULL if the tape, the tensor or the node is NULL, or if an index is out of range. */
TG_API int64_t tg_tape_nodes(const tg_tape *t); /* Returns the number of nodes, those of leaves included. */
/* Returns the i-th node in recorded order, i from 0. */
TG_API const tg_node *tg_tape_node(tg_tape *t, int64_t i);
/* Returns the node that made x. Returns NULL for a leaf, and for a result of which no node was recorded. */
TG_API const tg_node *tg_node_of(const tg_tensor *x);
TG_API const tg_op *tg_node_op(const tg_node *n);
TG_API int tg_node_inputs(const tg_node *n);
TG_API int tg_node_outputs(const tg_node *n);
TG_API tg_tensor *tg_node_input(const tg_node *n, int i);
TG_API tg_tensor *tg_node_output(const tg_node *n, int i);
/* Returns the tape's copy of the params; NULL if the op has none. */
TG_API const void *tg_node_params(const tg_node *n);
TG_API int64_t tg_node_flops(const tg_node *n); /* Returns the number of floating-point operations of forward. */
/* Returns the bytes of tensors of the tape that the node keeps for backward; 0 after a backward has released them.
 * Parameters and other tensors that belong to the context do not count. */
TG_API int64_t tg_node_saved_bytes(const tg_node *n);
/* Writes where the node was recorded: the path of scopes and the call site. Writes at most `size` bytes, the final 0
 * included, and returns the length of the whole text without the final 0. buf may be NULL. The text of a leaf's node is
 * empty. */
TG_API size_t tg_node_site(const tg_node *n, char *buf, size_t size);

#ifdef __cplusplus
}
#endif

#endif
