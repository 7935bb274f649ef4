/* The stages of a pipeline in `tapegrad inspect`: each is measured by a step of its first rank on device meta. */
#include <inttypes.h>
#include <stdlib.h>

#include "commands/inspect_stages.h"
#include "common/text.h"
#include "train/meta_rank.h"

/* Pipeline stages are the outermost division of the ranks (tg_parallel_opts.order). */
static bool measure(stage_row *row, const train_options *o, const tg_lm_config *config, int stage) {
    meta_rank w;
    bool good = meta_rank_open(&w, o, config, (int)(stage * o->on.ranks / o->on.pp));
    if (good) {
        row->layers = stage_layers(&w.r.stage);
        row->parameters = stage_numel(&w.r.stage);
        row->copies = stage_copies(&w.r.stage);
        row->plan = TG_PIPE_REPORT();
        tg_pipe_plan_query(w.r.plan, stage, &row->plan);
        good = meta_rank_step(&w, &row->memory, &row->sent);
    }
    meta_rank_close(&w);
    return good;
}

/* Takes the costs of the whole plan. */
static bool measure_plan(stage_table *t, const train_options *o, const tg_lm_config *config) {
    meta_rank w;
    bool good = meta_rank_open(&w, o, config, 0);
    t->plan = TG_PIPE_REPORT();
    if (good) tg_pipe_plan_query(w.r.plan, TG_NONE, &t->plan);
    meta_rank_close(&w);
    return good;
}

bool stage_table_measure(stage_table *t, const train_options *o, const tg_lm_config *config) {
    if (!(t->row = calloc((size_t)o->on.pp, sizeof *t->row))) return fail("no memory"), false;
    for (; t->n < o->on.pp; t->n++)
        if (!measure(&t->row[t->n], o, config, t->n)) return false;
    return measure_plan(t, o, config);
}

void stage_table_free(stage_table *t) { free(t->row); }

json_t *stage_table_json(const stage_table *t) {
    json_t *all = json_array();
    for (int i = 0; i < t->n; i++) {
        const stage_row *r = &t->row[i];
        json_array_append_new(
            all,
            json_pack("{s:i, s:I, s:I, s:I, s:I, s:i, s:i, s:f, s:I, s:I, s:I, s:I}", "stage", i, "layers",
                      (json_int_t)r->layers, "parameters", (json_int_t)r->parameters, "copied_parameters",
                      (json_int_t)r->copies, "peak_bytes", (json_int_t)r->memory.peak, "kept_micro_batches",
                      r->plan.peak, "waiting_weight_gradients", r->plan.waiting, "idle", r->plan.bubble, "sends",
                      (json_int_t)r->sent.calls[TG_SEND], "sent_bytes", (json_int_t)r->sent.bytes[TG_SEND], "receives",
                      (json_int_t)r->sent.calls[TG_RECV], "received_bytes", (json_int_t)r->sent.bytes[TG_RECV]));
    }
    return all;
}

void stage_table_print(const stage_table *t, const train_options *o) {
    printf("pipeline    %d stages of %" PRId64 " chunk%s, %" PRId64 " micro-batch%s: idle for %.4f of the time\n", t->n,
           o->on.vp, plural(o->on.vp), o->accumulate, o->accumulate == 1 ? "" : "es", t->plan.bubble);
    printf("            %5s %7s %14s %16s %5s %7s %16s %9s\n", "stage", "layers", "parameters", "peak bytes", "kept",
           "sends", "bytes", "receives");
    for (int i = 0; i < t->n; i++) {
        const stage_row *r = &t->row[i];
        printf("            %5d %7" PRId64 " %14" PRId64 " %16" PRId64 " %5d %7" PRId64 " %16" PRId64 " %9" PRId64 "\n",
               i, r->layers, r->parameters, r->memory.peak, r->plan.peak, r->sent.calls[TG_SEND],
               r->sent.bytes[TG_SEND], r->sent.calls[TG_RECV]);
    }
    const stage_row *last = &t->row[t->n - 1];
    if (last->copies)
        printf("            %" PRId64 " parameters of stage %d are a copy of stage 0's, which checkpoints have once\n",
               last->copies, t->n - 1);
}
