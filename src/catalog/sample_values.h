/* The values of sample inputs: numbers of a random generator that does not use the context's random streams, so that
 * they depend only on a seed. */
#ifndef TG_SAMPLE_VALUES_H
#define TG_SAMPLE_VALUES_H

#include "catalog/samples.h"
#include "core/context.h"

/* Return the next random number of the generator whose state is *state, and advance the state: 64 random bits, a number
 * that is uniform in (0, 1), and a number of the standard normal distribution. */
uint64_t tg_sample_random(uint64_t *state);
double tg_sample_uniform(uint64_t *state);
double tg_sample_normal(uint64_t *state);

/* Fills x with the values of sample input s. `state` is the state from which the generator starts. */
tg_status tg_sample_fill(tg_tensor *x, const tg_sample_input *s, const tg_case_opts *o, uint64_t state);

#endif
