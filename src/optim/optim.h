/* An optimiser's parts, as its own files see them. */
#ifndef TG_OPTIM_PARTS_H
#define TG_OPTIM_PARTS_H

#include <tapegrad/optim.h>

#include "core/core.h"

enum { TG_OPTIM_STATES = 3 };

typedef struct tg_optim_group_t {
    double lr_scale, weight_decay;
    tg_tensor *word; /* f64 [5]: what changes from step to step, on the device; see tg_adamw_args */
} tg_optim_group_t;

/* One parameter. state[] is what the method keeps; master is a wider copy of a 16-bit parameter. */
typedef struct tg_optim_item {
    tg_tensor *param, *master, *state[TG_OPTIM_STATES];
    tg_ref ref;       /* recognises a parameter that was dropped */
    /* Of the parameter's and the master's bytes after the last step: others mean that somebody wrote them. */
    uint32_t version, master_version;
    int group;
} tg_optim_item;

/* A method: what it keeps for a parameter, and its step. */
typedef struct tg_optim_method {
    const char *name;
    int n_states;
    const char *state_name[TG_OPTIM_STATES];
    tg_status (*step)(tg_optim *o, tg_optim_item *it, tg_tensor *grad);
} tg_optim_method;

struct tg_optim {
    tg_ctx *ctx;
    const tg_optim_method *method;
    tg_sgd_opts sgd;
    tg_adamw_opts adam;
    bool decoupled;
    double lr, clip; /* clip: the coefficient of the next step */
    bool skip;       /* the next step's gradients are not finite */
    int64_t steps;
    int n, n_groups;
    size_t bytes; /* of this struct with its items */
    tg_tensor *norms; /* f64 [n], of the gradients */
    tg_optim_group_t group[8];
    char name[128]; /* of the state asked for last */
    tg_optim_item item[];
};

extern const tg_optim_method tg_sgd_method, tg_adam_method;
tg_optim *tg_optim_make(tg_ctx *ctx, const tg_optim_method *method, tg_tensor *const *params, int n, const char *who);
tg_status tg_optim_check(const tg_optim *o);

#endif
