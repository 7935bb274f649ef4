/* Context parallelism: attention over a sequence that is divided over the ranks of an axis. Include this header in
 * programs whose sequences are too long for the memory of one rank. docs/parallel.md has the tables of what is sent and
 * kept.
 *
 * The layout. n ranks cut a sequence into 2n chunks of equal length. Rank r has chunks r and 2n - 1 - r, in this order:
 * a zigzag shard, TG_SHARD_ZIGZAG(d), written Vd:z. Megatron-Core cuts sequences in the same way. Under a causal mask
 * the first chunks see few keys and the last ones many; in this layout all ranks have the same number of pairs of
 * queries and keys. With a window (`left`) ranks may have different amounts of work.
 *
 * Ops that act on each row by itself, such as embeddings, norms and MLPs, need no change. Only attention and positions
 * depend on the whole sequence: call tg_context_attention, and tg_rope_at with the positions of this rank's rows.
 *
 * Several sequences can be packed into one, in two ways:
 * - By default each sequence is cut by itself, and its length must be a multiple of 2n. Rank r has chunk r of every
 *   sequence, in the order of the sequences, and then chunk 2n - 1 - r of every sequence. tg_context_cut lists these
 *   rows. Without a window all ranks have equal work.
 * - With `cut_as_one` the packed sequence is cut as if it were one. Only its whole length must be a multiple of 2n.
 *   Ranks may have different amounts of work. */
#ifndef TAPEGRAD_CONTEXT_PARALLEL_H
#define TAPEGRAD_CONTEXT_PARALLEL_H

#include <tapegrad/mappings.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the ranks exchange what attention needs. n is the number of ranks, h the number of heads of q, and g that of k
 * and v. Results and gradients of all kinds are equal up to rounding. */
typedef enum tg_cp_kind {
    /* Keys and values travel around a ring of the ranks, in n - 1 messages. While a rank computes with one
     * rank's keys and values, the next rank's arrive. Backward sends keys and values around again, and their gradients
     * after them, in float32 (float64 for float64). A rank keeps only its own keys and values for backward. (Liu
     * et al., arXiv 2310.01889.) */
    TG_CP_RING,
    /* All ranks gather all keys and values: first the chunks of the first half of the sequence, then those of the
     * second half, which arrive while a rank computes with the first half. Backward reduce-scatters the gradients of
     * keys and values, in float32 (float64 for float64). A rank keeps all keys and values for backward. (Llama 3, arXiv
     * 2407.21783, section 3.3.2.) */
    TG_CP_GATHER,
    /* One all-to-all gives each rank the whole sequence of h / n heads, and another one brings the results back. n must
     * divide h, and n must divide g or g must divide n. If g is less than n, each head of k and v is sent to several
     * ranks, and its gradients on them are added in the dtype of q. (DeepSpeed-Ulysses, arXiv 2309.14509.) */
    TG_CP_ULYSSES,
    /* ULYSSES within groups of `inner` neighboring ranks, and RING over the n / inner groups. `inner` takes the place
     * of n in the rules of ULYSSES. (USP, arXiv 2405.07719.) */
    TG_CP_HIERARCHY,
} tg_cp_kind;

/* Options of tg_context_attention. b, c, h, dk and n are as in its comment. Queries i and keys j are numbered along
 * the whole sequence. */
typedef struct tg_context_attention_opts {
    size_t size;
    tg_cp_kind kind; /* TG_CP_RING by default */
    /* TG_CP_HIERARCHY: number of ranks of a group, a divisor of n. TG_AUTO, the default, means n. With another kind it
     * must be TG_AUTO. */
    int inner;
    bool causal;  /* query i attends only to keys j <= i; false by default */
    double scale; /* factor of the scores, 0 or more; TG_AUTO, the default, means 1 / sqrt(dk) */
    /* Probability of dropout of the attention weights, in [0, 1), in training mode; 0 by default. Which weights are
     * dropped does not depend on the number of ranks of c. */
    double dropout;
    double softcap; /* as in tg_attention: soft cap of the scores, greater than 0; TG_NONE, the default: none */
    int64_t left;   /* query i attends only to keys j >= i - left; 0 or more. TG_NONE, the default: no such bound */
    /* As in tg_attention: [h], the same on every rank of c. If it needs a gradient, it must be R on the axis of c, else
     * R or I. NULL: none. */
    tg_tensor *sink;
    /* Packed sequences: int64 [m + 1], I or R on the axis of c, with b = 1. Sequence i begins at row starts[i] of the
     * packed sequence before the cut, and ends before row starts[i + 1]; it is empty if the two are equal. The first
     * entry must be 0, and the last the number of all rows. No entry may be less than the one before it, and all must
     * be multiples of 2n. NULL: one sequence. */
    tg_tensor *starts;
    /* The packed sequence is cut as if it were one. Entries of starts between the first and the last then need not be
     * multiples of 2n, and starts may be [b, m + 1], with a row for each batch entry. false by default; without starts
     * it changes nothing. */
    bool cut_as_one;
} tg_context_attention_opts;

#define TG_CONTEXT_ATTENTION_DEFAULTS                                                                                  \
    .size = sizeof(tg_context_attention_opts), .inner = TG_AUTO, .scale = TG_AUTO, .softcap = TG_NONE, .left = TG_NONE
#define TG_CONTEXT_ATTENTION(...) (&(tg_context_attention_opts){TG_CONTEXT_ATTENTION_DEFAULTS, __VA_ARGS__})

/* Computes tg_attention (ops.h) over a sequence that the ranks of c divide: q [b, h, s / n, dk], k [b, g, s / n, dk]
 * and v [b, g, s / n, dv] -> [b, h, s / n, dv], all V2:z on c's axis and of one float dtype. b is the batch, h the
 * number of heads of q, g that of k and v, which divides h, s the length of the whole sequence, and n the size of c.
 * Every rank of c must call it, and run its backward. The tape owns the result. opts NULL means the defaults.
 *
 * If c has one rank, the call records tg_attention, with `starts` as starts_q and starts_k. Only the rules of
 * tg_attention hold then: kind, inner and cut_as_one are ignored, and neither placements nor multiples of 2n are
 * required.
 *
 * If a query attends to its keys in several parts, the results are merged in float32 (float64 for float64), in a
 * fixed order, which depends on the rank, on n and on `kind`. Every kind can be part of a captured step.
 *
 * Derivatives that are recorded as ops gather the whole sequence on every rank: those of tg_grad with create_graph
 * (backward.h), and of tg_jvp and tg_hvp (derivatives.h). They fail with TG_ERR_UNSUPPORTED if there is dropout, or if
 * sequences are packed without cut_as_one.
 *
 * On error returns an inert tensor. Fails with
 * - TG_ERR_ARGUMENT if c is NULL or of another context, or if an option is out of range;
 * - TG_ERR_DTYPE if q, k and v are not of one float dtype, if sink is neither float32 nor of that dtype, or if starts
 *   is not int64;
 * - TG_ERR_PLACEMENT if q, k or v is not V2:z, or if sink or starts is not placed as its option says;
 * - TG_ERR_SHAPE if shapes do not fit, if s / n is odd, if s is above 2^31 - 1, or if heads cannot be divided as the
 *   kind needs;
 * - TG_ERR_DATA if an entry of starts is not as the option says;
 * - TG_ERR_UNSUPPORTED if there is dropout in training mode, and either sequences are packed without cut_as_one, or
 *   another axis divides the batch or the heads into shards that are not contiguous. */
TG_API tg_tensor *tg_context_attention(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v, tg_comm *c,
                                       const tg_context_attention_opts *opts);

/* Lists the rows that rank `rank` of n ranks has of a packed sequence in which each sequence is cut by itself. A
 * program can then load only these rows. starts [m + 1] says where the m sequences begin, as in
 * tg_context_attention_opts. Writes starts[m] / n row numbers to rows[], in the order in which the rank has the rows.
 * For one sequence of s rows, or with cut_as_one, pass {0, s} and m = 1.
 *
 * With n = 1 any lengths are allowed, and the rows are all rows in order. Fails with TG_ERR_ARGUMENT if a pointer is
 * NULL, if m or n is less than 1, or if rank is not in [0, n). Fails with TG_ERR_DATA if starts[0] is not 0, if the
 * length of a sequence is negative, or if, with n > 1, it is not a multiple of 2n. */
TG_API tg_status tg_context_cut(const int64_t *starts, int m, int n, int rank, int64_t *rows);

#ifdef __cplusplus
}
#endif

#endif
