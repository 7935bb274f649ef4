// deadlock.cpp - finds operations that wait for each other. A stream's first operation waits for an operation that is
// queued after the first one of another stream, and so on in a circle: whatever the host does, none can go on. This
// finds ranks that call the operations of two communicators in two orders, at once.
#include "emulator.h"

namespace emu {

namespace {

using Waits = std::map<cudaStream_t, std::set<cudaStream_t>>;

// Streams in which an operation that others need is queued after the first one.
struct Holders {
    std::map<Key, cudaStream_t> keys;
    std::map<const Mark *, cudaStream_t> marks;
};

Holders find_holders() {
    Holders h;
    for (cudaStream_t s : all_streams())
        for (size_t i = 0; i < s->queue.size(); i++) {
            h.marks[s->queue[i].mark.get()] = s; // the first one has not ended yet either
            if (i == 0) continue;
            for (const Key &k : s->queue[i].keys) h.keys[k] = s;
        }
    return h;
}

Waits find_waits() {
    Holders h = find_holders();
    Waits waits;
    for (cudaStream_t s : all_streams()) {
        if (s->queue.empty() || s->busy) continue;
        const Op &op = s->queue.front();
        bool begun = true;
        for (const MarkPtr &m : op.after) {
            if (m->done) continue;
            begun = false;
            auto it = h.marks.find(m.get());
            if (it != h.marks.end()) waits[s].insert(it->second);
        }
        if (!begun || !op.needs) continue;
        for (const Key &k : op.needs()) {
            auto it = h.keys.find(k);
            if (it != h.keys.end()) waits[s].insert(it->second);
        }
    }
    return waits;
}

bool leads_to(const Waits &waits, cudaStream_t from, cudaStream_t to, std::set<cudaStream_t> *seen) {
    auto it = waits.find(from);
    if (it == waits.end()) return false;
    for (cudaStream_t next : it->second)
        if (next == to || (seen->insert(next).second && leads_to(waits, next, to, seen))) return true;
    return false;
}

} // namespace

void find_deadlock() {
    Waits waits = find_waits();
    std::vector<cudaStream_t> caught;
    for (auto &w : waits) {
        std::set<cudaStream_t> seen;
        if (leads_to(waits, w.first, w.first, &seen)) caught.push_back(w.first);
    }
    if (caught.empty()) return;
    std::string text = "operations wait for each other:";
    for (cudaStream_t s : caught) {
        const Op &op = s->queue.front();
        text += "\n  device " + std::to_string(s->device) + ": " + op.what + (op.why ? ", " + op.why() : "");
    }
    say(text);
    for (cudaStream_t s : caught) report("device " + std::to_string(s->device) + " cannot go on", s->device);
}

} // namespace emu
