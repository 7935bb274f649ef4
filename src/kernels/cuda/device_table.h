/* The table of the CUDA device, and the plugin that offers it. */
#ifndef TG_CUDA_TABLE_H
#define TG_CUDA_TABLE_H

#include "base/device_plugin.h"
#include "base/plugin.h"

extern TG_PRIVATE_API const tg_device_ops tg_cuda_device;
extern TG_PRIVATE_API const tg_plugin tg_cuda_plugin; /* its table is a tg_device_plugin with tg_cuda_device */

#endif
