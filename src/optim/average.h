/* The struct of averages of parameters, which checkpoints read too. */
#ifndef TG_OPTIM_AVERAGE_H
#define TG_OPTIM_AVERAGE_H

#include <tapegrad/average.h>

#include "core/context.h"

/* A parameter and its average. */
typedef struct tg_average_item {
    tg_tensor *param, *average;
    tg_tensor *own;   /* a copy of the parameter while the averages are applied; else NULL */
    tg_ref ref;       /* detects that the parameter was dropped */
    uint32_t version; /* of the parameter's bytes after the average was written to them */
} tg_average_item;

struct tg_average {
    tg_ctx *ctx;
    bool mean;    /* the plain mean, not an EMA */
    bool applied; /* the parameters are the averages */
    double decay;
    /* On the device, [1]: the number of updates in float64, and the weight of a parameter in the update under way, in
     * float64 and in float32. */
    tg_tensor *updates, *weight, *weight32;
    int n;
    size_t bytes; /* of this struct with its items */
    char *name;   /* memory of the last name that tg_average_state returned; NULL before */
    tg_average_item item[];
};

#define TG_AVERAGE_UPDATES_NAME "updates"

#endif
