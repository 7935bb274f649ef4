/* The two things that nvcc has its own syntax for. A file that launches by these builds with nvcc, and with an ordinary
 * C++ compiler against the emulator of tests/cuda_emulator, which runs it on the CPU.
 *
 *   TG_LAUNCH(kernel, grid, block, shared bytes, stream, arguments...)   a template's arguments want parentheses
 *   TG_DYN_SHARED(type, name)                                            the dynamic shared memory of a kernel
 */
#ifndef TG_CUDA_LAUNCH_H
#define TG_CUDA_LAUNCH_H

#ifdef TG_CUDA_EMULATOR
#include "cuda_emulator/device.h"
#else
#include <cuda_runtime.h>
#define TG_LAUNCH(kernel, grid, block, shared, stream, ...) kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#define TG_DYN_SHARED(type, name)                                         \
    extern __shared__ __align__(16) unsigned char tg_dynamic_shared_[]; \
    type *name = reinterpret_cast<type *>(tg_dynamic_shared_)
#endif

#endif
