/* For writers of ops: the table of an op, what its functions may call, and the nodes of a tape. */
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
    uint32_t writes;              /* infer may clear bits of what this call leaves alone: forward writes these alone */
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

typedef enum tg_sample_kind {
    TG_SAMPLE_FLOAT,
    TG_SAMPLE_INDEX,
    TG_SAMPLE_BOOL,
    TG_SAMPLE_ABSENT,
    TG_SAMPLE_STARTS, /* int64 that rise from 0 to hi, in steps that grow */
} tg_sample_kind;
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
    int zeros;      /* floats: the last of every so many is 0; 0: none is made so */
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

/* Inputs of samples: TG_S(2, 3) is a normal float32 [2, 3]; TG_S_(scalar shape). TG_S_IN(lo, hi, dims...). */
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

struct tg_op {
    size_t size;
    const char *name, *formula; /* errors, docs, traces and benches use them */
    int n_in, n_out;            /* n_in < 0: variadic, at least -n_in; n_out < 0: infer says how many */
    size_t params_size;
    uint32_t saves_in, saves_out; /* bit masks of what backward reads (bit 31: all from 31 on) */
    uint32_t optional; /* bit mask of inputs that may be NULL */
    uint32_t passes; /* of inputs whose gradient backward gives by tg_call_pass or writes into tg_call_gin: no buffer is
                        made for them before the call */
    /* Bit mask of inputs that forward may write, as batch_norm does its running statistics. They are buffers: a written
     * one needs no gradient and shares its bytes with no other input or output, and who has saved it before is told.
     * What the outputs are must not depend on what these held: in the second run of a recomputation the call's bits are
     * clear, and it leaves them as the first has made them. */
    uint32_t writes;
    tg_family family;
    bool inplace; /* output 0 overwrites input 0's storage */
    bool sums_f32; /* backward can write or add float32 gradients of 16-bit inputs (main_grad) */
    /* Ranks meet in it. Its backward runs on every rank whenever one that needs it runs: where no gradient came on this
     * rank, gout is zeros, never pruned away, or its peers would wait for ever. */
    bool collective;
    tg_status (*infer)(tg_call *c);
    /* Fills the outputs. What it records is in no-grad mode. NULL: infer made views of them all, nothing runs. */
    tg_status (*forward)(tg_call *c);
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

#endif
