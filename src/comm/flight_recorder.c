/* The flight recorder: writing and reading the rank slots, the call sites in them, and the entries of calls.
 * flight_text.c prints them. */
#define _GNU_SOURCE
#include "comm/flight_recorder.h"

#include "base/host_memory.h"

#include <time.h>

_Static_assert(TG_NOTE_WORDS * sizeof(uint64_t) == sizeof(tg_note), "a note is whole words");

/* ---- Text ---- */

void tg_box_write(tg_text_box *b, const char *text) {
    size_t n = strlen(text), room = sizeof b->word - 1;
    if (n > room) n = room;
    uint32_t v = atomic_load_explicit(&b->version, memory_order_relaxed);
    atomic_store_explicit(&b->version, v + 1, memory_order_relaxed);
    for (size_t i = 0; i * 8 <= n; i++) {
        uint64_t word = 0;
        memcpy(&word, text + i * 8, n - i * 8 < 8 ? n - i * 8 : 8);
        atomic_store_explicit(&b->word[i], word, memory_order_release);
    }
    atomic_store_explicit(&b->version, v + 2, memory_order_release);
}

static bool read_once(const tg_text_box *b, char *text, size_t n) {
    uint32_t v = atomic_load_explicit(&b->version, memory_order_acquire);
    size_t at = 0;
    bool end = false;
    for (int i = 0; i < TG_BOX_WORDS && !end; i++) {
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

/* If the writer died while writing, the version stays odd, and after 1000 attempts the text is taken as it is. */
void tg_box_read(const tg_text_box *b, char *text, size_t n) {
    for (int i = 0; n && i < 1000 && !read_once(b, text, n); i++) continue;
}

/* ---- The board of rank slots ---- */

tg_board *tg_board_new(tg_ctx *ctx, tg_card *cards, int n, int first, int size, int me, bool threads) {
    tg_board *b = tg_host_alloc(ctx, sizeof *b);
    tg_card *own = b && !cards ? tg_host_alloc(ctx, sizeof *own) : NULL;
    if (!b || (!cards && !own)) {
        tg_host_free(ctx, b, sizeof *b);
        return NULL;
    }
    *b = (tg_board){.refs = 1, .card = own ? own : cards, .n = n, .first = first, .size = size, .me = me,
                    .threads = threads, .own = own != NULL};
    if (own) atomic_store_explicit(&own->state, TG_RANK_RUNNING, memory_order_relaxed);
    return b;
}

void tg_board_unref(tg_ctx *ctx, tg_board *b) {
    if (!b || --b->refs) return;
    if (b->own) tg_host_free(ctx, b->card, sizeof *b->card);
    tg_host_free(ctx, b, sizeof *b);
}

/* ---- Call sites ---- */

/* Describes a call site when it is first met. Later would be too late: other processes cannot look up this process's
 * addresses, and a signal handler must not. Other processes need file and line; among threads the symbol is enough,
 * which costs less, as each can find the line itself. */
void tg_board_keep_site(tg_board *b, uint64_t site) {
    tg_card *c = &b->card[b->me];
    for (uint64_t i = 0, at = site >> 2; i < 8; i++, at++) {
        _Atomic uint64_t *place = &c->sites[at % TG_SITES].site;
        uint64_t there = atomic_load_explicit(place, memory_order_relaxed);
        if (there == site) return;
        if (there) continue;
        if (b->threads)
            tg_describe_symbol((const void *)(uintptr_t)site, c->sites[at % TG_SITES].text, TG_SITE_TEXT);
        else
            tg_describe_site((const void *)(uintptr_t)site, c->sites[at % TG_SITES].text, TG_SITE_TEXT);
        atomic_store_explicit(place, site, memory_order_release);
        return;
    }
}

/* ---- Entries of calls ---- */

uint64_t tg_board_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

uint64_t tg_card_post(tg_board *b, tg_note *note) {
    tg_card *c = &b->card[b->me];
    uint64_t word[TG_NOTE_WORDS];
    if (note->site) tg_board_keep_site(b, note->site);
    note->index = atomic_load_explicit(&c->calls, memory_order_relaxed) + 1;
    note->began = tg_board_now();
    memcpy(word, note, sizeof word);
    _Atomic uint64_t *to = c->ring[note->index % TG_RING].word;
    atomic_store_explicit(&to[0], 0, memory_order_relaxed);
    for (int i = 1; i < TG_NOTE_WORDS; i++) atomic_store_explicit(&to[i], word[i], memory_order_release);
    atomic_store_explicit(&to[0], note->index, memory_order_release);
    atomic_store_explicit(&c->calls, note->index, memory_order_release);
    return note->index;
}

bool tg_card_note(const tg_card *c, uint64_t index, tg_note *note) {
    const _Atomic uint64_t *from = c->ring[index % TG_RING].word;
    uint64_t word[TG_NOTE_WORDS];
    for (int i = 0; i < TG_NOTE_WORDS; i++) word[i] = atomic_load_explicit(&from[i], memory_order_acquire);
    memcpy(note, word, sizeof word);
    note->group[sizeof note->group - 1] = 0;
    return index && note->index == index && atomic_load_explicit(&from[0], memory_order_relaxed) == index;
}

/* Marks a call as done or failed. The entry is written in place without clearing its index: of the words that
 * change, only this rank writes later values. */
void tg_card_settle(tg_board *b, uint64_t index, int state) {
    tg_card *c = &b->card[b->me];
    tg_note note;
    if (!tg_card_note(c, index, &note)) return;
    note.state = (uint8_t)state;
    note.ended = tg_board_now();
    uint64_t word[TG_NOTE_WORDS];
    memcpy(word, &note, sizeof word);
    _Atomic uint64_t *to = c->ring[index % TG_RING].word;
    atomic_store_explicit(&to[TG_NOTE_WORDS - 1], word[TG_NOTE_WORDS - 1], memory_order_relaxed);
    atomic_store_explicit(&to[1], word[1], memory_order_release);
}

bool tg_card_last(const tg_card *c, tg_note *note) {
    for (int i = 0; i < 100; i++) {
        uint64_t calls = atomic_load_explicit(&c->calls, memory_order_acquire);
        if (!calls) return false;
        if (tg_card_note(c, calls, note)) return true;
    }
    return false;
}
