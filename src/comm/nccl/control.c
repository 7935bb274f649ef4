/* Implements tg_control_ops for NCCL. It asks the host communicator which ranks have arrived and which have failed, and
 * asks NCCL whether the GPUs have failed. The communicators of a rank fail together, so the reason is stored once per
 * rank (tg_nccl_rank). */
#include "base/os.h"
#include "base/text.h"
#include "comm/nccl/nccl.h"

static tg_nccl_call *call_of(const tg_wait *w) { return w ? w->request : NULL; }

/* ---- Failure of the communicators ---- */

static bool has_ended(tg_control *c, const tg_wait *w) { return (void)w, tg_nccl_of(c)->self->status != TG_OK; }
static bool claim(tg_control *c) { return !has_ended(c, NULL); }

static void publish(tg_control *c, const tg_wait *w, tg_status status, int culprit, const char *text) {
    tg_nccl_rank *self = tg_nccl_of(c)->self;
    size_t at = 0;
    (void)w, (void)culprit;
    self->status = status;
    tg_text(self->failure, sizeof self->failure, &at, "%s", text);
}

static void end_of(tg_control *c, tg_group_end *end, char *buf, size_t n) {
    const tg_nccl_rank *self = tg_nccl_of(c)->self;
    size_t at = 0;
    tg_text(buf, n, &at, "%s", self->failure);
    *end = (tg_group_end){.status = self->status, .culprit = -1, .reporter = c->me, .text = buf};
}

/* ---- What a rank waits for ---- */

/* Returns false: members are checked by the host communicator, which check() polls. */
static bool awaits(tg_control *c, const tg_wait *w, int i) { return (void)c, (void)w, (void)i, false; }

static bool describe_call(tg_control *c, const tg_wait *w, tg_call_entry *entry, char *site, size_t n) {
    *entry = call_of(w)->entry;
    tg_describe_site(c->ctx, (const void *)(uintptr_t)entry->site, site, n);
    return true;
}

/* Returns the oldest call in flight that is launched; NULL: none. */
static const tg_nccl_call *oldest(const tg_nccl_group *g) {
    for (const tg_nccl_call *c = g->first; c; c = c->next)
        if (c->launched) return c;
    return NULL;
}

/* Returns the first call that other ranks have yet to make, if the host waits for the device, and the compute stream
 * waits for this call or for a later call of the group. Returns NULL if there is no such call. */
static const tg_nccl_call *awaited(const tg_nccl_group *g) {
    const tg_nccl_call *first = NULL;
    for (const tg_nccl_call *c = g->awaits_nccl ? NULL : g->first; c; c = c->next) {
        if (!first && c->host_request) first = c;
        if (first && c->ordered) return first;
    }
    return NULL;
}

/* ---- Checks ---- */

/* Advances the host communicator and checks its members. c: the call for which the host waits; NULL: none. */
static tg_status check_host(tg_nccl_group *g, const tg_nccl_call *c, double waited) {
    const tg_comm *host = g->host;
    if (!host || !host->ops->poll) return TG_OK;
    return host->ops->poll(g->self->ctx, host->state, c ? c->host_request : NULL, waited);
}

/* Fails if NCCL reports an asynchronous error of the communicator. */
static tg_status check_nccl(tg_nccl_group *g) {
    ncclResult_t state = ncclSuccess, r = g->comm ? ncclCommGetAsyncError(g->comm, &state) : ncclSuccess;
    if (r == ncclSuccess) r = state;
    if (r == ncclSuccess || r == ncclInProgress) return TG_OK;
    return tg_fail(g->self->ctx, r == ncclRemoteError ? TG_ERR_REMOTE : TG_ERR_DEVICE, "group \"%s\": %s: %s", g->name,
                   ncclGetErrorString(r), ncclGetLastError(g->comm));
}

static void check(tg_control *c, const tg_wait *w) {
    tg_nccl_group *g = tg_nccl_of(c);
    tg_status s = check_host(g, awaited(g), w ? tg_system_now() - w->since : 0);
    if (s == TG_OK) s = check_nccl(g);
    if (s != TG_OK) tg_control_fail(c, w, s, -1, c->ctx->run.message);
}

/* These two do nothing, because the host communicator's own poll prepares and ends its checks. */
static void begin_poll(tg_control *c, const tg_wait *w) { (void)c, (void)w; }
static void end_wait(tg_control *c, const tg_wait *w) { (void)c, (void)w; }

/* ---- While the host waits for a device or for NCCL ---- */

/* Advances and checks one communicator while the host waits for c (NULL: for no call). On error aborts all
 * communicators of the rank. waited < 0: only tells the host communicator that the wait is over. */
static tg_status poll_call(tg_nccl_group *g, const tg_nccl_call *c, double waited) {
    if (waited < 0) {
        check_host(g, NULL, waited);
        return TG_OK;
    }
    tg_status s = tg_control_poll(&g->control, (void *)(uintptr_t)c, waited);
    if (s == TG_OK) return TG_OK;
    tg_nccl_abort_all(g->self, NULL);
    return g->self->ctx->run.status;
}

tg_status tg_nccl_poll_group(tg_nccl_group *g, double waited) {
    g->awaits_nccl = true;
    tg_status s = poll_call(g, NULL, waited);
    g->awaits_nccl = false;
    return s;
}

tg_status tg_nccl_poll(tg_cuda_poller *w, double waited) {
    const double period = 0.001;
    tg_nccl_rank *self = (tg_nccl_rank *)w;
    tg_status s = TG_OK;
    bool too_soon = waited > period && waited - self->checked < period;
    if (self->aborted || self->cuda->capturing || too_soon) return TG_OK;
    self->checked = waited;
    for (tg_nccl_group *g = self->groups; g && s == TG_OK; g = g->next) {
        if (waited < 0 || g->first) s = poll_call(g, oldest(g), waited);
    }
    return s;
}

/* ---- The tables ---- */

static void advance(tg_control *c) { tg_nccl_progress(tg_nccl_of(c)); }
static bool is_finished(tg_control *c, const tg_wait *w) { return (void)c, call_of(w)->finished; }

const tg_control_ops tg_nccl_control = {
    .unfinished = "; this rank has called it, and the GPUs have not finished it",
    .awaits = awaits,
    .call = describe_call,
    .ended = has_ended,
    .claim = claim,
    .publish = publish,
    .end = end_of,
    .end_wait = end_wait,
    .begin_poll = begin_poll,
    .check = check,
};

const tg_mover_ops tg_nccl_mover = {.advance = advance, .done = is_finished};
