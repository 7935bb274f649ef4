// nccl.cpp - creation, splits and destruction of communicators; groups; memory.
#include "comm.h"
#include <chrono>
#include <unistd.h>

namespace emu {

namespace {

thread_local std::string last_error;
thread_local int group_depth;
thread_local std::vector<Request> group;
thread_local std::vector<CommPtr> joining; // created in the group; waited for at its end
thread_local std::vector<CommPtr> leaving; // aborted in the group; waited for at its end

// what() says, after a timeout, what is still waited for.
template <class W, class F> ncclResult_t wait_until(Call &call, int device, W what, F condition) {
    auto since = std::chrono::steady_clock::now();
    while (!condition() && sticky(device) == cudaSuccess) {
        if (step()) continue;
        hide_memory();
        changed().wait_for(call.lock, std::chrono::microseconds(500));
        if (std::chrono::steady_clock::now() - since > std::chrono::milliseconds(settings().timeout_ms))
            report("nothing goes on: " + what(), device);
    }
    return sticky(device) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t refuse_rank(Comm &c, const std::string &why) {
    c.team->close_name(); // no rank can join any more
    return fail(&c, ncclInvalidUsage, why);
}

ncclResult_t enter(Comm &c, int rank) {
    Team &team = *c.team;
    int32_t none = 0;
    team.member(rank).device = c.device;
    if (!team.member(rank).process.compare_exchange_strong(none, getpid()))
        return refuse_rank(c, "rank " + std::to_string(rank) + " joins twice");
    for (int r = 0; r < team.ranks(); r++)
        if (r != rank && team.member(r).process == getpid() && team.member(r).device == c.device)
            return refuse_rank(c, "two ranks on device " + std::to_string(c.device));
    team.shared().joined++;
    changed().notify_all();
    return ncclSuccess;
}

// Returns whether all ranks have joined by now.
bool is_ready(Comm &c) {
    if (c.ready) return true;
    if (c.join && !c.join()) return false;
    c.join = nullptr;
    if (c.state != ncclSuccess || !c.team->complete()) return false;
    c.team->close_name();
    order_acquire(&c.team->shared());
    return c.ready = true;
}

std::string who_is_missing(Comm &c) {
    std::string text = "rank " + std::to_string(c.rank) + " waits for ranks to join:";
    for (int r = 0; c.team && r < c.team->ranks(); r++)
        if (!c.team->member(r).process) text += " " + std::to_string(r);
    return text;
}

bool is_over(Comm &c) {
    if (c.pending && !c.pending()) return false;
    c.pending = nullptr;
    return true;
}

ncclResult_t finish_joining(Call &call, const CommPtr &c) {
    if (!c->blocking) return ncclInProgress;
    ncclResult_t e = wait_until(
        call, c->device, [&] { return who_is_missing(*c); },
        [&] { return (is_ready(*c) && is_over(*c)) || c->state != ncclSuccess; });
    return c->state != ncclSuccess ? c->state : e;
}

bool configure(Comm &c, const ncclConfig_t *config, bool inherited) {
    c.blocking = inherited;
    if (!config) return true;
    if (config->magic != 0xcafebeef || config->size != sizeof *config) return false;
    if (config->blocking != NCCL_CONFIG_UNDEF_INT) c.blocking = config->blocking != 0;
    return true;
}

ncclResult_t begin(Call &call, const CommPtr &c, ncclComm_t *out) {
    c->polls = c->blocking ? 0 : settings().nccl_progress;
    *out = new ncclComm{c};
    count_live("nccl", 1);
    if (group_depth) {
        joining.push_back(c);
        return ncclSuccess;
    }
    ncclResult_t e = finish_joining(call, c);
    if (e == ncclSuccess || e == ncclInProgress) return e;
    delete *out;
    *out = nullptr;
    count_live("nccl", -1);
    return e;
}

ncclResult_t init_rank(Call &call, ncclComm_t *out, int ranks, const ncclUniqueId &id, int rank,
                       const ncclConfig_t *config) {
    *out = nullptr;
    if (ranks < 1 || ranks > max_ranks || rank < 0 || rank >= ranks)
        return fail(nullptr, ncclInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(ranks));
    auto c = std::make_shared<Comm>();
    if (!configure(*c, config, true)) return fail(nullptr, ncclInvalidArgument, "a config that was not initialized");
    c->rank = rank;
    c->device = current_device();
    std::string name(id.internal, strnlen(id.internal, sizeof id.internal));
    c->team = Team::open(name, ranks);
    if (!c->team) return fail(nullptr, ncclSystemError, "the ranks cannot meet at " + name);
    ncclResult_t e = enter(*c, rank);
    return e == ncclSuccess ? begin(call, c, out) : e;
}

// Returns whether all ranks have called the split, and the communicator has its team.
bool join_child(Comm &child, Comm &parent, uint32_t number, int color) {
    Team &team = *parent.team;
    auto own = team.member(parent.rank).splits[number % max_splits].key;
    int ranks = 0, rank = 0;
    for (int r = 0; r < team.ranks(); r++) {
        auto &s = team.member(r).splits[number % max_splits];
        if (s.number != number + 1) return false;
        if (s.color != color) continue;
        ranks++;
        rank += std::make_pair(s.key, r) < std::make_pair(own, parent.rank);
    }
    child.rank = rank;
    child.team = Team::open(team.name() + "." + std::to_string(number) + "." + std::to_string(color), ranks);
    if (!child.team) fail(&child, child.state = ncclSystemError, "the ranks of a split cannot meet");
    if (child.team) enter(child, rank);
    return child.team != nullptr;
}

// Returns whether the new communicator exists; only then the caller of the split gets it.
bool has_split(Comm &parent, const CommPtr &child, ncclComm_t *out) {
    bool ready = is_ready(*child);
    if (!ready && child->state == ncclSuccess) return false;
    parent.state = child->state;
    parent.error = child->error;
    if (!ready) return true;
    *out = new ncclComm{child};
    count_live("nccl", 1);
    return true;
}

// The parent is busy meanwhile.
ncclResult_t split(Call &call, const CommPtr &parent, int color, int key, ncclComm_t *out, const ncclConfig_t *config) {
    *out = nullptr;
    ncclResult_t e = usable(*parent);
    if (e != ncclSuccess) return e;
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return fail(parent.get(), ncclInvalidArgument, "a negative color");
    auto c = std::make_shared<Comm>();
    if (!configure(*c, config, parent->blocking))
        return fail(parent.get(), ncclInvalidArgument, "a config that was not initialized");
    uint32_t number = parent->splits++;
    auto &s = parent->team->member(parent->rank).splits[number % max_splits];
    s.color = color;
    s.key = key;
    s.number = number + 1;
    changed().notify_all();
    if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    c->device = parent->device;
    c->join = [child = c.get(), parent, number, color] { return join_child(*child, *parent, number, color); };
    return go_on_until(call, parent, [=, p = parent.get()] { return has_split(*p, c, out); });
}

struct Members {
    std::vector<Part> parts;
    std::vector<bool> over;
};

// All operations of a group on one stream proceed together.
void issue_group(const std::vector<Request> &requests, Op &op) {
    auto m = std::make_shared<Members>();
    for (const Request &r : requests) m->parts.push_back(r.issue());
    m->over.resize(requests.size());
    op.keys.clear();
    for (const Part &part : m->parts) op.keys.push_back(part.key);
    op.needs = [m] {
        std::vector<Key> all;
        for (size_t i = 0; i < m->parts.size(); i++) {
            if (m->over[i]) continue;
            std::vector<Key> some = m->parts[i].needs();
            all.insert(all.end(), some.begin(), some.end());
        }
        return all;
    };
    op.run = [m] {
        bool all = true;
        for (size_t i = 0; i < m->parts.size(); i++) {
            if (!m->over[i]) m->over[i] = m->parts[i].run();
            all = all && m->over[i];
        }
        return all;
    };
    op.why = [m] {
        std::string text;
        for (size_t i = 0; i < m->parts.size(); i++)
            if (!m->over[i]) text += (text.empty() ? "" : "; ") + m->parts[i].why();
        return text;
    };
}

ncclResult_t launch(const std::vector<Request> &requests) {
    Op op;
    for (const Request &r : requests) {
        op.what += (op.what.empty() ? "" : ", ") + r.what;
        for (const void *p : r.pointers)
            for (const Name &n : names_of({p})) op.names.push_back(n);
    }
    Comm &c = *requests[0].comm;
    cudaStream_t stream = requests[0].stream;
    if (stream->device != c.device) return fail(&c, ncclInvalidArgument, "a stream of another device");
    std::vector<std::shared_ptr<int>> recorded; // kept as long as a graph has the operation
    for (const Request &r : requests)
        if (stream->capture) recorded.push_back(r.comm->recorded);
    op.issue = [requests, recorded](Op &o) { issue_group(requests, o); };
    bool later = !c.blocking && settings().nccl_progress > 0;
    if (!later) return push(stream, std::move(op)) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
    c.deferred.push_back([stream, op] { push(stream, op); });
    for (const Request &r : requests) r.comm->polls = settings().nccl_progress;
    return ncclInProgress;
}

ncclResult_t launch_group(std::vector<Request> requests) {
    std::vector<std::pair<cudaStream_t, std::vector<Request>>> by_stream;
    for (Request &r : requests) {
        auto it = by_stream.begin();
        while (it != by_stream.end() && it->first != r.stream) ++it;
        if (it == by_stream.end()) it = by_stream.insert(it, {r.stream, {}});
        it->second.push_back(r);
    }
    ncclResult_t result = ncclSuccess;
    for (auto &s : by_stream) {
        ncclResult_t e = launch(s.second);
        if (e != ncclSuccess) result = e;
    }
    return result;
}

// Like the real call, it waits for kernels that have begun, and until all graphs with the communicator are destroyed.
void finish_leaving(Call &call, Comm &c) {
    wait_until(
        call, c.device,
        [&] {
            return std::string("an aborted communicator ") +
                   (c.in_graphs() ? "is known to a graph" : "has kernels that stay");
        },
        [&] { return !c.outstanding() && !c.in_graphs(); });
}

ncclResult_t end_group(Call &call) {
    if (group_depth < 1) return fail(nullptr, ncclInvalidUsage, "the end of a group that did not begin");
    if (--group_depth) return ncclSuccess;
    std::vector<Request> requests = std::move(group);
    std::vector<CommPtr> comms = std::move(joining), ends = std::move(leaving);
    group.clear();
    joining.clear();
    leaving.clear();
    ncclResult_t result = ncclSuccess;
    for (const CommPtr &c : ends) finish_leaving(call, *c);
    for (const CommPtr &c : comms) {
        ncclResult_t e = finish_joining(call, c);
        if (e != ncclSuccess) result = e;
    }
    ncclResult_t e = launch_group(std::move(requests));
    return e == ncclSuccess ? result : e;
}

void progress(Comm &c) {
    if (c.polls) c.polls--;
    if (c.polls) return;
    auto deferred = std::move(c.deferred);
    c.deferred.clear();
    for (auto &f : deferred) f();
}

ncclResult_t state_of(Comm &c) {
    run_asked();
    if (c.state != ncclSuccess) return c.state;
    if (sticky(c.device) != cudaSuccess) return ncclUnhandledCudaError;
    if (c.polls) {
        progress(c);
        return ncclInProgress;
    }
    if (!is_over(c)) return ncclInProgress;
    if (!is_ready(c)) return c.state != ncclSuccess ? c.state : ncclInProgress;
    if (c.state != ncclSuccess) return c.state;
    return c.finalizing && (c.outstanding() || c.in_graphs()) ? ncclInProgress : ncclSuccess;
}

ncclResult_t drain(Call &call, Comm &c) {
    return wait_until(
        call, c.device,
        [] { return std::string("the end of a communicator's operations, and of graphs that have them"); },
        [&] { return (!c.outstanding() && !c.in_graphs()) || c.aborted || c.state != ncclSuccess; });
}

void drop(ncclComm_t comm) {
    end_windows(*comm->state);
    comm->state->pending = nullptr; // which may keep it alive
    delete comm;
    count_live("nccl", -1);
}

template <class F> ncclResult_t ask(ncclComm_t comm, F f) {
    Lock lock(mutex());
    if (!comm || !comm->state->ready) return ncclInvalidArgument;
    f(*comm->state);
    return ncclSuccess;
}

ncclResult_t new_operation(ncclRedOp_t *op, void *scalar, ncclDataType_t type, bool on_device, Comm &c) {
    if (!bytes_of(type)) return fail(&c, ncclInvalidArgument, "a type that is not known");
    if (type != ncclFloat32 && type != ncclFloat64)
        return fail(&c, ncclInvalidArgument, "a factor of this type is not known to the emulator");
    int number = c.next_op++;
    *op = static_cast<ncclRedOp_t>(number);
    if (on_device) {
        if (!inside(scalar, bytes_of(type))) return fail(&c, ncclInvalidArgument, "a factor in " + describe(scalar, 1));
        c.device_factors[number] = {scalar, type};
    } else {
        c.factors[number] =
            type == ncclFloat64 ? *static_cast<double *>(scalar) : static_cast<double>(*static_cast<float *>(scalar));
    }
    return ncclSuccess;
}

} // namespace

ncclResult_t fail(Comm *c, ncclResult_t result, const std::string &text) {
    last_error = text;
    if (c) c->error = text;
    return result;
}

ncclResult_t usable(Comm &c) {
    if (c.aborted || c.finalizing) return fail(&c, ncclInvalidUsage, "a communicator that was aborted or finalised");
    if (c.state != ncclSuccess) return c.state;
    bool waits = !c.ready || c.pending || (c.polls && !group_depth);
    return waits ? fail(&c, ncclInvalidArgument, "a communicator is used before its previous operation succeeded")
                 : ncclSuccess;
}

ncclResult_t go_on_until(Call &call, const CommPtr &c, std::function<bool()> condition) {
    c->pending = std::move(condition);
    c->polls = c->blocking ? 0 : settings().nccl_progress;
    if (!c->blocking) return ncclSuccess;
    if (group_depth) {
        joining.push_back(c);
        return ncclSuccess;
    }
    ncclResult_t e = wait_until(
        call, c->device, [] { return std::string("ranks that have not called a split or registered a window"); },
        [&] { return is_over(*c); });
    return c->state != ncclSuccess ? c->state : e;
}

ncclResult_t submit(Request r) {
    r.stream = stream_of(r.stream); // the default stream of the current device
    if (!group_depth) return launch({std::move(r)});
    group.push_back(std::move(r));
    return ncclSuccess;
}

} // namespace emu

using namespace emu;

extern "C" {

const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error";
    case ncclSystemError:
        return "unhandled system error";
    case ncclInternalError:
        return "internal error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t comm) {
    if (comm && !comm->state->error.empty()) return comm->state->error.c_str();
    return last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    Call c(__func__);
    if (c.refused(cudaErrorUnknown)) return fail(nullptr, ncclSystemError, "no unique id");
    static int made;
    long now = std::chrono::steady_clock::now().time_since_epoch().count();
    std::string name = settings().nccl_dir + "/cuda-emulator-" + std::to_string(getpid()) + "-" +
                       std::to_string(made++) + "-" + std::to_string(now);
    memset(id, 0, sizeof *id);
    if (name.size() >= sizeof id->internal) return fail(nullptr, ncclSystemError, "too long a name: " + name);
    memcpy(id->internal, name.c_str(), name.size());
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    Call c(__func__, true);
    if (c.refused(cudaErrorUnknown)) return fail(nullptr, ncclUnhandledCudaError, "no communicator");
    return init_rank(c, comm, ranks, id, rank, config);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
    Call c(__func__, true);
    if (c.refused(cudaErrorUnknown)) return fail(nullptr, ncclUnhandledCudaError, "no communicator");
    return init_rank(c, comm, ranks, id, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    Call c(__func__, true);
    if (!comm) return fail(nullptr, ncclInvalidArgument, "no communicator");
    if (c.refused(cudaErrorUnknown)) return fail(nullptr, ncclUnhandledCudaError, "no communicator");
    return split(c, comm->state, color, key, out, config);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    Call c(__func__);
    if (!comm) return fail(nullptr, ncclInvalidArgument, "no communicator");
    bool refused = c.refused(cudaErrorUnknown);
    Comm &state = *comm->state;
    if (state.finalizing || state.aborted) return fail(&state, ncclInvalidArgument, "a communicator ends twice");
    state.finalizing = true;
    state.polls = state.blocking ? 0 : settings().nccl_progress;
    if (refused) return ncclUnhandledCudaError;
    return state.blocking ? drain(c, state) : ncclInProgress;
}

// Like the real call, it first waits for its operations; the others then see that this rank has left.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    Call c(__func__);
    if (!comm) return ncclSuccess;
    bool refused = c.refused(cudaErrorUnknown);
    CommPtr state = comm->state;
    ncclResult_t e = drain(c, *state);
    if (!state->windows.empty()) report("a communicator is destroyed that still has windows", state->device);
    if (state->team && !state->aborted) state->team->member(state->rank).left = 1;
    drop(comm);
    return refused ? ncclUnhandledCudaError : e;
}

// Its operations end without results; those of other ranks continue to wait. In a group all are marked before any is
// waited for.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    Call c(__func__);
    if (!comm) return ncclSuccess;
    bool refused = c.refused(cudaErrorUnknown);
    CommPtr state = comm->state;
    state->aborted = true;
    state->deferred.clear(); // which keep the communicator alive
    drop(comm);
    changed().notify_all();
    run_some();
    if (group_depth)
        leaving.push_back(state);
    else
        finish_leaving(c, *state);
    return refused ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result) {
    Call c(__func__);
    if (!comm) return fail(nullptr, ncclInvalidArgument, "no communicator");
    if (c.refused(cudaErrorUnknown)) return ncclUnhandledCudaError;
    *result = state_of(*comm->state);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
    return ask(comm, [=](Comm &c) { *count = c.team->ranks(); });
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    return ask(comm, [=](Comm &c) { *rank = c.rank; });
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    return ask(comm, [=](Comm &c) { *device = c.device; });
}

ncclResult_t ncclGroupStart(void) {
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    Call c(__func__);
    bool refused = c.refused(cudaErrorUnknown);
    if (refused && group_depth == 1) {
        group.clear();
        joining.clear();
        leaving.clear();
    }
    ncclResult_t e = end_group(c);
    return refused ? fail(nullptr, ncclUnhandledCudaError, "the group failed") : e;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t where,
                                      ncclComm_t comm) {
    Call c(__func__);
    if (c.refused(cudaErrorUnknown)) return ncclUnhandledCudaError;
    return new_operation(op, scalar, type, where == ncclScalarDevice, *comm->state);
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    Call c(__func__);
    Comm &state = *comm->state;
    // Operations that use it may not have run yet, so its number is not reused.
    bool known = state.factors.count(op) || state.device_factors.count(op);
    return known ? ncclSuccess : fail(&state, ncclInvalidArgument, "an operation that is not known");
}

} // extern "C"
