/* The names of checkpoint directories. */
#ifndef TG_CHECKPOINT_DIRECTORY_H
#define TG_CHECKPOINT_DIRECTORY_H

#include <stdint.h>

#include "base/private_api.h"

/* Returns the step in the name of a checkpoint's directory, or -1 if the name is not one of a checkpoint. */
TG_PRIVATE_API int64_t tg_checkpoint_step(const char *name);

#endif
