/* How much memory a context can still obtain. Programs that choose a model or a batch by the memory include this
 * header. tg_memory_query (context.h) says what a context uses, and device "meta" measures what a step will use. */
#ifndef TAPEGRAD_MEMORY_H
#define TAPEGRAD_MEMORY_H

#include <tapegrad/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns how many bytes the context can still obtain, the lesser of two amounts:
 * - the free memory of the context's device: of the GPU on device "cuda", of the host on "cpu" and other devices in
 *   host memory;
 * - what the limit leaves: tg_config.memory minus `live` and `workspace` of tg_memory_info, at least 0.
 *
 * The first amount does not include what the context has obtained before and does not use (`reserved` minus `live` of
 * tg_memory_info). Other contexts and other processes may take free memory at any time. The free memory of the host is
 * what Linux can provide without swapping (MemAvailable of /proc/meminfo). If the control groups of the process, such
 * as those of a container or a batch job, leave less, it is what they leave.
 *
 * The first amount is unknown on device "meta", on a device of the caller's own (tg_ctx_new_on) whose memory is not the
 * host's, and on systems that do not report it. Then the result is the second amount. If there is no limit either, the
 * result is TG_NONE, which is negative: test for it before you compare.
 *
 * Returns 0 if ctx is NULL or has an error. Also returns 0, and fails with TG_ERR_DEVICE, if the driver of device
 * "cuda" fails. */
TG_API int64_t tg_memory_left(tg_ctx *ctx);

#ifdef __cplusplus
}
#endif

#endif
