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

/* One parameter. state[] has the tensors of the method, such as moments. master is a float32 copy of a 16-bit
 * parameter; NULL for other parameters. */
typedef struct tg_optim_item {
    tg_tensor *param, *master, *state[TG_OPTIM_STATES];
    tg_ref ref;       /* detects that the parameter was dropped */
    /* Versions of the parameter's and the master's bytes after the last step. If the current versions differ, the bytes
     * were written since. */
    uint32_t version, master_version;
    int group;
} tg_optim_item;

/* A method such as Adam: the states that it keeps for each parameter, and its step, which updates all parameters that
 * have a gradient. The scalars of step.h have been computed when the step is called. */
typedef struct tg_optim_method {
    const char *name;
    int n_states;
    const char *state_name[TG_OPTIM_STATES];
    tg_status (*step)(tg_optim *o);
} tg_optim_method;

struct tg_optim {
    tg_ctx *ctx;
    const tg_optim_method *method;
    tg_sgd_opts sgd;
    bool decoupled; /* Adam's weight decay is decoupled from the gradient (AdamW) */
    double lr, max_norm; /* as set last; the device has a copy in the state. New groups get this lr. */
    tg_loss_scale scale; /* as set; size 0 means that the loss is not scaled */
    bool summed;         /* tg_optim_clip has computed `sums` for the next step, which clips to next_norm */
    double next_norm;
    int n, n_groups, n_sums; /* numbers of items, of groups, and of elements of `sums` in use */
    size_t bytes;            /* size of this struct with its items */
    /* On the device, in float64. squares [n]: the sum of squares of each gradient. sums [TG_STEP_SUMS]: their sums, one
     * for each set of axes that shard parameters. state and scalars: see step.h. scale_view is a view of the scale in
     * the state, and scale_state a view of the scale and its two counters. In float32: scalars32, and scale32, which is
     * the scale when the state had version scale_version. */
    tg_tensor *squares, *sums, *state, *scalars, *scalars32, *scale_view, *scale_state, *scale32;
    tg_tensor *fault; /* [1]: not 0 if any rank found an error in the step's data (slot fault_sum) */
    uint32_t scale_version;
    tg_adamw_args *list; /* [n] arguments of one call of the slot adamw */
    tg_optim_group_t group[TG_STEP_GROUPS];
    char name[128]; /* name of the state that was asked for last */
    tg_optim_item item[];
};

extern const tg_optim_method tg_sgd_method, tg_adam_method;
tg_status tg_optim_check(const tg_optim *o); /* returns the context's error; TG_ERR_ARGUMENT if o is NULL */
void tg_optim_drop_state(tg_tensor *s); /* drops a tensor that the optimizer owns; s may be NULL */
bool tg_optim_rate(tg_ctx *ctx, double lr, const char *who); /* returns whether lr is valid; records an error if not */
bool tg_schedule_ok(const tg_schedule *s); /* returns whether the numbers of a whole struct are valid */
tg_status tg_optim_check_items(tg_optim *o, const char *who); /* fails if a parameter was dropped */
/* Fails if a parameter was dropped, or if a gradient was discarded, is partial over ranks, or is still deferred. */
tg_status tg_optim_check_gradients(tg_optim *o, const char *who);
/* Returns the gradient that a step uses for this parameter; NULL if the step does not change the parameter. */
tg_tensor *tg_optim_gradient(const tg_optim_item *it);
/* Returns whether the optimizer changes the scale of the loss from step to step. */
static inline bool tg_optim_is_scale_dynamic(const tg_optim *o) { return o->scale.size && !o->scale.fixed; }

/* ---- step_state.c: the tensors on the device ---- */

tg_status tg_optim_device_open(tg_optim *o); /* creates the tensors, with the state before the first step */
void tg_optim_device_close(tg_optim *o);
/* Writes v[n] to the device, into the state from index `first` on. */
tg_status tg_optim_put(tg_optim *o, int first, const double *v, int n);
/* Reads the state from the device, also after an error. Returns false if it could not be read; s then has the state
 * before the first step. */
bool tg_optim_read(const tg_optim *o, double s[TG_STEP_STATE]);
tg_status tg_optim_send_rate(tg_optim *o, int group); /* sends the group's lr */

/* ---- norm.c ---- */

/* Computes o->sums, the sums of squares over all parameters, each counted once. Shards are summed over the axes that
 * shard them; a parameter that is the same on every rank of an axis counts once there. */
tg_status tg_optim_measure(tg_optim *o);

/* ---- loss_scale.c ---- */

/* Copies the scale to scale32 if the state was written since the last copy. While a step is captured it always copies,
 * because the state may be written before a replay. After a copy, backward from a loss that was scaled by the previous
 * value fails with TG_ERR_VERSION. `by` names the call in that error. */
tg_status tg_optim_refresh_scale(tg_optim *o, const char *by, const void *site);

#endif
