// capture.cpp - graphs by capture. Operations on capturing streams become nodes instead of being queued. A launch gives
// each stream of the capture a lane, in which its nodes run after the nodes that they depend on; the schedule chooses
// among lanes as among streams.
#include "emulator.h"

struct CUgraph_st {
    struct Node {
        emu::Op op;
        std::vector<int> after;
        int lane;
    };
    std::vector<Node> nodes;
    int lanes;
    int device;
};

struct CUgraphExec_st {
    CUgraph_st graph;
    std::vector<cudaStream_t> lanes;
    emu::MarkPtr last; /* launches of one graph run in sequence */
};

namespace emu {

struct Capture {
    cudaStream_t origin;
    cudaStreamCaptureMode mode;
    int owner; /* thread that began the capture */
    bool valid;
    CUgraph_st graph;
    std::vector<cudaStream_t> members;
    std::vector<bool> followed; /* nodes on which others depend */
};

namespace {

std::set<Capture *> captures;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

int thread_number() {
    static int threads;
    thread_local int own = threads++;
    return own;
}

int member(Capture &c, cudaStream_t s) {
    for (size_t i = 0; i < c.members.size(); i++)
        if (c.members[i] == s) return static_cast<int>(i);
    c.members.push_back(s);
    return static_cast<int>(c.members.size()) - 1;
}

void join(cudaStream_t s, const CapturePtr &c, const std::vector<int> &nodes) {
    s->capture = c;
    member(*c, s);
    std::set<int> tail(s->tail.begin(), s->tail.end());
    tail.insert(nodes.begin(), nodes.end());
    s->tail.assign(tail.begin(), tail.end());
}

void leave(Capture &c) {
    for (cudaStream_t s : c.members) {
        if (!all_streams().count(s)) continue;
        s->capture = nullptr;
        s->tail.clear();
    }
    captures.erase(&c);
}

// All work must be joined with the stream on which the capture began.
bool joined(Capture &c) {
    std::set<int> reached(c.origin->tail.begin(), c.origin->tail.end());
    for (int n = static_cast<int>(c.graph.nodes.size()) - 1; n >= 0; n--) {
        if (!reached.count(n)) return false;
        const auto &after = c.graph.nodes[static_cast<size_t>(n)].after;
        reached.insert(after.begin(), after.end());
    }
    return true;
}

cudaError_t end_capture(cudaStream_t s, cudaGraph_t *graph) {
    *graph = nullptr;
    CapturePtr c = s->capture;
    if (!c) return cudaErrorIllegalState;
    if (c->origin != s) return cudaErrorStreamCaptureUnmatched;
    if (c->mode != cudaStreamCaptureModeRelaxed && c->owner != thread_number())
        return cudaErrorStreamCaptureWrongThread;
    cudaError_t e = !c->valid     ? cudaErrorStreamCaptureInvalidated
                    : !joined(*c) ? cudaErrorStreamCaptureUnjoined
                                  : cudaSuccess;
    leave(*c);
    CUgraph_st recorded = std::move(c->graph); // events may keep the capture, but not its nodes
    if (e != cudaSuccess) return e;
    recorded.lanes = static_cast<int>(c->members.size());
    recorded.device = s->device;
    *graph = new CUgraph_st(std::move(recorded));
    count_live("graph", 1);
    return cudaSuccess;
}

cudaError_t launch(CUgraphExec_st &exec, cudaStream_t s) {
    Op begin;
    begin.what = "the beginning of a graph";
    begin.run = [] { return true; };
    std::vector<MarkPtr> before, all;
    if (exec.last) before.push_back(exec.last);
    MarkPtr first = enqueue(s, std::move(begin), before);
    for (const CUgraph_st::Node &n : exec.graph.nodes) {
        std::vector<MarkPtr> after{first};
        for (int k : n.after) after.push_back(all[static_cast<size_t>(k)]);
        all.push_back(enqueue(exec.lanes[static_cast<size_t>(n.lane)], n.op, after));
    }
    Op end;
    end.what = "the end of a graph";
    end.run = [] { return true; };
    exec.last = enqueue(s, std::move(end), all);
    run_some();
    return cudaSuccess;
}

} // namespace

bool capture_record(cudaStream_t s, Op &op, cudaError_t *error) {
    if (!s->capture) return false;
    Capture &c = *s->capture;
    *error = c.valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
    if (!c.valid) return true;
    int number = static_cast<int>(c.graph.nodes.size());
    c.graph.nodes.push_back({std::move(op), s->tail, member(c, s)});
    s->tail = {number};
    return true;
}

cudaError_t capture_refuses() {
    for (Capture *c : captures) {
        bool own = c->owner == thread_number();
        bool concerned = c->mode == cudaStreamCaptureModeGlobal || (c->mode == cudaStreamCaptureModeThreadLocal && own);
        if (!concerned || (thread_mode == cudaStreamCaptureModeRelaxed) ||
            (thread_mode == cudaStreamCaptureModeThreadLocal && !own))
            continue;
        c->valid = false;
        return cudaErrorStreamCaptureUnsupported;
    }
    return cudaSuccess;
}

cudaError_t capture_breaks(cudaStream_t s) {
    if (!s->capture) return capture_implicit(s);
    s->capture->valid = false;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t capture_implicit(cudaStream_t s) {
    if (!s->is_default) return cudaSuccess;
    for (Capture *c : captures)
        for (cudaStream_t m : c->members)
            if (m->device == s->device && !(m->flags & cudaStreamNonBlocking)) {
                c->valid = false;
                return cudaErrorStreamCaptureImplicit;
            }
    return cudaSuccess;
}

void capture_event(cudaEvent_t e, cudaStream_t s) {
    e->mark = nullptr;
    e->capture = s->capture;
    e->nodes = s->tail;
}

cudaError_t capture_wait(cudaStream_t s, cudaEvent_t e, bool *captured) {
    *captured = e->capture != nullptr;
    if (!e->capture) {
        if (!s->capture) return cudaSuccess;
        *captured = true;
        s->capture->valid = false;
        return cudaErrorStreamCaptureIsolation;
    }
    if (!captures.count(e->capture.get())) return cudaErrorCapturedEvent; // of a capture that has ended
    if (s->capture && s->capture != e->capture) {
        s->capture->valid = e->capture->valid = false;
        return cudaErrorStreamCaptureMerge;
    }
    join(s, e->capture, e->nodes);
    return cudaSuccess;
}

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
    Call c(__func__);
    if (c.refused(cudaErrorUnknown)) return c.error;
    if (!s || s == cudaStreamLegacy) return c.end(cudaErrorStreamCaptureUnsupported);
    if (!stream_alive(s)) return c.end(cudaErrorInvalidResourceHandle);
    if (s->capture) return c.end(cudaErrorIllegalState);
    auto capture = std::make_shared<Capture>();
    capture->origin = s;
    capture->mode = mode;
    capture->owner = thread_number();
    capture->valid = true;
    captures.insert(capture.get());
    join(s, capture, {});
    return c.end();
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    Call c(__func__);
    bool refused = c.refused(cudaErrorUnknown);
    if (!s || !stream_alive(s)) return c.end(cudaErrorInvalidResourceHandle);
    if (refused && s->capture) s->capture->valid = false;
    cudaError_t e = end_capture(s, graph);
    return refused ? c.error : c.end(e);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    Call c(__func__);
    if (c.refused(cudaErrorUnknown)) return c.error;
    cudaStream_t s = stream_of(stream);
    if (!stream_alive(s)) return c.end(cudaErrorInvalidResourceHandle);
    *status = !s->capture         ? cudaStreamCaptureStatusNone
              : s->capture->valid ? cudaStreamCaptureStatusActive
                                  : cudaStreamCaptureStatusInvalidated;
    return c.end();
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    Call c(__func__);
    if (c.refused(cudaErrorMemoryAllocation)) return c.error;
    *exec = new CUgraphExec_st{*graph, {}, nullptr};
    for (int i = 0; i < graph->lanes; i++)
        (*exec)->lanes.push_back(new_stream(graph->device, cudaStreamNonBlocking, true));
    count_live("graph", 1);
    return c.end();
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    Call c(__func__);
    if (c.refused(cudaErrorUnknown)) return c.error;
    cudaStream_t s = stream_of(stream);
    if (!stream_alive(s)) return c.end(cudaErrorInvalidResourceHandle);
    if (s->capture) return c.end(capture_breaks(s));
    cudaError_t e = capture_implicit(s);
    return c.end(e != cudaSuccess ? e : launch(*exec, s));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    Call c(__func__);
    if (nodes) return c.end(cudaErrorNotSupported); // returns only their number
    *count = graph->nodes.size();
    return c.end();
}

// An unfinished launch continues.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    Call c(__func__);
    bool refused = c.refused(cudaErrorUnknown);
    for (cudaStream_t s : exec->lanes) {
        s->doomed = true;
        if (s->queue.empty()) drop_stream(s);
    }
    delete exec;
    count_live("graph", -1);
    return refused ? c.error : c.end();
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    Call c(__func__);
    bool refused = c.refused(cudaErrorUnknown);
    delete graph;
    count_live("graph", -1);
    return refused ? c.error : c.end();
}

} // extern "C"
