/* The flight recorder: writing and reading the rank slots, the call sites in them, and the entries of calls.
 * flight_text.c prints them. */
#define _GNU_SOURCE
#include "comm/flight_recorder.h"

#include "base/memory/host_memory.h"

#include <time.h>

_Static_assert(TG_ENTRY_WORDS * sizeof(uint64_t) == sizeof(tg_call_entry), "an entry is whole words");

/* ---- Text ---- */

void tg_shared_text_write(tg_shared_text *b, const char *text) {
    size_t n = strlen(text), capacity = sizeof b->word - 1;
    if (n > capacity) n = capacity;
    uint32_t v = atomic_load_explicit(&b->version, memory_order_relaxed) | 1; /* odd already: a writer died */
    atomic_store_explicit(&b->version, v, memory_order_relaxed);
    for (size_t i = 0; i * 8 <= n; i++) {
        uint64_t word = 0;
        memcpy(&word, text + i * 8, n - i * 8 < 8 ? n - i * 8 : 8);
        atomic_store_explicit(&b->word[i], word, memory_order_release);
    }
    atomic_store_explicit(&b->version, v + 1, memory_order_release);
}

/* Reads a text. Returns false if it was being written meanwhile; then `text` may mix the old and the new one. */
static bool read_once(const tg_shared_text *b, char *text, size_t n) {
    uint32_t v = atomic_load_explicit(&b->version, memory_order_acquire);
    size_t at = 0;
    bool end = false;
    for (int i = 0; i < TG_SHARED_TEXT_WORDS && !end; i++) {
        uint64_t word = atomic_load_explicit(&b->word[i], memory_order_acquire);
        char part[8];
        memcpy(part, &word, 8);
        for (int j = 0; j < 8 && !end; j++) {
            end = !part[j] || at + 1 >= n;
            if (!end) text[at++] = part[j];
        }
    }
    text[at] = 0;
    return !(v & 1) && atomic_load_explicit(&b->version, memory_order_relaxed) == v;
}

/* Reads a text, and tries again while it is being written. If the writer died while writing, the version stays odd;
 * then the result is that of the 1000th attempt. */
void tg_shared_text_read(const tg_shared_text *b, char *text, size_t n) {
    for (int i = 0; n && i < 1000 && !read_once(b, text, n); i++) continue;
}

/* ---- The recorder ---- */

tg_recorder *tg_recorder_new(tg_ctx *ctx, tg_rank_slot *rank_slots, int n, int first, int size, int me, bool threads) {
    tg_recorder *b = tg_host_alloc(ctx, sizeof *b);
    tg_rank_slot *own = b && !rank_slots ? tg_host_alloc(ctx, sizeof *own) : NULL;
    if (!b || (!rank_slots && !own)) {
        tg_host_free(ctx, b, sizeof *b);
        return NULL;
    }
    *b = (tg_recorder){.ctx = ctx,
                       .refs = 1,
                       .rank_slot = own ? own : rank_slots,
                       .n = n,
                       .first = first,
                       .size = size,
                       .me = me,
                       .threads = threads,
                       .own = own != NULL};
    if (own) atomic_store_explicit(&own->state, TG_RANK_RUNNING, memory_order_relaxed);
    return b;
}

void tg_recorder_unref(tg_ctx *ctx, tg_recorder *b) {
    if (!b || --b->refs) return;
    if (b->own) tg_host_free(ctx, b->rank_slot, sizeof *b->rank_slot);
    tg_host_free(ctx, b, sizeof *b);
}

/* ---- Call sites ---- */

/* Writes the description of a call site into the slot when the site is first used. Readers could not make it later:
 * other processes cannot look up this process's addresses, and a signal handler must not look up any. Among threads
 * only the symbol is stored, which costs less: each thread can look up file and line by itself. */
void tg_recorder_keep_site(tg_recorder *b, uint64_t site) {
    tg_rank_slot *c = &b->rank_slot[b->me];
    for (uint64_t i = 0, at = site >> 2; i < 8; i++, at++) {
        _Atomic uint64_t *place = &c->sites[at % TG_SITES].site;
        uint64_t there = atomic_load_explicit(place, memory_order_relaxed);
        if (there == site) return;
        if (there) continue;
        if (b->threads)
            tg_describe_symbol((const void *)(uintptr_t)site, c->sites[at % TG_SITES].text, TG_SITE_TEXT);
        else
            tg_describe_site(b->ctx, (const void *)(uintptr_t)site, c->sites[at % TG_SITES].text, TG_SITE_TEXT);
        atomic_store_explicit(place, site, memory_order_release);
        return;
    }
}

/* ---- Entries of calls ---- */

uint64_t tg_recorder_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

uint64_t tg_recorder_post(tg_recorder *b, tg_call_entry *entry) {
    tg_rank_slot *c = &b->rank_slot[b->me];
    uint64_t word[TG_ENTRY_WORDS];
    if (entry->site) tg_recorder_keep_site(b, entry->site);
    entry->index = atomic_load_explicit(&c->calls, memory_order_relaxed) + 1;
    entry->began = tg_recorder_now();
    memcpy(word, entry, sizeof word);
    _Atomic uint64_t *to = c->ring[entry->index % TG_RING].word;
    atomic_store_explicit(&to[0], 0, memory_order_relaxed);
    for (int i = 1; i < TG_ENTRY_WORDS; i++) atomic_store_explicit(&to[i], word[i], memory_order_release);
    atomic_store_explicit(&to[0], entry->index, memory_order_release);
    atomic_store_explicit(&c->calls, entry->index, memory_order_release);
    return entry->index;
}

uint64_t tg_recorder_calls(const tg_recorder *b) {
    return atomic_load_explicit(&b->rank_slot[b->me].calls, memory_order_relaxed);
}

bool tg_rank_slot_entry(const tg_rank_slot *c, uint64_t index, tg_call_entry *entry) {
    const _Atomic uint64_t *from = c->ring[index % TG_RING].word;
    uint64_t word[TG_ENTRY_WORDS];
    for (int i = 0; i < TG_ENTRY_WORDS; i++) word[i] = atomic_load_explicit(&from[i], memory_order_acquire);
    memcpy(entry, word, sizeof word);
    entry->group[sizeof entry->group - 1] = 0;
    return index && entry->index == index && atomic_load_explicit(&from[0], memory_order_relaxed) == index;
}

/* Does not clear the entry's index during the write, because the state and the end time are in one word each: a reader
 * sees either the old or the new value. */
void tg_recorder_finish(tg_recorder *b, uint64_t index, bool done) {
    tg_rank_slot *c = &b->rank_slot[b->me];
    tg_call_entry entry;
    if (!tg_rank_slot_entry(c, index, &entry)) return;
    entry.state = done ? TG_CALL_DONE : TG_CALL_FAILED;
    entry.ended = tg_recorder_now();
    uint64_t word[TG_ENTRY_WORDS];
    memcpy(word, &entry, sizeof word);
    _Atomic uint64_t *to = c->ring[index % TG_RING].word;
    atomic_store_explicit(&to[TG_ENTRY_WORDS - 1], word[TG_ENTRY_WORDS - 1], memory_order_relaxed);
    atomic_store_explicit(&to[1], word[1], memory_order_release);
}

bool tg_rank_slot_last(const tg_rank_slot *c, tg_call_entry *entry) {
    for (int i = 0; i < 100; i++) {
        uint64_t calls = atomic_load_explicit(&c->calls, memory_order_acquire);
        if (!calls) return false;
        if (tg_rank_slot_entry(c, calls, entry)) return true;
    }
    return false;
}
