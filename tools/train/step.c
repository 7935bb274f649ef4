/* The training step, with its model, optimizer and inputs. `tapegrad inspect` runs the same step on device meta. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tapegrad/flat.h>

#include "common/mapped.h"
#include "train/tune.h"

/* Returns the number of parameters of this stage, whether they are trained or not. */
static int count_params(const trainer *r) {
    int n = 0;
    for (int k = 0; k < r->stage.n; k++) n += tg_module_param_count(r->stage.chunk[k]);
    return n;
}

/* Lists the parameters of this stage that are trained, and names them, because the optimizer's state uses their
 * names. */
static bool list_params(trainer *r) {
    r->params = calloc((size_t)count_params(r), sizeof(tg_tensor *));
    if (!r->params) return fail("no memory"), false;
    for (int k = 0; k < r->stage.n; k++)
        for (int i = 0, last = tg_module_param_count(r->stage.chunk[k]); i < last; i++) {
            const char *path;
            tg_tensor *x = tg_module_param(r->stage.chunk[k], i, &path);
            if (tg_requires_grad(x)) r->params[r->n_params++] = x;
            tg_set_name(x, path);
        }
    return true;
}

static bool open_optimizer(trainer *r, const train_options *o) {
    tg_tensor *const *leaves = r->params;
    if (r->flat) tg_flat_leaves(r->flat, &leaves);
    r->optim = tg_adamw_new(r->ctx, leaves, r->n_params,
                            TG_ADAMW(.lr = o->lr, .beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps,
                                     .weight_decay = o->weight_decay));
    if (!tune_groups(r, o)) return false;
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

/* Lets parameters that are divided be gathered for one layer after the other. */
static bool watch_layers(trainer *r) {
    tg_module **layer = calloc((size_t)count_params(r), sizeof *layer);
    if (!layer) return fail("no memory"), false;
    tg_flat_watch(r->flat, layer, stage_list_layers(&r->stage, layer));
    free(layer);
    return check(r->ctx);
}

/* Allocates gradients before the first step, so that all steps have the same peak of memory, also after a resume. */
static bool open_gradients(trainer *r, const train_options *o) {
    r->rounds = o->on.zero > 1;
    if (r->dp * r->cp > 1 || o->on.zero) {
        r->flat = tg_flat_new(
            r->parallel, r->params, r->n_params,
            TG_FLAT(.zero = (int)o->on.zero, .wire = o->on.wire == WIRE_BF16 ? TG_BF16 : TG_DTYPE_DEFAULT));
        return check(r->ctx) && watch_layers(r);
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

/* Makes r->tokens, the number of this rank's tokens in a step. A single replica without a pipeline does not need it,
 * because its losses are multiplied by token_weight, unless each step predicts another number of tokens. Stages without
 * a loss do not need it either. */
static void count_tokens(trainer *r, const train_options *o) {
    bool pipeline = stage_of_pipeline(&r->stage);
    r->masked = o->masked;
    r->packed = train_windows(o) == TG_WINDOWS_PACKED;
    if ((r->dp * r->cp == 1 && !pipeline && !r->masked) || !stage_is_last(&r->stage)) return;
    double tokens = (double)(r->batch / r->dp * tokens_of_rank(r->parallel, r->seq_len));
    r->tokens = tg_zeros(r->ctx, TG_F64, TG_SHAPE());
    if (strcmp(tg_ctx_device(r->ctx), "meta")) tg_write_f64(r->tokens, &tokens, 1);
}

static bool open_batch(trainer *r, const train_options *o) {
    r->batch = o->batch;
    r->micro = o->batch / o->accumulate;
    r->seq_len = o->model.seq_len;
    if (r->micro % r->dp)
        return fail("--batch %lld in %lld micro-batch%s cannot be cut into equal parts for %d data-parallel ranks",
                    (long long)o->batch, (long long)o->accumulate, o->accumulate > 1 ? "es" : "", r->dp),
               false;
    if (r->cp > 1 && r->seq_len % (2 * r->cp)) /* --init may have lowered it */
        return fail("--seq-len %lld is not divisible by %d: each of the --cp ranks has two of %d chunks",
                    (long long)r->seq_len, 2 * r->cp, 2 * r->cp),
               false;
    int tp = tg_parallel_size(r->parallel, TG_TP);
    if (tg_is_sequence_parallel(r->parallel) && tokens_of_rank(r->parallel, r->seq_len) % tp)
        return fail("--seq-len %lld is not divisible by --tp %d%s, over which --sp splits it", (long long)r->seq_len,
                    tp, r->cp > 1 ? " after --cp has divided it" : ""),
               false;
    count_tokens(r, o);
    r->n_micro = (int)(r->batch / r->micro);
    r->losses = calloc((size_t)r->n_micro, sizeof *r->losses);
    r->downloads = calloc((size_t)r->n_micro, sizeof *r->downloads);
    r->capture = o->capture;
    bool pipeline = stage_of_pipeline(&r->stage);
    if (r->capture && !pipeline) r->kept_losses = calloc((size_t)r->n_micro, sizeof *r->kept_losses);
    if (!r->losses || !r->downloads || (r->capture && !pipeline && !r->kept_losses))
        return fail("no memory for a batch"), false;
    return check(r->ctx) && inputs_open(r, r->capture || pipeline);
}

tg_config train_config(const train_options *o) {
    return *TG_CONFIG(.device = o->device, .seed = (uint64_t)o->seed, .threads = (int)auto_if_zero(o->threads),
                      .dtype = dtype_of_precision(o->model.precision), .memory = train_memory(o));
}

/* Seeds the streams of this rank as Megatron-Core's trainer does, which adds 100 to the seed for each stage. */
static void seed_streams(trainer *r, uint64_t seed) {
    tg_rng_seed_parallel(r->parallel, seed + 100 * (uint64_t)tg_parallel_rank(r->parallel, TG_PP));
}

bool trainer_open(trainer *r, const train_options *o, tg_ctx *ctx, tg_comm *world, const tg_lm_config *given,
                  const char *weights, const char *adapter) {
    *r = (trainer){.ctx = ctx, .world = world, .schedule = train_schedule(o)};
    r->parallel = groups_of_ranks(&o->on, world);
    if (o->on.rng == TG_RNG_MEGATRON) seed_streams(r, (uint64_t)o->seed);
    r->dp = tg_parallel_size(r->parallel, TG_DP);
    r->dp_rank = tg_parallel_rank(r->parallel, TG_DP);
    r->cp = tg_parallel_size(r->parallel, TG_CP);
    if (!check(ctx)) return false;
    if (o->find_nan) r->find_nan = TG_FIND_NAN | TG_FIND_INF;
    if (tune_freezes(o)) mapped_watch(ctx);
    if (!stage_open(&r->stage, ctx, r->parallel, &o->on, given, weights, tune_freezes(o))) return false;
    r->stage.tokenizer = o->tokenizer;
    r->base = weights;
    if (!tune_model(r, o, adapter)) return false;
    r->tape = tg_tape_new(ctx);
    if (r->find_nan) tg_tape_find_nan(r->tape, r->find_nan);
    return check(ctx) && list_params(r) && open_gradients(r, o) && open_optimizer(r, o) && open_batch(r, o) &&
           pipeline_open(r, o);
}

/* Starts to gather what the ranks have stepped: after a step or, with --capture, at the start of the next one, so that
 * the first layers of the graph run meanwhile. */
static void gather_params(trainer *r) {
    if (r->flat) tg_flat_gather(r->flat);
}

void trainer_set_whole(trainer *r, bool on) {
    if (on && r->capture) gather_params(r);
    if (r->flat) tg_flat_set_whole(r->flat, on);
}

void trainer_save(trainer *r, const char *dir) {
    trainer_set_whole(r, true); /* the first rank of a stage reads the parameters */
    if (r->lora)
        tune_save(r, dir);
    else
        stage_save(&r->stage, dir);
    trainer_set_whole(r, false);
}

void trainer_close(trainer *r) {
    if (!r->ctx) return;
    if (r->saving.save) tg_save_finish(r->saving.save); /* after an error: a run that ends well has finished it */
    tg_graph_free(r->graph);
    pipeline_close(r);
    inputs_close(r);
    for (int i = 0; r->kept_losses && i < r->n_micro; i++) tg_drop(r->kept_losses[i]);
    free(r->kept_losses);
    tg_drop(r->tokens);
    free(r->downloads);
    free(r->losses);
    tg_optim_free(r->optim);
    tg_flat_free(r->flat);
    free(r->params);
    tg_tape_free(r->tape);
    stage_close(&r->stage);
    for (int i = 0; r->grads && i < r->n_params; i++) tg_drop(r->grads[i]);
    free(r->grads);
    tg_parallel_free(r->parallel);
    mapped_unwatch(r->ctx);
}

/* Returns the weight of one token's loss in the mean over the whole batch. */
static double token_weight(const trainer *r) {
    return 1.0 / (double)(r->masked ? r->predicted : r->batch * r->seq_len);
}

/* Returns whether the losses are multiplied by token_weight before backward. */
static bool is_weighted(const trainer *r) { return r->dp * r->cp == 1 && !r->pipe && !r->masked; }

/* Counts the tokens that the step predicts, in all sequences of the batch. Each rank gives tg_grads_finalize an equal
 * part of the number, because the sum over the ranks counts. A step without such tokens counts as having one. */
static void count_predicted(trainer *r, tg_tokens *tokens, const int64_t *offsets) {
    r->predicted = 0;
    for (int64_t i = 0; i < r->batch; i++) r->predicted += tg_tokens_count_targets(tokens, offsets[i], r->seq_len);
    if (r->predicted < 1) r->predicted = 1;
    double part = (double)r->predicted / (double)(r->dp * r->cp);
    if (r->tokens) tg_write_f64(r->tokens, &part, 1);
}

tg_tensor *trainer_loss(trainer *r, tg_tensor *ids, tg_tensor *target, tg_tensor *positions) {
    tg_module *lm = r->stage.chunk[0];
    return positions ? tg_lm_packed_loss(lm, r->tape, ids, positions, target, TG_LOSS_SUM)
                     : tg_gpt_loss(lm, r->tape, ids, target, TG_LOSS_SUM);
}

/* Runs forward and backward of micro-batch i. Returns the sum of its losses. If this rank has whole sequences, there is
 * one replica, and all tokens are predicted, divides the sum by the number of tokens in the step's batch; otherwise
 * tg_grads_finalize divides the gradients by that number. */
static tg_tensor *forward_backward(trainer *r, int i, tg_tensor *ids, tg_tensor *target, tg_tensor *positions) {
    tg_tape_key(r->tape, (uint64_t)i);
    tg_tensor *loss = trainer_loss(r, ids, target, positions);
    if (is_weighted(r)) loss = tg_scale(r->tape, loss, token_weight(r));
    tg_backward(r->tape, tg_scale_loss(r->tape, loss, r->optim));
    return loss;
}

/* Starts to copy the loss of micro-batch i to the host. */
static void fetch_loss(trainer *r, int i, tg_tensor *loss) {
    r->downloads[i] = tg_download_f64(loss, &r->losses[i], 1);
}

/* Starts to copy the losses of a step of a pipeline to the host. */
static void fetch_losses(trainer *r) {
    r->downloads[0] = tg_download_f64(tg_pipe_losses(r->pipe), r->losses, r->n_micro);
}

/* Waits for the losses of the micro-batches. Returns this rank's part of the step's mean loss. */
static double wait_for_losses(trainer *r) {
    double sum = 0, weight = is_weighted(r) ? 1 : token_weight(r);
    for (int i = 0; i < (r->pipe ? 1 : r->n_micro); i++)
        if (tg_work_wait(r->downloads[i]) != TG_OK) return NAN;
    for (int i = 0; i < r->n_micro; i++) sum += r->losses[i] * weight;
    return sum;
}

static void run_micro_batch(trainer *r, int i, tg_tokens *tokens, const int64_t *offsets, const int64_t *next) {
    tg_tensor *const *x = inputs_of_micro_batch(r, tokens, offsets, next)->of;
    tg_tensor *loss = forward_backward(r, i, x[TOKEN_IDS], x[TOKEN_TARGETS], x[TOKEN_POSITIONS]);
    if (tokens) fetch_loss(r, i, loss);
    tg_tape_reset(r->tape);
}

static void end_step(trainer *r) {
    tg_grads_finalize(r->parallel, r->params, r->n_params, TG_FINALIZE(.tokens = r->tokens));
    tg_optim_step(r->optim);
    if (!r->capture) gather_params(r);
    tg_optim_zero_grad(r->optim);
}

static bool is_last(const trainer *r, int i) { return i + 1 == r->n_micro; }

/* Let backward of micro-batch i sum gradients over the replicas: in the last one or, if gradients are divided, in each,
 * so that no whole gradient is kept between two. */
static void begin_sums(trainer *r, int i) { tg_flat_set_reduce(r->flat, r->rounds || is_last(r, i)); }
static void end_sums(trainer *r, int i) {
    if (r->rounds && !is_last(r, i)) tg_grads_reduce(r->parallel);
}

/* Runs the micro-batches of a step one after the other, and keeps their losses. */
static void run_micro_batches(trainer *r) {
    for (int i = 0; i < r->n_micro; i++) {
        begin_sums(r, i);
        tg_tensor *loss = forward_backward(r, i, *trainer_ids(r, i), *trainer_targets(r, i), trainer_positions(r, i));
        tg_drop(r->kept_losses[i]);
        r->kept_losses[i] = tg_keep(loss);
        tg_tape_reset(r->tape);
        end_sums(r, i);
    }
}

/* Queues the work of a whole step, whose inputs are on the device already. Copies nothing between host and device and
 * waits for nothing, so that the step can be captured. */
static tg_status step_on_device(void *state, tg_ctx *ctx) {
    trainer *r = state;
    if (r->capture) gather_params(r);
    if (r->pipe)
        pipeline_run(r);
    else
        run_micro_batches(r);
    end_step(r);
    return tg_ctx_status(ctx);
}

/* Runs a step that has all of its inputs on the device before it begins. With --capture the first step runs normally
 * and allocates what lives longer than a step, the second step is captured, and later steps replay the graph. */
static void run_whole(trainer *r, tg_tokens *tokens, const int64_t *offsets, const int64_t *next) {
    if (tokens) inputs_of_step(r, tokens, offsets, next);
    if (r->graph)
        tg_graph_replay(r->graph);
    else if (r->capture && r->warm)
        r->graph = tg_graph_new(r->ctx, step_on_device, r);
    else
        step_on_device(r, r->ctx);
    r->warm = true;
    if (tokens && r->pipe) fetch_losses(r);
    for (int i = 0; tokens && !r->pipe && i < r->n_micro; i++) fetch_loss(r, i, r->kept_losses[i]);
}

/* Sums the losses over data-parallel and context-parallel ranks and stages, sets result->interrupted on all ranks if it
 * is set on any, and result->written if all ranks have written their files. */
static void gather_result(trainer *r, step_result *result) {
    double v[3] = {tg_parallel_rank(r->parallel, TG_TP) == 0 ? result->loss : 0, result->interrupted,
                   !tg_save_test(r->saving.save)};
    if (tg_ctx_status(r->ctx) == TG_OK) sum_over_ranks(r->ctx, r->world, v, 3);
    if (tg_ctx_status(r->ctx) != TG_OK) return;
    result->loss = v[0];
    result->interrupted = v[1] > 0;
    result->written = v[2] == 0;
}

/* Runs a step whose micro-batches are sent to the device one after the other. */
static void run_in_turn(trainer *r, tg_tokens *tokens, const int64_t *offsets, const int64_t *next) {
    for (int i = 0; i < r->n_micro; i++) {
        const int64_t *now = offsets ? offsets + i * r->micro : NULL;
        begin_sums(r, i);
        run_micro_batch(r, i, tokens, now, is_last(r, i) || !now ? next : now + r->micro);
        end_sums(r, i);
    }
    end_step(r);
}

step_result trainer_step(trainer *r, int64_t step, tg_tokens *tokens, const int64_t *offsets, const int64_t *next,
                         bool interrupted) {
    step_result result = {.lr = tg_schedule_lr(&r->schedule, step), .interrupted = interrupted};
    double begun = seconds_now();
    tg_memory_reset_peak(r->ctx);
    tg_optim_set_lr(r->optim, result.lr);
    tg_draws_step(r->ctx, (uint64_t)step); /* from 1, because the initial weights were drawn in step 0 */
    if (r->masked && tokens) count_predicted(r, tokens, offsets);
    if (r->inputs)
        run_whole(r, tokens, offsets, next);
    else
        run_in_turn(r, tokens, offsets, next);
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
