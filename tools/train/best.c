/* The best model of a run by its validation loss: --keep-best keeps it, and --patience ends a run that no longer finds
 * a better one. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/companions.h"
#include "common/model_files.h"
#include "common/text.h"
#include "io/file.h"
#include "train/tune.h"

/* Takes a validation loss; NaN: there was no validation. */
static void take(best_model *b, int64_t step, double loss) {
    bool better = !(loss >= b->loss); /* the first loss is compared with NaN */
    if (isnan(loss)) return;
    b->waited = better ? 0 : b->waited + 1;
    if (!better) return;
    b->loss = loss;
    b->step = step;
}

/* ---- The folder best ---- */

static const char note_name[] = "best.json"; /* says which step's model is in the folder; written last */

/* Saves the model to the folder. chief: this rank makes the folder, removes the note of the earlier model, and copies
 * the tokenizer. */
static bool save(trainer *r, const train_options *o, bool chief, const char *dir, const char *note) {
    bool good = !chief || mkdir(dir, 0777) == 0 || errno == EEXIST;
    if (!good) tg_ctx_fail(r->ctx, TG_ERR_IO, "cannot make the directory '%s': %s", dir, strerror(errno));
    if (chief) unlink(note);
    trainer_save(r, dir);
    return check(r->ctx) && (!chief || !o->tokenizer || o->lora || tokenizer_copy(r->ctx, o->tokenizer, dir));
}

static bool write_note(tg_ctx *ctx, const char *note, int64_t step, double loss) {
    char text[96];
    int n = snprintf(text, sizeof text, "{\"step\": %" PRId64 ", \"val_loss\": %.17g}\n", step, loss);
    tg_file_save(ctx, note, text, (size_t)n);
    return check(ctx);
}

/* Keeps the model of a step. */
static bool keep(best_model *b, trainer *r, const train_options *o, bool chief, int64_t step, double loss) {
    char *dir = path_in(o->out, "best"), *note = dir ? path_in(dir, note_name) : NULL;
    bool good = note && save(r, o, chief, dir, note) && (!chief || write_note(r->ctx, note, step, loss));
    b->kept = loss;
    b->kept_step = step;
    free(dir);
    free(note);
    return good;
}

/* Reads which step's model is in the folder. Leaves b->kept NaN if the folder does not say it. */
static void read_note(best_model *b, const char *dir) {
    char *path = path_in(dir, note_name);
    json_t *note = path ? json_load_file(path, 0, NULL) : NULL, *loss = json_object_get(note, "val_loss");
    b->kept = json_is_number(loss) ? json_number_value(loss) : NAN;
    b->kept_step = json_integer_value(json_object_get(note, "step"));
    json_decref(note);
    free(path);
}

/* Removes a folder without folders in it. */
static void remove_folder(const char *dir) {
    DIR *entries = opendir(dir);
    for (struct dirent *e; entries && (e = readdir(entries));) {
        char *path = path_in(dir, e->d_name);
        if (path) unlink(path);
        free(path);
    }
    if (entries) closedir(entries);
    rmdir(dir);
}

/* Renames the folder, whose model is of a later step than those done, or of an unknown one. */
static bool set_aside(best_model *b, const train_options *o, const char *dir) {
    char *to = path_in(o->out, "best.unused");
    b->kept = NAN;
    if (to) remove_folder(to);
    bool good = to && rename(dir, to) == 0;
    if (good) say("set aside: '%s', whose model is not of the steps that are kept, is now '%s'\n", dir, to);
    else if (to) fail("cannot rename '%s' to '%s': %s", dir, to, strerror(errno));
    free(to);
    return good;
}

/* Finds which model is in the folder, and sets the folder aside if the step is later than those done, or is unknown and
 * the folder would be overwritten. */
static bool open_folder(best_model *b, const train_options *o, int64_t done) {
    char *dir = path_in(o->out, "best");
    bool there = dir && access(dir, F_OK) == 0;
    if (there) read_note(b, dir);
    bool noted = !isnan(b->kept);
    bool stays = noted ? b->kept_step <= done : !o->keep_best;
    bool good = dir && (!there || stays || set_aside(b, o, dir));
    free(dir);
    return good;
}

/* ---- The functions of the header ---- */

bool best_open(best_model *b, trainer *r, const train_options *o, const metrics *m, int64_t done) {
    enum { WORDS = offsetof(best_model, ended) / sizeof(int64_t) };
    int64_t words[WORDS], good = 1;
    *b = (best_model){.loss = NAN, .kept = NAN};
    for (int64_t i = 1; m && i <= m->step; i++) take(b, i, m->val_loss[i]);
    if (m) good = open_folder(b, o, done);
    memcpy(words, b, sizeof words);
    if (!broadcast_from_rank_0(r->ctx, r->world, &good, 1) || !good) return false;
    if (!broadcast_from_rank_0(r->ctx, r->world, words, WORDS)) return false;
    memcpy(b, words, sizeof words);
    bool best_now = o->keep_best && isnan(b->kept) && !isnan(b->loss) && b->step == done;
    return !best_now || keep(b, r, o, m != NULL, done, b->loss);
}

bool best_note(best_model *b, trainer *r, const train_options *o, bool chief, int64_t step, double val_loss,
               bool *stop) {
    take(b, step, val_loss);
    bool better = o->keep_best && !isnan(val_loss) && !(val_loss >= b->kept); /* the first one is compared with NaN */
    if (better && !keep(b, r, o, chief, step, val_loss)) return false;
    b->ended = o->patience && b->waited >= o->patience && !isnan(val_loss);
    *stop |= b->ended;
    return true;
}

void best_print(const best_model *b, const train_options *o) {
    if (b->ended)
        say("ended after %" PRId64 " validation%s without a lower loss (--patience)\n", b->waited, plural(b->waited));
    if (!o->keep_best || isnan(b->kept)) return;
    say("the best model, of step %" PRId64 " with validation loss %.4f, is in %s/best\n", b->kept_step, b->kept,
        o->out);
}
