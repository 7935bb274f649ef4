/* Debugging of a tape: texts that explain gradients and list nodes, a search for NaN, and an observer of every op. */
#ifndef TAPEGRAD_EXPLAIN_H
#define TAPEGRAD_EXPLAIN_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Explains the gradient of x when root is differentiated. The text says one of these:
 * - There is a gradient: its size, and the ops through which it came.
 * - It is zero: which op or hook nearest to root made it zero, with the range of that op's input.
 * - It is NaN or infinite: where it became so.
 * - There is none: where the path from x to root ends. Ops that ran without recording (no-grad mode, comparisons,
 *   tg_detach) are only known to have run.
 *
 * root may have any shape; its cotangent is ones. The call runs a backward of its own, including hooks, that
 * accumulates no gradient and frees nothing; so the saved tensors of the nodes must still exist. Writes at most n
 * bytes of text, terminated by 0, and returns the length of the whole text; 0 on error, such as a dropped tensor or
 * one of another context or tape. */
TG_API size_t tg_explain_grad(tg_tape *t, tg_tensor *root, tg_tensor *x, char *buf, size_t n);

/* ---- The nodes of a tape ---- */

/* Writes the nodes of a tape as text (a row for each node: op, shapes, saved bytes, FLOPs, times in microseconds, call
 * site), as JSON (times in seconds; also the ids of the tensors that connect nodes), or as DOT. Times are 0 without
 * tg_tape_set_timing. Writes at most n bytes, terminated by 0, and returns the length of the whole text. */
TG_API size_t tg_tape_dump(tg_tape *t, tg_format format, char *buf, size_t n);

/* ---- NaN and infinities ---- */

enum { TG_FIND_NAN = 1, TG_FIND_INF = 2 };
/* Makes an op that produces a NaN or an infinity in forward or backward fail with TG_ERR_DATA. The message has
 * the op, its call site, this rank, and the minimum, the maximum and the numbers of NaN and infinities of its result
 * (or of the gradient) and of its inputs. It also says if an input, a cotangent or an accumulated gradient had them
 * before.
 *
 * kinds is a sum of the constants above; 0 turns the search off. The setting outlasts resets of the tape and holds in
 * recomputations too. The host reads every result: steps take longer, asynchronous work is waited for at once, and
 * capturing a step is refused. */
TG_API tg_status tg_tape_find_nan(tg_tape *t, int kinds);

/* ---- Observing ops ---- */

/* An op that has just run forward or backward. The event and everything in it are valid until the observer returns. */
typedef struct tg_op_event {
    size_t size;
    const char *op; /* name */
    bool backward;  /* false: forward */
    int64_t number; /* counts the ops that were observed in forward since the tape's reset, from 0; -1: the op was
                       recorded before it could be observed */
    int n_in, n_out;
    tg_tensor *const *in, *const *out; /* NULL if absent; in backward their memory may have been freed */
    /* In backward: the gradient of each output, and the sum so far for each input. NULL: there is none, or an
     * asynchronous operation is still filling it. */
    tg_tensor *const *gout, *const *gin;
    const void *call; /* for tg_op_event_site */
} tg_op_event;

/* An observer. It may read the event's tensors and record ops in no-grad mode, which are not observed. If it returns
 * another status than TG_OK the op fails with TG_ERR_CALLBACK. t is the observed tape, or that of a recomputation in
 * it. */
typedef tg_status (*tg_observe_fn)(void *user, tg_tape *t, const tg_op_event *event);
/* Calls fn after every op of the tape from now on, including views. NULL as fn ends this. */
TG_API tg_status tg_tape_observe(tg_tape *t, tg_observe_fn fn, void *user);
/* Writes the path of scopes and the call site of the op, such as "layers.2, called from model.c:31". Returns the
 * length of the whole text. */
TG_API size_t tg_op_event_site(const tg_op_event *event, char *buf, size_t n);

#ifdef __cplusplus
}
#endif

#endif
