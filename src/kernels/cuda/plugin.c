/* What plugin "cuda" exports. */
#include "kernels/cuda/device_table.h"

const tg_plugin tg_cuda_plugin = TG_PLUGIN(&tg_cuda_device);
