/* comm.h - a communicator of the NCCL emulator, and the parts of a call that nccl.cpp and collectives.cpp share. */
#ifndef TG_CUDA_EMULATOR_COMM_H
#define TG_CUDA_EMULATOR_COMM_H

#include "team.h"

namespace emu {

/* Memory that all ranks have made known. */
struct Window {
    char *at;
    size_t size;
    uint32_t number; /* of the communicator's, from 1 on: the same on all ranks */
    bool symmetric;
};

/* What operations keep of a communicator, which may be gone before them. */
struct Comm {
    std::shared_ptr<Team> team;
    int rank, device;
    bool blocking, ready, aborted, finalizing;
    int polls; /* answers of ncclInProgress that are still to come */
    long outstanding() const { return token.use_count() - 1; }
    bool in_graphs() const { return recorded.use_count() > 1; }
    uint64_t issued, completed;
    std::shared_ptr<int> token = std::make_shared<int>(0); /* held by operations that have not ended */
    std::shared_ptr<int> recorded = std::make_shared<int>(0); /* held by graphs that have captured operations of it */
    uint32_t splits;
    std::map<int, uint64_t> sent, received; /* letters by peer */
    std::map<int, double> factors;          /* of operations made by ncclRedOpCreatePreMulSum */
    std::map<int, std::pair<const void *, ncclDataType_t>> device_factors;
    int next_op = ncclNumOps;
    ncclResult_t state = ncclSuccess; /* an error, once there is one */
    std::string error;
    std::vector<std::function<void()>> deferred; /* launches that wait for the host to poll */
    std::map<void *, Window> windows; /* by handle */
    uint32_t windows_begun;
    std::function<bool()> pending; /* whether the registration or split that is in progress has ended */
    std::function<bool()> join; /* sets the team of a communicator that was split off, when all have called */
};
using CommPtr = std::shared_ptr<Comm>;

/* One operation of a group: what a stream does for it. */
struct Part {
    std::function<bool()> run;
    std::function<std::string()> why;
    Key key;
    std::function<std::vector<Key>()> needs;
};

/* Makes the part afresh for each launch, of which a graph has many. */
struct Request {
    CommPtr comm;
    cudaStream_t stream;
    std::string what;
    std::vector<const void *> pointers;
    std::function<Part()> issue;
};

ncclResult_t fail(Comm *c, ncclResult_t result, const std::string &text);
ncclResult_t submit(Request r); /* now, or at the end of the group */
ncclResult_t usable(Comm &c);   /* an error where no operation may be called on it */
std::string not_arrived(Comm &c, uint64_t number);
/* c goes on with what CONDITION tells the end of. A communicator that does not block answers success at once: only its
 * state tells that it is busy. */
ncclResult_t go_on_until(Call &call, const CommPtr &c, std::function<bool()> condition);
void end_windows(Comm &c);
Signature placed(Comm &c, Signature s, const void *in, const void *out); /* with its places in windows */

} // namespace emu

struct ncclComm {
    emu::CommPtr state;
};

#endif
