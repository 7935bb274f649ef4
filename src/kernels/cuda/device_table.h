/* The table of the CUDA device, in builds that have it (TG_HAVE_CUDA). */
#ifndef TG_CUDA_TABLE_H
#define TG_CUDA_TABLE_H

#include <tapegrad/device.h>

extern const tg_device_ops tg_cuda_device;

#endif
