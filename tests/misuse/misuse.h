/* Wrong calls, row by row: the error that each must give, and that it leaves no trace.
 *
 * A row names the exported function that it is about, makes one wrong call, and says which error the context must
 * then have and what its message must contain. Around every row the frame compares bytes, nodes, random streams,
 * versions and values, which must be the same as before, and trains one step, which must give the usual gradient.
 * tests/misuse/symbols.sh compares the names of the rows with the library's exports. A function that only records
 * the op of its name is covered by the rows of misuse_table. */
#ifndef TG_TESTS_MISUSE_H
#define TG_TESTS_MISUSE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/extend.h>
#include <tapegrad/tapegrad.h>

enum { MISUSE_WATCHED = 8, MISUSE_HANDLES = 16 };

/* A tape and a tensor that do not match, and the error that reports it. */
typedef struct misuse_handle {
    tg_tape *tape;
    tg_tensor *x;
    tg_ctx *ctx; /* context that records the error; NULL: there is none */
    tg_status status;
    const char *says;
} misuse_handle;

/* State that must be the same after a row as before it. */
typedef struct misuse_state {
    int64_t live, far_live, nodes, far_nodes;
    tg_rng rng;
    uint64_t bytes[MISUSE_WATCHED];
    uint32_t version[MISUSE_WATCHED];
    bool training, grad, has_grad;
} misuse_state;

typedef struct misuse_world {
    tg_ctx *ctx, *far;
    tg_tape *t, *far_t, *other, *fresh; /* other: a second tape of ctx; fresh: for the step after each row */
    tg_tape *freed, *inert_t;
    tg_tensor *w, *x, *v, *ids, *mask,
        *cube; /* f32[2, 3] that needs a gradient, f32[2, 3], f32[3], i64[2], bool[2, 3], f32[2, 3, 4] */
    tg_tensor *r;                             /* result on t: the square of w */
    tg_tensor *inert, *reset, *reset_next, *dropped, *overwritten, *elsewhere, *foreign, *gone;
    tg_tensor *held, *held_next, *released; /* held handles: two of 1,000 resets ago, one that was released */
    misuse_handle handle[MISUSE_HANDLES]; /* the last handle is a tensor whose memory was discarded */
    const char *dir;                /* directory for files: empty, removed at the end */
    misuse_state before;
    int passed, failed, n_symbols;
    const char *symbol[16384]; /* names of all rows; the rows fail when there is no room for another */
    int n_ops;
    const char *op[512]; /* ops that misuse_table has run */
    bool quiet;
} misuse_world;

void misuse_begin(misuse_world *b);
/* Checks a row. truth: the call returned what its row says. */
void misuse_end(misuse_world *b, const char *symbol, const char *file, int line, bool truth, tg_ctx *ctx,
                tg_status status, const char *says);
/* Add a name to a list: the function that a row is about, or an op that misuse_table has run. */
void misuse_names(misuse_world *b, const char *symbol);
void misuse_covers(misuse_world *b, const char *op);
/* Makes the same call again while the context has an older error: misuse_stick, the call, misuse_stuck. */
void misuse_stick(misuse_world *b);
void misuse_stuck(misuse_world *b, const char *symbol, const char *file, int line);

static inline bool misuse_inert(const tg_tensor *x) { return x && !tg_is_alive(x) && tg_ndim(x) == 0; }

#define MISUSE_ONCE(symbol, truth, ctx_, status, says)                                   \
    do {                                                                              \
        (void)&symbol;                                                                \
        misuse_names(b, #symbol);                                                        \
        misuse_begin(b);                                                                 \
        bool truth_ = (truth);                                                        \
        misuse_end(b, #symbol, __FILE__, __LINE__, truth_, ctx_, status, says);          \
    } while (0)
#define MISUSE_TWICE(symbol, truth, ctx_, status, says)                                  \
    do {                                                                              \
        MISUSE_ONCE(symbol, truth, ctx_, status, says);                                  \
        misuse_stick(b);                                                                 \
        (void)(truth);                                                                \
        misuse_stuck(b, #symbol, __FILE__, __LINE__);                                    \
    } while (0)

/* A row whose call returns the error's status, an inert tensor, or what `truth` says. */
#define FAILS(symbol, code, says, call) MISUSE_TWICE(symbol, (call) == TG_ERR_##code, b->ctx, TG_ERR_##code, says)
#define INERT(symbol, code, says, call) MISUSE_TWICE(symbol, misuse_inert(call), b->ctx, TG_ERR_##code, says)
#define GIVES(symbol, code, says, truth) MISUSE_TWICE(symbol, truth, b->ctx, TG_ERR_##code, says)
/* A row without an error: the function gives none, has no context to record it in, or makes its own. */
#define QUIET(symbol, truth) MISUSE_ONCE(symbol, truth, NULL, TG_OK, "")

/* Rows for an op with x, on tape t, as one of its operands: every wrong pair of tape and tensor is refused. A view
 * does not read, so it accepts a tensor whose memory was discarded. */
#define MISUSE_OP(symbol, n, answer)                                                     \
    for (int i_ = 0; i_ < (n); i_++) {                                                \
        const misuse_handle *h_ = &b->handle[i_];                                        \
        tg_tape *t = h_->tape;                                                        \
        tg_tensor *x = i_ ? h_->x : b->dropped;                                       \
        (void)t, (void)x;                                                             \
        MISUSE_TWICE(symbol, answer, h_->ctx, h_->status, h_->says);                     \
    }
#define OP(symbol, call) MISUSE_OP(symbol, MISUSE_HANDLES, misuse_inert(call))
#define VIEW(symbol, call) MISUSE_OP(symbol, MISUSE_HANDLES - 1, misuse_inert(call))

/* Calls an op with each handle in the place of an optional operand, where NULL is allowed and not called. */
#define OPTIONAL(symbol, call)                                                                                         \
    for (int i_ = 0; i_ < MISUSE_HANDLES; i_++) {                                                                      \
        const misuse_handle *h_ = &b->handle[i_];                                                                      \
        tg_tape *t = h_->tape;                                                                                         \
        tg_tensor *x = i_ ? h_->x : b->dropped;                                                                        \
        (void)t;                                                                                                       \
        if (x) MISUSE_TWICE(symbol, misuse_inert(call), h_->ctx, h_->status, h_->says);                                \
    }

/* Iterates over the handles that are no longer tensors of b->ctx. */
#define EACH_DEAD(x)                                                                                                 \
    for (tg_tensor **at_ = (tg_tensor *[]){b->inert, b->reset, b->reset_next, b->dropped, b->overwritten, b->held,   \
                                           b->held_next, b->released, NULL},                                         \
                   *x;                                                                                               \
         (x = *at_); at_++)
#define DEAD_STATUS(symbol, call) EACH_DEAD(x) FAILS(symbol, HANDLE, "the tensor", call)
#define DEAD_TENSOR(symbol, call) EACH_DEAD(x) INERT(symbol, HANDLE, "the tensor", call)
#define DEAD_QUIET(symbol, truth) EACH_DEAD(x) QUIET(symbol, truth)

/* One function for each header, or part of a header. */
void misuse_context(misuse_world *b);
void misuse_tensor(misuse_world *b);
void misuse_handles(misuse_world *b);
void misuse_tape(misuse_world *b);
void misuse_capture(misuse_world *b);
void misuse_backward(misuse_world *b);
void misuse_derivatives(misuse_world *b);
void misuse_ops(misuse_world *b);
void misuse_table(misuse_world *b); /* every op through tg_apply */
void misuse_windows(misuse_world *b);
void misuse_arguments(misuse_world *b); /* arguments of ops */
void misuse_extend(misuse_world *b);
void misuse_by_name(misuse_world *b);
void misuse_gradcheck(misuse_world *b);
void misuse_nn(misuse_world *b);
void misuse_modules(misuse_world *b);
void misuse_generate(misuse_world *b);
void misuse_lm(misuse_world *b);
void misuse_lora(misuse_world *b);
void misuse_optim(misuse_world *b);
void misuse_averages(misuse_world *b);
void misuse_data(misuse_world *b);
void misuse_io(misuse_world *b);
void misuse_templates(misuse_world *b);
void misuse_tokenizer(misuse_world *b);
void misuse_comm(misuse_world *b);
void misuse_parallel(misuse_world *b);
void misuse_pipe(misuse_world *b);
void misuse_placement(misuse_world *b);
void misuse_mappings(misuse_world *b);
void misuse_p2p(misuse_world *b);
void misuse_world_of_ranks(misuse_world *b);
void misuse_mpi(misuse_world *b); /* does nothing without MPI */
void misuse_layers(misuse_world *b);

#endif
