// scenarios_nccl.cpp - NCCL for ranks that are threads, and for ranks that are processes.
#include "scenarios.h"
#include "control.h"
#include "kernels.h"
#include <csignal>
#include <cstdlib>
#include <functional>
#include <nccl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

enum { ranks = 4, count = 1000 };

struct Rank {
    int rank;
    ncclComm_t comm;
    cudaStream_t stream;
};

bool begin(Rank *r, const ncclUniqueId &id) {
    FINE(cudaSetDevice(r->rank));
    FINE(ncclCommInitRank(&r->comm, ranks, id, r->rank));
    FINE(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    return true;
}

bool end(Rank *r) {
    FINE(cudaStreamSynchronize(r->stream));
    FINE(ncclCommDestroy(r->comm));
    return cudaStreamDestroy(r->stream) == cudaSuccess;
}

using Body = std::function<bool(Rank &)>;

bool as_threads(const Body &body) {
    ncclUniqueId id;
    FINE(ncclGetUniqueId(&id));
    bool good[ranks] = {};
    std::vector<std::thread> threads;
    for (int i = 0; i < ranks; i++)
        threads.emplace_back([&, i] {
            Rank r{i, nullptr, nullptr};
            good[i] = begin(&r, id) && body(r) && end(&r);
        });
    for (std::thread &t : threads) t.join();
    return good[0] && good[1] && good[2] && good[3];
}

// A process may end by a signal if the test expects it.
bool as_processes(const Body &body, int killed) {
    ncclUniqueId id;
    FINE(ncclGetUniqueId(&id));
    pid_t children[ranks];
    for (int i = 0; i < ranks; i++) {
        children[i] = fork();
        if (children[i]) continue;
        Rank r{i, nullptr, nullptr};
        _exit(!(begin(&r, id) && body(r) && (killed >= 0 || end(&r))));
    }
    bool good = true;
    for (int i = 0; i < ranks; i++) {
        int status = 0;
        waitpid(children[i], &status, 0);
        good = good && (i == killed ? WIFSIGNALED(status) : WIFEXITED(status) && !WEXITSTATUS(status));
    }
    return good;
}

template <class T> T *filled(size_t n, T value) { return on_device(std::vector<T>(n, value)); }

bool reductions(Rank &r) {
    float own = static_cast<float>(r.rank + 1);
    float *x = filled<float>(ranks * count, own), *y = unset_on_device<float>(ranks * count);
    FINE(ncclAllReduce(x, y, count, ncclFloat32, ncclSum, r.comm, r.stream));
    FINE(cudaStreamSynchronize(r.stream));
    RIGHT(on_host(y, count) == std::vector<float>(count, 10));
    FINE(ncclAllReduce(x, y, count, ncclFloat32, ncclMax, r.comm, r.stream));
    FINE(ncclReduceScatter(x, y + count, count, ncclFloat32, ncclAvg, r.comm, r.stream));
    FINE(ncclReduce(x, y + 2 * count, count, ncclFloat32, ncclProd, 2, r.comm, r.stream));
    FINE(ncclAllReduce(x, x, count, ncclFloat32, ncclMin, r.comm, r.stream));
    FINE(cudaStreamSynchronize(r.stream));
    std::vector<float> out = on_host(y, ranks * count);
    RIGHT(out[0] == 4 && out[count] == 2.5f && on_host(x, count)[5] == 1);
    RIGHT(r.rank == 2 ? out[2 * count] == 24 : out[2 * count] != out[2 * count]);
    int64_t *k = filled<int64_t>(3, (int64_t(1) << 40) + r.rank);
    double *d = filled<double>(3, 0.1);
    uint16_t *b = filled<uint16_t>(3, 0x3f80), *h = filled<uint16_t>(3, 0x3c00);
    FINE(ncclGroupStart());
    FINE(ncclAllReduce(k, k, 3, ncclInt64, ncclSum, r.comm, r.stream));
    FINE(ncclAllReduce(d, d, 3, ncclFloat64, ncclSum, r.comm, r.stream));
    FINE(ncclAllReduce(b, b, 3, ncclBfloat16, ncclSum, r.comm, r.stream));
    FINE(ncclAllReduce(h, h, 3, ncclFloat16, ncclSum, r.comm, r.stream));
    FINE(ncclGroupEnd());
    FINE(cudaStreamSynchronize(r.stream));
    RIGHT(on_host(k, 3)[2] == (int64_t(1) << 42) + 6 && on_host(d, 3)[1] == 0.1 + 0.1 + 0.1 + 0.1);
    RIGHT(on_host(b, 3)[0] == 0x4080 && on_host(h, 3)[0] == 0x4400);
    return true;
}

bool with_factors(Rank &r) {
    ncclRedOp_t op, from_device;
    float half = 0.5f, *x = filled<float>(8, 2), *y = unset_on_device<float>(8), *factor = filled<float>(1, 0.25f);
    FINE(ncclRedOpCreatePreMulSum(&op, &half, ncclFloat32, ncclScalarHostImmediate, r.comm));
    FINE(ncclRedOpCreatePreMulSum(&from_device, factor, ncclFloat32, ncclScalarDevice, r.comm));
    FINE(ncclAllReduce(x, y, 4, ncclFloat32, op, r.comm, r.stream));
    FINE(ncclAllReduce(x, y + 4, 4, ncclFloat32, from_device, r.comm, r.stream));
    FINE(ncclRedOpDestroy(op, r.comm));
    FINE(cudaStreamSynchronize(r.stream));
    RIGHT(on_host(y, 8) == std::vector<float>({4, 4, 4, 4, 2, 2, 2, 2}));
    return true;
}

bool exchanges(Rank &r) {
    std::vector<int> h(ranks * 2);
    for (size_t i = 0; i < h.size(); i++) h[i] = 100 * r.rank + static_cast<int>(i);
    int *x = on_device(h), *y = unset_on_device<int>(ranks * 2);
    FINE(ncclAllGather(x, y, 2, ncclInt32, r.comm, r.stream));
    FINE(cudaStreamSynchronize(r.stream));
    RIGHT(on_host(y, 8) == std::vector<int>({0, 1, 100, 101, 200, 201, 300, 301}));
    FINE(ncclAlltoAll(x, y, 2, ncclInt32, r.comm, r.stream));
    FINE(cudaStreamSynchronize(r.stream));
    std::vector<int> out = on_host(y, 8);
    for (int i = 0; i < ranks; i++) RIGHT(out[static_cast<size_t>(2 * i + 1)] == 100 * i + 2 * r.rank + 1);
    FINE(ncclScatter(x, y, 2, ncclInt32, 1, r.comm, r.stream));
    FINE(cudaStreamSynchronize(r.stream));
    RIGHT(on_host(y, 1)[0] == 100 + 2 * r.rank);
    FINE(ncclGather(x, y, 2, ncclInt32, 3, r.comm, r.stream));
    FINE(cudaStreamSynchronize(r.stream));
    RIGHT(r.rank != 3 || on_host(y, 8)[5] == 201);
    FINE(ncclBroadcast(x, y, 8, ncclInt32, 2, r.comm, r.stream));
    FINE(ncclGroupStart());
    FINE(ncclSend(x, 8, ncclInt32, (r.rank + 1) % ranks, r.comm, r.stream));
    FINE(ncclRecv(x, 8, ncclInt32, (r.rank + ranks - 1) % ranks, r.comm, r.stream));
    FINE(ncclGroupEnd());
    FINE(cudaStreamSynchronize(r.stream));
    RIGHT(on_host(y, 8)[7] == 207 && on_host(x, 8)[7] == 100 * ((r.rank + 3) % ranks) + 7);
    return true;
}

bool splits(Rank &r) {
    ncclComm_t pair = nullptr, none = nullptr;
    int size = 0, rank = -1, device = -1;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.splitShare = 1;
    FINE(ncclCommSplit(r.comm, r.rank % 2, -r.rank, &pair, &config)); // the last rank first
    FINE(ncclCommSplit(r.comm, NCCL_SPLIT_NOCOLOR, 0, &none, nullptr));
    RIGHT(!none);
    FINE(ncclCommCount(pair, &size));
    FINE(ncclCommUserRank(pair, &rank));
    FINE(ncclCommCuDevice(pair, &device));
    RIGHT(size == 2 && rank == 1 - r.rank / 2 && device == r.rank);
    float *x = filled<float>(4, static_cast<float>(r.rank));
    FINE(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, pair, r.stream));
    FINE(cudaStreamSynchronize(r.stream));
    RIGHT(on_host(x, 4)[0] == (r.rank % 2 ? 4 : 2));
    return ncclCommFinalize(pair) == ncclSuccess && ncclCommDestroy(pair) == ncclSuccess;
}

// An all-reduce between kernels on another stream, ordered by events, in a graph.
bool captured(Rank &r) {
    cudaStream_t compute;
    cudaEvent_t ready, done;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    float *x = filled<float>(count, 1), *y = filled<float>(count, 0);
    FINE(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    FINE(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    FINE(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    FINE(cudaStreamBeginCapture(compute, cudaStreamCaptureModeThreadLocal));
    FINE(k_scale(x, 2, count, compute));
    FINE(cudaEventRecord(ready, compute));
    FINE(cudaStreamWaitEvent(r.stream, ready, 0));
    FINE(ncclAllReduce(x, y, count, ncclFloat32, ncclSum, r.comm, r.stream));
    FINE(cudaEventRecord(done, r.stream));
    FINE(cudaStreamWaitEvent(compute, done, 0));
    FINE(k_scale(y, 10, count, compute));
    FINE(cudaStreamEndCapture(compute, &graph));
    FINE(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) FINE(cudaGraphLaunch(exec, compute));
    FINE(cudaStreamSynchronize(compute));
    RIGHT(on_host(y, count)[count - 1] == 8 * ranks * 10);
    FINE(cudaGraphExecDestroy(exec));
    return cudaGraphDestroy(graph) == cudaSuccess;
}

bool collectives() {
    return as_threads([](Rank &r) { return reductions(r) && exchanges(r) && with_factors(r) && splits(r); });
}
bool captured_collectives() { return as_threads(captured); }
bool process_ranks() {
    return as_processes([](Rank &r) { return reductions(r) && exchanges(r) && splits(r) && captured(r); }, -1);
}

ncclResult_t poll(ncclComm_t comm, int *answers) {
    ncclResult_t e = ncclInProgress;
    while (ncclCommGetAsyncError(comm, &e) == ncclSuccess && e == ncclInProgress) ++*answers;
    return e;
}

// Until the host polls, its operations are not in the stream.
bool polled_rank(const ncclUniqueId &id, int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm, half;
    cudaStream_t s;
    int answers = 0;
    FINE(cudaSetDevice(rank));
    FINE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    float *x = filled<float>(8, 1);
    RIGHT(ncclCommInitRankConfig(&comm, ranks, id, rank, &config) == ncclInProgress);
    RIGHT(ncclAllReduce(x, x, 8, ncclFloat32, ncclSum, comm, s) == ncclInvalidArgument);
    FINE(poll(comm, &answers));
    RIGHT(answers >= 3);
    answers = 0;
    RIGHT(ncclAllReduce(x, x, 8, ncclFloat32, ncclSum, comm, s) == ncclInProgress);
    FINE(poll(comm, &answers));
    RIGHT(answers == 3);
    FINE(cudaStreamSynchronize(s));
    RIGHT(on_host(x, 8)[0] == 4);
    FINE(ncclCommSplit(comm, rank / 2, rank, &half, nullptr)); // returns success although the parent is busy
    RIGHT(!half && ncclAllReduce(x, x, 8, ncclFloat32, ncclSum, comm, s) == ncclInvalidArgument);
    FINE(poll(comm, &answers));
    RIGHT(half);
    RIGHT(ncclCommFinalize(half) == ncclInProgress);
    FINE(poll(half, &answers));
    FINE(ncclCommDestroy(half));
    return ncclCommDestroy(comm) == ncclSuccess;
}

bool non_blocking() {
    setenv("TG_EMULATOR_NCCL_PROGRESS", "3", 1);
    ncclUniqueId id;
    FINE(ncclGetUniqueId(&id));
    bool good[ranks] = {};
    std::vector<std::thread> threads;
    for (int i = 0; i < ranks; i++) threads.emplace_back([&, i] { good[i] = polled_rank(id, i); });
    for (std::thread &t : threads) t.join();
    return good[0] && good[1] && good[2] && good[3];
}

bool one_thread() {
    ncclComm_t comms[2];
    ncclUniqueId id;
    float *x[2];
    FINE(ncclGetUniqueId(&id));
    FINE(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
        FINE(cudaSetDevice(i));
        FINE(ncclCommInitRank(&comms[i], 2, id, i));
    }
    FINE(ncclGroupEnd());
    FINE(ncclGroupStart());
    for (int i = 0; i < 2; i++) {
        FINE(cudaSetDevice(i));
        x[i] = filled<float>(4, static_cast<float>(i + 1));
        FINE(ncclGroupStart());
        FINE(ncclAllReduce(x[i], x[i], 4, ncclFloat32, ncclSum, comms[i], nullptr));
        FINE(ncclGroupEnd());
    }
    FINE(ncclGroupEnd());
    for (int i = 0; i < 2; i++) {
        FINE(cudaSetDevice(i));
        RIGHT(on_host(x[i], 4)[3] == 3);
        FINE(ncclCommDestroy(comms[i]));
    }
    RIGHT(emulator_live("nccl") == 0);
    return true;
}

bool registered_memory() {
    ncclUniqueId id;
    ncclComm_t comm;
    ncclWindow_t window;
    void *p = nullptr, *handle = nullptr, *other = nullptr;
    FINE(ncclGetUniqueId(&id));
    FINE(ncclCommInitRank(&comm, 1, id, 0));
    FINE(ncclMemAlloc(&p, 1 << 16));
    FINE(cudaMalloc(&other, 1 << 16));
    FINE(ncclCommRegister(comm, p, 1 << 16, &handle));
    FINE(ncclCommDeregister(comm, handle));
    FINE(ncclCommWindowRegister(comm, p, 1 << 16, &window, NCCL_WIN_COLL_SYMMETRIC));
    FINE(ncclCommWindowDeregister(comm, window));
    RIGHT(ncclCommWindowRegister(comm, other, 1 << 16, &window, NCCL_WIN_COLL_SYMMETRIC) == ncclInvalidArgument);
    FINE(ncclMemFree(p));
    RIGHT(ncclMemFree(other) == ncclInvalidArgument);
    return ncclCommDestroy(comm) == ncclSuccess;
}

// One rank dies. The others' operations remain until they abort.
bool killed_process() {
    return as_processes(
        [](Rank &r) {
            float *x = filled<float>(count, 1);
            cudaEvent_t e;
            if (r.rank == 2) raise(SIGKILL);
            FINE(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
            FINE(ncclAllReduce(x, x, count, ncclFloat32, ncclSum, r.comm, r.stream));
            FINE(cudaEventRecord(e, r.stream));
            for (int i = 0; i < 100; i++) RIGHT(cudaEventQuery(e) == cudaErrorNotReady);
            FINE(ncclCommAbort(r.comm));
            FINE(cudaEventSynchronize(e));
            return true;
        },
        2);
}

bool all_reduce(Rank &r, float *x, size_t n, ncclComm_t comm) {
    return ncclAllReduce(x, x, n, ncclFloat32, ncclSum, comm, r.stream) == ncclSuccess;
}

bool other_size() {
    return as_threads(
        [](Rank &r) { return all_reduce(r, filled<float>(count, 1), r.rank == 2 ? count / 2 : count, r.comm); });
}

bool other_kind() {
    return as_threads([](Rank &r) {
        float *x = filled<float>(count, 1);
        if (r.rank != 1) return all_reduce(r, x, count, r.comm);
        return ncclBroadcast(x, x, count, ncclFloat32, 0, r.comm, r.stream) == ncclSuccess;
    });
}

bool missing() {
    return as_threads([](Rank &r) { return r.rank == 3 || all_reduce(r, filled<float>(count, 1), count, r.comm); });
}

bool missing_process() {
    return as_processes(
        [](Rank &r) {
            if (r.rank == 3) raise(SIGKILL);
            emulator_timeout_ms(100);
            RIGHT(all_reduce(r, filled<float>(count, 1), count, r.comm));
            return cudaStreamSynchronize(r.stream) == cudaSuccess;
        },
        3);
}

// Of three ranks, rank 1 joins after rank 0 has begun to wait, and rank 2 never joins.
bool never_joined() {
    ncclUniqueId id;
    FINE(ncclGetUniqueId(&id));
    emulator_timeout_ms(500);
    bool good[2] = {};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; i++)
        threads.emplace_back([&, i] {
            ncclComm_t comm;
            if (i) usleep(100000);
            good[i] = cudaSetDevice(i) == cudaSuccess && ncclCommInitRank(&comm, 3, id, i) == ncclSuccess;
        });
    for (std::thread &t : threads) t.join();
    return good[0] && good[1];
}

// Two communicators that half of the ranks use in another order.
bool reordered() {
    return as_threads([](Rank &r) {
        ncclComm_t other;
        float *x = filled<float>(count, 1);
        FINE(ncclCommSplit(r.comm, 0, r.rank, &other, nullptr));
        ncclComm_t first = r.rank % 2 ? r.comm : other, second = r.rank % 2 ? other : r.comm;
        return all_reduce(r, x, count, first) && all_reduce(r, x, count, second) &&
               cudaStreamSynchronize(r.stream) == cudaSuccess;
    });
}

// An all-reduce that waits for rank 3, which never calls; another one of another communicator is queued after it on
// another stream.
bool after_one_that_hangs(Rank &r, ncclComm_t *other, cudaStream_t *later) {
    cudaEvent_t e;
    emulator_timeout_ms(500);
    FINE(ncclCommSplit(r.comm, 0, r.rank, other, nullptr));
    if (r.rank == 3) return true;
    FINE(cudaStreamCreateWithFlags(later, cudaStreamNonBlocking));
    FINE(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    RIGHT(all_reduce(r, filled<float>(count, 1), count, r.comm));
    FINE(cudaEventRecord(e, r.stream));
    FINE(cudaStreamWaitEvent(*later, e, 0));
    float *x = filled<float>(count, 1);
    return ncclAllReduce(x, x, count, ncclFloat32, ncclSum, *other, *later) == ncclSuccess;
}

bool abort_both(bool together) {
    return as_processes(
        [together](Rank &r) {
            ncclComm_t other = nullptr;
            cudaStream_t later = nullptr;
            RIGHT(after_one_that_hangs(r, &other, &later));
            if (together) FINE(ncclGroupStart());
            FINE(ncclCommAbort(other));
            FINE(ncclCommAbort(r.comm));
            if (together) FINE(ncclGroupEnd());
            return !later || cudaStreamSynchronize(later) == cudaSuccess;
        },
        ranks); // no rank is killed; the communicator was destroyed
}

bool aborted_together() { return abort_both(true); }
bool aborted_apart() { return abort_both(false); } // the first abort waits for a kernel that the second one ends

bool ended_with_graph() {
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t s;
    cudaGraph_t graph;
    float *x = filled<float>(8, 1);
    emulator_timeout_ms(500);
    FINE(ncclGetUniqueId(&id));
    FINE(ncclCommInitRank(&comm, 1, id, 0));
    FINE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    FINE(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    FINE(ncclAllReduce(x, x, 8, ncclFloat32, ncclSum, comm, s));
    FINE(cudaStreamEndCapture(s, &graph));
    return ncclCommDestroy(comm) == ncclSuccess;
}

// Each rank sends before it receives, without a group.
bool sends_first() {
    return as_threads([](Rank &r) {
        float *x = filled<float>(count, 1), *y = unset_on_device<float>(count);
        FINE(ncclSend(x, count, ncclFloat32, r.rank ^ 1, r.comm, r.stream));
        FINE(ncclRecv(y, count, ncclFloat32, r.rank ^ 1, r.comm, r.stream));
        return cudaStreamSynchronize(r.stream) == cudaSuccess;
    });
}

// The kernel that uses the sum does not wait for the stream that computes it.
bool sum_not_awaited() {
    return as_threads([](Rank &r) {
        float *x = filled<float>(count, 1);
        RIGHT(all_reduce(r, x, count, r.comm));
        FINE(k_scale(x, 10, count, nullptr));
        FINE(cudaStreamSynchronize(r.stream));
        RIGHT(on_host(x, 1)[0] == 40);
        return true;
    });
}

bool same_device() {
    ncclUniqueId id;
    ncclComm_t comms[2];
    FINE(ncclGetUniqueId(&id));
    FINE(ncclGroupStart());
    FINE(ncclCommInitRank(&comms[0], 2, id, 0));
    ncclResult_t e = ncclCommInitRank(&comms[1], 2, id, 1);
    printf("%s\n", ncclGetLastError(nullptr));
    return e == ncclSuccess;
}

bool buffer_too_small() {
    ncclUniqueId id;
    ncclComm_t comm;
    FINE(ncclGetUniqueId(&id));
    FINE(ncclCommInitRank(&comm, 1, id, 0));
    float *x = filled<float>(8, 1);
    ncclResult_t e = ncclAllReduce(x, x, 9, ncclFloat32, ncclSum, comm, nullptr);
    printf("%s\n", ncclGetLastError(comm));
    return e == ncclSuccess;
}

} // namespace

const std::vector<Scenario> nccl_scenarios = {
    {"collectives", collectives},
    {"captured_collectives", captured_collectives},
    {"process_ranks", process_ranks},
    {"non_blocking", non_blocking},
    {"one_thread", one_thread},
    {"registered_memory", registered_memory},
    {"killed_process", killed_process},
    {"aborted_together", aborted_together},
    {nullptr, nullptr},
    {"other_size", other_size},
    {"other_kind", other_kind},
    {"missing", missing},
    {"missing_process", missing_process},
    {"never_joined", never_joined},
    {"reordered", reordered},
    {"sends_first", sends_first},
    {"sum_not_awaited", sum_not_awaited},
    {"same_device", same_device},
    {"buffer_too_small", buffer_too_small},
    {"aborted_apart", aborted_apart},
    {"ended_with_graph", ended_with_graph},
};
