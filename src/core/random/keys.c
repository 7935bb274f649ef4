/* Keyed random draws: opening and closing keys, the step, and taking draws by key or by order. */
#include "core/random/keys.h"

#include <inttypes.h>

#include "base/text.h"
#include "core/capture/capture.h"
#include "core/random/rng.h"

/* Combines two numbers: returns the output b + 1 of the generator SplitMix64 that starts from state a (Steele, Lea and
 * Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). */
static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t z = a + 0x9E3779B97F4A7C15u * (b + 1);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

bool tg_is_keyed(const tg_ctx *ctx) { return ctx->keys.depth && !ctx->streams.by_order; }

uint64_t tg_key_seed(const tg_ctx *ctx, uint64_t seed) {
    return ctx->keys.step ? mix(seed, ctx->keys.step) : seed;
}

/* Bit 62 of the number is set, so it differs from those of draws by order. */
uint64_t tg_key_stream(const tg_keys *k, uint64_t root, uint64_t micro, const uint64_t *inner, int n) {
    const uint64_t keyed = (uint64_t)1 << 62;
    uint64_t s = mix(root, micro);
    for (int i = 0; i < k->depth; i++) s = mix(s, k->level[i].key);
    for (int i = 0; i < n; i++) s = mix(s, inner[i]);
    return (s & (keyed - 1)) | keyed;
}

/* ---- Opening and closing ---- */

tg_status tg_key_open_at(tg_ctx *ctx, uint64_t key, const void *site) {
    if (!ctx || ctx->run.dead) return tg_ctx_status(ctx);
    tg_keys *k = &ctx->keys;
    if (++k->opens > TG_KEY_LEVELS)
        return tg_fail(ctx, TG_ERR_STATE, "tg_key_open: %d keys are open, which is the most; call tg_key_close first",
                       TG_KEY_LEVELS);
    k->level[k->depth++] = (tg_key_level){key, ++ctx->key_notes.openings, k->counter, site};
    k->counter = 0;
    return ctx->run.status;
}

/* Every open needs a close, even if the context has an error, which may be cleared between the two. So an open that
 * fails still counts. */
tg_status tg_key_open(tg_ctx *ctx, uint64_t key) { return tg_key_open_at(ctx, key, TG_SITE); }

tg_status tg_key_close(tg_ctx *ctx) {
    if (!ctx || ctx->run.dead) return tg_ctx_status(ctx);
    if (ctx->keys.opens)
        tg_keys_unwind(ctx, ctx->keys.opens - 1);
    else if (ctx->run.status == TG_OK)
        return tg_fail(ctx, TG_ERR_STATE, "tg_key_close: no key is open; call tg_key_open first");
    return ctx->run.status;
}

/* Only the first TG_KEY_LEVELS opens have opened a key. */
void tg_keys_unwind(tg_ctx *ctx, int n) {
    tg_keys *k = &ctx->keys;
    if (k->opens > n) k->opens = n;
    while (k->depth > k->opens) k->counter = k->level[--k->depth].outer;
}

/* ---- Steps ---- */

void tg_keys_begin_step(tg_ctx *ctx, uint64_t step) {
    ctx->keys.step = step;
    tg_key_notes_keep(ctx, 0);
}

tg_status tg_draws_step(tg_ctx *ctx, uint64_t step) {
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_recording_refuse(ctx, "tg_draws_step", TG_RECORDING_STREAM, TG_SITE));
    if (ctx->keys.depth)
        return tg_fail(ctx, TG_ERR_STATE, "tg_draws_step: %s %s open, expected none; call tg_key_close first",
                       tg_count(ctx->keys.depth, "key").text, ctx->keys.depth == 1 ? "is" : "are");
    tg_keys_begin_step(ctx, step);
    return TG_OK;
}

/* ---- Draws ---- */

/* Writes the open keys, outermost first, as "3/7". */
static const char *path_of(const tg_keys *k, char *buf, size_t n) {
    size_t at = 0;
    for (int i = 0; i < k->depth; i++) tg_text(buf, n, &at, "%s%" PRIu64, i ? "/" : "", k->level[i].key);
    return buf;
}

static tg_status fail_again(tg_ctx *ctx, uint64_t micro, const tg_key_note *before, const tg_key_note *now) {
    char first[192], again[192], path[400];
    tg_describe_site(ctx, before->site, first, sizeof first);
    tg_describe_site(ctx, now->site, again, sizeof again);
    return tg_fail(ctx, TG_ERR_STATE,
                   "random draws: key %s of micro-batch %" PRIu64 ", opened at %s, has drawn in step %" PRIu64
                   " already, when it was opened at %s, and would draw the same numbers; call tg_draws_step before a "
                   "new step and tg_tape_key before a further micro-batch, or open another key",
                   path_of(&ctx->keys, path, sizeof path), micro, again, ctx->keys.step, first);
}

/* Notes that the innermost key draws. Fails if an earlier opening of the key has drawn in this step already. */
static tg_status note(tg_ctx *ctx, uint64_t stream, uint64_t micro) {
    const tg_key_level *l = &ctx->keys.level[ctx->keys.depth - 1];
    const tg_key_note now = {stream, l->opening, l->site}, *before;
    TG_TRY(tg_key_note_add(ctx, &now, &before));
    return before ? fail_again(ctx, micro, before, &now) : TG_OK;
}

tg_status tg_rng_take(tg_ctx *ctx, tg_rng *stream, uint64_t micro, int64_t n, tg_draws *out) {
    bool keyed = tg_is_keyed(ctx);
    tg_keys *k = &ctx->keys;
    *out = (tg_draws){.rng = *stream};
    if (keyed)
        out->rng = (tg_rng){tg_key_seed(ctx, stream->seed), tg_key_stream(k, stream->stream, micro, NULL, 0),
                            k->counter};
    if (TG_UNLIKELY(ctx->capture != NULL) && n) TG_TRY(tg_capture_draws(ctx, stream, micro, out));
    if (!keyed) {
        stream->counter += (uint64_t)n;
        return TG_OK;
    }
    if (n && !k->repeats) TG_TRY(note(ctx, out->rng.stream, micro));
    k->counter += (uint64_t)n;
    return TG_OK;
}

void tg_rng_give_back(tg_ctx *ctx, tg_rng *stream, int64_t n) {
    *(tg_is_keyed(ctx) ? &ctx->keys.counter : &stream->counter) -= (uint64_t)n;
}
