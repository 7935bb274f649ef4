// streams.cpp - the runtime's calls about streams, events and kernels.
#include "device.h"
#include "emulator.h"

namespace emu {

namespace {

std::map<std::pair<int, const void *>, size_t> dynamic_limits; // what cudaFuncSetAttribute allowed on each device
std::set<cudaEvent_t> events;
const size_t shared_default = 48 << 10, shared_most = 227 << 10;

// Returns how much dynamic shared memory the kernel may have on the current device.
size_t dynamic_limit(const void *kernel) {
    auto it = dynamic_limits.find({current_device(), kernel});
    return it == dynamic_limits.end() ? shared_default : it->second;
}

// Returns "" if a device accepts the configuration.
std::string wrong_launch(const Launch &l) {
    size_t threads = static_cast<size_t>(l.block.x) * l.block.y * l.block.z;
    if (!threads || threads > 1024 || l.block.z > 64) return "a block of " + std::to_string(threads) + " threads";
    if (!l.grid.x || !l.grid.y || !l.grid.z) return "an empty grid";
    if (l.grid.x > 0x7fffffff || l.grid.y > 65535 || l.grid.z > 65535) return "too large a grid";
    size_t limit = dynamic_limit(l.kernel);
    if (l.shared <= limit) return "";
    return std::to_string(l.shared) + " bytes of dynamic shared memory, " + std::to_string(limit) +
           " at most until cudaFuncSetAttribute allows more";
}

// Returns "" if the device can access all pointers of the kernel.
std::string wrong_pointer(const Launch &l, int device) {
    for (int i = 0; i < l.n_pointers; i++) {
        const void *p = l.pointers[i];
        if (!p || is_pinned(p, 1)) continue;
        Block *b = find_block(p);
        if (b && b->device == device) continue;
        std::string what = b ? "memory of device " + std::to_string(b->device) : describe(p, 1);
        return "pointer " + std::to_string(i + 1) + " of its arguments is to " + what;
    }
    return "";
}

std::string plain(std::string name) {
    bool wrapped = name.size() > 2 && name.front() == '(' && name.back() == ')';
    return wrapped ? name.substr(1, name.size() - 2) : name;
}

cudaError_t new_event(cudaEvent_t *e) {
    *e = new CUevent_st{};
    (*e)->device = current_device();
    events.insert(*e);
    count_live("event", 1);
    return cudaSuccess;
}

bool recorded(cudaEvent_t e) { return e->mark != nullptr; }

// A host that polls is waiting: queued work runs, also in a lazy schedule, or an impossible wait is reported.
cudaError_t still_running() {
    static unsigned asked;
    if (++asked % 64 == 0 && !step()) find_deadlock();
    return cudaErrorNotReady;
}

cudaError_t record(cudaEvent_t e, cudaStream_t stream) {
    cudaStream_t s = stream_of(stream);
    if (!events.count(e) || !stream_alive(s)) return cudaErrorInvalidResourceHandle;
    if (e->device != s->device) return cudaErrorInvalidResourceHandle;
    if (s->capture) {
        capture_event(e, s);
        return cudaSuccess;
    }
    e->capture = nullptr;
    e->nodes.clear();
    Op op;
    op.what = "an event";
    op.run = [] { return true; };
    cudaError_t refused = capture_implicit(s);
    if (refused != cudaSuccess) return refused;
    e->mark = enqueue(s, std::move(op), {});
    run_some();
    return cudaSuccess;
}

cudaError_t wait_event(cudaStream_t stream, cudaEvent_t e) {
    cudaStream_t s = stream_of(stream);
    if (!events.count(e) || !stream_alive(s)) return cudaErrorInvalidResourceHandle;
    bool captured = false;
    cudaError_t error = capture_wait(s, e, &captured);
    if (captured || error != cudaSuccess || !recorded(e)) return error;
    Op op;
    op.what = "a wait for an event";
    op.run = [] { return true; };
    enqueue(s, std::move(op), {e->mark});
    run_some();
    return cudaSuccess;
}

cudaError_t create_stream(const char *name, cudaStream_t *s, unsigned flags) {
    Call c(name);
    if (c.refused(cudaErrorMemoryAllocation)) return c.error;
    if (flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) return c.end(cudaErrorInvalidValue);
    *s = new_stream(current_device(), flags, false);
    count_live("stream", 1);
    return c.end();
}

} // namespace

void launch_kernel(const Launch &l, Body *body) {
    std::shared_ptr<Body> kept(body);
    Call c("a kernel's launch");
    if (c.refused(cudaErrorLaunchOutOfResources)) return;
    std::string wrong = wrong_launch(l), name = plain(l.name);
    if (!wrong.empty()) {
        say("kernel " + name + ": " + wrong);
        set_last_error(cudaErrorInvalidConfiguration);
        return;
    }
    cudaStream_t s = stream_of(l.stream);
    if (!stream_alive(s) || s->device != current_device()) {
        say("kernel " + name + ": its stream is of another device, or gone");
        set_last_error(cudaErrorInvalidResourceHandle);
        return;
    }
    wrong = wrong_pointer(l, s->device);
    if (!wrong.empty()) report("kernel " + name + ": " + wrong, s->device);
    Op op;
    const dim3 grid = l.grid, block = l.block;
    const size_t shared = l.shared;
    op.what = "kernel " + name;
    for (int i = 0; i < l.n_pointers; i++)
        for (const Name &n : names_of({l.pointers[i]})) op.names.push_back(n);
    // The operation is the last owner, and frees in the order of its stream, which is unrelated to this thread.
    op.run = [=, kept = std::move(kept)] { return run_grid(name, grid, block, shared, *kept), true; };
    c.end(push(s, std::move(op)));
}

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute what, int value) {
    Call c(__func__);
    if (c.refused(cudaErrorInvalidValue)) return c.error;
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize) return c.end();
    if (value < 0 || static_cast<size_t>(value) > shared_most) return c.end(cudaErrorInvalidValue);
    dynamic_limits[{current_device(), kernel}] = static_cast<size_t>(value);
    return c.end();
}

cudaError_t cudaStreamCreate(cudaStream_t *s) { return create_stream(__func__, s, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) { return create_stream(__func__, s, f); }

// Its work still runs, but the handle must not be used any more.
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    Call c(__func__);
    if (!stream_alive(s) || s->is_default) return c.end(cudaErrorInvalidResourceHandle);
    bool refused = c.refused(cudaErrorUnknown);
    s->doomed = true;
    count_live("stream", -1);
    if (s->queue.empty()) drop_stream(s);
    return refused ? c.error : c.end();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    Call c(__func__);
    if (c.refused(cudaErrorUnknown)) return c.error;
    cudaStream_t s = stream_of(stream);
    if (!stream_alive(s)) return c.end(cudaErrorInvalidResourceHandle);
    cudaError_t e = capture_breaks(s);
    return c.end(e != cudaSuccess ? e : wait(c.lock, s->last, s->device));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    Call c(__func__);
    if (c.refused(cudaErrorUnknown)) return c.error;
    cudaStream_t s = stream_of(stream);
    if (!stream_alive(s)) return c.end(cudaErrorInvalidResourceHandle);
    cudaError_t e = capture_breaks(s);
    if (e != cudaSuccess) return c.end(e);
    run_asked();
    if (s->last && !s->last->done) return c.end(still_running());
    if (s->last) order_acquire(s->last.get());
    return c.end();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument) {
    Call c(__func__);
    if (c.refused(cudaErrorUnknown)) return c.error;
    Op op;
    op.what = "a host function";
    op.host = true;
    op.run = [=] { return function(argument), true; };
    return c.end(push(stream, std::move(op)));
}

cudaError_t cudaDeviceSynchronize(void) {
    Call c(__func__, true);
    return c.refused(cudaErrorUnknown) ? c.error : c.end(wait_device(c.lock, current_device()));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) {
    Call c(__func__);
    return c.refused(cudaErrorMemoryAllocation) ? c.error : c.end(new_event(e));
}

cudaError_t cudaEventDestroy(cudaEvent_t e) {
    Call c(__func__);
    if (!events.erase(e)) return c.end(cudaErrorInvalidResourceHandle);
    bool refused = c.refused(cudaErrorUnknown);
    delete e;
    count_live("event", -1);
    return refused ? c.error : c.end();
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream) {
    Call c(__func__);
    return c.refused(cudaErrorUnknown) ? c.error : c.end(record(e, stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned) {
    Call c(__func__);
    return c.refused(cudaErrorUnknown) ? c.error : c.end(wait_event(stream, e));
}

cudaError_t cudaEventQuery(cudaEvent_t e) {
    Call c(__func__, true);
    if (c.refused(cudaErrorUnknown)) return c.error;
    if (!events.count(e)) return c.end(cudaErrorInvalidResourceHandle);
    if (e->capture) return c.end(cudaErrorCapturedEvent);
    run_asked();
    if (recorded(e) && !e->mark->done) return c.end(still_running());
    if (recorded(e)) order_acquire(e->mark.get());
    return c.end();
}

cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    Call c(__func__, true);
    if (c.refused(cudaErrorUnknown)) return c.error;
    if (!events.count(e)) return c.end(cudaErrorInvalidResourceHandle);
    if (e->capture) return c.end(cudaErrorCapturedEvent);
    return c.end(wait(c.lock, e->mark, e->device));
}

// Time is not simulated.

} // extern "C"
