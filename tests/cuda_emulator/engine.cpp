// engine.cpp - streams are queues. Each CUDA call runs queued operations, as the schedule allows. Nothing runs between
// calls, so a seed repeats a run exactly.
#include "emulator.h"
#include "sanitizers.h"
#include <chrono>

namespace emu {

namespace {

std::set<cudaStream_t> streams;
std::map<int, cudaStream_t> default_streams;
thread_local bool in_host_function;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int selected_device;
int running_device;

using Clock = std::chrono::steady_clock;

bool on_stream; // in ThreadSanitizer's context of a stream

// In this context ThreadSanitizer ignores what the emulator does, also in functions of the C library. note_read and
// note_write report the reads and writes of an operation.
void ignore_accesses(bool on) {
    if (on) {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    } else {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
}

void *enter_stream(cudaStream_t s) {
    if (!under_tsan()) return nullptr;
    void *caller = __tsan_get_current_fiber();
    if (!s->fiber) s->fiber = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(s->fiber, no_order);
    ignore_accesses(true);
    on_stream = true;
    return caller;
}

void leave_stream(void *caller) {
    if (!under_tsan()) return;
    on_stream = false;
    ignore_accesses(false);
    __tsan_switch_to_fiber(caller, no_order);
}

bool can_begin(cudaStream_t s) {
    if (s->busy || s->queue.empty()) return false;
    for (const MarkPtr &m : s->queue.front().after)
        if (!m->done) return false;
    return true;
}

// Runs the operation as the stream: to ThreadSanitizer a stream is a thread, which only events order with others.
bool run_on_stream(cudaStream_t s, Op &op) {
    void *caller = enter_stream(s);
    order_acquire(op.mark.get()); // released by the thread that queued it
    for (const MarkPtr &m : op.after) order_acquire(m.get());
    if (op.host && under_tsan()) ignore_accesses(false);
    bool done = op.run();
    if (op.host && under_tsan()) ignore_accesses(true);
    if (done) {
        op.run = nullptr; // frees what it kept, as a part of the operation
        op.issue = nullptr;
        order_release(op.mark.get());
    }
    leave_stream(caller);
    return done;
}

bool run_host_function(cudaStream_t s, Op &op) {
    hide_memory();
    s->busy = true;
    mutex().unlock();
    in_host_function = true;
    bool done = run_on_stream(s, op);
    in_host_function = false;
    mutex().lock();
    s->busy = false;
    return done;
}

bool run_front(cudaStream_t s) {
    Op &op = s->queue.front();
    bool done = true;
    running_device = s->device;
    if (sticky(s->device) != cudaSuccess || !names_alive(op)) {
        op.run = nullptr;
    } else if (op.host) {
        done = run_host_function(s, op);
    } else if (op.run) {
        show_memory();
        done = run_on_stream(s, op);
    }
    if (!done) return false;
    op.mark->done = true;
    s->queue.pop_front();
    if (s->queue.empty() && s->doomed) drop_stream(s);
    changed().notify_all();
    return true;
}

std::string what_waits() {
    std::string text = "no stream can go on; waiting:";
    for (cudaStream_t s : streams) {
        if (s->queue.empty()) continue;
        const Op &op = s->queue.front();
        text += "\n  device " + std::to_string(s->device) + ": " + op.what;
        if (!can_begin(s)) text += " (after another stream)";
        if (op.why) text += " " + op.why();
    }
    return text;
}

// Work of the default stream is ordered after that of all blocking streams, and theirs after its.
void after_default(cudaStream_t s, std::vector<MarkPtr> *after) {
    if (s->lane) return;
    for (cudaStream_t o : streams) {
        if (o == s || o->device != s->device || o->lane || !o->last || (o->last->done && !under_tsan())) continue;
        bool ordered =
            s->is_default ? !(o->flags & cudaStreamNonBlocking) : o->is_default && !(s->flags & cudaStreamNonBlocking);
        if (ordered) after->push_back(o->last);
    }
}

} // namespace

std::mutex &mutex() {
    static std::mutex m; // constant-initialized, so no thread sees it half constructed
    return m;
}

std::condition_variable &changed() {
    static auto *c = new std::condition_variable;
    return *c;
}

void order_release(const void *what) {
    if (under_tsan()) __tsan_release(const_cast<void *>(what));
}

void order_acquire(const void *what) {
    if (under_tsan()) __tsan_acquire(const_cast<void *>(what));
}

void note_read(const void *p, size_t n) {
    if (!under_tsan() || !n) return;
    if (on_stream) ignore_accesses(false);
    __tsan_read_range(const_cast<void *>(p), n);
    if (on_stream) ignore_accesses(true);
}

void note_write(void *p, size_t n) {
    if (!under_tsan() || !n) return;
    if (on_stream) ignore_accesses(false);
    __tsan_write_range(p, n);
    if (on_stream) ignore_accesses(true);
}

int device_now() { return running_device; }
int current_device() { return selected_device; }
void set_last_error(cudaError_t e) { last_error = e; }
const std::set<cudaStream_t> &all_streams() { return streams; }
bool stream_alive(cudaStream_t s) { return streams.count(s) && !s->doomed; }

cudaStream_t new_stream(int device, unsigned flags, bool lane) {
    auto *s = new CUstream_st{};
    s->device = device;
    s->flags = flags;
    s->lane = lane;
    streams.insert(s);
    return s;
}

void drop_stream(cudaStream_t s) {
    streams.erase(s);
    forget_stream(s->fiber);
    if (s->fiber) __tsan_destroy_fiber(s->fiber);
    delete s;
}

cudaStream_t stream_of(cudaStream_t s) {
    if (s && s != cudaStreamLegacy && s != cudaStreamPerThread) return s;
    cudaStream_t &d = default_streams[selected_device];
    if (!d) {
        d = new_stream(selected_device, 0, false);
        d->is_default = true;
    }
    return d;
}

namespace {
void (*watcher)(int device, const void *stream, const char *what);
}

MarkPtr enqueue(cudaStream_t s, Op op, std::vector<MarkPtr> after) {
    if (watcher) watcher(s->device, s, op.what.c_str());
    op.device = s->device;
    op.mark = std::make_shared<Mark>();
    op.after = std::move(after);

    after_default(s, &op.after);
    if (op.issue) op.issue(op);
    order_release(op.mark.get());
    MarkPtr mark = s->last = op.mark;
    s->queue.push_back(std::move(op));
    return mark;
}

cudaError_t push(cudaStream_t s, Op op) {
    s = stream_of(s);
    if (!stream_alive(s)) return cudaErrorInvalidResourceHandle;
    cudaError_t e = capture_implicit(s);
    if (e != cudaSuccess || capture_record(s, op, &e)) return e;
    enqueue(s, std::move(op), {});
    run_some();
    return cudaSuccess;
}

bool step() {
    std::vector<cudaStream_t> all(streams.begin(), streams.end());
    unsigned n = static_cast<unsigned>(all.size());
    unsigned first = settings().schedule == Schedule::random ? draw(n) : 0;
    for (unsigned i = 0; i < n; i++) {
        cudaStream_t s = all[(i + first) % n];
        // A host function runs without the lock, so streams may be destroyed afterwards.
        if (streams.count(s) && can_begin(s) && run_front(s)) return true;
    }
    return false;
}

// A host that polls is waiting.
void run_asked() {
    if (settings().schedule == Schedule::lazy)
        step();
    else
        run_some();
}

void run_some() {
    Schedule how = settings().schedule;
    if (how == Schedule::eager)
        while (step()) continue;
    if (how != Schedule::random) return;
    for (unsigned n = draw(8) ? draw(2) : 8; n && step(); n--) continue;
}

cudaError_t wait(Lock &lock, const MarkPtr &mark, int device) {
    auto since = Clock::now();
    int idle = 0;
    while (mark && !mark->done && sticky(device) == cudaSuccess) {
        if (step()) {
            since = Clock::now();
            idle = 0;
            continue;
        }
        if (idle % 64 == 1) find_deadlock();
        hide_memory();
        // Ranks in other processes do not wake this one.
        changed().wait_for(lock, std::chrono::microseconds(++idle < 50 ? 20 : 1000));
        if (Clock::now() - since > std::chrono::milliseconds(settings().timeout_ms)) report(what_waits(), device);
    }
    if (mark) order_acquire(mark.get());
    show_memory();
    check_red_zones();
    return sticky(device);
}

cudaError_t wait_device(Lock &lock, int device) {
    std::vector<MarkPtr> marks;
    for (cudaStream_t s : streams)
        if (s->device == device && s->last) marks.push_back(s->last);
    cudaError_t e = cudaSuccess;
    for (const MarkPtr &m : marks)
        if ((e = wait(lock, m, device)) != cudaSuccess) return e;
    return sticky(device);
}

bool first_queued_use(uint64_t block, std::string *what) {
    for (cudaStream_t s : streams)
        for (const Op &op : s->queue)
            for (const Name &n : op.names)
                if (n.block == block) {
                    *what = op.what;
                    return true;
                }
    return false;
}

bool Call::refused(cudaError_t injected_error) {
    if (in_host_function)
        error = cudaErrorNotPermitted;
    else if (injected(name_))
        error = injected_error;
    else if (unsafe_ && (error = capture_refuses()) != cudaSuccess)
        ;
    else
        error = sticky(selected_device);
    if (error == cudaSuccess) return false;
    last_error = error;
    return true;
}

Call::~Call() { hide_memory(); }

cudaError_t Call::end(cudaError_t e) {
    if (e == cudaSuccess) e = sticky(selected_device);
    if (e != cudaSuccess && e != cudaErrorNotReady) last_error = e;
    return e;
}

} // namespace emu

extern "C" {

void emulator_watch(void (*saw)(int device, const void *stream, const char *what)) {
    emu::Lock lock(emu::mutex());
    emu::watcher = saw;
}

size_t emulator_queued(void) {
    emu::Lock lock(emu::mutex());
    size_t n = 0;
    for (cudaStream_t s : emu::streams) n += s->queue.size();
    return n;
}

cudaError_t cudaGetDeviceCount(int *count) {
    emu::Call c(__func__);
    if (c.refused(cudaErrorInitializationError)) return c.error;
    *count = emu::settings().devices;
    if (*count > 0) return c.end();
    return c.end(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
    emu::Call c(__func__);
    if (device < 0 || device >= emu::settings().devices) return c.end(cudaErrorInvalidDevice);
    emu::selected_device = device;
    return c.refused(cudaErrorDevicesUnavailable) ? c.error : c.end();
}

cudaError_t cudaGetDevice(int *device) {
    *device = emu::selected_device;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t e = emu::last_error;
    emu::last_error = cudaSuccess;
    return e;
}

} // extern "C"
