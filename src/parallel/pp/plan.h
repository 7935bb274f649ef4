/* A pipeline plan, as its makers and the executor see it: the checked list of every stage, and for each item the part
 * that it belongs to, its messages, and its time. */
#ifndef TG_PP_PLAN_H
#define TG_PP_PLAN_H

#include <tapegrad/pipe.h>

struct tg_pipe_plan {
    tg_ctx *ctx;
    tg_pipe_kind kind;
    int stages, chunks, micros;
    bool backward, split; /* the lists have items B; and items W */
    int n;                /* number of items of all stages */
    tg_pipe_item *item;   /* the lists, one stage after the other */
    int *first;           /* stages + 1 numbers: the list of stage s is item[first[s]] to item[first[s + 1] - 1] */
    double *begin;        /* the time at which each item begins */
    double *cost[3];      /* by tg_pipe_act: the time that an item of each part takes; B includes W unless split */
    double makespan;
};

static inline int tg_pipe_parts(const tg_pipe_plan *p) { return p->stages * p->chunks; }
static inline int tg_pipe_part(const tg_pipe_plan *p, int stage, int chunk) { return chunk * p->stages + stage; }

/* The list of a stage and its length. */
static inline const tg_pipe_item *tg_pipe_items(const tg_pipe_plan *p, int stage) { return p->item + p->first[stage]; }
static inline int tg_pipe_item_count(const tg_pipe_plan *p, int stage) { return p->first[stage + 1] - p->first[stage]; }

/* Returns the part whose result an item of `part` needs: the part before for F, the part after for B. Returns -1 if it
 * needs none: F of part 0, B of the last part, and W. */
int tg_pipe_part_before(const tg_pipe_plan *p, tg_pipe_act act, int part);
/* Returns the part that needs the result of an item of `part`; -1: none. */
int tg_pipe_part_after(const tg_pipe_plan *p, tg_pipe_act act, int part);

/* Return the stage from which an item of `stage` receives a message, and the one to which it sends one. Return -1 if
 * there is no message: no part is before or after, or it is on the same stage, which is so if there is only one.
 *
 * F receives from the stage before and sends to the stage after, B the other way round; the first stage is after the
 * last. The messages of one direction between two stages arrive in the order in which items receive them, so an
 * executor may post the receives of its next items early, in the order of its list. */
int tg_pipe_source(const tg_pipe_plan *p, int stage, tg_pipe_item item);
int tg_pipe_target(const tg_pipe_plan *p, int stage, tg_pipe_item item);

/* The most parts of a stage at one time that have begun F and not finished B: each needs a tape of its own. */
int tg_pipe_tapes(const tg_pipe_plan *p, int stage);

#endif
