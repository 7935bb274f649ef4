/* The lines of progress of a training run, and the estimate of the time that is left. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/text.h"
#include "train/train.h"

/* ---- Estimates ---- */

void progress_open(progress *p, const train_options *o) {
    const char *term = getenv("TERM"), *plain = getenv("NO_COLOR");
    *p = (progress){.val_every = o->val_every, .save_every = o->checkpoint_every};
    /* A terminal of type "dumb" may not be able to return to the beginning of a line, so it gets plain lines, as a file
     * does. */
    p->terminal = isatty(STDOUT_FILENO) && !(term && !strcmp(term, "dumb"));
    p->escapes = !(plain && *plain);
    p->live = o->live && p->terminal && p->escapes;
    p->step.window = 50;
    p->val.window = p->sampling.window = p->save.window = 5;
}

void progress_add(mean_time *t, double seconds) {
    if (t->window < 1) return; /* this rank shows no progress */
    double keep = 1 - 1 / t->window;
    if (!(seconds >= 0)) t->unknown = true; /* the clock went backward */
    t->sum = keep * t->sum + (1 - keep) * seconds;
    t->weight = keep * t->weight + (1 - keep);
    t->count++;
}

/* The first step allocates, starts threads and fills caches, so it takes longer than the others. */
void progress_add_step(progress *p, double seconds) {
    if (p->step.count == 1 && !p->warm) p->step.sum = p->step.weight = 0, p->step.count = 0, p->warm = true;
    progress_add(&p->step, seconds);
}

static double mean_of(const mean_time *t) { return t->unknown ? NAN : t->weight > 0 ? t->sum / t->weight : 0; }

/* Returns how often something is still due that is due after every `every` steps and after the last one. */
static double times_left(int64_t every, int64_t step, int64_t steps) {
    if (!every || step >= steps) return 0;
    return (double)(steps / every - step / every + (steps % every != 0));
}

double progress_left(const progress *p, int64_t step, int64_t steps) {
    double validation = mean_of(&p->val) + mean_of(&p->sampling);
    return mean_of(&p->step) * (double)(steps - step) + validation * times_left(p->val_every, step, steps) +
           mean_of(&p->save) * times_left(p->save_every, step, steps);
}

double progress_step_seconds(const progress *p) {
    double mean = mean_of(&p->step);
    return mean > 0 ? mean : NAN;
}

/* ---- Texts ---- */

enum { TEXT = 256 };

void text_duration(char *buf, size_t n, double seconds) {
    int64_t s = seconds >= 0 && seconds < 1e15 ? (int64_t)(seconds + 0.5) : -1;
    if (s < 0)
        snprintf(buf, n, "?");
    else if (s >= 3600)
        snprintf(buf, n, "%" PRId64 "h%02d", s / 3600, (int)(s / 60 % 60));
    else
        snprintf(buf, n, "%d:%02d", (int)(s / 60), (int)(s % 60));
}

void text_bytes(char *buf, size_t n, double bytes) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int i = 0;
    for (; bytes >= 1000 && i < 4; i++) bytes /= 1024;
    snprintf(buf, n, i && bytes < 10 ? "%.1f %s" : "%.0f %s", bytes, unit[i]);
}

static void progress_text(const metrics *m, const step_result *r, char out[TEXT]) {
    char eta[32], rate[32] = "?", memory[32], val[48] = "";
    double tokens_per_s = (double)m->step_tokens / progress_step_seconds(&m->progress);
    text_duration(eta, sizeof eta, progress_left(&m->progress, m->step, m->steps));
    text_bytes(memory, sizeof memory, (double)r->peak_bytes);
    if (isfinite(tokens_per_s)) snprintf(rate, sizeof rate, "%.0f", tokens_per_s);
    if (!isnan(m->last_val)) snprintf(val, sizeof val, "  val %.4f", m->last_val);
    snprintf(out, TEXT, "step %" PRId64 "/%" PRId64 "  loss %.4f%s  norm %.3g  %s  %s tokens/s  ETA %s", m->step,
             m->steps, r->loss, val, r->grad_norm, memory, rate, eta);
}

/* ---- The terminal ---- */

void terminal_size(int *columns, int *rows) {
    struct winsize size;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    *columns = known && size.ws_col > 0 ? size.ws_col : 80;
    *rows = known && size.ws_row > 0 ? size.ws_row : 24;
}

/* Overwrites the line of progress. Truncates the new text to the terminal's width, because only one line can be
 * overwritten. */
static void draw_line(progress *p, const char *text) {
    int columns, rows, n = (int)strlen(text);
    terminal_size(&columns, &rows);
    int most = columns - 1;
    if (n > most) n = most > 0 ? most : 0;
    printf("\r%.*s", n, text);
    if (p->escapes)
        printf("\033[K"); /* clears the rest of a longer last line */
    else
        printf("%*s", p->drawn_length > n ? p->drawn_length - n : 0, "");
    p->drawn_length = n;
}

void metrics_show(metrics *m, const step_result *r, double val_loss, int64_t log_every) {
    char text[TEXT];
    progress *p = &m->progress;
    bool last = m->step == m->steps;
    if (p->terminal) {
        double now = seconds_now(), since = now - p->drawn;
        if (since >= 0 && since < 0.1 && p->drawn > 0 && !last) return; /* at most ten updates a second */
        p->drawn = now;
        if (p->live) {
            live_draw(m, r);
        } else {
            progress_text(m, r, text);
            draw_line(p, text);
        }
    } else if (m->step % log_every == 0 || !isnan(val_loss) || last || m->step == m->first_step + 1) {
        progress_text(m, r, text);
        printf("%s\n", text);
    }
    flush_or_go_on();
}

void metrics_end_line(metrics *m) {
    progress *p = &m->progress;
    if (p->terminal && !p->live && p->drawn > 0) printf("\n");
    p->drawn = 0;
    p->drawn_length = 0;
}
