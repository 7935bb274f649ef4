/* Replays of captured steps: the checks before one, its launch, and what the host then knows of gradients and random
 * streams. */
#include "core/capture/graph.h"
#include "core/work.h"

/* ---- Checks ---- */

/* Fails if the step writes a tensor that a node has saved for a later backward. */
static tg_status check_uses(const tg_graph *g) {
    char what[160] = "a tensor";
    for (int i = 0; i < g->n_uses; i++) {
        const tg_storage *s = tg_block_owner(g->uses[i].block);
        if (TG_LIKELY(!g->uses[i].written || !s || !s->saves)) continue;
        if (tg_storage_maker(s)) tg_describe(tg_storage_maker(s), what, sizeof what);
        return tg_fail(g->ctx, TG_ERR_STATE,
                       "%s: %s writes %s, which a node has saved for backward; run that backward, or reset its tape, "
                       "first",
                       g->recording.words->replay, g->recording.words->subject, what);
    }
    return TG_OK;
}

/* Fails if a gradient that the step adds to is absent, or one that it overwrites is present. */
static tg_status check_gradients(const tg_graph *g) {
    char what[160];
    for (int i = 0; i < g->n_leaves; i++) {
        const tg_graph_leaf *l = &g->leaves[i];
        const tg_tensor *x = l->ref.tensor;
        if (TG_LIKELY(x->serial != l->ref.serial || !x->ext || !l->read || x->ext->has_grad == l->before.has)) continue;
        tg_describe(x, what, sizeof what);
        return tg_fail(g->ctx, TG_ERR_STATE,
                       "tg_graph_replay: %s has %s gradient, but the step was recorded %s, so it %s; zero gradients "
                       "within the step, or capture one for each case",
                       what, l->before.has ? "no" : "a", l->before.has ? "with one" : "without",
                       l->before.has ? "would add to a gradient that does not exist" : "would overwrite it");
    }
    return TG_OK;
}

static tg_status check_replay(const tg_graph *g, int part, uint64_t micro) {
    tg_ctx *ctx = g->ctx;
    if (ctx->capture) {
        ctx->capture->recording.refused = true;
        return tg_fail(ctx, TG_ERR_STATE, "%s: a step is being captured; captures do not nest",
                       g->recording.words->replay);
    }
    if (g->ended)
        return tg_fail(ctx, TG_ERR_ABORTED, "%s: %s; capture %s again", g->recording.words->replay, g->ended,
                       g->recording.words->subject);
    if (!g->part[part].recorded || part) return TG_OK; /* the checks before the first part cover the later ones */
    TG_TRY(tg_captured_draws_check(&g->draws, micro));
    TG_TRY(check_uses(g));
    return check_gradients(g);
}

/* ---- The launch ---- */

/* Sends the draws, for the first part, and launches the recording. If the hook `begin` has succeeded, calls the hook
 * `end` too, even if the launch fails. If only `end` fails, a communicator of the step has failed, and the work that is
 * queued will not end as recorded. */
static tg_status send_and_launch(tg_graph *g, int part, uint64_t micro, bool first, const void *site) {
    const tg_graph_part *p = &g->part[part];
    if (!part) TG_TRY(tg_captured_draws_send(&g->draws, micro, first, site));
    if (p->hooks) TG_TRY(p->hooks->begin(p->hooks, site));
    tg_status s = g->ctx->run.ops->capture_launch(g->ctx, p->recorded);
    tg_status ended = p->hooks ? p->hooks->end(p->hooks) : TG_OK;
    return s == TG_OK ? ended : s;
}

tg_status tg_graph_launch(tg_graph *g, int part, uint64_t micro, bool first, const void *site) {
    int notes = g->ctx->key_notes.n;
    tg_status s = send_and_launch(g, part, micro, first, site);
    if (s == TG_OK)
        g->steps += !part;
    else
        tg_key_notes_keep(g->ctx, notes);
    return s;
}

static bool touches(const tg_graph *g, const tg_block *b) {
    if (b && tg_block_arena(b) == g->arena) return true;
    for (int i = 0; b && i < g->n_uses; i++)
        if (g->uses[i].block == b) return true;
    return false;
}

/* Returns whether a work may continue during the replay, because the memory that it reads and fills is known, and the
 * step does not touch it: the inputs of the next step, a message that is awaited, or gradients of other modules that
 * are being summed. A call of a group may not, if the step makes calls in that group: the ranks must run them in one
 * order. */
static bool is_independent(const void *arg, const tg_work *w) {
    const tg_graph *g = arg;
    bool known = w->fills ? w->fills->block != NULL : w->reads != NULL, meets = false;
    for (int i = 0; i < g->n_parts; i++) meets |= g->part[i].hooks && g->part[i].hooks->meets(g->part[i].hooks, w);
    if (!known || w->holds || meets) return false;
    return !touches(g, w->fills ? w->fills->block : NULL) && !touches(g, w->reads);
}

/* Calls the function instead, on a device that does not record. */
static tg_status call(tg_graph *g, int part) {
    g->running++;
    tg_status s = tg_graph_call(g, part, g->recording.words->replay);
    g->running--;
    g->steps += s == TG_OK;
    return s;
}

tg_status tg_graph_run(tg_graph *g, int part, uint64_t micro, const void *site) {
    tg_ctx *ctx = g->ctx;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(check_replay(g, part, micro));
    if (!g->part[part].recorded) return call(g, part);
    TG_TRY(tg_works_settle(ctx, is_independent, g));
    if (ctx->run.ops->poll) TG_TRY(ctx->run.ops->poll(ctx));
    TG_TRY(tg_graph_launch(g, part, micro, false, site));
    if (!part) tg_captured_draws_advance(&g->draws);
    tg_graph_set_gradients(g, true);
    return TG_OK;
}

tg_status tg_graph_replay(tg_graph *g) {
    if (!g) return TG_ERR_ARGUMENT;
    tg_status s = tg_graph_run(g, 0, g->draws.micro, TG_SITE);
    bool collective = g->part[0].recorded ? g->part[0].hooks != NULL : g->ctx->run.has_peers;
    if (s != TG_OK && collective) tg_ctx_skip(g->ctx);
    return s;
}
