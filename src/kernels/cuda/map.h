/* Element-wise kernels: what the driver (map.cu) passes to the templates (map_kernels.h), which are compiled once
 * for each compute type (map_f32.cu, map_f64.cu, map_i64.cu). */
#ifndef TG_CUDA_MAP_H
#define TG_CUDA_MAP_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/vector.h"
#include "kernels/cuda/walk.h"

namespace tg {

enum { MAP_INPUTS = 4, MAP_THREADS = 256, MAP_EACH = 4, MAP_TILE = 32, MAP_TILE_ROWS = 8 };

/* Operand 0 is the output. */
struct MapOperand {
    char *data;
    int dtype, size;
    int64_t row, col; /* strides along the two dims that a path handles itself */
    bool whole;       /* MAP_ROWS: quads are aligned to their own size */
    bool turned;      /* MAP_TILES: neighbors in memory are neighbors along the rows */
};

enum MapPath {
    MAP_ROWS, /* the last dim in quads, two per thread; operands that are not contiguous are read element by element */
    MAP_FLAT, /* every element by its position */
    MAP_TILES /* the last dim and one more in square tiles: an input is transposed */
};

struct MapJob {
    tg_formula f;
    int n_in;
    double p, q;
    bool add;
    MapPath path;
    int64_t count; /* MAP_ROWS, MAP_FLAT: of threads' shares; MAP_TILES: of tiles */
    MapOperand x[1 + MAP_INPUTS];
    Walk<1 + MAP_INPUTS> walk; /* the dims that the path does not handle itself */
    int64_t rows, cols;
    /* MAP_ROWS: a thread's second quad is `spread` quads after its first. With 1 both can be one access if elements
     * have 16 bits; with 32 every access of a warp is one run of memory. */
    int spread;
    bool joined;
    Divider across; /* shares of a row; tiles of a row */
    Divider down;   /* MAP_TILES: tiles of a column */
};

void map_f32(const MapJob &job, cudaStream_t stream);
void map_f64(const MapJob &job, cudaStream_t stream);
void map_i64(const MapJob &job, cudaStream_t stream);

} // namespace tg

#endif
