/* comm.h - a communicator of the NCCL emulator, and the parts of a call that nccl.cpp and collectives.cpp share. */
#ifndef TG_CUDA_EMULATOR_COMM_H
#define TG_CUDA_EMULATOR_COMM_H

#include "team.h"

namespace emu {

/* Memory that all ranks have registered. */
struct Window {
    char *at;
    size_t size;
    uint32_t number; /* number within the communicator, from 1 on, the same on all ranks */
    bool symmetric;
};

/* The part of a communicator that operations keep, because it may be destroyed before they run. */
struct Comm {
    std::shared_ptr<Team> team;
    int rank, device;
    bool blocking, ready, aborted, finalizing;
    int polls; /* remaining number of ncclInProgress answers */
    long outstanding() const { return token.use_count() - 1; }
    bool in_graphs() const { return recorded.use_count() > 1; }
    uint64_t issued, completed;
    std::shared_ptr<int> token = std::make_shared<int>(0); /* held by operations that have not ended */
    std::shared_ptr<int> recorded = std::make_shared<int>(0); /* held by graphs that have captured operations of it */
    uint32_t splits;
    std::map<int, uint64_t> sent, received; /* numbers of messages by peer */
    std::map<int, double> factors;          /* of operations made by ncclRedOpCreatePreMulSum */
    std::map<int, std::pair<const void *, ncclDataType_t>> device_factors;
    int next_op = ncclNumOps;
    ncclResult_t state = ncclSuccess; /* the first error, if any */
    std::string error;
    std::vector<std::function<void()>> deferred; /* launches that wait for the host to poll */
    std::map<void *, Window> windows; /* by handle */
    uint32_t windows_begun;
    std::function<bool()> pending; /* returns whether the current registration or split has ended */
    std::function<bool()> join; /* sets the team of a split communicator after all ranks have called */
};
using CommPtr = std::shared_ptr<Comm>;

/* One operation of a group, as a stream runs it. */
struct Part {
    std::function<bool()> run;
    std::function<std::string()> why;
    Key key;
    std::function<std::vector<Key>()> needs;
};

/* Makes the operation again for each launch; a graph has many launches. */
struct Request {
    CommPtr comm;
    cudaStream_t stream;
    std::string what;
    std::vector<const void *> pointers;
    std::function<Part()> issue;
};

ncclResult_t fail(Comm *c, ncclResult_t result, const std::string &text);
ncclResult_t submit(Request r); /* now, or at the end of the group */
ncclResult_t usable(Comm &c);   /* returns an error if no operation may be called on it */
std::string not_arrived(Comm &c, uint64_t number);
/* Continues c until CONDITION says that it has ended. A nonblocking communicator returns success at once, and only
 * its state says that it is busy. */
ncclResult_t go_on_until(Call &call, const CommPtr &c, std::function<bool()> condition);
void end_windows(Comm &c);
Signature placed(Comm &c, Signature s, const void *in, const void *out); /* adds the offsets in windows */

} // namespace emu

struct ncclComm {
    emu::CommPtr state;
};

#endif
