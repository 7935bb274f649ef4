/* The training step, with its model, optimizer and inputs. `tapegrad inspect` runs the same step on device meta. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tapegrad/data_parallel.h>

#include "train.h"

double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns the option of AdamW that stands for v: there 0 means the default, and TG_NONE means 0. */
static double zero_as_none(double v) {
    return v == 0 ? TG_NONE : v;
}

static bool open_optimizer(trainer *r, const train_options *o) {
    r->n_params = tg_module_param_count(r->gpt);
    r->params = calloc((size_t)r->n_params, sizeof(tg_tensor *));
    if (!r->params) return fail("no memory"), false;
    for (int i = 0; i < r->n_params; i++) { /* the optimizer's state uses their names */
        const char *path;
        r->params[i] = tg_module_param(r->gpt, i, &path);
        tg_set_name(r->params[i], path);
    }
    r->optim = tg_adamw_new(r->ctx, r->params, r->n_params,
                            TG_ADAMW(.lr = zero_as_none(o->lr), .beta1 = zero_as_none(o->beta1),
                                     .beta2 = zero_as_none(o->beta2), .eps = zero_as_none(o->eps),
                                     .weight_decay = zero_as_none(o->weight_decay)));
    tg_optim_no_decay_1d(r->optim);
    tg_optim_set_clip(r->optim, o->clip > 0 ? o->clip : INFINITY); /* the norm is computed in any case */
    r->scaled = train_scales(o);
    if (r->scaled && o->loss_scale > 0)
        tg_optim_set_scale(r->optim, TG_LOSS_SCALE(.initial = o->loss_scale, .fixed = true));
    else if (r->scaled)
        tg_optim_set_scale(r->optim, TG_LOSS_SCALE(.initial = o->initial_scale, .min = o->min_scale,
                                                   .interval = o->scale_window, .hysteresis = o->hysteresis));
    return check(r->ctx);
}

/* Allocates gradients before the first step, so that all steps have the same peak of memory, also after a resume. */
static bool open_gradients(trainer *r) {
    if (r->dp > 1) {
        r->buckets = tg_buckets_new(r->parallel, r->params, r->n_params, 0);
        return check(r->ctx);
    }
    r->grads = calloc((size_t)r->n_params, sizeof(tg_tensor *));
    if (!r->grads) return fail("no memory"), false;
    for (int i = 0; i < r->n_params; i++) {
        tg_dtype wide = tg_dtype_of(r->params[i]) == TG_F64 ? TG_F64 : TG_F32;
        r->grads[i] = tg_zeros(r->ctx, wide, tg_shape_of(r->params[i]));
        tg_set_main_grad(r->params[i], r->grads[i]);
    }
    return check(r->ctx);
}

/* The tensors of a captured step, n_micro of each. */
enum { IDS, TARGETS, LOSSES, NEXT, KINDS = 5 };

/* Allocates the inputs of all micro-batches of a captured step, and those of the next one. */
static bool open_captured(trainer *r) {
    r->captured = calloc(KINDS * (size_t)r->n_micro, sizeof(tg_tensor *));
    if (!r->captured) return fail("no memory for a batch"), false;
    for (int i = 0; i < KINDS * r->n_micro; i++) {
        if (i / r->n_micro == LOSSES) continue;
        r->captured[i] = tg_zeros(r->ctx, TG_I64, TG_SHAPE(r->micro / r->dp, r->seq_len));
        place_batch(r->parallel, r->captured[i], true);
    }
    return check(r->ctx);
}

static bool open_batch(trainer *r, const train_options *o) {
    r->batch = o->batch;
    r->micro = o->batch / o->accumulate;
    r->seq_len = o->model.seq_len;
    if (r->micro % r->dp)
        return fail("--batch %lld / --accumulate %lld cannot be cut into equal parts for %d data-parallel ranks",
                    (long long)o->batch, (long long)o->accumulate, r->dp),
               false;
    int tp = tg_parallel_size(r->parallel, TG_TP);
    if (tg_is_sequence_parallel(r->parallel) && r->seq_len % tp)
        return fail("--seq-len %lld is not divisible by --tp %d, over which --sp splits it", (long long)r->seq_len, tp),
               false;
    int64_t mine = r->micro / r->dp;
    for (int i = 0; i < (o->capture ? 0 : 2); i++) {
        r->in[i].ids = tg_zeros(r->ctx, TG_I64, TG_SHAPE(mine, r->seq_len));
        r->in[i].target = tg_zeros(r->ctx, TG_I64, TG_SHAPE(mine, r->seq_len));
        place_batch(r->parallel, r->in[i].ids, true);
        place_batch(r->parallel, r->in[i].target, true);
    }
    if (r->dp > 1) r->tokens = tg_zeros(r->ctx, TG_F64, TG_SHAPE());
    double tokens = (double)(r->batch / r->dp * r->seq_len);
    if (r->dp > 1 && strcmp(tg_ctx_device(r->ctx), "meta")) tg_write_f64(r->tokens, &tokens, 1);
    r->buffer = calloc((size_t)(mine * r->seq_len), sizeof *r->buffer);
    r->n_micro = (int)(r->batch / r->micro);
    r->losses = calloc((size_t)r->n_micro, sizeof *r->losses);
    r->downloads = calloc((size_t)r->n_micro, sizeof *r->downloads);
    if (!r->buffer || !r->losses || !r->downloads) return fail("no memory for a batch"), false;
    return check(r->ctx) && (!o->capture || open_captured(r));
}

tg_config train_config(const train_options *o) {
    return *TG_CONFIG(.device = o->device, .seed = (uint64_t)o->seed, .threads = (int)o->threads,
                      .dtype = dtype_of_precision(o->model.precision));
}

bool trainer_open(trainer *r, const train_options *o, tg_ctx *ctx, tg_comm *world, const tg_gpt_config *given,
                  const char *weights) {
    *r = (trainer){.ctx = ctx, .world = world, .schedule = train_schedule(o)};
    r->parallel = groups_of_ranks(&o->on, world);
    if (o->on.rng == TG_RNG_MEGATRON) tg_rng_seed_parallel(r->parallel, (uint64_t)o->seed);
    r->dp = tg_parallel_size(r->parallel, TG_DP);
    r->dp_rank = tg_parallel_rank(r->parallel, TG_DP);
    if (!check(ctx)) return false;
    tg_gpt_config config = *given;
    config.parallel = r->parallel;
    r->gpt = tg_gpt_new(ctx, &config);
    if (weights) tg_gpt_load_weights(r->gpt, weights);
    r->tape = tg_tape_new(ctx);
    if (o->find_nan) tg_tape_find_nan(r->tape, TG_FIND_NAN | TG_FIND_INF);
    return check(ctx) && open_optimizer(r, o) && open_gradients(r) && open_batch(r, o);
}

void trainer_close(trainer *r) {
    if (!r->ctx) return;
    tg_graph_free(r->graph);
    for (int i = 0; r->captured && i < KINDS * r->n_micro; i++) tg_drop(r->captured[i]);
    free(r->captured);
    for (int i = 0; i < 2; i++) {
        tg_drop(r->in[i].ids);
        tg_drop(r->in[i].target);
    }
    tg_drop(r->tokens);
    free(r->buffer);
    free(r->downloads);
    free(r->losses);
    tg_optim_free(r->optim);
    tg_buckets_free(r->buckets);
    free(r->params);
    tg_tape_free(r->tape);
    tg_module_free(r->gpt);
    for (int i = 0; r->grads && i < r->n_params; i++) tg_drop(r->grads[i]);
    free(r->grads);
    tg_parallel_free(r->parallel);
}

/* Starts to copy to out [n, seq_len] the seq_len tokens that begin at each of n offsets + shift. */
static void upload(trainer *r, tg_tensor *out, tg_tokens *tokens, const int64_t *offsets, int64_t n, int64_t shift) {
    for (int64_t i = 0; i < n; i++)
        tg_tokens_read(tokens, offsets[i] + shift, r->seq_len, r->buffer + i * r->seq_len);
    tg_upload(out, r->buffer, (size_t)(n * r->seq_len) * sizeof *r->buffer);
}

/* Starts to copy this rank's part of a micro-batch to the device. */
static void send_inputs(trainer *r, tg_tensor *ids, tg_tensor *target, tg_tokens *tokens, const int64_t *offsets) {
    int64_t n = r->micro / r->dp;
    upload(r, ids, tokens, offsets + r->dp_rank * n, n, 0);
    upload(r, target, tokens, offsets + r->dp_rank * n, n, 1);
}

/* Returns the weight of one token's loss in the mean over the whole batch. */
static double token_weight(const trainer *r) { return 1.0 / (double)(r->batch * r->seq_len); }

/* Runs forward and backward of micro-batch i. Returns the sum of its losses, which with one replica is already divided
 * by the number of tokens in the step's batch; with several replicas, tg_grads_finalize divides the gradients by it. */
static tg_tensor *forward_backward(trainer *r, int i, tg_tensor *ids, tg_tensor *target) {
    tg_tape_key(r->tape, (uint64_t)i);
    tg_tensor *loss = tg_gpt_loss(r->gpt, r->tape, ids, target, TG_LOSS_SUM);
    if (r->dp == 1) loss = tg_scale(r->tape, loss, token_weight(r));
    tg_backward(r->tape, tg_scale_loss(r->tape, loss, r->optim));
    return loss;
}

/* Starts to copy the loss of micro-batch i to the host. */
static void fetch_loss(trainer *r, int i, tg_tensor *loss) {
    r->downloads[i] = tg_download_f64(loss, &r->losses[i], 1);
}

/* Waits for the losses of the micro-batches. Returns this rank's part of the step's mean loss. */
static double wait_for_losses(trainer *r) {
    double sum = 0;
    for (int i = 0; i < r->n_micro; i++)
        if (tg_work_wait(r->downloads[i]) == TG_OK) sum += r->losses[i] * (r->dp == 1 ? 1 : token_weight(r));
    return sum;
}

/* Runs micro-batch i. The inputs of the next one, whose offsets are `next` (NULL: none), are sent to the device before
 * the work of this one is queued, so that they arrive while it runs. */
static void run_micro_batch(trainer *r, int i, tg_tokens *tokens, const int64_t *offsets, const int64_t *next) {
    int now = r->turn;
    if (tokens && !r->sent) send_inputs(r, r->in[now].ids, r->in[now].target, tokens, offsets);
    if (tokens && next) send_inputs(r, r->in[1 - now].ids, r->in[1 - now].target, tokens, next);
    r->sent = tokens && next;
    r->turn = 1 - now;
    tg_tensor *loss = forward_backward(r, i, r->in[now].ids, r->in[now].target);
    if (tokens) fetch_loss(r, i, loss);
    tg_tape_reset(r->tape);
}

static void end_step(trainer *r) {
    tg_grads_finalize(r->parallel, r->params, r->n_params, TG_FINALIZE(.tokens = r->tokens));
    tg_optim_step(r->optim);
    tg_optim_zero_grad(r->optim);
}

/* Queues the work of a whole step, whose inputs are on the device already. Copies nothing between host and device and
 * waits for nothing, so that the step can be captured. */
static tg_status step_on_device(void *state, tg_ctx *ctx) {
    trainer *r = state;
    tg_tensor **ids = r->captured, **target = ids + TARGETS * r->n_micro, **losses = ids + LOSSES * r->n_micro;
    for (int i = 0; i < r->n_micro; i++) {
        tg_buckets_set_reduce(r->buckets, i + 1 == r->n_micro);
        tg_tensor *loss = forward_backward(r, i, ids[i], target[i]);
        tg_drop(losses[i]);
        losses[i] = tg_keep(loss);
        tg_tape_reset(r->tape);
    }
    end_step(r);
    return tg_ctx_status(ctx);
}

static void send_all_inputs(trainer *r, tg_tensor **to, tg_tokens *tokens, const int64_t *offsets) {
    for (int i = 0; i < r->n_micro; i++) send_inputs(r, to[i], to[r->n_micro + i], tokens, offsets + i * r->micro);
}

/* Copies the sequences that were sent for this step to the inputs whose addresses the captured graph uses. */
static void copy_sent_inputs(trainer *r) {
    bool grad = tg_tape_set_grad_mode(r->tape, false);
    for (int i = 0; i < 2 * r->n_micro; i++) tg_copy_(r->tape, r->captured[i], r->captured[NEXT * r->n_micro + i]);
    tg_tape_reset(r->tape);
    tg_tape_set_grad_mode(r->tape, grad);
}

/* Provides the inputs of a step with --capture, and sends those of the next one to the device. */
static void send_captured_inputs(trainer *r, tg_tokens *tokens, const int64_t *offsets, const int64_t *next) {
    if (r->sent)
        copy_sent_inputs(r);
    else
        send_all_inputs(r, r->captured, tokens, offsets);
    if (next) send_all_inputs(r, r->captured + NEXT * r->n_micro, tokens, next);
    r->sent = next != NULL;
}

/* Runs a step with --capture. The first step runs normally and allocates what lives longer than a step, the second one
 * is captured, and later ones replay the graph. */
static void run_captured(trainer *r, tg_tokens *tokens, const int64_t *offsets, const int64_t *next) {
    if (tokens) send_captured_inputs(r, tokens, offsets, next);
    if (r->graph)
        tg_graph_replay(r->graph);
    else if (r->warm)
        r->graph = tg_graph_new(r->ctx, step_on_device, r);
    else
        step_on_device(r, r->ctx);
    r->warm = true;
    for (int i = 0; tokens && i < r->n_micro; i++) fetch_loss(r, i, r->captured[LOSSES * r->n_micro + i]);
}

/* Sums the losses over data-parallel ranks, and finds out whether any rank was interrupted. */
static void gather_result(trainer *r, step_result *result) {
    double v[2] = {tg_parallel_rank(r->parallel, TG_TP) == 0 ? result->loss : 0, result->interrupted};
    if (tg_ctx_status(r->ctx) != TG_OK || !sum_over_ranks(r->ctx, r->world, v, 2)) return;
    result->loss = v[0];
    result->interrupted = v[1] > 0;
}

/* Runs the micro-batches of a step without --capture. */
static void run_uncaptured(trainer *r, tg_tokens *tokens, const int64_t *offsets, const int64_t *next) {
    for (int i = 0; i < r->n_micro; i++) {
        bool last = i + 1 == r->n_micro;
        const int64_t *now = offsets ? offsets + i * r->micro : NULL;
        tg_buckets_set_reduce(r->buckets, last);
        run_micro_batch(r, i, tokens, now, last || !now ? next : now + r->micro);
    }
    end_step(r);
}

step_result trainer_step(trainer *r, int64_t step, tg_tokens *tokens, const int64_t *offsets, const int64_t *next,
                         bool interrupted) {
    step_result result = {.lr = tg_schedule_lr(&r->schedule, step), .interrupted = interrupted};
    double begun = seconds_now();
    tg_memory_reset_peak(r->ctx);
    tg_optim_set_lr(r->optim, result.lr);
    tg_draws_step(r->ctx, (uint64_t)step); /* step 0 has drawn the weights */
    if (r->captured)
        run_captured(r, tokens, offsets, next);
    else
        run_uncaptured(r, tokens, offsets, next);
    if (tokens) result.loss = wait_for_losses(r);
    result.grad_norm = tg_optim_norm(r->optim);
    result.loss_scale = r->scaled ? tg_optim_scale(r->optim) : NAN;
    tg_memory_info memory = TG_MEMORY_INFO();
    tg_memory_query(r->ctx, &memory);
    result.peak_bytes = memory.peak;
    gather_result(r, &result);
    result.seconds = seconds_now() - begun;
    return result;
}
