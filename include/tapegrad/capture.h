/* A step recorded once and replayed: the device runs all that it launched without the host (CUDA graphs).
 *
 *     tg_graph *g = tg_graph_new(ctx, step, &state);         // the first step
 *     for (int i = 1; i < steps; i++) {
 *         tg_write(ids, batch(i), bytes);                  // inputs are tensors that stay where they are
 *         tg_graph_replay(g);                              // one more; tg_item(loss) reads what it left
 *     }
 *
 * A replayed run has the bits of one whose steps are called one by one, and the two may follow each other as they like:
 * random streams go on with every replay from where they are, gradients and what tg_keep holds are there after each.
 *
 * What a replay cannot repeat is refused, with the place in the step: reading a value on the host (tg_item, tg_read,
 * tg_optim_clip ...), writing one from there (tg_write, tg_from_host), setting or adding a random stream. So are copies
 * of work.h, which go on beside a replay where the step does not touch their tensors. Shapes and the host's decisions
 * are those of the recording. Who captures runs a step or two as it is before: what lives longer
 * than a step, as gradients and named buffers, is then there.
 */
#ifndef TAPEGRAD_CAPTURE_H
#define TAPEGRAD_CAPTURE_H

#include <tapegrad/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_graph tg_graph;

/* Does one step: runs fn, whose work is recorded instead of run, and replays it for the first time. fn may do all that
 * a training step does, and reset its tapes; its own state on the host moves on this once only. Memory that the step
 * takes is the graph's until it is freed; what else the step uses (parameters, inputs) is not given to anybody else as
 * long, though it be dropped. Where fn or the recording fails, nothing has been done: random streams and gradients are
 * as before, results of fn are discarded, its tapes want a reset. Inert, never NULL, on an error.
 *
 * On the CPU nothing is recorded: fn is called, by this and by every replay. A device that cannot record answers
 * TG_ERR_UNSUPPORTED. state must live as long as the graph. Captures do not nest, which is seen where one is
 * recorded. */
TG_API tg_graph *tg_graph_new(tg_ctx *ctx, tg_status (*fn)(void *state, tg_ctx *ctx), void *state);

/* One more step. On an error, which may tell of data of an earlier step (TG_ERR_DATA), it has not been done. Refused
 * (TG_ERR_STATE) where it would not be the step that fn does now: a parameter has a gradient and had none when the step
 * was recorded, or the other way round; a tensor that it writes is saved for a backward to come; another random stream
 * draws. Collective where the step has collectives: every rank replays. */
TG_API tg_status tg_graph_replay(tg_graph *g);
/* Its memory is the context's again, but for what handles still hold. Freed with its context at the latest. */
TG_API void tg_graph_free(tg_graph *g);

typedef struct tg_graph_info {
    size_t size;
    int64_t nodes;       /* kernels and copies of the device; 0 on the CPU */
    int64_t bytes;       /* of device memory that are the graph's */
    int64_t collectives; /* that a replay starts */
    int64_t steps;       /* so far, the first one among them */
} tg_graph_info;

#define TG_GRAPH_INFO() ((tg_graph_info){.size = sizeof(tg_graph_info)})
TG_API tg_status tg_graph_query(const tg_graph *g, tg_graph_info *out);

#ifdef __cplusplus
}
#endif

#endif
