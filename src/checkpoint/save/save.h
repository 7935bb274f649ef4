/* A save of sharded state: the pieces that this rank has, which of them it writes, and its file. */
#ifndef TG_SAVE_H
#define TG_SAVE_H

#include <pthread.h>
#include <stdatomic.h>

#include "checkpoint/state/state_index.h"
#include "io/outlines.h"

/* A part of a tensor that this rank has. */
typedef struct tg_save_piece {
    const tg_shard_item *item;
    tg_block block;
    char *name;     /* of the tensor in a file; belongs to the piece */
    char *at;       /* tg_block_text; belongs to the piece */
    tg_shape whole; /* the global shape */
    uint64_t hash;  /* the same on two ranks if they have the same piece */
    int64_t bytes;
    bool mine;  /* this rank writes it */
    char *held; /* a copy of the bytes, made when the save began; NULL: they are read from the tensor */
} tg_save_piece;

struct tg_save {
    tg_ctx *ctx;
    tg_comm *world;
    tg_shards *s;     /* NULL: the list was freed */
    char *dir, *path; /* path: of this rank's file; NULL if it writes none */
    char suffix[24];  /* what follows the rank in the names of the files: "" or, if dir has a state, "-" and a number */
    tg_save_piece *piece;
    size_t piece_bytes; /* of the allocation */
    int n;
    tg_outlines mine;     /* the tensors of this rank's file */
    char *pieces, *steps; /* the file's TG_STATE_PIECES and TG_STATE_STEPS; both are allocated by jansson */
    bool *has_file;       /* [ranks of the world] which ranks write a file */
    json_t *root;         /* the part of the index that does not come from the files; rank 0 writes it */
    /* Of a save in the background: the memory of all pieces[].held, and the thread that writes them. It records errors
     * in a context of its own. */
    char *held;
    size_t held_bytes;
    bool pinned; /* held is memory of the device's slot host_alloc */
    tg_ctx *errors;
    pthread_t thread;
    bool running;
    atomic_bool written;
};

/* ---- save.c ---- */

tg_status tg_save_no_memory(const tg_save *w); /* records that there is no memory for a header or the index */

/* ---- save_pieces.c ---- */

/* Lists the pieces that this rank has. The pieces refer to the items of w->s, so the list of items must not change
 * before tg_shards_save_begin returns. */
tg_status tg_save_list(tg_save *w);
void tg_save_unlist(tg_save *w);
/* Returns the piece's elements, as a temporary of the context; NULL after recording the error. */
tg_tensor *tg_save_view(const tg_save_piece *p);

/* ---- save_deal.c ---- */

/* Decides which rank writes each piece, and sets `mine` of all pieces, has_file and suffix. Collective. */
tg_status tg_save_deal(tg_save *w);

/* ---- save_hold.c ---- */

/* Copies the bytes of the pieces that this rank writes to w->held. Fails if some of them came from a mapped file that
 * has lost its bytes. */
tg_status tg_save_hold(tg_save *w);
void tg_save_release(tg_save *w);

/* ---- save_file.c ---- */

/* Fills w->mine and w->pieces, which describe the tensors of this rank's file. */
tg_status tg_save_describe(tg_save *w);
void tg_save_undescribe(tg_save *w);
/* Writes this rank's file. Errors are recorded in ctx: w->ctx or, on the thread, w->errors. */
tg_status tg_save_write(tg_save *w, tg_ctx *ctx);

#endif
