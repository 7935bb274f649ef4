/* Every op of the table, including ops that are added later: each operand with every wrong pair of tape and tensor.
 * If a public function does more than record its op, misuse_ops.c and misuse_arguments.c have rows for that. */
#include "catalog/samples.h"
#include "misuse/misuse.h"

/* Returns the first sample for one rank that is not refused; -1: there is none. */
static int plain_sample(const tg_op *op) {
    for (int i = 0; i < op->n_samples; i++) {
        const tg_sample *s = tg_sample_at(op, i);
        if (!s->refused && !s->bench && s->ranks <= 1) return i;
    }
    return -1;
}

/* A view does not read, so it accepts a tensor whose memory was discarded; an optional operand accepts NULL. */
static bool refuses(const misuse_world *b, const tg_op *op, int place, int k) {
    bool view = !op->forward, optional = op->optional >> (place < 31 ? place : 31) & 1;
    return !(view && b->handle[k].status == TG_ERR_DISCARDED) &&
           !(optional && b->handle[k].status == TG_ERR_ARGUMENT);
}

static void one_row(misuse_world *b, const tg_case *at, int place, int k) {
    const misuse_handle *h = &b->handle[k];
    for (int stuck = 0; stuck < 2; stuck++) {
        tg_tensor *in[TG_SAMPLE_INPUTS], *out[TG_CASE_OUTPUTS];
        memcpy(in, at->input, sizeof in);
        if (stuck)
            misuse_stick(b);
        else
            misuse_begin(b);
        in[place] = k ? h->x : b->dropped;
        int n_out = at->op->n_out < 0 ? 1 : at->op->n_out;
        tg_status s = tg_apply(h->tape, at->op, at->sample->params, in, at->n_in, out, n_out, NULL, NULL, TG_SITE);
        bool inert = s != TG_OK;
        for (int i = 0; i < n_out; i++) inert &= misuse_inert(out[i]);
        if (stuck)
            misuse_stuck(b, at->op->name, __FILE__, __LINE__);
        else
            misuse_end(b, at->op->name, __FILE__, __LINE__, inert, h->ctx, h->status, h->says);
    }
}

void misuse_table(misuse_world *b) {
    const tg_op *op;
    for (int i = 0; (op = tg_op_at(i)); i++) {
        tg_case at;
        int sample = plain_sample(op);
        if (sample < 0 || tg_case_open(&at, b->ctx, op, sample, &(tg_case_opts){.dtype = TG_F32}) != TG_OK) continue;
        for (int place = 0; place < at.n_in; place++)
            for (int k = 0; k < MISUSE_HANDLES; k++)
                if (refuses(b, op, place, k)) one_row(b, &at, place, k);
        if (at.n_in) misuse_covers(b, op->name);
        tg_case_close(&at);
    }
}
