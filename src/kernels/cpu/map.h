/* Element-wise kernels: what the driver (map.c) passes to the templates (map_tmpl.c).
 *
 * A formula (kernels/scalar.h) has a row function for each compute type, which runs over contiguous arrays of that
 * type. A map is cut into two-dimensional tiles, and the row function is called for each tile. An operand that has
 * another dtype, or is not contiguous within a tile (a broadcast, a transposition), is copied tile by tile to or from a
 * buffer of the compute type. These tiles are so small that the buffers fit the first-level cache. */
#ifndef TG_MAP_H
#define TG_MAP_H

#include "kernels/cpu/cpu.h"

enum {
    TG_MAP_TILE = 512,    /* greatest number of elements of a tile if an operand needs a buffer */
    TG_MAP_CHUNK = 16384, /* greatest number of elements of a tile if all operands are used in place */
    TG_MAP_INPUTS = 4
};

/* out[i] (+)= formula(in[0][i], ...). Inputs that the formula does not use may be NULL. */
typedef void (*tg_map_row_fn)(int64_t n, void *out, const void *const *in, double p, double q, bool add);

typedef struct tg_map_operand {
    char *data;
    int64_t stride[TG_MAX_DIMS + 1]; /* in elements */
    int64_t size;                    /* bytes of an element */
    tg_dtype dtype;
    bool direct;       /* every tile is a contiguous run of the compute type, and is used in place */
    bool column_major; /* the columns of a tile are contiguous in memory, as in a transposed array */
} tg_map_operand;

/* How a map is divided into tiles. Dims are ordered by the output's strides and merged. Then the dim along which the
 * rows of a tile lie is exchanged with the last but one. The columns of a tile lie along the last dim. */
typedef struct tg_map_plan {
    tg_map_row_fn row;
    double p, q;
    bool add;
    int n_in, ndim; /* ndim >= 2 */
    int64_t shape[TG_MAX_DIMS + 1];
    tg_map_operand x[1 + TG_MAP_INPUTS]; /* the output, then the inputs */
    int64_t rows, cols;                  /* of a tile */
    int64_t tiles, per_unit;             /* number of tiles, in all and in one unit of parallel work */
} tg_map_plan;

/* The functions of one copy of the template. load and store convert between n elements of any dtype, `stride` apart,
 * and a buffer t of the compute type. */
typedef struct tg_map_kernels {
    const tg_map_row_fn *row; /* by formula; NULL where the formula does not exist in this type */
    tg_range_fn tiles;        /* over the units of a tg_map_plan */
    void (*load)(void *t, const void *src, tg_dtype dtype, int64_t stride, int64_t n);
    void (*store)(void *dst, tg_dtype dtype, int64_t stride, int64_t n, const void *t);
} tg_map_kernels;

/* Returns the copy for this context's level and a compute type: TG_F32, TG_F64 or TG_I64. */
const tg_map_kernels *tg_map_kernels_of(const tg_ctx *ctx, tg_dtype compute);

#endif
