// collectives.cpp - operations between ranks. Each is queued on a stream. When it runs it publishes its data, checks
// that the other ranks call the same, and ends when all have arrived.
#include "comm.h"
#include <csignal>
#include <unistd.h>

namespace emu {

namespace {

struct Buffers {
    const void *in;
    void *out;
};

std::string rank_text(const Comm &c) {
    return "rank " + std::to_string(c.rank) + " of " + std::to_string(c.team->ranks());
}

void break_comm(Comm &c, const std::string &text) {
    c.state = ncclInvalidUsage;
    c.error = text;
    report(text, c.device);
}

// Finds a rank that calls something else, or one that will not call.
bool mismatched(Comm &c, const Signature &own, uint64_t number) {
    for (int r = 0; r < c.team->ranks(); r++) {
        Member &m = c.team->member(r);
        Arrival &a = m.arrivals[number % 2];
        std::string here = "collective " + std::to_string(number) + " of " + rank_text(c) + ", " + own.text();
        if (a.number == number + 1 && !(a.what == own)) {
            break_comm(c, here + ": rank " + std::to_string(r) + " called " + a.what.text());
            return true;
        }
        if (a.number != number + 1 && m.left && m.calls <= number && !settings().nccl_left_hangs) {
            break_comm(c, here + ": rank " + std::to_string(r) + " has left after " + std::to_string(m.calls) +
                              " collectives");
            return true;
        }
        if (a.number != number + 1 && m.process == getpid() && sticky(m.device) != cudaSuccess) {
            break_comm(c, here + ": rank " + std::to_string(r) + " is of device " + std::to_string(m.device) +
                              ", which cannot go on");
            return true;
        }
    }
    return false;
}

bool all_arrived(Comm &c, uint64_t number) {
    for (int r = 0; r < c.team->ranks(); r++)
        if (c.team->member(r).arrivals[number % 2].number != number + 1) return false;
    return true;
}

// Sums with a factor are compared only as such, because each rank has its own number and factor for them.
Signature agreed(Signature s) {
    if (s.op >= ncclNumOps) s.op = ncclNumOps;
    return s;
}

double factor_of(Comm &c, int op) {
    auto it = c.device_factors.find(op);
    if (it == c.device_factors.end()) return c.factors[op];
    note_read(it->second.first, bytes_of(it->second.second));
    float f;
    double d;
    if (it->second.second == ncclFloat64) return memcpy(&d, it->second.first, sizeof d), d;
    return memcpy(&f, it->second.first, sizeof f), static_cast<double>(f);
}

void give(Comm &c, const Signature &s, uint64_t number, const void *in) {
    auto type = static_cast<ncclDataType_t>(s.type);
    size_t n = elements_in(s, c.rank, c.team->ranks());
    char *slot = c.team->slot(c.rank, number);
    note_read(in, n * bytes_of(type));
    memcpy(slot, in, n * bytes_of(type));
    if (s.op >= ncclNumOps) multiply_by(slot, n, type, factor_of(c, s.op));
    Arrival &a = c.team->member(c.rank).arrivals[number % 2];
    a.what = agreed(s);
    order_release(&c.team->shared());
    a.number = number + 1;
    changed().notify_all();
}

struct Progress {
    bool given = false, over = false;
};

bool run_collective(Comm &c, const Signature &s, uint64_t number, Buffers b, Progress &p) {
    if (c.aborted || c.state != ncclSuccess) return true;
    if (c.completed != number) return false; // operations of one communicator run in sequence
    if (!p.given) give(c, s, number, b.in);
    p.given = true;
    order_acquire(&c.team->shared());
    if (mismatched(c, agreed(s), number)) return true;
    if (!all_arrived(c, number)) return false;
    note_write(b.out, elements_out(s, c.rank, c.team->ranks()) * bytes_of(static_cast<ncclDataType_t>(s.type)));
    combine(*c.team, agreed(s), number, c.rank, b.out);
    c.completed++;
    return true;
}

// Waits for an earlier collective of this rank, or for this one on the others.
std::vector<Key> missing_keys(Comm &c, uint64_t number) {
    if (c.completed < number) return {{c.team.get(), number - 1, c.rank}};
    std::vector<Key> keys;
    for (int r = 0; r < c.team->ranks(); r++)
        if (c.team->member(r).arrivals[number % 2].number != number + 1) keys.push_back({c.team.get(), number, r});
    return keys;
}

Part issue_collective(const CommPtr &c, const Signature &s, Buffers b) {
    uint64_t number = c->issued++;
    c->team->member(c->rank).calls = c->issued;
    auto progress = std::make_shared<Progress>();
    Part part;
    part.run = [=, token = c->token] { return run_collective(*c, s, number, b, *progress); };
    part.key = {c->team.get(), number, c->rank};
    part.needs = [=] { return missing_keys(*c, number); };
    part.why = [=] {
        return s.text() + ", collective " + std::to_string(number) + " of " + rank_text(*c) +
               ", not arrived:" + not_arrived(*c, number);
    };
    return part;
}

bool in_bounds(Comm &c, const void *p, size_t size, std::string *error) {
    if (!size || (p && is_pinned(p, size))) return true;
    Block *b = find_block(p);
    if (inside(p, size) && b->device == c.device) return true;
    *error = std::to_string(size) + " bytes are asked of " + describe(p, size);
    return false;
}

ncclResult_t check_call(Comm &c, const Signature &s, Buffers b, cudaStream_t stream) {
    ncclResult_t e = usable(c);
    if (e != ncclSuccess) return e;
    if (s.type < 0 || s.type >= ncclNumTypes || !bytes_of(static_cast<ncclDataType_t>(s.type)))
        return fail(&c, ncclInvalidArgument, "a type that is not known");
    bool own_op = s.op < ncclNumOps || c.factors.count(s.op) || c.device_factors.count(s.op);
    if (s.op < 0 || !own_op) return fail(&c, ncclInvalidArgument, "an operation that is not known");
    if (s.root >= c.team->ranks()) return fail(&c, ncclInvalidArgument, "root " + std::to_string(s.root));
    cudaStream_t on = stream_of(stream);
    if (!stream_alive(on) || on->device != c.device)
        return fail(&c, ncclInvalidUsage, "a stream that is not of the communicator's device");
    size_t size = bytes_of(static_cast<ncclDataType_t>(s.type));
    size_t in = elements_in(s, c.rank, c.team->ranks()) * size, out = elements_out(s, c.rank, c.team->ranks()) * size;
    if (in > Team::slot_size) return fail(&c, ncclInternalError, "more than the emulator carries at once");
    std::string wrong;
    if (in_bounds(c, b.in, in, &wrong) && in_bounds(c, b.out, out, &wrong)) return ncclSuccess;
    return fail(&c, ncclInvalidArgument, s.text() + ": " + wrong);
}

ncclResult_t collective(const char *name, ncclComm_t comm, cudaStream_t stream, Signature s, Buffers b) {
    Call call(name);
    if (!comm) return fail(nullptr, ncclInvalidArgument, "no communicator");
    if (call.refused(cudaErrorUnknown)) return fail(nullptr, ncclUnhandledCudaError, name);
    CommPtr c = comm->state;
    ncclResult_t e = check_call(*c, s, b, stream);
    if (e != ncclSuccess) return e;
    s = placed(*c, s, b.in, b.out);
    return submit({c, stream, std::string("nccl") + name_of(static_cast<Kind>(s.kind)), {b.in, b.out}, [=] {
                       return issue_collective(c, s, b);
                   }});
}

struct Letter {
    int peer;
    void *at;
    uint64_t count;
    int32_t type;
    size_t size() const { return count * bytes_of(static_cast<ncclDataType_t>(type)); }
    std::string text() const { return std::to_string(count) + " of type " + std::to_string(type); }
};

// Ends when the peer has received it, so that a missing receive is found.
bool run_send(Comm &c, const Letter &l, uint64_t number, Progress &p) {
    if (c.aborted || c.state != ncclSuccess) return true;
    Mailbox &m = c.team->shared().mail[c.rank][l.peer];
    if (!p.given) {
        if (m.posted != number || m.taken != number) return false;
        note_read(l.at, l.size());
        memcpy(c.team->letter(c.rank, l.peer), l.at, l.size());
        m.count = l.count;
        m.type = l.type;
        order_release(&m);
        m.posted = number + 1;
        p.given = true;
        changed().notify_all();
    }
    if (m.taken <= number) return false;
    order_acquire(&m);
    return true;
}

bool run_receive(Comm &c, const Letter &l, uint64_t number) {
    if (c.aborted || c.state != ncclSuccess) return true;
    Mailbox &m = c.team->shared().mail[l.peer][c.rank];
    if (m.posted != number + 1) return false;
    order_acquire(&m);
    if (m.count != l.count || m.type != l.type) {
        Letter other = l;
        other.count = m.count;
        other.type = m.type;
        break_comm(c, "Recv of " + rank_text(c) + ", " + l.text() + ": rank " + std::to_string(l.peer) + " sends " +
                          other.text());
        return true;
    }
    note_write(l.at, l.size());
    memcpy(l.at, c.team->letter(l.peer, c.rank), l.size());
    order_release(&m);
    m.taken = number + 1;
    changed().notify_all();
    return true;
}

Part issue_letter(const CommPtr &c, const Letter &l, bool send) {
    uint64_t number = send ? c->sent[l.peer]++ : c->received[l.peer]++;
    auto progress = std::make_shared<Progress>();
    Part part;
    part.run = [=, token = c->token] { return send ? run_send(*c, l, number, *progress) : run_receive(*c, l, number); };
    const Mailbox *m = send ? &c->team->shared().mail[c->rank][l.peer] : &c->team->shared().mail[l.peer][c->rank];
    part.key = {m, number, send};
    part.needs = [=] { return std::vector<Key>{{m, number, !send}}; };
    part.why = [=] {
        return std::string(send ? "Send to" : "Recv from") + " rank " + std::to_string(l.peer) + " by " + rank_text(*c);
    };
    return part;
}

ncclResult_t letter(const char *name, ncclComm_t comm, cudaStream_t stream, Letter l, bool send) {
    Call call(name);
    if (!comm) return fail(nullptr, ncclInvalidArgument, "no communicator");
    if (call.refused(cudaErrorUnknown)) return fail(nullptr, ncclUnhandledCudaError, name);
    CommPtr c = comm->state;
    ncclResult_t e = usable(*c);
    if (e != ncclSuccess) return e;
    std::string wrong;
    if (l.peer < 0 || l.peer >= c->team->ranks())
        return fail(c.get(), ncclInvalidArgument, "peer " + std::to_string(l.peer));
    if (l.type < 0 || l.type >= ncclNumTypes || (l.count && !l.size()) || l.size() > Team::letter_size)
        return fail(c.get(), ncclInvalidArgument, "a type or count that is not known");
    if (!in_bounds(*c, l.at, l.size(), &wrong))
        return fail(c.get(), ncclInvalidArgument, std::string(name) + ": " + wrong);
    return submit({c, stream, name, {l.at}, [=] { return issue_letter(c, l, send); }});
}

} // namespace

std::string not_arrived(Comm &c, uint64_t number) {
    std::string text;
    for (int r = 0; r < c.team->ranks(); r++) {
        Member &m = c.team->member(r);
        if (m.arrivals[number % 2].number == number + 1) continue;
        text += " " + std::to_string(r);
        if (m.process && kill(m.process, 0) != 0) text += " (its process has ended)";
    }
    return text;
}

} // namespace emu

using namespace emu;

#define NO_OP   ncclSum
#define NO_ROOT (-1)

extern "C" {

ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                           cudaStream_t s) {
    return collective(__func__, c, s, {all_reduce, t, op, NO_ROOT, n}, {in, out});
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                               cudaStream_t s) {
    return collective(__func__, c, s, {reduce_scatter, t, op, NO_ROOT, n}, {in, out});
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s) {
    return collective(__func__, c, s, {all_gather, t, NO_OP, NO_ROOT, n}, {in, out});
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                           cudaStream_t s) {
    return collective(__func__, c, s, {broadcast, t, NO_OP, root, n}, {in, out});
}

ncclResult_t ncclReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op, int root, ncclComm_t c,
                        cudaStream_t s) {
    return collective(__func__, c, s, {reduce, t, op, root, n}, {in, out});
}

ncclResult_t ncclAlltoAll(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s) {
    return collective(__func__, c, s, {all_to_all, t, NO_OP, NO_ROOT, n}, {in, out});
}

ncclResult_t ncclGather(const void *in, void *out, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t s) {
    return collective(__func__, c, s, {gather, t, NO_OP, root, n}, {in, out});
}

ncclResult_t ncclScatter(const void *in, void *out, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                         cudaStream_t s) {
    return collective(__func__, c, s, {scatter, t, NO_OP, root, n}, {in, out});
}

ncclResult_t ncclSend(const void *data, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
    return letter(__func__, c, s, {peer, const_cast<void *>(data), n, t}, true);
}

ncclResult_t ncclRecv(void *data, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
    return letter(__func__, c, s, {peer, data, n, t}, false);
}

} // extern "C"
