/* Requests of other threads to a context, such as to drop a tensor: a list that the context's own thread processes at
 * one of its next calls, and after tg_ctx_free the thread of a deleter (dlpack.h). Nothing is allocated and no lock is
 * taken. */
#ifndef TG_LATER_H
#define TG_LATER_H

#include <stdatomic.h>

#include <tapegrad/types.h>

/* What an entry asks for: tg_drop_later of a tensor, tg_unpin of a storage, or the end of an export (dlpack.h). */
enum { TG_LATER_DROP, TG_LATER_UNPIN, TG_LATER_EXPORT };

/* An entry of the list, part of the object that it is about. */
typedef struct tg_later {
    struct tg_later *next;
    atomic_uint times; /* number of requests since the list was last processed; 0 if the entry is not in the list */
    uint8_t kind;      /* TG_LATER_* */
} tg_later;

/* Counts a request for the entry, and adds the entry to the list of the context unless it is there. May be called from
 * any thread. */
void tg_later_ask(tg_ctx *ctx, tg_later *e);
/* Does what the list asks for. tg_later_settle (context.h) calls it if the list has entries. */
void tg_later_run(tg_ctx *ctx);

#endif
