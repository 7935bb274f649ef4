/* Internals of tg_flat (tapegrad/flat.h): flat buffers of gradients and, from zero 1 on, of parameters. docs/design.md
 * says what ZeRO's stages add to it. */
#ifndef TG_FLAT_PARTS_H
#define TG_FLAT_PARTS_H

#include <tapegrad/flat.h>

#include "parallel/parallel.h"

enum { TG_FLAT_DENSE, TG_FLAT_EXPERTS, TG_FLAT_GROUPS }; /* the groups over which gradients are summed */

typedef struct tg_flat_group {
    tg_comm *comm;
    uint32_t axes;    /* as bits, those of dp and cp, or edp, that have several ranks */
    int ranks, rank;  /* when the tg_flat was created */
    int n;            /* number of parameters of the group */
    tg_tensor *users; /* [n], float32: the number of ranks that have contributed to each gradient; NULL if n is 0 */
} tg_flat_group;

typedef struct tg_flat_unit tg_flat_unit; /* flat_params.c */

typedef struct tg_flat_item {
    tg_flat *of;
    tg_tensor *param;
    tg_tensor *grad;  /* its main gradient, a view of the bucket */
    tg_tensor *leaf;  /* from zero 1 on: this rank's range of it. NULL: the parameter */
    tg_tensor *share; /* from zero 1 on: the gradient of the leaf, a view of own_grads */
    tg_ref ref;       /* detects that param was dropped */
    uint64_t hook;    /* the hook of param that counts its gradient as ready */
    int index;        /* of the parameter among those of tg_flat_new */
    int bucket, user; /* index of its bucket, and of its element of users */
    int64_t numel;    /* of param */
    int64_t offset;   /* in elements of the bucket */
    bool ready;       /* its last gradient of this round of sums has arrived */
    bool contributed; /* this rank had a gradient in an earlier round of the step (tg_grads_reduce) */
} tg_flat_item;

typedef struct tg_flat_bucket {
    tg_flat *of;
    tg_dtype dtype; /* of the parameters */
    int group;
    int first, n;              /* index of its first item, and number of its items */
    int last;                  /* while items are laid out: index of its last item, before items are sorted */
    bool open;                 /* while items are laid out: takes more */
    int64_t used, numel;       /* number of elements up to the end of the last item, rounded up, and of all */
    int ready;                 /* number of items that are ready */
    bool summed;               /* with zero 2 and 3: the sum of this round has started, and grads were discarded */
    tg_tensor *grads, *params; /* [numel]. params is NULL with zero 0 */
    /* This rank's parts; NULL with zero 0. They are views of grads and params, but from zero 2 on own_grads, and with
     * zero 3 own_params, has bytes of its own. */
    tg_tensor *own_grads, *own_params;
    /* While gradients travel in another dtype: temporaries of that dtype. `received` is for zero 1 to 3 only. */
    tg_tensor *sent, *received;
    tg_tensor *part; /* temporary: the sum of this round, if it is to be added to that of earlier rounds in own_grads */
    uint32_t version; /* with zero 3: of the storage of params when it was gathered */
} tg_flat_bucket;

struct tg_flat {
    tg_parallel_listener listener; /* first member: callbacks convert its address */
    tg_ctx *ctx;
    tg_parallel *p; /* NULL: the tg_parallel was freed */
    tg_flat *next;  /* in the list of p, newest first */
    tg_flat_opts o;
    tg_flat_group group[TG_FLAT_GROUPS];
    int n, n_buckets, started; /* numbers of items, of buckets, and of buckets whose sum has started in this round */
    bool reduce;               /* the sums are switched on (tg_flat_set_reduce) */
    bool gathering;            /* gathers have started, and may not have ended */
    bool whole;                /* with zero 3: all parameters stay present (tg_flat_set_whole) */
    int used, way;             /* with zero 3: the bucket that was used last, and the step to the next one, 1 or -1 */
    tg_flat_unit *units;       /* with zero 3: the modules that are watched */
    bool lost;                 /* since a recovery a group has other ranks, so the optimizer's state is not all there */
    size_t bytes;              /* size of this allocation, with what follows */
    tg_flat_bucket *bucket;
    tg_tensor **leaf; /* [n], in the order of the parameters */
    tg_flat_item item[];
};

/* Returns false if the parameter was dropped; another tensor may then have its handle. */
static inline bool tg_flat_alive(const tg_flat_item *it) { return it->param->serial == it->ref.serial; }
/* Returns whether the gradients of a bucket have memory only until they are summed (zero 2 and 3). */
static inline bool tg_flat_frees_gradients(const tg_flat *f) { return f->o.zero > 1; }
/* Returns whether the parameters of a bucket have memory only while they are used (zero 3). */
static inline bool tg_flat_divides_params(const tg_flat *f) { return f->o.zero > 2; }
/* Returns the number of elements of the bucket that each rank has from zero 1 on. */
static inline int64_t tg_flat_part(const tg_flat *f, const tg_flat_bucket *k) {
    return k->numel / f->group[k->group].ranks;
}

/* ---- flat_layout.c ---- */

/* Makes an item of each parameter, divides the items among buckets, and puts both in the order in which sums start. The
 * groups must be known. */
void tg_flat_lay_out(tg_flat *f, tg_tensor *const *params);
/* Sets *begin and *end to the range of an item's elements that a rank of its group has from zero 1 on. */
void tg_flat_range(const tg_flat *f, const tg_flat_item *it, int rank, int64_t *begin, int64_t *end);
/* Returns the group of a parameter: TG_FLAT_EXPERTS if it is placed on an axis of the expert grid. */
int tg_flat_group_of(const tg_tensor *x);

/* ---- flat_sums.c ---- */

/* The hook that runs when backward has accumulated a gradient of a parameter; user: its item. */
tg_status tg_flat_arrived(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad);
/* Begins a round: no gradient has arrived, and no sum has started. Frees the temporaries of the round before. */
void tg_flat_reset(tg_flat *f);
/* Returns whether backward may start sums now. */
static inline bool tg_flat_reduces(const tg_flat *f) { return f->reduce && !f->p->flats_held; }
/* With zero 2 and 3: starts the sums of this round that backward has not started, waits for all, and ends the round. */
tg_status tg_flat_sum_round(tg_flat *f);

/* ---- flat_rounds.c ---- */

/* With zero 2 and 3: lets the bucket's gradients have memory, filled with 0, only from the first contribution on. */
tg_status tg_flat_free_gradients(tg_flat_bucket *k);
/* Returns the tensor that receives this rank's part of the bucket's sum. NULL after recording the error. */
tg_tensor *tg_flat_open_part(const tg_flat *f, tg_flat_bucket *k);
/* Waits for k->part, if there is one, and adds it to the sums of earlier rounds. */
tg_status tg_flat_close_part(tg_flat_bucket *k);
/* With zero 2 and 3: sets has_grad of each parameter to whether this rank has contributed to its gradient in any round
 * of the step. */
void tg_flat_join_rounds(tg_flat *f);

/* ---- flat_params.c ---- */

/* With zero 3: lets parameters have memory only while they are used. */
tg_status tg_flat_divide_params(tg_flat *f);
/* With zero 3: discards all buckets of parameters, unless they are whole. */
tg_status tg_flat_release(tg_flat *f);
/* With zero 3: discards them in a recovery, because gathers may have failed. They are not whole any more. */
void tg_flat_lose_params(tg_flat *f);
/* With zero 3: called in backward when a gradient of a parameter has arrived. Begins the use of its bucket. */
tg_status tg_flat_reached(const tg_flat_item *it);
/* Frees the list of modules that are watched. With zero 3 the parameters have no values from now on, unless they are
 * whole. */
void tg_flat_close_params(tg_flat *f);

/* ---- flat_gather.c ---- */

/* Makes the leaf of an item, a view of this rank's range of the parameter, and it->share, which is the main gradient of
 * the leaf. */
tg_status tg_flat_make_leaf(tg_flat *f, tg_flat_item *it);
/* Fails if a group has other ranks since a recovery. */
tg_status tg_flat_check_ranks(const tg_flat *f, const char *who);
/* Waits for the gathers that tg_flat_gather or tg_flat_set_whole has started. Their parameters are present then. */
tg_status tg_flat_gathered(tg_flat *f);
/* Called in a recovery: notes that gathers which have not ended were lost. */
tg_status tg_flat_gather_lost(tg_flat *f);

#endif
