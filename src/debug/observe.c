/* Observes ops as they run, forward and backward: shows them to a caller's function (tg_tape_observe), and fails at the
 * first NaN or infinity (tg_tape_find_nan). */
#include <tapegrad/comm.h>
#include <tapegrad/explain.h>

#include "autograd/grad_sink.h"
#include "autograd/gradients.h"
#include "base/callback.h"
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "placement/grid.h"
#include "core/capture/capture.h"
#include "debug/tensor_stats.h"

/* Text for an error message. It is short enough for the message of a context. */
typedef struct report {
    char text[1200];
    size_t at;
} report;

/* Appends formatted text to report *w. */
#define SAY(w, ...) tg_text((w)->text, sizeof(w)->text, &(w)->at, __VA_ARGS__)

/* Returns the node whose backward the call runs; NULL if the call is a forward. */
static tg_node *node_at_work(const tg_call *c) { return ((const tg_call_impl *)c->internal)->node; }

/* Returns whether x is floating-point and its bytes can be read now. */
static bool readable(const tg_tensor *x) {
    return tg_is_alive(x) && tg_is_float(x->dtype) && x->storage && x->storage->state == TG_PRESENT;
}

static const char *name_of_kinds(int kinds) {
    return kinds == TG_FIND_NAN ? "a NaN" : kinds == TG_FIND_INF ? "an infinity" : "NaN and infinities";
}

/* Writes "x f32[4]: 1 NaN, 0 infinite, the numbers in [0, 2]". */
static tg_status say_range(report *w, const tg_tensor *x) {
    char what[160];
    tg_range r;
    TG_TRY(tg_range_measure(x, &r));
    tg_describe(x, what, sizeof what);
    SAY(w, "%s: %lld NaN, %lld infinite", what, (long long)r.nan, (long long)r.inf);
    if (r.lo <= r.hi) SAY(w, ", %s in [%g, %g]", r.nan + r.inf ? "the numbers" : "all", r.lo, r.hi);
    return TG_OK;
}

/* Writes the ranges of the op's floating-point inputs, but of at most MAX_LISTED. */
static tg_status say_inputs(report *w, const tg_call *c) {
    enum { MAX_LISTED = 4 };
    for (int i = 0, named = 0; i < c->n_in && named < MAX_LISTED; i++) {
        if (!c->input[i] || !tg_is_float(c->input[i]->dtype)) continue;
        named++;
        SAY(w, "; input %d, ", i);
        if (i == 0 && c->op->inplace)
            SAY(w, "which it overwrote");
        else if (readable(c->input[i]))
            TG_TRY(say_range(w, c->input[i]));
        else
            SAY(w, "whose bytes were discarded");
    }
    return TG_OK;
}

/* Fails with the report as the error message. */
static tg_status fail_with(report *w, tg_ctx *ctx) {
    const tg_comm *world = tg_grid_of(ctx)->world;
    if (world && tg_comm_size(world) > 1) SAY(w, ", on rank %d", tg_comm_rank(world));
    return tg_fail(ctx, TG_ERR_DATA, "%s", w->text);
}

/* ---- Forward ---- */

/* Returns the tensor that a view was made from, through any number of views. */
static const tg_tensor *viewed_tensor(const tg_tensor *x) {
    while (x->node && !x->node->op->forward && x->node->n_in == 1 && x->flags & TG_F_VIEW) x = tg_node_in(x->node)[0];
    return x;
}

/* Finds the first input that has values of the kinds that are looked for. Sets *input to its index, and *kinds to the
 * kinds that it has. If there is no such input, sets *input to -1 and leaves *kinds unchanged. */
static tg_status find_bad_input(const tg_call *c, int *input, int *kinds) {
    *input = -1;
    for (int i = 0; i < c->n_in && *input < 0; i++) {
        int has;
        if ((i == 0 && c->op->inplace) || !readable(c->input[i])) continue;
        TG_TRY(tg_kinds_in(c->input[i], &has));
        if (!(has &= c->tape->observer.kinds)) continue;
        *input = i;
        *kinds = has;
    }
    return TG_OK;
}

static tg_status report_forward(tg_call *c, int out, int kinds) {
    report w = {.at = 0};
    int input;
    TG_TRY(find_bad_input(c, &input, &kinds));
    if (input >= 0) {
        const tg_tensor *x = viewed_tensor(c->input[input]);
        SAY(&w, "%s: input %d brought %s: %s; result %d, ", c->op->name, input, name_of_kinds(kinds),
            x->tape && !(x->flags & TG_F_LEAF) ? "it was made before tg_tape_find_nan was set, or written by the host"
                                               : "it is a leaf, which no op has made",
            out);
    } else {
        SAY(&w, "%s made %s: result %d, ", c->op->name, name_of_kinds(kinds), out);
    }
    TG_TRY(say_range(&w, c->out[out]));
    TG_TRY(say_inputs(&w, c));
    return fail_with(&w, c->ctx);
}

/* Fails if a result of the forward has a NaN or infinity that is looked for. */
static tg_status search_results(tg_call *c) {
    for (int i = 0; i < c->n_out; i++) {
        int kinds;
        if (!tg_is_float(c->out[i]->dtype)) continue;
        TG_TRY(tg_storage_need(c->out[i]->storage, c->out[i]));
        TG_TRY(tg_kinds_in(c->out[i], &kinds));
        kinds &= c->tape->observer.kinds;
        if (kinds) return report_forward(c, i, kinds);
    }
    return TG_OK;
}

/* ---- Backward ---- */

static tg_status report_gradient(tg_call *c, int input, const tg_tensor *g, int kinds) {
    report w = {.at = 0};
    SAY(&w, "the backward of %s made %s: the gradient of input %d, ", c->op->name, name_of_kinds(kinds), input);
    TG_TRY(say_range(&w, g));
    for (int i = 0; i < c->n_out && i < 2; i++) {
        if (!c->gout[i] || !readable(c->gout[i])) continue;
        SAY(&w, "; of result %d, ", i);
        TG_TRY(say_range(&w, c->gout[i]));
    }
    TG_TRY(say_inputs(&w, c));
    return fail_with(&w, c->ctx);
}

/* Fails if the gradient of a result has a NaN or infinity when the op's backward begins. The contribution of each op to
 * this gradient has been searched before. So the NaN or infinity comes from a seed, a hook, another rank, or the sum of
 * the contributions. */
static tg_status search_incoming(tg_call *c) {
    for (int i = 0; i < c->n_out; i++) {
        report w = {.at = 0};
        int kinds;
        if (!c->gout[i]) continue;
        TG_TRY(tg_kinds_in(c->gout[i], &kinds));
        if (!(kinds &= c->tape->observer.kinds)) continue;
        SAY(&w, "the gradient of result %d of %s has %s, from a seed, a hook, another rank or a sum of numbers: ", i,
            c->op->name, name_of_kinds(kinds));
        TG_TRY(say_range(&w, c->gout[i]));
        return fail_with(&w, c->ctx);
    }
    return TG_OK;
}

/* Fails if the accumulated gradient of a leaf has a NaN or infinity before the op's backward adds to it. */
static tg_status search_accumulated(tg_call *c) {
    for (int i = 0; i < c->n_in; i++) {
        report w = {.at = 0};
        char what[160];
        int kinds;
        /* gin_mode does not tell whether there is a value. For a leaf that accumulates in another dtype it is
         * TG_GRAD_WRITE: the op writes to a separate buffer, which is added to the leaf's gradient afterwards. */
        if (!tg_sink_held(c, i) || !(tg_node_src(node_at_work(c))[i]->flags & TG_N_LEAF)) continue;
        tg_tensor *g = tg_sink_gradient(c, i);
        if (!g || !readable(g)) continue;
        TG_TRY(tg_kinds_in(g, &kinds));
        if (!(kinds &= c->tape->observer.kinds)) continue;
        tg_describe(c->input[i], what, sizeof what);
        SAY(&w, "the gradient of %s had %s before this backward: ", what, name_of_kinds(kinds));
        TG_TRY(say_range(&w, g));
        return fail_with(&w, c->ctx);
    }
    return TG_OK;
}

/* Fails if a gradient that the op's backward has computed has a NaN or infinity. */
static tg_status search_gradients(tg_call *c) {
    for (int i = 0; i < c->n_in; i++) {
        int kinds;
        const tg_tensor *g = tg_sink_gradient(c, i);
        if (!g || !readable(g)) continue;
        TG_TRY(tg_kinds_in(g, &kinds));
        kinds &= c->tape->observer.kinds;
        if (kinds) return report_gradient(c, i, g, kinds);
    }
    return TG_OK;
}

/* ---- The caller's function ---- */

static void update(tg_tape *t);

/* Calls the caller's function. Ops that the function records are not observed, and record no nodes. */
static tg_status show(tg_call *c, tg_op_event *event) {
    tg_tape *t = c->tape;
    event->size = sizeof *event;
    event->op = c->op->name;
    event->n_in = c->n_in;
    event->n_out = c->n_out;
    event->input = c->input;
    event->out = c->out;
    event->call = c;
    event->began = ((const tg_call_impl *)c->internal)->began;
    event->ended = ((const tg_call_impl *)c->internal)->ended;
    bool grad = t->grad;
    t->observer.ops = NULL;
    t->grad = false;
    tg_status s = t->observer.fn(t->observer.user, t, event);
    t->grad = grad;
    update(t);
    return tg_callback_end(t->ctx, s, "the observer at op %s", c->op->name);
}

/* Shows a backward to the caller's function. The gradients are shown through handles without a placement, so that the
 * function may read them even if they are one rank's share of a sum. */
static tg_status show_backward(tg_call *c, tg_tensor **gin) {
    const tg_node *n = node_at_work(c);
    tg_status s = TG_OK;
    for (int i = 0; i < c->n_in; i++) {
        const tg_tensor *g = tg_sink_gradient(c, i);
        gin[i] = g && readable(g) ? tg_gradient_alias(g) : NULL;
    }
    if (c->ctx->run.status == TG_OK)
        s = show(c, &(tg_op_event){.backward = true,
                               .number = n->flags & TG_N_OBSERVED ? tg_node_extra_of(n)->number : -1,
                               .gout = c->gout,
                               .gin = gin});
    for (int i = 0; i < c->n_in; i++)
        if (gin[i]) tg_temp_free(gin[i]);
    return s == TG_OK ? c->ctx->run.status : s;
}

/* ---- Callbacks of the tape ---- */

/* Fails while a step is being recorded, because values cannot be read then. */
static tg_status check_readable(const tg_call *c) {
    return tg_recording_refuse(c->ctx, "tg_tape_find_nan", TG_RECORDING_READ, tg_call_site(c));
}

static tg_status observe_forward(tg_call *c) {
    tg_observer *w = &c->tape->observer;
    int64_t number = w->count++;
    if (w->kinds && c->op->forward && !c->ctx->meta) {
        TG_TRY(check_readable(c));
        TG_TRY(search_results(c));
    }
    return w->fn ? show(c, &(tg_op_event){.number = number}) : TG_OK;
}

static tg_status observe_before_backward(tg_call *c) {
    if (!c->tape->observer.kinds || c->ctx->meta) return TG_OK;
    TG_TRY(check_readable(c));
    TG_TRY(search_incoming(c));
    return search_accumulated(c);
}

static tg_status observe_after_backward(tg_call *c) {
    enum { FEW = 16 };
    tg_tensor *few[FEW], **gin = few;
    if (c->tape->observer.kinds && !c->ctx->meta) TG_TRY(search_gradients(c));
    if (!c->tape->observer.fn) return TG_OK;
    size_t bytes = (size_t)c->n_in * sizeof(tg_tensor *);
    if (c->n_in > FEW && !(gin = tg_host_alloc(c->ctx, bytes))) return c->ctx->run.status;
    tg_status s = show_backward(c, gin);
    if (gin != few) tg_host_free(c->ctx, gin, bytes);
    return s;
}

static const tg_observer_ops observer_ops = {observe_forward, observe_before_backward, observe_after_backward};

/* Starts or ends the observation of the tape, as its settings require. */
static void update(tg_tape *t) { t->observer.ops = t->observer.fn || t->observer.kinds ? &observer_ops : NULL; }

/* ---- Public functions ---- */

tg_status tg_tape_find_nan(tg_tape *t, int kinds) {
    TG_TRY(tg_tape_check(t, "tg_tape_find_nan"));
    if (kinds & ~(TG_FIND_NAN | TG_FIND_INF))
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "tg_tape_find_nan: kinds %d, expected a sum of TG_FIND_NAN and TG_FIND_INF", kinds);
    t->observer.kinds = kinds;
    update(t);
    return TG_OK;
}

tg_status tg_tape_observe(tg_tape *t, tg_observe_fn fn, void *user) {
    TG_TRY(tg_tape_check(t, "tg_tape_observe"));
    t->observer.fn = fn;
    t->observer.user = user;
    update(t);
    return TG_OK;
}

const tg_node *tg_op_event_node(const tg_op_event *event) {
    return event && event->call ? node_at_work(event->call) : NULL;
}

size_t tg_op_event_site(const tg_op_event *event, char *buf, size_t n) {
    if (!buf) n = 0;
    if (n) buf[0] = 0;
    const tg_call *c = event ? event->call : NULL;
    if (!c) return 0;
    const tg_node *node = node_at_work(c);
    size_t at = tg_scope_path(node ? node->scope : c->tape->scope, buf, n);
    tg_text(buf, n, &at, "%scalled from ", at ? ", " : "");
    return at + tg_describe_site(c->ctx, tg_call_site(c), at < n ? buf + at : NULL, at < n ? n - at : 0);
}
