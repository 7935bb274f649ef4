/* Every mapping on all of its samples, on the number of thread ranks that each sample needs. Results are compared
 * with plain loops, and each op with its backward by the adjoint test <u, forward(v)> = <backward(u), v>. u and v
 * are drawn by placement; pairs of INVARIANT tensors count once, others are summed over the ranks. The adjoint test
 * must find seeded wrong backwards. */
#include "parallel/mapping_run.h"

#include <tapegrad/op.h>

#include "check_main.h"

typedef enum kind {
    KEEP,
    SUM,
    MAX,
    SHARE,
    PART,
    JOIN,
    PART_OF_SUM,
    IN_ZEROS,
    EXCHANGE,
    RESHARD,
    SHIFT,
    OF_ROOT,
    ON_ROOT
} kind;

/* What each op does with values, and its placements. to 0: as the params say. */
static const struct row {
    const char *name;
    kind kind;
    char from, to;
} table[] = {
    {"CopyToModelParallelRegion", KEEP, 'I', 'R'},
    {"ReduceFromModelParallelRegion", SUM, 'P', 'I'},
    {"ScatterToModelParallelRegion", PART, 'I', 'V'},
    {"GatherFromModelParallelRegion", JOIN, 'V', 'I'},
    {"ScatterToSequenceParallelRegion", PART, 'I', 'V'},
    {"GatherFromSequenceParallelRegion", JOIN, 'V', 0},
    {"ReduceScatterToSequenceParallelRegion", PART_OF_SUM, 'P', 'V'},
    {"AllGatherFromTensorParallelRegion", JOIN, 'V', 'R'},
    {"ReduceScatterToTensorParallelRegion", PART_OF_SUM, 'P', 'V'},
    {"AllToAll", EXCHANGE, 'V', 'V'},
    {"all_reduce", SUM, 'P', 'R'},
    {"all_reduce_max", MAX, 'V', 'I'},
    {"scatter_to", PART, 'I', 'V'},
    {"gather_from", JOIN, 'V', 'I'},
    {"all_gather", JOIN, 'V', 'R'},
    {"reduce_scatter", PART_OF_SUM, 'P', 'V'},
    {"shard", PART, 'R', 'V'},
    {"unshard", IN_ZEROS, 'V', 'P'},
    {"reshard", RESHARD, 'V', 'V'},
    {"shift", SHIFT, 'V', 'V'},
    {"broadcast", OF_ROOT, 'V', 'I'},
    {"on_root", ON_ROOT, 'I', 'V'},
    {"as_partial", KEEP, 'V', 'P'},
    {"as_local", KEEP, 'R', 'V'},
    {"as_opaque", KEEP, 'V', 'V'},
    {"as_shard", KEEP, 'V', 'V'},
    {"i_to_p", SHARE, 'I', 'P'},
    {"r_to_i", KEEP, 'R', 'I'},
};

static const struct row *row_of(const tg_op *op) {
    for (int i = 0; i < TG_LEN(table); i++)
        if (!strcmp(table[i].name, op->name)) return &table[i];
    return NULL;
}

#define REPORT(m, format, ...)                                                                                         \
    ck_abort_msg("%s (%s), %d ranks, %s: " format, (m)->op->name, tg_sample_at((m)->op, (m)->sample)->note,            \
                 (m)->ranks, tg_dtype_name((m)->dtype), __VA_ARGS__)

static double tolerance(tg_dtype d) { return d == TG_F64 ? 1e-12 : d == TG_F32 ? 1e-5 : d == TG_BF16 ? 0.02 : 0.003; }

/* ---- Plain loops ---- */

/* Returns the rank that has index i of a whole dim of `size`, and the index in its part. */
static void owner(const mapping_run *m, int64_t size, int64_t i, int *rank, int64_t *at) {
    const tg_mapping_params *p = tg_sample_at(m->op, m->sample)->params;
    int64_t n = m->ranks, k = p->shard.layout == TG_STRIDED ? p->shard.chunks : p->shard.layout == TG_ZIGZAG ? 2 : 1;
    if (p->splits) {
        for (*rank = 0; i >= p->splits[*rank]; ++*rank) i -= p->splits[*rank];
        *at = i;
        return;
    }
    int64_t w = size / n / k, chunk = w ? i / w : 0;
    if (k == 1) {
        *rank = (int)chunk;
        *at = i % w;
    } else if (p->shard.layout == TG_STRIDED) {
        *rank = (int)(chunk % n);
        *at = chunk / n * w + i % w;
    } else {
        *rank = (int)(chunk < n ? chunk : 2 * n - 1 - chunk);
        *at = (chunk < n ? 0 : w) + i % w;
    }
}

static int dim_of(int d, const seen *s) { return d < 0 ? d + s->ndim : d; }

/* Returns the index along dim of element i of a in row-major order, or the element of b with another index there. */
static int64_t along(const seen *a, int dim, int64_t i) {
    for (int d = a->ndim - 1; d > dim; d--) i /= a->shape[d];
    return i % a->shape[dim];
}

static int64_t moved(const seen *a, int64_t i, const seen *b, const int *dims, const int64_t *to, int n) {
    int64_t index[TG_MAX_DIMS], at = 0;
    for (int d = 0; d < a->ndim; d++) index[d] = along(a, d, i);
    for (int k = 0; k < n; k++) index[dims[k]] = to[k];
    for (int d = 0; d < b->ndim; d++) at = at * b->shape[d] + index[d];
    return at;
}

static double sum_at(const mapping_run *m, int64_t i) {
    double sum = 0;
    for (int r = 0; r < m->ranks; r++) sum += m->at[r].x.v[i];
    return sum;
}

/* Numbers of rows of an exchange, equal or as the sample says; the same on every rank. */
static double exchanged(const mapping_run *m, const seen *y, int me, int64_t i) {
    int64_t each = y->shape[0] / m->ranks, row = along(y, 0, i), from = row / each;
    int64_t in = me * each + row % each;
    return m->at[from].x.v[moved(y, i, &m->at[from].x, (int[]){0}, &in, 1)];
}

static double resharded(const mapping_run *m, const tg_mapping_params *p, const seen *y, int me, int64_t i) {
    int dims[2] = {dim_of(p->dim, y), dim_of(p->cut, y)};
    int64_t part = m->at[0].x.shape[dims[0]], width = y->shape[dims[1]], j = along(y, dims[0], i);
    int64_t to[2] = {j % part, me * width + along(y, dims[1], i)};
    const seen *x = &m->at[j / part].x;
    return x->v[moved(y, i, x, dims, to, 2)];
}

/* Returns the expected element i of rank me. */
static double expected(const mapping_run *m, kind k, int me, int64_t i) {
    const tg_mapping_params *p = tg_sample_at(m->op, m->sample)->params;
    const seen *x = &m->at[me].x, *y = &m->at[me].y;
    int dim = dim_of(p->dim, y), rank;
    int64_t at;
    switch (k) {
    case KEEP:
        return x->v[i];
    case SUM:
        return sum_at(m, i);
    case SHARE:
        return x->v[i] / m->ranks;
    case OF_ROOT:
        return m->at[p->root].x.v[i];
    case ON_ROOT:
        return me == p->root ? x->v[i] : 0;
    case SHIFT:
        return m->at[(me - p->root + m->ranks) % m->ranks].x.v[i];
    case EXCHANGE:
        return exchanged(m, y, me, i);
    case RESHARD:
        return resharded(m, p, y, me, i);
    case MAX: {
        double most = m->at[0].x.v[i];
        for (int r = 1; r < m->ranks; r++) most = fmax(most, m->at[r].x.v[i]);
        return most;
    }
    case JOIN:
    case IN_ZEROS:
        owner(m, y->shape[dim], along(y, dim, i), &rank, &at);
        if (k == IN_ZEROS && rank != me) return 0;
        return m->at[rank].x.v[moved(y, i, &m->at[rank].x, &dim, &at, 1)];
    default:
        break;
    }
    for (int64_t j = 0; j < x->n; j++) { /* PART and PART_OF_SUM: the element of the whole tensor */
        owner(m, x->shape[dim], along(x, dim, j), &rank, &at);
        if (rank == me && moved(x, j, y, &dim, &at, 1) == i) return k == PART ? x->v[j] : sum_at(m, j);
    }
    return NAN;
}

static void check_values(const mapping_run *m, kind k) {
    for (int r = 0; r < m->ranks; r++)
        for (int64_t i = 0; i < m->at[r].y.n; i++) {
            double got = m->at[r].y.v[i], want = expected(m, k, r, i);
            if (!(fabs(got - want) <= tolerance(m->dtype) * (1 + fabs(want))))
                REPORT(m, "element %lld on rank %d is %.9g, expected %.9g", (long long)i, r, got, want);
        }
}

/* ---- The adjoint test ---- */

static bool equal_ranks(const mapping_run *m, size_t which) {
    const seen *first = (const seen *)((const char *)&m->at[0] + which);
    for (int r = 1; r < m->ranks; r++)
        if (!same_seen(first, (const seen *)((const char *)&m->at[r] + which))) return false;
    return true;
}

static double dot(const seen *a, const seen *b) {
    double sum = 0;
    for (int64_t i = 0; i < a->n; i++) sum += a->v[i] * b->v[i];
    return sum;
}

/* Returns the product of a tensor and its cotangent over the ranks, by placement. */
static double pairing(const mapping_run *m, char placement, size_t a, size_t b) {
    double sum = 0;
    for (int r = 0; r < (placement == 'I' ? 1 : m->ranks); r++) {
        const char *at = (const char *)&m->at[r];
        sum += dot((const seen *)(at + a), (const seen *)(at + b));
    }
    return sum;
}

#define AT(field)  offsetof(rank_record, field)
#define WRONG(...) return snprintf(why, n, __VA_ARGS__), false

static bool adjoint(const mapping_run *m, char *why, size_t n) {
    if (!differs_by_rank(m->to) && !equal_ranks(m, AT(y))) WRONG("results claimed equal differ");
    if (!tg_is_float(m->dtype) || !m->op->backward) return true;
    if (!differs_by_rank(dual_of(m->from)) && !equal_ranks(m, AT(gx))) WRONG("gradients claimed equal differ");
    for (int r = 0; r < m->ranks; r++)
        if (m->at[r].gx.n != m->at[r].x.n) WRONG("the gradient of rank %d has another size", r);
    double forward = pairing(m, m->to, AT(u), AT(y)), backward = pairing(m, m->from, AT(gx), AT(x));
    double size = 1 + sqrt(pairing(m, m->to, AT(u), AT(u)) * pairing(m, m->to, AT(y), AT(y)));
    if (!(fabs(forward - backward) <= tolerance(m->dtype) * size))
        WRONG("<u, forward(v)> is %.12g, <backward(u), v> %.12g", forward, backward);
    return true;
}

/* ---- Every op, every sample ---- */

static mapping_run run; /* NOLINT: large, and only in a test */

static void check_run(const struct row *row) {
    char why[128] = "";
    const tg_sample *s = tg_sample_at(run.op, run.sample);
    run.from = row->from;
    run.to = row->to;
    run_mapping(&run);
    if (run.status != s->refused)
        REPORT(&run, "%s, expected %s: %s", tg_status_name(run.status), tg_status_name(s->refused), run.message);
    if (s->refused) return;
    check_values(&run, row->kind);
    if (!run.add && !adjoint(&run, why, sizeof why)) REPORT(&run, "%s", why);
    for (int r = 0; r < run.ranks; r++) {
        if (run.at[r].changed) REPORT(&run, "backward wrote what it was given, on rank %d", r);
        if (run.op->vjp && !run.add && !same_seen(&run.at[r].vjp, &run.at[r].gx))
            REPORT(&run, "its vjp is another gradient than its backward's, on rank %d", r);
    }
}

/* A contribution of 3 times another cotangent existed before. */
static void check_added(const struct row *row) {
    static rank_record before[MOST_RANKS];
    memcpy(before, run.at, sizeof before);
    run.add = true;
    check_run(row);
    run.add = false;
    for (int r = 0; r < run.ranks; r++)
        for (int64_t i = 0; i < run.at[r].gx.n; i++)
            if (!(fabs(run.at[r].gx.v[i] - before[r].gx.v[i] - 3 * number(i, 7)) <= 1e-12))
                REPORT(&run, "gradient %lld of rank %d is not added to another's", (long long)i, r);
}

static bool is_mapping(const tg_op *op) {
    return op->family == TG_FAMILY_CUSTOM && op->n_in == 1 && op->params_size == sizeof(tg_mapping_params);
}

static void check_op(const tg_op *op) {
    const struct row *row = row_of(op);
    ck_assert_msg(row != NULL, "the table has no row for %s", op->name);
    for (int i = 0; i < op->n_samples; i++) {
        const tg_sample *s = tg_sample_at(op, i);
        if (s->ranks <= 1) continue;
        run = (mapping_run){.op = op, .sample = i, .dtype = TG_F64};
        check_run(row);
        if (s->refused) continue;
        if (op->backward) check_added(row);
        for (tg_dtype d = TG_F32; d <= TG_F16; d++) {
            run = (mapping_run){.op = op, .sample = i, .dtype = d, .layout = SEED_TRANSPOSED};
            check_run(row);
        }
    }
}

START_TEST(values_and_adjoints_are_right) {
    int ops = 0;
    for (int i = 0; i < tg_op_count(); i++) {
        if (!is_mapping(tg_op_at(i))) continue;
        check_op(tg_op_at(i));
        ops++;
    }
    ck_assert_int_eq(ops, TG_LEN(table));
}
END_TEST

/* ---- Wrong backwards ---- */

/* How an op changes sizes: ops of one group can have each other's backward. */
static int shape_group(kind k) {
    return k == PART || k == PART_OF_SUM ? 1 : k == JOIN || k == IN_ZEROS ? 2 : k == RESHARD ? 3 : 0;
}

/* Only the sum of shares counts. */
static bool same_gradients(const rank_record *a, const rank_record *b, int ranks, bool shares) {
    for (int r = 0; r < ranks; r++)
        if (!shares && !same_seen(&a[r].gx, &b[r].gx)) return false;
    for (int64_t i = 0; shares && i < a[0].gx.n; i++) {
        double difference = 0;
        for (int r = 0; r < ranks; r++) difference += a[r].gx.v[i] - b[r].gx.v[i];
        if (difference != 0) return false;
    }
    return true;
}

/* Returns whether the first sample of op finds the backward of another op wrong. *same: that backward is the same
 * function there. */
static bool finds(const struct row *row, const tg_op *other, bool *same) {
    static rank_record right[MOST_RANKS];
    const tg_op *op = tg_op_find(row->name);
    char why[128];
    run = (mapping_run){.op = op, .dtype = TG_F64, .from = row->from, .to = row->to};
    run_mapping(&run);
    memcpy(right, run.at, sizeof right);
    run.backward = other->backward;
    run_mapping(&run);
    *same = run.status == TG_OK && same_gradients(right, run.at, run.ranks, row->from == 'R');
    return run.status != TG_OK || !adjoint(&run, why, sizeof why);
}

START_TEST(wrong_backwards_are_found) {
    int caught = 0, equivalent = 0;
    for (int i = 0; i < TG_LEN(table); i++)
        for (int j = 0; j < TG_LEN(table); j++) {
            const tg_op *op = tg_op_find(table[i].name), *other = tg_op_find(table[j].name);
            bool same;
            if (!op->backward || !other->backward || op->backward == other->backward) continue;
            if (shape_group(table[i].kind) != shape_group(table[j].kind)) continue;
            bool found = finds(&table[i], other, &same);
            ck_assert_msg(found || same, "%s with the backward of %s passes", op->name, other->name);
            caught += found;
            equivalent += same;
        }
    printf("%d wrong backwards found, %d are the same function\n", caught, equivalent);
    ck_assert_int_gt(caught, 100);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {values_and_adjoints_are_right, wrong_backwards_are_found};
    return tg_check_main("mappings", tests, sizeof tests / sizeof tests[0]);
}
