/* tg_pipe_plan_text, and the diagram in characters: a row for each stage, a column for each span of time. */
#include <math.h>
#include <stdio.h>

#include "base/runtime.h"
#include "base/text.h"
#include "parallel/pp/plan.h"

/* ---- Columns ---- */

/* Returns whether all of n times are multiples of a unit, but for rounding. */
static bool are_multiples(const double *time, int n, double unit) {
    for (int i = 0; i < n; i++)
        if (fabs(time[i] / unit - nearbyint(time[i] / unit)) > 1e-6) return false;
    return true;
}

/* The largest number of columns of the shortest item (SHORT), and of the longest item: if all times are whole columns
 * (LONG), and if they are rounded to columns (ROUNDED). */
enum { SHORT = 4, LONG = 20, ROUNDED = 10 };

/* Returns the span of a column that suits the times of the items and hop. */
static double column_of_items(const tg_pipe_plan *p) {
    const double *time = p->cost[0]; /* those of all acts lie in one array */
    int n = tg_pipe_parts(p) * (p->split ? 3 : p->backward ? 2 : 1);
    double least = INFINITY, most = 0;
    for (int i = 0; i < n; i++) {
        if (time[i] > 0) least = fmin(least, time[i]);
        most = fmax(most, time[i]);
    }
    if (most == 0) return 1;
    for (int k = 1; k <= SHORT && most * k <= LONG * least; k++)
        if (are_multiples(time, n, least / k) && are_multiples(&p->hop, 1, least / k)) return least / k;
    return fmax(least / 2, most / ROUNDED);
}

double tg_pipe_column(const tg_pipe_plan *p) {
    double most = (double)LONG * (p->n / p->stages + 2 * tg_pipe_parts(p)); /* the most columns of a diagram */
    return fmax(column_of_items(p), p->makespan / most);
}

/* ---- Rows ---- */

static void cells(int64_t n, const char *text, int width, char *buf, size_t size, size_t *at) {
    for (int64_t i = 0; i < n; i++) tg_text(buf, size, at, " %*s", width, text);
}

/* Writes the cells of a stage. Items begin and end at the nearest column; items shorter than half a column may
 * vanish. */
static void row(const tg_pipe_plan *p, int stage, double column, char *buf, size_t size, size_t *at) {
    tg_pipe_item longest = {TG_PIPE_F, (uint8_t)(p->chunks - 1), p->micros - 1};
    int width = (int)strlen(tg_pipe_item_name(p, longest).text);
    int64_t done = 0;
    for (int i = p->first[stage]; i < p->first[stage + 1]; i++) {
        double length = p->cost[p->item[i].act][tg_pipe_part(p, stage, p->item[i].chunk)];
        int64_t begin = llround(p->begin[i] / column), end = llround((p->begin[i] + length) / column);
        if (begin == end) continue;
        cells(begin - done, ".", width, buf, size, at);
        cells(1, tg_pipe_item_name(p, p->item[i]).text, width, buf, size, at);
        cells(end - begin - 1, "-", width, buf, size, at);
        done = end;
    }
    cells(llround(p->makespan / column) - done, ".", width, buf, size, at);
}

static void diagram(const tg_pipe_plan *p, char *buf, size_t size, size_t *at) {
    double column = tg_pipe_column(p);
    int digits = snprintf(NULL, 0, "%d", p->stages - 1);
    tg_text(buf, size, at, "%s, time per column %.4g\n", tg_pipe_title(p).text, column);
    for (int s = 0; s < p->stages; s++) {
        tg_text(buf, size, at, "stage %*d ", digits, s);
        row(p, s, column, buf, size, at);
        tg_text(buf, size, at, "\n");
    }
}

size_t tg_pipe_plan_text(const tg_pipe_plan *p, tg_format format, char *buf, size_t size) {
    size_t at = 0;
    if (!buf) size = 0;
    if (size) buf[0] = 0;
    if (!p) return 0;
    if (format != TG_TEXT && format != TG_SVG) {
        tg_fail(p->ctx, TG_ERR_ARGUMENT, "tg_pipe_plan_text: format %d, expected TG_TEXT or TG_SVG", (int)format);
        return 0;
    }
    (format == TG_TEXT ? diagram : tg_pipe_svg)(p, buf, size, &at);
    return at;
}
