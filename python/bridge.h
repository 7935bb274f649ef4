/* What the Python package adds to the C interface, so that an op costs one call of C: objects for tensors, tapes and
 * contexts that Python's garbage collector may end on any thread and in any order. */
#ifndef TAPEGRAD_PYTHON_BRIDGE_H
#define TAPEGRAD_PYTHON_BRIDGE_H

#include <tapegrad/op_call.h>
#include <tapegrad/tapegrad.h>

/* World, tape and box count their owners. A box is an owner of its tape, and both are owners of their world, so a
 * tensor keeps the tape and the context on which it was computed. */
typedef struct tgpy_world tgpy_world; /* a context */
typedef struct tgpy_tape tgpy_tape;   /* a tape */
typedef struct tgpy_box tgpy_box;     /* a tensor */
typedef struct tgpy_watch tgpy_watch; /* sees a tensor end, without being an owner */
typedef struct tgpy_sequence tgpy_sequence; /* recorded calls (sequence.h) */

/* ---- Contexts ---- */

tgpy_world *tgpy_world_new(tg_ctx *ctx); /* takes over ctx; NULL if there is no memory */
tg_ctx *tgpy_ctx(const tgpy_world *w);   /* NULL after tgpy_world_close */
/* Frees the context now, even if objects of it have owners. Later calls of these objects find that it is gone. */
void tgpy_world_close(tgpy_world *w);
void tgpy_world_keep(tgpy_world *w); /* counts one more owner */
/* Counts one owner less. The last one frees the context, as tgpy_world_end does. */
void tgpy_world_drop(tgpy_world *w);
/* Frees the context of a world that has no owner. The world itself is freed with its last tgpy_watch. */
void tgpy_world_end(tgpy_world *w);
/* Calls end(object) at the next call on the context, or before the context is freed. May be called from any thread. */
void tgpy_later(tgpy_world *w, void (*end)(void *object), void *object);
void tgpy_catch_up(tgpy_world *w); /* does what tgpy_later has put off */
/* A context belongs to one thread at a time. tgpy_enter notes that this thread uses it until tgpy_leave; calls may be
 * nested. It returns false while another thread uses the context, which must then not be touched. All functions below
 * that record or run ops call it themselves, and then return NULL or TG_ERR_STATE. */
bool tgpy_enter(tgpy_world *w);
void tgpy_leave(tgpy_world *w);
/* Returns whether the calling thread, which has entered w, is in a callback of an earlier call of the library. */
bool tgpy_is_nested(const tgpy_world *w);
/* Returns whether tgpy_enter has returned false on this thread since the last call of tgpy_was_refused. */
bool tgpy_was_refused(void);
/* Set whether ops record for backward, and whether they run in training mode. Return what was set before. */
bool tgpy_set_grad(tgpy_world *w, bool on);
bool tgpy_set_training(tgpy_world *w, bool on);
bool tgpy_grad(const tgpy_world *w);
bool tgpy_training(const tgpy_world *w);
void tgpy_set_recording(tgpy_world *w, tgpy_sequence *s); /* notes calls of ops in s from now on; NULL: no more */
/* Begins a step of keyed draws (tg_draws_step) with the next number: models draw other numbers than before. Within a
 * callback it does nothing, because the library may be running a function again. */
tg_status tgpy_next_draws(tgpy_world *w);

/* ---- Tapes ---- */

tgpy_tape *tgpy_tape_new(tgpy_world *w);  /* NULL if the context is gone, in use, or has an error */
tgpy_tape *tgpy_tape_lent(tgpy_world *w, tg_tape *t); /* for the tape of a callback, whose modes the library sets */
void tgpy_tape_drop(tgpy_tape *t);        /* any thread */
void tgpy_tape_end(tgpy_tape *t);         /* for a lent tape, when its callback has returned */
tg_tape *tgpy_tape_of(const tgpy_tape *t); /* NULL if the context is gone, or t is NULL */
/* Opens a tape, or none if t is NULL: ops whose operands belong to no tape record on it. Returns the tape that was open
 * before, which may be NULL. Neither is counted as an owner. */
tgpy_tape *tgpy_open(tgpy_world *w, tgpy_tape *t);
/* Returns the open tape, or else the context's own, which the first call makes. NULL if there is no memory for it, or
 * the context is gone or has an error. */
tgpy_tape *tgpy_current(tgpy_world *w);

/* ---- Tensors ---- */

/* Returns a box of x; NULL if x is NULL or inert, or there is no memory. t is the tape that x belongs to, or NULL. A
 * box that is lent never releases its tensor, because it belongs to others: to a module, to another tensor, or to the
 * caller of a callback. */
tgpy_box *tgpy_box_new(tgpy_world *w, tgpy_tape *t, tg_tensor *x, bool lent);
tgpy_box *tgpy_box_share(tgpy_box *b); /* counts one more owner */
void tgpy_box_drop(tgpy_box *b);       /* any thread */
/* Drops the box without freeing the context, which may wait for other threads: if the box was the world's last owner,
 * returns the world, which the caller passes to tgpy_world_end; else NULL. */
tgpy_world *tgpy_box_end(tgpy_box *b);
void tgpy_box_give(tgpy_box *b);       /* makes the box lent from now on */
tg_tensor *tgpy_tensor(const tgpy_box *b); /* NULL if the context is gone, or b is NULL */
tg_tensor *tgpy_usable(const tgpy_box *b); /* the same, and NULL while another thread uses the context */
tgpy_tape *tgpy_tape_of_box(const tgpy_box *b);
tgpy_world *tgpy_world_of(const tgpy_box *b);

/* Returns a watch of x, which keeps neither the tensor nor the context. NULL if x is NULL or inert, or there is no
 * memory. The functions of watches may be called from any thread. */
tgpy_watch *tgpy_watch_new(tgpy_world *w, tg_tensor *x);
bool tgpy_watch_is_alive(tgpy_watch *v); /* whether the tensor has not ended, nor its context */
void tgpy_watch_drop(tgpy_watch *v);

/* ---- Ops ---- */

/* Sets the place in the program that messages about later ops of this thread name; file NULL: none. The text must live
 * as long as the process. */
void tgpy_site(const char *file, int line);
/* Prepares a call: returns the tape of the first of n boxes that has one, or else tgpy_current; NULL if that is NULL or
 * the context is gone. */
tgpy_tape *tgpy_ready(tgpy_world *w, tgpy_box *const *in, int n);
/* Record one op, and return its result; NULL if the context has an error. If the result is an operand, the operand's
 * box gets one more owner. */
tgpy_box *tgpy_unary(tg_tensor *(*op)(tg_tape *, tg_tensor *), tgpy_box *a);
tgpy_box *tgpy_binary(tg_tensor *(*op)(tg_tape *, tg_tensor *, tg_tensor *), tgpy_box *a, tgpy_box *b);
tgpy_box *tgpy_with_number(tg_tensor *(*op)(tg_tape *, tg_tensor *, double), tgpy_box *a, double number);
/* Does the same for any op: fills out[n_out]. An entry of in[] may be NULL, which is an absent input. Values of kind
 * TENSOR have a tgpy_box in `pointer`. */
tg_status tgpy_call(tgpy_world *w, const tg_op_binding *op, tgpy_box *const *in, int n_in, tg_value *values,
                    tgpy_box **out, int n_out);
/* Boxes the results y[n] of any other call whose inputs were in[n_in], and sets out[n]. */
void tgpy_results(tgpy_world *w, tgpy_tape *t, tg_tensor *const *y, int n, tgpy_box *const *in, int n_in,
                  tgpy_box **out);

#endif
