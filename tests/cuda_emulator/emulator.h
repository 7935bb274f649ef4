/* emulator.h - what the parts of the emulator share: the lock, calls, queues of operations, device memory, errors. All
 * functions here need the lock (class Call takes it) unless they say otherwise. */
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
unsigned draw(unsigned below); /* of the schedule's seed */

/* Whether the present call, of this name, is the one that is to fail. */
bool injected(const char *call);

/* Counts of handles that are there. */
void count_live(const char *kind, int by);

/* A line of text on stderr and in emulator_message. report also makes the device fail all further calls, as an illegal
 * access does; device -1: all devices. */
void say(const std::string &text);
void report(const std::string &text, int device);
cudaError_t sticky(int device);
void forget_errors();

/* engine.cpp */

using Lock = std::unique_lock<std::mutex>;
std::mutex &mutex();
std::condition_variable &changed();

/* The completion of one queued operation, for whatever waits for it. */
struct Mark {
    bool done = false;
};
using MarkPtr = std::shared_ptr<Mark>;

/* Device memory that an operation was given. */
struct Name {
    const void *at;
    uint64_t block; /* the number of its allocation */
};

/* What an operation between ranks does for others: its number in something that they share, and whose it is. */
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
    std::function<bool()> run;        /* false: not yet, try again */
    std::function<std::string()> why; /* what it still waits for */
    std::function<void(Op &)> issue;  /* sets what is new each time it is queued: graphs queue an operation often */
    std::vector<Key> keys;            /* what it does for others once its turn comes */
    std::function<std::vector<Key>()> needs; /* what others have not done yet for it */
    std::vector<Name> names;
    bool host = false; /* host code: runs without the lock, may not touch the device */
    int device = 0;
    MarkPtr mark;
    std::vector<MarkPtr> after;
};

struct Capture;
using CapturePtr = std::shared_ptr<Capture>;

cudaStream_t stream_of(cudaStream_t s); /* NULL and the named handles: the default stream of the device */
bool stream_alive(cudaStream_t s);
const std::set<cudaStream_t> &all_streams();
cudaStream_t new_stream(int device, unsigned flags, int priority, bool lane);
void drop_stream(cudaStream_t s); /* when its queue is empty */

/* Queues an operation, or records it where the stream is being captured. */
cudaError_t push(cudaStream_t s, Op op);
/* Queues it though (a replay does): after also what is given. */
MarkPtr enqueue(cudaStream_t s, Op op, std::vector<MarkPtr> after);
void run_some();      /* as the schedule says */
void run_asked();     /* the same, by a host that asks how far things are */
bool step();          /* runs one operation; false where none can go on */
void find_deadlock(); /* deadlock.cpp: reports operations that can never go on */
cudaError_t wait(Lock &lock, const MarkPtr &mark, int device);
cudaError_t wait_device(Lock &lock, int device);
bool inside_host_function();
int device_now(); /* of the running operation, for errors */

/* The memory order that ThreadSanitizer is told. */
void order_release(const void *what);
void order_acquire(const void *what);
/* An access by uninstrumented code, for it to check. */
void note_read(const void *p, size_t n);
void note_write(void *p, size_t n);

/* One call of the API: holds the lock. */
class Call {
  public:
    /* unsafe: such a call makes a capture invalid */
    explicit Call(const char *name, bool unsafe = false) : lock(mutex()), name_(name), unsafe_(unsafe) {}
    /* Whether the call must end at once, with `error` as its result: asked to fail (then with this error), made by a
     * host function, refused by a capture, or after a failure of the device. */
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
cudaError_t capture_refuses();                                   /* an unsafe call by this thread; makes it invalid */
cudaError_t capture_breaks(cudaStream_t s);                      /* a call that a capturing stream does not allow */
cudaError_t
capture_implicit(cudaStream_t s); /* use of the default stream while a stream that orders with it captures */
void capture_event(cudaEvent_t e, cudaStream_t s);
cudaError_t capture_wait(cudaStream_t s, cudaEvent_t e, bool *captured);

/* memory.cpp */

struct Block {
    char *base;
    size_t size, span; /* as asked for; with the red zone */
    int device;
    uint64_t number;
    bool dying; /* freed in the order of a stream, but not yet */
};
Block *find_block(const void *p);     /* that is alive, the end of it included */
bool in_heap(const void *p);          /* of any device, at any time; needs no lock */
bool inside(const void *p, size_t n); /* one live allocation holds all of it */
bool is_pinned(const void *p, size_t n);
std::string describe(const void *p, size_t n); /* where it lies, in words */
cudaError_t allocate(void **p, size_t n, int device);
bool release(Block *b); /* at once; false: was damaged */
void check_red_zones();
size_t used(int device);
std::vector<Name> names_of(std::initializer_list<const void *> pointers);
bool names_alive(const Op &op); /* else it is reported */
void show_memory();             /* to device code: pairs with hide_memory */
void hide_memory();
bool peers(int from, int to);
bool first_queued_use(uint64_t block, std::string *what); /* an operation that has not run and names it */

/* runner.cpp */

void forget_stream(void *fiber); /* in whose context grids ran */
struct Body; /* device.h */
void run_grid(const std::string &name, dim3 grid, dim3 block, size_t shared, const Body &thread);

} // namespace emu

struct CUstream_st {
    int device;
    unsigned flags;
    int priority;
    bool is_default, lane; /* a lane carries a branch of a graph */
    std::deque<emu::Op> queue;
    emu::MarkPtr last;
    bool busy, doomed;
    void *fiber; /* ThreadSanitizer's context of this stream */
    emu::CapturePtr capture;
    std::vector<int> tail; /* nodes of the capture that the next one follows */
};

struct CUevent_st {
    unsigned flags;
    int device;
    emu::MarkPtr mark;
    emu::CapturePtr capture;
    std::vector<int> nodes;
};

#endif
