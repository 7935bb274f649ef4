/* Operations that are not allowed while a step is recorded for replay (tg_graph_new). The recorded step itself is in
 * core/capture.c. */
#ifndef TG_RECORDING_H
#define TG_RECORDING_H

#include <tapegrad/types.h>

/* The recording in progress, as the runtime refers to it. */
typedef struct tg_recording {
    const void *site; /* call site of tg_graph_new */
    /* the step tried an operation that cannot be recorded: the capture fails, even if the error is cleared */
    bool refused;
} tg_recording;

/* Operations that a recorded step cannot perform, as the error message names them. */
#define TG_RECORDING_READ "reads a value of the device, which has not computed it"
#define TG_RECORDING_WRITE "writes values of the host, which a replay would write again"
#define TG_RECORDING_STREAM "changes a random stream, which a replay would not"
#define TG_RECORDING_WAIT "waits for the device, which does not run"

/* Returns TG_OK unless a step is being recorded. If one is, records TG_ERR_UNSUPPORTED, and the capture will fail.
 * `who` and `site` name the call in the error; NULL stands for the op that is running. */
tg_status tg_recording_refuse(tg_ctx *ctx, const char *who, const char *what, const void *site);

#endif
