/* Lists of items for pipeline plans: random ones that follow the rules, and a second, slow implementation of the rules
 * and of the times, which the tests compare with the library's. */
#ifndef TG_TEST_PIPE_LISTS_H
#define TG_TEST_PIPE_LISTS_H

#include <string.h>

#include <tapegrad/pipe.h>

enum { MOST_STAGES = 4, MOST_CHUNKS = 3, MOST_MICROS = 4, MOST_ITEMS = 3 * MOST_CHUNKS * MOST_MICROS };

typedef struct lists {
    int p, v, m; /* stages, chunks, micro-batches */
    bool split;
    tg_pipe_item item[MOST_STAGES][MOST_ITEMS + 1]; /* a mutation may add one */
    int n[MOST_STAGES];
} lists;

/* Returns a number from 0 to n - 1 (SplitMix64). */
static inline int draw(uint64_t *state, int n) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (int)((z ^ (z >> 31)) % (uint64_t)n);
}

static inline tg_pipe_plan *plan_of(tg_ctx *ctx, const lists *l, const double *f, const double *b, const double *w,
                                    double hop) {
    const tg_pipe_item *items[MOST_STAGES];
    for (int s = 0; s < l->p; s++) items[s] = l->item[s];
    return tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_CUSTOM, .stages = l->p, .chunks = l->v, .micros = l->m,
                                              .items = items, .n_items = l->n, .f = f, .b = b, .w = w, .hop = hop));
}

/* ---- Finding items ---- */

static inline bool same_item(tg_pipe_item a, tg_pipe_item b) {
    return a.act == b.act && a.chunk == b.chunk && a.micro == b.micro;
}

/* Returns the position of an item in the list of a stage; -1: it is not there. */
static inline int position(const lists *l, int stage, tg_pipe_item item) {
    for (int i = 0; i < l->n[stage]; i++)
        if (same_item(l->item[stage][i], item)) return i;
    return -1;
}

/* Sets *source and *item to the stage and the item whose result an item needs from another part. Returns false if there
 * is none. */
static inline bool comes_from(const lists *l, int stage, tg_pipe_item of, int *source, tg_pipe_item *item) {
    int part = of.chunk * l->p + stage, before = of.act == TG_PIPE_F ? part - 1 : part + 1;
    if (of.act == TG_PIPE_W || before < 0 || before == l->p * l->v) return false;
    *source = before % l->p;
    *item = (tg_pipe_item){of.act, (uint8_t)(before / l->p), of.micro};
    return true;
}

/* ---- The rules, and the times ---- */

static inline bool each_once(const lists *l) {
    bool any[3] = {true};
    for (int s = 0; s < l->p; s++)
        for (int i = 0; i < l->n[s]; i++) {
            tg_pipe_item x = l->item[s][i];
            if (x.act > TG_PIPE_W || x.chunk >= l->v || x.micro < 0 || x.micro >= l->m) return false;
            if (position(l, s, x) != i) return false;
            for (int a = 0; a <= x.act; a++) any[a] = true;
        }
    for (int s = 0; s < l->p; s++)
        if (l->n[s] != (any[0] + any[1] + any[2]) * l->v * l->m) return false;
    return true;
}

/* Whether F, B and W of each part are in this order, and the W of a stage in the order of its B. */
static inline bool in_order_on_stages(const lists *l) {
    for (int s = 0; s < l->p; s++)
        for (int i = 0; i < l->n[s]; i++)
            for (int k = i + 1; k < l->n[s]; k++) {
                tg_pipe_item a = l->item[s][i], b = l->item[s][k];
                if (a.chunk == b.chunk && a.micro == b.micro && a.act > b.act) return false;
                if (a.act != TG_PIPE_W || b.act != TG_PIPE_W) continue;
                a.act = b.act = TG_PIPE_B;
                if (position(l, s, a) > position(l, s, b)) return false;
            }
    return true;
}

/* Whether, of any two messages of one direction between two stages, the first that is sent is also received first. */
static inline bool messages_in_order(const lists *l) {
    for (int s = 0; s < l->p && l->p > 1; s++)
        for (int i = 0; i < l->n[s]; i++)
            for (int k = i + 1; k < l->n[s]; k++) {
                tg_pipe_item a, b;
                int from_a, from_b;
                if (l->item[s][i].act != l->item[s][k].act) continue;
                if (!comes_from(l, s, l->item[s][i], &from_a, &a) || !comes_from(l, s, l->item[s][k], &from_b, &b))
                    continue;
                if (position(l, from_a, a) > position(l, from_b, b)) return false;
            }
    return true;
}

static inline double time_of(const lists *l, int stage, tg_pipe_item x, const double *f, const double *b,
                             const double *w) {
    int k = x.chunk * l->p + stage;
    if (x.act == TG_PIPE_F) return f[k];
    return x.act == TG_PIPE_W ? w[k] : l->split ? b[k] : b[k] + w[k];
}

/* Returns the makespan: ends of items are raised until none changes. Returns -1 if they never stop, because items wait
 * for each other. Times are positive. */
static inline double makespan_of(const lists *l, const double *f, const double *b, const double *w, double hop) {
    double end[MOST_STAGES][MOST_ITEMS + 1] = {{0}}, last = 0;
    bool changed = true;
    for (int pass = 0; changed; pass++) {
        changed = false;
        for (int s = l->p - 1; s >= 0; s--)
            for (int i = 0; i < l->n[s]; i++) {
                int from;
                tg_pipe_item need;
                double begin = i ? end[s][i - 1] : 0;
                if (comes_from(l, s, l->item[s][i], &from, &need)) {
                    double arrives = end[from][position(l, from, need)] + (from != s ? hop : 0);
                    if (arrives > begin) begin = arrives;
                }
                double ends = begin + time_of(l, s, l->item[s][i], f, b, w);
                changed |= ends > end[s][i];
                if (ends > end[s][i]) end[s][i] = ends;
                if (ends > last) last = ends;
            }
        if (pass > MOST_STAGES * MOST_ITEMS) return -1;
    }
    return last;
}

static inline bool follows_rules(const lists *l) {
    static const double one[MOST_STAGES * MOST_CHUNKS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    return each_once(l) && in_order_on_stages(l) && messages_in_order(l) && makespan_of(l, one, one, one, 0) > 0;
}

/* ---- Random lists ---- */

/* Items of a step that random stages run in a random order. */
typedef struct walk {
    lists *l;
    struct {
        int stage;
        tg_pipe_item item;
    } may[MOST_STAGES * MOST_ITEMS]; /* what can run next */
    int n;
} walk;

static inline bool has_run(const walk *w, int part, int act, int micro) {
    const lists *l = w->l;
    return position(l, part % l->p, (tg_pipe_item){(uint8_t)act, (uint8_t)(part / l->p), micro}) >= 0;
}

/* Whether no other message of this direction was sent to the stage before, and still waits. */
static inline bool is_next_message(const walk *w, int stage, tg_pipe_item item) {
    const lists *l = w->l;
    int from, other_from;
    tg_pipe_item need, other;
    if (l->p == 1 || !comes_from(l, stage, item, &from, &need)) return true;
    for (int c = 0; c < l->v; c++)
        for (int j = 0; j < l->m; j++) {
            tg_pipe_item rival = {item.act, (uint8_t)c, j};
            if (position(l, stage, rival) >= 0 || !comes_from(l, stage, rival, &other_from, &other)) continue;
            int sent = position(l, other_from, other);
            if (sent >= 0 && sent < position(l, from, need)) return false;
        }
    return true;
}

/* Whether W of this item is due: its B has run, and no B of the stage before that one waits for its W. */
static inline bool is_due(const walk *w, int stage, tg_pipe_item item) {
    const lists *l = w->l;
    item.act = TG_PIPE_B;
    for (int i = 0; i < position(l, stage, item); i++) {
        tg_pipe_item x = l->item[stage][i];
        if (x.act != TG_PIPE_B) continue;
        x.act = TG_PIPE_W;
        if (position(l, stage, x) < 0) return false;
    }
    return position(l, stage, item) >= 0;
}

static inline bool may_run(const walk *w, int stage, tg_pipe_item item) {
    int part = item.chunk * w->l->p + stage, from;
    tg_pipe_item need;
    if (has_run(w, part, item.act, item.micro)) return false;
    if (item.act == TG_PIPE_W) return is_due(w, stage, item);
    if (item.act == TG_PIPE_B && !has_run(w, part, TG_PIPE_F, item.micro)) return false;
    if (comes_from(w->l, stage, item, &from, &need) && position(w->l, from, need) < 0) return false;
    return is_next_message(w, stage, item);
}

static inline void list_candidates(walk *w) {
    w->n = 0;
    for (int s = 0; s < w->l->p; s++)
        for (int act = 0; act <= (w->l->split ? TG_PIPE_W : TG_PIPE_B); act++)
            for (int c = 0; c < w->l->v; c++)
                for (int j = 0; j < w->l->m; j++) {
                    tg_pipe_item item = {(uint8_t)act, (uint8_t)c, j};
                    if (!may_run(w, s, item)) continue;
                    w->may[w->n].stage = s;
                    w->may[w->n++].item = item;
                }
}

/* Makes random lists that follow the rules, with random sizes. */
static inline void random_lists(lists *l, uint64_t *state) {
    *l = (lists){
        .p = 1 + draw(state, MOST_STAGES), .v = 1 + draw(state, MOST_CHUNKS), .m = 1 + draw(state, MOST_MICROS)};
    l->split = draw(state, 2);
    walk w = {.l = l};
    for (list_candidates(&w); w.n; list_candidates(&w)) {
        int i = draw(state, w.n), s = w.may[i].stage;
        l->item[s][l->n[s]++] = w.may[i].item;
    }
}

#endif
