/* tapegrad-bench-ops [OP [THREADS]]: measures every op of the table, or one op, on its samples for benches, in float32.
 * Prints medians of the time of forward and of backward, and the rate at which forward reads its inputs and writes its
 * outputs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/extend.h>

#include "catalog/samples.h"
#include "bench.h"
#include "median.h"

enum { REPEATS = 7, WARM = 2 };

static double bytes_of(tg_tensor *const *x, int n) {
    double bytes = 0;
    for (int i = 0; i < n; i++)
        if (x[i]) bytes += (double)tg_numel(x[i]) * tg_dtype_bits(tg_dtype_of(x[i])) / 8;
    return bytes;
}

/* Measures one call: the seconds of forward, the seconds of backward from the sum of the first output, and the bytes of
 * inputs and outputs. *backward is -1 if the first output requires no gradient. */
static void call(tg_case *c, tg_tape *t, double *forward, double *backward, double *bytes) {
    tg_tensor *out[TG_CASE_OUTPUTS] = {0};
    double begun = seconds_now();
    tg_case_run(c, t, c->input, c->n_in, out, c->n_out);
    finish(c->ctx);
    *forward = seconds_now() - begun;
    *bytes = bytes_of(c->input, c->n_in) + bytes_of(out, c->n_out);
    *backward = -1;
    if (tg_ctx_status(c->ctx) == TG_OK && tg_requires_grad(out[0])) {
        tg_tensor *sum = tg_sum(t, out[0], TG_ALL_DIMS, false);
        finish(c->ctx);
        begun = seconds_now();
        tg_backward(t, sum);
        finish(c->ctx);
        *backward = seconds_now() - begun;
    }
    tg_tape_reset(t);
}

static bool measure(tg_ctx *ctx, tg_tape *t, const tg_op *op, int sample) {
    double forward[REPEATS], backward[REPEATS], bytes;
    tg_case c;
    if (tg_case_open(&c, ctx, op, sample, &(tg_case_opts){.dtype = TG_F32, .seed = 1}) != TG_OK) return false;
    for (int i = -WARM; i < REPEATS; i++) call(&c, t, &forward[i < 0 ? 0 : i], &backward[i < 0 ? 0 : i], &bytes);
    const char *note = tg_sample_at(op, sample)->note;
    double f = median(forward, REPEATS), b = median(backward, REPEATS);
    printf("%-28s %-28s %10.3f ", op->name, note ? note : "", 1e3 * f);
    if (b >= 0) printf("%10.3f", 1e3 * b);
    else printf("%10s", "");
    printf(" %8.1f\n", 1e-9 * bytes / f);
    tg_case_close(&c);
    return tg_ctx_status(ctx) == TG_OK;
}

int main(int argc, char **argv) {
    int threads = argc > 2 ? atoi(argv[2]) : 1, rows = 0;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = 1, .threads = threads > 0 ? threads : 1));
    tg_tape *t = tg_tape_new(ctx);
    bool good = tg_ctx_status(ctx) == TG_OK;
    printf("%-28s %-28s %10s %10s %8s\n", "op", "sample", "forward ms", "backward", "GB/s");
    for (int k = 0; good && k < tg_op_count(); k++) {
        const tg_op *op = tg_op_at(k);
        if (argc > 1 && strcmp(argv[1], op->name) != 0) continue;
        for (int i = 0; good && i < op->n_samples; i++)
            if (tg_sample_at(op, i)->bench) rows++, good = measure(ctx, t, op, i);
    }
    if (!good) fprintf(stderr, "tapegrad-bench-ops: %s\n", tg_ctx_message(ctx));
    else if (!rows)
        fprintf(stderr, "tapegrad-bench-ops: no op %s has samples for benches (tapegrad ops lists the ops)\n", argv[1]);
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return good && rows ? EXIT_SUCCESS : EXIT_FAILURE;
}
