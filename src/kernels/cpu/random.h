/* Random fills: what the driver (random.c) passes to the templates (random_tmpl.c). */
#ifndef TG_RANDOM_H
#define TG_RANDOM_H

#include "kernels/cpu/cpu.h"

enum { TG_RANDOM_TILE = 512 }; /* greatest number of elements that are drawn at a time */

typedef struct tg_random_job {
    tg_random kind;
    tg_array out;
    double a, b;         /* as in slot random */
    double least, below; /* the least and the greatest number that a uniform draw may give (uniform.h) */
    tg_draws draws;
    /* Elements are filled in runs. No run crosses a multiple of `inner`, which is the size of the last dim, or of out
     * if out is contiguous. */
    int64_t inner;
    int64_t per_unit; /* number of elements of a unit */
} tg_random_job;

typedef struct tg_random_kernels {
    tg_range_fn fill; /* over units of per_unit elements */
} tg_random_kernels;

#endif
