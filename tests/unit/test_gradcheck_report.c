/* Reports of failed gradient checks: the failure repeats from the file, on another machine too; damaged reports are
 * refused. And the macros for Check and assert. */
#include "world.h"
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tapegrad/gradcheck.h>
#include <tapegrad/io.h>

#define ck_in(text, in) ck_assert_msg(strstr((in), (text)), "\"%s\" in: %s", (text), (in))

static char dir[64], path[96];

static void begin_with_file(void) {
    begin();
    snprintf(dir, sizeof dir, "/tmp/gradcheck-XXXXXX");
    ck_assert(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/report.json", dir);
}

static void end_with_file(void) {
    remove(path);
    ck_assert_int_eq(rmdir(dir), 0);
    end();
}

/* ---- A function of three inputs that draws random numbers, and whose gradient may be wrong ---- */

typedef struct run {
    probe_params params;
    int count;
} run;

static tg_status drawn(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    run *r = state;
    tg_tensor *both[2], *mixed[2] = {tg_dropout(tape, tg_index_select(tape, in[0], 0, in[2]), 0.5), in[1]};
    (void)n_in, (void)n_out;
    tg_status s = tg_apply(tape, &probe_op, &r->params, mixed, 2, both, 2, &r->count, NULL, TG_SITE);
    out[0] = both[0];
    return s;
}

static void inputs(tg_tensor **in) {
    const int64_t rows[] = {2, 0, 2};
    in[0] = leaf_of(TG_SHAPE(3, 3), (double[]){1, -2, 0.1, 1.0 / 3, 3e-7, -1e9, 5, 0.25, 7});
    in[1] = leaf_of(TG_SHAPE(3), (double[]){0.3, -0.7, 2});
    in[2] = tg_from_host(ctx, TG_I64, TG_SHAPE(3), rows);
}

static tg_status fail_with(fault f, const char *to, tg_gradcheck_info *r) {
    run state = {.params = {.fault = f}};
    tg_tensor *in[3];
    inputs(in);
    tg_rng rng = {.seed = 11, .counter = 40};
    ck_assert_int_eq(tg_rng_set(ctx, NULL, &rng), TG_OK);
    const tg_gradcheck_opts *o = TG_GRADCHECK(.name = "drawn \"rows\"", .rtol = 1e-5, .seed = 0xFFFFFFFFFFFFFFF0u);
    tg_status s = tg_gradcheck_report(t, to, drawn, &state, in, 3, 1, r, o);
    for (int i = 0; i < 3; i++) tg_drop(in[i]);
    return s;
}

START_TEST(a_failure_repeats_from_its_file) {
    begin_with_file();
    tg_gradcheck_info first = TG_GRADCHECK_INFO(), again = TG_GRADCHECK_INFO();
    run right = {.params = {.fault = RIGHT}}, wrong = {.params = {.fault = SCALED}};
    ck_assert(fail_with(SCALED, path, &first) == TG_ERR_GRADIENT && first.failed);
    ck_in(first.report, tg_ctx_message(ctx));
    ck_in(path, tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    end();
    begin(); /* in a context with other random streams */
    tg_rng rng = {.seed = 5, .counter = 1}, after;
    tg_rng_set(ctx, NULL, &rng);
    ck_assert(tg_gradcheck_replay(t, path, drawn, &wrong, &again) == TG_ERR_GRADIENT);
    ck_assert_str_eq(again.report, first.report);
    ck_assert_str_eq(again.cause, first.cause);
    ck_assert(again.worst == first.worst && again.checked == first.checked);
    tg_ctx_clear(ctx);
    tg_rng_get(ctx, NULL, &after);
    ck_assert_mem_eq(&rng, &after, sizeof rng);
    ck_assert_msg(tg_gradcheck_replay(t, path, drawn, &right, &again) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert(!again.failed && again.checked == first.checked);
    ck_assert(tg_gradcheck_replay_op(ctx, path, NULL, &again) == TG_ERR_ARGUMENT);
    ck_in("is the report of a function", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    end_with_file();
}
END_TEST

static tg_status of_two(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    run *r = state;
    tg_tensor *both[2], *mixed[2] = {tg_reshape(tape, in[0], TG_SHAPE(1, 3)), in[1]};
    (void)n_in, (void)n_out;
    tg_status s = tg_apply(tape, &probe_op, &r->params, mixed, 2, both, 2, &r->count, NULL, TG_SITE);
    out[0] = both[0];
    return s;
}

START_TEST(a_tensor_given_twice_is_one_again) {
    begin_with_file();
    tg_gradcheck_info first = TG_GRADCHECK_INFO(), again = TG_GRADCHECK_INFO();
    run wrong = {.params = {.fault = SCALED}};
    tg_tensor *x = leaf_of(TG_SHAPE(3), (double[]){0.3, -0.7, 2}), *in[] = {x, x};
    const tg_gradcheck_opts *o = TG_GRADCHECK(.rtol = 1e-5);
    ck_assert(tg_gradcheck_report(t, path, of_two, &wrong, in, 2, 1, &first, o) == TG_ERR_GRADIENT);
    ck_in("(report: ", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    ck_assert(tg_gradcheck_replay(t, path, of_two, &wrong, &again) == TG_ERR_GRADIENT);
    ck_assert_str_eq(again.report, first.report);
    ck_assert(again.checked == first.checked && again.worst == first.worst);
    tg_ctx_clear(ctx);
    end_with_file();
}
END_TEST

START_TEST(passed_checks_write_nothing_and_failed_writes_are_reported) {
    begin_with_file();
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    ck_assert_msg(fail_with(RIGHT, path, &r) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert(access(path, F_OK) != 0);
    ck_assert(fail_with(SCALED, "/no/such/directory/x.json", &r) == TG_ERR_GRADIENT);
    ck_in("(no report: ", tg_ctx_message(ctx));
    ck_in("/no/such/directory", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    ck_assert(fail_with(SCALED, NULL, &r) == TG_ERR_GRADIENT);
    ck_assert_str_eq(tg_ctx_message(ctx), r.report);
    tg_ctx_clear(ctx);
    end_with_file();
}
END_TEST

/* ---- Damage ---- */

static char text[1 << 16];
static size_t length;

static void read_report(void) {
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    length = fread(text, 1, sizeof text - 1, f);
    text[length] = 0;
    fclose(f);
}

static tg_status replay_text(const char *data, size_t bytes) {
    run wrong = {.params = {.fault = SCALED}};
    tg_file_save(ctx, path, data, bytes);
    return tg_gradcheck_replay(t, path, drawn, &wrong, NULL);
}

START_TEST(damaged_files_are_refused) {
    begin_with_file();
    static char other[sizeof text];
    const struct {
        const char *was, *is, *says;
    } edits[] = {
        {"\"tapegrad gradcheck\"", "\"something\"", "expected the report of a gradient check"},
        {"\"version\": 2", "\"version\": 3", "\"version\""},
        {"\"dtype\": \"f64\"", "\"dtype\": \"f65\"", "the dtype \"f65\" is unknown"},
        {"\"requires_grad\": true", "\"requires_grad\": 1", "true or false"},
        {"\"outputs\": 1", "\"outputs\": 0", "\"outputs\""},
        {"\"seed\": 11", "\"seed\": \"x\"", "\"seed\""},
        {"\"rtol\": ", "\"rtol\": null, \"other\": ", "\"rtol\""},
        {"\"values\": [", "\"values\": [1, ", "values for a shape"},
        {"\"values\": [", "\"values\": [\"much\", ", "values for a shape"},
        {"7.0", "\"much\"", "not a number"},
        {"\"inputs\": [", "\"inputs\": [3, ", "an input is not an object"},
        {"\"inputs\"", "\"imputs\"", "\"inputs\""},
    };
    ck_assert(fail_with(SCALED, path, NULL) == TG_ERR_GRADIENT);
    tg_ctx_clear(ctx);
    read_report();
    ck_assert(length > 500 && replay_text(text, length) == TG_ERR_GRADIENT);
    tg_ctx_clear(ctx);
    for (size_t n = 0; n + 2 < length; n += 7) {
        tg_status s = replay_text(text, n);
        ck_assert_msg(s == TG_ERR_FORMAT, "%zu of %zu bytes: %s", n, length, tg_status_name(s));
        ck_in(path, tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
    }
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char *at = strstr(text, edits[i].was);
        ck_assert_msg(at, "%s", edits[i].was);
        int n = snprintf(other, sizeof other, "%.*s%s%s", (int)(at - text), text, edits[i].is,
                         at + strlen(edits[i].was));
        tg_status s = replay_text(other, (size_t)n);
        ck_assert_msg(s == TG_ERR_FORMAT, "%s: %s", edits[i].is, tg_status_name(s));
        ck_in(edits[i].says, tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
    }
    end_with_file();
}
END_TEST

/* ---- Ops ---- */

START_TEST(an_ops_failure_repeats) {
    begin_with_file();
    tg_gradcheck_info first = TG_GRADCHECK_INFO(), again = TG_GRADCHECK_INFO();
    const probe_params wrong = {.fault = NEGATED};
    tg_sample sample = probe_samples[0];
    tg_op op = probe_op;
    sample.params = &wrong;
    op.samples = &sample;
    op.n_samples = 1;
    ck_assert(tg_gradcheck_report_op(ctx, path, &op, 0, &first, TG_GRADCHECK(.seed = 9)) == TG_ERR_GRADIENT);
    ck_in(path, tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    ck_assert(tg_gradcheck_replay_op(ctx, path, &op, &again) == TG_ERR_GRADIENT);
    ck_assert_str_eq(again.report, first.report);
    ck_assert_str_eq(again.cause, first.cause);
    tg_ctx_clear(ctx);
    ck_assert(tg_gradcheck_replay_op(ctx, path, NULL, &again) == TG_ERR_ARGUMENT); /* a user-defined op */
    ck_in("the library has no op 'probe'", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    ck_assert(tg_gradcheck_replay_op(ctx, path, tg_op_find("mul"), &again) == TG_ERR_ARGUMENT);
    ck_in("report of op probe with 1 sample, but op mul has", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    ck_assert(tg_gradcheck_replay(t, path, drawn, NULL, &again) == TG_ERR_ARGUMENT);
    ck_in("is the report of an op", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    end_with_file();
}
END_TEST

/* ---- Macros ---- */

static int asserted;
#define assert(truth) (asserted += !(truth))

START_TEST(macros_for_tests_report_failures) {
    begin();
    run right = {.params = {.fault = RIGHT}}, wrong = {.params = {.fault = SCALED}};
    tg_tensor *in[3];
    inputs(in);
    TG_CK_GRADCHECK(t, drawn, &right, in, 3, 1, TG_GRADCHECK(.rtol = 1e-5));
    asserted = 0;
    TG_GRADCHECK_ASSERT(t, drawn, &right, in, 3, 1, NULL);
    ck_assert_int_eq(asserted, 0);
    TG_GRADCHECK_ASSERT(t, drawn, &wrong, in, 3, 1, TG_GRADCHECK(.rtol = 1e-5));
    ck_assert_int_eq(asserted, 1);
    tg_ctx_clear(ctx);
    for (int i = 0; i < 3; i++) tg_drop(in[i]);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_failure_repeats_from_its_file,
                            a_tensor_given_twice_is_one_again,
                            passed_checks_write_nothing_and_failed_writes_are_reported,
                            damaged_files_are_refused,
                            an_ops_failure_repeats,
                            macros_for_tests_report_failures};
    return tg_check_main("gradcheck_report", tests, sizeof tests / sizeof *tests);
}
