/* team.h - data that the ranks of an NCCL communicator share: a file in memory, whose name is in the unique id, so
 * that ranks may be threads or processes. A rank writes its data to its own slot and reads those of the others. Each
 * computes its own results in the order of ranks, so that all get the same bits. */
#ifndef TG_CUDA_EMULATOR_TEAM_H
#define TG_CUDA_EMULATOR_TEAM_H

#include "emulator.h"
#include <atomic>
#include <nccl.h>

namespace emu {

enum Kind { all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, gather, scatter, n_kinds };

/* A collective as one rank calls it: the parts on which all ranks must agree. */
struct Signature {
    int32_t kind, type, op, root;
    uint64_t count;
    int64_t in_at = 0, out_at = 0; /* offsets in windows, the same on all ranks; 0: in none */
    bool operator==(const Signature &o) const {
        return kind == o.kind && type == o.type && op == o.op && root == o.root && count == o.count &&
               in_at == o.in_at && out_at == o.out_at;
    }
    std::string text() const;
};

enum { max_ranks = 32, max_splits = 16, max_windows = 16 };

struct Arrival {
    std::atomic<uint64_t> number; /* 1 + the number of the collective whose data it has */
    Signature what;
};

struct Member {
    std::atomic<int32_t> process; /* 0: has not joined */
    int32_t device;
    std::atomic<uint32_t> left; /* the communicator was destroyed, and `calls` is final */
    std::atomic<uint64_t> calls;
    Arrival arrivals[2];
    struct {
        std::atomic<uint32_t> number;
        int32_t color, key;
    } splits[max_splits];
    struct {
        std::atomic<uint32_t> number;
        uint64_t size;
        int32_t flags;
    } windows[max_windows];
};

struct Mailbox {
    std::atomic<uint64_t> posted, taken;
    uint64_t count;
    int32_t type;
};

struct Header {
    std::atomic<uint32_t> joined;
    Member members[max_ranks];
    Mailbox mail[max_ranks][max_ranks];
};

class Team {
  public:
    /* Returns the team of this name, which ranks of this process share; NULL: it cannot be created. */
    static std::shared_ptr<Team> open(const std::string &name, int ranks);
    ~Team();

    int ranks() const { return ranks_; }
    const std::string &name() const { return name_; }
    Header &shared() { return *static_cast<Header *>(static_cast<void *>(map_)); }
    Member &member(int rank) { return shared().members[rank]; }
    bool complete() { return shared().joined == static_cast<uint32_t>(ranks_); }
    void close_name(); /* called when all have opened it */
    /* Returns the data of rank RANK for collective NUMBER; the last two are kept. */
    char *slot(int rank, uint64_t number);
    char *letter(int from, int to);

    static const size_t slot_size = static_cast<size_t>(256) << 20, letter_size = static_cast<size_t>(64) << 20;

  private:
    Team() = default;
    std::string name_;
    int ranks_ = 0;
    char *map_ = nullptr;
    size_t size_ = 0;
};

size_t bytes_of(ncclDataType_t type); /* 0: an unsupported type */
const char *name_of(Kind kind);

/* Numbers of elements that a rank sends and receives. */
size_t elements_in(const Signature &s, int rank, int ranks);
size_t elements_out(const Signature &s, int rank, int ranks);

/* Multiplies in place, in the arithmetic of the type. */
void multiply_by(void *data, size_t count, ncclDataType_t type, double factor);

/* Computes the result of rank RANK from all slots. */
void combine(Team &team, const Signature &s, uint64_t number, int rank, void *out);

} // namespace emu

#endif
