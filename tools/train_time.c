/* The time of --time, and which options go with it. */
#include <math.h>
#include <stdlib.h>

#include <tapegrad/world.h>

#include "train_choose.h"

double choose_seconds(const char *text) {
    static const struct {
        char unit;
        double seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    char *end;
    double v = strtod(text, &end);
    if (end == text || !isfinite(v) || v <= 0) return 0;
    if (!*end) return 60 * v;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (*end == units[i].unit && !end[1]) return v * units[i].seconds;
    return 0;
}

const char *choose_time_text(double seconds, char *buf, size_t n) {
    if (seconds < 120)
        snprintf(buf, n, "%.0f s", seconds);
    else if (seconds < 7200)
        snprintf(buf, n, "%.0f min", seconds / 60);
    else
        snprintf(buf, n, "%.1f h", seconds / 3600);
    return buf;
}

int choose_check(const train_options *o, const parsed *p) {
    const command *c = &train_command;
    if (!choose_seconds(o->time))
        return usage_error(c, "--time is '%s', expected a time such as 90s, 30m, 1.5h or 2d", o->time);
    if (option_given(c, p, "steps"))
        return usage_error(c, "--time chooses the number of steps, and --steps gives it; leave one of them out");
    if (o->resume)
        return usage_error(c, "--time chooses the options of a new run; leave it out with --resume, or give --steps");
    tg_world_info w = TG_WORLD_INFO();
    tg_world_query(&w, NULL, 0);
    if (w.ranks > 1)
        return usage_error(c,
                           "--time measures steps of one process, but a launcher has started %d; give --steps, or "
                           "let one process have the ranks (--ranks)",
                           w.ranks);
    if (o->order)
        return usage_error(c, "--time chooses the number of steps, but --order has the sequences of a given number");
    return 0;
}
