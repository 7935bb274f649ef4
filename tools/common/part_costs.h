/* What the parts of a model cost, for the plan of a pipeline whose parts are not equal. */
#ifndef TAPEGRAD_PART_COSTS_H
#define TAPEGRAD_PART_COSTS_H

#include <stdbool.h>

#include <tapegrad/gpt.h>

/* FLOPs of each part for a micro-batch of one sequence: f of its forward, b of the gradients of its activations and of
 * what backward recomputes, and w of the gradients of its weights. They are f, b and w of tg_pipe_plan_opts. */
typedef struct part_costs {
    int n; /* number of parts */
    double *f, *b, *w;
} part_costs;

/* Counts the costs of a model of n parts. layout: as in tg_lm_config; NULL: the parts have equally many layers.
 * Returns false after printing what is wrong; part_costs_close may be called in any case. */
bool part_costs_open(part_costs *c, const tg_lm_config *config, const char *layout, int n, int64_t seq_len);
void part_costs_close(part_costs *c);

#endif
