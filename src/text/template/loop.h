/* A for loop that runs: its items, and the state that the variable `loop` shows. */
#ifndef TG_TEXT_TEMPLATE_LOOP_H
#define TG_TEXT_TEMPLATE_LOOP_H

#include "text/template/evaluate.h"

struct tpl_loop {
    const tpl_node *node;
    tpl_scope *outer; /* the scope around the loop */
    tpl_iter source;
    /* Returns whether an item passes the test of the loop, which evaluates an expression. NULL: all items that are left
     * pass. */
    bool (*passes)(tpl_run *r, tpl_loop *l, tpl_value v);
    tpl_value before, current, after; /* after: taken early, or ABSENT */
    tpl_value changed;                /* the arguments of the last call of loop.changed, or ABSENT */
    int64_t index0, length;           /* length: -1 until it is asked for */
    int depth0;
    bool completed; /* the body has run to its end for an item, without break or continue */
    tpl_value name; /* "loop" */
};

/* Makes the next item that passes the test the current one. Returns false if there is none. */
bool tg_tpl_loop_advance(tpl_run *r, tpl_loop *l);

#endif
