/* The options of the draws that tapegrad generate and chat have in common. */
#ifndef TAPEGRAD_SAMPLING_OPTIONS_H
#define TAPEGRAD_SAMPLING_OPTIONS_H

#include "common/options.h"

/* Refuses options that choose the tokens to draw from if nothing is drawn, because the temperature is 0. Returns 0, or
 * the exit status after printing what is wrong. --seed is not refused: what is printed is then the same for every
 * seed, which is what a seed is for. */
int sampling_options_check(const command *c, const parsed *p, double temperature);

#endif
