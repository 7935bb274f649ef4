/* Random programs over the op table: bytes say which samples of which ops are called, on what, and how it is run.
 *
 * The plain route calls one op after the other on contiguous tensors. It decides what each input is: a leaf of the op's
 * sample, or an earlier value, cut or repeated to the sample's shape and brought into its domain, or as it is. What is
 * refused there has no result. The other routes run the same calls with views, layouts, in place, in scopes,
 * recomputed, replayed, discarded, packed; their gradients are the same.
 */
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
    SEGMENT_DISCARD, /* results come back by a refill */
} segment_kind;

/* A value is number call * RESULTS + output, a leaf LEAVES + call * TG_SAMPLE_INPUTS + input. */
typedef struct call {
    call_kind kind;
    const tg_op *op; /* of CALL_OP */
    int sample;
    bool raw, untamed, no_grad;
    uint8_t choice[3], arg[4]; /* bytes: of sources, and of views and ops in place */
    segment_kind segment;
    int until; /* the segment that begins here ends before this call */
    /* What the plain route found. */
    int source[TG_SAMPLE_INPUTS]; /* values; -1: the sample's own */
    tg_status refused;
    int n_out;
} call;

typedef struct program {
    int n;
    call call[CALLS];
    uint64_t seed;
    bool twice, graph, split, packed, forward, differences, checked, again; /* how it is run */
    /* What the plain route found. */
    int n_sinks, sink[LEAVES];    /* values that nobody uses */
    int last_use[VALUES];         /* number of the call; CALLS: a sink; -1: none */
    bool overwritten[LEAVES];     /* by a call in place: nobody uses it any more */
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
    int functions; /* that run now, to be run again */
    tg_case c[CALLS];
    tg_tensor *value[LEAVES];
    tg_replay *replay[CALLS];
    int n_replays;
} run;

/* Makes the leaves: row-major for the plain route. */
void run_open(run *r, program *p, tg_ctx *ctx, bool plain);
void run_close(run *r);
/* Every leaf that needs a gradient. */
int run_leaves(const run *r, tg_tensor **out);

/* The plain route. decides: for the first time, which fills what it finds into the program. */
void run_plain(run *r, bool decides);
/* The program as it says. False: what it does in place was refused where nothing else can be done. */
void run_fancy(run *r);

/* For the routes: one call, on t, with values v; false: refused, and the context has the error. */
bool call_run(run *r, tg_tape *t, tg_tensor **v, int i);
/* The cotangent of a sink: of the same shape, a tensor of the context. */
tg_tensor *cotangent(tg_ctx *ctx, const tg_tensor *like, int sink);

#endif
