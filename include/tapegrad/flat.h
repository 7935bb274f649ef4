/* Flat buffers of data-parallel training. Gradients are summed in buckets while backward runs (Li et al., PyTorch
 * Distributed, VLDB 2020). The option `zero` says what the ranks divide among themselves: 1 the optimizer's state, 2
 * also the sums of gradients, 3 also the parameters. These are the stages of ZeRO (Rajbhandari et al., SC 2020, arXiv
 * 1910.02054). With zero 3 the next parameters are fetched ahead (Zhao et al., PyTorch FSDP, VLDB 2023). Include this
 * header in a training program with several data-parallel ranks.
 *
 * A step of a program with zero 1:
 *
 *     tg_tensor *const *leaves;
 *     tg_flat *f = tg_flat_new(p, params, n, TG_FLAT(.zero = 1));
 *     int count = tg_flat_leaves(f, &leaves);
 *     tg_optim *o = tg_adamw_new(ctx, leaves, count, NULL);
 *     ...
 *     tg_backward(t, loss);                                // starts the sums of complete buckets
 *     tg_grads_finalize(p, params, n, NULL);               // the leaves have the sums of their elements
 *     tg_optim_step(o);                                    // each rank steps its leaves
 *     tg_flat_gather(f);                                   // starts to send them to all ranks; the next forward waits
 *     tg_optim_zero_grad(o);
 *
 * I, R, P and V are TG_I, TG_R, TG_P and TG_V of placement.h. dp, cp and edp are the axes TG_DP, TG_CP and TG_EDP. The
 * group of a parameter is the set of ranks over which its gradient is summed: edp if the parameter is placed on an axis
 * of the expert grid, else dp and cp together. n stands for the number of its ranks. */
#ifndef TAPEGRAD_FLAT_H
#define TAPEGRAD_FLAT_H

#include <tapegrad/data_parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_flat_opts {
    size_t size;
    /* A bucket is full when it has at least this many elements, 1 or more, with the padding between parameters.
     * TG_AUTO, the default, means max(40e6, 1e6 n), as in Megatron-Core. INT64_MAX means one bucket for each dtype and
     * group, besides those of shared parameters (tg_share). */
    int64_t bucket;
    /* What each rank keeps, and the bytes that an element then takes with a float32 gradient and Adam, without padding.
     * b is the size of an element of the parameter in bytes; 16-bit parameters take 4 bytes more with zero 0, and 4/n
     * more with zero 1 to 3.
     * - 0, the default: all of the optimizer's state. b + 12 bytes.
     * - 1: the optimizer's state of 1/n of the elements. b + 4 + 8/n bytes.
     * - 2: also the sums of gradients of these elements only. b + 12/n bytes, and buckets of gradients in backward.
     * - 3: also the parameters of these elements only. (b + 12)/n bytes, and buckets of gradients and parameters that
     *   are in use. */
    int zero;
    /* The dtype in which gradients travel. TG_DTYPE_DEFAULT, the default, means the dtype in which they are
     * accumulated. TG_BF16 halves the bytes that float32 takes: each addend is rounded. From zero 1 on, an all-to-all
     * takes the place of the reduce-scatter, and each rank adds up the addends of its part in the dtype in which
     * gradients are accumulated. With zero 0 the sum is an all-reduce of bfloat16 (comm.h), so it is rounded too. Other
     * dtypes fail with TG_ERR_DTYPE. */
    tg_dtype wire;
} tg_flat_opts;

#define TG_FLAT_DEFAULTS .size = sizeof(tg_flat_opts), .bucket = TG_AUTO
#define TG_FLAT(...) (&(tg_flat_opts){TG_FLAT_DEFAULTS, __VA_ARGS__})

/* Lays out the gradients of the parameters in params[] in buckets, which are flat buffers that are summed as a whole.
 * From zero 1 on the parameters are laid out too, and become views of buckets. In this comment n is the number of ranks
 * of a group, not the length of params[]. opts may be NULL. Returns NULL on an error. tg_flat_free releases the result,
 * before p's context is freed.
 *
 * The parameters come in the reverse of their order in params, because backward produces their gradients in about that
 * order. Each begins at a multiple of 64 elements, and a bucket ends at a multiple of 128 and of n. A bucket has the
 * parameters of one dtype and one group; a shared one (tg_share) is alone in its bucket. The elements between and after
 * the parameters are padding, which is 0.
 *
 * Each bucket is summed over its group: by an all-reduce or, from zero 1 on, by a reduce-scatter, after which rank r of
 * the group has the sum of part r of n. Backward starts the sum when it has accumulated all gradients of the bucket,
 * also the deferred ones (tg_wgrads), and when the sums of all earlier buckets have started. tg_grads_finalize starts
 * the sums that are left and waits for all. With zero 2 and 3 a bucket of gradients has memory from the first
 * contribution until its sum, and a sum starts when the one before has ended. So at most one bucket is being summed
 * while backward fills others. From the start of a bucket's sum on, reading the gradient of one of its parameters fails
 * with TG_ERR_STATE; read those of the leaves (tg_flat_leaves) after tg_grads_finalize.
 *
 * All ranks start the sums in one order: first those of the newest tg_flat of p, and within a tg_flat in the order in
 * which backward completes the buckets if it goes through params from the end. So every rank must create its tg_flats
 * in the same order. The ranks of a group must give the same options, and parameters of the same dtypes, sizes and
 * order.
 *
 * In addition, tg_grads_finalize makes one all-reduce for each group of each tg_flat, of one float32 for each
 * parameter, which tells whether any rank has a gradient. A parameter that no rank has used keeps its value and its
 * state in the optimizer, unless it is shared. The device decides this; the host reads nothing.
 *
 * Fails with
 * - TG_ERR_ARGUMENT if params[] is empty or has a parameter twice, or if `bucket` or `zero` is out of its range;
 * - TG_ERR_STATE if a parameter is not a leaf of the context that requires a gradient, has a main gradient
 *   (tg_set_main_grad), or is in another tg_flat;
 * - TG_ERR_STATE with zero above 0 if a parameter is not contiguous, or if a node, optimizer, captured step, pin or
 *   other handle uses its bytes;
 * - TG_ERR_STATE if sums of this step have started; create a tg_flat between steps;
 * - TG_ERR_PLACEMENT if a parameter is not R on the axes of its group. */
TG_API tg_flat *tg_flat_new(const tg_parallel *p, tg_tensor *const *params, int n, const tg_flat_opts *opts);
/* Frees the buckets, and discards the gradients in them. The parameters keep their values, with zero 3 only if they are
 * whole (tg_flat_set_whole). Free optimizers of the leaves first. If sums of this step have started, for which other
 * ranks wait, or if parameters wait for tg_flat_gather, frees everything too, but records TG_ERR_STATE. */
TG_API void tg_flat_free(tg_flat *f);
/* Turns the sums in backward on (the default) or off, and returns the previous setting; false if f is NULL. While they
 * are off, backward only accumulates gradients. Turn them off for all micro-batches of a step except the last. A
 * pipeline (pipe.h) does that by itself. With zero 2 and 3 they may stay on, if tg_grads_reduce is called between
 * micro-batches. */
TG_API bool tg_flat_set_reduce(tg_flat *f, bool on);
/* Ends a micro-batch that is not the last of its step, for every tg_flat of p that has zero 2 or 3 and whose sums are
 * on. Starts the sums that backward has not started, waits for all sums, and adds them to those of earlier
 * micro-batches. Buckets of gradients then have no memory between micro-batches, but each bucket is reduce-scattered in
 * every micro-batch. A step is rounded differently than with sums that are off until its last micro-batch, because the
 * sum over ranks comes before the sum over micro-batches.
 *
 * Until tg_grads_finalize the gradients of the leaves are incomplete, so reading them, or a step with them, fails with
 * TG_ERR_STATE; the parameters have no gradient. Does nothing for other tg_flats. Fails with TG_ERR_STATE if the
 * gradient of a parameter of any tg_flat of p is deferred (tg_wgrads). Collective: all ranks call it equally often. */
TG_API tg_status tg_grads_reduce(const tg_parallel *p);

/* Sets *out to the leaves of f, which are the tensors that optimizers step. Returns their number, which equals the
 * number of parameters. If f is NULL, sets *out to NULL and returns 0. Leaf i belongs to parameter i of tg_flat_new.
 * The array and the leaves belong to f. out may be NULL.
 *
 * With zero 0 the leaves are the parameters. Otherwise leaf i is a view with 1 dim of those elements of parameter i
 * that lie in this rank's part of the bucket, and is named like "h.0.fc.weight[128:192]". It may be empty. It is V on
 * the axes of the group and where the parameter is V, so norms count each element once. Its gradient is present from
 * tg_grads_finalize on; the parameter then has none (tg_has_grad is false). Zeroing the gradient of one of the two
 * zeroes that of the other. tg_optim_no_decay_1d goes by the dims of the parameter, and tg_shards_add_optim saves the
 * state under the parameter's key, so that any number of ranks can load it. */
TG_API int tg_flat_leaves(tg_flat *f, tg_tensor *const **out);
/* If x is a leaf of a tg_flat with zero above 0, returns true and sets *param to the parameter, and *begin and *end to
 * the range of the parameter's row-major elements that x has. Otherwise returns false, and sets *param to x and the
 * range to all elements of x; to none if x is NULL or not alive. param, begin and end may be NULL. */
TG_API bool tg_range_of(const tg_tensor *x, tg_tensor **param, int64_t *begin, int64_t *end);

/* With zero 1 and 2, sends each rank's part of every bucket of parameters to the other ranks of its group, by one
 * all-gather for each bucket. All of them start at once, in the order in which forward needs them. Reading a parameter
 * waits for its own bucket only.
 *
 * From tg_optim_step of a leaf until this call, the parameters of its bucket have values of different steps, and
 * reading one fails with TG_ERR_STATE. Call it after the step; the buckets then arrive while other work runs. In a
 * captured step, call it first instead; the buckets then arrive while the first layers run. After tg_parallel_recover,
 * which may have ended gathers, call it before parameters are read.
 *
 * With zero 3 parameters are gathered when they are read, and the call only discards those that were gathered before.
 * Call it after writes to leaves; after tg_optim_step it is not needed. With zero 0 does nothing. Collective: every
 * rank of p calls it. */
TG_API tg_status tg_flat_gather(tg_flat *f);

/* ---- Parameters that are divided over the ranks (zero 3) ----
 *
 * When a parameter is read and its bucket is not present, the bucket is gathered by one all-gather: before forward,
 * before backward and, if layers are recomputed, before that. So reading a parameter is collective over its group: in
 * each micro-batch and in evaluation, all ranks must read the buckets in the same order, or the read fails with
 * TG_ERR_MISMATCH or at the deadline (comm.h). If only some ranks use a parameter, its bucket must have another
 * parameter that all ranks read at that time; otherwise do not use zero 3 for it.
 *
 * Gathered buckets are discarded
 * - in backward, when a gradient arrives that is of another bucket than the one before: all except its bucket and the
 *   next one;
 * - in tg_grads_finalize, tg_optim_step and tg_flat_gather;
 * - before a module that tg_flat_watch names.
 *
 * Their parameters must not be pinned or exported then (TG_ERR_STATE). Writing a parameter fails with TG_ERR_STATE,
 * except while parameters are whole (tg_flat_set_whole). tg_shards_add_module lists this rank's ranges of the
 * parameters, and tg_shards_load loads them. A step in which parameters are gathered cannot be captured
 * (TG_ERR_UNSUPPORTED). tg_flat_free leaves parameters without values (TG_ERR_DISCARDED), unless they are whole.
 *
 * After a recovery without some ranks (tg_parallel_recover), every tg_flat with zero above 0 fails with TG_ERR_STATE:
 * free it and its optimizer, create others, and load a checkpoint. With zero 3, create the model again, too. */

/* Adds n modules, such as the layers of a model, each of which uses its parameters together. Before each run of one of
 * them, the buckets with its parameters and the bucket that is used next start to be gathered, and all others are
 * discarded. So the parameters of one module and one more bucket are present. Without this call, a forward run keeps
 * all parameters that it has read until backward. The modules must outlive f. Fails with TG_ERR_ARGUMENT if a module is
 * NULL or, with zero 3, has no parameter of f, and with TG_ERR_HANDLE if it is of another context; then it adds none of
 * the modules. With zero 0 to 2 it adds none either. */
TG_API tg_status tg_flat_watch(tg_flat *f, tg_module *const *units, int n);
/* If on is true, gathers all parameters, and keeps them whole. Then each rank may read parameters by itself, for
 * example to save them, and all ranks may write the same values to them; writing leaves, as a step does, fails with
 * TG_ERR_STATE. If on is false, which is the setting at first and after a recovery, keeps this rank's ranges of the
 * present values, and discards the rest. With zero 0 to 2 does nothing. Collective: every rank of p calls it. */
TG_API tg_status tg_flat_set_whole(tg_flat *f, bool on);

/* Writes a table of the buckets as text (TG_TEXT) or JSON (TG_JSON), from zero 1 on with the range of each parameter
 * that each rank has. Writes at most n bytes, terminated by 0, and returns the length of the whole text. buf may be
 * NULL. Returns 0 if f is NULL. */
TG_API size_t tg_flat_text(const tg_flat *f, tg_format format, char *buf, size_t n);

#ifdef __cplusplus
}
#endif

#endif
