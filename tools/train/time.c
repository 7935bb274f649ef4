/* The time of --time. */
#include <math.h>
#include <stdlib.h>

#include "train/choose.h"

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
