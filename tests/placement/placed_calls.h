/* Makes placed tensors from text, for tests of placements: "R/V0:s2-[4, 3]" is a tensor [4, 3] that is R on tp and
 * V0:s2 on dp and needs no gradient. Placements are I, R, P, V, Vd, Vd:sk and Vd:z, for the axes tp, dp and cp in this
 * order; axes that are not named are I. A leading '^' places the axes from the last to the first. After the shape, i
 * stands for int64 and b for bool. */
#ifndef TG_TEST_PLACING_H
#define TG_TEST_PLACING_H

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/parallel.h>

enum { PLACING_AXES = 3 };
static const tg_axis placing_axis[PLACING_AXES] = {TG_TP, TG_DP, TG_CP};

typedef struct placing_leaf {
    tg_placement at[PLACING_AXES];
    int n;
    bool backwards, grad;
    tg_shape shape;
    tg_dtype dtype;
} placing_leaf;

static inline tg_placement placing_parse_one(const char **s) {
    tg_placement p = {.kind = TG_INVARIANT};
    char c = *(*s)++;
    if (c == 'R') p.kind = TG_REPLICATED;
    if (c == 'P') p.kind = TG_PARTIAL;
    if (c != 'V') return p;
    p.kind = TG_VARYING;
    if (!isdigit(**s)) return p;
    p.layout = TG_CONTIGUOUS;
    p.dim = (int8_t)(*(*s)++ - '0');
    if (**s != ':') return p;
    ++*s;
    c = *(*s)++;
    p.layout = c == 'z' ? TG_ZIGZAG : TG_STRIDED;
    if (c == 's') p.chunks = (int32_t)strtol(*s, (char **)s, 10);
    return p;
}

/* Reads one leaf and moves *s past it and the following blanks. */
static inline placing_leaf placing_parse(const char **s) {
    placing_leaf l = {.grad = true, .dtype = TG_F64};
    if ((l.backwards = **s == '^')) ++*s;
    do {
        l.at[l.n++] = placing_parse_one(s);
    } while (*(*s)++ == '/');
    --*s;
    if (**s == '-') l.grad = false, ++*s;
    ++*s; /* [ */
    while (**s != ']') {
        l.shape.dim[l.shape.ndim++] = strtol(*s, (char **)s, 10);
        while (**s == ',' || **s == ' ') ++*s;
    }
    ++*s;
    if (**s == 'i') l.dtype = TG_I64, ++*s;
    if (**s == 'b') l.dtype = TG_BOOL, ++*s;
    if (l.dtype != TG_F64) l.grad = false;
    while (**s == ' ') ++*s;
    return l;
}

/* Makes a leaf of zeros. */
static inline tg_tensor *placing_make(tg_ctx *ctx, const tg_parallel *p, const placing_leaf *l) {
    tg_tensor *x = tg_zeros(ctx, l->dtype, l->shape);
    for (int k = 0; k < l->n; k++) {
        int i = l->backwards ? l->n - 1 - k : k;
        tg_place(p, x, placing_axis[i], l->at[i]);
    }
    if (l->grad) tg_set_requires_grad(x, true);
    return x;
}

#endif
