/* Context parallelism: attention over a sequence that the ranks of an axis divide, and which rows each rank has.
 * Include this header in programs whose sequences are too long for the memory of one rank. docs/parallel.md has the
 * tables of what is sent and kept.
 *
 * The layout. n ranks cut a sequence into 2n chunks of equal length. Rank r has chunks r and 2n - 1 - r, in this order:
 * a zigzag shard, TG_SHARD_ZIGZAG(d), written Vd:z. Under a causal mask the first chunks see few keys and the last ones
 * many, and each rank has as many pairs of queries and keys as any other (Megatron-Core's context parallelism; Brandon
 * et al., arXiv 2311.09431, divide the work in a related way). All that acts on rows alone, such as embeddings, norms
 * and MLPs, needs no change. Only attention and positions see the whole sequence: tg_context_attention and tg_rope_at.
 *
 * Several sequences can be packed into one, in two ways. By default each sequence is cut in this way by itself, and its
 * length must be a multiple of 2n. Chunk c of the packed sequence has chunk c of every sequence, in the order of the
 * sequences. tg_context_cut lists a rank's rows. All ranks then have equal work. With `cut_as_one` the packed sequence
 * is cut as if it were one, so the lengths of its sequences are free, but ranks may have different amounts of work. */
#ifndef TAPEGRAD_CONTEXT_PARALLEL_H
#define TAPEGRAD_CONTEXT_PARALLEL_H

#include <tapegrad/mappings.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the ranks exchange what attention needs. n is the number of ranks; all kinds compute the same result. */
typedef enum tg_cp_kind {
    /* Keys and values travel around a ring of the ranks, in n - 1 messages. While a rank computes with those of one
     * rank, those of the next one arrive. Backward sends them around again, and their gradients after them, in float32
     * (float64 for float64). A rank keeps only its own keys and values. (Liu et al., arXiv 2310.01889.) */
    TG_CP_RING,
    /* All ranks gather all keys and values: first the chunks of the first half of the sequence, then those of the
     * second half, which arrive while the first half is computed. Backward reduce-scatters their gradients. A rank
     * keeps all keys and values for backward. (Llama 3, arXiv 2407.21783, section 3.3.2.) */
    TG_CP_GATHER,
    /* One all-to-all gives each rank the whole sequence of h / n heads, and another one brings the results back. n
     * divides h. n divides g, or g divides n; in the second case heads of k and v are sent to several ranks.
     * (DeepSpeed-Ulysses, arXiv 2309.14509.) */
    TG_CP_ULYSSES,
    /* ULYSSES within groups of `inner` neighboring ranks, and RING over the n / inner groups. (USP, arXiv
     * 2405.07719.) */
    TG_CP_HIERARCHY,
} tg_cp_kind;

/* Options of tg_context_attention, whose comment explains the names of sizes. */
typedef struct tg_context_attention_opts {
    size_t size;
    tg_cp_kind kind; /* TG_CP_RING by default */
    int inner;       /* ranks of a group of TG_CP_HIERARCHY, a divisor of n; TG_AUTO, the default: n */
    bool causal;     /* query i attends only to keys j <= i; false by default */
    double scale;    /* factor of the scores, 0 or more; TG_AUTO, the default, means 1 / sqrt(dk) */
    /* Probability of dropout of the attention weights, in [0, 1), in training mode; 0 by default. Any number of ranks
     * drops the same weights as one rank. */
    double dropout;
    double softcap;  /* as in tg_attention: soft cap of the scores; TG_NONE, the default: none */
    int64_t left;    /* query i attends only to keys j >= i - left; 0 or more. TG_NONE, the default: no such bound */
    tg_tensor *sink; /* as in tg_attention: [h]. If it needs a gradient, it must be R on the axis of c. NULL: none */
    /* Packed sequences: int64 [m + 1] with b = 1, the same on every rank. Sequence i has the rows starts[i] to
     * starts[i + 1] - 1 of the whole packed sequence, as on one rank. The first entry is 0, the last is the number of
     * all rows, none is less than the one before it, and all are multiples of 2n (TG_ERR_DATA). NULL: one sequence. */
    tg_tensor *starts;
    /* The packed sequence is cut as if it were one. Entries of starts need not be multiples of 2n, and starts may be
     * [b, m + 1], with a row for each batch entry. false by default; without starts it changes nothing. */
    bool cut_as_one;
} tg_context_attention_opts;

#define TG_CONTEXT_ATTENTION_DEFAULTS                                                                                  \
    .size = sizeof(tg_context_attention_opts), .inner = TG_AUTO, .scale = TG_AUTO, .softcap = TG_NONE, .left = TG_NONE
#define TG_CONTEXT_ATTENTION(...) (&(tg_context_attention_opts){TG_CONTEXT_ATTENTION_DEFAULTS, __VA_ARGS__})

/* Computes tg_attention (ops.h) over a sequence that the ranks of c divide: q [b, h, s / n, dk], k [b, g, s / n, dk]
 * and v [b, g, s / n, dv] -> [b, h, s / n, dv], all V2:z on c's axis and of one float dtype. b is the batch, h the
 * number of heads of q, g that of k and v, which divides h, s the length of the whole sequence, and n the size of c.
 * Collective over c, also in backward. With one rank it is tg_attention. opts may be NULL.
 *
 * The results of the parts of the sequence are merged row by row in float32 (float64 for float64), in a fixed order,
 * which differs between ranks. All kinds can be captured. Derivatives that are made of ops, such as second derivatives,
 * gather the whole sequence on every rank; for dropout, and for packed sequences without cut_as_one, they fail with
 * TG_ERR_UNSUPPORTED.
 *
 * Fails with TG_ERR_PLACEMENT if an input is not V2:z, with TG_ERR_SHAPE if shapes do not fit or heads cannot be
 * divided as the kind needs, and with TG_ERR_UNSUPPORTED for dropout with packed sequences without cut_as_one. */
TG_API tg_tensor *tg_context_attention(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v, tg_comm *c,
                                       const tg_context_attention_opts *opts);

/* Lists the rows of a packed sequence that rank `rank` of n ranks has, for loaders. starts [m + 1] says where the m
 * sequences begin, as in tg_context_attention_opts. Writes starts[m] / n row numbers to rows[], in the rank's order.
 * Fails with TG_ERR_ARGUMENT if a pointer is NULL or if m, n or rank is out of range, and with TG_ERR_DATA if
 * starts[0] is not 0 or if the length of a sequence is negative or no multiple of 2n. With one rank lengths are free,
 * and the rows are all rows in order. For one sequence of s rows pass {0, s}. */
TG_API tg_status tg_context_cut(const int64_t *starts, int m, int n, int rank, int64_t *rows);

#ifdef __cplusplus
}
#endif

#endif
