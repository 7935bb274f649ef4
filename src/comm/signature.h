/* Signatures: the properties of one call on which all members of a group must agree. This header also has functions for
 * the parts (one for each rank) of a call's data, and the check of two members that exchange parts of different
 * sizes. */
#ifndef TG_SIGNATURE_H
#define TG_SIGNATURE_H

#include "comm/comm.h"

typedef struct tg_signature {
    uint8_t kind, dtype, op, unused; /* unused: 0, so that no byte is undefined where a signature is sent */
    int32_t root;
    int64_t count;   /* elements; 0 if the sizes of parts may differ between ranks */
    uint64_t counts; /* of an all-gather or reduce-scatter: a digest of the sizes of all parts; else 0 */
    /* Number of calls that the rank has missed after errors since the group was formed. Members must agree on this. */
    uint64_t missed;
} tg_signature;

/* Returns the signature of a call in a group of `size` ranks. missed: see the field. */
tg_signature tg_signature_of(const tg_transfer *t, int size, uint64_t missed);
/* Returns whether all fields but `missed` are equal. A difference in `missed` is reported as another error. */
bool tg_signature_equal(const tg_signature *a, const tg_signature *b);
/* Returns the call of a signature as errors quote it. count: number of elements of the call. peer: the other rank of a
 * send or a receive. sequence: the number of the call, from 0. */
tg_call_entry tg_signature_entry(const tg_signature *s, int64_t count, int peer, uint64_t sequence);

/* Writes n + 1 numbers to `at`: where each of n consecutive parts of these sizes begins, and where the last one ends.
 * Returns at, or NULL if counts is NULL. */
int64_t *tg_parts_begin(int64_t *at, const int64_t *counts, int n);
/* Return where part i begins, and its size. begins NULL: all parts have `count` elements. */
static inline int64_t tg_part_begin(const int64_t *begins, int64_t count, int i) {
    return begins ? begins[i] : count * i;
}
static inline int64_t tg_part_size(const int64_t *begins, int64_t count, int i) {
    return begins ? begins[i + 1] - begins[i] : count;
}

/* The numbers of elements that one member of an all-to-all sends to another and expects from it. */
typedef struct tg_pair_counts {
    int64_t sends, expects;
} tg_pair_counts;

static inline bool tg_pair_agrees(tg_pair_counts a, tg_pair_counts b) {
    return a.sends == b.expects && b.sends == a.expects;
}

#endif
