/* Debugging of a tape: a text that explains a gradient, a list of the nodes, a search for NaN, and observers of ops. */
#ifndef TAPEGRAD_EXPLAIN_H
#define TAPEGRAD_EXPLAIN_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Explains the gradient that x gets when root is differentiated. The text says one of these:
 * - There is a gradient: its size, and the ops through which it came.
 * - It is zero: the op or hook nearest to root that made it zero, with the range of the op's input.
 * - It is NaN or infinite: where it became so.
 * - There is none: where the path from x to root ends. Of ops that ran without recording (no-grad mode, comparisons,
 *   tg_detach) the text can only say that they ran.
 *
 * root may have any shape; the gradient starts there as ones. The call runs a backward of its own, which calls hooks
 * but accumulates no gradient and releases nothing. It needs the saved tensors of the nodes, so call it before the
 * backward that releases them, or run that backward with retain. Writes at most n bytes, including the terminating 0,
 * and returns the length of the whole text. Returns 0 on an error, such as a tensor that was dropped or that belongs to
 * another context or tape. */
TG_API size_t tg_explain_grad(tg_tape *t, tg_tensor *root, tg_tensor *x, char *buf, size_t n);

/* ---- The nodes of a tape ---- */

/* Writes the nodes of a tape in one of these formats; TG_SVG fails with TG_ERR_ARGUMENT:
 * - TG_TEXT: one row per node, with op, shapes, saved bytes, FLOPs, times in microseconds, and call site.
 * - TG_JSON: the same with times in seconds, and with the ids of the tensors that connect nodes.
 * - TG_DOT: a graph.
 *
 * Times are 0 unless tg_tape_set_timing is on. Writes at most n bytes, including the terminating 0, and returns the
 * length of the whole text. */
TG_API size_t tg_tape_dump(tg_tape *t, tg_format format, char *buf, size_t n);

/* ---- Memory ---- */

/* Writes the memory in use as an object of JSON, in bytes. Its members are "device", "live", "peak", "reserved",
 * "workspace", "live_by" and "peak_by" (objects with the bytes of each category) and "blocks". If tg_memory_set_trace
 * is on, "blocks" is an array of the blocks that were alive near the peak, largest first; otherwise it is empty. A
 * block has its "bytes" and "category", the "name" of its tensor, and the "op", "scope" and "site" that made it; a text
 * that is not known is "". Writes at most n bytes, including the terminating 0, and returns the length of the whole
 * text; 0 on an error. */
TG_API size_t tg_memory_json(tg_ctx *ctx, char *buf, size_t n);

/* ---- NaN and infinities ---- */

enum { TG_FIND_NAN = 1, TG_FIND_INF = 2 };
/* Turns a search for NaN and infinities on. kinds is TG_FIND_NAN, TG_FIND_INF, or their sum; 0 turns the search off.
 * The setting outlasts resets of the tape, and holds in recomputations too.
 *
 * An op whose result, or whose gradient in backward, has such values then fails with TG_ERR_DATA. The message names the
 * op, its call site and this rank. It gives the minimum and the maximum, and the number of NaN and infinities, of the
 * result (or the gradient) and of the inputs of the op. It also says if an input, an output gradient or an accumulated
 * gradient had such values before the op ran.
 *
 * During the search the host reads every result. So steps take longer, asynchronous work is waited for at once, and
 * capturing a step fails with TG_ERR_UNSUPPORTED. */
TG_API tg_status tg_tape_find_nan(tg_tape *t, int kinds);

/* ---- Observing ops ---- */

/* The forward or backward of an op that has just run. The event and everything in it are valid until the observer
 * returns. */
typedef struct tg_op_event {
    size_t size;
    const char *op; /* name of the op */
    bool backward;  /* true: backward has run; false: forward */
    /* The number of the op among those that were observed in forward since the reset of the tape, from 0. -1 means that
     * the op was recorded before observing began. */
    int64_t number;
    int n_in, n_out;
    tg_tensor *const *input, *const *out; /* absent inputs are NULL; in backward the memory may have been released */
    /* In backward: the gradient of each output, and the sum so far of the gradient of each input. NULL means that there
     * is no gradient, or that an asynchronous operation still fills it. */
    tg_tensor *const *gout, *const *gin;
    const void *call; /* for tg_op_event_site and tg_op_event_node */
    /* When the forward or backward began and ended, in seconds of the system's monotonic clock. A device that queues
     * work may run it later. Both are 0 for the forward of a view, which does no work. */
    double began, ended;
} tg_op_event;

/* An observer. t is the observed tape, or the tape of a recomputation in it. The observer may read the tensors of the
 * event, and may run ops, but only in no-grad mode; such ops are not observed. If it returns another status than TG_OK,
 * the op fails with TG_ERR_CALLBACK. */
typedef tg_status (*tg_observe_fn)(void *user, tg_tape *t, const tg_op_event *event);
/* Makes the tape call fn(user, ...) after every op from now on, views included. fn NULL ends this. */
TG_API tg_status tg_tape_observe(tg_tape *t, tg_observe_fn fn, void *user);
/* Writes where the op was recorded: the path of scopes and the call site, such as "layers.2, called from model.c:31".
 * Writes at most n bytes, including the terminating 0, and returns the length of the whole text. */
TG_API size_t tg_op_event_site(const tg_op_event *event, char *buf, size_t n);

/* Returns the node whose backward the event shows, for tg_node_flops and the like (op.h). Returns NULL for a forward,
 * whose node is recorded afterward, and if event is NULL. */
TG_API const tg_node *tg_op_event_node(const tg_op_event *event);

#ifdef __cplusplus
}
#endif

#endif
