/* What the attention drivers (attention.c) and templates share.
 *
 * Scores exist only in tiles [keys, queries] of TG_KEYS keys and up to TG_QUERIES queries. The lanes of a vector are
 * queries, so the softmax needs no sum across lanes, and keys and values are used in place if the layout allows it. */
#ifndef TG_ATTENTION_H
#define TG_ATTENTION_H

#include "kernels/attention_mask.h"
#include "kernels/cpu/fused.h"

/* In forward, the lanes of a block of up to TG_FEW_QUERIES queries are keys if there is no mask or dropout
 * (few_queries.h). */
enum { TG_KEYS = 64, TG_QUERIES = 64, TG_LANES = 16, TG_FEW_QUERIES = 4 };

/* Returns n rounded up to a multiple of TG_LANES. */
static inline int64_t tg_lanes(int64_t n) {
    return (n + TG_LANES - 1) / TG_LANES * TG_LANES;
}

/* A call of attention or of its gradient, and how the work is divided. */
typedef struct tg_attention_job {
    const tg_attention_args *a;
    int64_t batch, heads, groups, sq, sk, dk, dv; /* heads: of q; groups: heads of k and v */
    int64_t pad_k, pad_v;        /* dk and dv rounded up by tg_lanes */
    int64_t blocks;              /* number of query blocks per head */
    int64_t chunks;              /* number of parts of a group's query blocks; each has its own sums for gk and gv */
    int64_t units, ranges;       /* the units of work are divided into ranges, each with one slice of scratch */
    void *scratch, *gk, *gv;     /* gk, gv: [chunks, batch * groups * sk, pad]; NULL: no partial sums */
    int64_t slice;               /* number of elements of scratch for each range */
    tg_mask_rules rules;
    bool summed[4];              /* dims along which the mask's gradient is summed, because the mask was broadcast */
    int64_t parts[4];            /* units of the mask's gradient by batches, heads, blocks of queries, tiles of keys */
} tg_attention_job;

/* Returns the first unit of range j; for j = ranges, the number of units. */
static inline int64_t tg_attention_unit(const tg_attention_job *job, int64_t j) {
    return j * job->units / job->ranges;
}

#endif
