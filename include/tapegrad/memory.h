/* How much memory a device has left. Programs that choose a model or a batch by the memory include this header. What a
 * context uses is in tg_memory_query (context.h), and what a step will use can be measured on device "meta". */
#ifndef TAPEGRAD_MEMORY_H
#define TAPEGRAD_MEMORY_H

#include <tapegrad/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns how many bytes the context can still obtain: of the GPU's memory on device "cuda", of the host's on device
 * "cpu", and in both cases at most what tg_config.memory leaves. What the context has obtained before and does not use
 * (`reserved` minus `live` of tg_memory_info) does not count. Other processes may take some of the memory at any time.
 * Of the host's memory it is what Linux can provide without swapping (MemAvailable of /proc/meminfo), or what the
 * limits of the process's control groups leave, as those of a container or a batch job, whichever is less.
 *
 * Returns TG_NONE if there is no limit, as on device "meta", or if it is not known, as on a device of the caller's own
 * (tg_ctx_new_on) whose memory is not the host's. Returns 0 if the context has an error. On device "cuda" the driver
 * may fail with TG_ERR_DEVICE. */
TG_API int64_t tg_memory_left(tg_ctx *ctx);

#ifdef __cplusplus
}
#endif

#endif
