/* control.h - what tests ask of the CUDA double, beside the CUDA calls themselves. Settings that are not changed here
 * come from the environment when the first call is made:
 *   TG_DOUBLE_DEVICES    how many devices there are (1)
 *   TG_DOUBLE_MEMORY     the MiB of each (8192)
 *   TG_DOUBLE_SCHEDULE   eager (queued work runs as soon as its order allows), lazy (only when the host waits for it),
 *                        or the seed of a random choice at every call
 *   TG_DOUBLE_ORDER      of the threads and blocks of a kernel: 0 forward, 1 backward, else the seed of a random one.
 *                        From 3 on, where it is odd, a warp runs as far as it can before another does; else all
 *                        threads run to their next wait before any goes on
 *   TG_DOUBLE_FAIL_AT    the number of the fallible call that fails; "count" prints at exit how many there were
 *   TG_DOUBLE_TIMEOUT_MS how long a wait may stand still before it is reported (60000)
 *   TG_DOUBLE_GUARD      on: a host access to device memory is caught; off; or auto, on while that costs little: while
 *                        there are at most 16 MiB, huge pages counted as small ones
 *   TG_DOUBLE_STRICT     on: a program in which errors were found and not forgotten (double_reset) ends with status 99
 *   TG_DOUBLE_NCCL_PROGRESS  how often a communicator that does not block answers ncclInProgress (0)
 *   TG_DOUBLE_NCCL_LEFT  what becomes of those who wait for a rank that has ended its communicator: report (an error),
 *                        or hang, as on GPUs, until they give up
 *   TG_DOUBLE_NCCL_DIR   where the files lie in which ranks meet (/dev/shm) */
#ifndef TG_CUDA_DOUBLE_CONTROL_H
#define TG_CUDA_DOUBLE_CONTROL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The errors found since the last reset, a line each; "" when there are none. Valid until the next call of the double.
 */
const char *double_message(void);

/* Lets all queued work run or, where it cannot, drops it; forgets errors. Allocations and handles stay. */
void double_reset(void);

/* How many fallible calls there were since the last double_fail_at. */
long double_calls(void);

/* The n-th fallible call from now on fails, once; 0: none. */
void double_fail_at(long n);

/* The name of the call that failed so, or NULL. */
const char *double_failed(void);

/* As TG_DOUBLE_SCHEDULE and TG_DOUBLE_ORDER. */
void double_schedule(const char *schedule);
void double_order(unsigned order);

/* As TG_DOUBLE_TIMEOUT_MS. */
void double_timeout_ms(int ms);

/* How many bytes may be allocated on each device, and how many are. */
void double_memory_limit(size_t bytes);
size_t double_memory_used(int device);

/* Hears of everything that is queued on a stream, when it is; NULL: nothing any more. saw is called by the thread that
 * queues it, with what messages call it ("ncclAllReduce ...", "kernel ...", "a wait for an event"), and may call
 * nothing of CUDA. */
void double_watch(void (*saw)(int device, const void *stream, const char *what));

/* How many operations are queued and have not run, and how many kernels have been launched. */
size_t double_queued(void);
long double_launches(void);

/* Handles and allocations that are still there, by kind: "stream", "event", "graph", "memory", "pinned", "cublas",
 * "nccl". Tests of leaks ask. */
long double_live(const char *kind);

#ifdef __cplusplus
}
#endif
#endif
