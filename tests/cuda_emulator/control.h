/* control.h - how tests control the CUDA emulator: the functions below, and settings in the environment, which are read
 * at the first CUDA call.
 *
 *   TG_EMULATOR_DEVICES        number of devices (1)
 *   TG_EMULATOR_MEMORY         memory of each device in MiB (8192)
 *   TG_EMULATOR_SCHEDULE       when queued work runs: eager (as soon as its order allows), lazy (only when the host
 *                              waits for it), or a number, the seed of a random choice at every call
 *   TG_EMULATOR_ORDER          order of a kernel's threads and blocks: 0 forward, 1 backward, otherwise the seed of a
 *                              random order. From 3 on, odd seeds run each warp as far as it can go before the next
 *                              one; even seeds run all threads to their next wait before any of them goes on
 *   TG_EMULATOR_FAIL_AT        number of the fallible call that fails; "count" prints their number at exit
 *   TG_EMULATOR_TIMEOUT_MS     time without progress after which a wait is reported (60000)
 *   TG_EMULATOR_GUARD          whether accesses of the host to device memory are caught: on, off, or auto: on while the
 *                              device has at most 16 MiB in use (huge pages count as small ones)
 *   TG_EMULATOR_STRICT         on: a program in which errors were found exits with status 99
 *   TG_EMULATOR_NCCL_PROGRESS  how often a nonblocking communicator answers ncclInProgress (0)
 *   TG_EMULATOR_NCCL_LEFT      what happens to ranks that wait for one that has ended its communicator: report (an
 *                              error), or hang until they give up, as on GPUs
 *   TG_EMULATOR_NCCL_DIR       directory of the files through which ranks meet (/dev/shm) */
#ifndef TG_CUDA_EMULATOR_CONTROL_H
#define TG_CUDA_EMULATOR_CONTROL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the errors found, one a line; "" if there are none. Valid until the next call. */
const char *emulator_message(void);

/* Returns the number of fallible calls since the last emulator_fail_at. */
long emulator_calls(void);

/* Makes the n-th fallible call from now on fail, once. 0: none fails. */
void emulator_fail_at(long n);

/* Returns the name of the call that emulator_fail_at made fail, or NULL. */
const char *emulator_failed(void);

/* Set what TG_EMULATOR_SCHEDULE, TG_EMULATOR_ORDER and TG_EMULATOR_TIMEOUT_MS set. */
void emulator_schedule(const char *schedule);
void emulator_order(unsigned order);
void emulator_timeout_ms(int ms);

/* Limits the bytes that may be allocated on each device; returns the bytes allocated on one. */
void emulator_memory_limit(size_t bytes);
size_t emulator_memory_used(int device);

/* Calls `saw` for each operation when it is queued on a stream. NULL: for none. The thread that queues the operation
 * makes the call; `what` is the operation's name in messages ("ncclAllReduce ...", "kernel ...", "a wait for an
 * event"). `saw` must not call CUDA. */
void emulator_watch(void (*saw)(int device, const void *stream, const char *what));

/* Returns the number of operations that are queued and have not run. */
size_t emulator_queued(void);

/* Returns the number of live handles or allocations of a kind: "stream", "event", "graph", "memory", "pinned",
 * "cublas", "nccl". For tests of leaks. */
long emulator_live(const char *kind);

#ifdef __cplusplus
}
#endif

#endif
