/* The training step of a pipeline: makes its plan, and computes a part of the model for a micro-batch (pipe.h). */
#include "common/part_costs.h"
#include "train/train.h"

/* Makes the plan, with the costs of the parts, so that its report is true for parts that are not equal. */
static bool open_plan(trainer *r, const train_options *o) {
    part_costs c;
    int stages = (int)o->on.pp, chunks = (int)o->on.vp;
    bool good = part_costs_open(&c, tg_lm_config_of(r->stage.chunk[0]), o->on.layout, stages * chunks, r->seq_len);
    if (good)
        r->plan = tg_pipe_plan_new(r->ctx,
                                   TG_PIPE_PLAN(.kind = (tg_pipe_kind)o->on.schedule, .stages = stages,
                                                .chunks = chunks, .micros = r->n_micro, .f = c.f, .b = c.b, .w = c.w));
    part_costs_close(&c);
    return good && check(r->ctx);
}

bool pipeline_open(trainer *r, const train_options *o) {
    if (!stage_of_pipeline(&r->stage)) return true;
    stage_edge e;
    stage_edge_open(&e, &r->stage, r->micro / r->dp, r->seq_len, true);
    if (!open_plan(r, o)) return false;
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
    if (r->profile) profile_watch(r->profile, c->tape);
    return tg_lm_part(r->stage.chunk[c->chunk], c, trainer_ids(r, c->micro), trainer_targets(r, c->micro),
                      trainer_positions(r, c->micro));
}

void pipeline_run(trainer *r) { tg_pipe_run(r->pipe, pipeline_part, r); }
