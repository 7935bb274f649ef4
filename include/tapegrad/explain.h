/* Seeing what happened: words about a tape, for people. */
#ifndef TAPEGRAD_EXPLAIN_H
#define TAPEGRAD_EXPLAIN_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why x has the gradient that it has when root is differentiated: that it is there, how large and through which ops it
 * came; that it is zero, and which op or hook, nearest to root, made it so, with the range of that op's input; that it
 * is NaN or infinite, and where it became so; or that there is none, and where the way from x to root ends, as far as
 * ops were recorded: of those that ran without (no-grad mode, comparisons, tg_detach) it knows that they were there.
 * root may have any shape: it is seeded with ones. Runs a backward of its own, hooks too, which accumulates nowhere and
 * consumes nothing; what the nodes saved must be there. Writes at most n bytes of text, 0 at the end, and returns how
 * many the whole has; 0 after an error, which is recorded: a tensor that is dead, of another context or tape. */
TG_API size_t tg_explain_grad(tg_tape *t, tg_tensor *root, tg_tensor *x, char *buf, size_t n);

/* ---- The nodes of a tape ---- */

/* One row a node: op, shapes, saved bytes, FLOPs, times, call site (JSON: by tensors' ids what feeds what); or DOT. */
TG_API size_t tg_tape_dump(tg_tape *t, tg_format format, char *buf, size_t n);

/* ---- Where numbers end ---- */

enum { TG_FIND_NAN = 1, TG_FIND_INF = 2 };
/* From now on the first op that makes a NaN (an infinity), forward or in its backward, is TG_ERR_DATA: the message has
 * the op, its call, this rank, and the least, the greatest and the number of NaN and infinities of its result, or of
 * that input's gradient, and of its inputs. Where an input, a seed or an accumulated gradient had them before, it says
 * so. kinds: a sum of the above; 0: no longer. Holds for recomputations within the tape too, and over its resets. The
 * host reads along: a step takes longer, works are waited for at once, and a step that is captured is refused. */
TG_API tg_status tg_tape_find_nan(tg_tape *t, int kinds);

/* ---- Watching ---- */

/* An op that has just run, forward or backward. All of it is good until the watcher returns. */
typedef struct tg_op_event {
    size_t size;
    const char *op;
    bool backward;
    int64_t number; /* of the op among those of its tape that a watcher saw forward since the reset, from 0; -1: it was
                       recorded before */
    int n_in, n_out;
    tg_tensor *const *in, *const *out; /* NULL where absent; in a backward their bytes may be gone */
    /* In a backward: what came for each output, and the sum so far for each input; NULL where there is none, or a work
     * still fills it. */
    tg_tensor *const *gout, *const *gin;
    const void *call;
} tg_op_event;

/* May read what it is shown and record no-grad ops, which are not shown in turn. Another status than TG_OK ends the op
 * with TG_ERR_CALLBACK. t is the tape itself, or that of a recomputation within it. */
typedef tg_status (*tg_observe_fn)(void *user, tg_tape *t, const tg_op_event *seen);
/* fn sees every op from now on, views too; NULL: nobody does. */
TG_API tg_status tg_tape_observe(tg_tape *t, tg_observe_fn fn, void *user);
/* The path of scopes and the call site: "layers.2, called from model.c:31". */
TG_API size_t tg_op_event_site(const tg_op_event *seen, char *buf, size_t n);

#ifdef __cplusplus
}
#endif

#endif
