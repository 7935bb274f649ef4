/* Translates each call of the transport (tg_transfer) into calls of NCCL. */
#include "comm/nccl/nccl.h"

/* One collective in NCCL's types. */
typedef struct operation {
    tg_nccl_group *g;
    const tg_transfer *t;
    ncclDataType_t type;
    ncclRedOp_t op;
    size_t size; /* of an element */
    const char *src;
    char *dst;
} operation;

/* Integers of 16 bits, which NCCL lacks, are only moved, as elements of two bytes. */
static ncclDataType_t type_of(tg_dtype d) {
    switch (d) {
    case TG_F32: return ncclFloat32;
    case TG_F64: return ncclFloat64;
    case TG_BF16: return ncclBfloat16;
    case TG_F16: return ncclFloat16;
    case TG_I64: return ncclInt64;
    case TG_I32: return ncclInt32;
    case TG_I8: return ncclInt8;
    case TG_U32: return ncclUint32;
    case TG_U64: return ncclUint64;
    case TG_I16:
    case TG_U16: return ncclFloat16;
    default: return ncclUint8;
    }
}

static ncclRedOp_t op_of(tg_reduce_op op, tg_dtype d) {
    if (op == TG_REDUCE_MAX || (op == TG_REDUCE_SUM && d == TG_BOOL)) return ncclMax;
    return op == TG_REDUCE_MIN ? ncclMin : op == TG_REDUCE_AVG ? ncclAvg : ncclSum;
}

/* Returns the number of elements to or from rank r: counts[r], or `equal` if counts is NULL. */
static int64_t count_of(const int64_t *counts, int64_t equal, int r) { return counts ? counts[r] : equal; }

/* Returns the offset in bytes of rank r's part. counts NULL: all parts have the call's count. */
static size_t begin_of(const operation *o, const int64_t *counts, int r) {
    int64_t sum = counts ? 0 : o->t->count * r;
    for (int i = 0; counts && i < r; i++) sum += counts[i];
    return (size_t)sum * o->size;
}

/* Returns from the function if a call of NCCL fails. */
#define TRY_NCCL(call)                                            \
    do {                                                          \
        ncclResult_t r_ = (call);                                 \
        if (r_ != ncclSuccess && r_ != ncclInProgress) return r_; \
    } while (0)

static ncclResult_t send(const operation *o, const char *data, int64_t n, int to) {
    return n ? ncclSend(data, (size_t)n, o->type, to, o->g->comm, o->g->stream) : ncclSuccess;
}

static ncclResult_t recv(const operation *o, char *data, int64_t n, int from) {
    return n ? ncclRecv(data, (size_t)n, o->type, from, o->g->comm, o->g->stream) : ncclSuccess;
}

static ncclResult_t all_gather(const operation *o) {
    const int64_t *counts = o->t->recv;
    for (int r = 0; counts && r < o->g->control.size; r++) {
        char *part = o->dst + begin_of(o, counts, r);
        if (counts[r])
            TRY_NCCL(ncclBroadcast(r == o->g->control.rank ? o->src : part, part, (size_t)counts[r], o->type, r,
                                   o->g->comm, o->g->stream));
    }
    if (counts || !o->t->count) return ncclSuccess;
    return ncclAllGather(o->src, o->dst, (size_t)o->t->count, o->type, o->g->comm, o->g->stream);
}

static ncclResult_t reduce_scatter(const operation *o) {
    const int64_t *counts = o->t->send;
    for (int r = 0; counts && r < o->g->control.size; r++)
        if (counts[r])
            TRY_NCCL(ncclReduce(o->src + begin_of(o, counts, r), r == o->g->control.rank ? o->dst : NULL,
                                (size_t)counts[r], o->type, o->op, r, o->g->comm, o->g->stream));
    if (counts || !o->t->count) return ncclSuccess;
    return ncclReduceScatter(o->src, o->dst, (size_t)o->t->count, o->type, o->op, o->g->comm, o->g->stream);
}

static ncclResult_t all_to_all(const operation *o) {
    const tg_transfer *t = o->t;
    for (int r = 0; r < o->g->control.size; r++) {
        TRY_NCCL(send(o, o->src + begin_of(o, t->send, r), count_of(t->send, t->count, r), r));
        TRY_NCCL(recv(o, o->dst + begin_of(o, t->recv, r), count_of(t->recv, t->count, r), r));
    }
    return ncclSuccess;
}

static ncclResult_t gather(const operation *o) {
    const tg_transfer *t = o->t;
    bool root = o->g->control.rank == t->root, in_place = root && o->src == o->dst + begin_of(o, NULL, t->root);
    if (!in_place) TRY_NCCL(send(o, o->src, t->count, t->root));
    for (int r = 0; root && r < o->g->control.size; r++)
        if (r != t->root || !in_place) TRY_NCCL(recv(o, o->dst + begin_of(o, NULL, r), t->count, r));
    return ncclSuccess;
}

static ncclResult_t scatter(const operation *o) {
    const tg_transfer *t = o->t;
    bool root = o->g->control.rank == t->root, in_place = root && o->dst == o->src + begin_of(o, NULL, t->root);
    for (int r = 0; root && r < o->g->control.size; r++)
        if (r != t->root || !in_place) TRY_NCCL(send(o, o->src + begin_of(o, NULL, r), t->count, r));
    return in_place ? ncclSuccess : recv(o, o->dst, t->count, t->root);
}

static ncclResult_t barrier(const operation *o) {
    void *token = o->g->token; /* NULL: the ranks meet on the host communicator */
    return token ? ncclAllReduce(token, token, 1, ncclInt64, ncclSum, o->g->comm, o->g->stream) : ncclSuccess;
}

static ncclResult_t enqueue(const operation *o) {
    const tg_transfer *t = o->t;
    size_t n = (size_t)t->count;
    switch ((int)t->kind) {
    case TG_REPLAY:
        return ncclSuccess; /* nothing to enqueue: the replayed graph contains the calls */
    case TG_ALL_REDUCE:
        return n ? ncclAllReduce(o->src, o->dst, n, o->type, o->op, o->g->comm, o->g->stream) : ncclSuccess;
    case TG_BROADCAST:
        return n ? ncclBroadcast(o->dst, o->dst, n, o->type, t->root, o->g->comm, o->g->stream) : ncclSuccess;
    case TG_ALL_GATHER: return all_gather(o);
    case TG_REDUCE_SCATTER: return reduce_scatter(o);
    case TG_ALL_TO_ALL: return all_to_all(o);
    case TG_GATHER: return gather(o);
    case TG_SCATTER: return scatter(o);
    case TG_SEND: return send(o, o->src, t->count, t->root);
    case TG_RECV: return recv(o, o->dst, t->count, t->root);
    default: return barrier(o);
    }
}

ncclResult_t tg_nccl_enqueue(tg_nccl_group *g, const tg_transfer *t) {
    operation o = {g, t, type_of(t->dtype), op_of(t->op, t->dtype), tg_dtype_size(t->dtype), t->src, t->dst};
    return enqueue(&o);
}
