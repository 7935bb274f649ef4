/* The built-in schedules as lists of items. pipe.h describes them. */
#include "base/runtime.h"
#include "parallel/pp/plan.h"

/* The turns in which micro-batches go through the chunks. The last turn has what the others leave. */
typedef struct turns {
    int size;   /* number of micro-batches of a turn */
    int longer; /* number of turns, from the first one on, that have one micro-batch more */
} turns;

/* Divides the micro-batches into turns of `group`. If fewer than `stages` micro-batches are left over, they are spread
 * over the turns: in a turn of their own the first stage would wait for the last one. */
static turns turns_of(const tg_pipe_plan *p, int group) {
    int whole = p->micros / group, left = p->micros % group;
    if (!whole) return (turns){p->micros, 0};
    return left < p->stages ? (turns){p->micros / whole, p->micros % whole} : (turns){group, 0};
}

/* Returns the first micro-batch of a turn. */
static int turn_begin(const tg_pipe_plan *p, turns t, int turn) {
    int64_t first = (int64_t)turn * t.size + (turn < t.longer ? turn : t.longer);
    return first < p->micros ? (int)first : p->micros;
}

/* Returns item number i among the items of one act in the list of a stage. A turn goes through all chunks: forward from
 * the first to the last, backward from the last to the first. */
static tg_pipe_item item_at(const tg_pipe_plan *p, turns t, tg_pipe_act act, int i) {
    /* How many micro-batches the items before item i make, and how many all longer turns have together. */
    int passed = i / p->chunks, longer = t.longer * (t.size + 1);
    int turn = passed < longer ? passed / (t.size + 1) : t.longer + (passed - longer) / t.size;
    int first = turn_begin(p, t, turn), size = turn_begin(p, t, turn + 1) - first, at = i - first * p->chunks;
    int chunk = act == TG_PIPE_F ? at / size : p->chunks - 1 - at / size;
    return (tg_pipe_item){.act = (uint8_t)act, .chunk = (uint8_t)chunk, .micro = first + at % size};
}

/* Returns how many of its n forwards a stage runs first. Then it alternates one forward, if any is left, with one
 * backward. */
static int warmup(const tg_pipe_plan *p, turns t, int stage, int n) {
    int64_t after = p->stages - 1 - stage, count = n;
    if (p->kind == TG_PIPE_1F1B || p->kind == TG_PIPE_ZB_H1) count = after;
    if (p->kind == TG_PIPE_INTERLEAVED) count = 2 * after + (int64_t)(p->chunks - 1) * (t.size + !!t.longer);
    return count < n ? (int)count : n;
}

/* Writes the list of a stage, which has n forwards. Returns the number of its items. */
static int write_list(const tg_pipe_plan *p, int stage, turns t, int n, tg_pipe_item *out) {
    const tg_pipe_item *begin = out;
    bool backward = p->kind != TG_PIPE_FORWARD, split = p->kind == TG_PIPE_ZB_H1;
    int before = warmup(p, t, stage, n);
    for (int i = 0; i < before; i++) *out++ = item_at(p, t, TG_PIPE_F, i);
    for (int i = 0; backward && i < n; i++) {
        if (i < n - before) *out++ = item_at(p, t, TG_PIPE_F, before + i);
        *out++ = item_at(p, t, TG_PIPE_B, i);
        if (split && i >= stage) *out++ = item_at(p, t, TG_PIPE_W, i - stage);
    }
    for (int i = n > stage ? n - stage : 0; split && i < n; i++) *out++ = item_at(p, t, TG_PIPE_W, i);
    return (int)(out - begin);
}

tg_status tg_pipe_schedule(tg_pipe_plan *p, int group) {
    turns t = turns_of(p, group);
    int n = p->micros * p->chunks, acts = p->kind == TG_PIPE_FORWARD ? 1 : p->kind == TG_PIPE_ZB_H1 ? 3 : 2;
    TG_TRY(tg_pipe_take_items(p, acts * n * p->stages));
    for (int s = 0; s < p->stages; s++) p->first[s + 1] = p->first[s] + write_list(p, s, t, n, p->item + p->first[s]);
    return TG_OK;
}
