/* Draws loss.svg: the training loss, both raw and smoothed, and the validation loss. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "common/text.h"
#include "train/train.h"

/* Sizes in pixels. LEFT to BOTTOM are margins. */
enum { WIDTH = 720, HEIGHT = 400, LEFT = 64, RIGHT = 20, TOP = 24, BOTTOM = 52 };
enum { POINTS = 400 }; /* a line has at most about so many points */

typedef struct plot {
    FILE *out;
    const metrics *m;
    double *smooth; /* the smoothed training loss of each step */
    double lo, hi; /* range of the losses that the plot shows */
} plot;

static double x_of(const plot *p, double step) {
    return LEFT + (WIDTH - LEFT - RIGHT) * step / (double)p->m->step;
}

static double y_of(const plot *p, double loss) {
    return TOP + (HEIGHT - TOP - BOTTOM) * (p->hi - loss) / (p->hi - p->lo);
}

/* Returns the distance between ticks that divides the range into about `parts`: 1, 2 or 5 times a power of ten. */
static double nice_step(double range, double parts) {
    double rough = range / parts, power = pow(10, floor(log10(rough))), digit = rough / power;
    return power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
}

/* Computes the exponential moving average of the training loss over about a fiftieth of the run's steps, with the usual
 * correction for its beginning. */
static void smooth_losses(plot *p) {
    double keep = 1 - 1 / fmax(1, (double)p->m->step / 50), sum = 0, weight = 0;
    for (int64_t i = 1; i <= p->m->step; i++) {
        if (isfinite(p->m->loss[i])) {
            sum = keep * sum + (1 - keep) * p->m->loss[i];
            weight = keep * weight + (1 - keep);
        }
        p->smooth[i] = weight > 0 ? sum / weight : NAN;
    }
}

/* Sets the range of losses that the plot shows. */
static void find_range(plot *p) {
    p->lo = INFINITY;
    p->hi = -INFINITY;
    for (int64_t i = 1; i <= p->m->step; i++) {
        double val = isfinite(p->m->val_loss[i]) ? p->m->val_loss[i] : NAN;
        p->lo = fmin(p->lo, fmin(p->smooth[i], val)); /* fmin and fmax ignore NaN */
        p->hi = fmax(p->hi, fmax(p->smooth[i], val));
    }
    if (!isfinite(p->lo) || !isfinite(p->hi)) p->lo = 0, p->hi = 1;
    double margin = fmax(0.05 * (p->hi - p->lo), 1e-3 * fmax(1, fabs(p->hi)));
    p->lo -= margin;
    p->hi += margin;
}

static void draw_axes(const plot *p) {
    double dx = nice_step((double)p->m->step, 6), dy = nice_step(p->hi - p->lo, 6);
    for (double v = ceil(p->lo / dy) * dy; v <= p->hi; v += dy)
        fprintf(p->out,
                "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n",
                LEFT, y_of(p, v), WIDTH - RIGHT, LEFT - 8, y_of(p, v) + 4, fabs(v) < 1e-9 * dy ? 0 : v);
    for (double v = 0; v <= (double)p->m->step; v += fmax(1, dx))
        fprintf(p->out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n", x_of(p, v),
                HEIGHT - BOTTOM + 18, v);
    fprintf(p->out, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP, HEIGHT - BOTTOM, WIDTH - RIGHT);
    fprintf(p->out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n", (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 12);
    fprintf(p->out,
            "<text transform=\"translate(16 %d) rotate(-90)\" text-anchor=\"middle\">loss (nats per token)</text>\n",
            (TOP + HEIGHT - BOTTOM) / 2);
}

/* The steps at which a line has its points: those with a finite loss, thinned to about POINTS of them. */
typedef struct points {
    const double *loss;
    int64_t steps, count; /* number of steps, and of those with a finite loss */
    int64_t step, seen;   /* the point's step, and how many finite losses there are up to it */
} points;

static points points_of(const plot *p, const double *loss) {
    points all = {.loss = loss, .steps = p->m->step};
    for (int64_t i = 1; i <= all.steps; i++) all.count += isfinite(loss[i]) != 0;
    return all;
}

/* Goes to the next point: the first finite loss, the last one, and every stride-th one. Returns false after the last
 * one. */
static bool next_point(points *at) {
    int64_t stride = at->count / POINTS + 1;
    while (++at->step <= at->steps) {
        if (!isfinite(at->loss[at->step])) continue;
        at->seen++;
        if (at->seen % stride == 0 || at->seen == 1 || at->seen == at->count) return true;
    }
    return false;
}

static void draw_line(const plot *p, const char *class, const double *loss) {
    bool drawing = false;
    fprintf(p->out, "<path class=\"%s\" clip-path=\"url(#area)\" d=\"", class);
    for (points at = points_of(p, loss); next_point(&at); drawing = true)
        fprintf(p->out, "%c%.1f %.1f", drawing ? 'L' : 'M', x_of(p, (double)at.step), y_of(p, loss[at.step]));
    fprintf(p->out, "\"/>\n");
}

/* Draws the validation losses. Returns whether there are any. */
static bool draw_validation(const plot *p) {
    const double *loss = p->m->val_loss;
    points at = points_of(p, loss);
    draw_line(p, "val", loss);
    while (next_point(&at))
        fprintf(p->out, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>\n", x_of(p, (double)at.step),
                y_of(p, loss[at.step]));
    return at.count > 0;
}

static void draw_legend(const plot *p, bool validation) {
    int x = WIDTH - RIGHT - 170, y = TOP + 12;
    fprintf(p->out, "<path class=\"train\" d=\"M%d %dh24\"/><text x=\"%d\" y=\"%d\">training (smoothed)</text>\n", x, y,
            x + 32, y + 4);
    if (validation)
        fprintf(p->out, "<path class=\"val\" d=\"M%d %dh24\"/><text x=\"%d\" y=\"%d\">validation %.4f</text>\n", x,
                y + 20, x + 32, y + 24, p->m->last_val);
}

static void draw(plot *p) {
    smooth_losses(p);
    find_range(p);
    fprintf(p->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n<title>Loss over %" PRId64 " step%s</title>\n"
            "<style>path{fill:none}text{fill:#444}.grid{stroke:#e4e4e4}.axis{stroke:#888}"
            ".raw{stroke:#4c78a8;opacity:.25}.train{stroke:#4c78a8;stroke-width:2}"
            ".val{stroke:#d9622b;stroke-width:1.5}.dot{fill:#d9622b}</style>\n"
            "<clipPath id=\"area\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></clipPath>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, HEIGHT, p->m->step, plural(p->m->step), LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    draw_axes(p);
    draw_line(p, "raw", p->m->loss);
    draw_line(p, "train", p->smooth);
    draw_legend(p, draw_validation(p));
    fprintf(p->out, "</svg>\n");
}

bool plot_losses(tg_ctx *ctx, const char *dir, const metrics *m) {
    if (m->step < 1) return true;
    char *text = NULL, *path = path_in(dir, "loss.svg");
    size_t n = 0;
    plot p = {.out = open_memstream(&text, &n), .m = m, .smooth = malloc((size_t)(m->step + 1) * sizeof(double))};
    bool good = path && p.out && p.smooth;
    if (good) draw(&p);
    if (p.out && fclose(p.out) != 0) good = false;
    if (good) tg_file_save(ctx, path, text, n);
    if (!good) fail("no memory for the loss curve");
    free(p.smooth);
    free(text);
    free(path);
    return good && check(ctx);
}
