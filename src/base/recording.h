/* What must not happen while a step is recorded for replay (tg_graph_new). The recorded step itself is core/capture.c's. */
#ifndef TG_RECORDING_H
#define TG_RECORDING_H

#include <tapegrad/types.h>

/* The recording that is under way, as the runtime points to it. */
typedef struct tg_recording {
    const void *site; /* of the call of tg_graph_new */
    bool refused;     /* the step has tried what cannot be recorded: the capture fails, even if the error is cleared */
} tg_recording;

/* What a recorded step cannot do, as it stands in the error. */
#define TG_RECORDING_READ "reads a value of the device, which has not computed it"
#define TG_RECORDING_WRITE "writes values of the host, which a replay would write again"
#define TG_RECORDING_STREAM "changes a random stream, which a replay would not"
#define TG_RECORDING_WAIT "waits for the device, which does not run"

/* Returns TG_OK unless a step is being recorded; then it records TG_ERR_UNSUPPORTED, and the capture will fail. who and
 * site name the call in the error; NULL: those of the op that runs. */
tg_status tg_recording_refuse(tg_ctx *ctx, const char *who, const char *what, const void *site);

#endif
