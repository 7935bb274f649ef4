/* Memory that is missing on request: that of the context's allocator, that of tensors, or that of the C library. */
#ifndef TG_TEST_MEMORY_ALLOCATIONS_H
#define TG_TEST_MEMORY_ALLOCATIONS_H

#include <tapegrad/types.h>

typedef enum fault_kind {
    FAULT_NONE,
    FAULT_HOST,      /* call number `at` of the context's allocator fails */
    FAULT_HOST_ALL,  /* and so do all after it */
    FAULT_TENSORS,   /* from that call on, no tensor gets memory */
    FAULT_LIMIT,     /* tensors and workspaces have `at` bytes (tg_config.memory) */
    FAULT_C,         /* call number `at` of malloc, calloc or realloc on this thread fails */
    FAULT_C_ALL,     /* and so do all after it */
    FAULT_KINDS
} fault_kind;

typedef struct fault {
    fault_kind kind;
    int64_t at; /* from 1 */
} fault;

/* Returns an allocator for a context, which counts its blocks from now on. */
tg_allocator fault_allocator(void);
/* Begins to count the calls, and makes one of them fail. The context is one with that allocator. */
void fault_begin(tg_ctx *ctx, fault f);
/* Ends that. Returns whether memory may have been missing. */
bool fault_end(void);
int64_t fault_calls(fault_kind k); /* Returns the number of calls between the two that faults of this kind count. */
int64_t fault_held(void);          /* Returns the number of blocks of the allocator that have not been freed. */

#endif
