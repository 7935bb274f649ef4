/* What a run shows in addition to its progress: the page run.html, the trace of a step, and TensorBoard's event file.
 */
#include <string.h>

#include "look/page.h"
#include "train/train.h"

/* Chooses the steps of the profile. The first step of a call allocates and fills caches, so the second one is timed, if
 * there is one. A step that --record observes cannot be timed too, so the next one is. Memory is noted in the step
 * after. */
static void choose_steps(look *l, int64_t done) {
    const train_options *o = l->o;
    int64_t recorded = !o->record ? 0 : o->record_step ? o->record_step : done + 1;
    l->timed = done + 2 <= o->steps ? done + 2 : done + 1;
    if (l->timed == recorded) l->timed++;
    l->noted = l->timed + 1;
    if (l->noted > o->steps) l->noted = 0;
    if (l->timed > o->steps) l->timed = 0;
}

bool look_open(look *l, const train_options *o, tg_ctx *ctx, tg_comm *world, int64_t done) {
    *l = (look){.o = o, .ctx = ctx, .chief = is_chief(world)};
    if ((o->html || o->trace) && !o->capture) {
        choose_steps(l, done);
        if (l->timed && !(l->profile = profile_new(ctx, world))) return false;
    }
    if (o->tensorboard && l->chief && !(l->events = event_file_open(o->tensorboard, done))) return false;
    return true;
}

void look_close(look *l) {
    if (l->chief && l->o && l->o->trace && !l->step)
        warn("--trace '%s' was not written: the run ended before", l->o->trace);
    profile_free(l->profile);
    json_decref(l->step);
    event_file_close(l->events);
}

void look_before_step(look *l, trainer *r, int64_t step) {
    if (!l->profile) return;
    r->profile = l->profile;
    if (step == l->timed) profile_begin_times(l->profile, r->tape, step);
    if (step == l->noted) profile_begin_memory(l->profile);
}

bool look_after_step(look *l, trainer *r, int64_t step) {
    if (!l->profile || tg_ctx_status(l->ctx) != TG_OK) return true;
    if (step == l->timed) profile_end_times(l->profile, r->tape);
    if (step == l->noted) profile_end_memory(l->profile);
    if (step != (l->noted ? l->noted : l->timed)) return true;
    l->step = profile_gather(l->profile);
    return !l->step || !l->o->trace || trace_save(l->ctx, l->o->trace, l->step);
}

bool look_at_metrics(look *l, const metrics *m, int64_t step, const step_result *r, double val_loss) {
    return !l->events || event_file_add(l->events, step, r, metrics_rate(m, r), val_loss);
}

bool look_save_page(look *l) {
    if (!l->o->html) return true;
    char *path = path_in(l->o->out, "run.html");
    json_t *run = path ? run_json(l->o->out) : NULL, *data = NULL;
    if (run)
        data = json_pack("{s:s, s:O, s:s, s:[o]}", "kind", "run", "title", json_object_get(run, "name"), "version",
                         tg_version(), "runs", run);
    if (data && l->step) json_object_set(data, "step", l->step);
    bool good = data && page_save(l->ctx, path, data);
    free(path);
    return good;
}
