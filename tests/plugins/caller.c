/* A shared object that makes an error, at a line that CALLER_LINE and CALLER_FILE name. */
#include <tapegrad/tapegrad.h>

TG_API void make_error(tg_tape *t);

void make_error(tg_tape *t) {
#line CALLER_LINE CALLER_FILE
    tg_full(t, TG_F32, TG_SHAPE(-1), 0);
    tg_tape_reset(t); /* so that the call above returns here */
}
