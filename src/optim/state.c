/* The list of the tensors of an optimizer's state, which checkpoints save. */
#include "base/memory/host_memory.h"
#include "optim/optim.h"

/* Returns state tensor k of a parameter, and its name: those of the method, then the master. Sets *x to NULL past the
 * last one. */
static const char *state_of(const tg_optim_item *it, int k, tg_tensor **x) {
    for (int i = 0; i < TG_OPTIM_STATES; i++)
        if (it->state[i] && k-- == 0) return *x = it->state[i], it->method->state_name[i];
    *x = k == 0 ? it->master : NULL;
    return "master";
}

static int states_of(const tg_optim_item *it) {
    int n = 0;
    for (int i = 0; i < TG_OPTIM_STATES; i++) n += it->state[i] != NULL;
    return n + (it->master != NULL);
}

int tg_optim_state_count(const tg_optim *o) {
    int n = 0;
    for (int i = 0; o && i < o->n; i++) n += states_of(&o->item[i]);
    return n + (o && tg_optim_is_scale_dynamic(o));
}

tg_tensor *tg_optim_state(tg_optim *o, int i, const char **name) {
    if (!o) return tg_inert(&tg_dead_ctx);
    int left = i, j = 0;
    for (; j < o->n && left >= states_of(&o->item[j]); j++) left -= states_of(&o->item[j]);
    if (left >= 0 && j < o->n) {
        tg_tensor *x;
        const char *state = state_of(&o->item[j], left, &x);
        const char *text = tg_host_strset(o->ctx, &o->name, "%s.%s", tg_name(o->item[j].param), state);
        if (name) *name = text ? text : "";
        return text ? x : tg_inert(o->ctx);
    }
    if (left == 0 && tg_optim_is_scale_dynamic(o)) {
        if (name) *name = TG_OPTIM_SCALE_NAME;
        return o->scale_state;
    }
    tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_state: index %d is out of range; the optimizer has %d state tensors", i,
            tg_optim_state_count(o));
    return tg_inert(o->ctx);
}
