/* Chooses some of many cases, others for each commit (TG_TEST_TURN, which .ci/run sets). The choice is printed so that
 * it can be repeated. The long suite runs all cases. */
#ifndef TG_TEST_TURNS_H
#define TG_TEST_TURNS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct turns {
    long of, now; /* case i is run where i % of == now */
} turns;

/* One case in `of`: TG_TEST_TURN says which. */
static inline turns turns_of(const char *what, long of) {
    const char *chosen = getenv("TG_TEST_TURN");
    long turn = chosen ? atol(chosen) : 0;
    turns t = {of, 0};
    if (getenv("TG_LONG")) t.of = 1;
    t.now = turn % t.of;
    if (t.of > 1) printf("%s: one in %ld, TG_TEST_TURN=%ld\n", what, t.of, turn);
    return t;
}

static inline bool its_turn(const turns *t, long i) { return i % t->of == t->now; }

#endif
