/* cuda_runtime.h of the emulator: the toolkit's, and the device side for a host compiler. The folder of this file comes
 * before the toolkit's on the include path of kernels. */
#pragma GCC system_header /* because #include_next is an extension */
#include_next <cuda_runtime.h>

#include "../device.h"
