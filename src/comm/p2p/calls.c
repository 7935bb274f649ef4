/* Calls: arriving at a call, comparing it with the members' calls, ending it, and handling the messages about it. */
#include "base/text.h"
#include "comm/p2p/buffers.h"
#include "comm/p2p/failure.h"
#include "comm/p2p/flow.h"

/* ---- The balance of an all-to-all ---- */

/* Returns a digest of two members and the number of elements that one sends to the other. */
static uint64_t digest_pair(int from, int to, int64_t count) {
    uint64_t h = ((uint64_t)from << 32 | (uint64_t)to) * 0x9E3779B97F4A7C15u ^ (uint64_t)count * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 31) * 0x94d049bb133111ebu;
    return h ^ h >> 29;
}

/* Returns the balance of this rank's call (tg_p2p_call). */
static uint64_t balance_of(const tg_p2p_call *c) {
    uint64_t sum = 0;
    for (int i = 0; c->t.kind == TG_ALL_TO_ALL && i < c->g->control.size; i++)
        sum += digest_pair(c->g->control.rank, i, tg_part_size(c->send_at, c->t.count, i)) -
               digest_pair(i, c->g->control.rank, tg_part_size(c->recv_at, c->t.count, i));
    return sum;
}

/* Writes the description that dispatch.c has stored in the flight recorder. */
void tg_p2p_site(const tg_p2p_rank *self, const void *site, char *buf, size_t n) {
    size_t at = 0;
    if (site)
        tg_rank_slot_site(&self->recorder->rank_slot[self->recorder->me], (uint64_t)(uintptr_t)site, buf, n);
    else
        tg_text(buf, n, &at, "the library");
}

/* ---- Disagreement ---- */

/* Compares this rank's call with that member's. For an all-to-all it also compares the sizes that the two exchange. For
 * a send or receive it compares only the length and dtype. */
bool tg_p2p_agree(const tg_p2p_call *c, int member) {
    const tg_p2p_side *o = tg_p2p_side_of(c, member);
    if (c->pair) return o->count == c->t.count && o->signature.dtype == c->signature.dtype;
    if (!tg_signature_equal(&c->signature, &o->signature)) return false;
    tg_pair_counts ours = {tg_part_size(c->send_at, c->t.count, member), tg_part_size(c->recv_at, c->t.count, member)};
    return c->t.kind != TG_ALL_TO_ALL || tg_pair_agrees(ours, (tg_pair_counts){o->to_me, o->from_me});
}

/* Compares this rank's call with that of a member, once both have arrived. Compares the missed calls first: if the two
 * ranks have missed different numbers of calls, the group ends with the error of the rank that has missed more. */
static void compare(tg_p2p_call *c, int member) {
    tg_p2p_group *g = c->g;
    const tg_p2p_side *o = tg_p2p_side_of(c, member);
    if (!c->request || !o->arrived || tg_p2p_cannot_finish(c)) return;
    uint64_t theirs = o->signature.missed, ours = c->signature.missed;
    tg_wait w = {.place = c}; /* names the call that fails (publish in control.c) */
    if (theirs != ours)
        tg_control_fail_by(&g->control, &w, theirs > ours ? member : g->control.rank,
                           ", and has missed a call since");
    else if (!tg_p2p_agree(c, member))
        c->disputed = true;
}

/* ---- Arriving ---- */

/* Stores the transfer in the call, which outlives the caller's struct. Fails only if there is no memory to copy src,
 * which an all-to-all in place needs. */
static tg_status keep_transfer(tg_p2p_call *c, const tg_transfer *t) {
    int n = c->g->control.size;
    c->t = *t;
    c->t.send = c->t.recv = NULL;
    if (c->pair) return TG_OK;
    c->send_at = tg_parts_begin(c->begins, t->send, n);
    c->recv_at = tg_parts_begin(c->begins + n + 1, t->recv, n);
    if (t->kind != TG_ALL_TO_ALL || t->src != t->dst || !t->src) return TG_OK;
    size_t bytes = (size_t)(c->send_at ? c->send_at[n] : t->count * n) * tg_p2p_element(c);
    c->t.src = c->copy = tg_p2p_copy_of(c->g, t->src, bytes); /* received parts may overwrite src before it is sent */
    return c->copy ? TG_OK : c->g->self->ctx->run.status;
}

/* Notifies a member that this rank has arrived. The message contains the data for that member if it is inline. */
static void send_arrival(tg_p2p_call *c, int member, const char *site) {
    tg_p2p_group *g = c->g;
    tg_p2p_message *m = tg_p2p_draft(g->self, c->pair ? TG_P2P_SEND : TG_P2P_CALL, g);
    if (!m) return;
    tg_p2p_flow f = tg_p2p_out(c, member, 0);
    m->sequence = c->sequence;
    m->signature = c->signature;
    m->count = c->t.count;
    m->to_you = tg_part_size(c->send_at, c->t.count, member);
    m->from_you = tg_part_size(c->recv_at, c->t.count, member);
    m->balance = c->balance;
    tg_p2p_write(m, site);
    if (f.n && tg_p2p_is_inline(c, f, 0)) {
        m->payload = (uint32_t)((size_t)f.n * tg_p2p_element(c));
        memcpy(m->body + m->text, f.data, m->payload);
    }
    tg_p2p_post(g->self, m, g->member[member].rank);
}

/* Arrives at a collective: fills this rank's own side, notifies the members, and compares the call with theirs. */
static void arrive(tg_p2p_call *c) {
    tg_p2p_group *g = c->g;
    char site[TG_P2P_SITE];
    tg_p2p_site(g->self, c->t.site, site, sizeof site);
    c->side[g->control.rank].arrived = true;
    c->side[g->control.rank].signature = c->signature;
    c->side[g->control.rank].count = c->t.count;
    c->side[g->control.rank].balance = c->balance;
    memcpy(c->side[g->control.rank].site, site, sizeof site);
    c->arrived++;
    for (int k = 1; k < g->control.size; k++) send_arrival(c, (g->control.rank + k) % g->control.size, site);
    for (int i = 0; i < g->control.size; i++)
        if (i != g->control.rank) compare(c, i);
}

/* Starts a send or a receive. Only a send notifies the peer. The receiver answers with a request or, if the data was
 * inline, with TG_P2P_TAKEN. */
static tg_status start_pair_call(tg_p2p_group *g, const tg_transfer *t, tg_p2p_request *r) {
    bool send = t->kind == TG_SEND;
    tg_p2p_pair_calls *pair_calls = send ? &g->member[t->root].send : &g->member[t->root].recv;
    tg_p2p_call *c = tg_p2p_pair_place(g, t->root, send, pair_calls->next);
    if (!c) return g->self->ctx->run.status;
    c->sequence = pair_calls->next++;
    c->collectives = g->sequence;
    r->call = c;
    c->request = r;
    keep_transfer(c, t);
    c->signature = tg_signature_of(t, g->control.size, tg_control_missed(&g->control));
    char site[TG_P2P_SITE];
    tg_p2p_site(g->self, t->site, site, sizeof site);
    if (send)
        send_arrival(c, t->root, site);
    else
        compare(c, t->root);
    return TG_OK;
}

tg_status tg_p2p_start(tg_p2p_group *g, const tg_transfer *t, tg_p2p_request *r) {
    uint64_t sequence = g->sequence, window = (uint64_t)g->window;
    if (t->kind == TG_SEND || t->kind == TG_RECV) return start_pair_call(g, t, r);
    tg_p2p_call *before = sequence < window ? NULL : tg_p2p_call_at(g, sequence - window);
    TG_TRY(tg_control_wait(&g->control, NULL, before, sequence));
    tg_p2p_call *c = tg_p2p_call_at(g, sequence);
    TG_TRY(keep_transfer(c, t));
    c->sequence = sequence;
    g->sequence++;
    r->call = c;
    c->request = r;
    c->signature = tg_signature_of(t, g->control.size, tg_control_missed(&g->control));
    c->balance = balance_of(c);
    arrive(c);
    return TG_OK;
}

void tg_p2p_end_call(tg_p2p_call *c) {
    int n = c->pair ? 1 : c->g->control.size;
    if (c->g->self->waits_for == c) c->g->self->waits_for = NULL;
    if (c->request) c->request->done = true;
    if (c->copy) tg_p2p_copy_end(c->g, c->copy);
    c->request = NULL;
    c->copy = NULL;
    c->send_at = c->recv_at = NULL;
    c->ready = c->disputed = c->lost = false;
    c->arrived = 0;
    c->in = c->out = c->sums = c->summed = c->owed = 0;
    for (int i = 0; i < n; i++) {
        tg_p2p_side *s = &c->side[i];
        char *inline_data = s->inline_data;
        *s = (tg_p2p_side){.inline_data = inline_data};
    }
}

/* ---- Messages of the members ---- */

static void keep_side(tg_p2p_call *c, const tg_p2p_message *m) {
    tg_p2p_side *s = tg_p2p_side_of(c, m->member);
    size_t at = 0;
    s->arrived = true;
    s->signature = m->signature;
    s->count = m->count;
    s->to_me = m->to_you;
    s->from_me = m->from_you;
    s->balance = m->balance;
    tg_text(s->site, sizeof s->site, &at, "%s", m->body);
    memcpy(s->inline_data, m->body + m->text, m->payload < c->g->inline_bytes ? m->payload : c->g->inline_bytes);
}

/* Stores the member's call as the last one that this rank knows of. */
static void keep_last(tg_p2p_member *member, const tg_p2p_message *m) {
    size_t at = 0;
    member->last = tg_signature_entry(&m->signature, m->count, 0, m->sequence);
    tg_text(member->site, sizeof member->site, &at, "%s", m->body);
}

void tg_p2p_arrival(tg_p2p_group *g, const tg_p2p_message *m) {
    bool pair = m->kind == TG_P2P_SEND;
    if (g->failed && !pair && m->sequence >= g->failed_at) return;
    tg_p2p_call *c = pair ? tg_p2p_pair_place(g, m->member, false, m->sequence) : tg_p2p_call_at(g, m->sequence);
    if (!c) return;
    c->sequence = m->sequence;
    if (!pair) keep_last(&g->member[m->member], m);
    keep_side(c, m);
    c->arrived++;
    compare(c, m->member);
}

/* Returns the call that a request is for; NULL: this rank has given it up because its group failed. */
static tg_p2p_call *requested_call(tg_p2p_group *g, const tg_p2p_message *m) {
    tg_p2p_pair_calls *pair_calls = &g->member[m->member].send;
    tg_p2p_call *c = m->pair ? tg_p2p_pair_at(pair_calls, m->sequence) : tg_p2p_call_at(g, m->sequence);
    return c && c->request && c->sequence == m->sequence && !tg_p2p_cannot_finish(c) ? c : NULL;
}

void tg_p2p_requested(tg_p2p_rank *self, const tg_p2p_message *m) {
    tg_p2p_group *g = tg_p2p_find(self, m);
    tg_p2p_call *c = g ? requested_call(g, m) : NULL;
    if (!c) {
        tg_p2p_refuse(self, m->rank, m->tag);
        return;
    }
    tg_p2p_side *s = tg_p2p_side_of(c, m->member);
    s->tag[m->phase][s->wanted[m->phase]++ % TG_P2P_PIECES] = m->tag;
    c->owed++;
    if (c->pair) c->arrived = 1;
}

void tg_p2p_send_taken(tg_p2p_group *g, const tg_p2p_message *m) {
    tg_p2p_pair_calls *pair_calls = &g->member[m->member].send;
    tg_p2p_call *c = tg_p2p_pair_at(pair_calls, m->sequence);
    if (c && c->request && c->sequence == m->sequence) c->arrived = 1;
}
