/* The contract of a device: every slot of tg_device_ops is compared with naive loops, over many shapes, strides, dtypes
 * and modes. It links the library's static archive, because its reference draws come from kernels/philox.h. To test
 * another device, pass a context of that device. */
#ifndef DEVICE_CONTRACT_H
#define DEVICE_CONTRACT_H

#include <tapegrad/device.h>

/* X(part): one function each. Optional slots that are NULL pass. */
#define CONTRACT_PARTS(X)                                                                                              \
    X(memory)                                                                                                          \
    X(map)                                                                                                             \
    X(map_integer)                                                                                                     \
    X(map_aliased)                                                                                                     \
    X(map_ranks)                                                                                                       \
    X(far)                                                                                                             \
    X(cast)                                                                                                            \
    X(fill)                                                                                                            \
    X(reduce)                                                                                                          \
    X(reduce_nan)                                                                                                      \
    X(reduce_position)                                                                                                 \
    X(gemm)                                                                                                            \
    X(take)                                                                                                            \
    X(take_rounds_once)                                                                                                \
    X(put_add)                                                                                                         \
    X(put)                                                                                                             \
    X(scan)                                                                                                            \
    X(scan_long)                                                                                                       \
    X(sort)                                                                                                            \
    X(sort_ties)                                                                                                       \
    X(random)                                                                                                          \
    X(dropout)                                                                                                         \
    X(adamw)                                                                                                           \
    X(adamw_list)                                                                                                      \
    X(prepare)                                                                                                         \
    X(fault_sum)                                                                                                       \
    X(softmax)                                                                                                         \
    X(softmax_grad)                                                                                                    \
    X(norm)                                                                                                            \
    X(norm_grad)                                                                                                       \
    X(cross_entropy)                                                                                                   \
    X(cross_entropy_grad)                                                                                              \
    X(attention)                                                                                                       \
    X(attention_grad)

typedef struct contract {
    tg_ctx *ctx;
    const tg_device_ops *ops;
    uint64_t dice;
    int64_t checks, failures;
    char message[256]; /* text of the first failure */
} contract;

#define CONTRACT_DECLARE(part) void contract_##part(contract *c);
CONTRACT_PARTS(CONTRACT_DECLARE)
#undef CONTRACT_DECLARE

/* Functions for the parts of the contract. */

/* SHIFTED: row-major, beginning one element after aligned memory. */
typedef enum layout { ROWS, TRANSPOSED, STRIDED, SHIFTED, EXPANDED, LAYOUTS } layout;

/* An array on the device, and a mirror of its bytes on the host. */
typedef struct mirror {
    tg_array on; /* the device's array */
    char *host, *base; /* first byte on the host and on the device */
    size_t bytes;
    int64_t shift; /* number of elements before the first */
    int64_t shape[TG_MAX_DIMS], stride[TG_MAX_DIMS];
} mirror;

contract contract_of(tg_ctx *ctx);
void contract_check(contract *c, bool ok, const char *format, ...) TG_PRINTF(3, 4);
/* Returns whether two values agree within the tolerance of the dtype, or are both NaN. */
bool contract_close(tg_dtype dtype, double got, double want);
int64_t contract_roll(contract *c, int64_t n); /* random, in [0, n) */
double contract_value(contract *c, tg_dtype dtype);

/* Makes an array with values of contract_value on the host only; contract_push sends it. */
mirror contract_make(contract *c, tg_dtype dtype, int ndim, const int64_t *shape, layout l);
void contract_push(contract *c, mirror *m);
void contract_pull(contract *c, mirror *m);
void contract_drop(contract *c, mirror *m);
/* Access by row-major position. */
int64_t contract_offset(const mirror *m, int64_t i);
double contract_get(const mirror *m, int64_t i);
void contract_set(mirror *m, int64_t i, double v);
/* Rounds to nearest even; to integers like C. */
double contract_rounded(tg_dtype dtype, double v);

#endif
