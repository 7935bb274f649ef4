/* The structs of optimizers and the functions that the files of this folder share. */
#ifndef TG_OPTIM_PARTS_H
#define TG_OPTIM_PARTS_H

#include <tapegrad/optim.h>

#include "core/context.h"

enum { TG_OPTIM_STATES = 3 };
#define TG_OPTIM_SCALE_NAME "loss_scale"

/* The options of a group of parameters. */
typedef struct tg_optim_group_t {
    double lr_scale, weight_decay, beta1, beta2, eps;
    double lr;            /* as it was set last; the device has its own copy in the state */
    tg_schedule schedule; /* size 0 means no schedule: the device uses the learning rate in the state */
} tg_optim_group_t;

/* One parameter. state[] has the tensors of the method, such as moments; NULL for one that the method does not keep.
 * master is a float32 copy of a 16-bit parameter; NULL for other parameters. */
typedef struct tg_optim_item {
    const struct tg_optim_method *method; /* the method by which this parameter is stepped */
    tg_tensor *param, *master, *state[TG_OPTIM_STATES]; /* param may be a range of a parameter (tg_flat_leaves) */
    tg_ref ref;       /* detects that the parameter was dropped */
    /* Versions of the parameter's and the master's bytes after the last step. If the current versions differ, the bytes
     * were written since. */
    uint32_t version, master_version;
    int group;
} tg_optim_item;

/* A method such as Adam: what it keeps for each parameter, and its step. A slot that is NULL has the default that its
 * comment names. */
typedef struct tg_optim_method {
    const char *name;
    bool betas, eps; /* whether its groups have these numbers */
    const char *state_name[TG_OPTIM_STATES];
    /* Returns whether the parameters have state k. NULL: they have every state that has a name. */
    bool (*keeps)(const tg_optim *o, int k);
    /* Returns the bytes of work memory that the step of p needs. NULL: 0. */
    size_t (*work)(const tg_tensor *p);
    /* Returns the method that steps p in place of this one; the caller puts p in group 1. Returns NULL if this method
     * steps p; the caller puts p in group 0. If the slot is NULL, this method steps all parameters. */
    const struct tg_optim_method *(*other)(const tg_optim *o, const tg_tensor *p);
    /* Steps the parameters of this method that have a gradient. tg_optim_step calls only the step of the optimizer's
     * method, so the step of a method with `other` must call that of the other method itself. The scalars of step.h
     * have been computed. */
    tg_status (*step)(tg_optim *o);
} tg_optim_method;

struct tg_optim {
    tg_ctx *ctx;
    const tg_optim_method *method;
    /* The options that all groups share. The structs also have numbers that each group has of its own, such as lr; a
     * step takes those from the group. */
    bool decoupled; /* Adam's weight decay is decoupled from the gradient (AdamW) */
    tg_sgd_opts sgd;
    tg_rmsprop_opts rmsprop;
    tg_adagrad_opts adagrad;
    tg_muon_opts muon;
    double lr, max_norm; /* as set last; the device has a copy in the state. New groups get this lr. */
    tg_loss_scale scale; /* as set; size 0 means that the loss is not scaled */
    bool summed;         /* tg_optim_clip has computed `sums` for the next step, which clips to next_norm */
    double next_norm;
    int n, n_groups, n_sums; /* numbers of items, of groups, and of elements of `sums` in use */
    size_t bytes;            /* size of this struct with its items */
    /* On the device, in float64. squares [n]: the sum of squares of each gradient. Gradients that are sharded over the
     * same axes are neighbors (norm.c), so their order is not that of items. sums [TG_STEP_SUMS]: the sum for each set
     * of axes over which parameters are sharded, the empty set included; with several pipeline stages, one sum of all.
     * state and scalars: see step.h. scale_view is a view of the scale in the state, and scale_state a view of the
     * scale and its two counters. In float32: scalars32, a copy of scalars, and scale32, a copy of the scale that was
     * made when the state had version scale_version. scalars and scalars32 have the scalars of TG_STEP_GROUPS groups
     * and one more element, which is work memory (elementwise.c). */
    tg_tensor *squares, *sums, *state, *scalars, *scalars32, *scale_view, *scale_state, *scale32;
    /* [1]: not 0 if any rank found an error in the step's data (slot fault_sum); not used if there is one rank. */
    tg_tensor *fault;
    uint32_t scale_version;
    tg_tensor *work;     /* bytes for the temporaries of one parameter's step; NULL if no method needs any */
    tg_adamw_args *list; /* [n] arguments of one call of the slot adamw */
    tg_optim_group_t group[TG_STEP_GROUPS];
    char *name; /* memory of the last name that tg_optim_state returned; NULL before */
    tg_optim_item item[];
};

extern const tg_optim_method tg_sgd_method, tg_adam_method, tg_rmsprop_method, tg_adagrad_method, tg_lion_method,
    tg_muon_method;

/* Creates an optimizer with the methods, the options, the groups and the learning rate of `like`. Returns the inert
 * optimizer on error, and if the context has an error already. */
tg_optim *tg_optim_make(tg_ctx *ctx, const tg_optim *like, tg_tensor *const *params, int n, const char *who);
/* Fails unless params are n >= 1 different leaves of the context that need a gradient and are contiguous. */
tg_status tg_optim_check_params(tg_ctx *ctx, tg_tensor *const *params, int n, const char *who);
/* Fails if a parameter is divided over ranks (tg_flat_new): an optimizer steps its ranges instead (tg_flat_leaves). */
tg_status tg_optim_check_undivided(tg_ctx *ctx, tg_tensor *const *params, int n, const char *who);
tg_status tg_optim_check(const tg_optim *o); /* returns the context's error; TG_ERR_ARGUMENT if o is NULL */
/* Count the optimizers that update a parameter (tg_ext.held). While there is one, the parameter's bytes do not move,
 * and its dtype does not change. tg_optim_let_go does nothing if ref is empty or its parameter was dropped. */
void tg_optim_hold(tg_tensor *param);
void tg_optim_let_go(tg_ctx *ctx, tg_ref ref);
void tg_optim_drop_state(tg_tensor *s); /* drops a tensor that the optimizer owns; s may be NULL */
bool tg_optim_rate(tg_ctx *ctx, double lr, const char *who); /* returns whether lr is valid; records an error if not */
/* Returns the numbers that AdamW (decoupled) or Adam has with these options, as a group. */
tg_optim_group_t tg_adam_group(const tg_adamw_opts *o, bool decoupled);
/* Fails unless beta1 and beta2 are in [0, 1), and eps and weight_decay are finite, 0 or more. */
tg_status tg_optim_check_numbers(tg_ctx *ctx, const tg_optim_group_t *g, const char *who);
bool tg_schedule_ok(const tg_schedule *s); /* returns whether all numbers are valid; s->size is not checked */
/* Fails if parameter number i, to which ref refers, was dropped. The message calls the object that uses the parameter
 * `owner`, such as "optimizer". */
tg_status tg_optim_check_alive(tg_ctx *ctx, tg_ref ref, int i, const char *owner, const char *who);
tg_status tg_optim_check_items(tg_optim *o, const char *who); /* does so for every parameter */
/* Fails if a parameter was dropped, or if a gradient was discarded, is partial over ranks, is still deferred, or has
 * not been divided among the ranks that divide its parameter. */
tg_status tg_optim_check_gradients(tg_optim *o, const char *who);
/* Returns the gradient that a step uses for this parameter; NULL if it has none or no elements. Its method then does
 * not step it. */
tg_tensor *tg_optim_gradient(const tg_optim_item *it);
/* Returns whether the optimizer changes the scale of the loss from step to step. */
static inline bool tg_optim_is_scale_dynamic(const tg_optim *o) { return o->scale.size && !o->scale.fixed; }

/* ---- step_state.c: the tensors on the device ---- */

tg_status tg_optim_device_open(tg_optim *o); /* creates the tensors, with the state before the first step */
void tg_optim_device_close(tg_optim *o);
/* Writes v[n] to the device, into the state from index `first` on. */
tg_status tg_optim_put(tg_optim *o, int first, const double *v, int n);
/* Reads the state from the device, also after an error. Returns false, and sets the norm to NaN, the scale to 1 and the
 * rest of s to 0, if it could not be read. On device meta sets the same numbers and returns true. While a step is
 * captured, it fails with TG_ERR_UNSUPPORTED, except on device meta. who and site: the public function and its call
 * site, for errors. */
bool tg_optim_read(const tg_optim *o, double s[TG_STEP_STATE], const char *who, const void *site);
tg_status tg_optim_send_rate(tg_optim *o, int group); /* sends the group's lr */

/* ---- norm.c ---- */

/* Computes o->sums, the sums of the squares of all gradients, each element counted once. Shards are summed over the
 * axes that shard them; a parameter that is the same on every rank of an axis counts once there. who: the public
 * function, for errors. */
tg_status tg_optim_measure(tg_optim *o, const char *who);

/* ---- loss_scale.c ---- */

/* Copies the scale to scale32 if the loss is scaled and the state was written since the last copy. While a step is
 * captured it always copies, because the state may be written before a replay. After a copy, backward from a loss that
 * was scaled by the previous value fails with TG_ERR_VERSION. `by` names the call in that error. */
tg_status tg_optim_refresh_scale(tg_optim *o, const char *by, const void *site);

#endif
