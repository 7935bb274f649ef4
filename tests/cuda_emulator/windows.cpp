// windows.cpp - memory of NCCL: allocations, registrations, and windows, which all ranks of a communicator create
// together.
#include "comm.h"

namespace emu {

namespace {

std::map<void *, size_t> nccl_memory;
std::set<void *> registrations;
std::multiset<void *> window_memory;

ncclResult_t register_memory(Comm &c, void *p, size_t n, void **handle) {
    if (!inside(p, n)) return fail(&c, ncclInvalidArgument, "a registration of " + describe(p, n));
    const Block *b = find_block(p);
    if (b && b->device != c.device)
        return fail(&c, ncclInvalidArgument, "a registration of memory of another device");
    *handle = new char;
    registrations.insert(*handle);
    count_live("nccl", 1);
    return ncclSuccess;
}

ncclResult_t deregister_memory(Comm &c, void *handle) {
    if (!registrations.erase(handle)) return fail(&c, ncclInvalidArgument, "no registration");
    delete static_cast<char *>(handle);
    count_live("nccl", -1);
    return ncclSuccess;
}

// Returns whether all ranks have registered their part, with equal sizes.
bool have_registered(Comm &c, uint32_t number, size_t size, int flags) {
    for (int r = 0; r < c.team->ranks(); r++) {
        auto &w = c.team->member(r).windows[number % max_windows];
        if (w.number != number + 1) {
            if (c.team->member(r).left && !settings().nccl_left_hangs) {
                c.state = ncclInvalidUsage;
                c.error = "rank " + std::to_string(r) + " has left, and a window waits for it";
            }
            if (c.state == ncclSuccess) return false;
        } else if (w.size != size || w.flags != flags) {
            c.state = ncclInvalidUsage;
            c.error = "window " + std::to_string(number + 1) + " has " + std::to_string(size) + " bytes, and on rank " +
                      std::to_string(r) + " " + std::to_string(w.size) + (w.flags != flags ? ", with other flags" : "");
        }
        if (c.state == ncclSuccess) continue;
        report(c.error, c.device);
        return true;
    }
    return true;
}

// Returns the place of P in a symmetric window, its number and offset combined; 0: in none.
int64_t place_in(const Comm &c, const void *p) {
    for (const auto &entry : c.windows) {
        const Window &w = entry.second;
        const char *at = static_cast<const char *>(p);
        if (w.symmetric && at >= w.at && at < w.at + w.size)
            return static_cast<int64_t>(w.number) << 40 | static_cast<int64_t>(at - w.at);
    }
    return 0;
}

} // namespace

void end_windows(Comm &c) {
    for (auto &w : c.windows) {
        window_memory.erase(window_memory.find(w.second.at));
        deregister_memory(c, w.first);
    }
    c.windows.clear();
}

Signature placed(Comm &c, Signature s, const void *in, const void *out) {
    const char *from = static_cast<const char *>(in), *to = static_cast<const char *>(out);
    int64_t part = static_cast<int64_t>(s.count * bytes_of(static_cast<ncclDataType_t>(s.type))) * c.rank;
    if (s.kind != all_reduce && s.kind != all_gather && s.kind != reduce_scatter) return s;
    s.in_at = place_in(c, in);
    s.out_at = place_in(c, out);
    if (s.kind == all_gather && s.in_at && from == to + part) s.in_at -= part; // in place
    if (s.kind == reduce_scatter && s.out_at && to == from + part) s.out_at -= part;
    return s;
}

} // namespace emu

using namespace emu;

extern "C" {

ncclResult_t ncclMemAlloc(void **p, size_t n) {
    Call c(__func__, true);
    if (c.refused(cudaErrorMemoryAllocation) || allocate(p, n, current_device()) != cudaSuccess)
        return fail(nullptr, ncclUnhandledCudaError, "out of memory");
    nccl_memory[*p] = n;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *p) {
    {
        Lock lock(mutex());
        if (p && !nccl_memory.erase(p)) return fail(nullptr, ncclInvalidArgument, "memory that is not ncclMemAlloc's");
        if (p && window_memory.count(p)) report("memory is freed that is still a window", current_device());
    }
    return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *p, size_t n, void **handle) {
    Call c(__func__);
    if (c.refused(cudaErrorUnknown)) return ncclUnhandledCudaError;
    return register_memory(*comm->state, p, n, handle);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
    Call c(__func__);
    return deregister_memory(*comm->state, handle);
}

// Symmetric memory must come from ncclMemAlloc. A rank that does not block learns from the communicator's
// state that all have come.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *p, size_t n, ncclWindow_t *window, int flags) {
    Call c(__func__);
    CommPtr state = comm->state;
    *window = nullptr;
    if (c.refused(cudaErrorUnknown)) return ncclUnhandledCudaError;
    ncclResult_t e = usable(*state);
    if (e != ncclSuccess) return e;
    Block *b = find_block(p);
    if (!b || !nccl_memory.count(b->base))
        return fail(state.get(), ncclInvalidArgument, "a window in " + describe(p, n));
    void *handle = nullptr;
    e = register_memory(*state, p, n, &handle);
    if (e != ncclSuccess) return e;
    uint32_t number = state->windows_begun++;
    auto &own = state->team->member(state->rank).windows[number % max_windows];
    own.size = n;
    own.flags = flags;
    own.number = number + 1;
    changed().notify_all();
    *window = static_cast<ncclWindow_t>(handle);
    window_memory.insert(p);
    state->windows[handle] = {static_cast<char *>(p), n, number + 1, (flags & NCCL_WIN_COLL_SYMMETRIC) != 0};
    return go_on_until(c, state, [=, s = state.get()] { return have_registered(*s, number, n, flags); });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
    Call c(__func__);
    Comm &state = *comm->state;
    auto it = state.windows.find(window);
    if (it == state.windows.end()) return fail(&state, ncclInvalidArgument, "no window");
    window_memory.erase(window_memory.find(it->second.at));
    state.windows.erase(it);
    return deregister_memory(state, window);
}

} // extern "C"
