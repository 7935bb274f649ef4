/* Where the draws of a kernel begin, which changes between the replays of a captured step; see tg_draws. */
#ifndef TG_CUDA_DRAW_STATE_H
#define TG_CUDA_DRAW_STATE_H

#include <tapegrad/types.h>

#include "kernels/cuda/launch.h"

namespace tg {

/* Returns the state of the stream in this launch: rng itself, or, in a replay, rng changed by `captured`. */
__device__ inline tg_rng rng_now(const tg_rng &rng, const tg_rng *captured) {
    if (!captured) return rng;
    return tg_rng{captured->seed, rng.stream + captured->stream, rng.counter + captured->counter};
}

} // namespace tg

#endif
