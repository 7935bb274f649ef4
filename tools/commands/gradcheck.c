/* tapegrad gradcheck: compares the gradients of ops with finite differences, on samples that come with each op. */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include <tapegrad/extend.h>
#include <tapegrad/gradcheck.h>

#include "common/program.h"

typedef struct gradcheck_options {
    const char *device, *report, *replay;
    double eps, atol, rtol;
    int64_t projections, seed, threads;
    bool slow, strict, second_order;
    bool reported; /* a failure was written to a report; later failures are not */
} gradcheck_options;

#define AT(field) offsetof(gradcheck_options, field)

static const option rows[] = {
    {"eps", OPTION_REAL, AT(eps), "X", "step of the differences; 0: chosen by their estimated error", 0, 1, false},
    {"atol", OPTION_REAL, AT(atol), "X", "absolute tolerance; 0: a thousandth of --rtol", 0, 1, false},
    {"rtol", OPTION_REAL, AT(rtol), "X",
     "relative tolerance; 0: the sample's own, 1e-6 where the op is smooth", 0, 1, false},
    {"projections", OPTION_INT, AT(projections), "N", "check N random directions; 0: every element", 0, 1e6, false},
    {"seed", OPTION_INT, AT(seed), "N", "seed of inputs, output gradients and directions", 0, LARGEST, false},
    {"device", OPTION_DEVICE, AT(device), DEVICES, "where tensors lie and kernels run", .fixed = false},
    {"threads", OPTION_INT, AT(threads), "N", "threads; 0: one for each core", 0, 1024, false},
    {"strict", OPTION_FLAG, AT(strict), "", "count elements that cannot be checked as failures", .fixed = false},
    {"second-order", OPTION_FLAG, AT(second_order), "",
     "check derivatives that are recorded on the tape, and second derivatives, too", .fixed = false},
    {"report", OPTION_TEXT, AT(report), "FILE",
     "write the first failure here; if not given, to gradcheck-OP-SAMPLE.json",
     .fixed = false},
    {"replay", OPTION_TEXT, AT(replay), "FILE", "repeat the failure in a report", .fixed = false},
    {"slow", OPTION_FLAG, AT(slow), "", "check the samples that take long, too", .fixed = false},
};

static const command gradcheck_command = {
    .name = "gradcheck",
    .usage = "[OP] [OPTION...]",
    .summary = "Checks the gradients of all ops, or of OP, in float64 by central differences.\n"
               "Prints a row for each op, or for each sample of OP. In it, worst is the largest\n"
               "|analytic - numerical| / (atol + rtol |numerical|); above 1 the check fails.\n"
               "Two kinds of elements are not checked: kinks, where the differences to the left\n"
               "and to the right disagree, and unsure ones, where the error of the differences\n"
               "is larger than the tolerance.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
    .operands = 1,
};

/* The results of one op, or of one sample. */
typedef struct tally {
    int samples, failures;
    int64_t checked, kinks, unsure;
    double worst;
    tg_gradcheck_info first; /* the first failure */
} tally;

/* Returns whether to check the sample: it must be a valid call on one rank, and not meant for benches. Slow samples are
 * checked only with --slow. */
static bool wanted(const gradcheck_options *o, const tg_sample *s) {
    return s->refused == TG_OK && !s->bench && s->ranks <= 1 && (o->slow || !s->slow);
}

static const tg_sample *sample_at(const tg_op *op, int i) {
    size_t size = op->sample_size ? op->sample_size : sizeof(tg_sample);
    return (const tg_sample *)((const char *)op->samples + (size_t)i * size);
}

/* Does what auto_if_zero does for a real number. */
static double real_or_auto(double v) { return v == 0 ? TG_AUTO : v; }

/* Checks sample i of the op, and adds the result to t. The first failure since the program's start is written to a
 * file, which the message names. */
static void check_sample(gradcheck_options *o, tg_ctx *ctx, const tg_op *op, int i, tally *t) {
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    char path[128];
    snprintf(path, sizeof path, "gradcheck-%s-%d.json", op->name, i);
    tg_status s = tg_gradcheck_report_op(ctx, o->reported ? NULL : o->report ? o->report : path, op, i, &r,
                                         TG_GRADCHECK(.eps = real_or_auto(o->eps), .atol = real_or_auto(o->atol),
                                                      .rtol = real_or_auto(o->rtol),
                                                      .projections = (int)o->projections, .seed = (uint64_t)o->seed,
                                                      .strict = o->strict, .second_order = o->second_order));
    if (s != TG_OK) {
        r.failed = true;
        o->reported |= s == TG_ERR_GRADIENT; /* other errors write no report */
        snprintf(r.report, sizeof r.report, "%s", tg_ctx_message(ctx));
    }
    tg_ctx_clear(ctx);
    t->samples++;
    t->checked += r.checked;
    t->kinks += r.kinks;
    t->unsure += r.unsure;
    if (r.worst > t->worst) t->worst = r.worst;
    if (r.failed && t->failures++ == 0) t->first = r;
}

static void print_head(const char *what) {
    printf("%-44s %8s %9s %7s %7s %9s\n", what, "samples", "checked", "kinks", "unsure", "worst");
}

static void print_row(const char *name, const tally *t) {
    printf("%-44.44s %8d %9lld %7lld %7lld %9.2g  %s\n", name, t->samples, (long long)t->checked, (long long)t->kinks,
           (long long)t->unsure, t->worst, t->failures ? "FAILED" : "ok");
    if (t->failures) printf("%s\n", t->first.report);
    fflush(stdout);
}

static int print_total(int passed, int failed) {
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}

static bool has_gradient(const tg_op *op) { return op->backward || op->compose; }

static int check_all(gradcheck_options *o, tg_ctx *ctx) {
    int failed = 0, samples = 0;
    print_head("op");
    for (int k = 0; k < tg_op_count(); k++) {
        const tg_op *op = tg_op_at(k);
        tally t = {0};
        for (int i = 0; has_gradient(op) && i < op->n_samples; i++)
            if (wanted(o, sample_at(op, i))) check_sample(o, ctx, op, i, &t);
        if (t.samples) print_row(op->name, &t);
        samples += t.samples;
        failed += t.failures;
    }
    return print_total(samples - failed, failed);
}

static int check_one(gradcheck_options *o, tg_ctx *ctx, const tg_op *op) {
    int failed = 0, samples = 0;
    print_head("sample");
    for (int i = 0; i < op->n_samples; i++) {
        const tg_sample *s = sample_at(op, i);
        if (!wanted(o, s)) continue;
        tally t = {0};
        check_sample(o, ctx, op, i, &t);
        print_row(s->note ? s->note : op->name, &t);
        samples++;
        failed += t.failures;
    }
    return print_total(samples - failed, failed);
}

/* Returns --device, or the report's device if --device was not given. */
static const char *device_of(const gradcheck_options *o, json_t *report) {
    const char *device = json_string_value(json_object_get(report, "device"));
    return o->device ? o->device : device;
}

/* Returns the name of an option that was given although --replay does not read it; NULL: there is none. */
static const char *not_of_replay(const gradcheck_options *o) {
    return o->eps != 0         ? "--eps"
           : o->atol != 0      ? "--atol"
           : o->rtol != 0      ? "--rtol"
           : o->projections    ? "--projections"
           : o->seed           ? "--seed"
           : o->strict         ? "--strict"
           : o->second_order   ? "--second-order"
           : o->report         ? "--report"
           : o->slow           ? "--slow"
                               : NULL;
}

static int replay(const gradcheck_options *o) {
    FILE *f = open_regular(o->replay);
    if (!f) return 1;
    json_t *report = json_loadf(f, 0, NULL); /* NULL: tg_gradcheck_replay_op reports why */
    fclose(f);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = device_of(o, report), .threads = (int)auto_if_zero(o->threads)));
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    json_decref(report);
    if (!check(ctx)) {
        tg_ctx_free(ctx);
        return 1;
    }
    tg_status s = tg_gradcheck_replay_op(ctx, o->replay, NULL, &r);
    if (s != TG_OK && s != TG_ERR_GRADIENT) check(ctx);
    else printf("%s: %s\n", s == TG_OK ? "passes" : "fails again", s == TG_OK ? o->replay : tg_ctx_message(ctx));
    tg_ctx_free(ctx);
    return s != TG_OK;
}

static const char *name_of_op(const void *of, int i) {
    (void)of;
    return tg_op_at(i)->name;
}

static int refuse_op(const char *name) {
    const char *near = nearest_name(name, name_of_op, NULL, tg_op_count());
    if (near) return usage_error(&gradcheck_command, "there is no op '%s'; did you mean '%s'?", name, near);
    return usage_error(&gradcheck_command, "there is no op '%s'; 'tapegrad ops' lists them", name);
}

int run_gradcheck(int argc, char **argv) {
    gradcheck_options o = {0};
    parsed p;
    if (!options_parse(&gradcheck_command, &o, &p, argc, argv)) return p.status;
    if (o.replay && p.operand[0]) return usage_error(&gradcheck_command,
                                                     "--replay repeats the op that the report names; leave OP out");
    if (o.replay && not_of_replay(&o))
        return usage_error(&gradcheck_command, "--replay repeats the check that the report describes; leave %s out",
                           not_of_replay(&o));
    if (o.replay) return replay(&o);
    const tg_op *op = p.operand[0] ? tg_op_find(p.operand[0]) : NULL;
    if (p.operand[0] && !op) return refuse_op(p.operand[0]);
    if (op && !has_gradient(op)) return fail("op %s has no gradient to check", op->name);
    tg_ctx *ctx = tg_ctx_new(
        TG_CONFIG(.device = o.device, .threads = (int)auto_if_zero(o.threads), .seed = (uint64_t)o.seed));
    int status = !check(ctx) ? 1 : op ? check_one(&o, ctx, op) : check_all(&o, ctx);
    tg_ctx_free(ctx);
    return status;
}
