/* Replays (tg_replay): recomputations that discard the results of their functions too, not only what the ops inside
 * save. The results of all functions of a replay are discarded after their use in forward, and are restored together
 * before backward needs them.
 *
 * Restoring runs each function for the second time, on a separate tape. The backward of the function's node later goes
 * through that tape, so each function runs only twice. The restored results use the bytes of the second run; they are
 * not copied. */
#include "base/memory/host_memory.h"

#include <tapegrad/backward.h>

#include "base/options.h"
#include "placement/grid.h"
#include "autograd/backward.h"
#include "autograd/hooks.h"
#include "autograd/saved_tensors.h"
#include "recompute/recompute.h"

/* One function of a replay. */
typedef struct replay_run {
    struct replay_run *next;
    tg_replay *replay;
    const tg_recompute_params *p; /* params of the node */
    tg_node *node;                /* the node of the function; NULL until it is recorded, and after it has ended */
    /* Tape of the second run. NULL before that run, and after a backward without .retain has gone through the tape. */
    tg_tape *inner;
    tg_tensor **input, **out;     /* inputs and outputs of the second run, tensors of inner */
    /* For each result: 1 + the version of its bytes when the function made them or the second run restored them. 0: the
     * second run has not restored them. */
    uint32_t *version;
    void *state;                  /* state of the function, freed by destroy */
    void (*destroy)(void *state);
} replay_run;

struct tg_replay {
    tg_tape *t;
    uint64_t epoch; /* the tape's epoch when the replay was opened; another one means that the replay has ended */
    replay_run *first, **end;
    bool closed; /* tg_replay_close has been called */
    bool done;   /* the second runs have begun; false again after an error */
};

/* The memory of two replays that are used alternately: each reset of the tape switches to the other one. So a pointer
 * to a replay of the step before the reset can still be read, and its epoch shows that it has ended. */
typedef struct replay_slot {
    struct replay_slot *next;
    tg_replay replay[2];
} replay_slot;

/* The state that a tape keeps for replays. */
typedef struct replay_list {
    tg_tape_listener listener;
    replay_slot *slots, *last; /* all slots; the last one used since the reset, or NULL */
} replay_list;

/* ---- The bytes of the results ---- */

static tg_status restore(void *user, tg_storage *s);

/* Returns whether the function made the bytes of result y, and only the tape keeps them. It did not make them if y is
 * an input or a leaf, or shares the bytes of one. */
static bool is_made_by(const replay_run *r, const tg_tensor *y) {
    const tg_storage *s = y->storage;
    if (!s || !s->temporary || !tg_storage_maker(s)) return false;
    for (int i = 0; i < r->p->n_out; i++)
        if (s->maker == tg_node_out(r->node)[i]) return true;
    return false;
}

/* Discards the results that the function made and that its second run can restore. */
static tg_status discard_results(replay_run *r, const void *site) {
    for (int i = 0; i < r->p->n_out; i++) {
        const tg_tensor *y = tg_node_out(r->node)[i];
        if (!is_made_by(r, y) || y->storage->state == TG_DISCARDED) continue;
        if (y->storage->version + 1 != r->version[i]) continue; /* overwritten: the function would make other bytes */
        tg_storage_extra *e = tg_storage_extra_of(y->storage);
        if (!e) return y->ctx->run.status;
        if (e->release || e->refill || e->restore) continue;
        e->restore = restore;
        e->user = r->replay;
        tg_storage_discard(y->storage, "tg_replay_close", site);
    }
    return TG_OK;
}

/* Removes the restore callbacks of the results, because the replay will not restore them any more. */
static void forget_results(const replay_run *r) {
    for (int i = 0; i < r->p->n_out; i++) {
        const tg_tensor *y = tg_node_out(r->node)[i];
        tg_storage_extra *e = y->storage ? y->storage->extra : NULL;
        if (e && e->restore == restore) e->restore = NULL;
    }
}

/* Restores the results that are discarded: they share the bytes of the second run. */
static tg_status share_results(replay_run *r) {
    for (int i = 0; i < r->p->n_out; i++) {
        const tg_tensor *y = tg_node_out(r->node)[i], *x = r->out[i];
        r->version[i] = 0;
        if (!y->storage || !y->storage->extra || y->storage->extra->restore != restore ||
            y->storage->state != TG_DISCARDED)
            continue;
        if (x->storage->bytes != y->storage->bytes || x->offset != y->offset ||
            memcmp(x->stride, y->stride, y->ndim * sizeof *y->stride))
            return tg_fail(y->ctx, TG_ERR_STATE, "%s: output %d has other strides in the second run than in the first",
                           r->p->name, i);
        TG_TRY(tg_storage_need(x->storage, x));
        TG_TRY(tg_storage_share(y->storage, x->storage));
        y->storage->extra->restore = NULL;
        r->version[i] = y->storage->version + 1;
    }
    return TG_OK;
}

/* ---- The second run ---- */

/* Runs the function on a new tape, r->inner, and restores the results. After an error the caller ends r->inner. */
static tg_status run_again(replay_run *r) {
    const tg_recompute_params *p = r->p;
    tg_tape *inner = tg_tape_new(r->replay->t->ctx);
    TG_TRY(tg_tape_ctx(inner)->run.status);
    tg_tape_act_for(inner, r->replay->t);
    tg_tape_set_training(inner, p->training);
    r->inner = inner;
    r->input = tg_tape_alloc(inner, ((size_t)p->n_in + (size_t)p->n_out) * sizeof *r->input + 1);
    if (!r->input) return inner->ctx->run.status;
    r->out = r->input + p->n_in;
    TG_TRY(tg_recompute_again(r->node, inner, r->input, r->out));
    return share_results(r);
}

static void end_inner(replay_run *r) {
    tg_tape_free(r->inner);
    r->inner = NULL;
}

/* Runs the function for the second time, unless that has happened or its node has ended or been consumed. */
static tg_status run_again_once(replay_run *r) {
    if (!r->node || r->inner || r->node->flags & TG_N_CONSUMED) return TG_OK;
    TG_TRY(tg_node_check_saved(r->node));
    r->replay->t->busy++;
    tg_status s = run_again(r);
    r->replay->t->busy--;
    if (s != TG_OK) end_inner(r);
    return s;
}

/* Runs all functions of the replay for the second time, in the order of their first runs. */
static tg_status replay_all(tg_replay *p) {
    if (p->done) return TG_OK;
    p->done = true;
    for (replay_run *r = p->first; r; r = r->next) {
        tg_status s = run_again_once(r);
        if (s == TG_OK) continue;
        p->done = false;
        return s;
    }
    return TG_OK;
}

/* The restore function of a discarded result. */
static tg_status restore(void *user, tg_storage *s) {
    (void)s;
    return replay_all(user);
}

static tg_status replay_hook(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    (void)t, (void)x, (void)grad;
    return replay_all(user);
}

/* ---- The node ---- */

/* Ends the state that the node of a function owns. It is called when the node ends, or by tg_apply if it records
 * none. */
static void end_run(void *state) {
    replay_run *r = state;
    if (r->node) forget_results(r);
    if (r->inner) end_inner(r);
    r->node = NULL;
    if (r->destroy && r->state) r->destroy(r->state);
}

/* Fails if a result was overwritten after it had been restored. The result shares bytes with the tape of the second
 * run, so writing to the result also overwrites what that tape has saved. */
static tg_status check_results(const replay_run *r) {
    for (int i = 0; i < r->p->n_out; i++) {
        const tg_tensor *y = tg_node_out(r->node)[i];
        if (!r->version[i] || (y->storage && y->storage->version + 1 == r->version[i])) continue;
        return tg_fail(r->replay->t->ctx, TG_ERR_VERSION,
                       "%s: output %d was overwritten after a replay had recreated it", r->p->name, i);
    }
    return TG_OK;
}

static tg_status replay_backward(tg_call *c) {
    replay_run *r = tg_recompute_state(c);
    bool retain = tg_call_retains(c);
    TG_TRY(r->inner ? check_results(r) : run_again_once(r));
    tg_status s = tg_recompute_gradient(c, r->inner, r->input, r->out, retain);
    if (!retain || s != TG_OK) end_inner(r);
    return s;
}

static const tg_op replay_op = TG_RECOMPUTE_OP("replay", false, replay_backward);
static const tg_op replay_of_ranks_op = TG_RECOMPUTE_OP("replay", true, replay_backward);

/* ---- Public functions ---- */

static void reset(tg_tape_listener *l, bool freed) {
    (void)freed;
    ((replay_list *)l)->last = NULL;
}

static void release(tg_tape_listener *l) {
    for (replay_slot *s = ((replay_list *)l)->slots, *next; s; s = next) {
        next = s->next;
        tg_host_free(l->tape->ctx, s, sizeof *s);
    }
}

static const tg_tape_listener_ops replays_ops = {.size = sizeof(replay_list), .reset = reset, .released = release};

/* Takes the next slot of the tape, a new one if all are in use, and returns its replay for this step. Returns NULL
 * after recording the error. */
static tg_replay *new_replay(tg_tape *t) {
    replay_list *all = (replay_list *)tg_tape_listen(t, &replays_ops);
    if (!all) return NULL;
    replay_slot **link = all->last ? &all->last->next : &all->slots;
    if (!*link && !(*link = tg_host_alloc(t->ctx, sizeof **link))) return NULL;
    all->last = *link;
    return &all->last->replay[t->generation];
}

tg_replay *tg_replay_open(tg_tape *t) {
    tg_replay *p = tg_tape_check(t, "tg_replay_open") == TG_OK ? new_replay(t) : NULL;
    if (p)
        *p = (tg_replay){.t = t, .epoch = t->epoch, .end = &p->first};
    else if (t)
        tg_ctx_may_skip(t->ctx); /* tg_replay_run cannot do this: with a NULL replay it knows no context */
    return p;
}

static tg_status check_open(const tg_replay *p, const char *who) {
    TG_TRY(tg_tape_check(p->t, who));
    if (p->epoch != p->t->epoch) return tg_fail(p->t->ctx, TG_ERR_HANDLE, "%s: the replay ended with its step", who);
    if (p->closed) return tg_fail(p->t->ctx, TG_ERR_STATE, "%s: the replay is closed", who);
    return TG_OK;
}

/* Runs and records a function, and adds it to the replay unless no gradient needs it. */
static tg_status run(tg_replay *p, tg_recompute_params *params, replay_run *r, tg_tensor *const *in, tg_tensor **out,
                     const tg_recompute_opts *opts, tg_recompute_call *call) {
    int n = params->n_out > 0 && params->n_out <= 65535 ? params->n_out : 0; /* tg_recompute_record refuses others */
    *r = (replay_run){.replay = p, .state = params->state, .destroy = opts->destroy};
    if (!(r->version = tg_tape_alloc(p->t, (size_t)n * sizeof *r->version + 1))) return p->t->ctx->run.status;
    call->node_state = r;
    TG_TRY(tg_recompute_record(p->t, params, in, out, opts, call));
    if (!out[0]->node || !call->passed_on) return TG_OK; /* no gradient is needed: the function need not run again */
    r->node = out[0]->node;
    r->p = tg_node_params_of(r->node);
    for (int i = 0; i < n; i++) r->version[i] = out[i]->storage->version + 1;
    *p->end = r;
    p->end = &r->next;
    return TG_OK;
}

tg_status tg_replay_run(tg_replay *p, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out,
                        const tg_recompute_opts *given) {
    tg_recompute_opts opts;
    tg_ctx *ctx = p ? p->t->ctx : NULL;
    tg_recompute_params params = {.fn = fn, .state = state, .n_in = n_in, .n_out = n_out};
    tg_recompute_call call = {
        .who = "tg_replay_run", .op = {&replay_op, &replay_of_ranks_op}, .end = end_run, .site = TG_SITE};
    tg_status sized = tg_options(ctx, &opts, &tg_recompute_opts_struct, given, "tg_replay_run: the options");
    tg_status s = p ? check_open(p, "tg_replay_run") : TG_ERR_ARGUMENT;
    if (s == TG_OK) s = sized;
    replay_run *r = s == TG_OK ? tg_tape_alloc(p->t, sizeof *r) : NULL;
    if (s == TG_OK) s = r ? run(p, &params, r, in, out, &opts, &call) : ctx->run.status;
    if (!call.passed_on) tg_tape_end_state(p ? p->t : NULL, state, opts.destroy);
    if (s != TG_OK)
        for (int i = 0; out && n_out <= 65535 && i < n_out; i++) out[i] = tg_inert(ctx ? ctx : &tg_dead_ctx);
    return tg_recompute_ended(p ? p->t : NULL, &opts, s);
}

tg_status tg_replay_close(tg_replay *p, tg_tensor *hook) {
    if (!p) return TG_ERR_ARGUMENT;
    TG_TRY(check_open(p, "tg_replay_close"));
    if (hook) TG_TRY(tg_check(p->t->ctx, hook, "tg_replay_close: the hook tensor"));
    if (hook && hook->tape != p->t)
        return tg_fail(p->t->ctx, TG_ERR_HANDLE, "tg_replay_close: the hook tensor is not of the replay's tape");
    if (hook && p->first && hook->flags & TG_F_REQUIRES_GRAD && !tg_on_grad(hook, replay_hook, p))
        return p->t->ctx->run.status;
    for (replay_run *r = p->first; r; r = r->next)
        if (r->node) TG_TRY(discard_results(r, TG_SITE)); /* otherwise its results were released */
    p->closed = true;
    return TG_OK;
}
