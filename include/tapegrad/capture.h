/* Captured steps: a training step is recorded once and replayed, so that the device runs all its launches without the
 * host (CUDA graphs). A program that trains on a GPU includes this header.
 *
 *     tg_graph *g = tg_graph_new(ctx, step, &state);         // records the step and runs it once
 *     for (int i = 1; i < steps; i++) {
 *         tg_write(ids, batch(i), bytes);                    // the inputs are tensors that stay where they are
 *         tg_graph_replay(g);                                // runs one more step; tg_item(loss) then reads its loss
 *     }
 *
 * A replayed run gives the same bits as a run that calls each step, and the two can be mixed. Each replay continues the
 * random streams from their present state. Gradients, and tensors held by tg_keep, are available after each replay.
 *
 * What a replay cannot repeat fails while the step is recorded, and the error names the call: reading a value on the
 * host (tg_item, tg_read, tg_optim_clip), writing one from the host (tg_write, tg_from_host), setting or adding a
 * random stream, and the copies of work.h. Such copies may run in parallel with a replay whose step does not use their
 * tensors. Shapes, and the decisions that the host takes, are those of the recording. Run one or two steps without
 * capture first, so that whatever lives longer than a step, such as gradients and named buffers, exists already.
 */
#ifndef TAPEGRAD_CAPTURE_H
#define TAPEGRAD_CAPTURE_H

#include <tapegrad/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_graph tg_graph;

/* Performs one step: calls fn, records the device's work instead of running it, and replays it for the first time.
 * Never returns NULL: on an error the graph is inert. state must live as long as the graph.
 *
 * fn may do everything that a training step does, and may reset its tapes. Its own state on the host advances only this
 * once. The memory that the step takes belongs to the graph until tg_graph_free. Other memory that the step uses, such
 * as parameters and inputs, is not reused in that time, even if its tensors are dropped. If fn or the recording fails,
 * no work has run: random streams and gradients are as before, the results of fn are discarded, and its tapes must be
 * reset.
 *
 * On the CPU nothing is recorded: this call and every replay call fn. A device that cannot record fails with
 * TG_ERR_UNSUPPORTED. Captures do not nest (TG_ERR_STATE); this is detected only on a device that records.
 */
TG_API tg_graph *tg_graph_new(tg_ctx *ctx, tg_status (*fn)(void *state, tg_ctx *ctx), void *state);

/* Runs the step once more. On an error the step has not run; the error may concern data of an earlier step
 * (TG_ERR_DATA).
 *
 * Fails with TG_ERR_STATE if the recorded step is not what fn would do now: a parameter has a gradient but had none
 * when the step was recorded, or the reverse; a tensor that the step writes is saved for a later backward; or another
 * random stream draws. If the step has collectives, the replay is collective: every rank must replay.
 */
TG_API tg_status tg_graph_replay(tg_graph *g);
/* Frees the graph. Its memory returns to the context, except what handles still hold. The context frees a graph at the
 * latest. */
TG_API void tg_graph_free(tg_graph *g);

typedef struct tg_graph_info {
    size_t size;
    int64_t nodes;       /* kernels and copies on the device; 0 on the CPU */
    int64_t bytes;       /* bytes of device memory that the graph owns */
    int64_t collectives; /* collectives in one replay */
    int64_t steps;       /* steps so far, including the first */
} tg_graph_info;

#define TG_GRAPH_INFO() ((tg_graph_info){.size = sizeof(tg_graph_info)})
/* Fills *out, which TG_GRAPH_INFO() initializes. */
TG_API tg_status tg_graph_query(const tg_graph *g, tg_graph_info *out);

#ifdef __cplusplus
}
#endif

#endif
