/* Each mutant of the lists is a mistake in the backward of an op, in a formula or in a device's slot.
 * tg_gradcheck_op must find it on the op's own samples, and the report of one of them must name op, input and kind
 * of mistake. With TG_LONG in the environment it uses many seeds and prints a list of all mutants. */
#include "ops/registry.h"

#include <tapegrad/gradcheck.h>

#include "mutants/gradcheck/mutants.h"
#include "kernels/composed.h"
#include "kernels/scalar.h"

/* ---- A device whose formulas and slots can be wrong ---- */

static tg_device_ops real, device;
static const mutant *now; /* set while its backward runs */

static double load(const tg_array *x, int64_t at) {
    switch (x->dtype) {
    case TG_F64: return ((const double *)x->data)[at];
    case TG_F32: return (double)((const float *)x->data)[at];
    case TG_I64: return (double)((const int64_t *)x->data)[at];
    case TG_I32: return ((const int32_t *)x->data)[at];
    default: return ((const uint8_t *)x->data)[at];
    }
}

static void map_slowly(const mutant *p, tg_array out, const tg_array *in, int n_in, const double par[2], bool add) {
    for (int64_t k = 0; k < out.numel; k++) {
        double a[4] = {0};
        int64_t at[5] = {0};
        for (int64_t d = out.ndim - 1, left = k; d >= 0; left /= out.shape[d--]) {
            at[4] += left % out.shape[d] * out.stride[d];
            for (int i = 0; i < n_in; i++) at[i] += left % out.shape[d] * in[i].stride[d];
        }
        for (int i = 0; i < n_in; i++) a[i] = load(&in[i], at[i]);
        double *to = (double *)out.data + at[4], y = p->value(a[0], a[1], a[2], a[3], par[0], par[1]);
        *to = add ? *to + y : y;
    }
}

static tg_status map(tg_ctx *ctx, tg_formula f, tg_array out, const tg_array *in, int n_in, const double p[2],
                     bool add) {
    if (!now || !now->value || f != now->formula || out.dtype != TG_F64)
        return real.apply(ctx, f, out, in, n_in, p, add);
    map_slowly(now, out, in, n_in, p, add);
    return TG_OK;
}

static tg_status softmax_grad(tg_ctx *ctx, tg_array gx, tg_array gy, tg_array y, bool log, bool add) {
    return (now && now->softmax_grad ? now->softmax_grad : tg_composed_softmax_grad)(ctx, gx, gy, y, log, add);
}

static tg_status norm_grad(tg_ctx *ctx, const tg_norm_args *a) {
    return (now && now->norm_grad ? now->norm_grad : tg_composed_norm_grad)(ctx, a);
}

static tg_status cross_entropy_grad(tg_ctx *ctx, const tg_cross_entropy_args *a) {
    return (now && now->cross_entropy_grad ? now->cross_entropy_grad : tg_composed_cross_entropy_grad)(ctx, a);
}

static tg_status attention_grad(tg_ctx *ctx, const tg_attention_args *a) {
    return (now && now->attention_grad ? now->attention_grad : tg_composed_attention_grad)(ctx, a);
}

static tg_ctx *open_device(void) {
    tg_ctx *cpu = tg_ctx_new(TG_CONFIG(.device = "cpu", .threads = 1));
    device = real = *tg_ctx_ops(cpu);
    tg_ctx_free(cpu);
    device.apply = map;
    device.softmax_grad = softmax_grad;
    device.norm_grad = norm_grad;
    device.cross_entropy_grad = cross_entropy_grad;
    device.attention_grad = attention_grad;
    return tg_ctx_new_on(&device, TG_CONFIG(.threads = 1, .check = true));
}

/* ---- One mutant ---- */

enum { LONG_SEEDS = 20 };

typedef struct grown {
    tg_op op;
    const tg_op *of;
    const mutant *mutant;
} grown;

static tg_status backward(tg_call *c) {
    const grown *g = (const grown *)c->op;
    tg_call original = *c;
    original.op = g->of;
    now = g->mutant;
    tg_status s = g->of->backward(&original);
    now = NULL;
    return s;
}

typedef struct finds {
    int samples, found, named; /* named: the report has everything that is required */
    char causes[200];
} finds;

static void check_sample(tg_ctx *ctx, const mutant *p, const tg_op *op, int i, uint64_t seed, finds *f) {
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    char input[32];
    tg_status status = tg_gradcheck_op(ctx, op, i, &r, TG_GRADCHECK(.seed = seed));
    f->samples++;
    if (status == TG_ERR_GRADIENT) {
        size_t at = strlen(f->causes), length = strlen(op->name);
        snprintf(input, sizeof input, ": input %d,", p->input);
        bool names = !strncmp(r.report, op->name, length) && r.report[length] == ' ' && strstr(r.report, input);
        f->found++;
        f->named += names && !strcmp(r.cause, p->cause);
        if (!strstr(f->causes, r.cause) || !names)
            snprintf(f->causes + at, sizeof f->causes - at, " %s%s", r.cause, names ? "" : "(another input)");
    } else if (status != TG_OK) {
        size_t at = strlen(f->causes);
        snprintf(f->causes + at, sizeof f->causes - at, " %s", tg_status_name(status));
    }
    tg_ctx_clear(ctx);
}

/* Runs one seed of inputs, cotangents and directions. Slow samples take hours and find nothing more. */
static finds check_seed(tg_ctx *ctx, const mutant *p, const tg_op *of, uint64_t seed) {
    finds f = {0};
    grown g = {.op = *of, .of = of, .mutant = p};
    g.op.backward = backward;
    const tg_op *op = p->mutated ? p->mutated : &g.op;
    for (int i = 0; i < op->n_samples; i++) {
        const tg_sample *s = tg_sample_at(op, i);
        if (!s->refused && !s->slow && small(s)) check_sample(ctx, p, op, i, seed, &f);
    }
    return f;
}

/* Every seed must find it. The cause is derived from a few random numbers, so most seeds must name it. Returns how
 * many do. */
static int check_mutant(tally *y, tg_ctx *ctx, const mutant *p, int seeds) {
    const tg_op *of = tg_op_find(p->op);
    char what[160], others[200] = "";
    int named = 0;
    snprintf(what, sizeof what, "%s, %s: %s", p->where, p->op, p->what);
    for (int seed = 0; seed < seeds; seed++) {
        finds f = check_seed(ctx, p, of, (uint64_t)seed);
        verdict(y, f.found > 0, of, NULL, "%s: not found with seed %d", what, seed);
        named += f.named > 0;
        if (!f.named) snprintf(others, sizeof others, "%s", f.causes);
        if (seeds > 1 && (!seed || !f.named))
            printf("%-90s %-11s %2d of %2d samples%s%s\n", what, p->cause, f.found, f.samples, f.causes,
                   f.named ? "" : ": another class");
    }
    verdict(y, 2 * named > seeds, of, NULL, "%s: input %d and '%s' are named with %d of %d seeds, else%s", what,
            p->input, p->cause, named, seeds, others);
    return named;
}

int main(int argc, char **argv) {
    tally y = {0};
    tg_ctx *ctx = open_device();
    int checked = 0, named = 0, seeds = getenv("TG_LONG") ? LONG_SEEDS : 1;
    for (int i = 0; i < n_mutants; i++) {
        const tg_op *op = tg_op_find(mutants[i].op);
        if (!verdict(&y, op, &(tg_op){.name = mutants[i].op}, NULL, "%s: no such op", mutants[i].where)) continue;
        if (!chosen(op, argc, argv)) continue;
        named += check_mutant(&y, ctx, &mutants[i], seeds);
        checked++;
    }
    tg_ctx_free(ctx);
    printf("%d of %d mutants, each with %d seeds, and named with %d of these %d\n", checked, n_mutants, seeds, named,
           checked * seeds);
    if (argc < 2)
        verdict(&y, n_mutants >= 500, &(tg_op){.name = "mutants"}, NULL, "%d mutants, expected 500", n_mutants);
    return conclude(&y);
}
