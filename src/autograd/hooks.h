/* Hooks on gradients: set, removed, and run by a backward. */
#ifndef TG_HOOKS_H
#define TG_HOOKS_H

#include "tape/tape.h"

/* Runs x's hooks of one kind on *g, a temp that may be replaced. */
tg_status tg_hooks_run(tg_tape *t, tg_tensor *x, tg_tensor **g, bool accumulated);
bool tg_hooks_any(const tg_tensor *x, bool accumulated);
/* An on_grad hook before x's others, of which it has some. 0 after recording the error. */
uint64_t tg_hook_first(tg_tensor *x, tg_hook_fn fn, void *user);
/* tg_remove_hook under an error too. */
bool tg_hook_drop(tg_tensor *x, uint64_t id);

#endif
