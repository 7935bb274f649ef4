/* The list of a model's parameters that `tapegrad inspect --parameters` prints. */
#ifndef TAPEGRAD_INSPECT_PARAMETERS_H
#define TAPEGRAD_INSPECT_PARAMETERS_H

#include "common/program.h"

/* Prints the path, the shape and the number of elements of each parameter of the whole model; json: as a JSON array.
 * Returns the exit status of the program. */
int print_parameters(const tg_lm_config *config, bool json);

#endif
