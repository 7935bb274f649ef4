/* Sums of products: einsum, and two of its equations, outer and dot.
 *
 * Every dim of the operands a and b and of the result y has a label. Dims with the same label have the same index.
 * Labels that are not in y are summed over.
 *
 * The gradient of an operand is a sum of products too: of y's gradient and the other operand. The result of this sum
 * may have labels that the public equation refuses. First, if a label of the operand is in neither the other operand
 * nor y, the gradient is repeated along that dim, so only the result has the label. Second, if the operand has a label
 * twice, the gradient is 0 outside of a diagonal, and the result has the label twice. The functions below allow both,
 * so they also compute derivatives of any order.
 *
 * If every label that both operands have is in y too, the op is an element-wise product. Otherwise the dims are grouped
 * into those of one batched matrix product: batch labels are in a, b and y, m labels only in a and y, n labels only in
 * b and y, k labels only in a and b. If the strides of an operand do not allow a view of each group as one dim, the
 * operand is copied first. */
#include "ops/common/derive.h"
#include "ops/common/op.h"

enum { A, B, Y, SIDES };

/* The labels of a tensor's dims, one letter each. */
typedef struct labels {
    int n;
    char at[TG_MAX_DIMS];
} labels;

typedef struct einsum_params {
    const char *equation;      /* the caller's; only infer reads it */
    bool labeled;              /* of[] is set, by infer or by a derivative that records the op; equation is not used */
    labels of[SIDES];
    int64_t size[TG_MAX_DIMS]; /* sizes of y's dims; read for labels that neither operand has */
} einsum_params;

static const einsum_params *params(const tg_call *c) { return c->params; }

/* Returns how many dims have this label. */
static int count(const labels *l, char label) {
    int n = 0;
    for (int d = 0; d < l->n; d++) n += l->at[d] == label;
    return n;
}

static bool has(const labels *l, char label) { return count(l, label) > 0; }

/* ---- The equation ---- */

static tg_status append(tg_call *c, labels *l, char label) {
    if (l->n == TG_MAX_DIMS) return tg_call_fail(c, TG_ERR_SHAPE, "the equation lists more than %d dims, the most "
                                                 "that are allowed", TG_MAX_DIMS);
    l->at[l->n++] = label;
    return TG_OK;
}

static bool is_letter(char at) { return (at >= 'a' && at <= 'z') || (at >= 'A' && at <= 'Z'); }

/* Sets the labels of the result if the equation has no "->": those that occur once, in alphabetical order, capitals
 * first. */
static tg_status imply_result(tg_call *c, einsum_params *p) {
    for (char l = 'A'; l <= 'z'; l++)
        if (is_letter(l) && count(&p->of[A], l) + count(&p->of[B], l) == 1) TG_TRY(append(c, &p->of[Y], l));
    return TG_OK;
}

/* Fills p->of from the equation. */
static tg_status parse(tg_call *c, einsum_params *p) {
    int side = A;
    for (int i = 0; i < SIDES; i++) p->of[i].n = 0;
    for (const char *s = p->equation; *s; s++) {
        if (*s == ' ') continue;
        if (*s == '.') return tg_call_fail(c, TG_ERR_ARGUMENT, "the equation has an ellipsis, which is not supported; "
                                           "give every dim a letter");
        if (*s == ',' && side == A)
            side = B;
        else if (*s == '-' && s[1] == '>' && side == B)
            side = Y, s++;
        else if (is_letter(*s))
            TG_TRY(append(c, &p->of[side], *s));
        else
            return tg_call_fail(c, TG_ERR_ARGUMENT, "character %d of the equation is unexpected; a valid equation is "
                                "\"ij,jk->ik\"", (int)(s - p->equation));
    }
    if (side == A) return tg_call_fail(c, TG_ERR_ARGUMENT, "the equation has one operand; it must have two, separated "
                                       "by a comma");
    if (side == B) TG_TRY(imply_result(c, p));
    for (int d = 0; d < p->of[Y].n; d++) {
        char l = p->of[Y].at[d];
        if (count(&p->of[Y], l) > 1) return tg_call_fail(c, TG_ERR_ARGUMENT, "label %c occurs twice in the result; it "
                                                         "may occur once", l);
        if (!has(&p->of[A], l) && !has(&p->of[B], l))
            return tg_call_fail(c, TG_ERR_ARGUMENT, "label %c of the result occurs in neither operand", l);
    }
    return TG_OK;
}

/* ---- Shapes and placements ---- */

/* Returns the size of the dims with this label in the operands, or -1 if neither has it. */
static int64_t size_of(const tg_call *c, char label) {
    for (int i = A; i <= B; i++)
        for (int d = 0; d < params(c)->of[i].n; d++)
            if (params(c)->of[i].at[d] == label) return c->input[i]->shape[d];
    return -1;
}

static tg_status check_sizes(tg_call *c) {
    for (int i = A; i <= B; i++) {
        const labels *l = &params(c)->of[i];
        if (l->n != c->input[i]->ndim)
            return tg_call_fail(c, TG_ERR_SHAPE, "operand %d has %s but %s in the equation; the counts must be equal",
                                i, tg_count(c->input[i]->ndim, "dim").text, tg_count(l->n, "label").text);
        for (int d = 0; d < l->n; d++) {
            int64_t size = size_of(c, l->at[d]);
            if (c->input[i]->shape[d] != size)
                return tg_call_fail(c, TG_ERR_SHAPE, "label %c has size %lld in one place and %lld in another; the "
                                    "sizes must be equal", l->at[d], (long long)size, (long long)c->input[i]->shape[d]);
        }
    }
    return TG_OK;
}

/* Returns whether both operands list the contracted labels, which both have and y lacks, in the same order. Only then
 * may the dims of these labels be sharded (TG_SUMMED of tg_call_role), because the placement rule pairs summed dims in
 * order. */
static bool contracts_in_order(const einsum_params *p) {
    char order[2][TG_MAX_DIMS];
    int n[2] = {0};
    for (int i = A; i <= B; i++)
        for (int d = 0; d < p->of[i].n; d++)
            if (has(&p->of[B - i], p->of[i].at[d]) && !has(&p->of[Y], p->of[i].at[d]))
                order[i][n[i]++] = p->of[i].at[d];
    return n[A] == n[B] && !memcmp(order[A], order[B], (size_t)n[A]);
}

/* States which dims of the operands may be sharded (tg_call_role): those whose label is in y and, if
 * contracts_in_order, those whose label is contracted. Dims of a label that the operand or y has twice must not be
 * sharded. */
static tg_status declare_roles(tg_call *c) {
    const einsum_params *p = params(c);
    bool paired = contracts_in_order(p);
    for (int i = A; i <= B; i++) {
        for (int d = 0; d < p->of[i].n; d++) {
            char l = p->of[i].at[d];
            if (count(&p->of[i], l) > 1 || count(&p->of[Y], l) > 1) continue;
            for (int j = 0; j < p->of[Y].n; j++)
                if (p->of[Y].at[j] == l) TG_TRY(tg_call_role(c, i, d, j));
            if (paired && has(&p->of[B - i], l) && !has(&p->of[Y], l)) TG_TRY(tg_call_role(c, i, d, TG_SUMMED));
        }
    }
    /* linear in a while b is fixed, and in b while a is fixed */
    TG_TRY(tg_call_linear(c, 1));
    return tg_call_linear(c, 2);
}

/* Infers from p->of. */
static tg_status labeled_infer(tg_call *c) {
    const einsum_params *p = params(c);
    int64_t shape[TG_MAX_DIMS];
    TG_TRY(tg_need_float(c, 0));
    TG_TRY(tg_need_same_dtype(c, 0, 1));
    TG_TRY(check_sizes(c));
    for (int d = 0; d < p->of[Y].n; d++) {
        int64_t size = size_of(c, p->of[Y].at[d]);
        shape[d] = size < 0 ? p->size[d] : size;
    }
    TG_TRY(declare_roles(c));
    if (!tg_needs(c, 1)) c->saves_in &= ~1u;
    if (!tg_needs(c, 0)) c->saves_in &= ~2u;
    return tg_call_out(c, 0, (tg_dtype)c->input[0]->dtype, p->of[Y].n, shape);
}

static tg_status einsum_infer(tg_call *c) {
    einsum_params *p = c->params;
    if (!p->labeled && !p->equation) return tg_call_fail(c, TG_ERR_ARGUMENT, "equation is NULL");
    if (!p->labeled) TG_TRY(parse(c, p));
    p->equation = NULL;
    p->labeled = true;
    return labeled_infer(c);
}

/* ---- One sum of products ---- */

/* A list of different labels, each of which becomes one dim. An array that has a label twice is read along its
 * diagonal. */
typedef struct axes {
    int n;
    char label[3 * TG_MAX_DIMS];
} axes;

/* An array with the labels of its dims. */
typedef struct operand {
    tg_array x;
    const labels *l;
    tg_extent e, flat; /* memory for layouts of x */
} operand;

/* Returns the stride of x along a label: the sum of the strides of its dims, or 0 if x does not have it. */
static int64_t step_of(const tg_array *x, const labels *l, char label) {
    int64_t step = 0;
    for (int d = 0; d < l->n; d++)
        if (l->at[d] == label) step += x->stride[d];
    return step;
}

/* Returns the size of x along a label, or -1 if x does not have it. */
static int64_t length_of(const tg_array *x, const labels *l, char label) {
    for (int d = 0; d < l->n; d++)
        if (l->at[d] == label) return x->shape[d];
    return -1;
}

/* Appends the labels of l that are also in `and`, are not in `without`, and are not in *to yet. `and` and `without`
 * may be NULL. */
static void add_axes(axes *to, const labels *l, const labels *and, const labels *without) {
    for (int d = 0; d < l->n; d++) {
        bool there = memchr(to->label, l->at[d], (size_t)to->n) != NULL;
        if (!there && (!and || has(and, l->at[d])) && !(without && has(without, l->at[d])))
            to->label[to->n++] = l->at[d];
    }
}

/* Views x with these axes as its dims. An axis that x lacks has stride 0, and the size in `like`, or 1 if like is
 * NULL. */
static tg_array along(tg_array x, const labels *l, const axes *a, const int64_t *like, tg_extent *e) {
    for (int d = 0; d < a->n; d++) {
        int64_t n = length_of(&x, l, a->label[d]);
        e->shape[d] = n >= 0 ? n : like ? like[d] : 1;
        e->stride[d] = n >= 0 ? step_of(&x, l, a->label[d]) : 0;
    }
    return tg_array_at(x, 0, a->n, e->shape, e->stride);
}

/* Replaces o->x by its sum over the labels that neither the other operand nor y has. The sum has the accumulation
 * dtype. Its labels are stored in *left, to which o->l then points. Does nothing if there are no such labels. */
static tg_status sum_lone_labels(tg_call *c, operand *o, const labels *other, const labels *y, labels *left) {
    axes kept = {0}, all = {0};
    tg_extent e, few;
    add_axes(&kept, o->l, other, NULL);
    add_axes(&kept, o->l, y, NULL);
    all = kept;
    add_axes(&all, o->l, NULL, NULL);
    if (all.n == kept.n) return TG_OK;
    tg_array x = along(o->x, o->l, &all, NULL, &e);
    tg_tensor *sum = tg_call_temp(c, tg_accumulate_dtype((tg_dtype)x.dtype), kept.n, e.shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    uint32_t gone = ((1u << all.n) - 1) & ~((1u << kept.n) - 1);
    TG_TRY(tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, tg_array_keep(tg_array_of(sum), all.n, gone, &few), x, 1, false));
    o->x = tg_array_of(sum);
    left->n = kept.n;
    memcpy(left->at, kept.label, (size_t)kept.n);
    o->l = left;
    return TG_OK;
}

/* y (+)= p q element by element. Used if nothing is contracted. */
static tg_status multiply(tg_call *c, const operand *y, const operand *p, const operand *q, bool add) {
    axes all = {0};
    tg_extent ey, ep, eq;
    add_axes(&all, y->l, NULL, NULL);
    tg_array to = along(y->x, y->l, &all, NULL, &ey);
    const tg_array in[] = {along(p->x, p->l, &all, to.shape, &ep), along(q->x, q->l, &all, to.shape, &eq)};
    return tg_ctx_ops(c->ctx)->apply(c->ctx, TG_FN_mul, to, in, 2, (const double[2]){0}, add);
}

/* Makes o->x a view with the axes as its dims. If the strides allow it, merges these dims to the three dims size[]:
 * batch, rows, columns. Returns whether the strides allow it. */
static bool grouped(operand *o, const axes *a, const int64_t *size) {
    o->x = along(o->x, o->l, a, NULL, &o->e);
    return tg_array_reshape(&o->x, 3, size, o->flat.stride);
}

/* Makes o->x an array with the three dims size[] and this dtype: a view as in grouped, or a copy if the strides do not
 * allow a view or the dtype is another. */
static tg_status as_matrices(tg_call *c, operand *o, const axes *a, const int64_t *size, tg_dtype dtype) {
    bool fits = grouped(o, a, size);
    if (fits && o->x.dtype == dtype) return TG_OK;
    tg_tensor *copy = fits ? tg_call_temp(c, dtype, 3, size) : tg_call_temp(c, dtype, a->n, o->e.shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_copy(c, tg_array_of(copy), o->x, false));
    o->x = tg_array_of(copy);
    tg_array_reshape(&o->x, 3, size, o->flat.stride);
    return TG_OK;
}

/* Returns x [batch, rows, columns] as matrices for gemm, transposed if `transposed` is true. */
static tg_matrix matrix(const tg_array *x, bool transposed) {
    return (tg_matrix){.data = x->data, .rs = x->stride[1 + transposed], .cs = x->stride[2 - transposed],
                       .bs = {0, x->stride[0]}, .dtype = (tg_dtype)x->dtype};
}

/* Returns the product of x's sizes along axes [from, to). */
static int64_t elements(const tg_array *x, const labels *l, const axes *a, int from, int to) {
    int64_t n = 1;
    for (int d = from; d < to; d++) n *= length_of(x, l, a->label[d]);
    return n;
}

/* y (+)= from. The dims of `from` are the axes a; `from` is repeated along y's other axes. */
static tg_status spread(tg_call *c, const operand *y, const axes *a, tg_array from, bool add) {
    labels l = {.n = a->n};
    axes all = {0};
    tg_extent ey, ef;
    memcpy(l.at, a->label, (size_t)a->n);
    add_axes(&all, y->l, NULL, NULL);
    tg_array to = along(y->x, y->l, &all, NULL, &ey);
    return tg_op_copy(c, to, along(from, &l, &all, to.shape, &ef), add);
}

/* y (+)= the batched matrix product of p and q. gemm writes y directly if y's strides and dtype allow it, otherwise a
 * temporary. */
static tg_status contract(tg_call *c, const operand *y, operand *p, operand *q, bool add) {
    axes batch = {0}, ay, ap, aq; /* ay: batch, m and n labels; ap: batch, m and k labels; aq: batch, n and k labels */
    add_axes(&batch, y->l, p->l, NULL);
    int shared = 0;
    for (int d = 0; d < batch.n; d++) /* keeps only the labels that q has too */
        if (has(q->l, batch.label[d])) batch.label[shared++] = batch.label[d];
    batch.n = shared;
    ay = ap = aq = batch;
    add_axes(&ay, y->l, p->l, q->l);
    add_axes(&ap, y->l, p->l, q->l);
    int rows = ap.n;
    add_axes(&ay, y->l, q->l, p->l);
    add_axes(&aq, y->l, q->l, p->l);
    int cols = aq.n;
    add_axes(&ap, p->l, q->l, y->l);
    add_axes(&aq, p->l, q->l, y->l);
    int64_t u = elements(&p->x, p->l, &batch, 0, shared), m = elements(&p->x, p->l, &ap, shared, rows),
            n = elements(&q->x, q->l, &aq, shared, cols), k = elements(&p->x, p->l, &ap, rows, ap.n);
    /* Operands of one dtype keep it. If sum_lone_labels has widened one of them, the other is widened too. */
    tg_dtype dtype = p->x.dtype == q->x.dtype ? (tg_dtype)p->x.dtype : tg_accumulate_dtype((tg_dtype)p->x.dtype);
    TG_TRY(as_matrices(c, p, &ap, (const int64_t[]){u, m, k}, dtype));
    TG_TRY(as_matrices(c, q, &aq, (const int64_t[]){u, n, k}, dtype));
    operand z = *y;
    axes all = {0};
    add_axes(&all, y->l, NULL, NULL);
    const int64_t size[] = {u, m, n};
    bool direct = all.n == ay.n && (y->x.dtype == dtype || y->x.dtype == tg_accumulate_dtype(dtype));
    direct = direct && grouped(&z, &ay, size);
    if (!direct) {
        const tg_tensor *product = tg_call_temp(c, tg_accumulate_dtype(dtype), 3, size);
        if (!tg_ok(c->ctx)) return c->ctx->run.status;
        z.x = tg_array_of(product);
    }
    if (u == 0 || m == 0 || n == 0) return TG_OK;
    const tg_gemm g = {.m = m, .n = n, .k = k, .batch = {1, u}, .a = matrix(&p->x, false), .b = matrix(&q->x, true),
                       .c = matrix(&z.x, false), .alpha = 1, .beta = direct && add};
    TG_TRY(tg_ctx_ops(c->ctx)->gemm(c->ctx, &g));
    if (direct) return TG_OK;
    tg_extent e, flat;
    along(y->x, y->l, &ay, NULL, &e);
    tg_array_reshape(&z.x, ay.n, e.shape, flat.stride);
    return spread(c, y, &ay, z.x, add);
}

static bool has_twice(const labels *l) {
    for (int d = 0; d < l->n; d++)
        if (count(l, l->at[d]) > 1) return true;
    return false;
}

/* to (+)= the sum of products of p and q, by their labels. */
static tg_status sum_products(tg_call *c, const tg_tensor *to, const labels *ly, const tg_tensor *p, const labels *lp,
                              const tg_tensor *q, const labels *lq, bool add) {
    operand y = {.x = tg_array_of(to), .l = ly}, a = {.x = tg_array_of(p), .l = lp}, b = {.x = tg_array_of(q), .l = lq};
    labels left[2];
    axes contracted = {0};
    if (has_twice(ly) && !add) TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, y.x, 0));
    TG_TRY(sum_lone_labels(c, &a, lq, ly, &left[0]));
    TG_TRY(sum_lone_labels(c, &b, lp, ly, &left[1]));
    add_axes(&contracted, a.l, b.l, ly);
    return contracted.n ? contract(c, &y, &a, &b, add) : multiply(c, &y, &a, &b, add);
}

static tg_status einsum_forward(tg_call *c) {
    const labels *of = params(c)->of;
    return sum_products(c, c->out[0], &of[Y], c->input[0], &of[A], c->input[1], &of[B], false);
}

static tg_status einsum_backward(tg_call *c) {
    const labels *of = params(c)->of;
    const tg_tensor *g = c->gout[0];
    if (c->gin_mode[0] != TG_GRAD_NONE)
        TG_TRY(sum_products(c, c->gin[0], &of[A], g, &of[Y], c->input[1], &of[B], tg_adds(c, 0)));
    if (c->gin_mode[1] == TG_GRAD_NONE) return TG_OK;
    return sum_products(c, c->gin[1], &of[B], c->input[0], &of[A], g, &of[Y], tg_adds(c, 1));
}

/* ---- The same computation as recorded ops ---- */

extern const tg_op tg_op_einsum;

/* Records the op with given labels. `like` has the sizes of the result. */
static tg_tensor *labeled(tg_tape *t, tg_tensor *a, const labels *la, tg_tensor *b, const labels *lb,
                          const tg_tensor *like, const labels *ly) {
    einsum_params p = {.labeled = true, .of = {[A] = *la, [B] = *lb, [Y] = *ly}};
    memcpy(p.size, like->shape, like->ndim * sizeof *like->shape);
    return TG_RECORD(t, tg_op_einsum, &p, a, b);
}

static tg_status einsum_vjp(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    const labels *of = ((const einsum_params *)tg_node_params(n))->of;
    tg_tensor *a = tg_node_in(n)[0], *b = tg_node_in(n)[1], *g = gout[0];
    if (tg_node_needs_grad(n, 0)) gin[0] = labeled(t, g, &of[Y], b, &of[B], a, &of[A]);
    if (tg_node_needs_grad(n, 1)) gin[1] = labeled(t, a, &of[A], g, &of[Y], b, &of[B]);
    return TG_OK;
}

/* Counts two operations for each combination of indices. */
static int64_t einsum_flops(const tg_node *n) {
    const einsum_params *p = tg_node_params(n);
    axes seen = {0};
    int64_t flops = 2;
    for (int i = A; i <= B; i++)
        for (int d = 0; d < p->of[i].n; d++) {
            if (memchr(seen.label, p->of[i].at[d], (size_t)seen.n)) continue;
            seen.label[seen.n++] = p->of[i].at[d];
            flops = tg_flops(flops, tg_dim(tg_node_input(n, i), d));
        }
    return flops;
}

#define EQUATION(text) &(const einsum_params){.equation = (text)}
static const tg_sample einsum_samples[] = {
    {.note = "matrices", .params = EQUATION("ij,jk->ik"), .n_in = 2, .input = {TG_S(3, 4), TG_S(4, 5)}},
    {.note = "without a result", .params = EQUATION("bA, aA"), .n_in = 2, .input = {TG_S(3, 4), TG_S(2, 4)}},
    {.note = "attention scores", .params = EQUATION("bqhd,bkhd->bhqk"), .n_in = 2,
     .input = {TG_S(2, 3, 2, 4), TG_S(2, 5, 2, 4)}},
    {.note = "result in another order", .params = EQUATION("bij,bjk->kib"), .n_in = 2,
     .input = {TG_S(2, 3, 4), TG_S(2, 4, 5)}},
    {.note = "two contracted, crossed", .params = EQUATION("ijk,kjl->li"), .n_in = 2,
     .input = {TG_S(2, 3, 4), TG_S(4, 3, 2)}},
    {.note = "all contracted", .params = EQUATION("ij,ij->"), .n_in = 2, .input = {TG_S(3, 4), TG_S(3, 4)}},
    {.note = "products alone", .params = EQUATION("ij,ij->ji"), .n_in = 2, .input = {TG_S(3, 4), TG_S(3, 4)}},
    {.note = "outer", .params = EQUATION("ij,k->kij"), .n_in = 2, .input = {TG_S(2, 3), TG_S(4)}},
    {.note = "lone labels", .params = EQUATION("ijk,jl->i"), .n_in = 2, .input = {TG_S(2, 3, 4), TG_S(3, 5)}},
    {.note = "lone labels, nothing contracted", .params = EQUATION("ij,kl->k"), .n_in = 2,
     .input = {TG_S(2, 3), TG_S(4, 2)}},
    {.note = "one label lone", .params = EQUATION("ij,jk->k"), .n_in = 2, .input = {TG_S(3, 4), TG_S(4, 2)}},
    {.note = "diagonal", .params = EQUATION("ii,ij->ij"), .n_in = 2, .input = {TG_S(3, 3), TG_S(3, 2)}},
    {.note = "diagonals contracted", .params = EQUATION("iij,ikk->jk"), .n_in = 2,
     .input = {TG_S(3, 3, 2), TG_S(3, 2, 2)}},
    {.note = "trace times a number", .params = EQUATION("ii,->"), .n_in = 2, .input = {TG_S(4, 4), TG_S_SCALAR}},
    {.note = "transposed, strided", .params = EQUATION("ij,jk->ki"), .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 4, 5)}},
    {.note = "expanded", .params = EQUATION("bij,bkj->bik"), .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 2, 3, 4), TG_S(2, 5, 4)}},
    {.note = "one with itself", .params = EQUATION("ij,kj->ik"), .n_in = 2, .input = {TG_S(3, 4), TG_S(3, 4)},
     .aliases = true},
    {.note = "scalars", .params = EQUATION(",->"), .n_in = 2, .input = {TG_S_SCALAR, TG_S_SCALAR}},
    {.note = "size 1", .params = EQUATION("ij,jk->ik"), .n_in = 2, .input = {TG_S(1, 1), TG_S(1, 1)}},
    {.note = "of nothing: zeros", .params = EQUATION("ij,jk->ik"), .n_in = 2, .input = {TG_S(2, 0), TG_S(0, 3)}},
    {.note = "empty", .params = EQUATION("bij,bjk->bik"), .n_in = 2, .input = {TG_S(0, 2, 3), TG_S(0, 3, 2)}},
    {.note = "ellipsis", .params = EQUATION("...ij,jk->ik"), .n_in = 2, .input = {TG_S(2, 2), TG_S(2, 2)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "one operand", .params = EQUATION("ij->ji"), .n_in = 2, .input = {TG_S(2, 2), TG_S(2, 2)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "no operand has it", .params = EQUATION("ij,jk->iz"), .n_in = 2, .input = {TG_S(2, 2), TG_S(2, 2)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "twice in the result", .params = EQUATION("ij,jk->ii"), .n_in = 2, .input = {TG_S(2, 2), TG_S(2, 2)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "sizes differ", .params = EQUATION("ij,jk->ik"), .n_in = 2, .input = {TG_S(3, 4), TG_S(3, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "too few labels", .params = EQUATION("i,jk->ik"), .n_in = 2, .input = {TG_S(3, 4), TG_S(3, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "integers", .params = EQUATION("i,i->"), .n_in = 2, .input = {TG_S_INDEX(4, 3), TG_S_INDEX(4, 3)},
     .refused = TG_ERR_DTYPE},
    {.note = "big", .params = EQUATION("bqhd,bkhd->bhqk"), .n_in = 2,
     .input = {TG_S(4, 256, 8, 64), TG_S(4, 256, 8, 64)}, .bench = true},
};

static const tg_field einsum_fields[] = {
    TG_ARG(einsum_params, equation, TEXT, "A letter for each dim, such as \"bij,bjk->bik\".", .required = true),
};

const tg_op tg_op_einsum = {
    .size = sizeof(tg_op), .name = "einsum", .formula = "sums of products of a and b by labels", .inputs = "a b",
    .n_in = 2, .n_out = 1, .params_size = sizeof(einsum_params), .saves_in = 3, .family = TG_FAMILY_CUSTOM,
    .sums_f32 = true, .infer = einsum_infer, .forward = einsum_forward, .backward = einsum_backward, .vjp = einsum_vjp,
    .jvp = tg_jvp_multilinear, .flops = einsum_flops, TG_FIELDS(einsum_fields), TG_SAMPLES(einsum_samples)};

/* Contracts two operands by an equation in the notation of NumPy and PyTorch, as "bij,bjk->bik". Each dim has one
 * letter. A letter that the result does not list is summed over; a letter that occurs twice in one operand selects
 * its diagonal. Without "->" the result has the letters that occur once, in alphabetical order. Dims with the same
 * letter must have equal sizes (1 does not broadcast). An ellipsis is refused. */
tg_tensor *tg_einsum(tg_tape *t, const char *equation, tg_tensor *a, tg_tensor *b) {
    return TG_RECORD(t, tg_op_einsum, &(einsum_params){.equation = equation}, a, b);
}

/* ---- outer, dot ---- */

static tg_status vectors_infer(tg_call *c, labels a, labels b, labels y) {
    einsum_params *p = c->params;
    if (c->input[0]->ndim != 1 || c->input[1]->ndim != 1)
        return tg_call_fail(c, TG_ERR_SHAPE, "inputs have %d and %s; both must be vectors", c->input[0]->ndim,
                            tg_count(c->input[1]->ndim, "dim").text);
    p->of[A] = a;
    p->of[B] = b;
    p->of[Y] = y;
    return labeled_infer(c);
}

static tg_status outer_infer(tg_call *c) {
    return vectors_infer(c, (labels){1, "i"}, (labels){1, "j"}, (labels){2, "ij"});
}

static tg_status dot_infer(tg_call *c) { return vectors_infer(c, (labels){1, "i"}, (labels){1, "i"}, (labels){0}); }

#define NO_LABELS &(const einsum_params){.equation = NULL}
#define VECTOR_SAMPLES(n_)                                                                                             \
    {.note = "vectors", .params = NO_LABELS, .n_in = 2, .input = {TG_S(5), TG_S(n_)}},                                 \
    {.note = "strided, expanded", .params = NO_LABELS, .n_in = 2,                                                      \
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 5), TG_S_AS(TG_SAMPLE_EXPANDED, n_)}},                                       \
    {.note = "one with itself", .params = NO_LABELS, .n_in = 2, .input = {TG_S(4), TG_S(4)}, .aliases = true},         \
    {.note = "size 1", .params = NO_LABELS, .n_in = 2, .input = {TG_S(1), TG_S(1)}},                                   \
    {.note = "empty", .params = NO_LABELS, .n_in = 2, .input = {TG_S(0), TG_S(0)}},                                    \
    {.note = "a matrix", .params = NO_LABELS, .n_in = 2, .input = {TG_S(3, 3), TG_S(3)}, .refused = TG_ERR_SHAPE},     \
    {.note = "a scalar", .params = NO_LABELS, .n_in = 2, .input = {TG_S(3), TG_S_SCALAR}, .refused = TG_ERR_SHAPE},    \
    {.note = "integers", .params = NO_LABELS, .n_in = 2, .input = {TG_S_INDEX(4, 3), TG_S_INDEX(4, 3)},                \
     .refused = TG_ERR_DTYPE},                                                                                         \
    {.note = "other dtypes", .params = NO_LABELS, .n_in = 2, .input = {TG_S(3), TG_S_INDEX(4, 3)},                     \
     .refused = TG_ERR_DTYPE}

static const tg_sample outer_samples[] = {
    VECTOR_SAMPLES(3),
    {.note = "big", .params = NO_LABELS, .n_in = 2, .input = {TG_S(1024), TG_S(1024)}, .bench = true},
};
static const tg_sample dot_samples[] = {
    VECTOR_SAMPLES(5),
    {.note = "sizes differ", .params = NO_LABELS, .n_in = 2, .input = {TG_S(3), TG_S(4)}, .refused = TG_ERR_SHAPE},
    {.note = "big", .params = NO_LABELS, .n_in = 2, .input = {TG_S(1048576), TG_S(1048576)}, .bench = true},
};

#define VECTORS(name_, text)                                                                                       \
    const tg_op tg_op_##name_ = {                                                                                  \
        .size = sizeof(tg_op), .name = #name_, .formula = text, .inputs = "a b", .n_in = 2, .n_out = 1,            \
        .params_size = sizeof(einsum_params), .saves_in = 3, .family = TG_FAMILY_CUSTOM, .sums_f32 = true,         \
        .infer = name_##_infer, .forward = einsum_forward, .backward = einsum_backward, .vjp = einsum_vjp,         \
        .jvp = tg_jvp_multilinear, .flops = einsum_flops, TG_SAMPLES(name_##_samples)};                            \
    tg_tensor *tg_##name_(tg_tape *t, tg_tensor *a, tg_tensor *b) {                                                \
        return TG_RECORD(t, tg_op_##name_, &(einsum_params){.equation = NULL}, a, b);                              \
    }

/* Returns every product of an element of a [m] and one of b [n]: [m, n]. */
VECTORS(outer, "y[i, j] = a[i] b[j]")
/* Returns a scalar: the sum of the products of the elements of two vectors [n]. */
VECTORS(dot, "sum of a[i] b[i]")
