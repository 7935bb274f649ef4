/* A pipeline plan, as its makers and the executor see it: the checked list of every stage, the parts and messages of
 * items, and their times. */
#ifndef TG_PP_PLAN_H
#define TG_PP_PLAN_H

#include <tapegrad/pipe.h>

struct tg_pipe_plan {
    tg_ctx *ctx;
    tg_pipe_kind kind;
    int stages, chunks, micros;
    bool backward, split; /* whether the lists have items B or W, and whether they have items W */
    int n;                /* number of items of all stages */
    tg_pipe_item *item;   /* the lists, one stage after the other */
    int *first;           /* stages + 1 numbers: the list of stage s is item[first[s]] to item[first[s + 1] - 1] */
    double *cost[3];      /* by tg_pipe_act: the time that an item of each part takes; B includes W unless split */
    double hop;
    double *begin; /* the time at which each item begins */
    double makespan;
    int *place; /* while the plan is checked: where the item of each act, part and micro-batch is (tg_pipe_place) */
};

static inline int tg_pipe_parts(const tg_pipe_plan *p) { return p->stages * p->chunks; }
static inline int tg_pipe_part(const tg_pipe_plan *p, int stage, int chunk) { return chunk * p->stages + stage; }

/* The list of a stage and its length. */
static inline const tg_pipe_item *tg_pipe_items(const tg_pipe_plan *p, int stage) { return p->item + p->first[stage]; }
static inline int tg_pipe_item_count(const tg_pipe_plan *p, int stage) { return p->first[stage + 1] - p->first[stage]; }

/* tg_pipe_part_before returns the part whose result an item of `part` needs: the previous part for F, the next part for
 * B. tg_pipe_part_after returns the part that needs the result of the item: the next part for F, the previous part for
 * B. Both return -1 if there is no such part, as for every W. */
int tg_pipe_part_before(const tg_pipe_plan *p, int act, int part);
int tg_pipe_part_after(const tg_pipe_plan *p, int act, int part);

/* Return the stage from which an item of `stage` receives a message, and the stage to which it sends one. Return -1 if
 * there is no message, because there is no such part or the plan has only one stage.
 *
 * F receives from the stage before and sends to the stage after, and B the other way round; the first stage is after
 * the last. A stage receives the messages of one direction in the order in which the other stage sends them. So an
 * executor may post the receives of its next items early, in the order of its list. */
int tg_pipe_source(const tg_pipe_plan *p, int stage, tg_pipe_item item);
int tg_pipe_target(const tg_pipe_plan *p, int stage, tg_pipe_item item);

/* Counts the micro-batches of each part of a stage that have begun F and not ended B (F if the plan has no B), and
 * returns the largest sum of these counts at one time. Each such micro-batch of a part needs a tape of its own. */
int tg_pipe_tapes(const tg_pipe_plan *p, int stage);

/* ---- Text ---- */

typedef struct tg_pipe_name {
    char text[96];
} tg_pipe_name;
const char *tg_pipe_kind_name(tg_pipe_kind kind); /* such as "zb-h1" */
/* Returns what a plan is, such as "zb-h1: 4 stages, 8 micro-batches". */
tg_pipe_name tg_pipe_title(const tg_pipe_plan *p);
/* Returns the name of an item, such as "B3", or "B3.1" for chunk 1 if stages have several. */
tg_pipe_name tg_pipe_item_name(const tg_pipe_plan *p, tg_pipe_item item);

/* ---- The steps of tg_pipe_plan_new ---- */

/* Allocates the lists: n items of all stages. (plan.c) */
tg_status tg_pipe_take_items(tg_pipe_plan *p, int n);
/* Makes the lists of a built-in schedule. group: number of micro-batches in a turn. (schedules.c) */
tg_status tg_pipe_schedule(tg_pipe_plan *p, int group);
/* Fills in p->place, and checks all rules except that items must not wait for each other. (verify.c) */
tg_status tg_pipe_verify(tg_pipe_plan *p);
/* Computes begin and makespan. Fails if items wait for each other. (simulate.c) */
tg_status tg_pipe_simulate(tg_pipe_plan *p);
/* The element of p->place for an act of a part and a micro-batch: the index of this item in p->item, or -1 if no list
 * has it. */
static inline int *tg_pipe_place(const tg_pipe_plan *p, int act, int part, int micro) {
    return &p->place[((size_t)act * tg_pipe_parts(p) + part) * p->micros + micro];
}

/* ---- Diagrams ---- */

/* Returns the span of time that a column of the diagram stands for. It is the longest span of which the times of all
 * items and the hop are multiples, if items then have few columns; otherwise it is a span that keeps the rounding of
 * times small. It is longer if the diagram would have too many columns. (diagram.c) */
double tg_pipe_column(const tg_pipe_plan *p);
void tg_pipe_svg(const tg_pipe_plan *p, char *buf, size_t n, size_t *at); /* (svg.c) */

#endif
