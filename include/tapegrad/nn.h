/* Modules, the parts of models. A module has named parameters, buffers and children, and a forward. This header also
 * has the state dict, which names all tensors of a model, and the initial values of parameters. Include it to build
 * models. It includes layers.h, which has ready modules. The headers of models (lm.h, gpt.h) and tensor_parallel.h
 * include it. docs/modules.md shows how to write a module.
 *
 * A module owns its parameters, its buffers and its children, which are modules too. Running its forward
 * (tg_module_forward, tg_module_call, or a function for one kind of module such as tg_gpt_loss) records ops on the
 * given tape. Random initial values are drawn when the module is created: each parameter takes the next numbers of the
 * current random stream or, if a key is open, of the key (context.h). Without a key, initial values therefore depend on
 * the seed and on all numbers that were drawn from the stream before. Parameters have the context's default dtype
 * unless an option or tg_module_cast says otherwise.
 *
 * I and R are the placements TG_I (invariant) and TG_R (replicated) of placement.h. On error a function that creates a
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
    const char *kind; /* name of the kind, not NULL */
    /* Computes one output from one input, and returns it. Serves the runs with one input and one output, even if `call`
     * is given too. On an error returns an inert tensor, such as the result of the op that failed. May be NULL if
     * `call` is given, or if the module only holds children. */
    tg_tensor *(*forward)(tg_module *m, tg_tape *t, tg_tensor *x);
    void (*free)(void *state); /* releases state; may be NULL */
    /* Computes n_out outputs from n_in inputs, and sets every out[i]. An input may be NULL. On an error returns its
     * status; what it wrote to out[] is then ignored. The run fails with the error that the context has, or with
     * TG_ERR_CALLBACK if the context has none. A module without `call` has one input and one output. */
    tg_status (*call)(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out);
    /* Adds the module's state to a list of sharded state (checkpoint.h) with tg_shards_add_tensor, tg_shards_add_module
     * and tg_shards_push. NULL means that parameters are added, then buffers that are not transient, then children. */
    tg_status (*shards)(tg_module *m, tg_shards *s);
    /* Writes what tg_module_print shows after the kind, such as "in 64, out 128, bias", to buf[n], and returns the
     * length of the whole text, like snprintf. buf is NULL if n is 0. The slot may be NULL. */
    size_t (*describe)(const tg_module *m, char *buf, size_t n);
    /* How many inputs `call` takes and how many outputs it gives. 0 means any number, which `call` then checks. */
    int n_in, n_out;
} tg_module_ops;

/* Creates a module. ops->free(state) is called when the module is freed, unless state is NULL. On error tg_module_new
 * calls ops->free at once and returns an inert module. In two cases it cannot call ops->free, and the caller must
 * release state: ops is NULL, or ops->size does not cover the fields up to `free` or is above sizeof(tg_module_ops).
 * Both fail with TG_ERR_ARGUMENT. */
TG_API tg_module *tg_module_new(tg_ctx *ctx, const tg_module_ops *ops, void *state);
/* Frees the module, its children, its parameters and its buffers. m may be NULL. While m or a module in it runs its
 * forward, the call records TG_ERR_STATE and frees nothing. If m is the child of another module, m is removed from its
 * parent. If m was a child that the forward of a module of the library needs, that forward fails with TG_ERR_STATE
 * until a new child is added under the same name; tg_module_replace exchanges a child in one call. */
TG_API void tg_module_free(tg_module *m);
/* Return what tg_module_new was given. For NULL and inert modules the state is NULL and the kind "". The context of
 * NULL is NULL; that of an inert module is dead (tg_ctx_new). */
TG_API tg_ctx *tg_module_ctx(const tg_module *m);
TG_API void *tg_module_state(const tg_module *m);
TG_API const char *tg_module_kind(const tg_module *m);
/* Adds a parameter, which m then owns: m drops param when m is freed, and until then tg_drop(param) does nothing. param
 * must be a tensor of the context, not of a tape (TG_ERR_STATE). A name must not be empty or contain dots
 * (TG_ERR_ARGUMENT). All parameters, buffers and children of one module must have different names (TG_ERR_STATE). On
 * error param stays the caller's. If one tensor is added under several names, in one module or in several, the names
 * are tied: the state dict lists the tensor once, under the first name, and the last module that has the tensor drops
 * it. */
TG_API tg_status tg_module_add_param(tg_module *m, const char *name, tg_tensor *param);
/* Adds a child, which m then owns. If child is already in a module, is m or contains m, the call fails with
 * TG_ERR_STATE and leaves child as it is. On every other error the call frees child at once. Such errors are
 * TG_ERR_HANDLE for a child that is inert or of another context, and the errors of tg_module_add_param for a name. */
TG_API tg_status tg_module_add_child(tg_module *m, const char *name, tg_module *child);
/* Returns the child of m with that name; NULL if m has none. name is not a path. */
TG_API tg_module *tg_module_child(const tg_module *m, const char *name);
/* Puts `child` in the place of the module of that path in m, such as "h.0.mlp.c_fc", and returns the old module. The
 * caller then owns the old module, and frees it or adds it to child, whose forward can call it (examples/lora.c). If
 * child is in the old module, child leaves that module; so a wrapper can be removed again. The new module has the name
 * and the place of the old one, so the order and the paths of all other parameters stay as they are. A model of the
 * library calls the new module wherever it called the old one. Hooks and the mode of the old module leave with it.
 * Replace modules before you create what holds their parameters: an optimizer, buckets, a captured step.
 *
 * Fails with TG_ERR_ARGUMENT if m has no module of that path, and with TG_ERR_HANDLE if child is not a module of m's
 * context. Fails with TG_ERR_STATE if child is in a module outside the old one, contains the old module, or is the old
 * module. Also fails with TG_ERR_STATE if the old module or a module in it runs its forward, or if the old module is in
 * a captured module (tg_captured_new), whose graphs would go on running it. On error nothing changes: child stays the
 * caller's, and the result is an inert module. */
TG_API tg_module *tg_module_replace(tg_module *m, const char *path, tg_module *child);
/* Runs the forward of m on x, in a scope (tg_scope_open) named after m's kind, and returns the result. The kind
 * determines which shapes x and the result have. If the kind has no `forward`, runs its `call` with one input and one
 * output. Fails with TG_ERR_UNSUPPORTED if the kind has neither `forward` nor `call`. The tape owns the result. On
 * error returns an inert tensor. */
TG_API tg_tensor *tg_module_forward(tg_module *m, tg_tape *t, tg_tensor *x);
/* Does the same with several inputs and outputs: reads n_in >= 0 tensors from in[], and writes n_out >= 1 results to
 * out[]. in may be NULL if n_in is 0. An input may be NULL where the kind allows that. Fails with TG_ERR_SHAPE if the
 * kind takes other numbers of inputs and outputs; a kind without `call` takes one of each. On error every out[i] is an
 * inert tensor. */
TG_API tg_status tg_module_call(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out);

/* ---- Buffers ---- */

/* A buffer is a tensor that belongs to a module and is not trained, such as a running mean, a table or a count of
 * steps. Buffers are saved with the parameters unless they are transient. */
typedef struct tg_buffer_opts {
    size_t size;
    bool transient; /* the buffer is saved in no checkpoint; for values that can be computed again */
    bool keep_f32;  /* tg_module_cast leaves the buffer as it is */
} tg_buffer_opts;
#define TG_BUFFER_DEFAULTS .size = sizeof(tg_buffer_opts)
#define TG_BUFFER(...) (&(tg_buffer_opts){TG_BUFFER_DEFAULTS, __VA_ARGS__})

/* Adds a buffer, which m then owns like a parameter. The rules for the name and for x, and the state of x after an
 * error, are those of tg_module_add_param. x must not require a gradient (TG_ERR_STATE). On an axis on which tg_place
 * has placed x, x keeps that placement. On every other axis x is I, even after the program writes values into x. Check
 * mode (tg_config.check) finds buffers that are I but differ between ranks. opts may be NULL. */
TG_API tg_status tg_module_add_buffer(tg_module *m, const char *name, tg_tensor *x, const tg_buffer_opts *opts);
/* List the buffers of m and of the modules in it, transient ones too, as tg_module_param_count and tg_module_param list
 * the parameters. */
TG_API int tg_module_buffer_count(const tg_module *m);
TG_API tg_tensor *tg_module_buffer(const tg_module *m, int i, const char **path);

/* ---- Hooks ---- */

typedef enum tg_module_when { TG_BEFORE, TG_AFTER } tg_module_when;
/* A hook on a module. With TG_BEFORE it is called before each run of m's forward, and x[n] are the inputs. With
 * TG_AFTER it is called after each run, unless the run failed, and x[n] are the outputs. The hook may replace elements
 * of x by other tensors of the same shape (TG_ERR_SHAPE), such as results of ops that it records on t. An input may be
 * NULL; the hook may replace it by a tensor of any shape. If a hook returns an error, the run fails with the error that
 * the context has, or with TG_ERR_CALLBACK if the context has none. */
typedef tg_status (*tg_module_fn)(void *user, tg_module *m, tg_tape *t, tg_tensor **x, int n);
/* Adds a hook, and returns a number for tg_module_unhook; 0 on an error. Hooks run in the order of adding. They run
 * whenever the module is called, by the caller or by the module that contains it, and again where backward runs the
 * module again (recompute.h). Models of the library run some of their modules as one op, such as the output matrix with
 * the loss. A module that has hooks is called as a module of its own instead. There is one exception: the embedding of
 * a tied model is not called where it serves as the output matrix. user must stay valid until the hook is removed or m
 * is freed. */
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
 * Tensors that tg_module_keep_f32 or tg_buffer_opts.keep_f32 has marked are left as they are. Values are rounded to
 * nearest even. If one tensor cannot be converted, none is. Until all are converted, the old and the new values are
 * both in memory.
 *
 * dtype must be f32, f64, bf16 or f16 (TG_ERR_DTYPE). Fails with TG_ERR_STATE if a tensor that must be converted has a
 * gradient, a main gradient (tg_set_main_grad) or another handle on its bytes, or if a node, an optimizer or a captured
 * step uses it. So cast first, and create the optimizer afterwards. */
TG_API tg_status tg_module_cast(tg_module *m, tg_dtype dtype);
/* Makes tg_module_cast leave the parameter or buffer of that path in m, such as "router.weight", as it is. Fails with
 * TG_ERR_ARGUMENT if there is none. */
TG_API tg_status tg_module_keep_f32(tg_module *m, const char *path);
/* Creates a module that runs m in 16 bits (Megatron-Core's Float16Module). The new module then owns m, which must not
 * be in a module before (TG_ERR_STATE). m is cast to dtype, TG_F16 or TG_BF16 (TG_ERR_ARGUMENT), by tg_module_cast. The
 * new module has as many inputs and outputs as m. Set `first` for the first stage of a pipeline: floating-point inputs
 * are then cast to dtype, and other inputs pass as they are. Set `last` for the last stage: floating-point outputs are
 * then cast to float32. The state dict of the new module has the same paths as that of m. On error frees m, unless m
 * was in a module before, and returns an inert module. */
TG_API tg_module *tg_float16_new(tg_module *m, tg_dtype dtype, bool first, bool last);
/* Sets whether later calls of f cast their outputs to float32. The default is true. Has no effect if f was created
 * without `last`. Fails with TG_ERR_ARGUMENT if f was not made by tg_float16_new. */
TG_API tg_status tg_float16_set_output(tg_module *f, bool f32);

/* ---- Captured modules ---- */

/* Creates a module that runs m by graphs: the device records what m computes, forward and backward, and each call
 * replays it (capture.h describes captured steps; Megatron-Core has such graphs for each layer). The new module then
 * owns m. If m is the child of a module, the new module takes its place, so that the layers of a finished model can be
 * captured. Paths in the state dict stay as they are. On error frees m, unless m is in a module, and returns an inert
 * module.
 *
 * A call takes n_in inputs, 1 to 31, none of them NULL (TG_ERR_ARGUMENT). Input i has the shape in[i] (TG_ERR_SHAPE)
 * and the dtype dtypes[i] (TG_ERR_DTYPE); TG_DTYPE_DEFAULT means the context's default dtype. Both arrays are copied. A
 * call may ask for any number of outputs that m can give, but every call that uses a graph must ask for the same number
 * (TG_ERR_SHAPE). Outputs, random draws, the gradients that backward adds and the buffers that m writes have the bits
 * that a call of m gives, with one exception: if m uses a parameter several times, the gradients of these uses are
 * summed first, and then their sum is added to the parameter's gradient, which rounds differently.
 *
 * The module has `slots` graphs, 1 to 255 (TG_ERR_ARGUMENT); a context has at most 255 graphs in all (capture.h). The
 * call for micro-batch i (tg_tape_key) uses slot i modulo slots, from its forward until its backward, or until its tape
 * is reset. A call that finds its slot in use fails with TG_ERR_STATE. A pipeline needs as many slots as it has
 * micro-batches in flight. The first use of a slot records its graph. Recording runs nothing on the device, and changes
 * no gradient, buffer or random stream. Each graph holds the memory of one forward and its backward until the module is
 * freed and the tapes that have used the graph are reset.
 *
 * m must not do what capture.h forbids in a step, such as reading a value (TG_ERR_UNSUPPORTED). The functions of m run
 * on the host during the recording only, and so do hooks on modules in m and on gradients of tensors that m makes.
 * Hooks on the captured module itself and on parameters run at every call. An input that needs a gradient where the
 * recorded one needed none is refused (TG_ERR_STATE), and so is one with another placement (TG_ERR_PLACEMENT). Backward
 * with .retain = true, and derivatives of derivatives, are refused (TG_ERR_UNSUPPORTED). An output that has no gradient
 * counts as having one of zeros. The next use of a slot records again if a communicator of m has ended, a parameter was
 * replaced, a module in m has another mode (tg_module_set_mode) or another output (tg_float16_set_output), adapters
 * were merged (tg_lora_merge) or taken out again, or a parameter of m that needed a gradient needs none now, or the
 * reverse. Whatever else m depends on must stay as it was during the recording, such as which tensors need a gradient
 * that m uses but that are not its parameters.
 *
 * In these cases no graph is used; m itself is called, op by op:
 * - the device does not record (the CPU);
 * - the tape is in evaluation mode, in no-grad mode (as in the first run of a recomputation), or observed
 *   (tg_tape_observe);
 * - m writes buffers, and the call is the second run of a recomputation;
 * - the call is within a captured step. */
TG_API tg_module *tg_captured_new(tg_module *m, const tg_shape *in, const tg_dtype *dtypes, int n_in, int slots);

/* ---- The state dict ---- */

/* The state dict: the parameters of m and of the modules in it, and then the buffers that are not transient, with paths
 * such as "h.0.attn.c_attn.weight". Tensors and children come in the order in which they were added to their module,
 * and all tensors of a child come in the child's place. checkpoint.h saves and loads the state dict. The functions
 * tg_module_param*, tg_module_numel, tg_module_train and tg_module_replicate concern parameters only.
 *
 * tg_module_param returns parameter i, and sets *path unless path is NULL. The string *path is in memory that m owns.
 * It is valid until the next call for m that sets a path, or until m is freed. An index out of range fails with
 * TG_ERR_ARGUMENT, returns an inert tensor and leaves *path unchanged. Without memory for the path the call fails with
 * TG_ERR_MEMORY, returns an inert tensor and sets *path to "". */
TG_API int tg_module_param_count(const tg_module *m);
TG_API tg_tensor *tg_module_param(const tg_module *m, int i, const char **path);
/* Fills out[] with the first n parameters, and returns the number of all parameters. out may be NULL. */
TG_API int tg_module_params(const tg_module *m, tg_tensor **out, int n);
/* Returns the parameter or buffer of that path; NULL if m has none. Finds transient buffers too. */
TG_API tg_tensor *tg_module_find(const tg_module *m, const char *path);
TG_API int64_t tg_module_numel(const tg_module *m); /* number of elements that all parameters have on this rank */
/* Makes the parameters of m that match a pattern require a gradient if `on` is true, and freezes them otherwise. A
 * frozen parameter gets no gradient; leave it out of the optimizer, so that it has no state there either. Returns the
 * number of parameters that match, or a negative number on an error.
 *
 * `patterns` are separated by commas. A pattern matches a path if it matches consecutive components of the path: "attn"
 * matches "h.0.attn.c_attn.weight", and "h.0" every parameter in module h.0. *, ? and [..] mean what they mean for file
 * names, and match dots too: "*norm*", "h.[01]". A pattern has at most 255 bytes; the rest is ignored. A pattern that
 * matches no parameter, and patterns NULL or "", fail with TG_ERR_ARGUMENT before any parameter is changed. Call it
 * before you create what holds the parameters: an optimizer, buckets, a captured step. */
TG_API int tg_module_train(tg_module *m, const char *patterns, bool on);
/* Places the parameters of m on the axes of p, for data-parallel and sequence-parallel training. A parameter becomes R
 * on dp and cp, so that its gradient is summed over them. On tp it becomes R if p is sequence parallel, and stays I
 * otherwise. On an axis on which a parameter was already placed (tg_place), it keeps that placement. A parameter that
 * was placed on any axis of p's expert grid (parallel.h) is not changed at all. p must be of m's context
 * (TG_ERR_HANDLE). Every rank must make the call, which does not communicate. */
TG_API tg_status tg_module_replicate(tg_module *m, const tg_parallel *p);

/* Writes m as a tree to buf[n], one line for each module, parameter and buffer. After the name, the line of a module
 * has its kind, the text of tg_module_ops.describe, and its mode unless that is TG_MODE_TAPE. The line of a parameter
 * or buffer has its dtype, its shape on this rank and its placement. Returns the length of the whole text, like
 * snprintf. If buf is NULL, writes nothing. */
TG_API size_t tg_module_print(const tg_module *m, char *buf, size_t n);

/* ---- Initial values ---- */

typedef enum tg_init_kind {
    TG_INIT_NORMAL,     /* mean a, standard deviation b >= 0 */
    TG_INIT_UNIFORM,    /* in [a, b), b >= a; a if they are equal */
    TG_INIT_TRUNCATED,  /* normal with mean a and standard deviation b >= 0, between a - 2 b and a + 2 b */
    TG_INIT_CONSTANT,   /* a */
    TG_INIT_CALL,       /* what `fill` writes */
    TG_INIT_ORTHOGONAL, /* b times a random matrix with orthonormal columns, or rows if it has more columns than rows */
    TG_INIT_EYE,        /* a on the diagonal of a matrix, 0 elsewhere */
} tg_init_kind;

/* The fan of a weight [out, in, ..]: a number by whose square root tg_init.b is divided. k is the product of the dims
 * after the second, which are the window of a convolution; 1 if there are none. A tensor with fewer than 2 dims has no
 * fan (TG_ERR_SHAPE). */
typedef enum tg_init_fan {
    TG_FAN_NONE, /* b is used as it is */
    TG_FAN_IN,   /* in * k: keeps the variance from inputs to outputs */
    TG_FAN_OUT,  /* out * k: keeps the variance from gradients of outputs to gradients of inputs */
    TG_FAN_MEAN, /* the mean of both */
} tg_init_fan;

/* The initial values of one parameter. Each element depends on its position in the global tensor, so the shards of any
 * number of ranks are, bit for bit, those of the tensor that one rank makes from the same state of the random stream.
 * With TG_RNG_MEGATRON this does not hold for TG_INIT_NORMAL, _UNIFORM and _TRUNCATED: on the axes that parallel.h
 * names, each rank draws its shard from a stream of its own. */
typedef struct tg_init {
    size_t size;
    tg_init_kind kind;
    double a, b; /* finite */
    /* For TG_INIT_CALL, NULL otherwise. Writes n elements of the global tensor to out[n]: those at the row-major
     * positions first to first + n - 1. Must give the same number for a position in every call, however the calls
     * divide the positions. */
    void (*fill)(void *user, int64_t first, int64_t n, double *out);
    void *user; /* for fill */
    /* Only TG_INIT_NORMAL, _UNIFORM and _TRUNCATED may have a fan (TG_ERR_ARGUMENT). b >= 0 is then a gain, with
     * TG_INIT_UNIFORM too: the mean is a, and the standard deviation before truncation is b / sqrt(fan). */
    tg_init_fan fan;
} tg_init;
#define TG_INIT_DEFAULTS .size = sizeof(tg_init)
#define TG_INIT(...) (&(tg_init){TG_INIT_DEFAULTS, __VA_ARGS__})

/* Initial values that keep the variance of activations and of gradients about the same from layer to layer. `gain`
 * makes up for the activation after the layer. It is 1 for none or for tg_sigmoid, TG_GAIN_RELU for tg_relu,
 * TG_GAIN_TANH for tg_tanh, and sqrt(2 / (1 + slope^2)) for tg_leaky_relu. The weights of PyTorch's linear and
 * convolution layers start with TG_KAIMING_UNIFORM(sqrt(1.0 / 3)). */
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

/* Writes initial values to x: a parameter, a buffer or another tensor of the context (TG_ERR_STATE if x is of a tape),
 * which must be contiguous and have a floating-point dtype (TG_ERR_ARGUMENT). init must not be NULL (TG_ERR_ARGUMENT).
 * If x is sharded, each rank writes its own part of the global tensor. Random kinds take as many numbers of the current
 * random stream as the global tensor has elements; tg_rng_mode says from which streams TG_RNG_MEGATRON draws.
 * TG_INIT_ORTHOGONAL needs 2 dims or more, and TG_INIT_EYE exactly 2 (TG_ERR_SHAPE). TG_INIT_CALL, TG_INIT_ORTHOGONAL
 * and TG_INIT_EYE fail with TG_ERR_PLACEMENT if x is partial or opaque on an axis. TG_INIT_ORTHOGONAL fails with
 * TG_ERR_UNSUPPORTED if the ranks that have shards of x have different seeds in the current stream
 * (tg_rng_seed_parallel). Use tg_param_init for layers whose constructors have no tg_init: create the layer with std 0,
 * which draws nothing, and then set its parameters. */
TG_API tg_status tg_param_init(tg_tensor *x, const tg_init *init);

#ifdef __cplusplus
}
#endif

#endif
