/* bench ROW [OPTION...]: prints a row's times, one a line. `bench` alone lists rows and options.
 *
 * Without --repeats it measures once for each line of standard input, after it has printed "ready": so bench/run.py
 * measures several programs in alternation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static const bench_row *const rows[] = {&chain_row, &gpt2_row, &floor_row};
enum { ROWS = sizeof rows / sizeof rows[0], WARM_UP = 3 };

static int usage(void) {
    fprintf(stderr, "usage: bench ROW [--dtype f32|bf16] [--threads N] [--batch N] [--seq-len N] [--layers N]\n"
                    "                 [--repeats N] [--profile]\n"
                    "       bench --about\n\n");
    for (int i = 0; i < ROWS; i++) fprintf(stderr, "  %-8s%s (%s)\n", rows[i]->name, rows[i]->summary, rows[i]->unit);
    return 2;
}

/* What was measured: for the head of the results. */
static int about(void) {
    tg_ctx *ctx = tg_ctx_new(NULL);
    printf("tapegrad %s, %s kernels, compiled by %s\n", tg_version(), tg_ctx_isa(ctx),
#ifdef __clang__
           __VERSION__);
#else
           "gcc " __VERSION__);
#endif
    tg_ctx_free(ctx);
    return 0;
}

static bool parse(int argc, char **argv, bench_options *o) {
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--profile") == 0) {
            o->profile = true;
            continue;
        }
        if (++i == argc) return false;
        long long n = atoll(argv[i]);
        if (strcmp(name, "--dtype") == 0)
            o->dtype = strcmp(argv[i], "bf16") == 0 ? TG_BF16 : strcmp(argv[i], "f32") == 0 ? TG_F32 : TG_DTYPE_COUNT;
        else if (strcmp(name, "--threads") == 0)
            o->threads = (int)n;
        else if (strcmp(name, "--batch") == 0)
            o->batch = n;
        else if (strcmp(name, "--seq-len") == 0)
            o->seq_len = n;
        else if (strcmp(name, "--layers") == 0)
            o->layers = n;
        else if (strcmp(name, "--repeats") == 0)
            o->repeats = (int)n;
        else
            return false;
    }
    return o->dtype < TG_DTYPE_COUNT && o->batch > 0 && o->seq_len > 0 && o->layers > 0;
}

static void measure(const bench_row *row, void *state, const bench_options *o) {
    char line[8];
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; o->repeats ? i < o->repeats : fgets(line, sizeof line, stdin) != NULL; i++) {
        printf("%.9g\n", row->measure(state));
        fflush(stdout);
    }
}

static int run(const bench_row *row, const bench_options *o) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = 1, .dtype = o->dtype, .threads = o->threads));
    void *state = row->open(ctx, o);
    for (int i = 0; state && i < WARM_UP; i++) row->measure(state);
    if (state && tg_ctx_status(ctx) == TG_OK) {
        if (o->profile)
            row->profile(state);
        else
            measure(row, state, o);
    }
    bool ok = state && tg_ctx_status(ctx) == TG_OK;
    if (!ok) fprintf(stderr, "bench %s: %s\n", row->name, state ? tg_ctx_message(ctx) : "no memory");
    if (state) row->close(state);
    tg_ctx_free(ctx);
    return ok ? 0 : 1;
}

int main(int argc, char **argv) {
    bench_options o = {.dtype = TG_F32, .threads = 1, .batch = 4, .seq_len = 64, .layers = 12};
    if (argc == 2 && strcmp(argv[1], "--about") == 0) return about();
    for (int i = 0; argc > 1 && i < ROWS; i++)
        if (strcmp(argv[1], rows[i]->name) == 0) return parse(argc, argv, &o) ? run(rows[i], &o) : usage();
    return usage();
}
