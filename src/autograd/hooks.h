/* Hooks on gradients: added, removed, and run by backward. */
#ifndef TG_HOOKS_H
#define TG_HOOKS_H

#include "tape/tape.h"

/* Runs x's hooks of one kind on *g, a temp that hooks may replace. */
tg_status tg_hooks_run(tg_tape *t, tg_tensor *x, tg_tensor **g, bool accumulated);
bool tg_hooks_any(const tg_tensor *x, bool accumulated);
/* Adds an on_grad hook before the other hooks of x, which must have some. Returns 0 after recording the error. */
uint64_t tg_hook_first(tg_tensor *x, tg_hook_fn fn, void *user);
/* tg_remove_hook, but it also works under an error. */
bool tg_hook_drop(tg_tensor *x, uint64_t id);

#endif
