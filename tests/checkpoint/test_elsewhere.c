/* Models and states whose files only the program's file functions know (tg_config.files): what is there is found, and a
 * save keeps the files of the present state until the new index is there. */
#define _GNU_SOURCE
#include <tapegrad/checkpoint.h>
#include <tapegrad/gpt.h>
#include <tapegrad/parallel.h>
#include <tapegrad/ranks.h>

#include "on_ranks.h"
#include "unit/io_fixture.h"

#define IN(name) ELSEWHERE "/" name

/* Runs fn on one rank, whose files are in a directory of this run. Its argument is the struct of file functions. */
static void run_elsewhere(tg_rank_fn fn) {
    char message[1024];
    workplace w = workplace_new(NULL);
    tg_file_ops ops = elsewhere_ops(w.dir);
    const tg_config *config = TG_CONFIG(.threads = 1, .seed = 3, .deadline = 60, .files = &ops);
    tg_status s =
        tg_ranks_run(1, fn, &ops, TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "%s: %s", tg_status_name(s), message);
    workplace_free(&w);
}

/* ---- States ---- */

static int without_index(void *user, const char *from, const char *to) {
    if (strstr(to, "index.json")) return errno = EIO, -1;
    return elsewhere_rename(user, from, to);
}

static tg_status set(tg_tensor *x, double value) { return tg_write_f64(x, (double[]){value, value, value, value}, 4); }

static tg_status expect_value(tg_shards *s, tg_tensor *x, double value) {
    double v[4];
    RUN(set(x, -1));
    RUN(tg_shards_load(s, IN("state")));
    RUN(tg_read_f64(x, v, 4));
    EXPECT(tg_ctx_of(x), v[0] == value && v[3] == value);
    return TG_OK;
}

static tg_status save_twice(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_file_ops *ops = arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(4));
    tg_shards *s = tg_shards_new(p);
    RUN(tg_shards_add_tensor(s, "x", x));
    RUN(set(x, 1));
    RUN(tg_shards_save(s, IN("state")));
    RUN(set(x, 2));
    ops->rename = without_index;
    REFUSED(ctx, TG_ERR_IO, "index.json", tg_shards_save(s, IN("state")));
    ops->rename = elsewhere_rename;
    RUN(expect_value(s, x, 1)); /* that of the first save, whose files are as they were */
    RUN(set(x, 3));
    RUN(tg_shards_save(s, IN("state")));
    RUN(expect_value(s, x, 3));
    tg_shards_free(s);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_failed_save_keeps_the_present_state) { run_elsewhere(save_twice); }
END_TEST

/* ---- Models ---- */

static tg_module *model(tg_ctx *ctx, uint64_t key) {
    return tg_gpt_new(ctx, TG_GPT(.vocab = 50, .layers = 2, .heads = 2, .hidden = 16, .positions = 8, .key = key));
}

static tg_status save_models(void *arg, tg_ctx *ctx, tg_comm *world) {
    const tg_file_ops *ops = arg;
    tg_module *saved = model(ctx, 1), *loaded = model(ctx, 2);
    (void)world;
    ops->mkdir(ops->user, IN("model"), 0777);
    RUN(tg_lm_save(&saved, 1, IN("model"), TG_LM_SAVE(.file_bytes = 4096)));
    RUN(tg_lm_load(&loaded, 1, IN("model"))); /* its index is found */
    RUN(tg_gpt_to_state(ctx, IN("model"), IN("converted"), NULL));
    REFUSED(ctx, TG_ERR_STATE, "has a state already", tg_gpt_to_state(ctx, IN("model"), IN("converted"), NULL));
    REFUSED(ctx, TG_ERR_STATE, "has a model already", tg_gpt_to_state(ctx, IN("model"), IN("model"), NULL));
    tg_module_free(saved), tg_module_free(loaded);
    return tg_ctx_status(ctx);
}

START_TEST(models_and_states_are_found) { run_elsewhere(save_models); }
END_TEST

/* ---- Failures ---- */

static int denied_open(void *user, const char *path, int flags, int mode) {
    if (!strstr(path, "index.json")) return elsewhere_open(user, path, flags, mode);
    return errno = EACCES, -1;
}

static tg_status save_unseen(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_file_ops *ops = arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(4));
    tg_shards *s = tg_shards_new(p);
    RUN(tg_shards_add_tensor(s, "x", x));
    RUN(tg_shards_save(s, IN("denied")));
    ops->open = denied_open;
    REFUSED(ctx, TG_ERR_IO, "cannot open '" IN("denied/index.json"), tg_shards_save(s, IN("denied")));
    REFUSED(ctx, TG_ERR_IO, "cannot open '" IN("denied/index.json"), tg_shards_load(s, IN("denied")));
    ops->open = elsewhere_open;
    RUN(tg_shards_load(s, IN("denied")));
    tg_shards_free(s);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_file_that_cannot_be_opened_is_not_absent) { run_elsewhere(save_unseen); }
END_TEST

int main(void) {
    const TTest *const tests[] = {a_failed_save_keeps_the_present_state, models_and_states_are_found,
                                  a_file_that_cannot_be_opened_is_not_absent};
    return tg_check_main("elsewhere", tests, sizeof tests / sizeof *tests);
}
