/* The flight recorder: a slot (tg_rank_slot) for each rank, with its latest calls, its current activity, and the reason
 * for its failure.
 *
 * Only a rank itself writes its slot, with two exceptions: other ranks increment the futex `wakeups` to wake the rank,
 * and what has started the ranks (a launcher, or tg_ranks_run) writes the end of a process that could not do so itself,
 * or of a thread that could not be started. Any rank may read a slot at any time, also from another process. Therefore
 * the fields are atomic, and a reader notices a write in progress: it reads again, or leaves the entry out. Only the
 * texts of call sites are not atomic: each is complete before its `site` is set, and never changes. */
#ifndef TG_FLIGHT_RECORDER_H
#define TG_FLIGHT_RECORDER_H

#include <stdalign.h>

#include "base/private_api.h"
#include "core/context.h"

enum { TG_LINE = 64, TG_RING = 256, TG_SITES = 128, TG_SITE_TEXT = 120, TG_SHARED_TEXT_WORDS = 192 };

/* Text that other ranks may read while its owner writes it. */
typedef struct tg_shared_text {
    _Atomic uint32_t version; /* odd while the text is being written */
    _Atomic uint64_t word[TG_SHARED_TEXT_WORDS];
} tg_shared_text;

void tg_shared_text_write(tg_shared_text *b, const char *text);
void tg_shared_text_read(const tg_shared_text *b, char *text, size_t n);

typedef enum tg_rank_state {
    TG_RANK_AWAITED, /* it has not started yet */
    TG_RANK_RUNNING,
    TG_RANK_FAILED,   /* its context holds an error */
    TG_RANK_RETURNED, /* its function has returned, it has freed its last communicator, or it will never start */
} tg_rank_state;

enum { TG_CALL_STARTED, TG_CALL_DONE, TG_CALL_FAILED };

/* One call, as the flight recorder stores it and errors quote it. */
typedef struct tg_call_entry {
    uint64_t index; /* number of the call among all calls of the rank, from 1; 0: none */
    uint8_t kind, dtype, op, state; /* kind: a tg_collective or TG_REPLAY; state: TG_CALL_STARTED etc. */
    int32_t root, size; /* size: ranks in the group */
    int64_t count;
    /* sequence: the call's number in its group, from 1; of a send or receive, the number of the next collective; of a
     * call in a captured step, 0 */
    uint64_t site, sequence;
    char group[16];
    uint64_t began, ended; /* nanoseconds of CLOCK_MONOTONIC; ended 0: not yet */
} tg_call_entry;

enum { TG_ENTRY_WORDS = sizeof(tg_call_entry) / sizeof(uint64_t) };

typedef struct tg_rank_slot {
    alignas(TG_LINE) _Atomic uint64_t heartbeat;
    _Atomic uint64_t busy; /* id of the group whose members' memory this rank uses now; 0: none */
    alignas(TG_LINE) _Atomic uint32_t wakeups; /* futex: peers increment it to wake the rank */
    _Atomic uint32_t sleeping; /* whether the rank sleeps on `wakeups`, or is about to */
    /* status: of the rank's context. An error is stored with release, after `failure` and `cause`, so that a rank that
     * reads the error finds both. */
    alignas(TG_LINE) _Atomic int state, status;
    _Atomic int cause;        /* the rank that caused this rank's failure; -1: itself */
    _Atomic uint64_t order;   /* number of its failure among the failures of all ranks, from 1; 0: none */
    _Atomic uint64_t calls;   /* number of calls that it has recorded */
    _Atomic uint64_t missed_calls; /* number of calls that it has missed after errors */
    _Atomic uint64_t waiting; /* index of the recorded call that it waits for; 0: none */
    _Atomic uint64_t blocked; /* the same call in the form that peers compare (shm/deadlock.c) */
    _Atomic int64_t pid;
    tg_shared_text failure;
    struct {
        _Atomic uint64_t word[TG_ENTRY_WORDS]; /* the first is 0 while the others are being written */
    } ring[TG_RING];
    struct {
        _Atomic uint64_t site; /* 0: free; set after the text is written */
        char text[TG_SITE_TEXT];
    } sites[TG_SITES];
} tg_rank_slot;

/* The rank slots that one rank can see. */
typedef struct tg_recorder {
    tg_ctx *ctx; /* describes call sites; NULL: the recorder is read without a context */
    int refs;
    tg_rank_slot *rank_slot; /* the first is that of rank `first` */
    int n, first, size; /* number of slots; rank of the first slot; number of all ranks */
    int me; /* index of this rank's slot */
    bool threads; /* all ranks are threads of one process, so code addresses are valid on all of them */
    bool own;     /* the recorder owns its one slot */
} tg_recorder;

/* Makes a recorder over these n rank slots. rank_slots NULL: it gets one slot of its own, for rank `first` of `size`.
 * Returns NULL after recording the error. */
TG_PRIVATE_API tg_recorder *tg_recorder_new(tg_ctx *ctx, tg_rank_slot *rank_slots, int n, int first, int size, int me,
                                            bool threads);
TG_PRIVATE_API void tg_recorder_unref(tg_ctx *ctx, tg_recorder *b);

/* ---- Entries of calls ---- */

uint64_t tg_recorder_now(void); /* nanoseconds */
/* Adds a call to the rank's own slot. Returns its index. */
uint64_t tg_recorder_post(tg_recorder *b, tg_call_entry *entry);
uint64_t tg_recorder_calls(const tg_recorder *b); /* returns the number of calls of this rank */
/* Stores the description of a call site in the rank's own slot, so that other ranks can quote it. Does nothing if the 8
 * places for this site are taken by others. */
void tg_recorder_keep_site(tg_recorder *b, uint64_t site);
/* Marks a call of this rank as done or, if `done` is false, as failed. Does nothing if a later call has overwritten the
 * entry, or if index is 0. */
TG_PRIVATE_API void tg_recorder_finish(tg_recorder *b, uint64_t index, bool done);
/* Reads an entry. Returns false if index is 0, or if a later call has overwritten the entry or is doing so. */
bool tg_rank_slot_entry(const tg_rank_slot *c, uint64_t index, tg_call_entry *entry);
/* Reads the latest entry. Returns false if the rank has made no call. */
bool tg_rank_slot_last(const tg_rank_slot *c, tg_call_entry *entry);

/* ---- Texts (flight_text.c) ---- */

/* Writes a call as "all_reduce(f32, 5 elements, sum)". */
void tg_call_entry_text(const tg_call_entry *entry, char *buf, size_t n, size_t *at);
/* Writes the description that the slot's rank has stored for a call site; the address if it has stored none. */
void tg_rank_slot_site(const tg_rank_slot *c, uint64_t site, char *buf, size_t n);
/* Writes the description of a call site of slot i's rank. */
void tg_recorder_site(const tg_recorder *b, int i, uint64_t site, char *buf, size_t n);
/* Writes the entries of all slots. Returns the length as snprintf does. ctx: the context of this rank, for the calls
 * of its replayed steps; may be NULL. */
size_t tg_recorder_print(const tg_recorder *b, tg_ctx *ctx, tg_format format, char *buf, size_t n);
/* Writes the last call of slot i's rank: what it was, whether it is done, and where it was made. */
void tg_recorder_last_call(const tg_recorder *b, int i, char *buf, size_t n, size_t *at);

#endif
