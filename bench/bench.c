/* tapegrad-bench ROW [OPTION...]: prints the times of a row, one on each line. Without arguments it lists rows and
 * options.
 *
 * It prints "ready" when it has warmed up. With --repeats N it then measures N times; otherwise it measures once for
 * each line of standard input, so that bench/run.py and bench/gpu.py can measure several programs in alternation. A
 * line "peak" asks for the most bytes of the device's memory that were in use at once, "host" for the milliseconds that
 * the host alone needs for one call, and "rss" for the most resident bytes of the process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench.h"

static const bench_row *const rows[] = {
    &chain_row, &tape_row, &mlp_row,      &gpt2_row, &floor_row,     &adamw_row,     &copy_row,           &gelu_row,
    &softmax_row, &norm_row, &norm_grad_row, &loss_row, &loss_grad_row, &attention_row, &attention_grad_row, &gemm_row,
    &linear_row, &read_row, &decode_row, &prompt_row, &forward_row};
enum { ROWS = sizeof rows / sizeof rows[0], WARM_UP = 3 };

static int usage(void) {
    fprintf(stderr, "usage: bench ROW [--device cpu|cuda] [--isa NAME] [--dtype f32|bf16] [--threads N]\n"
                    "                 [--repeats N] [--calls N]\n"
                    "                 [--batch N] [--seq-len N] [--layers N] [--heads N] [--hidden N] [--vocab N]\n"
                    "                 [--rows N] [--columns N] [--inner N] [--form nn|nt|tn]\n"
                    "                 [--recompute] [--profile] [--capture]\n"
                    "       bench --about [--device cpu|cuda] [--isa NAME]\n\n");
    for (int i = 0; i < ROWS; i++) fprintf(stderr, "  %-16s%s (%s)\n", rows[i]->name, rows[i]->summary, rows[i]->unit);
    return 2;
}

/* Prints the library's version, the kernels and the compiler, for the head of the results. */
static int about(const bench_options *o) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = o->device, .isa = o->isa));
    bool ok = tg_ctx_status(ctx) == TG_OK;
    if (ok)
        printf("tapegrad %s, %s kernels, compiled by %s\n", tg_version(),
               strcmp(tg_ctx_device(ctx), "cpu") == 0 ? tg_ctx_isa(ctx) : tg_ctx_device(ctx),
#ifdef __clang__
               __VERSION__);
#else
               "gcc " __VERSION__);
#endif
    else
        fprintf(stderr, "bench: %s\n", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
    return ok ? 0 : 1;
}

/* ---- The command line ---- */

typedef struct number_option {
    const char *name;
    size_t at;
} number_option;

static const number_option numbers[] = {
    {"--batch", offsetof(bench_options, batch)},     {"--seq-len", offsetof(bench_options, seq_len)},
    {"--layers", offsetof(bench_options, layers)},   {"--heads", offsetof(bench_options, heads)},
    {"--hidden", offsetof(bench_options, hidden)},   {"--vocab", offsetof(bench_options, vocab)},
    {"--rows", offsetof(bench_options, rows)},       {"--columns", offsetof(bench_options, columns)},
    {"--inner", offsetof(bench_options, inner)},
};
enum { NUMBERS = sizeof numbers / sizeof numbers[0] };

/* Sets the option `name` to n if it is one of `numbers`. Returns false if it is another option, or if n is not
 * positive. */
static bool set_number(bench_options *o, const char *name, long long n) {
    for (int i = 0; i < NUMBERS; i++)
        if (strcmp(name, numbers[i].name) == 0) {
            memcpy((char *)o + numbers[i].at, &(int64_t){n}, sizeof(int64_t));
            return n > 0;
        }
    return false;
}

/* Sets an option that has no value. */
static bool set_flag(bench_options *o, const char *name) {
    bool *flag = strcmp(name, "--profile") == 0     ? &o->profile
                 : strcmp(name, "--capture") == 0   ? &o->capture
                 : strcmp(name, "--recompute") == 0 ? &o->recompute
                                                    : NULL;
    if (flag) *flag = true;
    return flag != NULL;
}

static bool set_form(bench_options *o, const char *name) {
    static const char *const names[FORMS] = {[FORM_NN] = "nn", [FORM_NT] = "nt", [FORM_TN] = "tn"};
    o->form = 0;
    while (o->form < FORMS && strcmp(names[o->form], name) != 0) o->form++;
    return o->form < FORMS;
}

static bool parse(int argc, char **argv, bench_options *o) {
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i];
        if (set_flag(o, name)) continue;
        if (++i == argc) return false;
        long long n = atoll(argv[i]);
        if (strcmp(name, "--device") == 0)
            o->device = argv[i];
        else if (strcmp(name, "--isa") == 0)
            o->isa = argv[i];
        else if (strcmp(name, "--dtype") == 0)
            o->dtype = strcmp(argv[i], "bf16") == 0 ? TG_BF16 : strcmp(argv[i], "f32") == 0 ? TG_F32 : TG_DTYPE_COUNT;
        else if (strcmp(name, "--form") == 0 && !set_form(o, argv[i]))
            return false;
        else if (strcmp(name, "--form") == 0)
            continue;
        else if (strcmp(name, "--threads") == 0)
            o->threads = (int)n;
        else if (strcmp(name, "--repeats") == 0)
            o->repeats = (int)n;
        else if (strcmp(name, "--calls") == 0)
            o->calls = (int)n;
        else if (!set_number(o, name, n))
            return false;
    }
    return o->dtype < TG_DTYPE_COUNT && o->calls > 0 && o->heads > 0 && o->hidden % o->heads == 0;
}

/* ---- Measuring ---- */

static double peak(tg_ctx *ctx) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return (double)(m.peak + m.workspace);
}

static double resident(void) {
    struct rusage used;
    return getrusage(RUSAGE_SELF, &used) == 0 ? 1024.0 * (double)used.ru_maxrss : 0;
}

/* Returns the number that a line of standard input asks for. */
static double answer(const bench_row *row, void *state, tg_ctx *ctx, const char *question) {
    if (strcmp(question, "peak\n") == 0) return peak(ctx);
    if (strcmp(question, "host\n") == 0) return row->host ? row->host(state) : 0;
    if (strcmp(question, "rss\n") == 0) return resident();
    return row->measure(state);
}

static void measure(const bench_row *row, void *state, tg_ctx *ctx, const bench_options *o) {
    char line[8] = "";
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; o->repeats ? i < o->repeats : fgets(line, sizeof line, stdin) != NULL; i++) {
        printf("%.9g\n", answer(row, state, ctx, line));
        fflush(stdout);
    }
}

static int run(const bench_row *row, const bench_options *o) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = o->device, .isa = o->isa, .seed = 1, .dtype = o->dtype,
                                        .threads = o->threads ? o->threads : TG_AUTO));
    void *state = tg_ctx_status(ctx) == TG_OK ? row->open(ctx, o) : NULL;
    for (int i = 0; state && i < WARM_UP; i++) row->measure(state);
    if (state && tg_ctx_status(ctx) == TG_OK) {
        tg_memory_reset_peak(ctx);
        if (!o->profile)
            measure(row, state, ctx, o);
        else if (row->profile)
            row->profile(state);
        else
            tg_ctx_fail(ctx, TG_ERR_ARGUMENT, "this row has no --profile");
    }
    bool ok = state && tg_ctx_status(ctx) == TG_OK;
    if (!ok)
        fprintf(stderr, "bench %s: %s\n", row->name,
                tg_ctx_status(ctx) == TG_OK ? "no memory" : tg_ctx_message(ctx));
    if (state) row->close(state);
    tg_ctx_free(ctx);
    return ok ? 0 : 1;
}

int main(int argc, char **argv) {
    bench_options o = {.device = "cpu", .dtype = TG_F32, .threads = 1, .calls = 1, .batch = 4, .seq_len = 64,
                       .layers = 12, .heads = GPT2_HEADS, .hidden = GPT2_HIDDEN, .vocab = GPT2_VOCAB, .rows = 1024,
                       .columns = 1024, .inner = 1024};
    if (argc > 1 && strcmp(argv[1], "--about") == 0) return parse(argc, argv, &o) ? about(&o) : usage();
    for (int i = 0; argc > 1 && i < ROWS; i++)
        if (strcmp(argv[1], rows[i]->name) == 0) return parse(argc, argv, &o) ? run(rows[i], &o) : usage();
    return usage();
}
