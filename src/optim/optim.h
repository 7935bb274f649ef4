/* An optimiser's parts, as its own files see them. */
#ifndef TG_OPTIM_PARTS_H
#define TG_OPTIM_PARTS_H

#include <tapegrad/optim.h>

#include "core/context.h"

enum { TG_OPTIM_STATES = 3 };
#define TG_OPTIM_SCALE_NAME "loss_scale"

typedef struct tg_optim_group_t {
    double lr_scale, weight_decay, beta1, beta2, eps;
    double lr;            /* as it was set last; the device has it in the state */
    tg_schedule schedule; /* size 0: none; the device has the rate in the state */
} tg_optim_group_t;

/* One parameter. state[] is what the method keeps; master is a wider copy of a 16-bit parameter. */
typedef struct tg_optim_item {
    tg_tensor *param, *master, *state[TG_OPTIM_STATES];
    tg_ref ref;       /* recognises a parameter that was dropped */
    /* Of the parameter's and the master's bytes after the last step: others mean that somebody wrote them. */
    uint32_t version, master_version;
    int group;
} tg_optim_item;

/* A method: what it keeps for a parameter, and its step of all that have a gradient. The words are there. */
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
    bool decoupled;
    double lr, max_norm; /* as set last; the device has them in state. lr is that of new groups. */
    tg_loss_scale scale; /* as set; size 0: the loss is not scaled */
    bool summed;         /* tg_optim_clip has the sums of the next step, whose limit is next_norm */
    double next_norm;
    int n, n_groups, n_sums;
    size_t bytes; /* of this struct with its items */
    /* On the device, float64: sums of squares of each gradient [n], of those that lie on the same axes
     * [TG_STEP_SUMS]; the state and the groups' words of step.h; views of the state's scale, and of all that the scale
     * depends on. words32, scale32: in float32, the scale as it was when the state had that version. */
    tg_tensor *squares, *sums, *state, *words, *words32, *scale_view, *scale_state, *scale32;
    tg_tensor *fault; /* [1]: whether any rank found an error in the step's data (slot fault_sum) */
    uint32_t scale_version;
    tg_adamw_args *list; /* [n], of one call */
    tg_optim_group_t group[TG_STEP_GROUPS];
    char name[128]; /* of the state asked for last */
    tg_optim_item item[];
};

extern const tg_optim_method tg_sgd_method, tg_adam_method;
tg_status tg_optim_check(const tg_optim *o);
void tg_optim_drop_state(tg_tensor *s); /* one that the optimiser owns; NULL: nothing */
bool tg_optim_rate(tg_ctx *ctx, double lr, const char *who); /* records what is wrong with it */
bool tg_schedule_ok(const tg_schedule *s);
tg_status tg_optim_check_items(tg_optim *o, const char *who); /* every parameter is still there */
/* The gradient that a step takes for this parameter; NULL: it stays. */
tg_tensor *tg_optim_gradient(const tg_optim_item *it);
static inline bool tg_optim_scale_moves(const tg_optim *o) { return o->scale.size && !o->scale.fixed; }

/* ---- step.c: what lies on the device ---- */

tg_status tg_optim_device_open(tg_optim *o); /* the state of an optimiser that has taken no step */
void tg_optim_device_close(tg_optim *o);
tg_status tg_optim_send_rate(tg_optim *o, int group); /* that group's lr */

#endif
