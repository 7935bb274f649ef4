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
    int64_t row, col; /* strides along the dims that a path handles itself: MAP_TILES both, MAP_ROWS col alone */
    bool whole;       /* MAP_ROWS: quads are contiguous and aligned to their own size */
    bool transposed;  /* MAP_TILES: adjacent in memory are the elements of a column: row is 1 */
};

enum MapPath {
    MAP_ROWS, /* a thread has two quads of a row, the last dim; quads that are not contiguous are read by elements */
    MAP_FLAT, /* a thread has MAP_EACH elements, and finds each by its position */
    MAP_TILES /* a block has a square tile of the last dim and one more, because an input is transposed */
};

struct MapJob {
    tg_formula f;
    int n_in;
    double p, q;
    bool add;
    MapPath path;
    int64_t count; /* MAP_ROWS: pairs of quads; MAP_FLAT: elements; MAP_TILES: tiles */
    MapOperand x[1 + MAP_INPUTS];
    Walk<1 + MAP_INPUTS> walk; /* the dims that the path does not handle itself */
    int64_t rows, cols;
    /* MAP_ROWS: a thread's second quad is `spread` quads after its first. With 32, each access of a warp covers
     * contiguous memory. With 1 the quads are adjacent; if all elements have 16 bits, both are one access (joined). */
    int spread;
    bool joined; /* every pair of quads is whole and joined, or an input has one element for a row; offsets are short */
    bool copies; /* joined, and the results are the bits of the input */
    Divider across; /* MAP_ROWS: pairs of quads in a row; MAP_TILES: tiles in a row */
    Divider down;   /* MAP_TILES: tiles in a column */
};

void map_f32(const MapJob &job, cudaStream_t stream);
void map_f64(const MapJob &job, cudaStream_t stream);
void map_i64(const MapJob &job, cudaStream_t stream);

} // namespace tg

#endif
