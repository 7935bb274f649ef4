/* Fine-tuning: which parameters of a run are trained, with which learning rates (tune.c), and the best model so
 * far (best.c). */
#ifndef TAPEGRAD_TRAIN_TUNE_H
#define TAPEGRAD_TRAIN_TUNE_H

#include "train/train.h"

/* ---- tune.c ---- */

/* Checks --lora, --freeze and --lr-of. Returns 0, or the exit status after printing what is wrong. */
int tune_options_check(const train_options *o);
/* Returns whether parameters of the model's files stay as they are, so that they need not be copied from the files. */
static inline bool tune_freezes(const train_options *o) { return o->lora || o->freeze; }
/* Adds the adapters of --lora, with the matrices in the directory `adapter` or, if that is NULL, new ones. Freezes the
 * parameters of --freeze. */
bool tune_model(trainer *r, const train_options *o, const char *adapter);
/* Divides the parameters of the optimizer into groups, as --lr-of says. */
bool tune_groups(trainer *r, const train_options *o);
/* Saves the adapters to dir. Errors are recorded in the context. */
void tune_save(trainer *r, const char *dir);
/* Prints what is trained, if that is not the whole model. */
void tune_print(const trainer *r, const train_options *o);

/* ---- best.c ---- */

/* Takes the validation losses of earlier calls of the program from rank 0's metrics, which are NULL on other ranks.
 * `done` steps are done. If the folder best has a model of a later step or, with --keep-best, one whose step it does
 * not say, renames it to best.unused, in place of an earlier one. With --keep-best saves the model if the folder then
 * has none and the validation of step `done` was the best. Collective. */
bool best_open(best_model *b, trainer *r, const train_options *o, const metrics *m, int64_t done);
/* Takes the validation loss of a step, NaN if there was no validation. With --keep-best saves the model if its loss is
 * lower than that of the kept one, or none is kept. Sets *stop if --patience ends the run. Collective. */
bool best_note(best_model *b, trainer *r, const train_options *o, bool chief, int64_t step, double val_loss,
               bool *stop);
/* Prints where the best model is. */
void best_print(const best_model *b, const train_options *o);

#endif
