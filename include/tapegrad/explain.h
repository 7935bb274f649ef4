/* Debugging of a tape: a text that explains a gradient, a list of the nodes, a search for NaN, and observers of ops. */
#ifndef TAPEGRAD_EXPLAIN_H
#define TAPEGRAD_EXPLAIN_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Explains the gradient that x gets when root is differentiated. The text says one of these:
 * - There is a gradient: its range, how many of its elements are 0, and up to four of the ops through which it came.
 * - All its elements are zero: the op or hook nearest to root that made it zero, with the range of the op's input.
 * - Some elements are NaN or infinite: where they became so.
 * - There is none: x requires no gradient, or where the path from x to root ends. Of ops that ran without recording
 *   (no-grad mode, comparisons, tg_detach) the text can only say that they ran.
 *
 * root may have any shape; the gradient starts there as ones, or as this rank's share of ones if root is REPLICATED on
 * an axis (placement.h). The call runs a backward of its own, which calls the hooks of tg_on_grad, but accumulates no
 * gradient and releases nothing. It needs the saved tensors of the nodes. So make the call before tg_backward, or set
 * the option retain of tg_backward_with. The gradients of all tensors between x and root stay on the tape until its
 * reset. If collective ops are between x and root, every rank must make the call.
 *
 * Writes at most n bytes to buf, including the terminating 0, and returns the length of the whole text without that 0.
 * buf may be NULL, to get only the length. Returns 0 on an error, such as a tensor that was dropped or that belongs to
 * another context or tape. */
TG_API size_t tg_explain_grad(tg_tape *t, tg_tensor *root, tg_tensor *x, char *buf, size_t n);

/* ---- The nodes of a tape ---- */

/* Writes the nodes of a tape in one of these formats; TG_SVG fails with TG_ERR_ARGUMENT:
 * - TG_TEXT: one row per node, with op, saved bytes, FLOPs, times in microseconds, shapes, and call site.
 * - TG_JSON: the same with times in seconds, and with the ids of the tensors that connect nodes.
 * - TG_DOT: a graph in the language of Graphviz.
 *
 * The times of a node are 0 unless tg_tape_set_timing was on when it was recorded. They are times of the host; a device
 * that queues work may run it later. Writes at most n bytes to buf, including the terminating 0, and returns the length
 * of the whole text without that 0; 0 on an error. buf
 * may be NULL. */
TG_API size_t tg_tape_dump(tg_tape *t, tg_format format, char *buf, size_t n);

/* ---- Memory ---- */

/* Writes the memory of the context as a JSON object, with sizes in bytes. Its members are "device" (a name), "live",
 * "peak", "reserved", "workspace" (tg_memory_info), "live_by" and "peak_by" (objects with the bytes of each category),
 * and "blocks". "blocks" is an array of the blocks, at most 4,096, that were alive near the last peak while
 * tg_memory_set_trace was on, largest first; it is empty if the trace was never on. A block has its "bytes" and
 * "category", the "name" of its tensor, and the "op", "scope" and "site" that made it; a text that is not known is "".
 * The allocation that reached the peak was not yet a tensor; its "name" says so in parentheses. Writes at most n bytes
 * to buf, including the terminating 0, and returns the length of the whole text without that 0; 0 on an error. buf
 * may be NULL. */
TG_API size_t tg_memory_json(tg_ctx *ctx, char *buf, size_t n);

/* ---- NaN and infinities ---- */

enum { TG_FIND_NAN = 1, TG_FIND_INF = 2 };
/* Turns on a search for NaN and infinities. kinds is TG_FIND_NAN, TG_FIND_INF, or their sum (TG_ERR_ARGUMENT); 0, the
 * default, turns the search off. The setting outlasts resets of the tape, and holds in recomputations too.
 *
 * An op then fails with TG_ERR_DATA if its result has such values. Its backward fails with TG_ERR_DATA if a gradient
 * that it gets, adds to or computes has them. The message names the op, its call site and, if there are several, the
 * rank. It gives the minimum and the maximum, and the number of NaN and infinities, of the result (or the gradient) and
 * of the first inputs of the op. It also says if an input, an output gradient or an accumulated gradient had such
 * values before the op ran.
 *
 * During the search the values of every float result except views are examined, and the host waits for the outcome. So
 * steps take longer, asynchronous work is waited for at once, and capturing a step fails with TG_ERR_UNSUPPORTED. On
 * device "meta" there is no search. */
TG_API tg_status tg_tape_find_nan(tg_tape *t, int kinds);

/* ---- Observing ops ---- */

/* The forward or backward of an op that has just run. The event and everything in it are valid until the observer
 * returns. */
typedef struct tg_op_event {
    size_t size;
    const char *op; /* name of the op */
    bool backward;  /* true: backward has run; false: forward */
    /* The number of the op among those that were observed in forward on its tape since the last reset, from 0. A
     * backward has the number of its forward; -1 means that the op was recorded before observing began. */
    int64_t number;
    int n_in, n_out;
    tg_tensor *const *input, *const *out; /* absent inputs are NULL; in backward the memory may have been released */
    /* In backward: the gradients of the n_out outputs, and those of the n_in inputs as far as they have been summed,
     * which may include what a leaf has accumulated before. An entry is NULL if there is no gradient, or if an
     * asynchronous operation still fills it. In forward both arrays are NULL. */
    tg_tensor *const *gout, *const *gin;
    const void *call; /* for tg_op_event_site and tg_op_event_node */
    /* When the forward or backward began and ended, in seconds of the system's monotonic clock. A device that queues
     * work may run it later. Both are 0 for the forward of a view, which does no work. */
    double began, ended;
} tg_op_event;

/* An observer. t is the observed tape, or the tape of a recomputation in it. The observer may read the tensors of the
 * event. It may also run ops on t; they are in no-grad mode, and are not observed. If it returns an error and the
 * context has none, the op fails with TG_ERR_CALLBACK. */
typedef tg_status (*tg_observe_fn)(void *user, tg_tape *t, const tg_op_event *event);
/* Makes the tape call fn(user, ...) after the forward and after the backward of every op from now on, views included. A
 * tape has one observer, which outlasts resets of the tape; another call replaces it, and fn NULL ends it. */
TG_API tg_status tg_tape_observe(tg_tape *t, tg_observe_fn fn, void *user);
/* Writes where the op was recorded: the path of scopes and the call site, such as "layers.2, called from model.c:31".
 * Writes at most n bytes to buf, including the terminating 0, and returns the length of the whole text without that 0.
 * buf may be NULL. Returns 0 if event is NULL. */
TG_API size_t tg_op_event_site(const tg_op_event *event, char *buf, size_t n);

/* Returns the node whose backward the event shows, for tg_node_flops and the like (op.h). Returns NULL for a forward,
 * whose node, if there is one, is recorded afterward, and if event is NULL. */
TG_API const tg_node *tg_op_event_node(const tg_op_event *event);

#ifdef __cplusplus
}
#endif

#endif
