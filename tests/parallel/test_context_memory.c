/* Memory of a rank whose group divides sequences: a step of a small model on two ranks peaks at half the bytes of one
 * rank, within 5 %. A sequence of 65,536 tokens is recorded on device meta; the long suite also trains on it. */
#include <stdlib.h>

#include <tapegrad/backward.h>
#include <tapegrad/context_parallel.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/lm.h>
#include <tapegrad/optim.h>

#include "on_ranks.h"

enum { LONG = 65536, SHORT = 2048, VOCABULARY = 64 };

typedef struct job {
    int64_t length;
    int64_t peak; /* of rank 0 */
    double loss;  /* summed over the ranks; 0 on device meta */
} job;

/* Makes this rank's rows of a sequence whose tokens count upwards, `ahead` tokens later. */
static tg_tensor *tokens_of(tg_ctx *ctx, const tg_parallel *p, int64_t length, int64_t ahead) {
    int n = tg_parallel_size(p, TG_CP);
    int64_t *rows = malloc((size_t)(length / n) * sizeof *rows);
    tg_context_cut((const int64_t[]){0, length}, 1, n, tg_parallel_rank(p, TG_CP), rows);
    for (int64_t i = 0; i < length / n; i++) rows[i] = (rows[i] + ahead) * 7 % VOCABULARY;
    tg_tensor *x = strcmp(tg_ctx_device(ctx), "meta") ? tg_from_host(ctx, TG_I64, TG_SHAPE(1, length / n), rows)
                                                      : tg_zeros(ctx, TG_I64, TG_SHAPE(1, length / n));
    tg_place(p, x, TG_CP, TG_SHARD_ZIGZAG(1));
    free(rows);
    return x;
}

/* Trains for two steps. The peak is that of the second one, as gradients and the optimizer's state are there then. */
static tg_status train_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    job *j = arg;
    tg_tensor *params[64];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = tg_comm_size(world)));
    tg_module *lm = tg_lm_new(ctx, TG_LM(.vocab = VOCABULARY, .layers = 1, .heads = 1, .hidden = 16, .ffn = 48,
                                         .positions = j->length, .parallel = p));
    int n = tg_module_params(lm, params, 64);
    tg_optim *o = tg_adamw_new(ctx, params, n, TG_ADAMW(.lr = 1e-3));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *ids = tokens_of(ctx, p, j->length, 0), *targets = tokens_of(ctx, p, j->length, 1), *loss = NULL;
    tg_memory_info m = TG_MEMORY_INFO();
    double sum = 0;
    for (int step = 1; step <= 2; step++) {
        tg_pipe_call call = {.size = sizeof call, .tape = t, .out = &loss};
        tg_memory_reset_peak(ctx);
        RUN(tg_lm_part(lm, &call, &ids, &targets, NULL));
        if (strcmp(tg_ctx_device(ctx), "meta")) sum = tg_item(loss);
        RUN(tg_backward(t, loss));
        RUN(tg_grads_finalize(p, params, n, NULL));
        RUN(tg_optim_step(o));
        RUN(tg_optim_zero_grad(o));
        tg_tape_reset(t);
    }
    tg_memory_query(ctx, &m);
    tg_tensor *all = tg_full(t, TG_F64, TG_SHAPE(1), sum);
    tg_comm_all_reduce(world, all, all, TG_REDUCE_SUM);
    if (tg_comm_rank(world) == 0) j->peak = m.peak, j->loss = strcmp(tg_ctx_device(ctx), "meta") ? tg_item(all) : 0;
    tg_optim_free(o);
    tg_tape_free(t);
    tg_module_free(lm);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static job train_on_ranks(int n, int64_t length) {
    job j = {.length = length};
    char message[1024] = "";
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F32, .seed = 7, .deadline = 3000);
    tg_status s = run_ranks(n, train_rank, &j,
                            TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "%d ranks: %s", n, message);
    return j;
}

static job train_on_paper(int n, int64_t length) {
    job j = {.length = length};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .dtype = TG_F32, .threads = 1));
    tg_comm *world = tg_comm_plan_new(ctx, 0, n);
    tg_status s = train_rank(&j, ctx, world);
    ck_assert_msg(s == TG_OK, "on paper: %s", tg_ctx_message(ctx));
    tg_comm_free(world);
    tg_ctx_free(ctx);
    return j;
}

static void check_half(job one, job two) {
    double half = (double)one.peak / 2;
    ck_assert_msg(fabs((double)two.peak - half) <= 0.05 * half, "%lld bytes at the peak of a rank of two, %lld of one",
                  (long long)two.peak, (long long)one.peak);
}

START_TEST(a_long_sequence_takes_half_the_memory_on_two_ranks) {
    check_half(train_on_paper(1, LONG), train_on_paper(2, LONG));
}
END_TEST

START_TEST(training_takes_half_the_memory_on_two_ranks) {
    int64_t length = getenv("TG_LONG") ? LONG : SHORT;
    job one = train_on_ranks(1, length), two = train_on_ranks(2, length);
    check_half(one, two);
    ck_assert_msg(fabs(two.loss - one.loss) <= 1e-4 * one.loss, "the loss is %g, one rank has %g", two.loss, one.loss);
    ck_assert(two.peak == train_on_paper(2, length).peak);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {a_long_sequence_takes_half_the_memory_on_two_ranks,
                                  training_takes_half_the_memory_on_two_ranks};
    return tg_check_main("context_memory", tests, sizeof tests / sizeof tests[0]);
}
