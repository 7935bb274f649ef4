/* The training step of a pipeline: makes its plan, and computes a part of the model for a micro-batch (pipe.h). */
#include "train.h"

bool pipeline_open(trainer *r, const train_options *o) {
    if (!stage_of_pipeline(&r->stage)) return true;
    stage_edge e;
    stage_edge_open(&e, &r->stage, r->micro / r->dp, r->seq_len, true);
    r->plan = tg_pipe_plan_new(r->ctx, TG_PIPE_PLAN(.kind = (tg_pipe_kind)o->on.schedule, .stages = (int)o->on.pp,
                                                    .chunks = (int)o->on.vp, .micros = r->n_micro));
    if (!r->plan) return check(r->ctx);
    r->pipe = tg_pipe_new(r->parallel, r->plan, TG_PIPE(.edge = &e.edge, .n_edge = 1, .scale = r->optim));
    return check(r->ctx);
}

void pipeline_close(trainer *r) {
    tg_pipe_free(r->pipe);
    tg_pipe_plan_free(r->plan);
}

tg_status pipeline_part(void *state, tg_pipe_call *c) {
    trainer *r = state;
    if (r->find_nan) tg_tape_find_nan(c->tape, r->find_nan);
    return tg_lm_part(r->stage.chunk[c->chunk], c, trainer_ids(r, c->micro), trainer_targets(r, c->micro), NULL);
}

void pipeline_run(trainer *r) { tg_pipe_run(r->pipe, pipeline_part, r); }
