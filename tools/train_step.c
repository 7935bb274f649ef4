/* One training step, and what it works on. `tapegrad inspect` runs the same step on device meta. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train.h"

double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double zero_as_none(double v) {
    return v == 0 ? TG_NONE : v;
}

static bool open_optimiser(trainer *r, const train_options *o) {
    r->n_params = tg_module_param_count(r->gpt);
    r->params = calloc((size_t)r->n_params, sizeof(tg_tensor *));
    if (!r->params) return fail("no memory"), false;
    tg_module_params(r->gpt, r->params, r->n_params);
    r->optim = tg_adamw_new(r->ctx, r->params, r->n_params,
                            TG_ADAMW(.lr = zero_as_none(o->lr), .beta1 = zero_as_none(o->beta1),
                                     .beta2 = zero_as_none(o->beta2), .eps = zero_as_none(o->eps),
                                     .weight_decay = zero_as_none(o->weight_decay)));
    tg_optim_no_decay_1d(r->optim);
    return check(r->ctx);
}

/* Gradients have their memory before the first step, so that all steps peak alike, also the first behind a resume. */
static bool open_gradients(trainer *r) {
    r->grads = calloc((size_t)r->n_params, sizeof(tg_tensor *));
    if (!r->grads) return fail("no memory"), false;
    for (int i = 0; i < r->n_params; i++) {
        tg_dtype wide = tg_dtype_of(r->params[i]) == TG_F64 ? TG_F64 : TG_F32;
        r->grads[i] = tg_zeros(r->ctx, wide, tg_shape_of(r->params[i]));
        tg_set_main_grad(r->params[i], r->grads[i]);
    }
    return check(r->ctx);
}

static bool open_batch(trainer *r, const train_options *o) {
    r->batch = o->batch;
    r->micro = o->batch / o->accumulate;
    r->seq_len = o->model.seq_len;
    r->ids = tg_zeros(r->ctx, TG_I64, TG_SHAPE(r->micro, r->seq_len));
    r->target = tg_zeros(r->ctx, TG_I64, TG_SHAPE(r->micro, r->seq_len));
    r->buffer = calloc((size_t)(r->micro * r->seq_len), sizeof *r->buffer);
    if (!r->buffer) return fail("no memory for a batch"), false;
    return check(r->ctx);
}

bool trainer_open(trainer *r, const train_options *o, const char *device, const tg_gpt_config *config,
                  const char *weights) {
    *r = (trainer){.clip = o->clip, .schedule = train_schedule(o)};
    r->ctx = tg_ctx_new(TG_CONFIG(.device = device, .seed = (uint64_t)o->seed, .threads = (int)o->threads,
                                  .dtype = dtype_of_precision(o->model.precision)));
    r->gpt = tg_gpt_new(r->ctx, config);
    if (weights) tg_gpt_load_weights(r->gpt, weights);
    r->tape = tg_tape_new(r->ctx);
    return check(r->ctx) && open_optimiser(r, o) && open_gradients(r) && open_batch(r, o);
}

void trainer_close(trainer *r) {
    if (!r->ctx) return;
    tg_drop(r->ids);
    tg_drop(r->target);
    free(r->buffer);
    tg_optim_free(r->optim);
    free(r->params);
    tg_tape_free(r->tape);
    tg_module_free(r->gpt);
    for (int i = 0; r->grads && i < r->n_params; i++) tg_drop(r->grads[i]);
    free(r->grads);
    tg_ctx_free(r->ctx);
}

/* out [micro, seq_len] = the tokens at each offset, `shift` tokens further on. */
static void fill(trainer *r, tg_tensor *out, tg_tokens *tokens, const int64_t *offsets, int64_t shift) {
    for (int64_t i = 0; i < r->micro; i++)
        tg_tokens_read(tokens, offsets[i] + shift, r->seq_len, r->buffer + i * r->seq_len);
    tg_write(out, r->buffer, (size_t)(r->micro * r->seq_len) * sizeof *r->buffer);
}

/* The micro-batch's share of the batch's mean loss. */
static double run_micro_batch(trainer *r, tg_tokens *tokens, const int64_t *offsets) {
    if (tokens) {
        fill(r, r->ids, tokens, offsets, 0);
        fill(r, r->target, tokens, offsets, 1);
    }
    tg_tensor *sum = tg_gpt_loss(r->gpt, r->tape, r->ids, r->target, TG_LOSS_SUM);
    tg_tensor *loss = tg_scale(r->tape, sum, 1.0 / (double)(r->batch * r->seq_len));
    tg_backward(r->tape, loss);
    double value = tokens ? tg_item(loss) : 0;
    tg_tape_reset(r->tape);
    return value;
}

step_result trainer_step(trainer *r, int64_t step, tg_tokens *tokens, const int64_t *offsets) {
    step_result result = {.lr = tg_schedule_lr(&r->schedule, step)};
    double begun = seconds_now();
    tg_memory_reset_peak(r->ctx);
    for (int64_t i = 0; i < r->batch; i += r->micro)
        result.loss += run_micro_batch(r, tokens, offsets ? offsets + i : NULL);
    tg_optim_set_lr(r->optim, result.lr);
    result.grad_norm = tg_optim_clip(r->optim, r->clip);
    tg_optim_step(r->optim);
    tg_optim_zero_grad(r->optim);
    tg_memory memory = TG_MEMORY();
    tg_memory_stats(r->ctx, &memory);
    result.peak_bytes = memory.peak;
    result.seconds = seconds_now() - begun;
    return result;
}
