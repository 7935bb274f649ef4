/* GPT generation on tensor-parallel ranks: logits, and generation with a cache, equal one rank's, without the
 * padding columns. Invalid ids are refused with one rank's message. */
#include <stdlib.h>

#include <tapegrad/nn.h>
#include <tapegrad/backward.h>
#include <tapegrad/gpt.h>

#include "on_ranks.h"

enum { BATCH = 2, LENGTH = 8, VOCAB = 50, PROMPT = 3, NUMBERS = BATCH * LENGTH * VOCAB };

typedef struct job {
    tg_gpt_arch arch;
    int64_t kv_heads, bad; /* bad: a wrong id that replaces another; 0: none */
    bool sp;
    double logits[NUMBERS], next[NUMBERS]; /* one rank's results: next [s - PROMPT + 1][b, vocab] */
    char refusal[128];
} job;

static tg_module *make(tg_ctx *ctx, const job *j, const tg_parallel *p) {
    return tg_gpt_new(ctx, TG_GPT(.arch = j->arch, .vocab = VOCAB, .layers = 2, .heads = 4,
                                  .kv_heads = j->kv_heads ? j->kv_heads : TG_AUTO,
                                  .hidden = 16, .ffn = 24, .positions = LENGTH, .dropout = j->arch == TG_GPT2 ? 0.1 : 0,
                                  .init_std = 0.2, .parallel = p));
}

/* Returns the tokens [first, first + n) of both sequences. */
static tg_tensor *tokens(tg_ctx *ctx, const job *j, const tg_parallel *p, int first, int n) {
    int64_t ids[BATCH * LENGTH];
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < n; i++) ids[b * n + i] = (7 * (first + i) + 11 * b + b * (first + i) * (first + i)) % VOCAB;
    if (j->bad) ids[n - 1] = j->bad;
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, n), ids);
    if (p) tg_place(p, x, TG_TP, TG_I);
    return x;
}

static tg_status logits_are(tg_tensor *y, double *want, bool first) {
    double got[NUMBERS], most = 0;
    int64_t n = tg_numel(y);
    tg_ctx *ctx = tg_ctx_of(y);
    EXPECT(ctx, n <= NUMBERS && tg_dim(y, tg_ndim(y) - 1) == VOCAB);
    RUN(tg_read_f64(y, first ? want : got, n));
    for (int64_t i = 0; i < n && !first; i++) most = larger_or_nan(most, fabs(got[i] - want[i]));
    EXPECT(ctx, most < 1e-10);
    return TG_OK;
}

/* Computes the logits of all tokens at once, and then of a prompt and one token after the other. first: these are
 * the reference. */
static tg_status read_all(tg_ctx *ctx, job *j, const tg_parallel *p, bool first) {
    tg_tape *t = tg_tape_new(ctx);
    tg_module *gpt = make(ctx, j, p);
    tg_tape_set_training(t, false);
    tg_status s = logits_are(tg_gpt_logits(gpt, t, tokens(ctx, j, p, 0, LENGTH)), j->logits, first);
    tg_gpt_cache *c = tg_gpt_cache_new(gpt, BATCH, LENGTH);
    for (int at = 0, k = 0; at < LENGTH && s == TG_OK; k++) {
        int n = at ? 1 : PROMPT;
        s = logits_are(tg_gpt_next(gpt, t, c, tokens(ctx, j, p, at, n)), j->next + k * BATCH * VOCAB, first);
        tg_tape_reset(t);
        at += n;
    }
    if (s == TG_OK && tg_gpt_cache_length(c) != LENGTH) s = TG_ERR_INTERNAL;
    for (int b = 0; b < BATCH && s == TG_OK; b++) /* the last logits of one are the last of the other */
        for (int v = 0; v < VOCAB; v++) {
            double one = j->logits[((b + 1) * LENGTH - 1) * VOCAB + v];
            double other = j->next[((LENGTH - PROMPT) * BATCH + b) * VOCAB + v];
            EXPECT(ctx, fabs(one - other) < 1e-10);
        }
    tg_gpt_cache_free(c);
    tg_module_free(gpt);
    tg_tape_free(t);
    return s;
}

static tg_status reads_on_ranks(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world)));
    tg_status s = read_all(ctx, arg, p, false);
    tg_parallel_free(p);
    return s;
}

static tg_ctx *one_context(void) { return tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7)); }

START_TEST(logits_and_generation_are_one_ranks) {
    static const int64_t kv_heads[] = {0, 2, 1};
    for (int i = 0; i < 4; i++) {
        job *j = calloc(1, sizeof *j);
        j->arch = i ? TG_LLAMA : TG_GPT2;
        j->kv_heads = i ? kv_heads[i - 1] : 0;
        tg_ctx *ctx = one_context();
        ck_assert_int_eq(read_all(ctx, j, NULL, true), TG_OK);
        tg_ctx_free(ctx);
        for (int tp = 1; tp <= 4; tp *= 2) on_ranks(tp, reads_on_ranks, j);
        free(j);
    }
}
END_TEST

/* ---- Refused calls ---- */

/* Returns the message up to the name of the op, which is another one on several ranks. */
static const char *before_op(const char *message, char *buf, size_t n) {
    snprintf(buf, n, "%.*s", (int)strcspn(message, "("), message);
    char *colon = strchr(buf, ':');
    return colon ? colon : buf;
}

static tg_status refuses(tg_ctx *ctx, job *j, const tg_parallel *p, char *says, size_t n) {
    char buf[700];
    tg_tape *t = tg_tape_new(ctx);
    tg_module *gpt = make(ctx, j, p);
    tg_tensor *ids = tokens(ctx, j, p, 0, LENGTH);
    tg_gpt_loss(gpt, t, ids, ids, TG_LOSS_SUM);
    tg_status s = tg_ctx_status(ctx);
    snprintf(says, n, "%.100s", before_op(tg_ctx_message(ctx), buf, sizeof buf));
    tg_ctx_clear(ctx);
    tg_tape_free(t);
    tg_module_free(gpt);
    return s;
}

/* Each rank refuses it by itself, so that no rank waits. */
static tg_status refuses_on_ranks(void *arg, tg_ctx *ctx, tg_comm *world) {
    job *j = arg;
    char says[128];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world), .sequence_parallel = j->sp));
    tg_status s = refuses(ctx, j, p, says, sizeof says);
    tg_parallel_free(p);
    if (s == TG_ERR_DATA && !strcmp(says, j->refusal)) return TG_OK;
    return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "id %lld: %s: %s, expected %s", (long long)j->bad, tg_status_name(s), says,
                       j->refusal);
}

/* On GPUs errors in data are reported later and with another message. */
START_TEST(ids_of_padding_are_no_tokens) {
    if (ranks_on_gpus()) return;
    static const int64_t bad[] = {50, 77, 255, 511, 100000, -1};
    job *j = calloc(1, sizeof *j);
    for (int i = 0; i < 6; i++) {
        char range[64];
        j->bad = bad[i];
        tg_ctx *ctx = one_context();
        ck_assert_int_eq(refuses(ctx, j, NULL, j->refusal, sizeof j->refusal), TG_ERR_DATA);
        tg_ctx_free(ctx);
        snprintf(range, sizeof range, "index %lld is out of range; it must be from 0 to 49", (long long)bad[i]);
        ck_assert_msg(strstr(j->refusal, range), "%s", j->refusal);
        for (int tp = 1; tp <= 4; tp *= 2)
            for (j->sp = false;; j->sp = true) {
                on_ranks(tp, refuses_on_ranks, j);
                if (j->sp) break;
            }
    }
    free(j);
}
END_TEST

static tg_status caches_nothing(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2, .sequence_parallel = true));
    tg_module *gpt = make(ctx, arg, p);
    tg_gpt_cache *c = NULL;
    REFUSED(ctx, TG_ERR_STATE, "sequence-parallel", c = tg_gpt_cache_new(gpt, BATCH, LENGTH));
    EXPECT(ctx, !c);
    tg_module_free(gpt);
    tg_parallel_free(p);
    return TG_OK;
}

START_TEST(sequence_parallel_layers_have_no_cache) {
    job *j = calloc(1, sizeof *j);
    on_ranks(2, caches_nothing, j);
    free(j);
}
END_TEST

/* ---- The remedy that a message gives ---- */

static tg_status loses(tg_ctx *ctx, tg_tape *t, tg_module *gpt, tg_tensor *ids, tg_loss_reduction reduction) {
    tg_draws_step(ctx, 1);
    tg_tensor *loss = tg_gpt_loss(gpt, t, ids, ids, reduction);
    if (tg_ctx_status(ctx) == TG_OK) tg_backward(t, loss);
    tg_tape_reset(t);
    return tg_ctx_status(ctx);
}

static tg_status follows_advice(void *arg, tg_ctx *ctx, tg_comm *world) {
    int tp = tg_comm_size(world) / 2;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tp));
    tg_module *gpt = make(ctx, arg, p);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *ids = tokens(ctx, arg, NULL, 0, LENGTH);
    if (tp > 1) REFUSED(ctx, TG_ERR_PLACEMENT, "tg_place(p, leaf, TG_TP, TG_I)", loses(ctx, t, gpt, ids, TG_LOSS_SUM));
    ids = tokens(ctx, arg, p, 0, LENGTH);
    tg_place(p, ids, TG_DP, TG_SHARD(0));
    REFUSED(ctx, TG_ERR_PLACEMENT, "take TG_LOSS_SUM", loses(ctx, t, gpt, ids, TG_LOSS_MEAN));
    RUN(loses(ctx, t, gpt, ids, TG_LOSS_SUM));
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_parallel_free(p);
    return TG_OK;
}

START_TEST(the_remedy_in_a_message_works) {
    job *j = calloc(1, sizeof *j);
    on_ranks(2, follows_advice, j);
    on_ranks(4, follows_advice, j);
    free(j);
}
END_TEST

int main(void) {
    const TTest *tests[] = {logits_and_generation_are_one_ranks, ids_of_padding_are_no_tokens,
                            sequence_parallel_layers_have_no_cache, the_remedy_in_a_message_works};
    return tg_check_main("gpt_next", tests, sizeof tests / sizeof *tests);
}
