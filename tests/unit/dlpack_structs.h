/* Shared by the tests of DLPack: exports in both versions of the struct, handled as one; and an allocator that counts
 * and fails. */
#ifndef TG_TEST_DLPACK_STRUCTS_H
#define TG_TEST_DLPACK_STRUCTS_H

#include "world.h"

#include "core/tensor/dlpack.h"
#include "counted_allocator.h"

typedef struct exported {
    struct DLManagedTensor *unversioned;
    struct DLManagedTensorVersioned *versioned;
} exported;

static inline exported export_as(int version, tg_tensor *x) {
    exported e = {0};
    if (version)
        e.versioned = tg_dlpack_export(x);
    else
        e.unversioned = tg_dlpack_export_unversioned(x);
    return e;
}

static inline tg_dl_tensor *tensor_of(exported e) {
    if (e.versioned) return &((tg_dl_versioned *)e.versioned)->dl_tensor;
    return e.unversioned ? &((tg_dl_unversioned *)e.unversioned)->dl_tensor : NULL;
}

static inline void give_back(exported e) {
    tg_dl_versioned *v = (tg_dl_versioned *)e.versioned;
    tg_dl_unversioned *u = (tg_dl_unversioned *)e.unversioned;
    if (v) v->deleter(v);
    if (u) u->deleter(u);
}

static inline tg_tensor *import(exported e) {
    return e.versioned ? tg_dlpack_import(ctx, e.versioned) : tg_dlpack_import_unversioned(ctx, e.unversioned);
}

static inline void begin_counted(counted *memory) {
    ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1, .dtype = TG_F64,
                               .allocator = {counted_alloc, counted_free, memory}));
    t = tg_tape_new(ctx);
}

#endif
