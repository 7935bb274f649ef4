/* Writes and reads metrics.jsonl, which has a line for each step. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "train/train.h"

/* ---- Losses of every step, for the curve ---- */

/* Grows the two arrays of losses so that they have an element for the step. New elements are NaN. */
static bool reserve(metrics *m, int64_t step) {
    if (step < m->capacity) return true;
    int64_t capacity = 2 * step + 256;
    double *losses = realloc(m->loss, (size_t)capacity * sizeof(double));
    if (losses) m->loss = losses;
    double *val_losses = realloc(m->val_loss, (size_t)capacity * sizeof(double));
    if (val_losses) m->val_loss = val_losses;
    if (!losses || !val_losses) return fail("no memory for the losses of %" PRId64 " steps", step), false;
    for (int64_t i = m->capacity; i < capacity; i++) m->loss[i] = m->val_loss[i] = NAN;
    m->capacity = capacity;
    return true;
}

/* Sets the losses of a step, which becomes the newest one. */
static bool remember(metrics *m, int64_t step, double loss, double val_loss) {
    if (!reserve(m, step)) return false;
    m->step = step;
    m->loss[step] = loss;
    m->val_loss[step] = val_loss;
    if (!isnan(val_loss)) m->last_val = val_loss;
    return true;
}

/* ---- Lines that earlier calls of the program have written in this run ---- */

static double number_or(const json_t *line, const char *key, double missing) {
    const json_t *v = json_object_get(line, key);
    return json_is_number(v) ? json_number_value(v) : missing;
}

/* LINE_LATER: the line is of a step after those that the checkpoint has done. */
typedef enum line_kind { LINE_KEPT, LINE_LATER, LINE_DAMAGED } line_kind;

/* What read_lines has found in the lines of the steps that are done. */
typedef struct lines_found {
    int64_t kept, damaged; /* numbers of lines */
    int64_t missing;       /* the first step without a line; 0: every step has one */
    bool gap;              /* there is a line to remove before the last line that is kept */
} lines_found;

/* Parses a line. Sets *step to its step, or to 0 if it has none. Returns NULL if the line is incomplete or not JSON. */
static json_t *parse_line(const char *line, size_t n, int64_t *step) {
    json_t *object = line[n - 1] == '\n' ? json_loadb(line, n, 0, NULL) : NULL;
    *step = json_integer_value(json_object_get(object, "step"));
    return object;
}

/* Returns whether the step of a line must be wrong: the next line is of the same or an earlier step, and that step has
 * no line before this one. */
static bool is_too_far(const metrics *m, FILE *from, int64_t step) {
    off_t here = ftello(from);
    char *line = NULL;
    size_t capacity = 0;
    int64_t next = 0;
    ssize_t n = getline(&line, &capacity, from);
    if (n > 0) json_decref(parse_line(line, (size_t)n, &next));
    free(line);
    clearerr(from); /* getline sets the end-of-file flag after the last line */
    return fseeko(from, here, SEEK_SET) == 0 && next > m->step && next <= step;
}

/* Classifies a line, and remembers the losses of one that is kept. */
static line_kind read_line(metrics *m, FILE *from, const char *line, size_t n, int64_t done) {
    int64_t step;
    json_t *object = parse_line(line, n, &step);
    line_kind kind = step > m->step ? LINE_KEPT : LINE_DAMAGED;
    if (step > m->step + 1 && is_too_far(m, from, step))
        kind = LINE_DAMAGED;
    else if (step > done)
        kind = LINE_LATER;
    if (kind == LINE_KEPT) m->earlier_seconds = number_or(object, "seconds", m->earlier_seconds);
    if (kind == LINE_KEPT && !remember(m, step, number_or(object, "loss", NAN), number_or(object, "val_loss", NAN)))
        kind = LINE_DAMAGED;
    json_decref(object);
    return kind;
}

/* Reads the lines of the steps 1 to `done`, and writes the good ones to `to` unless that is NULL. Lines of later steps
 * are ignored, because the run writes them again. */
static bool read_lines(metrics *m, FILE *from, FILE *to, int64_t done, lines_found *r) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    off_t at = 0;
    bool good = true;
    *r = (lines_found){0};
    m->step = m->end = 0;
    for (; good && m->step < done && (n = getline(&line, &capacity, from)) > 0; at += n) {
        int64_t expected = m->step + 1;
        line_kind kind = read_line(m, from, line, (size_t)n, done);
        r->damaged += kind == LINE_DAMAGED;
        if (kind != LINE_KEPT) continue;
        if (m->step > expected && !r->missing) r->missing = expected;
        r->gap |= at > m->end;
        r->kept++;
        m->end += n;
        good = !to || fwrite(line, 1, (size_t)n, to) == (size_t)n;
    }
    free(line);
    if (m->step < done && !r->missing) r->missing = m->step + 1;
    return good && !ferror(from);
}

/* Replaces the file by a new one that has only the lines that are kept. Renames the new file when it is complete, so
 * that no good line is lost if the program is killed. */
static bool rewrite_file(metrics *m, FILE *from, int64_t done) {
    char part[4096];
    lines_found found;
    if (snprintf(part, sizeof part, "%s.tmp-%ld", m->path, (long)getpid()) >= (int)sizeof part)
        return fail("the path of '%s' is too long", m->path), false;
    FILE *to = fopen(part, "we");
    rewind(from);
    bool good = to && read_lines(m, from, to, done, &found) && fflush(to) == 0 && fsync(fileno(to)) == 0;
    if (to && fclose(to) != 0) good = false;
    if (good && rename(part, m->path) == 0) return true;
    fail("cannot write '%s' without its damaged lines: %s", m->path, strerror(errno));
    if (to) unlink(part);
    return false;
}

/* Warns of missing and damaged lines. */
static void warn_of(const metrics *m, const lines_found *r, int64_t done) {
    if (r->missing)
        fail("warning: '%s' has no line for step %" PRId64 ", though the checkpoint has done it; steps without one: "
             "%" PRId64 " of %" PRId64 ", damaged lines removed: %" PRId64,
             m->path, r->missing, done - r->kept, done, r->damaged);
    else if (r->damaged)
        fail("warning: '%s' has a line for every step done; damaged lines removed: %" PRId64, m->path, r->damaged);
}

/* Reads the file that earlier calls of the run have written, and removes what is damaged in it. */
static bool read_back(metrics *m, int64_t done) {
    lines_found found = {.missing = 1};
    FILE *f = fopen(m->path, "re");
    if (!f && errno != ENOENT) return fail("cannot open '%s': %s", m->path, strerror(errno)), false;
    bool good = !f || read_lines(m, f, NULL, done, &found);
    if (!good) fail("cannot read '%s': %s", m->path, strerror(errno));
    if (good) warn_of(m, &found, done);
    if (good && found.gap) good = rewrite_file(m, f, done);
    if (f) fclose(f);
    return good;
}

bool metrics_open(metrics *m, tg_ctx *ctx, const char *dir, const train_options *o, int64_t done) {
    *m = (metrics){.fd = -1,
                   .steps = o->steps,
                   .first_step = done,
                   .step_tokens = o->batch * o->model.seq_len,
                   .last_val = NAN,
                   .started = seconds_now(),
                   .path = path_in(dir, "metrics.jsonl")};
    progress_open(&m->progress, o);
    const char *is = m->path ? not_regular(m->path) : NULL;
    if (is) return fail("'%s' is %s, expected a regular file", m->path, is), false;
    if (!m->path || !reserve(m, done)) return false;
    if (done && !read_back(m, done)) return false;
    m->step = done;
    m->fd = open(m->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (m->fd < 0 || ftruncate(m->fd, m->end) != 0)
        return fail("cannot %s '%s': %s", m->fd < 0 ? "open" : "truncate", m->path, strerror(errno)), false;
    tg_sync_directory(ctx, dir); /* a checkpoint relies on the file's being there */
    return check(ctx);
}

void metrics_close(metrics *m) {
    if (!m->path) return;
    if (m->fd >= 0) close(m->fd);
    free(m->path);
    free(m->loss);
    free(m->val_loss);
}

/* ---- Lines of the file ---- */

enum { LINE = 512 };

static int number_text(char *out, size_t n, const char *key, double v) {
    return isfinite(v) ? snprintf(out, n, ", \"%s\": %.17g", key, v) : snprintf(out, n, ", \"%s\": null", key);
}

static size_t line_text(const metrics *m, char out[LINE], int64_t step, const step_result *r, double val_loss) {
    int n = snprintf(out, LINE, "{\"step\": %" PRId64, step);
    n += number_text(out + n, LINE - (size_t)n, "loss", r->loss);
    n += number_text(out + n, LINE - (size_t)n, "grad_norm", r->grad_norm);
    n += number_text(out + n, LINE - (size_t)n, "lr", r->lr);
    if (!isnan(r->loss_scale)) n += number_text(out + n, LINE - (size_t)n, "loss_scale", r->loss_scale);
    n += number_text(out + n, LINE - (size_t)n, "tokens_per_s", metrics_rate(m, r));
    n += number_text(out + n, LINE - (size_t)n, "seconds", metrics_seconds(m));
    n += snprintf(out + n, LINE - (size_t)n, ", \"tokens\": %" PRId64, step * m->step_tokens);
    n += snprintf(out + n, LINE - (size_t)n, ", \"peak_bytes\": %" PRId64, r->peak_bytes);
    if (!isnan(val_loss)) n += number_text(out + n, LINE - (size_t)n, "val_loss", val_loss);
    n += snprintf(out + n, LINE - (size_t)n, "}\n");
    return (size_t)n;
}

/* Appends a line. After an error the file does not contain any part of it. */
static bool append(metrics *m, const char *line, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t k = pwrite(m->fd, line + done, n - done, m->end + (off_t)done);
        if (k > 0) done += (size_t)k;
        if (k > 0 || (k < 0 && errno == EINTR)) continue;
        fail("cannot write '%s': %s", m->path, strerror(k < 0 ? errno : ENOSPC));
        if (ftruncate(m->fd, m->end) != 0) fail("cannot truncate '%s': %s", m->path, strerror(errno));
        return false;
    }
    m->end += (off_t)n;
    return true;
}

double metrics_rate(const metrics *m, const step_result *r) {
    return r->seconds > 0 ? (double)m->step_tokens / r->seconds : NAN; /* the clock may not have advanced */
}

double metrics_seconds(const metrics *m) { return m->earlier_seconds + (seconds_now() - m->started); }

bool metrics_write(metrics *m, int64_t step, const step_result *r, double val_loss) {
    char line[LINE];
    return remember(m, step, r->loss, val_loss) && append(m, line, line_text(m, line, step, r, val_loss));
}

bool metrics_sync(metrics *m) {
    return fsync(m->fd) == 0 || (fail("cannot write '%s': %s", m->path, strerror(errno)), false);
}
