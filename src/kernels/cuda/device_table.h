/* The table of the CUDA device, and the plugin that offers it. */
#ifndef TG_CUDA_TABLE_H
#define TG_CUDA_TABLE_H

#include <tapegrad/device.h>

#include "base/plugin.h"

extern TG_PRIVATE_API const tg_device_ops tg_cuda_device;
extern TG_PRIVATE_API const tg_plugin tg_cuda_plugin; /* its table is tg_cuda_device */

#endif
