/* Modules: named parameters, buffers and children, their forward, the state dict, and initial values. Include it to
 * build models. It includes layers.h, which has ready modules; gpt.h and tensor_parallel.h include it. docs/modules.md
 * shows how to write a module.
 *
 * A module owns its parameters, its buffers and its children, which are modules too. Running its forward
 * (tg_module_forward, tg_module_call, or a function for one kind of module such as tg_gpt_loss) records ops on the
 * given tape. Random initial values are drawn when the module is created, for each parameter from its own position in
 * the context's random stream. Initial values therefore depend only on the seed and on the order in which parameters
 * are created. Parameters have the context's default dtype unless an option or tg_module_cast says otherwise.
 *
 * I and R are the placements TG_I (invariant) and TG_R (replicated) of placement.h. On error a function that returns a
 * module returns an inert one: it is not NULL, and calls on it do nothing (tapegrad.h). */
#ifndef TAPEGRAD_NN_H
#define TAPEGRAD_NN_H

#include <tapegrad/layers.h>
#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Modules ---- */

/* The functions of one kind of module. The table must outlive the modules that are made with it. Fields after `free`
 * may be missing: `size` says which fields the table has, and missing ones count as 0. */
typedef struct tg_module_ops {
    size_t size;      /* sizeof(tg_module_ops) */
    const char *kind; /* name of the kind */
    /* Computes one output from one input. May be NULL if `call` is given, or if the module only holds children. */
    tg_tensor *(*forward)(tg_module *m, tg_tape *t, tg_tensor *x);
    void (*free)(void *state); /* releases state; may be NULL */
    /* Computes n_out outputs from n_in inputs. On an error returns its status; what it wrote to out[] is then ignored.
     * NULL means that `forward` serves calls with one input and one output. */
    tg_status (*call)(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out);
    /* Adds the module's state to a list of sharded state (checkpoint.h) with tg_shards_add_tensor, tg_shards_add_module
     * and tg_shards_push. NULL means parameters, then buffers that are not transient, then children. */
    tg_status (*shards)(tg_module *m, tg_shards *s);
    /* Writes what tg_module_print shows after the kind, such as "in 64, out 128, bias", to buf[n], and returns the
     * length of the whole text, like snprintf. May be NULL. */
    size_t (*describe)(const tg_module *m, char *buf, size_t n);
    /* How many inputs `call` takes and how many outputs it gives. 0 means any number, which `call` then checks. */
    int n_in, n_out;
} tg_module_ops;

/* Creates a module. ops->free(state) is called when the module is freed, unless state is NULL. On error tg_module_new
 * calls it at once and returns an inert module. ops->size must cover the fields up to `free`, and be at most
 * sizeof(tg_module_ops). If it is not, or if ops is NULL, ops->free is not called, and the caller must release
 * state. */
TG_API tg_module *tg_module_new(tg_ctx *ctx, const tg_module_ops *ops, void *state);
/* Frees the module, its children, its parameters and its buffers. Fails with TG_ERR_STATE, and frees nothing, while m
 * or a module in it runs its forward. If m is the child of another module, m is removed from its parent. A parent whose
 * forward needs that child fails with TG_ERR_STATE in forward until a new child is added under the same name;
 * tg_module_replace exchanges a child in one call. */
TG_API void tg_module_free(tg_module *m);
TG_API tg_ctx *tg_module_ctx(const tg_module *m);
TG_API void *tg_module_state(const tg_module *m);
TG_API const char *tg_module_kind(const tg_module *m);
/* Adds a parameter, which m then owns: it is dropped when the module is freed, and calling tg_drop on it before does
 * nothing. A name is not empty and contains no dots (TG_ERR_ARGUMENT), and is unique in its module (TG_ERR_STATE). If
 * one tensor is added under several names, the names are tied: the state dict lists the tensor once, under the first
 * name. */
TG_API tg_status tg_module_add_param(tg_module *m, const char *name, tg_tensor *param);
/* Adds a child, which m then owns. Fails with TG_ERR_STATE if child is already in a module, or if child is m or
 * contains m. On any other error frees child at once. */
TG_API tg_status tg_module_add_child(tg_module *m, const char *name, tg_module *child);
TG_API tg_module *tg_module_child(const tg_module *m, const char *name); /* NULL if m has no such child */
/* Puts `child` in the place of the module of that path in m, such as "h.0.mlp.c_fc", and returns the old module, which
 * the caller then owns: frees it, or adds it to child, whose forward can then call it (examples/lora.c). If child is in
 * the old module, it leaves that module; so a wrapper can be taken away again. The new module has the name and the
 * place of the old one, so the order and the paths of all other parameters stay as they are. A model of the library
 * calls it wherever it has called the old one. Hooks and the mode of the old module leave with it. Replace modules
 * before you create what holds their parameters: an optimizer, buckets, a captured step.
 *
 * Fails with TG_ERR_ARGUMENT if m has no module of that path, and with TG_ERR_HANDLE if child is not a module of m's
 * context. Fails with TG_ERR_STATE if child is in another module or contains m, if the old module runs its forward, or
 * if it is in a captured module (tg_captured_new), whose graphs would go on running it. On error nothing changes: child
 * is still the caller's, and the result is an inert module. */
TG_API tg_module *tg_module_replace(tg_module *m, const char *path, tg_module *child);
/* Runs the forward of m on x, in a scope named after m's kind, and returns its result. The kind determines the shapes.
 * A kind without `forward` is called with one input and one output. Fails with TG_ERR_UNSUPPORTED if the kind has
 * neither `forward` nor `call`. The tape owns the result. On error returns an inert tensor. */
TG_API tg_tensor *tg_module_forward(tg_module *m, tg_tape *t, tg_tensor *x);
/* Does the same with several inputs and outputs: reads n_in >= 0 tensors from in[], and writes n_out >= 1 results to
 * out[]. An input may be NULL where the kind allows that. Fails with TG_ERR_SHAPE if the kind takes other numbers of
 * inputs and outputs; a kind without `call` takes one of each. On error every out[i] is an inert tensor. */
TG_API tg_status tg_module_call(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out);

/* ---- Buffers ---- */

/* A buffer is a tensor that belongs to a module and is not trained, such as a running mean, a table or a count of
 * steps. Buffers are saved with the parameters unless they are transient. */
typedef struct tg_buffer_opts {
    size_t size;
    bool transient; /* the buffer is in no checkpoint, because it can be computed again */
    bool keep_f32;  /* tg_module_cast leaves the buffer as it is */
} tg_buffer_opts;
#define TG_BUFFER_DEFAULTS .size = sizeof(tg_buffer_opts)
#define TG_BUFFER(...) (&(tg_buffer_opts){TG_BUFFER_DEFAULTS, __VA_ARGS__})

/* Adds a buffer, which m then owns like a parameter (tg_module_add_param; a parameter and a buffer of one module have
 * different names). x must not require a gradient (TG_ERR_STATE). On an axis on which tg_place has placed x, x keeps
 * that placement. On every other axis x is I, whatever is written into it; check mode finds buffers that are I but
 * differ between ranks. opts may be NULL. */
TG_API tg_status tg_module_add_buffer(tg_module *m, const char *name, tg_tensor *x, const tg_buffer_opts *opts);
/* List the buffers of m and of the modules in it, transient ones too, as tg_module_param_count and tg_module_param list
 * the parameters. */
TG_API int tg_module_buffer_count(const tg_module *m);
TG_API tg_tensor *tg_module_buffer(const tg_module *m, int i, const char **path);

/* ---- Hooks ---- */

typedef enum tg_module_when { TG_BEFORE, TG_AFTER } tg_module_when;
/* A hook on a module: called before each run of m's forward with its inputs in x[n], or after it with its outputs. The
 * hook may replace elements of x by other tensors of the same shape (TG_ERR_SHAPE), such as results of ops that it
 * records on t. An input may be NULL. If a hook returns an error, the run fails with the error that the
 * context has, or with TG_ERR_CALLBACK if the context has none. */
typedef tg_status (*tg_module_fn)(void *user, tg_module *m, tg_tape *t, tg_tensor **x, int n);
/* Adds a hook, and returns a number for tg_module_unhook; 0 on an error. Hooks run in the order of adding. They run
 * whenever the module is called, by the caller or by the module that contains it, and again where backward runs the
 * module again (recompute.h). Models of the library run some of their modules as one op, such as the output matrix with
 * the loss. A module that has hooks is called by itself instead. Only the embedding of a tied model is not called where
 * it serves as the output matrix. user must stay valid until the hook is removed. */
TG_API uint64_t tg_module_hook(tg_module *m, tg_module_when when, tg_module_fn fn, void *user);
/* Removes a hook of m; fails with TG_ERR_ARGUMENT if m has no hook of this number. A hook may remove itself. */
TG_API tg_status tg_module_unhook(tg_module *m, uint64_t id);

/* ---- Modes ---- */

typedef enum tg_mode { TG_MODE_TAPE, TG_MODE_TRAIN, TG_MODE_EVAL } tg_mode;
/* Makes m and the modules in it run in training or evaluation mode, whatever the mode of the tape is
 * (tg_tape_set_training). TG_MODE_TAPE, the initial state, removes the override. The nearest override counts: that of a
 * module before those of the modules that contain it. While a module runs, the tape has the module's mode, so that all
 * ops in it see that mode. Set the mode before a forward, not between a forward and its backward: a recomputation would
 * run in the new mode. */
TG_API tg_status tg_module_set_mode(tg_module *m, tg_mode mode);

/* ---- Dtypes ---- */

/* Converts the floating-point parameters and buffers of m and of the modules in it to dtype, under the same handles.
 * Tensors that tg_module_keep_f32 or tg_buffer_opts name are left as they are. Values are rounded to nearest even.
 * Either all are converted or, on an error, none; until the end the old and the new values are both in memory.
 *
 * dtype must be a floating-point dtype (TG_ERR_DTYPE). Fails with TG_ERR_STATE if one of these tensors has a gradient,
 * a main gradient (tg_set_main_grad) or another handle on its bytes, or if a node, an optimizer or a captured step uses
 * it. So cast first, and create the optimizer afterwards. */
TG_API tg_status tg_module_cast(tg_module *m, tg_dtype dtype);
/* Makes tg_module_cast leave the parameter or buffer of that path in m, such as "router.weight", as it is. Fails with
 * TG_ERR_ARGUMENT if there is none. */
TG_API tg_status tg_module_keep_f32(tg_module *m, const char *path);
/* Creates a module that runs m in 16 bits (Megatron-Core's Float16Module), and then owns m. m is cast to dtype, TG_F16
 * or TG_BF16 (TG_ERR_ARGUMENT). The module has as many inputs and outputs as m. Set `first` for the first stage of a
 * pipeline: floating-point inputs are then cast to dtype, and other inputs pass as they are. Set `last` for the last
 * stage: floating-point outputs are then cast to float32. The state dict of the new module has the same paths as that
 * of m. On error frees m, unless m is already in a module, and returns an inert module. */
TG_API tg_module *tg_float16_new(tg_module *m, tg_dtype dtype, bool first, bool last);
/* Sets whether later calls of f cast their outputs to float32. Until this function is called, they do. It has no effect
 * without `last`. Fails with TG_ERR_ARGUMENT if f was not made by tg_float16_new. */
TG_API tg_status tg_float16_set_output(tg_module *f, bool f32);

/* ---- Captured modules ---- */

/* Creates a module that runs m by graphs: the device records what m computes, forward and backward, and each call
 * replays it (capture.h describes captured steps; Megatron-Core has such graphs for each layer). It then owns m. If m
 * is the child of a module, the new module takes its place, so that the layers of a finished model can be captured.
 * Paths in the state dict stay as they are. On error frees m, unless m is in a module, and returns an inert module.
 *
 * A call takes n_in inputs, 1 to 31, of these shapes and dtypes (arrays of n_in; TG_ERR_SHAPE, TG_ERR_DTYPE). It gives
 * any number of outputs that m gives, the same number in every call (TG_ERR_SHAPE). It computes the same bits as a call
 * of m: random draws, the gradients that backward adds, and buffers that m writes. If m uses a parameter several times,
 * its gradients within m are summed before they are added to the parameter's gradient, which rounds differently.
 *
 * The module has `slots` graphs, 1 to 255. The call for micro-batch i (tg_tape_key) uses slot i modulo slots, from its
 * forward until its backward, or until its tape is reset. A call that finds its slot in use fails with TG_ERR_STATE. A
 * pipeline needs as many slots as it has micro-batches in flight. The first use of a slot records its graph. Recording
 * runs nothing, so it leaves no trace in gradients, buffers and random streams. Each graph holds the memory of one
 * forward and its backward until the module is freed, and until tapes that have used it are reset.
 *
 * m must not do what capture.h forbids in a step, such as reading a value (TG_ERR_UNSUPPORTED). The functions of m run
 * on the host during the recording only, and so do hooks on modules in m and on gradients of tensors that m makes.
 * Hooks on the captured module itself and on parameters run at every call. The modes of modules (tg_module_set_mode)
 * and which tensors need a gradient must stay as they were during the recording. An input that needs a gradient where
 * the recorded one needed none is refused (TG_ERR_STATE), and so is one with another placement (TG_ERR_PLACEMENT).
 * Backward with .retain = true, and derivatives of derivatives, are refused (TG_ERR_UNSUPPORTED). An output that has no
 * gradient counts as having one of zeros. If a communicator of m has ended or a parameter was replaced, the next use of
 * a slot records again.
 *
 * m itself is called, op by op: on a device that does not record (the CPU), on a tape in evaluation mode or in no-grad
 * mode (the first run of a recomputation is one), on an observed tape, and within a captured step. */
TG_API tg_module *tg_captured_new(tg_module *m, const tg_shape *in, const tg_dtype *dtypes, int n_in, int slots);

/* ---- The state dict ---- */

/* The state dict: the parameters of m and of the modules in it, and then the buffers that are not transient, with paths
 * such as "h.0.attn.c_attn.weight". Tensors and children come in the order in which they were added to their module,
 * and all tensors of a child come in the child's place. checkpoint.h saves and loads the state dict. The functions
 * tg_module_param*, tg_module_numel and tg_module_replicate are about the parameters only.
 *
 * tg_module_param returns parameter i, and sets *path unless path is NULL. The string *path is in memory
 * that m owns. It is valid until the next call for m that sets a path, or until m is freed. An index out of range fails
 * with TG_ERR_ARGUMENT and returns an inert tensor. */
TG_API int tg_module_param_count(const tg_module *m);
TG_API tg_tensor *tg_module_param(const tg_module *m, int i, const char **path);
/* Fills out[] with the first n parameters, and returns the number of all parameters. out may be NULL. */
TG_API int tg_module_params(const tg_module *m, tg_tensor **out, int n);
/* Returns the parameter or buffer of that path; NULL if m has none. */
TG_API tg_tensor *tg_module_find(const tg_module *m, const char *path);
TG_API int64_t tg_module_numel(const tg_module *m);                     /* number of elements of all parameters */
/* Makes the parameters of m that a pattern matches require a gradient (`on`), or freezes them. A frozen parameter gets
 * no gradient; leave it out of the optimizer, so that it has no state there either. Returns the number of parameters
 * that match, or a negative number on an error.
 *
 * `patterns` are separated by commas. A pattern matches a path if it matches consecutive components of the path:
 * "attn" matches "h.0.attn.c_attn.weight", and "h.0" every parameter in module h.0. *, ? and [..] mean what they mean
 * for file names: "*norm*", "h.[01]". A pattern that matches no parameter fails with TG_ERR_ARGUMENT, before any
 * parameter is changed. Call it before you create what holds the parameters: an optimizer, buckets, a captured step. */
TG_API int tg_module_train(tg_module *m, const char *patterns, bool on);
/* Places the parameters of m on the axes of p, for data-parallel and sequence-parallel training. A parameter becomes R
 * on dp and cp, so that its gradient is summed over them. On tp it becomes R if p is sequence parallel, and stays I
 * otherwise. On an axis on which a parameter was already placed (tg_place), it keeps that placement. A parameter that
 * was placed on any axis of p's expert grid (parallel.h) is not changed at all. */
TG_API tg_status tg_module_replicate(tg_module *m, const tg_parallel *p);

/* Writes m as a tree to buf[n], one line for each module, parameter and buffer. After the name, the line of a module
 * has its kind and the text of tg_module_ops.describe; the line of a parameter or buffer has its dtype, its shape on
 * this rank and its placement. Returns the length of the whole text, like snprintf. buf may be NULL if n is 0. */
TG_API size_t tg_module_print(const tg_module *m, char *buf, size_t n);

/* ---- Initial values ---- */

typedef enum tg_init_kind {
    TG_INIT_NORMAL,     /* mean a, standard deviation b >= 0 */
    TG_INIT_UNIFORM,    /* from a up to, but not including, b >= a; a if both are equal */
    TG_INIT_TRUNCATED,  /* normal with mean a and standard deviation b >= 0, between a - 2 b and a + 2 b */
    TG_INIT_CONSTANT,   /* a */
    TG_INIT_CALL,       /* what `fill` writes */
    TG_INIT_ORTHOGONAL, /* b times a random matrix with orthonormal columns, or rows if it has more columns than rows */
    TG_INIT_EYE,        /* a on the diagonal of a matrix, 0 elsewhere */
} tg_init_kind;

/* A number of terms in the sums that a weight [out, in, ..] computes. k is the product of the dims after the second,
 * which are the window of a convolution. Other tensors than weights, with fewer than 2 dims, fail with TG_ERR_SHAPE. */
typedef enum tg_init_fan {
    TG_FAN_NONE,
    TG_FAN_IN,   /* in * k: outputs get the size of inputs */
    TG_FAN_OUT,  /* out * k: the gradients of inputs get the size of the gradients of outputs */
    TG_FAN_MEAN, /* the mean of both */
} tg_init_fan;

/* The initial values of one parameter. Every element depends on its position in the global tensor only, so the shards
 * of any number of ranks equal the tensor that one rank makes. */
typedef struct tg_init {
    size_t size;
    tg_init_kind kind;
    double a, b; /* finite */
    /* For TG_INIT_CALL, NULL otherwise. Writes n elements of the global tensor to out[n]: those at the row-major
     * positions first to first + n - 1. Must give the same number for a position in every call, however the calls
     * divide the positions. */
    void (*fill)(void *user, int64_t first, int64_t n, double *out);
    void *user; /* for fill */
    /* With a fan, which only TG_INIT_NORMAL, _UNIFORM and _TRUNCATED have, b >= 0 is a gain: the mean is a, and the
     * standard deviation, before truncation, b / sqrt(fan). */
    tg_init_fan fan;
} tg_init;
#define TG_INIT_DEFAULTS .size = sizeof(tg_init)
#define TG_INIT(...) (&(tg_init){TG_INIT_DEFAULTS, __VA_ARGS__})

/* Initial values that keep the size of activations and of gradients from layer to layer. `gain` makes up for the
 * activation after the layer: 1 for none or for tg_sigmoid, TG_GAIN_RELU, TG_GAIN_TANH, and sqrt(2 / (1 + slope^2)) for
 * tg_leaky_relu. PyTorch's linear and convolution layers start with TG_KAIMING_UNIFORM(sqrt(1.0 / 3)). */
#define TG_GAIN_RELU 1.4142135623730951
#define TG_GAIN_TANH (5.0 / 3)
/* He et al., arXiv 1502.01852 (also called Kaiming initialization). */
#define TG_KAIMING_NORMAL(gain)  TG_INIT(.kind = TG_INIT_NORMAL, .b = (gain), .fan = TG_FAN_IN)
#define TG_KAIMING_UNIFORM(gain) TG_INIT(.kind = TG_INIT_UNIFORM, .b = (gain), .fan = TG_FAN_IN)
/* Glorot and Bengio, AISTATS 2010 (also called Xavier initialization). */
#define TG_XAVIER_NORMAL(gain)  TG_INIT(.kind = TG_INIT_NORMAL, .b = (gain), .fan = TG_FAN_MEAN)
#define TG_XAVIER_UNIFORM(gain) TG_INIT(.kind = TG_INIT_UNIFORM, .b = (gain), .fan = TG_FAN_MEAN)
/* Saxe, McClelland and Ganguli, arXiv 1312.6120. A tensor with more than 2 dims counts as a matrix whose rows are those
 * of dim 0. The matrix is Haar-distributed. Every rank computes all of it on the host, in float64: for n rows and
 * m >= n columns, or the other way round, in about 4 n^2 m operations. */
#define TG_ORTHOGONAL(gain) TG_INIT(.kind = TG_INIT_ORTHOGONAL, .b = (gain))

/* Writes initial values to x, a parameter, buffer or other floating-point leaf of the context, which must be contiguous
 * (TG_ERR_ARGUMENT). If x is sharded, each rank writes its own part of the global tensor. TG_INIT_CALL,
 * TG_INIT_ORTHOGONAL and TG_INIT_EYE fail with TG_ERR_PLACEMENT if x is partial or opaque on an axis. Random kinds take
 * as many numbers of the current random stream as the global tensor has elements. Use it for layers whose constructors
 * have no tg_init: create the layer with std 0, which draws nothing, and then set its parameters. */
TG_API tg_status tg_param_init(tg_tensor *x, const tg_init *init);

#ifdef __cplusplus
}
#endif

#endif
