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
    int64_t row, col; /* strides along the dims that the path handles itself: MAP_TILES both, MAP_ROWS only col */
    bool whole;       /* MAP_ROWS: quads (vector.h) are contiguous and aligned to their own size */
    bool transposed;  /* MAP_TILES: the elements of a column are adjacent in memory, so row is 1 */
};

enum MapPath {
    MAP_ROWS, /* a thread has pairs of quads of rows (the last dim); quads that are not whole are loaded by elements */
    MAP_FLAT, /* a thread has MAP_EACH elements, and finds each by its position */
    MAP_TILES /* a block has a square tile of two dims: the last one, and one along which an input is contiguous */
};

struct MapJob {
    tg_formula f;
    int n_in;
    double p, q;
    bool add;
    MapPath path;
    int64_t count; /* number of pairs of quads (MAP_ROWS), of elements (MAP_FLAT), or of tiles (MAP_TILES) */
    MapOperand x[1 + MAP_INPUTS];
    Walk<1 + MAP_INPUTS> walk; /* the dims that the path does not handle itself */
    int64_t rows, cols;
    /* MAP_ROWS: the second quad of a pair is `spread` quads after the first. With 32, each access of a warp covers
     * contiguous memory. With 1 the two quads are adjacent. */
    int spread;
    /* MAP_ROWS: the two quads of a pair are joined, which means that they are one access of 16 bytes. This holds for
     * every operand; only an input that repeats one element along the row may differ. All offsets are below 2^31. */
    bool joined;
    bool copies; /* the quads are joined, and the results are the bits of the input */
    Divider across; /* MAP_ROWS: pairs of quads in a row; MAP_TILES: tiles in a row */
    Divider down;   /* MAP_TILES: tiles in a column */
};

void map_f32(const MapJob &job, cudaStream_t stream);
void map_f64(const MapJob &job, cudaStream_t stream);
void map_i64(const MapJob &job, cudaStream_t stream);

} // namespace tg

#endif
