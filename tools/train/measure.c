/* Measures the steps of a model on the ranks of a run, for --time. */
#include <stdlib.h>

#include "train/choose.h"

typedef struct probe {
    const train_options *o;
    const tg_lm_config *config;
    const corpus_options *from;
    const json_t *plan;
    int64_t tokens;  /* for training */
    double *seconds; /* of a step; rank 0 sets it */
} probe;

/* Measures steps on the first sequences of the data. The first step, which allocates, does not count, nor does the
 * second one with --capture, which records the graph. */
static bool measure_steps(const probe *p, trainer *r, tg_tokens *tokens) {
    enum { LEAST = 2, MOST = 20 };
    const double enough = 1.5; /* seconds */
    double spent = 0;
    int n = 0, unsteady = p->o->capture ? 2 : 1;
    int64_t *offsets = calloc((size_t)p->o->batch, sizeof *offsets), last = p->tokens - p->o->model.seq_len - 1;
    if (!offsets) return fail("no memory for a batch"), false;
    for (int64_t i = 0; i < p->o->batch; i++) offsets[i] = last > 0 ? i * p->o->model.seq_len % (last + 1) : 0;
    for (bool done = false; !done && tg_ctx_status(r->ctx) == TG_OK; n++) {
        bool end = (n > unsteady && n >= LEAST && spent > enough) || n == MOST;
        step_result s = trainer_step(r, n + 1, tokens, offsets, offsets, end);
        if (n >= unsteady) spent += s.seconds;
        done = s.interrupted; /* of any rank: all stop after the same step */
    }
    free(offsets);
    if (tg_comm_rank(r->world) == 0) *p->seconds = spent / (n - unsteady);
    return check(r->ctx);
}

static int probe_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const probe *p = arg;
    corpus data = {0};
    trainer *r = calloc(1, sizeof *r);
    if (!r) return fail("no memory");
    bool good = corpus_open(&data, ctx, p->from, p->plan);
    if (good) tg_tokens_set_windows(data.tokens, train_windows(p->o));
    good = good && trainer_open(r, p->o, ctx, world, p->config, NULL, NULL) && measure_steps(p, r, data.tokens);
    trainer_close(r);
    corpus_close(&data);
    free(r);
    return good ? 0 : 1;
}

bool measure_model(const train_options *o, const tg_lm_config *config, const corpus_options *from, const json_t *plan,
                   int64_t tokens, double *seconds) {
    probe p = {o, config, from, plan, tokens, seconds};
    return run_on_ranks(&o->on, train_config(o), probe_rank, &p) == 0;
}
