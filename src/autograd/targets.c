/* Finds out whether an output of a node is a target of a pass, by the address of the tensor. A few targets are compared
 * one after another; many are sorted and bisected. */
#include "autograd/targets.h"

/* Treats a[0] to a[n - 1] as a heap, and moves the entry at i down until neither of its children has a greater key. */
static void sift(tg_keyed *a, int64_t i, int64_t n) {
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && (uintptr_t)a[child + 1].key > (uintptr_t)a[child].key) child++;
        if ((uintptr_t)a[child].key <= (uintptr_t)a[i].key) return;
        tg_keyed t = a[i];
        a[i] = a[child];
        a[child] = t;
    }
}

/* Heapsort. The C library's qsort may call malloc, which a steady step must not do. */
void tg_keyed_sort(tg_keyed *a, int64_t n) {
    for (int64_t i = n / 2; i-- > 0;) sift(a, i, n);
    for (int64_t end = n; end-- > 1;) {
        tg_keyed t = a[0];
        a[0] = a[end];
        a[end] = t;
        sift(a, 0, end);
    }
}

tg_keyed *tg_keyed_find(tg_keyed *a, int64_t n, const void *key) {
    int64_t lo = 0, hi = n;
    while (lo < hi) {
        int64_t middle = lo + (hi - lo) / 2;
        if ((uintptr_t)a[middle].key < (uintptr_t)key)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < n && a[lo].key == key ? &a[lo] : NULL;
}

tg_status tg_pass_find_targets(tg_pass *p) {
    enum { FEW = 8 };
    int n = p->o->n_targets;
    for (int i = 0; i < n; i++) p->o->targets[i].node = tg_tape_node_of(p->t, p->o->targets[i].x);
    if (n <= FEW) return TG_OK;
    if (!(p->by_x = tg_tape_alloc(p->t, (size_t)n * sizeof *p->by_x))) return p->t->ctx->run.status;
    for (int i = 0; i < n; i++) p->by_x[i] = (tg_keyed){p->o->targets[i].x, i};
    tg_keyed_sort(p->by_x, n);
    return TG_OK;
}

void tg_pass_free_targets(tg_pass *p) {
    tg_tape_give(p->t, p->by_x, (size_t)p->o->n_targets * sizeof *p->by_x);
}

tg_target *tg_pass_target(const tg_pass *p, const tg_node *n, int out) {
    const tg_tensor *x = tg_node_out(n)[out];
    const tg_keyed *k = p->by_x ? tg_keyed_find(p->by_x, p->o->n_targets, x) : NULL;
    if (k) return &p->o->targets[k->at];
    for (int i = 0; i < p->o->n_targets && !p->by_x; i++)
        if (p->o->targets[i].x == x) return &p->o->targets[i];
    return NULL;
}
