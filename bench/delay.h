/* A transport whose messages arrive late: the one of ranks that are threads, around which it is wrapped. Benches use it
 * to find what hides the time that a message takes.
 *
 * A message is on its way from the moment when both of its ranks have started it, as between GPUs, where the receiver's
 * kernel takes part. The wrapped transport moves the bytes at that moment; the wrapper makes both ranks believe that
 * they arrive only after the hop. Messages of a group must go one way, as those of a pipeline's edges do. */
#ifndef TAPEGRAD_BENCH_DELAY_H
#define TAPEGRAD_BENCH_DELAY_H

#include <stdatomic.h>

#include <tapegrad/comm.h>

enum { DELAY_WIRES = 16, DELAY_MESSAGES = 64 };

/* What two ranks know of the messages of their group: when each of them started message n, and how many it has started.
 * [0] is the receiver, [1] the sender. */
typedef struct delay_wire {
    _Atomic(const void *) group; /* NULL: the wire is free */
    _Atomic double started[2][DELAY_MESSAGES];
    uint64_t count[2];
} delay_wire;

/* Wraps the transport of this rank's world. wire[DELAY_WIRES] is zero at first, and all ranks share it. Call it before
 * groups are split from world, and delay_close after they are freed. */
void delay_open(tg_comm *world, delay_wire *wire);
void delay_close(tg_comm *world);
/* Sets how the messages travel that this rank starts from now on. hop: seconds. at_need: this rank starts a receive
 * only when it waits for it, not when its program posts it. Every rank sets the same, with no message on its way. */
void delay_set(double hop, bool at_need);
/* Returns for how many seconds this rank has waited for receives since the last call. */
double delay_waited(void);

#endif
