/* Hooks on gradients (tg_on_grad, tg_on_accumulated): adds and removes them, and runs them for backward. */
#ifndef TG_HOOKS_H
#define TG_HOOKS_H

#include "tape/tape.h"

/* Runs the hooks of x on *g: those of tg_on_accumulated if `accumulated`, otherwise those of tg_on_grad, which may
 * replace *g, a temporary. */
tg_status tg_hooks_run(tg_tape *t, tg_tensor *x, tg_tensor **g, bool accumulated);
/* Returns whether x has hooks of that kind. */
bool tg_hooks_any(const tg_tensor *x, bool accumulated);
/* Adds a hook of tg_on_grad before the other hooks of x. x must have a tg_ext. Returns the id of the hook, or 0 after
 * recording the error. */
uint64_t tg_hook_first(tg_tensor *x, tg_hook_fn fn, void *user);
/* Does what tg_remove_hook does, also while the context has an error. Returns false if x has no such hook. */
bool tg_hook_drop(tg_tensor *x, uint64_t id);

#endif
