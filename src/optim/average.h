/* The averages of parameters, as checkpoints see them. */
#ifndef TG_OPTIM_AVERAGE_H
#define TG_OPTIM_AVERAGE_H

#include <tapegrad/average.h>

#include "core/context.h"

/* A parameter, its average, and while the averages are applied a copy of the parameter, whose bytes had this version
 * after the average was written to them. */
typedef struct tg_average_item {
    tg_tensor *param, *average, *own;
    tg_ref ref;
    uint32_t version;
} tg_average_item;

struct tg_average {
    tg_ctx *ctx;
    bool mean;    /* the plain mean, not an EMA */
    bool applied; /* the parameters are the averages */
    double decay;
    /* On the device, float64, [1]: the number of updates, and the weight of a parameter in the update under way, in
     * float64 and float32. */
    tg_tensor *updates, *weight, *weight32;
    int n;
    size_t bytes;   /* of this struct with its items */
    char name[128]; /* name of the state that was asked for last */
    tg_average_item item[];
};

#define TG_AVERAGE_UPDATES_NAME "updates"

#endif
