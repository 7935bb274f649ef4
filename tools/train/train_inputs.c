/* The inputs of a training step: copies sequences of tokens to the device before the work that reads them is queued. */
#include <stdlib.h>

#include "train/train.h"

/* ---- Memory ---- */

/* The kinds of tensors in trainer.inputs, n_micro of each. */
enum { IDS, TARGETS, NEXT, NEXT_TARGETS, KINDS };

/* Returns whether this stage reads inputs of a kind: ids on the first stage, targets on the last one. */
static bool needs(const trainer *r, int kind) {
    return kind == IDS || kind == NEXT ? stage_is_first(&r->stage) : stage_is_last(&r->stage);
}

static tg_tensor *new_input(trainer *r) {
    tg_tensor *x = tg_zeros(r->ctx, TG_I64, TG_SHAPE(r->micro / r->dp, tokens_of_rank(r->parallel, r->seq_len)));
    place_batch(r->parallel, x, true);
    return x;
}

bool inputs_open(trainer *r, bool whole) {
    int n = KINDS * r->n_micro;
    r->buffer = calloc((size_t)(r->micro / r->dp * r->seq_len), sizeof *r->buffer);
    if (whole) r->inputs = calloc((size_t)n, sizeof(tg_tensor *));
    if (!r->buffer || (whole && !r->inputs)) return fail("no memory for a batch"), false;
    for (int i = 0; whole && i < n; i++)
        if (needs(r, i / r->n_micro)) r->inputs[i] = new_input(r);
    for (int i = 0; !whole && i < 2; i++) {
        r->input[i].ids = new_input(r);
        r->input[i].target = new_input(r);
    }
    return check(r->ctx);
}

void inputs_close(trainer *r) {
    for (int i = 0; r->inputs && i < KINDS * r->n_micro; i++) tg_drop(r->inputs[i]);
    for (int i = 0; i < 2; i++) {
        tg_drop(r->input[i].ids);
        tg_drop(r->input[i].target);
    }
    free(r->inputs);
    free(r->buffer);
}

/* Returns the input of a kind and micro-batch as an array of one tensor; NULL if this stage has none. */
static tg_tensor *const *input_of(const trainer *r, int kind, int micro) {
    tg_tensor *const *x = &r->inputs[kind * r->n_micro + micro];
    return *x ? x : NULL;
}

tg_tensor *const *trainer_ids(const trainer *r, int micro) { return input_of(r, IDS, micro); }
tg_tensor *const *trainer_targets(const trainer *r, int micro) { return input_of(r, TARGETS, micro); }

/* ---- Copies ---- */

/* Starts to copy n sequences to out: of the ids or the targets of the sequences that begin at the n offsets, those that
 * this rank has. Does nothing if out is NULL, because this stage does not need them. */
static void upload(trainer *r, tg_tensor *out, tg_tokens *tokens, const int64_t *offsets, int64_t n, bool targets) {
    if (!out) return;
    int64_t length = tokens_of_rank(r->parallel, r->seq_len);
    for (int64_t i = 0; i < n; i++)
        read_tokens_of_rank(r->parallel, tokens, offsets[i], r->seq_len, targets, r->buffer + i * length);
    tg_upload(out, r->buffer, (size_t)(n * length) * sizeof *r->buffer);
}

/* Starts to copy this rank's part of a micro-batch to the device. */
static void send_inputs(trainer *r, tg_tensor *ids, tg_tensor *target, tg_tokens *tokens, const int64_t *offsets) {
    int64_t n = r->micro / r->dp;
    upload(r, ids, tokens, offsets + r->dp_rank * n, n, false);
    upload(r, target, tokens, offsets + r->dp_rank * n, n, true);
}

/* ---- One micro-batch at a time ---- */

void inputs_of_micro_batch(trainer *r, tg_tokens *tokens, const int64_t *offsets, const int64_t *next, tg_tensor **ids,
                           tg_tensor **target) {
    int now = r->turn;
    if (tokens && !r->sent) send_inputs(r, r->input[now].ids, r->input[now].target, tokens, offsets);
    if (tokens && next) send_inputs(r, r->input[1 - now].ids, r->input[1 - now].target, tokens, next);
    r->sent = tokens && next;
    r->turn = 1 - now;
    *ids = r->input[now].ids;
    *target = r->input[now].target;
}

/* ---- A whole step ---- */

/* Sends the inputs of all micro-batches of a step. kind is IDS for this step, NEXT for the next one. */
static void send_all(trainer *r, int kind, tg_tokens *tokens, const int64_t *offsets) {
    tg_tensor **to = r->inputs + kind * r->n_micro;
    for (int i = 0; i < r->n_micro; i++) send_inputs(r, to[i], to[r->n_micro + i], tokens, offsets + i * r->micro);
}

/* Copies the sequences that were sent ahead for this step to the inputs that the step, or its captured graph, reads. */
static void copy_sent(trainer *r) {
    bool grad = tg_tape_set_grad_mode(r->tape, false);
    for (int i = 0; i < NEXT * r->n_micro; i++)
        if (r->inputs[i]) tg_copy_(r->tape, r->inputs[i], r->inputs[NEXT * r->n_micro + i]);
    tg_tape_reset(r->tape);
    tg_tape_set_grad_mode(r->tape, grad);
}

void inputs_of_step(trainer *r, tg_tokens *tokens, const int64_t *offsets, const int64_t *next) {
    if (r->sent)
        copy_sent(r);
    else
        send_all(r, IDS, tokens, offsets);
    if (next) send_all(r, NEXT, tokens, next);
    r->sent = next != NULL;
}
