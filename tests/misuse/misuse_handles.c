/* How long handles and bytes last, DLPack, leaves that a tape owns, the program's source, and values as text. */
#include "misuse/misuse.h"

#include <math.h>
#include <tapegrad/dlpack.h>

/* ---- Handles ---- */

static void handles(misuse_world *b) {
    tg_ref r = tg_ref_of(b->x);
    QUIET(tg_hold, !tg_hold(NULL) && !tg_hold(b->inert) && !tg_hold(b->reset) && !tg_hold(b->dropped));
    QUIET(tg_unhold, (tg_unhold(NULL), tg_unhold(b->inert), tg_unhold(b->reset), tg_unhold(b->x), tg_is_alive(b->x)));
    QUIET(tg_release, (tg_release(NULL), tg_release(b->inert), tg_release(b->reset), tg_release(b->dropped), true));
    QUIET(tg_release, (tg_release(b->held), tg_release(b->released), tg_release(b->reset_next), true));
    QUIET(tg_drop_later, (tg_drop_later(NULL, r), tg_drop_later(b->ctx, (tg_ref){0}), tg_is_alive(b->x)));
    QUIET(tg_tape_of, !tg_tape_of(NULL) && !tg_tape_of(b->x) && tg_tape_of(b->r) == b->t);
    DEAD_QUIET(tg_tape_of, !tg_tape_of(x));
    QUIET(tg_tape_collect, (tg_tape_collect(NULL), tg_tape_collect(b->freed), tg_tape_collect(b->inert_t), true));
    QUIET(tg_tape_epoch, !tg_tape_epoch(NULL) && !tg_tape_epoch(b->freed) && tg_tape_epoch(b->t));
}

/* ---- Bytes ---- */

static void bytes(misuse_world *b) {
    QUIET(tg_pin, !tg_pin(NULL));
    EACH_DEAD(x) GIVES(tg_pin, HANDLE, "the tensor", !tg_pin(x));
    GIVES(tg_pin, DISCARDED, "tg_discard", !tg_pin(b->gone));
    QUIET(tg_unpin, (tg_unpin(NULL), true));
    QUIET(tg_rehome, tg_rehome(NULL, b->x) == TG_ERR_ARGUMENT);
    DEAD_STATUS(tg_rehome, tg_rehome(x, b->x));
    EACH_DEAD(x) GIVES(tg_rehome, HANDLE, "tg_rehome: view", tg_rehome(b->x, x) != TG_OK);
    FAILS(tg_rehome, SHAPE, "number of elements", tg_rehome(b->x, b->v));
    QUIET(tg_touch, tg_touch(NULL) == TG_ERR_ARGUMENT);
    DEAD_STATUS(tg_touch, tg_touch(x));
    FAILS(tg_touch, DISCARDED, "tg_discard", tg_touch(b->gone));
    QUIET(tg_set_read_only, tg_set_read_only(NULL, true) == TG_ERR_ARGUMENT);
    DEAD_STATUS(tg_set_read_only, tg_set_read_only(x, true));
}

/* ---- DLPack ---- */

static void dlpack(misuse_world *b) {
    QUIET(tg_dlpack_export, !tg_dlpack_export(NULL));
    EACH_DEAD(x) GIVES(tg_dlpack_export, HANDLE, "the tensor", !tg_dlpack_export(x));
    GIVES(tg_dlpack_export, DISCARDED, "tg_discard", !tg_dlpack_export(b->gone));
    GIVES(tg_dlpack_export, STATE, "requires a gradient", !tg_dlpack_export(b->w));
    QUIET(tg_dlpack_export_unversioned, !tg_dlpack_export_unversioned(NULL));
    EACH_DEAD(x) GIVES(tg_dlpack_export_unversioned, HANDLE, "the tensor", !tg_dlpack_export_unversioned(x));
    GIVES(tg_dlpack_export_unversioned, DISCARDED, "tg_discard", !tg_dlpack_export_unversioned(b->gone));
    GIVES(tg_dlpack_export_unversioned, STATE, "requires a gradient", !tg_dlpack_export_unversioned(b->r));
    QUIET(tg_dlpack_import, misuse_inert(tg_dlpack_import(NULL, NULL)));
    INERT(tg_dlpack_import, ARGUMENT, "the struct is NULL", tg_dlpack_import(b->ctx, NULL));
    QUIET(tg_dlpack_import_unversioned, misuse_inert(tg_dlpack_import_unversioned(NULL, NULL)));
    INERT(tg_dlpack_import_unversioned, ARGUMENT, "the struct is NULL", tg_dlpack_import_unversioned(b->ctx, NULL));
}

/* ---- Leaves of a tape ---- */

#define LEAF(symbol, make)                                                                                             \
    do {                                                                                                               \
        tg_tape *on = NULL;                                                                                            \
        tg_shape s = TG_SHAPE(2);                                                                                      \
        QUIET(symbol, misuse_inert(make));                                                                             \
        on = b->freed;                                                                                                 \
        INERT(symbol, HANDLE, "freed", make);                                                                          \
        on = b->t;                                                                                                     \
        s = TG_SHAPE(2, -1);                                                                                           \
        INERT(symbol, SHAPE, "dim 1 is -1, expected 0 or more", make);                                                 \
        s = TG_SHAPE(INT64_MAX, 2);                                                                                    \
        INERT(symbol, SHAPE, "overflows", make);                                                                       \
        s = TG_SHAPE((int64_t)1 << 50);                                                                                \
        INERT(symbol, MEMORY, "bytes were asked for", make);                                                           \
    } while (0)

static void leaves(misuse_world *b) {
    static const float data[2];
    LEAF(tg_input, tg_input(on, TG_F32, s, data));
    LEAF(tg_tape_randn, tg_tape_randn(on, TG_F32, s, 1));
    LEAF(tg_tape_uniform, tg_tape_uniform(on, TG_F32, s, 0, 1));
    INERT(tg_input, ARGUMENT, "data is NULL", tg_input(b->t, TG_F32, TG_SHAPE(2), NULL));
    INERT(tg_input, DTYPE, "expected one of", tg_input(b->t, (tg_dtype)99, TG_SHAPE(2), data));
    INERT(tg_tape_randn, ARGUMENT, "std is nan", tg_tape_randn(b->t, TG_F32, TG_SHAPE(2), NAN));
    INERT(tg_tape_randn, DTYPE, "i64, expected a float", tg_tape_randn(b->t, TG_I64, TG_SHAPE(2), 1));
    INERT(tg_tape_uniform, ARGUMENT, "expected finite lo <= hi", tg_tape_uniform(b->t, TG_F32, TG_SHAPE(2), 1, 0));
    INERT(tg_tape_uniform, DTYPE, "expected a float", tg_tape_uniform(b->t, TG_BOOL, TG_SHAPE(2), 0, 1));
}

/* ---- Source and text ---- */

static void texts(misuse_world *b) {
    char buf[64];
    QUIET(tg_tape_set_site, tg_tape_set_site(NULL, "a.py", 1) == TG_ERR_ARGUMENT);
    FAILS(tg_tape_set_site, HANDLE, "freed", tg_tape_set_site(b->freed, "a.py", 1));
    QUIET(tg_print, tg_print(NULL, buf, sizeof buf, NULL) == 0 && !*buf);
    EACH_DEAD(x) GIVES(tg_print, HANDLE, "the tensor", tg_print(x, buf, sizeof buf, NULL) == 0 && !*buf);
    GIVES(tg_print, DISCARDED, "tg_discard", tg_print(b->gone, buf, sizeof buf, NULL) == 0);
    GIVES(tg_print, ARGUMENT, "edge -1", tg_print(b->x, buf, sizeof buf, TG_PRINT(.edge = -1)) == 0);
    GIVES(tg_print, ARGUMENT, "size", tg_print(b->x, buf, sizeof buf, &(tg_print_opts){.size = 4000}) == 0);
}

void misuse_handles(misuse_world *b) {
    handles(b);
    bytes(b);
    dlpack(b);
    leaves(b);
    texts(b);
}
