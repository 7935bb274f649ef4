/* False alarms of gradcheck: every gradient of the table, on every sample, passes with many seeds for inputs and
 * cotangents, and almost no element is unsure. */
#include "ops/registry.h"

#include <tapegrad/gradcheck.h>

enum { SEEDS = 6, LONG_SEEDS = 1000 };

typedef struct sums {
    tally tally;
    int64_t checked, kinks, unsure;
    double worst;
} sums;

static void check(sums *y, tg_ctx *ctx, const tg_op *op, int i, uint64_t seed) {
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    tg_status status = tg_gradcheck_op(ctx, op, i, &r, TG_GRADCHECK(.seed = seed, .no_extras = seed % 8 != 0));
    verdict(&y->tally, status == TG_OK, op, tg_sample_at(op, i), "seed %llu: %s", (unsigned long long)seed,
            tg_ctx_message(ctx));
    y->checked += r.checked;
    y->kinks += r.kinks;
    y->unsure += r.unsure;
    if (r.worst > y->worst) y->worst = r.worst;
    if (r.unsure) printf("seed %llu: %s\n", (unsigned long long)seed, r.report);
    tg_ctx_clear(ctx);
}

static void check_table(sums *y, tg_ctx *ctx, uint64_t seed, int argc, char **argv) {
    for (int k = 0; k < tg_op_count(); k++) {
        const tg_op *op = tg_op_at(k);
        for (int i = 0; op->backward && chosen(op, argc, argv) && i < op->n_samples; i++) {
            const tg_sample *s = tg_sample_at(op, i);
            if (!s->refused && !s->bench && s->ranks <= 1 && !s->slow) check(y, ctx, op, i, seed);
        }
    }
}

int main(int argc, char **argv) {
    sums y = {0};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    uint64_t last = getenv("TG_LONG") ? LONG_SEEDS : SEEDS, seeds = 0;
    for (uint64_t seed = 1; seed <= last; seed++) {
        if (!in_share("alarms", seed)) continue;
        check_table(&y, ctx, seed, argc, argv);
        seeds++;
    }
    tg_ctx_free(ctx);
    printf("%llu seeds: %lld elements, %lld at kinks, %lld unsure; the worst right one is %.2g tolerances off\n",
           (unsigned long long)seeds, (long long)y.checked, (long long)y.kinks, (long long)y.unsure, y.worst);
    verdict(&y.tally, y.checked > 0 && y.unsure * 10000 <= y.checked, tg_op_at(0), NULL, "%lld of %lld are unsure",
            (long long)y.unsure, (long long)y.checked);
    return conclude(&y.tally);
}
