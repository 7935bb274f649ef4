/* Automatic mutants: the backward of every op of the table, on each of its samples, is made wrong in every way of the
 * list below. tg_gradcheck_op must find each one and name its cause. A mutant that gives the op's own gradient on a
 * sample (no gradient, a symmetric one, nothing to add to) is equivalent, and is skipped. */
#define QUICK_PART 8 /* each op is checked some hundred times */
#include "ops/registry.h"

#include <tapegrad/gradcheck.h>

#include "autograd/backward.h"
#include "tape/tape.h"
#include "autograd/gradients.h"

/* ---- Kinds of mutants ---- */

/* X(NAME, description, kind of tensor that it acts on, text that the report must contain) */
#define MUTANTS(X)                                                                                                     \
    X(NOTHING, "nothing", GRADIENT, "")                                                                                \
    X(SCALED, "gin times 1.001", GRADIENT, "")                                                                         \
    X(ZEROED, "gin zeroed", GRADIENT, "the gradient is zero")                                                          \
    X(NEGATED, "gin negated", GRADIENT, "the sign is wrong")                                                           \
    X(TRANSPOSED, "gin transposed", GRADIENT, "")                                                                      \
    X(SWAPPED, "gin of the wrong input", GRADIENT, "")                                                                 \
    X(UNFINISHED, "last element of gin left out", GRADIENT, "never written")                                           \
    X(ADDS, "ADD for WRITE", GRADIENT, "memory was read that should be overwritten")                                   \
    X(WRITES, "WRITE for ADD", GRADIENT, "it writes where TG_GRAD_ADD asks")                                           \
    X(SPOILS_INPUT, "input written", INPUT, "backward wrote into")                                                     \
    X(SPOILS_OUTPUT, "output written", OUTPUT, "backward wrote into")                                                  \
    X(SPOILS_SAVED, "saved buffer written", SAVED, "backward wrote into")                                              \
    X(SPOILS_COTANGENT, "cotangent written", OUTPUT, "wrote into the cotangent")

typedef enum kind {
#define X(NAME, text, target, says) NAME,
    MUTANTS(X)
#undef X
    KINDS
} kind;

typedef enum target { GRADIENT, INPUT, OUTPUT, SAVED, TARGETS } target;

static const struct {
    const char *text;
    target target;
    const char *says;
} mutation[KINDS] = {
#define X(NAME, text, target, says) {text, target, says},
    MUTANTS(X)
#undef X
};

/* State of one check of a mutant. */
typedef struct witness {
    bool differs;
    int n[TARGETS]; /* numbers of tensors of the call */
} witness;

typedef struct mutant {
    tg_op op; /* the original with another backward */
    const tg_op *of;
    kind kind;
    int which; /* index of the input, output or saved buffer */
    witness *seen;
} mutant;

/* ---- Wrong gradients ---- */

static double *doubles(const tg_tensor *x) { return tg_array_of(x).data; }

/* Returns the place of element k of a gradient after swapping the last two dims; k itself unless these are equal. */
static int64_t across(const tg_tensor *g, int64_t k) {
    int64_t n = tg_dim(g, -1), at = n > 0 ? k % (n * n) : 0;
    if (tg_ndim(g) < 2 || tg_dim(g, -2) != n) return k;
    return k - at + at % n * n + at / n;
}

/* Returns the gradient of another input with the shape of input i; its own if there is none. */
static const tg_tensor *another(const tg_call *c, tg_tensor *const *pure, int i) {
    for (int step = 1; step < c->n_in; step++) {
        const tg_tensor *g = pure[(i + step) % c->n_in];
        if (!g || tg_dtype_of(g) != TG_F64) continue;
        tg_shape a = tg_shape_of(g), b = tg_shape_of(pure[i]);
        if (!memcmp(&a, &b, sizeof a)) return g;
    }
    return pure[i];
}

/* Returns input i's gradient, modified if this mutant does that. */
static void give(const mutant *m, const tg_call *c, tg_tensor *const *pure, int i) {
    kind what = mutation[m->kind].target == GRADIENT && m->which == i ? m->kind : NOTHING;
    const tg_tensor *x = pure[i];
    const double *g = doubles(x), *other = doubles(another(c, pure, i));
    double *to = doubles(c->gin[i]);
    bool adds = c->gin_mode[i] == TG_GRAD_ADD, adds_now = what == ADDS || (adds && what != WRITES);
    for (int64_t k = 0, n = tg_numel(x); k < n; k++) {
        double right = adds ? to[k] + g[k] : g[k];
        double part = what == SCALED ? 1.001 * g[k] : what == ZEROED ? 0 : what == NEGATED ? -g[k]
                    : what == TRANSPOSED ? g[across(x, k)] : what == SWAPPED ? other[k] : g[k];
        double wrong = what == UNFINISHED && k == n - 1 ? to[k] : adds_now ? to[k] + part : part;
        /* A change below the tolerance of the check is not counted. */
        m->seen->differs |= !(fabs(wrong - right) <= 1e-9 + 1e-6 * fabs(right));
        to[k] = wrong;
    }
}

/* ---- Writes to other memory ---- */

/* Zeroes the first element at every run: the check must notice what the first run changed, not only a second one. */
static void spoil(const mutant *m, const tg_tensor *x) {
    char zero[8] = {0};
    if (!x || !tg_numel(x) || tg_storage_state_of(x) != TG_PRESENT) return;
    size_t bytes = (size_t)tg_dtype_bits(tg_dtype_of(x)) / 8;
    void *first = tg_array_of(x).data;
    m->seen->differs |= memcmp(first, zero, bytes) != 0;
    memcpy(first, zero, bytes);
}

static void spoil_one(const mutant *m, const tg_call *c) {
    switch (m->kind) {
    case SPOILS_INPUT: spoil(m, c->input[m->which]); break;
    case SPOILS_OUTPUT: spoil(m, c->out[m->which]); break;
    case SPOILS_SAVED: /* the last backward may use them as work space */
        if (tg_call_retains(c)) spoil(m, c->saved[m->which]);
        break;
    case SPOILS_COTANGENT: spoil(m, c->gout[m->which]); break;
    default: break;
    }
}

/* ---- The backward of every mutant ---- */

/* Computes the op's own gradients, each added to zeros. */
static tg_status run_original(const mutant *m, tg_call *c, tg_tensor **pure) {
    uint8_t modes[TG_SAMPLE_INPUTS];
    tg_call original = *c;
    original.op = m->of;
    original.gin = pure;
    original.gin_mode = modes;
    for (int i = 0; i < c->n_in; i++) {
        pure[i] = NULL;
        modes[i] = c->gin[i] ? TG_GRAD_ADD : TG_GRAD_NONE;
        if (!c->gin[i]) continue;
        tg_shape s = tg_shape_of(c->gin[i]);
        pure[i] = tg_call_temp(c, tg_dtype_of(c->gin[i]), (int)s.ndim, s.dim);
        tg_status status = tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(pure[i]), 0);
        if (status != TG_OK) return status;
    }
    return m->of->backward(&original);
}

static tg_status mutant_backward(tg_call *c) {
    const mutant *m = (const mutant *)c->op;
    tg_tensor *pure[TG_SAMPLE_INPUTS];
    tg_status status = run_original(m, c, pure);
    for (int i = 0; i < c->n_in && status == TG_OK; i++) {
        if (!pure[i]) continue;
        if (tg_dtype_of(pure[i]) == TG_F64)
            give(m, c, pure, i);
        else /* gradcheck uses only float64 */
            status = tg_gradient_put(c->gin[i], pure[i], c->gin_mode[i] == TG_GRAD_ADD);
    }
    if (status != TG_OK) return status;
    spoil_one(m, c);
    const int n[TARGETS] = {c->n_in, c->n_in, c->n_out, c->n_saved};
    memcpy(m->seen->n, n, sizeof n);
    return TG_OK;
}

/* ---- The table ---- */

typedef struct score {
    tally tally;
    int caught, equivalent;
} score;

static tg_status check(tg_ctx *ctx, const tg_op *op, int sample, kind k, int which, witness *seen,
                       tg_gradcheck_info *r) {
    mutant m = {.op = *op, .of = op, .kind = k, .which = which, .seen = seen};
    m.op.backward = mutant_backward;
    m.op.passes = 0; /* so that every gin is allocated before the call */
    *seen = (witness){0};
    return tg_gradcheck_op(ctx, &m.op, sample, r, NULL);
}

static void check_mutant(score *y, tg_ctx *ctx, const tg_op *op, int sample, kind k, int which) {
    witness seen;
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    tg_status status = check(ctx, op, sample, k, which, &seen, &r);
    if (!seen.differs) {
        y->equivalent++;
    } else {
        const tg_sample *s = tg_sample_at(op, sample);
        y->caught +=
            verdict(&y->tally, status == TG_ERR_GRADIENT, op, s, "%s (%d) is not caught: %s, %g tolerances off",
                    mutation[k].text, which, tg_status_name(status), r.worst);
        /* A tensor that is given twice has the sum of a right and a wrong gradient. */
        verdict(&y->tally, s->aliases || strstr(r.report, mutation[k].says), op, s,
                "%s (%d): expected \"%s\" in \"%s\"", mutation[k].text, which, mutation[k].says, r.report);
    }
    tg_ctx_clear(ctx);
}

/* Before its mutants, the op itself must pass in the same wrapper. */
static void check_op(score *y, tg_ctx *ctx, const tg_op *op) {
    score before = *y;
    for (int i = 0; i < op->n_samples && op->backward; i++) {
        const tg_sample *s = tg_sample_at(op, i);
        witness seen;
        tg_gradcheck_info r = TG_GRADCHECK_INFO();
        if (s->refused || !small(s)) continue;
        tg_status status = check(ctx, op, i, NOTHING, 0, &seen, &r);
        verdict(&y->tally, status == TG_OK && !seen.differs, op, s, "unchanged: %s", tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
        for (kind k = NOTHING + 1; k < KINDS; k++)
            for (int which = 0; which < seen.n[mutation[k].target]; which++) check_mutant(y, ctx, op, i, k, which);
    }
    printf("%-22s %4d caught, %4d equivalent: %s\n", op->name, y->caught - before.caught,
           y->equivalent - before.equivalent, y->tally.failed == before.tally.failed ? "ok" : "FAILED");
}

int main(int argc, char **argv) {
    score y = {0};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .check = true));
    for (int i = 0; i < tg_op_count(); i++)
        if (chosen(tg_op_at(i), argc, argv)) check_op(&y, ctx, tg_op_at(i));
    tg_ctx_free(ctx);
    printf("%d mutants caught, %d equivalent\n", y.caught, y.equivalent);
    return conclude(&y.tally);
}
