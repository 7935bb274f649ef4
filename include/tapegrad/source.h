/* Lets messages name a place in the source of a program that is written in another language than C. tapegrad.h includes
 * this header. */
#ifndef TAPEGRAD_SOURCE_H
#define TAPEGRAD_SOURCE_H

#include <tapegrad/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the place in the program's source from which later ops of the tape are called, such as ("model.py", 12).
 * Messages, dumps and reports then name that place ("called from model.py:12") instead of the place in C, also for ops
 * that layers record. file is copied. The place stays set until the next call of this function, even if the tape is
 * reset. file NULL removes the place, and line is then ignored. A binding calls this function before each op: the call
 * is cheap, and allocates only when a place is new to the tape. The memory is kept until the context ends. */
TG_API tg_status tg_tape_set_site(tg_tape *t, const char *file, int line);

#ifdef __cplusplus
}
#endif

#endif
