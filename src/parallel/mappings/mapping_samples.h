/* Samples that several mappings share: inputs and params for the tests of ops. The test fills in the communicator. */
#ifndef TG_MAPPING_SAMPLES_H
#define TG_MAPPING_SAMPLES_H

#include "parallel/mappings/mapping.h"

#define TG_M_OPTS(...) &(const tg_mapping_params){__VA_ARGS__}
#define TG_M_SAMPLE(ranks_, note_, params_, ...) \
    {.note = note_, .params = params_, .n_in = 1, .ranks = ranks_, .input = {__VA_ARGS__}}
#define TG_M_REFUSED(note_, params_, status_, ...) \
    {.note = note_, .params = params_, .n_in = 1, .refused = status_, .input = {__VA_ARGS__}}

/* For mappings that keep the shape: samples of several strides and sizes. */
#define TG_M_SAMPLES_LIKE(params_)                                                                                   \
    TG_M_SAMPLE(2, "two ranks", params_, TG_S(3, 5)), TG_M_SAMPLE(3, "three ranks", params_, TG_S(2, 3, 4)),          \
    TG_M_SAMPLE(4, "transposed", params_, TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 3)),                                       \
    TG_M_SAMPLE(2, "strided", params_, TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)),                                             \
    TG_M_SAMPLE(2, "expanded", params_, TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)),                                           \
    TG_M_SAMPLE(2, "scalar", params_, TG_S_SCALAR), TG_M_SAMPLE(3, "nothing", params_, TG_S(0, 4)),                   \
    TG_M_REFUSED("no communicator", params_, TG_ERR_ARGUMENT, TG_S(2, 3))
/* For mappings that cut x along dim 1, or take x for a part along dim 1. This dim of x has size 12. */
#define TG_M_SAMPLES_CUT(params_)                                                                                    \
    TG_M_SAMPLE(2, "two ranks", params_, TG_S(5, 12)), TG_M_SAMPLE(3, "three ranks", params_, TG_S(2, 12)),           \
    TG_M_SAMPLE(4, "transposed", params_, TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 12)),                                      \
    TG_M_SAMPLE(2, "strided", params_, TG_S_AS(TG_SAMPLE_STRIDED, 3, 12)),                                            \
    TG_M_SAMPLE(2, "expanded", params_, TG_S_AS(TG_SAMPLE_EXPANDED, 3, 12)),                                          \
    TG_M_SAMPLE(4, "size 1", params_, TG_S(1, 12)), TG_M_SAMPLE(2, "nothing", params_, TG_S(0, 12)),                  \
    TG_M_REFUSED("no communicator", params_, TG_ERR_ARGUMENT, TG_S(3, 12))

#endif
