/* Steps of the trainer on device meta. */
#include "train/meta_rank.h"

bool meta_rank_open(meta_rank *w, const train_options *o, const tg_lm_config *config, int rank) {
    tg_config c = train_config(o);
    c.device = "meta";
    c.memory = TG_NONE; /* of the real device */
    *w = (meta_rank){.ctx = tg_ctx_new(&c)};
    w->world = tg_comm_plan_new(w->ctx, rank, (int)o->on.ranks);
    return trainer_open(&w->r, o, w->ctx, w->world, config, NULL, NULL);
}

void meta_rank_close(meta_rank *w) {
    trainer_close(&w->r);
    tg_comm_free(w->world);
    tg_ctx_free(w->ctx);
}

bool meta_rank_step(meta_rank *w, tg_memory_info *memory, tg_comm_info *sent) {
    trainer_step(&w->r, 1, NULL, NULL, NULL, false);
    if (memory) {
        *memory = TG_MEMORY_INFO();
        tg_memory_query(w->ctx, memory);
    }
    if (sent) {
        *sent = TG_COMM_INFO();
        tg_comm_query(w->world, sent);
    }
    return check(w->ctx);
}

/* Records a part of a pipeline for micro-batch 0. The part's input is a tensor that lives until the context is
 * freed. */
static void record_part(trainer *r, int chunk) {
    int stages = tg_parallel_size(r->parallel, TG_PP), part = chunk * stages + tg_parallel_rank(r->parallel, TG_PP);
    stage_edge e;
    stage_edge_open(&e, &r->stage, r->micro / r->dp, r->seq_len, true);
    tg_tensor *out = NULL, *in = tg_zeros(r->ctx, TG_DTYPE_DEFAULT, e.edge.shape);
    for (int i = 0; i < e.edge.n_at; i++) tg_place(r->parallel, in, e.at[i].axis, e.at[i].placement);
    pipeline_part(r, &(tg_pipe_call){.size = sizeof(tg_pipe_call),
                                     .tape = r->tape,
                                     .chunk = chunk,
                                     .part = part,
                                     .parts = stages * r->stage.n,
                                     .input = part ? &in : NULL,
                                     .out = &out});
}

bool meta_rank_forward(meta_rank *w) {
    trainer *r = &w->r;
    tg_draws_step(w->ctx, 1);
    for (int k = 0; r->pipe && k < r->stage.n; k++) record_part(r, k);
    tg_tensor *const *x = r->input[0].of;
    if (!r->pipe) trainer_loss(r, x[TOKEN_IDS], x[TOKEN_TARGETS], x[TOKEN_POSITIONS]);
    return check(w->ctx);
}
