/* Internals of sharded state: the list of tensors, and copies between a rank's part and the global tensor. */
#ifndef TG_SHARDS_H
#define TG_SHARDS_H

#include <tapegrad/checkpoint.h>

#include "checkpoint/block.h"
#include "core/context.h"
#include "placement/shard_index.h"

enum {
    TG_SHARDS_KEY = 512,  /* size of the longest key in bytes, with its terminating zero */
    TG_SHARD_FRONTS = 4   /* how many tg_shards_push may be open at a time */
};

/* The dims that tg_shards_push puts in front of a tensor, and the index of the tensor in each. All indices together are
 * the tensor's place. */
typedef struct tg_shard_front {
    int n;
    int64_t size[TG_SHARD_FRONTS], at[TG_SHARD_FRONTS];
} tg_shard_front;

/* One tensor x. Its elements are placed like those of `like`: x itself or, if x is state of an optimizer, the parameter
 * that the state belongs to. x may have only a range of the row-major elements of this rank's part of `like`, as the
 * state of an optimizer that steps ranges (tg_flat_leaves) does. */
typedef struct tg_shard_item {
    const char *key;   /* first member, for tg_index_names */
    const char *owner; /* of a copy (tg_share): the key of the first owner, under which it is saved; NULL: its own */
    tg_tensor *x, *like;
    tg_ref x_ref, like_ref;
    bool range; /* x has only the elements [begin, end) */
    int64_t begin, end;
    tg_ref leaf; /* the leaf with that range; without a tensor: none */
    int64_t rows; /* number of rows (dim 0) in the file; later rows of x are padding. TG_NONE means no padding */
    tg_shard_front front;
} tg_shard_item;

/* An optimizer, and the key under which the metadata of the files contain its number of steps. */
typedef struct tg_shard_steps {
    const char *key;
    tg_optim *optim;
} tg_shard_steps;

struct tg_shards {
    tg_ctx *ctx;
    const tg_parallel *p;
    tg_shard_item *item;
    int n, capacity; /* number of items, and how many the array can hold */
    tg_shard_steps steps[8];
    int n_steps;
    bool rng; /* true: includes the context's random streams */
    tg_save *saving; /* the save that has begun and is not finished; NULL: none */
    char prefix[TG_SHARDS_KEY]; /* of the next keys: names of open tg_shards_push and of modules that add their state */
    tg_shard_front front;       /* of the next tensors: the dims and the place that the open tg_shards_push give */
    size_t pushed[TG_SHARD_FRONTS]; /* length of the prefix before each push */
    int outer; /* number of dims in front that were pushed before the running `shards`, which must not pop them */
    int modules, first; /* depth of nested tg_shards_add_module; number of items when the outermost one began */
};

tg_status tg_shards_check(const tg_shards *s, const char *who); /* fails if a tensor of the list was dropped */
/* Adds x, which is placed like `like`, under the key; `who` names the function in errors. */
tg_status tg_shards_add_item(tg_shards *s, const char *key, tg_tensor *x, tg_tensor *like, const char *who);
tg_status tg_shards_check_dir(const tg_shards *s, const char *dir, const char *who); /* fails if it cannot be used */
tg_status tg_shards_check_key(const tg_shards *s, const char *key, const char *who); /* likewise */
/* Writes the key "prefix.name", or only one of the two if the other is NULL or "", followed by the suffix. */
tg_status tg_shards_join(const tg_shards *s, char key[TG_SHARDS_KEY], const char *prefix, const char *name,
                         const char *suffix);
/* If `status` is an error, removes all items after the first n: those that the failed call added. Returns `status`. */
tg_status tg_shards_undo_if_failed(tg_shards *s, int n, tg_status status);

/* ---- shards_shared.c ---- */

/* Finds, for the tensors of the list that ranks share (tg_share), the keys of the first owners, under which they are
 * saved. Collective over each group that shares a tensor of the list; `who` names the function in errors. */
tg_status tg_shards_find_owners(tg_shards *s, const char *who);

/* ---- shard_layout.c ---- */

/* Returns this rank's number among the ranks that have the same part of x, from 0. The ranks that share x (tg_share)
 * have it too, those of the first owner before those of the others. */
int tg_shard_replica(const tg_parallel *p, const tg_tensor *x);
/* Copies between `whole` and `part`, the part of it that the rank at position at[a] on each axis a has. The placement
 * and the shape of x say how ranks divide the tensor. Copies to `whole` if to_whole, else to `part`. */
tg_status tg_shard_copy(const tg_tensor *x, const int at[TG_MAX_AXES], tg_tensor *whole, tg_tensor *part,
                        bool to_whole);

/* Returns the global shape of the item in files: with the dims in front, and without padding rows. */
tg_shape tg_shard_whole_shape(const tg_shard_item *i);
/* Fills *out with the elements of the global tensor that item i has. Padding rows are left out. The caller frees it.
 * Element k of the block is element k of x, row-major. */
tg_status tg_shard_block(const tg_shard_item *i, tg_block *out);
static inline const char *tg_shard_key(const tg_shard_item *i) { return i->owner ? i->owner : i->key; }
/* Returns what follows "<prefix>." in a key, or NULL if the key begins in another way. If prefix is NULL or "", returns
 * the key. */
static inline const char *tg_key_after(const char *key, const char *prefix) {
    size_t n = prefix ? strlen(prefix) : 0;
    if (!n) return key;
    return strncmp(key, prefix, n) == 0 && key[n] == '.' ? key + n + 1 : NULL;
}

/* ---- shard_gather.c ---- */

/* Returns the whole tensor of item i, as a temporary, on the rank that writes the item. Returns NULL on other ranks and
 * after an error. Collective over the axes that shard the tensor. */
tg_tensor *tg_shard_whole(const tg_shards *s, const tg_shard_item *i);
/* Called with the status s of a rank that gathers tensors that only tp shards. If s is an error, reports to the ranks
 * that gather them together with this one that it misses the next call (tg_comm_note_missed). Returns s. p may be
 * NULL. */
tg_status tg_shard_note_missed(const tg_parallel *p, tg_status s);
bool tg_shards_writer(const tg_shards *s); /* whether this rank is the one of its pipeline stage that writes a file */

#endif
