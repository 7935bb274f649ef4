/* tapegrad compare: shows training runs next to each other, as a table and as a page with their curves. */
#include <math.h>
#include <string.h>

#include "common/text.h"
#include "look/page.h"

typedef struct compare_options {
    const char *html;
} compare_options;

static const option rows[] = {
    {"html", OPTION_TEXT, offsetof(compare_options, html), "FILE", "write a page with the curves of the runs to FILE",
     .fixed = false},
};

static const command compare_command = {
    .name = "compare",
    .usage = "RUN RUN.. [--html FILE]",
    .summary = "Prints a row for each training run, with its newest loss, its best validation, and\n"
               "its rate. RUN is the directory of a run, which may still be running.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
    .operands = MAX_OPERANDS,
};

/* Returns the mean of the last tenth of a curve's points; NaN if there are none. */
static double recent(const json_t *run, const char *key) {
    const json_t *mean = json_object_get(json_object_get(json_object_get(run, "curves"), key), "mean");
    size_t n = json_array_size(mean), from = n - (n + 9) / 10;
    double sum = 0;
    int count = 0;
    for (size_t i = from; i < n; i++) {
        const json_t *v = json_array_get(mean, i);
        if (json_is_number(v)) sum += json_number_value(v), count++;
    }
    return count ? sum / count : NAN;
}

/* Returns the last value of a curve; 0 if there is none. */
static double last_of(const json_t *run, const char *key) {
    const json_t *all = json_object_get(json_object_get(run, "curves"), key);
    return json_number_value(json_array_get(all, json_array_size(all) - 1));
}

/* Returns the lowest validation loss, and sets *step to its step; NaN if there is none. */
static double best_validation(const json_t *run, double *step) {
    const json_t *all = json_object_get(json_object_get(run, "curves"), "val"), *row;
    double best = NAN;
    size_t i;
    json_array_foreach(all, i, row) {
        double v = json_number_value(json_array_get(row, 3));
        if (v >= best) continue;
        best = v;
        *step = json_number_value(json_array_get(row, 0));
    }
    return best;
}

/* Prints a number in a column; "-" if it is NaN or infinite. */
static void print_number(const char *format, int width, double v) {
    char text[64] = "-";
    if (isfinite(v)) snprintf(text, sizeof text, format, v);
    printf("  %*s", width, text);
}

static void print_run(const json_t *run, int width) {
    char name[600];
    double step = NAN, best = best_validation(run, &step);
    printf("%-*s", width, text_escape(name, sizeof name, json_string_value(json_object_get(run, "name"))));
    print_number("%.0f", 9, last_of(run, "step"));
    print_number("%.0f", 13, last_of(run, "tokens"));
    print_number("%.1f", 9, last_of(run, "seconds"));
    print_number("%.4f", 8, recent(run, "loss"));
    print_number("%.4f", 8, best);
    print_number("%.0f", 9, step);
    print_number("%.0f", 10, recent(run, "tokens_per_s"));
    printf("\n");
}

static void print_table(const json_t *runs) {
    const json_t *run;
    size_t i;
    int width = 3;
    json_array_foreach(runs, i, run) {
        int n = (int)json_string_length(json_object_get(run, "name"));
        if (n > width) width = n < 40 ? n : 40;
    }
    printf("%-*s  %9s  %13s  %9s  %8s  %8s  %9s  %10s\n", width, "run", "step", "tokens", "seconds", "loss", "best val",
           "at step", "tokens/s");
    json_array_foreach(runs, i, run) print_run(run, width);
}

/* Returns the runs' data as an array; NULL after printing what is wrong. */
static json_t *read_runs(const parsed *p) {
    json_t *runs = json_array();
    for (int i = 0; i < MAX_OPERANDS && p->operand[i]; i++) {
        json_t *run = run_json(p->operand[i]);
        if (!run) return json_decref(runs), NULL;
        json_array_append_new(runs, run);
    }
    return runs;
}

static bool save_page(const char *path, json_t *runs) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    bool good = page_save(ctx, path,
                          json_pack("{s:s, s:s, s:s, s:O}", "kind", "compare", "title", "Runs compared", "version",
                                    tg_version(), "runs", runs));
    tg_ctx_free(ctx);
    return good;
}

int run_compare(int argc, char **argv) {
    compare_options o = {.html = NULL};
    parsed p;
    if (!options_parse(&compare_command, &o, &p, argc, argv)) return p.status;
    if (!p.operand[0]) return usage_error(&compare_command, "expected the directories of one or more runs");
    json_t *runs = read_runs(&p);
    if (!runs) return 1;
    print_table(runs);
    bool good = !o.html || save_page(o.html, runs);
    json_decref(runs);
    return good ? 0 : 1;
}
