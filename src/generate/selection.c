/* Selects the likeliest tokens with heaps, so that a small part of a large vocabulary is not sorted with the rest. */
#include "generate/sampling.h"

static void swap(tg_candidate *a, tg_candidate *b) {
    tg_candidate c = *a;
    *a = *b;
    *b = c;
}

/* Moves element i of the heap h[n] down to its place. The first element of a heap is the likeliest one, or with
 * least_first the least likely one. */
static void sift(tg_candidate *h, int64_t n, int64_t i, bool least_first) {
    for (;;) {
        int64_t first = i;
        for (int64_t k = 2 * i + 1; k <= 2 * i + 2 && k < n; k++)
            if (tg_is_likelier(h[k], h[first]) != least_first) first = k;
        if (first == i) return;
        swap(&h[i], &h[first]);
        i = first;
    }
}

static void make_heap(tg_candidate *h, int64_t n, bool least_first) {
    for (int64_t i = n / 2 - 1; i >= 0; i--) sift(h, n, i, least_first);
}

void tg_select_likeliest(const double *x, int64_t n, int64_t k, tg_candidate *out) {
    if (k <= 0) return;
    for (int64_t i = 0; i < k; i++) out[i] = (tg_candidate){x[i], i};
    make_heap(out, k, true);
    for (int64_t i = k; i < n; i++)
        if (x[i] > out[0].weight) {
            out[0] = (tg_candidate){x[i], i};
            sift(out, k, 0, true);
        }
    for (int64_t left = k - 1; left > 0; left--) { /* a heap sort: the least likely go to the end */
        swap(&out[0], &out[left]);
        sift(out, left, 0, true);
    }
}

int64_t tg_select_sum(tg_candidate *c, int64_t n, double most) {
    int64_t left = n;
    double sum = 0;
    make_heap(c, n, false);
    while (left > 0 && (left == n || sum < most)) {
        sum += c[0].weight;
        swap(&c[0], &c[--left]);
        sift(c, left, 0, false);
    }
    return n - left;
}
