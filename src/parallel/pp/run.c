/* tg_pipe_run: runs the list of this stage, item by item. */
#include "comm/comm.h"
#include "parallel/dp/grads.h"
#include "parallel/pp/pipe.h"

/* Adds the item, such as "F3 of part 2 of 4", to the context's error. Returns the status of the error. */
static tg_status note(const tg_pipe *x, tg_pipe_item it) {
    return tg_fail_note(x->ctx, " (in %c%d of part %d of %d of tg_pipe_run)", "FBW"[it.act], (int)it.micro,
                        tg_pipe_part_of(x, it), tg_pipe_parts(x->plan));
}

/* Counts an item before it runs. Returns whether it is the last B or the last W of its chunk. */
static bool count_last(tg_pipe *x, tg_pipe_item it) {
    return ++x->done[it.act * x->plan->chunks + it.chunk] == x->plan->micros && it.act != TG_PIPE_F;
}

static tg_status run_item(tg_pipe *x, tg_pipe_item it, tg_pipe_fn fn) {
    switch (it.act) {
    case TG_PIPE_F:
        return tg_pipe_forward(x, it, fn);
    case TG_PIPE_B:
        return tg_pipe_backward(x, it);
    default:
        return tg_wgrads_run_to(x->wgrads, tg_pipe_cell_of(x, it)->mark);
    }
}

/* Runs the items in order. Posts the receives of each item `ahead` items before it. */
static tg_status run_items(tg_pipe *x, tg_pipe_fn fn) {
    const tg_pipe_item *item = tg_pipe_items(x->plan, x->stage);
    int n = tg_pipe_item_count(x->plan, x->stage), posted = 0;
    for (int i = 0; i < n; i++) {
        tg_status s = TG_OK;
        for (; posted < n && posted <= i + x->ahead && s == TG_OK; posted++) s = tg_pipe_post(x, item[posted]);
        tg_flats_hold(x->p, !count_last(x, item[i]));
        if (s == TG_OK) s = run_item(x, item[i], fn);
        if (s == TG_OK && !x->p)
            s = tg_fail(x->ctx, TG_ERR_STATE, "tg_pipe_run: the tg_parallel of the pipe was freed while the pipe ran");
        if (s != TG_OK) return note(x, item[i]);
    }
    return TG_OK;
}

/* Checks a call of tg_pipe_run, and prepares the pipe for it. */
static tg_status begin(tg_pipe *x, tg_pipe_fn fn) {
    TG_TRY(x->ctx->run.status);
    if (!x->p)
        return tg_fail(x->ctx, TG_ERR_STATE,
                       "tg_pipe_run: the tg_parallel of the pipe was freed; free the pipe before the tg_parallel");
    if (x->running) return tg_fail(x->ctx, TG_ERR_STATE, "tg_pipe_run: the pipe is running already");
    if (!fn) return tg_fail(x->ctx, TG_ERR_ARGUMENT, "tg_pipe_run: fn is NULL");
    if (x->stale) tg_pipe_clear(x);
    memset(x->done, 0, 3 * (size_t)x->plan->chunks * sizeof *x->done);
    TG_TRY(tg_pipe_edge_place(x));
    TG_TRY(tg_storage_may_change(x->losses));
    TG_TRY(x->ctx->run.ops->fill(x->ctx, tg_array_of(x->losses), 0));
    tg_storage_wrote(x->losses->storage, "tg_pipe_run", x->site);
    return TG_OK;
}

static tg_status run(tg_pipe *x, tg_pipe_fn fn, void *state) {
    TG_TRY(begin(x, fn)); /* a call from fn fails here, and leaves the state of the outer run as it is */
    x->state = state;
    x->running = true;
    tg_status s = run_items(x, fn);
    if (x->p) tg_flats_hold(x->p, false);
    x->running = false;
    x->stale = s != TG_OK;
    return s;
}

tg_status tg_pipe_run(tg_pipe *x, tg_pipe_fn fn, void *state) {
    if (!x) return TG_ERR_ARGUMENT;
    x->site = x->running ? x->site : TG_SITE;
    tg_status s = run(x, fn, state);
    return x->p ? tg_comm_note_missed(tg_parallel_world(x->p), s) : s;
}
