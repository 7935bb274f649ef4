/* The diagram of a pipeline plan as SVG: a row of boxes for each stage over an axis of time. */
#include <math.h>

#include "base/runtime.h"
#include "base/text.h"
#include "parallel/pp/plan.h"

enum { LEFT = 72, RIGHT = 16, TOP = 64, BOTTOM = 44 }; /* margins, in pixels */
enum { COLUMN = 26, ROW = 30, BOX = 24 };              /* in pixels; COLUMN is the width of one tg_pipe_column */

typedef struct picture {
    const tg_pipe_plan *p;
    double column; /* tg_pipe_column */
    char *buf;
    size_t size, *at;
} picture;

#define PUT(...) tg_text(d->buf, d->size, d->at, __VA_ARGS__)

/* The pixels of one unit of time may be too many for a double, so the division comes first. */
static double width_of(const picture *d, double time) { return COLUMN * (time / d->column); }
static double x_of(const picture *d, double time) { return LEFT + width_of(d, time); }
static int y_of(int stage) { return TOP + ROW * stage; }

static tg_decimal pixels(double x) { return tg_decimal_of('f', 2, x); }
static tg_decimal number(double time) { return tg_decimal_of('g', 6, time); }

static void box(const picture *d, int stage, int i) {
    const tg_pipe_plan *p = d->p;
    tg_pipe_item item = p->item[i];
    double begin = p->begin[i], length = p->cost[item.act][tg_pipe_part(p, stage, item.chunk)];
    double width = width_of(d, length);
    tg_pipe_name name = tg_pipe_item_name(p, item);
    if (length == 0) return;
    PUT("<g><title>%s, stage %d, %s to %s</title><rect class=\"%c\" x=\"%s\" y=\"%d\" width=\"%s\" "
        "height=\"%d\" fill-opacity=\"%s\"/>",
        name.text, stage, number(begin).text, number(begin + length).text, "FBW"[item.act],
        pixels(x_of(d, begin)).text, y_of(stage), pixels(width).text, BOX,
        tg_decimal_of('f', 2, 1 - 0.7 * item.chunk / p->chunks).text);
    PUT("<text x=\"%s\" y=\"%d\" text-anchor=\"middle\">%s</text></g>\n", pixels(x_of(d, begin + length / 2)).text,
        y_of(stage) + BOX / 2 + 4, name.text + 1);
}

/* Returns the smallest number that is 1, 2 or 5 times a power of ten and at least x; x itself if a double cannot hold
 * these. */
static double round_up(double x) {
    double power = pow(10, floor(log10(x))), digit = x / power;
    double up = power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
    return power > 0 && isfinite(up) ? up : x;
}

/* Draws lines that are two columns or more apart. With the largest times of a double there is only the line at 0. */
static void axis(const picture *d) {
    int y = y_of(d->p->stages);
    double step = round_up(2 * d->column), lines = d->p->makespan / step * (1 + 1e-9);
    for (int64_t i = 0; (double)i <= lines; i++) {
        double time = i ? (double)i * step : 0;
        tg_decimal x = pixels(x_of(d, time));
        PUT("<path d=\"M%s %dV%d\"/><text x=\"%s\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
            x.text, TOP, y + 4, x.text, y + 18, number(time).text);
    }
}

static void legend(const picture *d) {
    const tg_pipe_plan *p = d->p;
    const char *const acts[] = {"F: forward", p->split ? "B: gradients of activations" : "B: backward",
                                "W: gradients of weights"};
    int x = LEFT;
    for (int a = 0; a < (p->split ? 3 : p->backward ? 2 : 1); a++) {
        PUT("<rect class=\"%c\" x=\"%d\" y=\"32\" width=\"12\" height=\"12\"/><text x=\"%d\" y=\"42\">%s</text>\n",
            "FBW"[a], x, x + 18, acts[a]);
        x += 40 + 7 * (int)strlen(acts[a]);
    }
}

void tg_pipe_svg(const tg_pipe_plan *p, char *buf, size_t size, size_t *at) {
    picture of = {p, tg_pipe_column(p), buf, size, at}, *d = &of;
    double width = fmax(x_of(d, p->makespan), LEFT + 480) + RIGHT; /* the legend needs 480 pixels */
    PUT("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %d\" font-family=\"sans-serif\" "
        "font-size=\"11\">\n<style>text{fill:#222}path{stroke:#e4e4e4}.F{fill:#9ec3ea}.B{fill:#f2b183}"
        ".W{fill:#b5d69b}g rect{stroke:#fff}</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
        width, y_of(p->stages) + BOTTOM);
    PUT("<text x=\"%d\" y=\"20\" font-size=\"13\">%s, makespan %s</text>\n", LEFT, tg_pipe_title(p).text,
        number(p->makespan).text);
    legend(d);
    axis(d);
    for (int s = 0; s < p->stages; s++) {
        PUT("<text x=\"%d\" y=\"%d\" text-anchor=\"end\">stage %d</text>\n", LEFT - 10, y_of(s) + BOX / 2 + 4, s);
        for (int i = p->first[s]; i < p->first[s + 1]; i++) box(d, s, i);
    }
    PUT("</svg>\n");
}
