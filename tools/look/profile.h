/* Profiles of a training step: when each op ran, forward and backward, the memory in use after it, what was alive at
 * the peak, and the collectives. Pages (page.h) and traces show them.
 *
 * A profile needs two steps: the first is timed, and in the second the library notes the blocks of memory, which takes
 * longer. The comment of profile_gather describes the JSON. */
#ifndef TAPEGRAD_PROFILE_H
#define TAPEGRAD_PROFILE_H

#include "common/program.h"

#include <tapegrad/comm.h>

typedef struct profile profile;

/* Returns NULL after printing that there is no memory. */
profile *profile_new(tg_ctx *ctx, tg_comm *world);
void profile_free(profile *p); /* NULL is ignored */
/* Call them before and after the timed step, which is number `step` of the run. Its ops are those on the tape t, and on
 * tapes for which profile_watch is called before ops run on them. */
void profile_begin_times(profile *p, tg_tape *t, int64_t step);
void profile_end_times(profile *p, tg_tape *t);
/* Begins to observe the tape if the timed step is running; otherwise stops observing it. The profile must live as long
 * as ops run on the tape. */
void profile_watch(profile *p, tg_tape *t);
/* Call them before and after the step in which the blocks of memory are noted. */
void profile_begin_memory(profile *p);
void profile_end_memory(profile *p);
/* Returns the profiles of all ranks as {"number": step, "ranks": [..]}, on rank 0; NULL on other ranks, and after an
 * error, which is recorded in the context. Collective.
 *
 * A rank has "rank", "ranks", "began" (seconds after the first rank), "seconds", "device", "threads", "sites" (an
 * array of texts), "memory" (tg_memory_json) and "collectives" (an array of calls with "kind", "group", "dtype",
 * "count" and "site", and "t" and "d", microseconds since `began` and of the call). It has "ops", an array with a row
 * for each forward and backward, in the order in which they ended:
 * - "n": the name of the op; "b": 1 for backward; "t", "d": when it began, and how long it took, in microseconds;
 * - "m": bytes in use after it; "s": the index of its site;
 * - "i": its number, which its forward and backward share; -1: unknown;
 * - "e", if other ops ran within it, as recomputed ones do: its microseconds without theirs;
 * - of a forward, "in": for each input the number of the op that made it, the description of a tensor that no op made,
 *   or null for an absent input; "o": the description of its first output; "p": the placement of that output, if there
 *   are several ranks;
 * - of a backward, "f", "sv": floating-point operations of the forward, and bytes that it saved. */
json_t *profile_gather(profile *p);

/* Writes the profile as a trace in Chrome's JSON format, which Perfetto and chrome://tracing open: a process for each
 * rank, with threads for forward, backward and collectives, and a counter of memory. Returns false after printing what
 * is wrong. */
bool trace_save(tg_ctx *ctx, const char *path, const json_t *profile);

#endif
