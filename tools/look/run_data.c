/* Reads the directory of a training run for a page (run_json). */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/model_files.h"
#include "common/text.h"
#include "look/page.h"

/* The numbers of metrics.jsonl that a page shows for each step. */
static const char *const keys[] = {"loss", "grad_norm", "lr", "tokens_per_s", "peak_bytes", "loss_scale"};
enum { KEYS = sizeof keys / sizeof keys[0], POINTS = 2000 /* most points of a curve */ };

/* Sums, minima and maxima of the numbers of some neighboring steps. */
typedef struct bucket {
    double sum[KEYS], lo[KEYS], hi[KEYS];
    int64_t n[KEYS], steps;
    double step, seconds, tokens; /* of the last of them */
} bucket;

typedef struct curves {
    bucket *at;
    int64_t n;
    int64_t width, lines; /* number of steps of a bucket, and lines of steps read so far */
    double last_loss, best_val, best_step;
    json_t *val;     /* rows of step, seconds, tokens, loss */
    size_t best_row; /* of val */
} curves;

/* ---- Reading ---- */

static void merge(bucket *to, const bucket *from) {
    for (int k = 0; k < KEYS; k++) {
        to->sum[k] += from->sum[k];
        to->n[k] += from->n[k];
        to->lo[k] = fmin(to->lo[k], from->lo[k]);
        to->hi[k] = fmax(to->hi[k], from->hi[k]);
    }
    to->steps += from->steps;
    to->step = from->step;
    to->seconds = from->seconds;
    to->tokens = from->tokens;
}

/* Joins neighboring buckets, so that half as many are left. */
static void halve(curves *c) {
    for (int64_t i = 0; i < c->n; i += 2) {
        c->at[i / 2] = c->at[i];
        if (i + 1 < c->n) merge(&c->at[i / 2], &c->at[i + 1]);
    }
    c->n = (c->n + 1) / 2;
    c->width *= 2;
}

/* Adds the line of a step to the last bucket, or to a new one if that has enough steps. */
static void add_line(curves *c, const json_t *line) {
    bucket one = {.steps = 1,
                  .step = json_number_value(json_object_get(line, "step")),
                  .seconds = json_number_value(json_object_get(line, "seconds")),
                  .tokens = json_number_value(json_object_get(line, "tokens"))};
    for (int k = 0; k < KEYS; k++) {
        const json_t *v = json_object_get(line, keys[k]);
        one.n[k] = json_is_number(v);
        one.sum[k] = json_number_value(v);
        one.lo[k] = one.n[k] ? one.sum[k] : INFINITY;
        one.hi[k] = one.n[k] ? one.sum[k] : -INFINITY;
    }
    if (c->n && c->at[c->n - 1].steps < c->width) {
        merge(&c->at[c->n - 1], &one);
        return;
    }
    if (c->n == 2 * POINTS) halve(c);
    c->at[c->n++] = one;
}

static void add_validation(curves *c, const json_t *line) {
    const json_t *v = json_object_get(line, "val_loss");
    if (!json_is_number(v)) return;
    double loss = json_number_value(v);
    if (!(loss >= c->best_val)) {
        c->best_val = loss;
        c->best_row = json_array_size(c->val);
        c->best_step = json_number_value(json_object_get(line, "step"));
    }
    json_array_append_new(c->val, json_pack("[I, f, I, f]", json_integer_value(json_object_get(line, "step")),
                                            json_number_value(json_object_get(line, "seconds")),
                                            json_integer_value(json_object_get(line, "tokens")), loss));
}

/* Reads the lines of metrics.jsonl. A line that is not JSON, such as the last one of a run that was killed, is left
 * out. */
static bool read_metrics(curves *c, const char *path) {
    FILE *f = open_regular(path);
    char *text = NULL;
    size_t capacity = 0;
    ssize_t n;
    if (!f) return false;
    while ((n = getline(&text, &capacity, f)) > 0) {
        json_t *line = json_loadb(text, (size_t)n, 0, NULL);
        if (json_is_integer(json_object_get(line, "step"))) {
            const json_t *loss = json_object_get(line, "loss");
            if (json_is_number(loss)) c->last_loss = json_number_value(loss);
            add_line(c, line);
            add_validation(c, line);
            c->lines++;
        }
        json_decref(line);
    }
    bool good = !ferror(f);
    if (!good) fail("cannot read '%s': %s", path, strerror(errno));
    if (good && !c->lines) good = (fail("'%s' has no line of a step: the run has not begun", path), false);
    free(text);
    fclose(f);
    return good;
}

/* ---- JSON ---- */

static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

/* Returns a number without digits after the point, which takes fewer bytes of the page. */
static json_t *whole(double v) { return json_integer((json_int_t)v); }

static json_t *curve_json(const curves *c, int k) {
    json_t *mean = json_array(), *lo = json_array(), *hi = json_array();
    int64_t known = 0;
    for (int64_t i = 0; i < c->n; i++) {
        const bucket *b = &c->at[i];
        known += b->n[k];
        json_array_append_new(mean, number(b->sum[k] / (double)b->n[k]));
        json_array_append_new(lo, number(b->lo[k]));
        json_array_append_new(hi, number(b->hi[k]));
    }
    json_t *all = known ? json_pack("{s:O}", "mean", mean) : NULL;
    if (all && c->width > 1) json_object_set(all, "lo", lo), json_object_set(all, "hi", hi);
    json_decref(mean);
    json_decref(lo);
    json_decref(hi);
    return all;
}

/* Returns the rows of validations, thinned to about POINTS of them. The first, the last and the best one are kept. */
static json_t *validations_json(const curves *c) {
    json_t *all = json_array();
    size_t n = json_array_size(c->val), stride = n / POINTS + 1;
    for (size_t i = 0; i < n; i++)
        if (i % stride == 0 || i + 1 == n || i == c->best_row) json_array_append(all, json_array_get(c->val, i));
    return all;
}

static json_t *curves_json(const curves *c) {
    json_t *step = json_array(), *seconds = json_array(), *tokens = json_array();
    json_t *all = json_pack("{s:o, s:o, s:o, s:I, s:o}", "step", step, "seconds", seconds, "tokens", tokens, "width",
                            (json_int_t)c->width, "val", validations_json(c));
    for (int64_t i = 0; i < c->n; i++) {
        json_array_append_new(step, whole(c->at[i].step));
        json_array_append_new(seconds, number(round(c->at[i].seconds * 1000) / 1000));
        json_array_append_new(tokens, whole(c->at[i].tokens));
    }
    for (int k = 0; k < KEYS; k++) {
        json_t *curve = curve_json(c, k);
        if (curve) json_object_set_new(all, keys[k], curve);
    }
    return all;
}

/* Returns the samples of samples.jsonl, and leaves out lines that are not JSON. */
static json_t *samples_json(const char *dir) {
    json_t *all = json_array();
    char *path = path_in(dir, "samples.jsonl"), *line = NULL;
    size_t capacity = 0;
    FILE *f = path && is_there(dir, "samples.jsonl") ? open_regular(path) : NULL;
    for (ssize_t n; f && (n = getline(&line, &capacity, f)) > 0;) {
        json_t *sample = json_loadb(line, (size_t)n, 0, NULL);
        if (json_is_string(json_object_get(sample, "text"))) json_array_append(all, sample);
        json_decref(sample);
    }
    if (f && ferror(f)) fail("cannot read '%s': %s", path, strerror(errno));
    if (f) fclose(f);
    free(line);
    free(path);
    return all;
}

/* Appends a fact, a name and a value, to the array. */
static void add_fact(json_t *facts, const char *name, const char *format, ...) TG_PRINTF(3, 4);
static void add_fact(json_t *facts, const char *name, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    json_array_append_new(facts, json_pack("[s, s]", name, text));
}

/* Adds facts of the model, if the run has written its config or a checkpoint. */
static void add_model(json_t *facts, const char *dir) {
    char path[4200];
    int64_t step = newest_checkpoint(dir);
    if (is_there(dir, "config.json"))
        snprintf(path, sizeof path, "%s/config.json", dir);
    else
        snprintf(path, sizeof path, "%s/checkpoints/step-%010" PRId64 "/config.json", dir, step);
    tg_lm_config c;
    if (access(path, R_OK) != 0 || not_regular(path)) return; /* a run of adapters has none */
    if (!read_model_config(path, &c)) return;
    add_fact(facts, "model", "%s, %" PRId64 " layer%s, hidden %" PRId64, c.family, c.layers, plural(c.layers),
             c.hidden);
    add_fact(facts, "parameters", "%" PRId64, count_parameters(&c));
    free_model_config(&c);
}

static json_t *facts_json(const curves *c, const char *dir) {
    json_t *facts = json_array();
    const bucket *last = &c->at[c->n - 1];
    add_model(facts, dir);
    add_fact(facts, "steps", "%.0f", last->step);
    if (last->tokens > 0) add_fact(facts, "tokens", "%.0f", last->tokens);
    if (last->seconds > 0) add_fact(facts, "seconds", "%.0f", last->seconds);
    if (isfinite(c->last_loss)) add_fact(facts, "loss", "%.4f", c->last_loss);
    if (isfinite(c->best_val)) add_fact(facts, "best validation", "%.4f at step %.0f", c->best_val, c->best_step);
    return facts;
}

json_t *run_json(const char *dir) {
    curves c = {.width = 1, .last_loss = NAN, .best_val = NAN};
    char *path = path_in(dir, "metrics.jsonl"), name[512];
    json_t *all = NULL;
    c.at = calloc(2 * POINTS, sizeof *c.at);
    c.val = json_array();
    if (path && c.at && read_metrics(&c, path)) {
        while (c.n > POINTS) halve(&c);
        size_t n;
        const char *last = text_last_part(dir, &n);
        snprintf(name, sizeof name, "%.*s", (int)n, last);
        text_make_utf8(name, strlen(name)); /* after snprintf, which may have cut a character */
        all = json_pack("{s:s, s:o, s:o, s:o}", "name", name, "facts", facts_json(&c, dir), "curves", curves_json(&c),
                        "samples", samples_json(dir));
    }
    free(c.at);
    free(path);
    json_decref(c.val);
    return all;
}
