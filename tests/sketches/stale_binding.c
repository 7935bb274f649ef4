/* A binding's view: another language holds handles for as long as it likes, in objects that its garbage collector ends
 * in any order. Each object keeps a tg_ref; whatever it does with one whose tensor has gone is answered, never
 * undefined. */
#include <stdio.h>
#include <string.h>

#include <tapegrad/tapegrad.h>

/* What an object of the other language holds. The context outlives all objects made on it. */
typedef struct object {
    tg_ctx *ctx;
    tg_ref ref;
} object;

static object box(tg_ctx *ctx, tg_tensor *x) { return (object){ctx, tg_ref_of(x)}; }
static tg_tensor *unbox(object o) { return tg_ref_get(o.ctx, o.ref); }
static void finalize(object o) { tg_drop(unbox(o)); }

static int failures;

static void expect(bool ok, const char *what) {
    if (!ok) fprintf(stderr, "stale_binding: %s\n", what), failures++;
}

/* The tensor has gone: inert, empty, no error by asking. */
static bool gone(object o) {
    tg_tensor *x = unbox(o);
    return !tg_is_alive(x) && tg_ndim(x) == 0 && tg_numel(x) == 0 && strcmp(tg_name(x), "") == 0 &&
           tg_ctx_status(o.ctx) == TG_OK;
}

/* Use of the stale handle itself is refused, and costs nothing but a clear. */
static bool refused(tg_ctx *ctx, tg_tape *t, tg_tensor *stale) {
    tg_tensor *y = tg_neg(t, stale);
    bool ok = !tg_is_alive(y) && tg_ctx_status(ctx) == TG_ERR_HANDLE && tg_ctx_message(ctx)[0] != '\0';
    tg_ctx_clear(ctx);
    return ok;
}

static void results_end_with_their_tape(tg_ctx *ctx, tg_tape *t, object weight) {
    tg_tensor *raw = tg_exp(t, unbox(weight));
    object result = box(ctx, raw), kept = box(ctx, tg_keep(raw));
    expect(tg_is_alive(unbox(result)) && unbox(result) == raw, "a live reference gives its tensor");
    tg_tape_reset(t);
    expect(gone(result), "a result has gone after reset");
    expect(refused(ctx, t, raw), "the stale handle is refused");
    expect(tg_is_alive(unbox(kept)) && tg_item(unbox(kept)) == 1.0, "a kept handle outlives the tape");
    finalize(kept);
    expect(gone(kept), "a dropped handle has gone");
    finalize(kept);
    finalize(result);
    expect(tg_ctx_status(ctx) == TG_OK, "finalising twice is ignored");
}

static void in_place_supersedes(tg_ctx *ctx, tg_tape *t, object weight) {
    tg_tensor *before = tg_exp(t, unbox(weight));
    object old = box(ctx, before), after = box(ctx, tg_add_(t, before, unbox(weight)));
    expect(!tg_is_alive(before) && gone(old), "the handle before an in-place op has gone");
    expect(tg_item(unbox(after)) == 1.0, "the handle after it has the result");
    expect(refused(ctx, t, before), "the superseded handle is refused");
    tg_tape_reset(t);
}

/* Slots of handles are used again; a reference never takes the new tenant for its own. */
static void references_outlive_reuse(tg_ctx *ctx, tg_tape *t, object weight) {
    object first = box(ctx, tg_exp(t, unbox(weight)));
    tg_tape_reset(t);
    for (int i = 0; i < 1000; i++) {
        tg_tensor *x = unbox(weight);
        for (int j = 0; j < 8; j++) x = tg_neg(t, x);
        tg_tape_reset(t);
        expect(gone(first), "reused slots answer an old reference as gone");
    }
}

static void references_are_of_one_context(tg_ctx *ctx, object weight) {
    tg_ctx *other = tg_ctx_new(NULL);
    tg_tape *t = tg_tape_new(other);
    expect(!tg_is_alive(tg_ref_get(other, weight.ref)), "another context does not know the reference");
    tg_tensor *y = tg_neg(t, unbox(weight));
    expect(!tg_is_alive(y) && tg_ctx_status(other) == TG_ERR_HANDLE,
           "a foreign tensor is refused, in the tape's context");
    expect(tg_ctx_status(ctx) == TG_OK, "the tensor's own context has no error");
    tg_tape_free(t);
    tg_ctx_free(other);
}

int main(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = 1, .threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    object weight = box(ctx, tg_param(ctx, "weight", TG_SHAPE(1), 0)), none = box(ctx, NULL);
    expect(gone(none), "a reference to nothing gives an inert tensor");

    results_end_with_their_tape(ctx, t, weight);
    in_place_supersedes(ctx, t, weight);
    references_outlive_reuse(ctx, t, weight);
    references_are_of_one_context(ctx, weight);
    expect(strcmp(tg_name(unbox(weight)), "weight") == 0, "the parameter was there all along");
    finalize(weight);
    expect(gone(weight), "and has gone when dropped");

    expect(tg_ctx_status(ctx) == TG_OK, tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return failures != 0;
}
