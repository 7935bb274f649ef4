/* The line search of L-BFGS: finds a length of step that meets the strong Wolfe conditions. */
#ifndef TG_LINE_SEARCH_H
#define TG_LINE_SEARCH_H

#include <tapegrad/types.h>

/* A point on the line: the length t of the step, the loss f, its derivative with respect to t, and the number of the
 * vector that has the gradient. */
typedef struct tg_point {
    double t, f, slope;
    int gradient;
} tg_point;

/* How many vectors of gradients, numbered from 0, a search uses. */
enum { TG_POINTS = 4 };

typedef struct tg_line {
    /* Computes f and slope at p->t, and writes the gradient to the vector p->gradient. */
    tg_status (*evaluate)(void *user, tg_point *p);
    void *user;
    double most;      /* the greatest element of the direction, as a magnitude */
    double tolerance; /* the search ends if no parameter would change by more */
} tg_line;

/* Searches from `start`, whose slope is negative, and tries length t first. Sets *end to the point that it has found,
 * and adds the number of evaluations to *evaluations. */
tg_status tg_line_search(const tg_line *l, tg_point start, double t, tg_point *end, int *evaluations);

#endif
