/* Language models of every family, and what a config can choose: a training step of each. */
#include <tapegrad/gpt.h>
#include <tapegrad/lm.h>
#include <tapegrad/lora.h>
#include <tapegrad/tensor_parallel.h>

#include "memory/faults.h"

enum { BATCH = 2, LENGTH = 8, VOCAB_SIZE = 32, DEPTHS = 2, MOST_PARTS = 2, MOST_PARAMS = 128 };

typedef struct trained {
    tg_module *lm[MOST_PARTS];
    int n_lm;
    tg_optim *o;
    tg_tensor *ids[1 + DEPTHS], *targets[1 + DEPTHS], *positions;
    tg_tensor *loss;
} trained;

#define SIZES                                                                                                          \
    .vocab = VOCAB_SIZE, .layers = 2, .heads = 2, .hidden = 8, .ffn = 12, .positions = LENGTH, .init_std = 0.2,        \
    .parallel = r->p

/* Makes the batch, and an optimizer of all parameters that are trained. */
static void prepare(trial *r, trained *d) {
    tg_tensor *all[MOST_PARAMS], *params[MOST_PARAMS];
    int64_t at[BATCH * LENGTH];
    int n = 0;
    for (int i = 0; i <= DEPTHS; i++) {
        d->ids[i] = some_ids(r, BATCH, LENGTH, VOCAB_SIZE, 5 * i, 5);
        d->targets[i] = some_ids(r, BATCH, LENGTH, VOCAB_SIZE, 5 * (i + 1), 5);
    }
    for (int i = 0; i < BATCH * LENGTH; i++) at[i] = i % LENGTH < 3 ? i % LENGTH + 1 : i % LENGTH - 3;
    d->positions = tg_from_host(r->ctx, TG_I64, TG_SHAPE(BATCH, LENGTH), at);
    for (int k = 0; k < d->n_lm; k++) {
        int count = tg_module_params(d->lm[k], all, MOST_PARAMS);
        for (int i = 0; i < count; i++)
            if (tg_requires_grad(all[i])) params[n++] = all[i];
    }
    d->o = tg_adamw_new(r->ctx, params, n, TG_ADAMW(.lr = 1e-2));
    tg_optim_set_clip(d->o, 1);
}

static void step_optimizer(trial *r, tg_tensor *loss) {
    trained *d = r->state;
    d->loss = loss;
    tg_backward_with(r->t, &loss, 1, TG_BACKWARD(.retain = true));
    tg_optim_step(d->o);
}

static void step_loss(trial *r) {
    trained *d = r->state;
    tg_optim_zero_grad(d->o);
    step_optimizer(r, tg_gpt_loss(d->lm[0], r->t, d->ids[0], d->targets[0], TG_LOSS_MEAN));
}

static void note_model(trial *r) {
    trained *d = r->state;
    tg_tensor *params[MOST_PARAMS];
    note(r, d->loss);
    for (int k = 0; k < d->n_lm; k++) {
        int n = tg_module_params(d->lm[k], params, MOST_PARAMS);
        for (int i = 0; i < n; i++) note(r, params[i]);
    }
}

static void close_model(trial *r) {
    trained *d = r->state;
    tg_optim_free(d->o);
    tg_tape_reset(r->t);
    for (int k = 0; k < d->n_lm; k++) tg_module_free(d->lm[k]);
    for (int i = 0; i <= DEPTHS; i++) tg_drop(d->ids[i]), tg_drop(d->targets[i]);
    tg_drop(d->positions);
}

/* ---- Families ---- */

static void open_family(trial *r) {
    trained *d = r->state;
    tg_lm_config *c = TG_LM(SIZES);
    tg_lm_family_config(r->ctx, r->name, c);
    d->lm[0] = tg_lm_new(r->ctx, c);
    d->n_lm = 1;
    prepare(r, d);
}

static void step_family(trial *r) {
    trained *d = r->state;
    tg_optim_zero_grad(d->o);
    step_optimizer(r, tg_lm_packed_loss(d->lm[0], r->t, d->ids[0], d->positions, d->targets[0], TG_LOSS_SUM));
}

/* ---- What a config can choose ---- */

static const char *const kinds[] = {"recomputed", "selective", "distributed", "deferred", "composed",
                                    "maximal update", "with windows", "GPT-2", "adapted", "captured"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const char *kind_name(int i) { return i < KINDS ? kinds[i] : NULL; }

static bool is(const trial *r, const char *name) { return !strcmp(r->name, name); }

static tg_module *chosen(trial *r) {
    tg_lm_config *c = TG_LM(SIZES, .dropout = 0.1, .key = 3);
    if (is(r, "recomputed")) c->recompute = TG_GPT_FULL;
    if (is(r, "selective")) c->recompute = TG_GPT_SELECTIVE;
    if (is(r, "distributed")) c->recompute = TG_GPT_DISTRIBUTED;
    if (is(r, "deferred")) c->wgrad = TG_WGRAD_DEFERRED;
    if (is(r, "composed")) c->backend = TG_LM_COMPOSED;
    if (is(r, "maximal update")) c->mup_base = 4;
    if (is(r, "with windows")) c->window = 3, c->attention_kinds = "wF", c->logit_softcap = 10, c->clip_qkv = 2;
    if (is(r, "GPT-2"))
        return tg_gpt_new(r->ctx, TG_GPT(.arch = TG_GPT2, .vocab = VOCAB_SIZE, .layers = 2, .heads = 2, .hidden = 8,
                                         .positions = LENGTH, .dropout = 0.1, .parallel = r->p));
    return tg_lm_new(r->ctx, c);
}

static void open_chosen(trial *r) {
    trained *d = r->state;
    const tg_shape in = TG_SHAPE(LENGTH, BATCH, 8);
    const tg_dtype dtype = TG_F32;
    d->lm[0] = chosen(r);
    d->n_lm = 1;
    if (is(r, "adapted")) tg_lora_apply(d->lm[0], TG_LORA(.rank = 2, .targets = "q_proj,mlp"));
    if (is(r, "captured"))
        tg_captured_new(tg_module_child(tg_module_child(tg_module_child(d->lm[0], "model"), "layers"), "0"), &in,
                        &dtype, 1, 1);
    prepare(r, d);
    if (is(r, "maximal update")) tg_lm_groups(d->lm, 1, d->o, TG_LM_RATES(.lr = 1e-2, .embed_lr = 1e-3));
}

static void step_chosen(trial *r) {
    trained *d = r->state;
    if (is(r, "deferred")) tg_wgrads_drain(d->lm[0]); /* what a step that has failed has left */
    tg_optim_zero_grad(d->o);
    tg_tensor *loss = tg_gpt_loss(d->lm[0], r->t, d->ids[0], d->targets[0], TG_LOSS_MEAN);
    if (is(r, "deferred")) {
        tg_backward_with(r->t, &loss, 1, TG_BACKWARD(.retain = true));
        tg_wgrads_drain(d->lm[0]);
        d->loss = loss;
        tg_optim_step(d->o);
    } else {
        step_optimizer(r, loss);
    }
}

/* ---- Parts, with multi-token prediction ---- */

static const char *const divisions[] = {"two", "one, several tokens"};

static const char *division_name(int i) { return i < 2 ? divisions[i] : NULL; }

static void open_parts(trial *r) {
    trained *d = r->state;
    bool two = is(r, "two");
    d->n_lm = two ? 2 : 1;
    for (int k = 0; k < d->n_lm; k++)
        d->lm[k] = tg_lm_new(r->ctx, TG_LM(SIZES, .mtp = two ? 0 : DEPTHS, .layout = two ? "E t|t L" : "E t*2 m*2 L",
                                           .chunk = k));
    prepare(r, d);
}

static void step_parts(trial *r) {
    trained *d = r->state;
    const int64_t tokens[1 + DEPTHS] = {BATCH * LENGTH, BATCH * LENGTH, BATCH * LENGTH};
    tg_tensor *between = NULL, *out = NULL;
    tg_optim_zero_grad(d->o);
    for (int k = 0; k < d->n_lm; k++) {
        tg_pipe_call c = {.size = sizeof c, .tape = r->t, .chunk = k, .part = k, .parts = d->n_lm,
                          .input = k ? &between : NULL, .out = &out};
        tg_lm_set_tokens(d->lm[k], tokens);
        tg_lm_part(d->lm[k], &c, d->ids, d->targets, NULL);
        between = out;
    }
    step_optimizer(r, out);
}

static const memory_case rows[] = {
    {"family", tg_lm_family, sizeof(trained), false, false, open_family, step_family, note_model, close_model},
    {"plain family", tg_lm_family, sizeof(trained), true, false, open_family, step_loss, note_model, close_model},
    {"model", kind_name, sizeof(trained), true, false, open_chosen, step_chosen, note_model, close_model},
    {"parts", division_name, sizeof(trained), false, false, open_parts, step_parts, note_model, close_model},
};
const memory_cases model_cases = {rows, sizeof rows / sizeof *rows};
