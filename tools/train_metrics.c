/* metrics.jsonl, and the lines of progress. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train.h"

/* ---- What an earlier part of the run left ---- */

static double number_or_nan(const json_t *line, const char *key) {
    const json_t *v = json_object_get(line, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static bool read_line(metrics *m, const char *line, size_t n, int64_t expected) {
    json_t *object = json_loadb(line, n, 0, NULL);
    int64_t step = json_integer_value(json_object_get(object, "step"));
    if (step == expected && step <= m->steps) {
        m->loss[step] = number_or_nan(object, "loss");
        m->val_loss[step] = number_or_nan(object, "val_loss");
        if (!isnan(m->val_loss[step])) m->last_val = m->val_loss[step];
    }
    json_decref(object);
    return step == expected;
}

/* Reads the lines of the steps done, and cuts off those behind, of which the last may be torn. */
static bool read_back(metrics *m, int64_t done) {
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    off_t end = 0;
    int64_t step = 0;
    while (step < done && (n = getline(&line, &room, m->file)) > 0 && line[n - 1] == '\n') {
        if (!read_line(m, line, (size_t)n, ++step)) break;
        end += n;
    }
    free(line);
    if (step < done && done > 0) fail("warning: '%s' lacks steps of the checkpoint; the run goes on", m->path);
    if (ftruncate(fileno(m->file), end) == 0 && fseeko(m->file, end, SEEK_SET) == 0) return true;
    return fail("cannot cut '%s': %m", m->path), false;
}

bool metrics_open(metrics *m, const char *dir, int64_t steps, int64_t done) {
    *m = (metrics){.steps = steps, .step = done, .first_step = done, .last_val = NAN, .started = seconds_now(),
                   .terminal = isatty(STDOUT_FILENO)};
    m->path = path_in(dir, "metrics.jsonl");
    m->loss = malloc((size_t)(steps + 1) * sizeof(double));
    m->val_loss = malloc((size_t)(steps + 1) * sizeof(double));
    if (!m->path || !m->loss || !m->val_loss) return fail("no memory for the metrics of %" PRId64 " steps", steps), false;
    for (int64_t i = 0; i <= steps; i++) m->loss[i] = m->val_loss[i] = NAN;
    m->file = fopen(m->path, done ? "r+" : "w+");
    if (!m->file && done && errno == ENOENT) m->file = fopen(m->path, "w+");
    if (!m->file) return fail("cannot open '%s': %m", m->path), false;
    return read_back(m, done);
}

void metrics_close(metrics *m) {
    if (m->file) fclose(m->file);
    free(m->path);
    free(m->loss);
    free(m->val_loss);
}

/* ---- Lines of the file ---- */

static void put_number(FILE *f, const char *key, double v) {
    if (isfinite(v))
        fprintf(f, ", \"%s\": %.17g", key, v);
    else
        fprintf(f, ", \"%s\": null", key);
}

bool metrics_write(metrics *m, int64_t step, const step_result *r, double tokens_per_s, double val_loss) {
    m->step = step;
    m->loss[step] = r->loss;
    m->val_loss[step] = val_loss;
    if (!isnan(val_loss)) m->last_val = val_loss;
    fprintf(m->file, "{\"step\": %" PRId64, step);
    put_number(m->file, "loss", r->loss);
    put_number(m->file, "grad_norm", r->grad_norm);
    put_number(m->file, "lr", r->lr);
    put_number(m->file, "tokens_per_s", tokens_per_s);
    fprintf(m->file, ", \"peak_bytes\": %" PRId64, r->peak_bytes);
    if (!isnan(val_loss)) put_number(m->file, "val_loss", val_loss);
    fprintf(m->file, "}\n");
    if (fflush(m->file) == 0) return true;
    return fail("cannot write '%s': %m", m->path), false;
}

bool metrics_sync(metrics *m) {
    return fsync(fileno(m->file)) == 0 || (fail("cannot write '%s': %m", m->path), false);
}

/* ---- Progress ---- */

static void remaining_text(const metrics *m, char *buf, size_t n) {
    double each = (seconds_now() - m->started) / (double)(m->step - m->first_step);
    int64_t s = (int64_t)(each * (double)(m->steps - m->step) + 0.5);
    if (s >= 3600)
        snprintf(buf, n, "%" PRId64 "h%02d", s / 3600, (int)(s / 60 % 60));
    else
        snprintf(buf, n, "%d:%02d", (int)(s / 60), (int)(s % 60));
}

static void print_progress(const metrics *m, const step_result *r, double tokens_per_s) {
    char eta[32];
    remaining_text(m, eta, sizeof eta);
    printf("step %" PRId64 "/%" PRId64 "  loss %.4f", m->step, m->steps, r->loss);
    if (!isnan(m->last_val)) printf("  val %.4f", m->last_val);
    printf("  %.0f tokens/s  ETA %s", tokens_per_s, eta);
}

void metrics_show(metrics *m, const step_result *r, double tokens_per_s, double val_loss, int64_t log_every) {
    bool last = m->step == m->steps;
    if (m->terminal) {
        double now = seconds_now();
        if (now - m->drawn < 0.1 && !last) return; /* ten times a second is enough for eyes */
        m->drawn = now;
        printf("\r");
        print_progress(m, r, tokens_per_s);
        printf("\033[K");
        fflush(stdout);
    } else if (m->step % log_every == 0 || !isnan(val_loss) || last || m->step == m->first_step + 1) {
        print_progress(m, r, tokens_per_s);
        printf("\n");
        fflush(stdout);
    }
}

void metrics_end_line(metrics *m) {
    if (m->terminal && m->drawn > 0) printf("\n");
    m->drawn = 0;
}
