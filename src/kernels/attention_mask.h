/* Which keys an attention query may see, by the rules of tg_attention_args other than its mask tensor. By these rules
 * the visible keys are one contiguous range. Every device uses this file: C, C++ and CUDA include it. */
#ifndef TG_ATTENTION_MASK_H
#define TG_ATTENTION_MASK_H

#include <tapegrad/device.h>

#ifdef __CUDACC__
#define TG_MASK_FN static __host__ __device__ inline
#else
#define TG_MASK_FN static inline
#endif

/* Keys [first, end). */
typedef struct tg_key_range {
    int64_t first, end;
} tg_key_range;

/* The rules of a call. The members up to shift are those of tg_attention_args, or sizes of q and k. */
typedef struct tg_mask_rules {
    int64_t sq, sk, left, right, shift;
    bool left_bound, right_bound; /* whether left and right apply; causal sets right_bound, with right = 0 */
    bool more;                    /* whether there are rules besides causal; a shift of causal counts as one */
    const int64_t *lengths, *starts_q, *starts_k; /* NULL: there is no such rule */
    int64_t length_stride, sequences; /* sequences: the number of packed sequences of a batch entry */
    int64_t entries;                  /* batch entries that have starts of their own; 1: all have the same */
} tg_mask_rules;

/* Returns the rules of a. Neither checks nor reads the contents of lengths, starts_q and starts_k. */
TG_MASK_FN tg_mask_rules tg_mask_rules_of(const tg_attention_args *a) {
    bool padded = a->lengths.data != NULL, packed = a->starts_q.data != NULL;
    tg_mask_rules r;
    r.sq = a->q.shape[2];
    r.sk = a->k.shape[2];
    r.left = a->left;
    r.left_bound = a->left_bound;
    r.right = a->causal ? 0 : a->right;
    r.right_bound = a->causal || a->right_bound;
    r.shift = a->shift;
    r.lengths = (const int64_t *)a->lengths.data;
    r.length_stride = padded ? a->lengths.stride[0] : 0;
    r.starts_q = (const int64_t *)a->starts_q.data;
    r.starts_k = (const int64_t *)a->starts_k.data;
    r.sequences = packed ? a->starts_q.shape[a->starts_q.ndim - 1] - 1 : 0;
    r.entries = packed && a->starts_q.ndim == 2 ? a->starts_q.shape[0] : 1;
    r.more = r.left_bound || (r.right_bound && (!a->causal || r.shift)) || padded || packed;
    return r;
}

/* Returns the index of the last sequence that begins at or before i. `sequences` is the number of sequences, 1 or more.
 * The result is in [0, sequences) even if the contents of starts are invalid. */
TG_MASK_FN int64_t tg_sequence_at(const int64_t *starts, int64_t sequences, int64_t i) {
    int64_t low = 0, high = sequences;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (starts[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Returns where the starts of batch entry b begin in starts_q and starts_k. */
TG_MASK_FN int64_t tg_mask_starts_at(const tg_mask_rules *r, int64_t b) {
    return r->entries > 1 ? b * (r->sequences + 1) : 0;
}

/* Returns the visible keys of query i of batch entry b. The range lies within [0, sk) even if the contents of lengths,
 * starts_q and starts_k are invalid. If the contents are valid, neither end of the range decreases as i grows. `place`
 * is what tg_attention_args calls p. */
TG_MASK_FN tg_key_range tg_mask_keys(const tg_mask_rules *r, int64_t b, int64_t i) {
    int64_t first = 0, end = r->sk, most = r->sk, place = i + r->sk - r->sq + r->shift * r->sq;
    if (r->starts_q) {
        const int64_t *q = r->starts_q + tg_mask_starts_at(r, b), *k = r->starts_k + tg_mask_starts_at(r, b);
        int64_t s = r->sequences ? tg_sequence_at(q, r->sequences, i) : 0;
        first = k[s];
        end = most = r->sequences ? k[s + 1] : 0;
        place = r->sequences ? i + end - q[s + 1] + r->shift * (q[s + 1] - q[s]) : 0;
    }
    if (r->lengths && r->lengths[b * r->length_stride] < end) end = r->lengths[b * r->length_stride];
    if (r->right_bound && place + r->right + 1 < end) end = place + r->right + 1;
    if (r->left_bound && place - r->left > first) first = place - r->left;
    if (first > most) first = most; /* no later than the keys of the next sequence */
    if (first < 0) first = 0;
    if (first > r->sk) first = r->sk;
    if (end > r->sk) end = r->sk;
    tg_key_range s = {first, end < first ? first : end};
    return s;
}

/* Returns 1 + the position of the first invalid value of starts; 0 if all are valid. The last value must be
 * `total`. */
TG_MASK_FN int64_t tg_mask_bad_starts(const int64_t *starts, int64_t sequences, int64_t total) {
    if (starts[0] != 0) return 1;
    for (int64_t s = 1; s <= sequences; s++)
        if (starts[s] < starts[s - 1] || starts[s] > total) return s + 1;
    return starts[sequences] == total ? 0 : sequences + 1;
}

/* Returns 1 + the position of the first invalid value of the starts of all batch entries; 0 if all are valid. */
TG_MASK_FN int64_t tg_mask_bad_entries(const tg_mask_rules *r, const int64_t *starts, int64_t total) {
    for (int64_t e = 0; e < r->entries; e++) {
        int64_t bad = tg_mask_bad_starts(starts + tg_mask_starts_at(r, e), r->sequences, total);
        if (bad) return tg_mask_starts_at(r, e) + bad;
    }
    return 0;
}

/* Returns what bad[0] of tg_attention_args receives: 0 if all values are valid; else 1 + the position of the first
 * invalid value of lengths, or, if lengths is valid, of starts_q followed by starts_k. */
TG_MASK_FN int64_t tg_mask_bad(const tg_mask_rules *r, int64_t batch) {
    for (int64_t b = 0; r->lengths && b < batch; b++) {
        int64_t n = r->lengths[b * r->length_stride];
        if (n < 0 || n > r->sk) return b + 1;
    }
    if (!r->starts_q) return 0;
    int64_t q = tg_mask_bad_entries(r, r->starts_q, r->sq);
    int64_t k = q ? 0 : tg_mask_bad_entries(r, r->starts_k, r->sk);
    return q ? q : k ? r->entries * (r->sequences + 1) + k : 0;
}

#endif
