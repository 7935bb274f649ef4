/* Operations that are not allowed while a step is recorded for replay (tg_graph_new). The recorded step itself is in
 * core/capture/capture.c. */
#ifndef TG_RECORDING_H
#define TG_RECORDING_H

#include <tapegrad/types.h>

#include "base/private_api.h"

/* What is recorded, in the words of error messages. */
typedef struct tg_recording_words {
    const char *record, *replay; /* the functions that record it and run it again, such as "tg_graph_new" */
    const char *subject;         /* "the step" */
    const char *recorded;        /* "the step that tg_graph_new records" */
    const char *elsewhere;       /* where to make a call that cannot be recorded */
    const char *failed;          /* what discards its tensors after an error */
} tg_recording_words;

/* The recording in progress, as the runtime refers to it. */
typedef struct tg_recording {
    const tg_recording_words *words;
    const void *site; /* call site of the function that records */
    /* The step has tried an operation that cannot be recorded. The capture then fails, even if the step clears the
     * error. */
    bool refused;
} tg_recording;

/* What a recorded step must not do: the verb phrases that follow tg_recording_words.recorded in the error message. */
#define TG_RECORDING_READ "reads a value of the device, which has not computed it"
#define TG_RECORDING_WRITE "writes values of the host, which a replay would write again"
#define TG_RECORDING_STREAM "changes a random stream, which a replay would not"
#define TG_RECORDING_DRAW "draws numbers that every replay would draw again"
#define TG_RECORDING_PIN "pins memory of the step"
#define TG_RECORDING_MOVE "gives a tensor other memory, which a replay would not"
#define TG_RECORDING_OUTSIDE "uses memory of another library, which may be freed before a replay"
#define TG_RECORDING_WAIT "waits for the device, which does not run"

/* Returns TG_OK unless a step is being recorded. If one is, fails with TG_ERR_UNSUPPORTED, and the capture will fail
 * too. `what` is one of the phrases above. `who` and `site` are the name and the call site of the refused call; NULL:
 * those of the op that is running or, if none is, of the function that records. */
TG_PRIVATE_API tg_status tg_recording_refuse(tg_ctx *ctx, const char *who, const char *what, const void *site);

#endif
