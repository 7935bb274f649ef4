/* The control board: a card for each rank of a node, with the record of its calls, what it does now, and why it failed.
 *
 * A card is written by its rank alone (but for the bell) and read by anybody at any time, from other processes too; so
 * all of it is atomic, and a reader who meets a writer reads again. */
#ifndef TG_BOARD_H
#define TG_BOARD_H

#include <stdalign.h>

#include "core/context.h"

enum { TG_LINE = 64, TG_RING = 256, TG_SITES = 128, TG_SITE_TEXT = 120, TG_BOX_WORDS = 192 };

/* Text that others may read while its owner writes it. */
typedef struct tg_text_box {
    _Atomic uint32_t version; /* odd while it is written */
    _Atomic uint64_t word[TG_BOX_WORDS];
} tg_text_box;

void tg_box_write(tg_text_box *b, const char *text);
void tg_box_read(const tg_text_box *b, char *text, size_t n);

typedef enum tg_rank_state {
    TG_RANK_AWAITED, /* not here yet */
    TG_RANK_RUNNING,
    TG_RANK_FAILED,   /* its context holds an error */
    TG_RANK_RETURNED, /* its function has, or it has freed its communicator */
} tg_rank_state;

enum { TG_CALL_STARTED, TG_CALL_DONE, TG_CALL_FAILED };

/* One line of the record. */
typedef struct tg_note {
    uint64_t index; /* 1 + how many calls the rank made before it; 0: none */
    uint8_t kind, dtype, op, state;
    int32_t root, size; /* of the group */
    int64_t count;
    uint64_t site, sequence; /* of the group's calls */
    char group[16];
    uint64_t began, ended; /* nanoseconds, of CLOCK_MONOTONIC */
} tg_note;

enum { TG_NOTE_WORDS = sizeof(tg_note) / sizeof(uint64_t) };

typedef struct tg_card {
    alignas(TG_LINE) _Atomic uint64_t heartbeat;
    _Atomic uint64_t busy; /* the id of the group in whose members' memory it works right now; 0: none */
    alignas(TG_LINE) _Atomic uint32_t bell, sleeping; /* futex: rung for a sleeper when something has happened */
    alignas(TG_LINE) _Atomic int state, status;
    _Atomic int cause;        /* the rank whose failure this is, where it is not its own; -1 */
    _Atomic uint64_t order;   /* of its failure among all */
    _Atomic uint64_t calls;   /* collectives it has started */
    _Atomic uint64_t skips;   /* calls that it has missed after errors */
    _Atomic uint64_t waiting; /* index of the call it waits for; 0: it does not wait */
    _Atomic uint64_t blocked; /* the same as its peers see it (shm_crossed.c) */
    _Atomic int64_t pid;
    tg_text_box failure;
    struct {
        _Atomic uint64_t word[TG_NOTE_WORDS]; /* the first is 0 while the rest is written */
    } ring[TG_RING];
    struct {
        _Atomic uint64_t site; /* 0: free; the text is there before it */
        char text[TG_SITE_TEXT];
    } sites[TG_SITES];
} tg_card;

/* The cards that one rank can see. */
typedef struct tg_board {
    int refs;
    tg_card *card; /* of rank first and so on */
    int n, first, size; /* cards; the first one's rank; ranks in all */
    int me; /* index of this rank's card */
    bool threads; /* all are of one process: addresses of code mean the same */
    bool own;
} tg_board;

/* cards NULL: one of its own, of rank `first` of size. */
tg_board *tg_board_new(tg_ctx *ctx, tg_card *cards, int n, int first, int size, int me, bool threads);
void tg_board_unref(tg_ctx *ctx, tg_board *b);

/* ---- The record ---- */

uint64_t tg_board_now(void); /* nanoseconds */
/* Adds a call to the rank's own card: its index. */
uint64_t tg_card_post(tg_board *b, tg_note *note);
void tg_board_keep_site(tg_board *b, uint64_t site); /* so that other ranks can say where it is */
void tg_card_settle(tg_board *b, uint64_t index, int state);
bool tg_card_note(const tg_card *c, uint64_t index, tg_note *note); /* false: overwritten since */
bool tg_card_last(const tg_card *c, tg_note *note);

/* ---- Texts (board_text.c) ---- */

/* "all_reduce(f32, 5 elements, sum)" */
void tg_note_call(const tg_note *note, char *buf, size_t n, size_t *at);
void tg_card_site(const tg_card *c, uint64_t site, char *buf, size_t n); /* as the rank itself has described it */
/* Where card i's rank made a call. */
void tg_board_site(const tg_board *b, int i, uint64_t site, char *buf, size_t n);
/* Writes the records of all ranks as snprintf would. ctx: whose record it is, for the calls of replayed steps; or NULL. */
size_t tg_board_record(const tg_board *b, tg_ctx *ctx, tg_format format, char *buf, size_t n);
/* What card i's rank did last, and does. */
void tg_board_last(const tg_board *b, int i, char *buf, size_t n, size_t *at);

#endif
