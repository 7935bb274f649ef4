/* Launches and dynamic shared memory as macros, because nvcc has a syntax of its own for them. A file that uses them
 * compiles with nvcc. It also compiles with a C++ compiler if the header <cuda_runtime.h> defines the macros, as an
 * emulator's header does. The build chooses the folder in which <cuda_runtime.h> is found.
 *
 *   TG_LAUNCH(kernel, grid, block, shared, stream, arguments...)   launches a kernel with `shared` bytes of dynamic
 *                                                                  shared memory; a kernel whose template arguments
 *                                                                  contain commas needs parentheses
 *   TG_DYN_SHARED(type, name)                                      declares a pointer to that memory, in the kernel
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
