/* emulator.h - state that the parts of the emulator share: the lock, calls, queues of operations, device memory,
 * errors. All functions here need the lock (class Call takes it) unless their comment says otherwise. */
#ifndef TG_CUDA_EMULATOR_EMULATOR_H
#define TG_CUDA_EMULATOR_EMULATOR_H

#include "control.h"
#include <cuda_runtime_api.h>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace emu {

/* settings.cpp */

enum class Schedule { eager, lazy, random };
struct Settings {
    Schedule schedule;
    uint64_t seed;
    unsigned order;
    int devices, timeout_ms, nccl_progress;
    bool nccl_left_hangs;
    size_t memory, guard_limit;
    std::string nccl_dir;
};
Settings &settings();
unsigned draw(unsigned below); /* a random number below `below`, from the schedule's seed */

/* Returns whether this call, of this name, is the one that must fail. */
bool injected(const char *call);

/* Numbers of live handles. */
void count_live(const char *kind, int by);

/* Write a line to stderr and to emulator_message. report also makes all further calls of the device fail, as after
 * an illegal access; device -1: all devices. */
void say(const std::string &text);
void report(const std::string &text, int device);
cudaError_t sticky(int device);

/* engine.cpp */

using Lock = std::unique_lock<std::mutex>;
std::mutex &mutex();
std::condition_variable &changed();

/* The completion of one queued operation, on which others may wait. */
struct Mark {
    bool done = false;
};
using MarkPtr = std::shared_ptr<Mark>;

/* Device memory that an operation uses. */
struct Name {
    const void *at;
    uint64_t block; /* number of the allocation */
};

/* A dependency between ranks: an operation's number in a shared object, and its rank. */
struct Key {
    const void *of;
    uint64_t number;
    int whose;
    bool operator<(const Key &o) const {
        return of != o.of ? of < o.of : number != o.number ? number < o.number : whose < o.whose;
    }
};

struct Op {
    std::string what;
    std::function<bool()> run;        /* returns false if it must be tried again later */
    std::function<std::string()> why; /* returns what it still waits for */
    std::function<void(Op &)> issue;  /* sets what changes each time it is queued, which a graph does often */
    std::vector<Key> keys;            /* keys that it provides when it is first in its queue */
    std::function<std::vector<Key>()> needs; /* keys that other operations have not provided yet */
    std::vector<Name> names;
    bool host = false; /* host code: runs without the lock, must not use the device */
    int device = 0;
    MarkPtr mark;
    std::vector<MarkPtr> after;
};

struct Capture;
using CapturePtr = std::shared_ptr<Capture>;

cudaStream_t stream_of(cudaStream_t s); /* NULL and the predefined handles mean the device's default stream */
bool stream_alive(cudaStream_t s);
const std::set<cudaStream_t> &all_streams();
cudaStream_t new_stream(int device, unsigned flags, bool lane);
void drop_stream(cudaStream_t s); /* destroys it when its queue is empty */

/* Queues an operation, or records it if the stream is being captured. */
cudaError_t push(cudaStream_t s, Op op);
/* Queues it in any case, as a replay does, and after the given marks. */
MarkPtr enqueue(cudaStream_t s, Op op, std::vector<MarkPtr> after);
void run_some();      /* runs operations as the schedule says */
void run_asked();     /* the same, for a host that polls */
bool step();          /* runs one operation; false if none can run */
void find_deadlock(); /* deadlock.cpp: reports operations that can never go on */
cudaError_t wait(Lock &lock, const MarkPtr &mark, int device);
cudaError_t wait_device(Lock &lock, int device);
int device_now(); /* device of the running operation, for errors */

/* Memory order for ThreadSanitizer. */
void order_release(const void *what);
void order_acquire(const void *what);
/* Reports an access of uninstrumented code to ThreadSanitizer. */
void note_read(const void *p, size_t n);
void note_write(void *p, size_t n);

/* One call of the API. It holds the lock. */
class Call {
  public:
    /* unsafe: such a call invalidates a capture */
    explicit Call(const char *name, bool unsafe = false) : lock(mutex()), name_(name), unsafe_(unsafe) {}
    /* Returns whether the call must end at once with `error` as its result: it was asked to fail (then with this
     * error), a host function made it, a capture refuses it, or the device has failed. */
    bool refused(cudaError_t injected_error);
    cudaError_t end(cudaError_t e); /* sets the last error */
    cudaError_t end() { return end(cudaSuccess); }
    ~Call();

    Lock lock;
    cudaError_t error = cudaSuccess;

  private:
    const char *name_;
    bool unsafe_;
};

int current_device();
void set_last_error(cudaError_t e);

/* capture.cpp */

bool capture_record(cudaStream_t s, Op &op, cudaError_t *error); /* false: the stream is not being captured */
cudaError_t capture_refuses();                                   /* an unsafe call of this thread: ends its capture */
cudaError_t capture_breaks(cudaStream_t s);                      /* a call that is not allowed on a capturing stream */
cudaError_t
capture_implicit(cudaStream_t s); /* use of the default stream while a stream that orders with it captures */
void capture_event(cudaEvent_t e, cudaStream_t s);
cudaError_t capture_wait(cudaStream_t s, cudaEvent_t e, bool *captured);

/* memory.cpp */

struct Block {
    char *base;
    size_t size, span; /* requested size; with the red zone */
    int device;
    uint64_t number;
    bool dying; /* to be freed by a queued operation */
};
Block *find_block(const void *p);     /* finds a live block; its end counts too */
bool in_heap(const void *p);          /* of any device; needs no lock */
bool inside(const void *p, size_t n); /* whether one live allocation contains all of it */
bool is_pinned(const void *p, size_t n);
std::string describe(const void *p, size_t n); /* describes its place in words */
cudaError_t allocate(void **p, size_t n, int device);
bool release(Block *b); /* at once; false: it was damaged */
void check_red_zones();
size_t used(int device);
std::vector<Name> names_of(std::initializer_list<const void *> pointers);
bool names_alive(const Op &op); /* reports memory that is not alive */
void show_memory();             /* makes it accessible to device code; pairs with hide_memory */
void hide_memory();
bool first_queued_use(uint64_t block, std::string *what); /* finds a queued operation that uses it */

/* runner.cpp */

void forget_stream(void *fiber); /* in whose context grids ran */
struct Body; /* device.h */
void run_grid(const std::string &name, dim3 grid, dim3 block, size_t shared, const Body &thread);

} // namespace emu

struct CUstream_st {
    int device;
    unsigned flags;
    bool is_default, lane; /* a lane carries a branch of a graph */
    std::deque<emu::Op> queue;
    emu::MarkPtr last;
    bool busy, doomed;
    void *fiber; /* ThreadSanitizer's context of this stream */
    emu::CapturePtr capture;
    std::vector<int> tail; /* nodes of the capture that the next one follows */
};

struct CUevent_st {
    int device;
    emu::MarkPtr mark;
    emu::CapturePtr capture;
    std::vector<int> nodes;
};

#endif
