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
/* Returns whether the command line leaves the size of the model open. */
bool choose_is_size_open(const train_options *o, const parsed *p);
/* Measures steps of models on the ranks, chooses, prints why, and sets the options that were not given.
 * Returns false after printing what is wrong. */
bool choose_options(train_options *o, const parsed *p, const corpus_options *from, const json_t *plan);

/* ---- The speed (measure.c) ---- */

/* Sets *seconds to the mean time of a step of the model on the ranks. tokens: how many of the data are for training. */
bool measure_model(const train_options *o, const tg_lm_config *config, const corpus_options *from, const json_t *plan,
                   int64_t tokens, double *seconds);

/* ---- The memory (fit.c) ---- */

/* Bytes of one rank and of all ranks together. As a need, `one` is that of the rank that needs most. As a limit, it is
 * that of each rank, and TG_NONE means that there is none. */
typedef struct rank_bytes {
    int64_t one, all;
} rank_bytes;

/* Sets *room to the memory that the ranks can obtain now. The limit of each rank is --memory and, on a GPU, the memory
 * that its GPU has left. On the CPU the limit of all ranks together is what the host has left. Makes a context on each
 * rank. */
bool room_of_ranks(const train_options *o, rank_bytes *room);
/* Sets *need to the peak of a step. Runs the step on device meta, with the options as they are. */
bool need_of_step(const train_options *o, const tg_lm_config *config, rank_bytes *need);
/* Returns whether the step fits, with room for what device meta does not count. */
bool room_holds(const rank_bytes *room, const rank_bytes *need);
/* Write the limit that is nearest to what is needed, such as "6.0 GiB of memory for each rank", and what is needed of
 * it, such as "7.1 GiB". Return buf. */
const char *room_text(const rank_bytes *room, const rank_bytes *need, char *buf, size_t n);
const char *need_text(const rank_bytes *room, const rank_bytes *need, char *buf, size_t n);

/* ---- The prediction (predict.c) ---- */

/* Returns the loss that a model is expected to reach, in nats for each token of web text. Only differences count.
 * tokens: how many the model reads in all; unique: how many different ones there are. */
double predict_loss(double parameters, double tokens, double unique);

#endif
