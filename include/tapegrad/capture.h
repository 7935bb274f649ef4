/* Captured steps: a training step is recorded once and then replayed. In a replay the device launches all kernels of
 * the step without the host (CUDA graphs). A program that trains on a GPU includes this header.
 *
 *     tg_graph *g = tg_graph_new(ctx, step, &state);         // records the step and runs it once
 *     for (int i = 1; i < steps; i++) {
 *         tg_write(ids, batch(i), bytes);                    // fills the input tensors that the step has recorded
 *         tg_graph_replay(g);                                // runs one more step; tg_item(loss) then reads its loss
 *     }
 *
 * A program that replays a step computes the same bits as one that calls fn each time, and it may do both in turn. Each
 * replay continues the random streams from their present state. Random draws by key (tg_key_open) are those of the
 * program's current step, which the last tg_draws_step has begun. If keys were open around tg_graph_new, the keys that
 * are open around tg_graph_replay take their place. After each replay, gradients, and tensors of the step that tg_keep
 * holds, have their new values.
 *
 * While the step is recorded, a call that a replay could not repeat fails with TG_ERR_UNSUPPORTED, and the error names
 * the call. Such calls are, for example:
 * - reads of values by the host: tg_item, tg_read, tg_optim_clip, tg_optim_norm, tg_average_apply, tg_lbfgs_step;
 * - writes of values by the host: tg_write, tg_from_host, tg_input;
 * - calls that set, add or remove a random stream, such as tg_rng_set, and tg_draws_step;
 * - exports, and uses of imported tensors (dlpack.h);
 * - calls that pin memory or give tensors other memory: tg_pin, tg_rehome, tg_module_cast;
 * - the asynchronous copies tg_upload and tg_download (work.h). Outside of the step, such a copy may run in parallel
 *   with a replay if the step does not use its tensors.
 *
 * A replay has the shapes of the recording, and repeats the decisions that the host took while it recorded. Run one or
 * two steps without capture first, so that whatever lives longer than a step, such as gradients and named buffers,
 * exists already.
 */
#ifndef TAPEGRAD_CAPTURE_H
#define TAPEGRAD_CAPTURE_H

#include <tapegrad/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_graph tg_graph;

/* Performs one step. Calls fn(state, ctx), and records the work of the device instead of running it. Then runs the
 * recorded work once. Never returns NULL; on an error returns an inert graph, whose replays fail. If fn returns an
 * error and the context has none, the call fails with TG_ERR_CALLBACK. state must live as long as the graph.
 *
 * fn may do everything that a training step does, except the calls above, and may reset its tapes. On a device that
 * records, only tg_graph_new calls fn, and replays do not. So if fn changes a variable of the program, such as a
 * counter, the variable changes only once. fn must close the keys and join the forks of random streams that it opens; a
 * device that records checks this (TG_ERR_STATE). If keys are open around the call, fn may draw in at most 256 keys on
 * such a device (TG_ERR_UNSUPPORTED).
 *
 * The memory that the step takes belongs to the graph until tg_graph_free. Until then, other memory that the step uses,
 * such as parameters and inputs, is not reused either, even if its tensors are dropped.
 *
 * If fn or the recording fails, the device has run nothing. Random streams and gradients are as before the call. The
 * tensors that fn made are discarded, and the caller must reset the tapes that fn has used.
 *
 * On device "meta", and on devices that work in the memory of the host, such as "cpu", nothing is recorded: this call
 * and every replay call fn. If fn then fails, what it did before the error remains done. On any other device that
 * cannot record, the call fails with TG_ERR_UNSUPPORTED. Captures do not nest (TG_ERR_STATE); this is detected only on
 * a device that records. A context on such a device has at most 255 graphs at a time (TG_ERR_MEMORY); each slot of a
 * captured module (tg_captured_new) counts as one.
 */
TG_API tg_graph *tg_graph_new(tg_ctx *ctx, tg_status (*fn)(void *state, tg_ctx *ctx), void *state);

/* Runs the step once more. On a device that records, a call that fails has not run this step, unless a communicator of
 * the step has failed during the call: the step may then have run in part, and what is in the memory that it writes is
 * undefined. Such a device finds bad data, such as an index out of range, only after the call has returned. So
 * TG_ERR_DATA may be about data of an earlier step.
 *
 * On a device that records, fails with TG_ERR_STATE if a replay would not do what a call of fn would do now:
 * - a parameter has a gradient but had none when the step was recorded, or the reverse, and the step adds to that
 *   gradient or reads it without zeroing it first;
 * - the step writes a tensor that a tape has saved for a backward outside of the step;
 * - tg_rng_fork or tg_rng_join has selected another random stream than during the recording, or a random stream of the
 *   step was removed;
 * - the step draws by key, and one of its keys has been drawn from since the last tg_draws_step, also by a replay. The
 *   key that is open around the replay does not count until it is closed, because its draws go on;
 * - the step draws, and keys are open now, but none was open around tg_graph_new, or the reverse;
 * - the step draws by key, no key was open around tg_graph_new, and tg_rng_set has changed the stream number of its
 *   random stream.
 *
 * Also fails with TG_ERR_STATE within a step that is being recorded. If the step has collectives, every rank of their
 * communicators must replay. Fails with TG_ERR_ABORTED if a communicator of the step was freed, aborted or recovered;
 * capture the step again.
 */
TG_API tg_status tg_graph_replay(tg_graph *g);
/* Frees the graph. g may be NULL. The memory of the graph returns to the context, except memory of tensors that have
 * not ended, such as those of tg_keep. When the context ends, it frees the graphs that are left. If fn calls this for
 * its own graph, nothing is freed, and TG_ERR_STATE is recorded in the context. */
TG_API void tg_graph_free(tg_graph *g);

/* What tg_graph_query returns. On a device that does not record, all numbers but steps are 0. */
typedef struct tg_graph_info {
    size_t size;
    int64_t nodes;       /* kernels and copies of one replay on the device */
    int64_t bytes;       /* bytes of device memory that belong to the graph */
    int64_t collectives; /* collectives of one replay */
    int64_t steps;       /* steps run so far, the one of tg_graph_new included */
} tg_graph_info;

#define TG_GRAPH_INFO() ((tg_graph_info){.size = sizeof(tg_graph_info)})
/* Fills *out, which TG_GRAPH_INFO() initializes. */
TG_API tg_status tg_graph_query(const tg_graph *g, tg_graph_info *out);

#ifdef __cplusplus
}
#endif

#endif
