// scenarios_windows.cpp - windows of NCCL, which all ranks of a communicator make together.
#include "scenarios.h"
#include "control.h"
#include <functional>
#include <nccl.h>
#include <thread>

namespace {

enum { ranks = 2, bytes = 1 << 16, count = 100 };

struct Rank {
    int rank;
    ncclComm_t comm;
    cudaStream_t stream;
    float *memory;
    ncclWindow_t window;
};

ncclResult_t settled(ncclComm_t comm, ncclResult_t r) {
    if (r == ncclSuccess) r = ncclInProgress; // which may follow success
    while (r == ncclInProgress)
        if (ncclCommGetAsyncError(comm, &r) != ncclSuccess) return ncclInternalError;
    return r;
}

bool begin(Rank *r, const ncclUniqueId &id, size_t size) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    void *p = nullptr;
    FINE(cudaSetDevice(r->rank));
    FINE(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    ncclResult_t begun = ncclCommInitRankConfig(&r->comm, ranks, id, r->rank, &config);
    FINE(settled(r->comm, begun));
    FINE(ncclMemAlloc(&p, bytes));
    r->memory = static_cast<float *>(p);
    ncclResult_t e = ncclCommWindowRegister(r->comm, p, size, &r->window, NCCL_WIN_COLL_SYMMETRIC);
    return settled(r->comm, e) == ncclSuccess;
}

bool end(Rank *r) {
    FINE(cudaStreamSynchronize(r->stream));
    FINE(ncclCommWindowDeregister(r->comm, r->window));
    FINE(ncclMemFree(r->memory));
    FINE(settled(r->comm, ncclCommFinalize(r->comm)));
    FINE(ncclCommDestroy(r->comm));
    return cudaStreamDestroy(r->stream) == cudaSuccess;
}

using Body = std::function<bool(Rank &)>;

bool on_ranks(const Body &body, size_t less_on_last) {
    ncclUniqueId id;
    FINE(ncclGetUniqueId(&id));
    bool good[ranks] = {};
    std::vector<std::thread> threads;
    for (int i = 0; i < ranks; i++)
        threads.emplace_back([&, i] {
            Rank r{i, nullptr, nullptr, nullptr, nullptr};
            good[i] = begin(&r, id, bytes - (i + 1 == ranks ? less_on_last : 0)) && body(r);
        });
    for (std::thread &t : threads) t.join();
    return good[0] && good[1];
}

bool sum(Rank &r, size_t in, size_t out) {
    float *x = r.memory + in, *y = r.memory + out;
    return settled(r.comm, ncclAllReduce(x, y, count, ncclFloat32, ncclSum, r.comm, r.stream)) == ncclSuccess;
}

bool fill(Rank &r) {
    std::vector<float> ones(bytes / sizeof(float), 1);
    return cudaMemcpy(r.memory, ones.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess;
}

// Also in place, where the offset of the input differs between ranks.
bool windows() {
    bool good = on_ranks(
        [](Rank &r) {
            float *all = r.memory + 4 * count, *own = all + static_cast<size_t>(r.rank) * count;
            RIGHT(fill(r) && sum(r, 0, count) && sum(r, 0, 0));
            FINE(settled(r.comm, ncclAllGather(own, all, count, ncclFloat32, r.comm, r.stream)));
            FINE(settled(r.comm, ncclReduceScatter(all, own, count, ncclFloat32, ncclSum, r.comm, r.stream)));
            FINE(cudaStreamSynchronize(r.stream));
            RIGHT(on_host(r.memory, 1)[0] == 2 && on_host(r.memory + count, 1)[0] == 2 && on_host(own, 1)[0] == 2);
            return end(&r);
        },
        0);
    RIGHT(emulator_live("nccl") == 0);
    return good;
}

bool window_sizes() {
    return on_ranks([](Rank &) { return true; }, 4096);
}

bool window_places() {
    return on_ranks(
        [](Rank &r) {
            size_t other = r.rank ? 8 : 0;
            return fill(r) && sum(r, other, count + other) && cudaStreamSynchronize(r.stream) == cudaSuccess;
        },
        0);
}

bool window_freed() {
    return on_ranks([](Rank &r) { return ncclMemFree(r.memory) == ncclSuccess; }, 0);
}

bool window_left() {
    return on_ranks([](Rank &r) { return ncclCommDestroy(r.comm) == ncclSuccess; }, 0);
}

} // namespace

const std::vector<Scenario> window_scenarios = {
    {"windows", windows},           {nullptr, nullptr},           {"window_sizes", window_sizes},
    {"window_places", window_places}, {"window_freed", window_freed}, {"window_left", window_left},
};
