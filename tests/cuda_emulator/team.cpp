// team.cpp - the file that ranks share, and the arithmetic of collectives on its data.
#include "team.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace emu {

namespace {

std::map<std::string, std::weak_ptr<Team>> teams;

const char *const kind_names[n_kinds] = {"AllReduce", "ReduceScatter", "AllGather", "Broadcast",
                                         "Reduce",    "AlltoAll",      "Gather",    "Scatter"};
const char *const type_names[ncclNumTypes] = {"int8",    "uint8",   "int32",   "uint32",   "int64", "uint64",
                                              "float16", "float32", "float64", "bfloat16", "e4m3",  "e5m2"};

size_t pages(size_t n) { return (n + 4095) / 4096 * 4096; }

// A type in memory, and the type of its sums.
template <class T> struct Plain {
    using Stored = T;
    using Sum = T;
    static Sum load(Stored x) { return x; }
    static Stored store(Sum x) { return x; }
};
struct Half {
    using Stored = __half;
    using Sum = float;
    static Sum load(Stored x) { return __half2float(x); }
    static Stored store(Sum x) { return __float2half(x); }
};
struct Bfloat {
    using Stored = __nv_bfloat16;
    using Sum = float;
    static Sum load(Stored x) { return __bfloat162float(x); }
    static Stored store(Sum x) { return __float2bfloat16(x); }
};

template <class F> void with_type(ncclDataType_t type, F f) {
    switch (type) {
    case ncclInt8:
        return f(Plain<int8_t>());
    case ncclUint8:
        return f(Plain<uint8_t>());
    case ncclInt32:
        return f(Plain<int32_t>());
    case ncclUint32:
        return f(Plain<uint32_t>());
    case ncclInt64:
        return f(Plain<int64_t>());
    case ncclUint64:
        return f(Plain<uint64_t>());
    case ncclFloat32:
        return f(Plain<float>());
    case ncclFloat64:
        return f(Plain<double>());
    case ncclFloat16:
        return f(Half());
    case ncclBfloat16:
        return f(Bfloat());
    default:
        return;
    }
}

template <class S> S joined(S a, S b, int op) {
    switch (op) {
    case ncclProd:
        return static_cast<S>(a * b);
    case ncclMax:
        return a > b ? a : b;
    case ncclMin:
        return a < b ? a : b;
    default:
        return static_cast<S>(a + b);
    }
}

template <class T> void reduce_as(Team &team, const Signature &s, uint64_t number, size_t first, void *out) {
    using Stored = typename T::Stored;
    using Sum = typename T::Sum;
    std::vector<Sum> sums(s.count);
    for (int r = 0; r < team.ranks(); r++) {
        auto *in = static_cast<const Stored *>(static_cast<void *>(team.slot(r, number))) + first;
        for (size_t i = 0; i < s.count; i++) sums[i] = r ? joined(sums[i], T::load(in[i]), s.op) : T::load(in[i]);
    }
    auto *to = static_cast<Stored *>(out);
    for (size_t i = 0; i < s.count; i++)
        to[i] = T::store(s.op == ncclAvg ? static_cast<Sum>(sums[i] / static_cast<Sum>(team.ranks())) : sums[i]);
}

} // namespace

static std::string place_text(const char *what, int64_t at) {
    if (!at) return "";
    return std::string(what) + " window " + std::to_string(at >> 40) + " at " +
           std::to_string(at & ((int64_t(1) << 40) - 1));
}

std::string Signature::text() const {
    std::string t =
        std::string(name_of(static_cast<Kind>(kind))) + "(" + std::to_string(count) + " of " + type_names[type];
    if (kind == all_reduce || kind == reduce_scatter || kind == reduce) t += ", op " + std::to_string(op);
    if (root >= 0) t += ", root " + std::to_string(root);
    t += place_text(", from", in_at) + place_text(", to", out_at);
    return t + ")";
}

const char *name_of(Kind kind) { return kind_names[kind]; }

size_t bytes_of(ncclDataType_t type) {
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        return 0;
    }
}

std::shared_ptr<Team> Team::open(const std::string &name, int ranks) {
    std::weak_ptr<Team> &known = teams[name];
    std::shared_ptr<Team> team = known.lock();
    if (team) return team->ranks_ == ranks ? team : nullptr;
    size_t n = static_cast<size_t>(ranks);
    size_t size = pages(sizeof(Header)) + 2 * n * slot_size + n * n * letter_size; // of which little is ever used
    int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return nullptr;
    void *map = MAP_FAILED;
    if (ftruncate(file, static_cast<off_t>(size)) == 0)
        map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (map == MAP_FAILED) return nullptr;
    team.reset(new Team);
    team->name_ = name;
    team->ranks_ = ranks;
    team->map_ = static_cast<char *>(map);
    team->size_ = size;
    known = team;
    return team;
}

Team::~Team() {
    if (!complete()) close_name();
    munmap(map_, size_);
    teams.erase(name_);
}

void Team::close_name() { unlink(name_.c_str()); }

char *Team::slot(int rank, uint64_t number) {
    size_t i = static_cast<size_t>(rank) * 2 + number % 2;
    return map_ + pages(sizeof(Header)) + i * slot_size;
}

char *Team::letter(int from, int to) {
    size_t n = static_cast<size_t>(ranks_), i = static_cast<size_t>(from) * n + static_cast<size_t>(to);
    return map_ + pages(sizeof(Header)) + 2 * n * slot_size + i * letter_size;
}

size_t elements_in(const Signature &s, int rank, int ranks) {
    size_t all = s.count * static_cast<size_t>(ranks);
    switch (s.kind) {
    case reduce_scatter:
    case all_to_all:
        return all;
    case broadcast:
        return rank == s.root ? s.count : 0;
    case scatter:
        return rank == s.root ? all : 0;
    default:
        return s.count;
    }
}

size_t elements_out(const Signature &s, int rank, int ranks) {
    size_t all = s.count * static_cast<size_t>(ranks);
    switch (s.kind) {
    case all_gather:
    case all_to_all:
        return all;
    case reduce:
        return rank == s.root ? s.count : 0;
    case gather:
        return rank == s.root ? all : 0;
    default:
        return s.count;
    }
}

void multiply_by(void *data, size_t count, ncclDataType_t type, double factor) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        auto *p = static_cast<typename T::Stored *>(data);
        auto by = static_cast<typename T::Sum>(factor);
        for (size_t i = 0; i < count; i++) p[i] = T::store(static_cast<typename T::Sum>(T::load(p[i]) * by));
    });
}

void combine(Team &team, const Signature &s, uint64_t number, int rank, void *out) {
    auto type = static_cast<ncclDataType_t>(s.type);
    size_t size = s.count * bytes_of(type), own = static_cast<size_t>(rank);
    auto *to = static_cast<char *>(out);
    switch (s.kind) {
    case all_reduce:
    case reduce:
    case reduce_scatter:
        if (!elements_out(s, rank, team.ranks())) return;
        with_type(type, [&](auto t) {
            reduce_as<decltype(t)>(team, s, number, s.kind == reduce_scatter ? own * s.count : 0, out);
        });
        return;
    case broadcast:
        memcpy(to, team.slot(s.root, number), size);
        return;
    case scatter:
        memcpy(to, team.slot(s.root, number) + own * size, size);
        return;
    case gather:
        if (rank != s.root) return;
        // fall through
    default:
        for (int r = 0; r < team.ranks(); r++)
            memcpy(to + static_cast<size_t>(r) * size, team.slot(r, number) + (s.kind == all_to_all ? own * size : 0),
                   size);
    }
}

} // namespace emu
