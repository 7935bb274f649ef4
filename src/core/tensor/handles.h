/* Handles and bytes that the program holds, and how it gives them up. */
#ifndef TG_HANDLES_H
#define TG_HANDLES_H

#include "core/tensor/tensor.h"

/* Releases a handle, and removes this many of its holds. */
void tg_handle_drop(tg_tensor *x, unsigned holds);
/* Does the same for one hold, which it adds, at the next call that settles (core/later.h). x may be a tensor of the
 * context that tg_drop has just ended, and that nodes still use. */
void tg_handle_drop_later(tg_tensor *x);
/* Adds a pin to the storage, whose bytes must be present. */
tg_status tg_storage_pin(tg_storage *s);
/* Removes this many pins of the storage, except those of its exports. */
void tg_storage_unpin(tg_storage_extra *e, unsigned pins);

#endif
