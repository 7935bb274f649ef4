/* The set of keys that have drawn in the current step. It serves to detect a key that was closed and opened again, and
 * would draw the same numbers. The memory is kept from step to step. */
#include "core/random/keys.h"

#include "base/memory/host_memory.h"
#include "core/context.h"

/* Returns the slot of a stream number: the slot that has it, or the free slot where it belongs. Stream numbers are
 * hashes already, so their low bits select the slot. */
static int *slot_of(const tg_key_notes *k, uint64_t stream) {
    uint64_t at = stream;
    for (;; at++) {
        int *s = &k->slot[at & (uint64_t)(k->slots - 1)];
        if (!*s || k->note[*s - 1].stream == stream) return s;
    }
}

/* Fills the hash table from the notes. */
static void fill_slots(tg_key_notes *k) {
    if (k->slots) memset(k->slot, 0, (size_t)k->slots * sizeof *k->slot);
    for (int i = 0; i < k->n; i++) *slot_of(k, k->note[i].stream) = i + 1;
}

/* Makes room for one more note, with at most half of the slots in use. */
static tg_status make_room(tg_ctx *ctx) {
    tg_key_notes *k = &ctx->key_notes;
    if (!tg_host_grow(ctx, (void **)&k->note, k->n, &k->capacity, sizeof *k->note)) return ctx->run.status;
    if (2 * k->capacity <= k->slots) return TG_OK;
    int *slot = tg_host_alloc(ctx, 2 * (size_t)k->capacity * sizeof *slot);
    if (!slot) return ctx->run.status;
    tg_host_free(ctx, k->slot, (size_t)k->slots * sizeof *slot);
    k->slot = slot;
    k->slots = 2 * k->capacity;
    fill_slots(k);
    return TG_OK;
}

const tg_key_note *tg_key_note_find(const tg_ctx *ctx, uint64_t stream) {
    const tg_key_notes *k = &ctx->key_notes;
    const int *s = k->slots ? slot_of(k, stream) : NULL;
    return s && *s ? &k->note[*s - 1] : NULL;
}

tg_status tg_key_note_add(tg_ctx *ctx, const tg_key_note *note, const tg_key_note **before) {
    tg_key_notes *k = &ctx->key_notes;
    *before = NULL;
    TG_TRY(make_room(ctx));
    int *s = slot_of(k, note->stream);
    if (!*s) {
        k->note[k->n++] = *note;
        *s = k->n;
    } else if (k->note[*s - 1].opening != note->opening) {
        *before = &k->note[*s - 1];
    }
    return TG_OK;
}

void tg_key_notes_keep(tg_ctx *ctx, int n) {
    if (ctx->key_notes.n == n) return;
    ctx->key_notes.n = n;
    fill_slots(&ctx->key_notes);
}

void tg_key_notes_free(tg_ctx *ctx) {
    tg_key_notes *k = &ctx->key_notes;
    tg_host_free(ctx, k->note, (size_t)k->capacity * sizeof *k->note);
    tg_host_free(ctx, k->slot, (size_t)k->slots * sizeof *k->slot);
}
