/* The inputs of a training step: copies sequences of tokens to the device before the work that reads them is queued. */
#include <stdlib.h>

#include "train/train.h"

/* ---- Memory ---- */

/* trainer.inputs has n_micro tensors of each token_kind for this step, and as many for the next one, from NEXT on. */
enum { NEXT = TOKEN_KINDS, INPUTS = 2 * NEXT };

/* Returns whether this stage reads inputs of a kind: ids on the first stage, targets on the last one, and the positions
 * of packed documents on all. */
static bool needs(const trainer *r, int kind) {
    if (kind == TOKEN_POSITIONS) return r->packed;
    return kind == TOKEN_IDS ? stage_is_first(&r->stage) : stage_is_last(&r->stage);
}

static tg_tensor *new_input(trainer *r) {
    tg_tensor *x = tg_zeros(r->ctx, TG_I64, TG_SHAPE(r->micro / r->dp, tokens_of_rank(r->parallel, r->seq_len)));
    place_batch(r->parallel, x, true);
    return x;
}

bool inputs_open(trainer *r, bool whole) {
    int n = INPUTS * r->n_micro;
    r->buffer = calloc((size_t)(r->micro / r->dp * r->seq_len), sizeof *r->buffer);
    if (whole) r->inputs = calloc((size_t)n, sizeof(tg_tensor *));
    if (!r->buffer || (whole && !r->inputs)) return fail("no memory for a batch"), false;
    for (int i = 0; whole && i < n; i++)
        if (needs(r, i / r->n_micro % NEXT)) r->inputs[i] = new_input(r);
    for (int i = 0; !whole && i < 2 * NEXT; i++)
        if (needs(r, i % NEXT)) r->input[i / NEXT].of[i % NEXT] = new_input(r);
    return check(r->ctx);
}

void inputs_close(trainer *r) {
    for (int i = 0; r->inputs && i < INPUTS * r->n_micro; i++) tg_drop(r->inputs[i]);
    for (int i = 0; i < 2 * NEXT; i++) tg_drop(r->input[i / NEXT].of[i % NEXT]);
    free(r->inputs);
    free(r->buffer);
}

/* Returns the input of a kind and micro-batch as an array of one tensor; NULL if this stage has none. */
static tg_tensor *const *input_of(const trainer *r, int kind, int micro) {
    tg_tensor *const *x = &r->inputs[kind * r->n_micro + micro];
    return *x ? x : NULL;
}

tg_tensor *const *trainer_ids(const trainer *r, int micro) { return input_of(r, TOKEN_IDS, micro); }
tg_tensor *const *trainer_targets(const trainer *r, int micro) { return input_of(r, TOKEN_TARGETS, micro); }
tg_tensor *trainer_positions(const trainer *r, int micro) {
    tg_tensor *const *x = input_of(r, TOKEN_POSITIONS, micro);
    return x ? *x : NULL;
}

/* ---- Copies ---- */

/* Starts to copy to out this rank's part of the inputs of a kind, for the n sequences that begin at the offsets. Does
 * nothing if out is NULL, because this stage does not need it. */
static void upload(trainer *r, tg_tensor *out, tg_tokens *tokens, const int64_t *offsets, int64_t n, token_kind kind) {
    if (!out) return;
    int64_t length = tokens_of_rank(r->parallel, r->seq_len);
    for (int64_t i = 0; i < n; i++)
        read_tokens_of_rank(r->parallel, tokens, offsets[i], r->seq_len, kind, r->buffer + i * length);
    tg_upload(out, r->buffer, (size_t)(n * length) * sizeof *r->buffer);
}

/* Starts to copy this rank's part of a micro-batch to the device. to: the tensor of each token_kind, `step` elements
 * apart. */
static void send_inputs(trainer *r, tg_tensor *const *to, int step, tg_tokens *tokens, const int64_t *offsets) {
    int64_t n = r->micro / r->dp;
    for (int k = 0; k < TOKEN_KINDS; k++)
        upload(r, to[k * step], tokens, offsets + r->dp_rank * n, n, (token_kind)k);
}

/* ---- One micro-batch at a time ---- */

const micro_inputs *inputs_of_micro_batch(trainer *r, tg_tokens *tokens, const int64_t *offsets, const int64_t *next) {
    int now = r->turn;
    if (tokens && !r->sent) send_inputs(r, r->input[now].of, 1, tokens, offsets);
    if (tokens && next) send_inputs(r, r->input[1 - now].of, 1, tokens, next);
    r->sent = tokens && next;
    r->turn = 1 - now;
    return &r->input[now];
}

/* ---- A whole step ---- */

/* Sends the inputs of all micro-batches of a step. first is 0 for this step, NEXT for the next one. */
static void send_all(trainer *r, int first, tg_tokens *tokens, const int64_t *offsets) {
    tg_tensor **to = r->inputs + first * r->n_micro;
    for (int i = 0; i < r->n_micro; i++) send_inputs(r, to + i, r->n_micro, tokens, offsets + i * r->micro);
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
        send_all(r, 0, tokens, offsets);
    if (next) send_all(r, NEXT, tokens, next);
    r->sent = next != NULL;
}
