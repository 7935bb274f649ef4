/* The two things for which nvcc has a syntax of its own, as macros. A file that uses them builds with nvcc, and also
 * with a C++ compiler against a cuda_runtime.h that defines the macros itself, as that of an emulator does. The build
 * chooses the folder in which <cuda_runtime.h> is found.
 *
 *   TG_LAUNCH(kernel, grid, block, shared bytes, stream, arguments...)   a kernel with template arguments needs
 *                                                                        parentheses
 *   TG_DYN_SHARED(type, name)                                            the dynamic shared memory of a kernel
 */
#ifndef TG_CUDA_LAUNCH_H
#define TG_CUDA_LAUNCH_H

#include <cuda_runtime.h>

#ifndef TG_LAUNCH
#define TG_LAUNCH(kernel, grid, block, shared, stream, ...) kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#define TG_DYN_SHARED(type, name)                                         \
    extern __shared__ __align__(16) unsigned char tg_dynamic_shared_[]; \
    type *name = reinterpret_cast<type *>(tg_dynamic_shared_)
#endif

#endif
