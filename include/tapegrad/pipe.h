/* Pipelines: the layers of a model are divided over the ranks of axis pp, and the micro-batches of a step follow each
 * other through them.
 *
 * Each rank of the axis is a stage. A stage holds one or more chunks of consecutive layers. Chunks are numbered within
 * their stage. A part is one chunk of one stage; parts are numbered over the whole model, in the order in which the
 * activations go through them: part 0 is chunk 0 of stage 0, part 1 is chunk 0 of stage 1, and so on; in general
 * part = chunk * stages + stage.
 *
 * A schedule says in which order each stage computes. A plan is a schedule that has been checked before it runs
 * (tg_pipe_plan_new). docs/pipelines.md explains the schedules. */
#ifndef TAPEGRAD_PIPE_H
#define TAPEGRAD_PIPE_H

#include <tapegrad/parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Plans ---- */

/* The schedules. m is the number of micro-batches, p the number of stages, and r the number of the stage whose list is
 * described. F, B and W are the acts of items (tg_pipe_act).
 *
 * - TG_PIPE_GPIPE (Huang et al., arXiv 1811.06965): all forwards, then all backwards, in the order of the
 *   micro-batches; with several chunks in turns, as in INTERLEAVED. A stage keeps the activations of all
 *   micro-batches.
 * - TG_PIPE_1F1B (PipeDream-flush; Narayanan et al., arXiv 2006.09503): min(p - 1 - r, m) forwards, then pairs of one
 *   forward and one backward, then the remaining backwards. Takes the time of GPipe if all stages take the same time
 *   and hop is 0; stage r keeps the activations of at most p - r micro-batches.
 * - TG_PIPE_INTERLEAVED (Narayanan et al., arXiv 2104.04473): 1F1B over stages with several chunks. The micro-batches
 *   are divided into turns of `group` micro-batches. Each turn goes through all chunks of a stage: forward from the
 *   first chunk to the last, backward from the last to the first. With v chunks, and t micro-batches in the longest
 *   turn, a stage first runs min(2 * (p - 1 - r) + (v - 1) * t, m * v) forwards. If m >= p, all parts take the same
 *   time and hop is 0, the stages are idle for 1/v of the time for which 1F1B is idle. They send v times as many
 *   messages, the first and the last stage 2 * v - 1 times as many.
 * - TG_PIPE_ZB_H1 (Qi et al., arXiv 2401.10241): 1F1B in which B leaves the gradients of weights to W, so that the
 *   stage before need not wait for them. W of micro-batch j runs right after B of micro-batch j + r; the last r of
 *   them run at the end. Every stage keeps the activations of at most p micro-batches.
 * - TG_PIPE_FORWARD: only forwards, for evaluation.
 * - TG_PIPE_CUSTOM: lists of the caller's own. */
typedef enum tg_pipe_kind {
    TG_PIPE_GPIPE,
    TG_PIPE_1F1B,
    TG_PIPE_INTERLEAVED,
    TG_PIPE_ZB_H1,
    TG_PIPE_FORWARD,
    TG_PIPE_CUSTOM
} tg_pipe_kind;

/* What an item computes. TG_PIPE_F is the forward of a part for one micro-batch, and TG_PIPE_B its backward. If the
 * lists have items TG_PIPE_W, then B leaves the weight gradients of linear layers to them (tg_tape_defer) and computes
 * all other gradients; if not, B computes all. */
typedef enum tg_pipe_act { TG_PIPE_F, TG_PIPE_B, TG_PIPE_W } tg_pipe_act;

typedef struct tg_pipe_item {
    uint8_t act;   /* tg_pipe_act */
    uint8_t chunk; /* from 0 to chunks - 1 */
    int32_t micro; /* from 0 to micros - 1 */
} tg_pipe_item;

typedef struct tg_pipe_plan_opts {
    size_t size;
    tg_pipe_kind kind;
    int stages; /* 1 or more */
    /* Number of chunks of each stage, 1 to 256; 1 by default. TG_PIPE_1F1B and TG_PIPE_ZB_H1 take only 1. */
    int chunks;
    int micros; /* number of micro-batches in a step, 1 or more */
    /* Number of micro-batches in a turn through the chunks: `stages` or more; TG_AUTO, the default, means `stages`. The
     * kinds GPIPE, INTERLEAVED and FORWARD have turns; the others take only TG_AUTO. If micros is not a multiple of
     * group, the rest makes a turn of its own if it has at least `stages` micro-batches, as in Megatron-Core. A smaller
     * rest, which Megatron-Core refuses, is spread over the other turns, because in so short a turn the first stage
     * would wait for the last one. If micros is less than group, there is one turn. */
    int group;
    /* The times that F, B and W of each part take, in any unit. Each is an array of stages * chunks finite numbers, 0
     * or more, indexed by part, or NULL, which means 1 / chunks for every part. If the schedule has no W, its B takes
     * b + w. */
    const double *f, *b, *w;
    double hop; /* the time from the end of an item to the arrival of its message at another stage, >= 0 */
    /* Required for TG_PIPE_CUSTOM; must be NULL for other kinds. items[s] are the n_items[s] items of stage s, in the
     * order in which the stage computes them. */
    const tg_pipe_item *const *items;
    const int *n_items;
} tg_pipe_plan_opts;
#define TG_PIPE_PLAN_DEFAULTS .size = sizeof(tg_pipe_plan_opts), .chunks = 1, .group = TG_AUTO
#define TG_PIPE_PLAN(...) (&(tg_pipe_plan_opts){TG_PIPE_PLAN_DEFAULTS, __VA_ARGS__})

/* A schedule that has been checked, with the times of its items. It does not change after it is made. */
typedef struct tg_pipe_plan tg_pipe_plan;

/* Creates a plan, and copies the arrays of opts. Checks the lists of all stages, also those of the built-in schedules,
 * as follows:
 * - Each part has one F for every micro-batch. If any list has a B, each part also has one B for every micro-batch,
 *   after its F. If any list has a W, each part also has one W for every micro-batch, after its B, and the W of a stage
 *   are in the order of its B.
 * - Stages receive messages in the order in which their neighbors send them.
 * - No items wait for each other in a circle, which would be a deadlock. An item waits for those before it in its list,
 *   and for the item whose message it receives: F of a part for F of the part before, B of a part for B of the part
 *   after.
 *
 * If a list breaks a rule or an option is out of its range, fails with TG_ERR_ARGUMENT. The message names items by
 * their act, micro-batch and, if stages have several chunks, chunk: "B3", or "B3.1" for chunk 1.
 *
 * Returns NULL on an error. Free the plan before ctx. */
TG_API tg_pipe_plan *tg_pipe_plan_new(tg_ctx *ctx, const tg_pipe_plan_opts *opts);
TG_API void tg_pipe_plan_free(tg_pipe_plan *p);

/* What a plan costs (tg_pipe_plan_query). */
typedef struct tg_pipe_report {
    size_t size;
    double makespan; /* the time from the first item of the plan to the end of its last item, over all stages */
    double ideal;    /* the time for which the stage computes: the sum of the times of its items */
    double bubble;   /* fraction of the makespan in which the stage is idle: 1 - ideal / makespan; 0 if makespan is 0 */
    /* The largest number of micro-batches whose activations the stage keeps at one time. Each part counts by itself, so
     * with v chunks a micro-batch counts up to v times. Activations are kept from F to W, or to B if the schedule has
     * no W; a schedule without B keeps them only during F. */
    int peak;
    int waiting; /* the largest number of B at one time whose W has not run; 0 if the schedule has no W */
    /* Number of messages that the stage sends to, and receives from, other stages in a step. All tensors that go from
     * one part to the next for a micro-batch are one message. */
    int64_t sends, receives;
} tg_pipe_report;
#define TG_PIPE_REPORT() ((tg_pipe_report){.size = sizeof(tg_pipe_report)})

/* Fills *out, which TG_PIPE_REPORT() initializes, with the costs of one stage, or of the whole plan if stage is
 * TG_NONE. For the whole plan, ideal, peak and waiting are each the largest of any stage, bubble is the mean over the
 * stages, and sends and receives are sums. Fails with TG_ERR_ARGUMENT if p or out is NULL, or if there is no such
 * stage. */
TG_API tg_status tg_pipe_plan_query(const tg_pipe_plan *p, int stage, tg_pipe_report *out);

/* Writes the plan as a diagram with a row for each stage, over time:
 * - TG_TEXT: characters. The first line gives the time that a column stands for. "-" continues the item to the left,
 *   and "." is idle time. Items begin and end at the nearest column; one shorter than half a column may be missing.
 * - TG_SVG: a picture, which a browser shows.
 *
 * Writes at most n bytes, terminated by 0, and returns the length of the whole text. buf may be NULL if n is 0. If p is
 * NULL, or if the format is another one (TG_ERR_ARGUMENT), returns 0. */
TG_API size_t tg_pipe_plan_text(const tg_pipe_plan *p, tg_format format, char *buf, size_t n);

/* ---- Running a plan ---- */

/* One call of a part: its forward for one micro-batch. tg_pipe_run fills all fields except out[] and aux. */
typedef struct tg_pipe_call {
    size_t size;
    tg_tape *tape; /* records the call; belongs to the pipe, which resets it after B (F if the plan has no B) */
    int micro;     /* the micro-batch, from 0 */
    int chunk;     /* the chunk of this stage, from 0 */
    int part;      /* chunk * stages + stage */
    int parts;     /* number of parts, stages * chunks */
    /* input[] has the tensors that the part before has sent, in the order of tg_pipe_opts.edge. For part 0 input is
     * NULL. out[] has an entry for each tensor of `edge`, which is NULL at the call; fn sets it to a tensor of the tape
     * for the part after. The last part sets only out[0], to its loss, a float of one element. */
    tg_tensor *const *input;
    tg_tensor **out;
    /* A second loss, which fn may set on any part, such as the balance loss of experts: a float of one element.
     * Backward of this part also starts from it, with gradient 1. NULL at the call, which means none. tg_pipe_losses
     * leaves it out. */
    tg_tensor *aux;
} tg_pipe_call;

/* Computes one part for one micro-batch, by recording ops on c->tape. state is that of tg_pipe_run. Returns TG_OK or an
 * error. Must not reset the tape, run or free the pipe, or recover or free its tg_parallel. */
typedef tg_status (*tg_pipe_fn)(void *state, tg_pipe_call *c);

/* One tensor that goes from each part to the next. An example for a transformer of float32, without and with sequence
 * parallelism: {TG_F32, TG_SHAPE(s, b, h), TG_PLACES({TG_DP, TG_V})} and {TG_F32, TG_SHAPE(s / tp, b, h),
 * TG_PLACES({TG_DP, TG_V}, {TG_TP, TG_SHARD(0)})}. */
typedef struct tg_pipe_edge {
    /* A float, whose gradient is sent back, or an integer or bool, which has no gradient. Float8 cannot be sent
     * (TG_ERR_DTYPE). 0 means the context's default dtype. */
    tg_dtype dtype;
    tg_shape shape;        /* of this rank's tensor */
    const tg_place_at *at; /* n_at placements (placement.h); copied. The tensor is I on the axes that are not listed */
    int n_at;
} tg_pipe_edge;

typedef struct tg_pipe_opts {
    size_t size;
    /* The n_edge tensors that go from each part to the next; copied. They are the same between all parts, and every
     * stage declares the same ones. May be NULL if there is one part. */
    const tg_pipe_edge *edge;
    int n_edge;
    /* Sets *out to the shape of edge[i] for a micro-batch, if shapes differ between micro-batches. tg_pipe_run calls it
     * with its own `state`. Must give the same answer on every stage and in every call, because no shapes are sent. The
     * shape in `edge` is then only an example, on which placements are checked. NULL means that all micro-batches have
     * the shape in `edge`. */
    tg_status (*shape)(void *state, int micro, int i, tg_shape *out);
    /* The optimizer whose loss scale multiplies the loss and aux (tg_scale_loss). It must outlive the pipe. NULL means
     * no loss scale. */
    tg_optim *scale;
    /* A stage starts to receive the message of an item this many items before it, 1 or more; 1 by default. A larger
     * number hides a longer delay of messages, and needs more memory for them. */
    int ahead;
} tg_pipe_opts;
#define TG_PIPE_DEFAULTS .size = sizeof(tg_pipe_opts), .ahead = 1
#define TG_PIPE(...) (&(tg_pipe_opts){TG_PIPE_DEFAULTS, __VA_ARGS__})

/* Runs a plan on this rank's stage. */
typedef struct tg_pipe tg_pipe;

/* Creates a pipe. The plan must have as many stages as pp of p, and as many chunks as vp (tg_parallel_opts). Every rank
 * of p calls it, with plans of the same lists and with the same edges. They are compared over pp (TG_ERR_MISMATCH).
 * plan and p must outlive the pipe. opts may be NULL if there is one part. Returns NULL on an error. */
TG_API tg_pipe *tg_pipe_new(const tg_parallel *p, const tg_pipe_plan *plan, const tg_pipe_opts *opts);
/* Frees a pipe. While tg_pipe_run runs it, records TG_ERR_STATE and frees nothing. */
TG_API void tg_pipe_free(tg_pipe *x);

/* Runs all items of this stage once: the forwards and backwards of all micro-batches of a step. Every rank of p calls
 * it. Adds the gradients of all micro-batches to those of the parameters. The caller then calls tg_grads_finalize and
 * steps its optimizer, on every stage.
 *
 * - F calls fn, sends out[] to the next part, and releases all bytes that backward does not need. If tg_grads_finalize
 *   is to divide by the number of tokens (tg_finalize_opts.tokens), the loss must be the sum over the tokens of the
 *   micro-batch, not the mean. The gradients of aux are divided too. The pipe sets the tape's key to the number of the
 *   micro-batch (tg_tape_key), so keyed draws (tg_key_open) depend on it.
 * - B receives the gradients of out[], runs backward from out[] and aux, sends the gradients of input[], and resets the
 *   tape. If the plan has items W, the weight gradients of linear layers (tg_tape_defer) wait for W.
 * - A plan without B (TG_PIPE_FORWARD) runs fn in no-grad and evaluation mode.
 *
 * Buckets (flat.h) start no sums before the last B or, if the plan has W, the last W of their chunk.
 * tg_flat_set_reduce need not be called.
 *
 * Fails with
 * - TG_ERR_SHAPE if the dtype or shape of an out[] is not that of its edge, or if a loss is no float of one element;
 * - TG_ERR_PLACEMENT if an out[] is not placed as its edge;
 * - TG_ERR_ARGUMENT if fn is NULL or leaves an out[] NULL;
 * - TG_ERR_HANDLE if fn sets a tensor that is not of c->tape, such as a parameter;
 * - TG_ERR_STATE if a loss or aux needs no gradient but the plan has B, if the pipe is running, or if its
 *   tg_parallel was freed;
 * - TG_ERR_CALLBACK if fn or `shape` returns an error that it has not recorded.
 *
 * An error is reported to the other stages. After tg_ctx_clear and tg_parallel_recover the step can be repeated; first
 * set the gradients to zero. */
TG_API tg_status tg_pipe_run(tg_pipe *x, tg_pipe_fn fn, void *state);
/* Returns the losses of the last tg_pipe_run, float64 [micros], without the loss scale. They are 0 on all stages except
 * the last one, and before the first run. The tensor belongs to the pipe. Returns an inert tensor if x is NULL. */
TG_API tg_tensor *tg_pipe_losses(tg_pipe *x);

#ifdef __cplusplus
}
#endif

#endif
