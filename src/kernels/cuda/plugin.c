/* What plugin "cuda" exports. */
#include "kernels/cuda/device_table.h"
#include "kernels/cuda/memory.h"

static const tg_device_plugin table = {.ops = &tg_cuda_device, .memory_left = tg_cuda_memory_left};
const tg_plugin tg_cuda_plugin = TG_PLUGIN(&table);
