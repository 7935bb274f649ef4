/* The values of sample inputs: random numbers from a separate stream, so that they depend only on a seed. */
#ifndef TG_SAMPLE_VALUES_H
#define TG_SAMPLE_VALUES_H

#include "catalog/samples.h"
#include "core/context.h"

/* Returns the next number of the stream at *state. */
uint64_t tg_sample_random(uint64_t *state);
double tg_sample_uniform(uint64_t *state); /* uniform in (0, 1) */
double tg_sample_normal(uint64_t *state);

/* Fills x with the values of a sample input, drawn from the stream at `state`. */
tg_status tg_sample_fill(tg_tensor *x, const tg_sample_input *s, const tg_case_opts *o, uint64_t state);

#endif
