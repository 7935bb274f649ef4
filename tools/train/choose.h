/* What --time chooses: model, batch, steps and learning rate, by the data and by the speed of the machine. */
#ifndef TAPEGRAD_TRAIN_CHOOSE_H
#define TAPEGRAD_TRAIN_CHOOSE_H

#include "train/train.h"

/* ---- The time (time.c) ---- */

/* Reads a time such as "90s", "30m", "1.5h" or "2d"; a number alone is in minutes. Returns seconds; 0: it is none. */
double choose_seconds(const char *text);
/* Writes a time in a unit that suits it. Returns buf. */
const char *choose_time_text(double seconds, char *buf, size_t n);

/* ---- The choice ---- */

/* Checks that the options that are given leave something to choose. Returns 0, or the exit status after printing what
 * is wrong. */
int choose_check(const train_options *o, const parsed *p);
/* Measures steps of models on the ranks, chooses, prints why, and sets the options that were not given.
 * Returns false after printing what is wrong. */
bool choose_options(train_options *o, const parsed *p, const corpus_options *from, const json_t *plan);

/* ---- The prediction (predict.c) ---- */

/* Returns the loss that a model is expected to reach, in nats for each token of web text. Only differences count.
 * tokens: how many the model reads in all; unique: how many different ones there are. */
double predict_loss(double parameters, double tokens, double unique);

#endif
