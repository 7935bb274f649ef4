/* Sequences: calls of ops that were recorded once, and that the library then runs again for other inputs in one call
 * of C. A sequence repeats the decisions that Python took while it was recorded, so its inputs must have the shapes,
 * strides and dtypes of the recording's inputs. */
#ifndef TAPEGRAD_PYTHON_SEQUENCE_H
#define TAPEGRAD_PYTHON_SEQUENCE_H

#include "bridge.h"

/* Begins to record the calls of ops on w (tgpy_call), as a function of in[n]. The calls still run. A tensor that is
 * neither one of in[] nor a result of a recorded call is a constant, which the sequence keeps. Returns NULL if there is
 * no memory. */
tgpy_sequence *tgpy_sequence_begin(tgpy_world *w, tgpy_box *const *in, int n);
/* Ends the recording of s. out[n] are the results that a run returns; each is an input, a result of a recorded call or
 * a constant. Returns whether s can be run. It cannot if there was no memory, if a call failed or was given a pointer,
 * or if an operand was computed on a tape by a call that is not recorded; s must then only be freed. */
bool tgpy_sequence_end(tgpy_sequence *s, tgpy_box *const *out, int n);
/* Calls the ops again for other inputs, on the tape that tgpy_ready finds for them, and sets out[] to the results.
 * After an error it sets none. */
tg_status tgpy_sequence_run(tgpy_sequence *s, tgpy_box *const *in, tgpy_box **out);
void tgpy_sequence_free(tgpy_sequence *s); /* any thread; s may be NULL */

/* For tgpy_call on a world that is being recorded: the first notes the operands before the call, and the second the
 * results after it. y NULL: the call has failed, and s cannot be run. */
void tgpy_sequence_note(tgpy_sequence *s, const tg_op_binding *op, tgpy_box *const *in, int n_in,
                        const tg_value *values, int n_out);
void tgpy_sequence_note_results(tgpy_sequence *s, tg_tensor *const *y);

#endif
