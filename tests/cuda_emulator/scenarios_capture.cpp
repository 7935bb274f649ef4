// scenarios_capture.cpp - graphs by capture.
#include "scenarios.h"
#include "control.h"
#include "kernels.h"

namespace {

enum { n = 512 };

struct Rig {
    cudaStream_t a, b;
    cudaEvent_t forked, joined;
    float *x, *y;
};

bool make(Rig *r) {
    FINE(cudaStreamCreateWithFlags(&r->a, cudaStreamNonBlocking));
    FINE(cudaStreamCreateWithFlags(&r->b, cudaStreamNonBlocking));
    FINE(cudaEventCreateWithFlags(&r->forked, cudaEventDisableTiming));
    FINE(cudaEventCreateWithFlags(&r->joined, cudaEventDisableTiming));
    r->x = on_device(std::vector<float>(n, 1));
    r->y = on_device(std::vector<float>(n, 1));
    return r->x && r->y;
}

// y += x; then x *= 2 on another stream; then y += x.
bool record(const Rig &r, cudaGraph_t *graph) {
    FINE(cudaStreamBeginCapture(r.a, cudaStreamCaptureModeThreadLocal));
    FINE(k_axpy(1, r.x, r.y, n, r.a));
    FINE(cudaEventRecord(r.forked, r.a));
    FINE(cudaStreamWaitEvent(r.b, r.forked, 0));
    FINE(k_scale(r.x, 2, n, r.b));
    FINE(cudaEventRecord(r.joined, r.b));
    FINE(cudaStreamWaitEvent(r.a, r.joined, 0));
    FINE(k_axpy(1, r.x, r.y, n, r.a));
    cudaStreamCaptureStatus status;
    FINE(cudaStreamIsCapturing(r.b, &status));
    RIGHT(status == cudaStreamCaptureStatusActive);
    FINE(cudaStreamEndCapture(r.a, graph));
    FINE(cudaStreamIsCapturing(r.b, &status));
    RIGHT(status == cudaStreamCaptureStatusNone && emulator_queued() == 0);
    return true;
}

bool graphs() {
    Rig r;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t nodes = 0;
    RIGHT(make(&r) && record(r, &graph));
    FINE(cudaGraphGetNodes(graph, nullptr, &nodes));
    RIGHT(nodes == 3);
    FINE(cudaGraphInstantiate(&exec, graph, 0));
    FINE(cudaGraphDestroy(graph));
    RIGHT(on_host(r.y, n)[0] == 1); // nothing has run yet
    for (int i = 0; i < 3; i++) FINE(cudaGraphLaunch(exec, r.a));
    FINE(cudaStreamSynchronize(r.a));
    RIGHT(on_host(r.x, n)[n - 1] == 8 && on_host(r.y, n)[n - 1] == 1 + 3 + 6 + 12);
    FINE(cudaGraphExecDestroy(exec));
    RIGHT(emulator_live("graph") == 0);
    return true;
}

// Memory that a graph copies from is read at each replay.
bool graph_inputs() {
    Rig r;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    float in = 1;
    void *out = nullptr;
    RIGHT(make(&r));
    FINE(cudaMallocHost(&out, sizeof(float)));
    FINE(cudaStreamBeginCapture(r.a, cudaStreamCaptureModeGlobal));
    FINE(cudaMemcpyAsync(r.x, &in, sizeof in, cudaMemcpyHostToDevice, r.a));
    FINE(k_scale(r.x, 3, 1, r.a));
    FINE(cudaMemcpyAsync(out, r.x, sizeof in, cudaMemcpyDeviceToHost, r.a));
    FINE(cudaStreamEndCapture(r.a, &graph));
    FINE(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 1; i < 4; i++) {
        in = static_cast<float>(i);
        FINE(cudaGraphLaunch(exec, r.a));
        FINE(cudaStreamSynchronize(r.a));
        RIGHT(*static_cast<float *>(out) == static_cast<float>(3 * i));
    }
    return true;
}

bool broken_by(cudaError_t (*call)(const Rig &), cudaError_t expected, cudaError_t at_end) {
    Rig r;
    cudaGraph_t graph;
    RIGHT(make(&r));
    FINE(cudaStreamBeginCapture(r.a, cudaStreamCaptureModeThreadLocal));
    FINE(k_scale(r.x, 2, n, r.a));
    RIGHT(call(r) == expected);
    RIGHT(cudaStreamEndCapture(r.a, &graph) == at_end);
    cudaGetLastError();
    FINE(k_scale(r.x, 2, n, r.a));
    FINE(cudaStreamSynchronize(r.a));
    return true;
}

cudaError_t allocate(const Rig &) {
    void *p;
    return cudaMalloc(&p, 64);
}
cudaError_t synchronize(const Rig &r) { return cudaStreamSynchronize(r.a); }
cudaError_t synchronize_device(const Rig &) { return cudaDeviceSynchronize(); }
cudaError_t ask(const Rig &r) { return cudaStreamQuery(r.a); }
cudaError_t wait_for_outside(const Rig &r) {
    cudaError_t e = cudaEventRecord(r.joined, r.b);
    return e != cudaSuccess ? e : cudaStreamWaitEvent(r.a, r.joined, 0);
}
cudaError_t ask_captured_event(const Rig &r) {
    cudaError_t e = cudaEventRecord(r.joined, r.a);
    if (e != cudaSuccess) return e;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    e = cudaEventQuery(r.joined);
    cudaThreadExchangeStreamCaptureMode(&mode);
    return e;
}
cudaError_t fork_only(const Rig &r) {
    cudaError_t e = cudaEventRecord(r.forked, r.a);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(r.b, r.forked, 0);
    return e == cudaSuccess ? k_scale(r.x, 2, n, r.b) : e;
}
cudaError_t begin_again(const Rig &r) { return cudaStreamBeginCapture(r.a, cudaStreamCaptureModeGlobal); }

bool refusals() {
    const cudaError_t unsupported = cudaErrorStreamCaptureUnsupported, invalid = cudaErrorStreamCaptureInvalidated;
    return broken_by(allocate, unsupported, invalid) && broken_by(synchronize, unsupported, invalid) &&
           broken_by(synchronize_device, unsupported, invalid) && broken_by(ask, unsupported, invalid) &&
           broken_by(wait_for_outside, cudaErrorStreamCaptureIsolation, invalid) &&
           broken_by(ask_captured_event, cudaErrorCapturedEvent, cudaSuccess) &&
           broken_by(fork_only, cudaSuccess, cudaErrorStreamCaptureUnjoined) &&
           broken_by(begin_again, cudaErrorIllegalState, cudaSuccess);
}

bool graph_freed() {
    Rig r;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    RIGHT(make(&r) && record(r, &graph));
    FINE(cudaGraphInstantiate(&exec, graph, 0));
    FINE(cudaFree(r.x));
    FINE(cudaGraphLaunch(exec, r.a));
    return cudaStreamSynchronize(r.a) == cudaSuccess;
}

bool graph_input_early() {
    Rig r;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    void *in = nullptr;
    RIGHT(make(&r));
    FINE(cudaMallocHost(&in, sizeof(float)));
    FINE(cudaStreamBeginCapture(r.a, cudaStreamCaptureModeGlobal));
    FINE(cudaMemcpyAsync(r.x, in, sizeof(float), cudaMemcpyHostToDevice, r.a));
    FINE(cudaStreamEndCapture(r.a, &graph));
    FINE(cudaGraphInstantiate(&exec, graph, 0));
    *static_cast<float *>(in) = 1;
    FINE(cudaGraphLaunch(exec, r.a));
    *static_cast<float *>(in) = 2; // the launch has not been waited for
    FINE(cudaStreamSynchronize(r.a));
    RIGHT(on_host(r.x, 1)[0] == 1);
    return true;
}

} // namespace

const std::vector<Scenario> capture_scenarios = {
    {"graphs", graphs}, {"graph_inputs", graph_inputs}, {"refusals", refusals},
    {nullptr, nullptr}, {"graph_freed", graph_freed},   {"graph_input_early", graph_input_early},
};
