/* tapegrad schedule: prints the schedule of a pipeline as a diagram, and what it costs. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/pipe.h>

#include "commands/schedule_file.h"
#include "common/program.h"
#include "common/text.h"

/* Limits of the diagram: stages x chunks x micro-batches, and stages, because one micro-batch of n stages has n x n
 * places. A larger diagram is of no use. */
enum { MOST_PARTS = 1 << 20, MOST_STAGES = 1 << 12 };

typedef struct schedule_options {
    int kind;
    int64_t stages, micros, chunks, group;
    double forward, backward, weight, hop;
    const char *parts, *file, *svg;
} schedule_options;

#define AT(field) offsetof(schedule_options, field)

static const option rows[] = {
    {"kind", OPTION_CHOICE, AT(kind), "gpipe|1f1b|interleaved|zb-h1|forward",
     "schedule; forward: no backward, for evaluation", .fixed = false},
    {"stages", OPTION_INT, AT(stages), "N", "stages of the pipeline", 1, MOST_STAGES, false},
    {"micros", OPTION_INT, AT(micros), "N", "micro-batches of a step", 1, MOST_PARTS, false},
    {"chunks", OPTION_INT, AT(chunks), "N", "chunks of each stage; 0: 2 for interleaved, else 1", 0, 256, false},
    {"group", OPTION_INT, AT(group), "N", "micro-batches in a turn through the chunks; 0: as many as --stages", 0,
     MOST_PARTS, false},
    {"forward", OPTION_REAL, AT(forward), "X", "time of a stage for the forward of a micro-batch", 0, MANY, false},
    {"backward", OPTION_REAL, AT(backward), "X", "time for the gradients of its activations", 0, MANY, false},
    {"weight", OPTION_REAL, AT(weight), "X", "time for the gradients of its weights", 0, MANY, false},
    {"hop", OPTION_REAL, AT(hop), "X", "time of a message from a stage to the next", 0, MANY, false},
    {"parts", OPTION_TEXT, AT(parts), "X,X,...",
     "size of each part, such as its number of layers; the times are then those of size 1", .fixed = false},
    {"file", OPTION_TEXT, AT(file), "FILE", "read the schedule from a file instead of --kind", .fixed = false},
    {"svg", OPTION_TEXT, AT(svg), "FILE", "also draw the diagram into an SVG file", .fixed = false},
};

static const command schedule_command = {
    .name = "schedule",
    .usage = "[OPTION...]",
    .summary = "Prints the schedule of a pipeline: a row for each stage over time, with F for the\n"
               "forward of a micro-batch, B for its backward, and W for the gradients of weights\n"
               "where the schedule computes them apart. Then prints the time that it takes, and\n"
               "what each stage waits, keeps and sends.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

/* ---- The plan ---- */

/* Reads a size of --parts, and moves *text to what follows it and its comma. Returns false if there is none. */
static bool read_size(const char **text, double *size) {
    char *end;
    *size = strtod(*text, &end);
    if (end == *text || !(*size >= 0 && *size <= MANY) || (*end && *end != ',')) return false;
    *text = *end ? end + 1 : end;
    return !*end || **text;
}

/* Sets the sizes of n parts: those that are given, or an equal share of a stage. */
static bool read_sizes(const schedule_options *o, int n, double *size) {
    const char *text = o->parts;
    for (int i = 0; i < n; i++) {
        size[i] = 1 / (double)o->chunks;
        if (text && !read_size(&text, &size[i]))
            return fail("--parts is '%s', expected %d numbers from 0 to %g, one for each part, with ',' between",
                        o->parts, n, MANY),
                   false;
    }
    if (text && *text) fail("--parts has more than %d numbers, one for each part (stages x chunks)", n);
    return !text || !*text;
}

/* Returns the times of n parts of these sizes. The caller frees the array. NULL: no memory. */
static double *times(int n, const double *size, double time) {
    double *all = malloc((size_t)n * sizeof *all);
    for (int i = 0; all && i < n; i++) all[i] = time * size[i];
    return all;
}

/* Makes the plan of the lists that were read from a file or, if `lists` is NULL, of a built-in schedule. Returns NULL
 * after printing what is wrong. */
static tg_pipe_plan *make_plan(tg_ctx *ctx, const schedule_options *o, const schedule_file *lists) {
    int parts = (int)(o->stages * o->chunks);
    double *size = malloc((size_t)parts * sizeof *size), *f = NULL, *b = NULL, *w = NULL;
    tg_pipe_plan *plan = NULL;
    bool good = size && read_sizes(o, parts, size);
    if (good)
        f = times(parts, size, o->forward), b = times(parts, size, o->backward), w = times(parts, size, o->weight);
    if (!size || (good && (!f || !b || !w)))
        fail("no memory for the schedule");
    else if (good)
        plan = tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = lists ? TG_PIPE_CUSTOM : (tg_pipe_kind)o->kind,
                                                  .stages = (int)o->stages, .chunks = (int)o->chunks,
                                                  .micros = (int)o->micros, .group = (int)auto_if_zero(o->group),
                                                  .f = f, .b = b, .w = w, .hop = o->hop,
                                                  .items = lists ? lists->list : NULL,
                                                  .n_items = lists ? lists->count : NULL));
    free(size);
    free(f);
    free(b);
    free(w);
    if (!plan) check(ctx);
    return plan;
}

/* ---- Output ---- */

/* Returns the diagram, which the caller frees, and its length. NULL after printing that there is no memory. */
static char *diagram(const tg_pipe_plan *plan, tg_format format, size_t *length) {
    *length = tg_pipe_plan_text(plan, format, NULL, 0);
    char *text = malloc(*length + 1);
    if (text)
        tg_pipe_plan_text(plan, format, text, *length + 1);
    else
        fail("no memory for the diagram");
    return text;
}

static bool save_svg(tg_ctx *ctx, const tg_pipe_plan *plan, const char *path) {
    size_t n;
    const char *is = not_regular(path);
    if (is) return fail("'%s' is %s, expected a regular file or a new one", path, is), false;
    char *text = diagram(plan, TG_SVG, &n);
    if (text) tg_file_save(ctx, path, text, n);
    free(text);
    return text && check(ctx);
}

static void print_costs(const tg_pipe_plan *plan, int stages) {
    tg_pipe_report all = TG_PIPE_REPORT();
    tg_pipe_plan_query(plan, TG_NONE, &all);
    printf("\nmakespan %.6g, ideal %.6g, bubble %.4f\n\n", all.makespan, all.ideal, all.bubble);
    printf("%5s %10s %8s %6s %8s %8s %9s\n", "stage", "idle", "bubble", "peak", "waiting", "sends", "receives");
    for (int s = 0; s < stages; s++) {
        tg_pipe_report r = TG_PIPE_REPORT();
        tg_pipe_plan_query(plan, s, &r);
        printf("%5d %10.6g %8.4f %6d %8d %8" PRId64 " %9" PRId64 "\n", s, r.makespan - r.ideal, r.bubble, r.peak,
               r.waiting, r.sends, r.receives);
    }
}

static int print_plan(tg_ctx *ctx, const schedule_options *o, const tg_pipe_plan *plan) {
    size_t n;
    if (o->svg && !save_svg(ctx, plan, o->svg)) return 1;
    char *text = diagram(plan, TG_TEXT, &n);
    if (!text) return 1;
    fputs(text, stdout);
    free(text);
    print_costs(plan, (int)o->stages);
    return 0;
}

/* ---- The program ---- */

/* Refuses an option because of the file, if one is given, or of the other options. Returns the exit status. */
static int refuse_time(const schedule_options *o, const char *name, const char *why) {
    if (o->file) return fail("--%s is %s, and '%s' has none; leave --%s out", name, why, o->file, name);
    return usage_error(&schedule_command, "--%s is %s, and this schedule has none; leave --%s out", name, why, name);
}

/* Refuses the times of what the schedule does not have. backward: it has backwards. Returns 0, or the exit status after
 * printing what is wrong. */
static int check_times(const schedule_options *o, const parsed *p, bool backward) {
    static const char *const of_backward[] = {"backward", "weight"};
    for (size_t i = 0; !backward && i < sizeof of_backward / sizeof of_backward[0]; i++)
        if (option_given(&schedule_command, p, of_backward[i]))
            return refuse_time(o, of_backward[i], "the time of backwards");
    if (o->stages > 1 || !option_given(&schedule_command, p, "hop")) return 0;
    return refuse_time(o, "hop", "the time of messages between stages");
}

/* Returns whether the lists of a file have a backward. */
static bool has_backward(const schedule_file *lists) {
    for (int s = 0; s < lists->stages; s++)
        for (int i = 0; i < lists->count[s]; i++)
            if (lists->list[s][i].act != TG_PIPE_F) return true;
    return false;
}

/* Reads the schedule from a file, if one is given, makes its plan and prints it. */
static int schedule(tg_ctx *ctx, schedule_options *o, const parsed *p) {
    schedule_file lists = {0};
    tg_pipe_plan *plan = NULL;
    int status = 1;
    bool good = check(ctx) && (!o->file || schedule_file_read(ctx, o->file, &lists));
    if (good && o->file) o->stages = lists.stages, o->chunks = lists.chunks, o->micros = lists.micros;
    int wrong = good ? check_times(o, p, o->file ? has_backward(&lists) : o->kind != TG_PIPE_FORWARD) : 0;
    if (wrong) good = false, status = wrong;
    if (good && o->stages > MOST_STAGES)
        good = !fail("'%s' has %" PRId64 " stages, expected at most %d", o->file, o->stages, MOST_STAGES);
    if (good && o->stages * o->chunks > MOST_PARTS / o->micros)
        good = !fail("%" PRId64 " stages x %" PRId64 " chunk%s x %" PRId64 " micro-batches are more than %d", o->stages,
                     o->chunks, plural(o->chunks), o->micros, MOST_PARTS);
    if (good) plan = make_plan(ctx, o, o->file ? &lists : NULL);
    if (plan) status = print_plan(ctx, o, plan);
    tg_pipe_plan_free(plan);
    schedule_file_free(&lists);
    return status;
}

/* Checks that the options agree with each other. Returns 0, or the exit status after printing what is wrong. */
static int check_options(const schedule_options *o, const parsed *p) {
    static const char *const decided[] = {"kind", "stages", "micros", "chunks", "group"};
    const command *c = &schedule_command;
    bool turns = o->kind != TG_PIPE_1F1B && o->kind != TG_PIPE_ZB_H1;
    for (size_t i = 0; o->file && i < sizeof decided / sizeof decided[0]; i++)
        if (option_given(c, p, decided[i])) return usage_error(c, "--%s is set by the file; leave it out", decided[i]);
    if (!turns && (o->chunks > 1 || o->group))
        return usage_error(c, "%s is for --kind interleaved, gpipe and forward; others have 1 chunk a stage",
                           o->chunks > 1 ? "--chunks" : "--group");
    if (o->group && o->chunks < 2 && (o->chunks || o->kind != TG_PIPE_INTERLEAVED))
        return usage_error(c, "--group is for turns through several chunks, and each stage has one; give --chunks 2 or "
                           "more, or leave --group out");
    if (o->group && o->group < o->stages)
        return usage_error(c, "--group %" PRId64 " is less than --stages %" PRId64 "; expected 0 or at least as many",
                           o->group, o->stages);
    return 0;
}

int run_schedule(int argc, char **argv) {
    schedule_options o = {.kind = TG_PIPE_1F1B, .stages = 4, .micros = 8, .forward = 1, .backward = 1, .weight = 1};
    parsed p;
    if (!options_parse(&schedule_command, &o, &p, argc, argv)) return p.status;
    int status = check_options(&o, &p);
    if (status) return status;
    if (!o.chunks) o.chunks = o.kind == TG_PIPE_INTERLEAVED ? 2 : 1;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    status = schedule(ctx, &o, &p);
    tg_ctx_free(ctx);
    return status;
}
