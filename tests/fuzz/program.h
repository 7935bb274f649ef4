/* Random programs over the op table. Bytes say which samples of which ops are called, on which inputs, and how the
 * program is run.
 *
 * The plain run calls one op after the other on contiguous tensors. It decides what each input is: a leaf of the
 * op's sample, or an earlier value, as it is, or cut or repeated to the sample's shape and mapped into its domain. A
 * call that is refused there has no result. The other runs make the same calls with views, other layouts, in place,
 * in scopes, recomputed, replayed, discarded or packed; their gradients must be the same. */
#ifndef TG_TEST_FUZZ_PROGRAM_H
#define TG_TEST_FUZZ_PROGRAM_H

#include <math.h>

#include <tapegrad/extend.h>

#include "catalog/samples.h"
#include "fuzz.h"

enum { CALLS = 14, RESULTS = 4, LEAVES = CALLS * RESULTS, VALUES = LEAVES + CALLS * TG_SAMPLE_INPUTS };
enum { LARGEST_INPUT = 128, LARGEST_RAW = 256, LARGEST_VALUE = 4096 }; /* elements */

typedef enum call_kind { CALL_OP, CALL_VIEW, CALL_INPLACE, CALL_DETACH } call_kind;
typedef enum segment_kind {
    SEGMENT_NONE,
    SEGMENT_SCOPE,
    SEGMENT_RECOMPUTE,
    SEGMENT_REPLAY,
    SEGMENT_DISCARD, /* results are restored by a refill */
} segment_kind;

/* Number of a value: call * RESULTS + output; of a leaf: LEAVES + call * TG_SAMPLE_INPUTS + input. */
typedef struct call {
    call_kind kind;
    const tg_op *op; /* of CALL_OP */
    int sample;
    bool raw, untamed, no_grad;
    uint8_t choice[3], arg[4]; /* bytes that choose sources, views and in-place ops */
    segment_kind segment;
    int until; /* the segment that begins here ends before this call */
    /* Set by the plain run. */
    int source[TG_SAMPLE_INPUTS]; /* numbers of values; -1: the sample's own input */
    tg_status refused;
    int n_out;
} call;

typedef struct program {
    int n;
    call call[CALLS];
    uint64_t seed;
    bool twice, graph, split, packed, forward, differences, checked, again; /* how it is run */
    /* Set by the plain run. */
    int n_sinks, sink[LEAVES];    /* values that no call uses */
    int last_use[VALUES];         /* number of the call; CALLS: a sink; -1: none */
    bool overwritten[LEAVES];     /* by a call in place; not used afterwards */
} program;

bool program_decode(program *p, const uint8_t *data, size_t size);
void program_print(const program *p, FILE *out);

/* The leaves and values of a run. */
typedef struct run {
    program *p;
    tg_ctx *ctx;
    tg_tape *tape;
    bool plain;
    bool bold; /* a call in place took the value itself */
    int functions; /* number of functions that run now and will run again */
    tg_case c[CALLS];
    tg_tensor *value[LEAVES];
    tg_replay *replay[CALLS];
    int n_replays;
} run;

/* Makes the leaves; for the plain run they are row-major. */
void run_open(run *r, program *p, tg_ctx *ctx, bool plain);
void run_close(run *r);
/* Lists every leaf that requires a gradient. */
int run_leaves(const run *r, tg_tensor **out);

/* Runs the program in the plain way. decides: this is the first run, which fills the program's fields. */
void run_plain(run *r, bool decides);
/* Runs the program as its bytes say. Returns false if an in-place call was refused that has no alternative. */
void run_fancy(run *r);

/* Makes one call on t with values v. Returns false if it is refused; the context then has the error. */
bool call_run(run *r, tg_tape *t, tg_tensor **v, int i);
/* Returns a cotangent for a sink: a tensor of the context of its shape. */
tg_tensor *cotangent(tg_ctx *ctx, const tg_tensor *like, int sink);

#endif
