/* The best model of a run by its validation loss: --keep-best keeps it, and --patience ends a run that no longer finds
 * a better one. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "common/companions.h"
#include "common/model_files.h"
#include "train/train_tune.h"

/* Takes a loss. Returns whether it is the lowest one. */
static bool take(best_model *b, int64_t step, double loss) {
    bool better = !(loss >= b->loss); /* the first loss is compared with NaN */
    if (isnan(loss)) return false;
    b->waited = better ? 0 : b->waited + 1;
    if (!better) return false;
    b->loss = loss;
    b->step = step;
    return true;
}

bool best_open(best_model *b, trainer *r, const metrics *m) {
    int64_t words[3];
    *b = (best_model){.loss = NAN};
    for (int64_t i = 1; m && i <= m->step; i++) take(b, i, m->val_loss[i]);
    memcpy(words, b, sizeof words);
    if (!broadcast_from_rank_0(r->ctx, r->world, words, 3)) return false;
    memcpy(b, words, sizeof words);
    return true;
}

/* Saves the model to the folder best of the run's directory. */
static bool keep(trainer *r, const train_options *o, bool chief) {
    char *dir = path_in(o->out, "best");
    if (!dir) return false;
    bool good = !chief || mkdir(dir, 0777) == 0 || errno == EEXIST;
    if (!good) tg_ctx_fail(r->ctx, TG_ERR_IO, "cannot make the directory '%s': %s", dir, strerror(errno));
    trainer_save(r, dir);
    good = check(r->ctx) && (!chief || !o->tokenizer || o->lora || tokenizer_copy(r->ctx, o->tokenizer, dir));
    free(dir);
    return good;
}

bool best_note(best_model *b, trainer *r, const train_options *o, bool chief, int64_t step, double val_loss,
               bool *stop) {
    bool better = take(b, step, val_loss);
    if (better && o->keep_best && !keep(r, o, chief)) return false;
    b->ended = o->patience && b->waited >= o->patience && !isnan(val_loss);
    *stop |= b->ended;
    return true;
}

void best_print(const best_model *b, const train_options *o) {
    if (b->ended)
        say("ended after %" PRId64 " validation%s without a lower loss (--patience)\n", b->waited,
            b->waited == 1 ? "" : "s");
    if (!o->keep_best || isnan(b->loss)) return;
    say("the best model, of step %" PRId64 " with validation loss %.4f, is in %s/best\n", b->step, b->loss, o->out);
}
