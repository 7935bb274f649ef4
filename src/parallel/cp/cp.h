/* What the files of context parallelism share: the params of the op ContextAttention, how a sequence is cut into
 * blocks, and the state of a running forward or backward.
 *
 * n is the number of ranks, and s the length of the whole sequence, which is cut into 2n chunks (context_parallel.h).
 * Groups of `inner` neighboring ranks exchange heads for rows, so that each rank has the rows of its whole group for
 * some of the heads. Then the n / inner groups pass keys and values around a ring; with TG_CP_GATHER all ranks gather
 * them instead. A holder is such a group of ranks, and `holder` its position in the ring. In shapes, h or `heads` is
 * the number of heads of q, and g or `groups` that of k and v.
 *
 * A block is a run of neighboring chunks of the sequence. Every holder has the same number of blocks. Queries and keys
 * of a holder are whole blocks, in the order of the sequence. Attention is computed for a pair of blocks at a time, and
 * the results of the pairs are merged. */
#ifndef TG_CP_H
#define TG_CP_H

#include <tapegrad/context_parallel.h>

#include "ops/common/nn_op.h"
#include "parallel/mappings/mapping.h"

enum { CP_Q, CP_K, CP_V, CP_SINK, CP_STARTS, CP_INPUTS }; /* the inputs of the op */

/* The private saved buffers: those of all kinds; the tensors of this rank's heads, if groups have several ranks; and
 * the gathered keys and values of TG_CP_GATHER. */
enum { CP_TOP, CP_MASS, CP_MORE, CP_SAVED_Q = CP_MORE, CP_SAVED_K, CP_SAVED_V, CP_SAVED_OUT };
enum { CP_EARLY = CP_MORE, CP_LATE };

/* How the rows of a sequence are cut. */
typedef struct tg_cp_blocks {
    int64_t rows; /* number of rows of a block */
    int total;    /* number of blocks of the sequence */
    int count;    /* number of blocks of each holder: 1, or an even number, half of it from each end of the sequence */
} tg_cp_blocks;

/* Returns the number in the sequence of block i of a holder. */
static inline int tg_cp_block(const tg_cp_blocks *b, int holder, int i) {
    int half = b->count / 2;
    return i < half || b->count == 1 ? holder * half + i : b->total - (holder + 2) * half + i;
}

/* Which draws dropout takes. first.rng is the draw of the first weight. The draw of the weight of query i and key j, in
 * batch entry e and head u, comes e * batch + u * head + i * s + j numbers after it. */
typedef struct tg_cp_draws {
    tg_draws first;
    int64_t batch, head;
} tg_cp_draws;

typedef struct tg_cp_params {
    tg_comm *comm; /* first member, as in the params of every op that communicates */
    /* The caller's options. infer resolves them: scale is set, dropout is 0 in evaluation mode, softcap is 0 if there
     * is none, left is 0 or more, inner is 1 or more, and kind is not TG_CP_GATHER if there is one holder. The tensors
     * among them are inputs of the op, and NULL here. */
    tg_context_attention_opts opts;
    bool left_bound;        /* a window bounds the keys to the left: opts.left is its extent */
    bool packed, cut_apart; /* sequences are packed; each of them is cut by itself */
    int outer;             /* number of holders: n / inner */
    int holder, member;    /* this rank's holder, and its number in that group of ranks */
    int64_t heads, groups; /* numbers of the heads of q, and of k and v, that this rank works on */
    int64_t length;        /* s */
    tg_cp_blocks blocks;
    tg_cp_draws draws;
    /* Numbers of elements that exchanges send to or receive from each rank: those of the ring; of the heads of q, k and
     * v together; and of the heads of the result. */
    const int64_t *ring_send, *ring_recv, *exchange_qkv, *exchange_out;
    bool *begun; /* for each block of queries, then of keys: whether its result or gradient has a value yet */
} tg_cp_params;

static inline tg_cp_params *tg_cp_of(const tg_call *c) { return c->params; }

tg_status tg_cp_infer(tg_call *c); /* infer.c */

/* ---- blocks.c: attention of blocks of queries with blocks of keys ---- */

/* A running forward or backward. Unless stated otherwise, arrays are [b, heads, rows, size], or [b, groups, rows, size]
 * for keys and values; top and mass are [b, heads, rows]. Their rows are those of this holder. */
typedef struct tg_cp_pass {
    tg_call *c;
    const tg_cp_params *p;
    tg_array q, k, v;                       /* this holder's */
    tg_array out, top, mass;                /* forward writes them; backward reads them */
    tg_array sink;                          /* [heads], of this rank's heads; absent if there is none */
    /* Where packed sequences start; absent if none are packed. If they are cut apart, `starts` has the starts within
     * each block, [m + 1]. Otherwise `starts` has those in the whole sequence, and starts_q and starts_k have those in
     * the two blocks of the pair that is computed. These three are [1, m + 1], or [b, m + 1] with a row for each batch
     * entry. */
    tg_array starts, starts_q, starts_k;
    tg_array part_out, part_top, part_mass; /* forward: results of one pair of blocks, with the rows of a block */
    tg_array row[3];                        /* forward: temporaries of a merge, [b, heads, block rows] */
    tg_array gout, gq, gsink;               /* backward; gsink is added to. gq and gsink are absent if not needed */
    tg_array gk, gv;                        /* backward: receive the gradients of k and v; absent if not needed */
    bool add_q, add_k, add_v;               /* backward: gq, gk and gv are added to instead of written */
    bool check_starts;                      /* forward: the first pair is to check the starts within a block */
} tg_cp_pass;

/* Keys and values that a rank has at some moment: `count` blocks of a holder, from its block number `first` on. */
typedef struct tg_cp_keys {
    tg_array k, v; /* [b, groups, count * block rows, size] */
    int holder, first, count;
} tg_cp_keys;

/* Prepares a pass: p->begun, the arrays of starts (tg_cp_starts, which forward also checks), and the temporaries of
 * forward. */
tg_status tg_cp_open(tg_cp_pass *w, bool backward);
/* Adds what the queries see of these keys to w->out, w->top and w->mass. */
tg_status tg_cp_attend(tg_cp_pass *w, const tg_cp_keys *keys);
/* Writes to gk and gv the gradients of these keys and values from this rank's queries, and adds to w->gq and w->gsink.
 * gk and gv have the shapes of keys->k and keys->v. */
tg_status tg_cp_attend_grad(tg_cp_pass *w, const tg_cp_keys *keys, tg_array gk, tg_array gv);
/* Returns the number of floating-point operations of this rank's forward, counted as those of tg_attention. sizes: the
 * last dims of k and v together. */
int64_t tg_cp_flops(const tg_cp_params *p, int64_t batch, int64_t sizes);

/* ---- travel.c: keys and values as one buffer ---- */

/* A buffer that holds keys and then values: both [b, groups, rows, size], row-major. */
typedef struct tg_cp_buffer {
    tg_tensor *x;
    int64_t offset; /* of the first element of the keys */
    tg_extent k, v; /* memory for the layouts of the arrays */
} tg_cp_buffer;

/* Returns this holder's own keys and values, w->k and w->v. */
tg_cp_keys tg_cp_own_keys(const tg_cp_pass *w);
/* Returns the arrays of the keys and values of `rows` rows in b, from element `offset` of b->x on. Their layouts are in
 * b until the next call for b. The caller sets `holder` and `first` of the result. */
tg_cp_keys tg_cp_keys_in(const tg_cp_pass *w, tg_cp_buffer *b, int64_t rows);
/* Returns the number of elements of keys and values of `rows` rows. */
int64_t tg_cp_elements(const tg_cp_pass *w, int64_t rows);
/* Returns a temporary for keys and values of `rows` rows. */
tg_cp_buffer tg_cp_buffer_new(const tg_cp_pass *w, tg_dtype dtype, int64_t rows);
/* Copies this holder's keys and values, rows [from, from + rows), to b. */
tg_status tg_cp_pack(tg_cp_pass *w, tg_cp_buffer *b, int64_t from, int64_t rows);
/* Writes or adds the gradients in b to rows [from, from + rows) of w->gk and w->gv. */
tg_status tg_cp_unpack(tg_cp_pass *w, tg_cp_buffer *b, int64_t from, int64_t rows);

/* ---- ring.c, gather.c: which keys a rank sees, and when. Both call tg_cp_attend or tg_cp_attend_grad. ---- */

/* Compute a forward and a backward over the ring of holders. */
tg_status tg_cp_ring(tg_cp_pass *w);
tg_status tg_cp_ring_grad(tg_cp_pass *w);
/* Compute a forward and a backward over gathered keys. half[0] and half[1] have the keys and values of the early and
 * the late blocks of all ranks, rank by rank; forward gathers them. */
tg_status tg_cp_gather(tg_cp_pass *w, tg_tensor *const half[2]);
tg_status tg_cp_gather_grad(tg_cp_pass *w, tg_tensor *const half[2]);

/* ---- heads.c: heads for rows within a group of neighboring ranks ---- */

/* A tensor before and after the exchange. */
typedef struct tg_cp_heads {
    tg_array rows;  /* [b, heads, rows of this rank, size] */
    tg_array heads; /* [b, heads of this rank, rows of the group, size] */
    bool add;       /* `back` adds to `rows` instead of writing them */
} tg_cp_heads;

/* Exchanges n tensors in one message for each rank: from x[].rows to x[].heads or, if `back`, from x[].heads to
 * x[].rows. The message has the dtype of the rows, which is the same for all n; the heads may have another. Where
 * several ranks have a head, `back` adds up what they have. counts: numbers of elements to and from each rank. */
tg_status tg_cp_exchange(tg_call *c, const tg_cp_heads *x, int n, const int64_t *counts, bool back);

/* ---- draws.c, starts.c ---- */

/* Takes the draws of dropout for q [b, h, s / n, dk], and sets p->draws. */
tg_status tg_cp_take_draws(tg_call *c);
/* Returns the draws of a pair of blocks: block `query` of queries and block `key` of keys. */
tg_draws tg_cp_draws_of(const tg_cp_params *p, const tg_cp_pass *w, int query, int key);
/* Sets w->starts and, if the sequences are not cut apart, allocates w->starts_q and w->starts_k. If `check`, as in
 * forward, fails if starts are invalid. Of sequences that are cut apart it checks only that starts are multiples of 2n,
 * and sets w->check_starts. */
tg_status tg_cp_starts(tg_cp_pass *w, bool check);
/* Sets w->starts_q and w->starts_k for a pair of blocks. The sequences must not be cut apart. A sequence before a block
 * starts and ends at the beginning of the block, and a sequence after it at its end. */
tg_status tg_cp_pair_starts(tg_cp_pass *w, int query, int key);
/* Fails because element i of a row of starts is invalid. */
tg_status tg_cp_bad_start(const tg_cp_pass *w, int64_t row, int64_t i);

/* ---- compose.c: the slots vjp and jvp of the op ---- */

tg_status tg_cp_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin);
tg_status tg_cp_jvp(tg_tape *t, const tg_node *n, tg_tensor *const *din, tg_tensor **dout);

#endif
