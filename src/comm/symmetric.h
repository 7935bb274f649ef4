/* The memory of a symmetric buffer, in which src/parallel/symmetric_take.c creates tensors. */
#ifndef TG_SYMMETRIC_H
#define TG_SYMMETRIC_H

#include <tapegrad/comm.h>

#include "core/memory/scratch.h"

struct tg_symmetric {
    tg_ctx *ctx;
    tg_buffer *buffer;
    size_t bytes; /* size of the buffer on every rank; 0: it has no memory, and tg_symmetric_take gives none */
};

#endif
