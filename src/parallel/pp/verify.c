/* Checks the lists of a pipeline plan: each part does each act once for every micro-batch, in an order that is possible
 * on its stage, and messages arrive in the order in which they are sent. simulate.c finds items that wait for each
 * other. */
#include "base/runtime.h"
#include "parallel/pp/plan.h"

/* ---- Every item once ---- */

static tg_status check_item(const tg_pipe_plan *p, int stage, int i) {
    const struct {
        const char *field;
        int is, most;
    } fields[] = {{"act", p->item[i].act, TG_PIPE_W},
                  {"chunk", p->item[i].chunk, p->chunks - 1},
                  {"micro", p->item[i].micro, p->micros - 1}};
    for (int k = 0; k < TG_LEN(fields); k++)
        if (fields[k].is < 0 || fields[k].is > fields[k].most)
            return tg_fail(p->ctx, TG_ERR_ARGUMENT, "tg_pipe_plan_new: items[%d][%d] has %s %d, expected 0 to %d",
                           stage, i - p->first[stage], fields[k].field, fields[k].is, fields[k].most);
    return TG_OK;
}

static int *place_of(const tg_pipe_plan *p, int stage, tg_pipe_item item) {
    return tg_pipe_place(p, item.act, tg_pipe_part(p, stage, item.chunk), item.micro);
}

/* Fills in p->place for the items of a stage. */
static tg_status note_places(const tg_pipe_plan *p, int stage) {
    int first = p->first[stage];
    for (int i = first; i < p->first[stage + 1]; i++) {
        TG_TRY(check_item(p, stage, i));
        int *place = place_of(p, stage, p->item[i]);
        if (*place >= 0)
            return tg_fail(p->ctx, TG_ERR_ARGUMENT,
                           "tg_pipe_plan_new: the list of stage %d has %s twice, as items %d and %d", stage,
                           tg_pipe_item_name(p, p->item[i]).text, *place - first, i - first);
        *place = i;
    }
    return TG_OK;
}

/* Checks that a part has an act for every micro-batch. */
static tg_status check_whole(const tg_pipe_plan *p, int act, int part) {
    static const char *const because[] = {
        "every part needs one F for each micro-batch",
        "since lists have B or W, every part needs one B for each micro-batch",
        "since lists have W, every part needs one W for each micro-batch",
    };
    for (int j = 0; j < p->micros; j++) {
        tg_pipe_item item = {(uint8_t)act, (uint8_t)(part / p->stages), j};
        if (*tg_pipe_place(p, act, part, j) < 0)
            return tg_fail(p->ctx, TG_ERR_ARGUMENT, "tg_pipe_plan_new: the list of stage %d has no %s; %s",
                           part % p->stages, tg_pipe_item_name(p, item).text, because[act]);
    }
    return TG_OK;
}

static tg_status check_all_once(const tg_pipe_plan *p) {
    for (int i = 0; i < 3 * tg_pipe_parts(p) * p->micros; i++) p->place[i] = -1;
    for (int s = 0; s < p->stages; s++) TG_TRY(note_places(p, s));
    for (int k = 0; k < tg_pipe_parts(p); k++)
        for (int act = TG_PIPE_F; act <= (p->split ? TG_PIPE_W : p->backward ? TG_PIPE_B : TG_PIPE_F); act++)
            TG_TRY(check_whole(p, act, k));
    return TG_OK;
}

/* ---- The order on a stage ---- */

/* Checks that F, B and W of each part and micro-batch are in this order. */
static tg_status check_acts(const tg_pipe_plan *p, int stage) {
    int first = p->first[stage];
    for (int i = first; i < p->first[stage + 1]; i++) {
        tg_pipe_item before = p->item[i];
        if (before.act-- == TG_PIPE_F) continue;
        int place = *place_of(p, stage, before);
        if (place > i)
            return tg_fail(p->ctx, TG_ERR_ARGUMENT,
                           "tg_pipe_plan_new: the list of stage %d has %s (item %d) before %s (item %d)", stage,
                           tg_pipe_item_name(p, p->item[i]).text, i - first, tg_pipe_item_name(p, before).text,
                           place - first);
    }
    return TG_OK;
}

/* Returns the index of the first item of an act in the list of a stage, from index i on; the end of the list if there
 * is none. */
static int next_of(const tg_pipe_plan *p, int stage, tg_pipe_act act, int i) {
    while (i < p->first[stage + 1] && p->item[i].act != act) i++;
    return i;
}

/* Checks that the W of a stage are in the order of its B, because a queue holds what B leaves to W. */
static tg_status check_queue(const tg_pipe_plan *p, int stage) {
    int first = p->first[stage];
    int b = next_of(p, stage, TG_PIPE_B, first), w = next_of(p, stage, TG_PIPE_W, first);
    for (; w < p->first[stage + 1]; w = next_of(p, stage, TG_PIPE_W, w + 1), b = next_of(p, stage, TG_PIPE_B, b + 1)) {
        tg_pipe_item due = p->item[b];
        due.act = TG_PIPE_W;
        int place = *place_of(p, stage, due);
        if (place != w)
            return tg_fail(p->ctx, TG_ERR_ARGUMENT,
                           "tg_pipe_plan_new: the list of stage %d has %s (item %d) before %s (item %d); W must be in "
                           "the order of B",
                           stage, tg_pipe_item_name(p, p->item[w]).text, w - first, tg_pipe_item_name(p, due).text,
                           place - first);
    }
    return TG_OK;
}

/* ---- The order of messages ---- */

/* Return the index of the next item of an act that sends, or that receives, from index i on; the end of the list if
 * there is none. */
static int next_sender(const tg_pipe_plan *p, int stage, tg_pipe_act act, int i) {
    for (i = next_of(p, stage, act, i); i < p->first[stage + 1] && tg_pipe_target(p, stage, p->item[i]) < 0;)
        i = next_of(p, stage, act, i + 1);
    return i;
}

static int next_receiver(const tg_pipe_plan *p, int stage, tg_pipe_act act, int i) {
    for (i = next_of(p, stage, act, i); i < p->first[stage + 1] && tg_pipe_source(p, stage, p->item[i]) < 0;)
        i = next_of(p, stage, act, i + 1);
    return i;
}

/* Checks the messages that items of an act send from one stage to its neighbor. */
static tg_status check_messages(const tg_pipe_plan *p, tg_pipe_act act, int from, int to) {
    int s = next_sender(p, from, act, p->first[from]), r = next_receiver(p, to, act, p->first[to]);
    while (s < p->first[from + 1]) {
        tg_pipe_item sent = p->item[s], taken = p->item[r];
        int due = tg_pipe_part_after(p, act, tg_pipe_part(p, from, sent.chunk));
        if (tg_pipe_part(p, to, taken.chunk) != due || taken.micro != sent.micro)
            return tg_fail(p->ctx, TG_ERR_ARGUMENT,
                           "tg_pipe_plan_new: %s (item %d of stage %d) receives before the message of %s (item %d of "
                           "stage %d), which is sent first; a stage must receive messages in the order in which they "
                           "are sent",
                           tg_pipe_item_name(p, taken).text, r - p->first[to], to, tg_pipe_item_name(p, sent).text,
                           s - p->first[from], from);
        s = next_sender(p, from, act, s + 1);
        r = next_receiver(p, to, act, r + 1);
    }
    return TG_OK;
}

tg_status tg_pipe_verify(tg_pipe_plan *p) {
    TG_TRY(check_all_once(p));
    for (int s = 0; s < p->stages; s++) {
        TG_TRY(check_acts(p, s));
        TG_TRY(check_queue(p, s));
    }
    for (int s = 0; s < p->stages && p->stages > 1; s++) {
        int next = (s + 1) % p->stages;
        TG_TRY(check_messages(p, TG_PIPE_F, s, next));
        TG_TRY(check_messages(p, TG_PIPE_B, next, s));
    }
    return TG_OK;
}
