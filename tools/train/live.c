/* The live view of a training run (--live): a block of lines on the terminal with the curve of the loss, which each
 * draw overwrites. The view fits itself to the terminal's size at each draw. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

enum { MOST_COLUMNS = 160, MOST_ROWS = 12, FACTS = 3 /* lines below the curve */ };
enum { LABEL = 9, LEAST_COLUMNS = 4 }; /* characters of a number at the left; the curve is left out if it is narrower */

typedef struct screen {
    int columns, rows;
    bool utf8;
} screen;

/* Returns whether the locale's characters are those of UTF-8, by the environment variables that decide it. */
static bool is_utf8(void) {
    const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *v = getenv(names[i]);
        if (v && *v) return strstr(v, "UTF-8") || strstr(v, "utf8") || strstr(v, "utf-8");
    }
    return false;
}

static screen screen_now(void) {
    screen s = {.utf8 = is_utf8()};
    terminal_size(&s.columns, &s.rows);
    return s;
}

/* Prints a line of at most columns - 1 characters, and clears what was right of it. The text is ASCII. */
static void put_line(const screen *s, const char *text) {
    printf("%.*s\033[K\n", s->columns > 1 ? s->columns - 1 : 0, text);
}

/* ---- The curve ---- */

/* Sets value[] to the mean loss of the steps that each column stands for; NaN: none is finite. */
static void column_means(const metrics *m, double *value, int columns) {
    for (int i = 0; i < columns; i++) {
        int64_t from = 1 + m->step * i / columns, to = m->step * (i + 1) / columns;
        double sum = 0;
        int n = 0;
        if (to < from) to = from;
        for (int64_t k = from; k <= to && k <= m->step; k++)
            if (isfinite(m->loss[k])) sum += m->loss[k], n++;
        value[i] = n ? sum / n : NAN;
    }
}

/* Prints one row of the curve: the part of each column's bar that lies in it, in eighths of a character. */
static void put_row(const screen *s, const double *height, int columns, int row) {
    static const char *const block[] = {" ",      "\u2581", "\u2582", "\u2583", "\u2584",
                                        "\u2585", "\u2586", "\u2587", "\u2588"};
    for (int i = 0; i < columns; i++) {
        double part = height[i] - row;
        int eighths = isnan(part) || part <= 0 ? 0 : part >= 1 ? 8 : (int)(8 * part + 0.5);
        fputs(s->utf8 ? block[eighths] : eighths > 4 ? "#" : eighths ? "." : " ", stdout);
    }
}

/* Writes a loss in at most LABEL characters, so that lines keep their length. Returns buf. */
static const char *label_text(double loss, char buf[LABEL + 1]) {
    bool short_enough = loss > -1e3 && loss < 1e4;
    snprintf(buf, LABEL + 1, short_enough ? "%.4f" : "%.2e", loss);
    return buf;
}

/* Draws the curve with its greatest and lowest value on the left. Returns the number of lines that it takes: `rows`, or
 * 0 if there is no room for it. */
static int draw_curve(const metrics *m, const screen *s, int rows) {
    double value[MOST_COLUMNS], lo = INFINITY, hi = -INFINITY;
    char label[LABEL + 1];
    int columns = s->columns - LABEL - 2 < MOST_COLUMNS ? s->columns - LABEL - 2 : MOST_COLUMNS;
    if (rows <= 0 || columns < LEAST_COLUMNS) return 0;
    column_means(m, value, columns);
    for (int i = 0; i < columns; i++) lo = fmin(lo, value[i]), hi = fmax(hi, value[i]);
    for (int i = 0; i < columns; i++) value[i] = hi > lo ? 0.125 + (rows - 0.125) * (value[i] - lo) / (hi - lo) : 0.125;
    for (int row = rows - 1; row >= 0; row--) {
        bool labeled = (row == rows - 1 || row == 0) && isfinite(lo);
        printf("%*s ", LABEL, labeled ? label_text(row ? hi : lo, label) : "");
        put_row(s, value, columns, row);
        printf("\033[K\n");
    }
    return rows;
}

/* ---- The block ---- */

static void put_bar(const metrics *m, const screen *s) {
    char text[64];
    int columns = s->columns - 2 < 60 ? s->columns - 2 : 60;
    double share = m->steps ? (double)m->step / (double)m->steps : 1;
    int n = snprintf(text, sizeof text, " %3.0f %%", 100 * share), bar = columns - n;
    for (int i = 0; i < bar; i++) {
        bool done = i < share * bar;
        fputs(s->utf8 ? (done ? "\u2501" : "\u2500") : done ? "=" : "-", stdout);
    }
    printf("%s\033[K\n", bar > 0 ? text : "");
}

static void put_facts(const metrics *m, const screen *s, const step_result *r) {
    char text[256], left[32], past[32], memory[32], val[48] = "";
    text_duration(left, sizeof left, progress_left(&m->progress, m->step, m->steps));
    text_duration(past, sizeof past, metrics_seconds(m));
    text_bytes(memory, sizeof memory, (double)r->peak_bytes);
    if (!isnan(m->last_val)) snprintf(val, sizeof val, "val %.4f  ", m->last_val);
    snprintf(text, sizeof text, "step %" PRId64 "/%" PRId64 "  loss %.4f  %snorm %.3g  lr %.3g", m->step, m->steps,
             r->loss, val, r->grad_norm, r->lr);
    put_line(s, text);
    double rate = (double)m->step_tokens / progress_step_seconds(&m->progress);
    snprintf(text, sizeof text, "%.0f tokens/s  %.4g M tokens  %s  %s done, %s left", rate,
             1e-6 * (double)(m->step * m->step_tokens), memory, past, left);
    put_line(s, text);
}

/* Goes back to the first line of the block, unless messages were printed below it. A terminal whose size has changed
 * may have wrapped its lines elsewhere, so all of it is cleared. */
static void go_back(progress *p, const screen *s) {
    bool same = p->drawn_columns == s->columns && p->drawn_rows == s->rows;
    if (p->messages != message_count()) p->drawn_lines = 0;
    p->messages = message_count();
    if (p->drawn_lines && same) printf("\033[%dA\r", p->drawn_lines);
    if (p->drawn_lines && !same) printf("\033[2J\033[H");
    p->drawn_columns = s->columns;
    p->drawn_rows = s->rows;
}

void live_draw(metrics *m, const step_result *r) {
    screen s = screen_now();
    progress *p = &m->progress;
    int rows = s.rows - FACTS - 2 < MOST_ROWS ? s.rows - FACTS - 2 : MOST_ROWS;
    go_back(p, &s);
    p->drawn_lines = FACTS + draw_curve(m, &s, rows);
    put_bar(m, &s);
    put_facts(m, &s, r);
}
