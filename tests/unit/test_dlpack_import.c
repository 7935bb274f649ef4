/* Tensors imported by DLPack from another library, which is the test: its memory is given back once, strides and
 * offsets are understood, and what has no place here is refused. */
#include "dlpack_structs.h"

/* A struct of the test's own on host memory, which counts the calls of its deleter. */
typedef struct foreign {
    tg_dl_unversioned unversioned;
    tg_dl_versioned versioned;
    double data[6];
    int64_t shape[9], strides[9];
    int deleted;
} foreign;

static void foreign_unversioned(tg_dl_unversioned *self) { ((foreign *)self->manager_ctx)->deleted++; }
static void foreign_versioned(tg_dl_versioned *self) { ((foreign *)self->manager_ctx)->deleted++; }

static void foreign_new(foreign *f) {
    *f = (foreign){.data = {1, 2, 3, 4, 5, 6}, .shape = {2, 3}, .strides = {3, 1}};
    f->unversioned = (tg_dl_unversioned){
        .dl_tensor = {.data = f->data, .device = {1, 0}, .ndim = 2, .dtype = {2, 64, 1}, .shape = f->shape},
        .manager_ctx = f,
        .deleter = foreign_unversioned};
    f->versioned = (tg_dl_versioned){
        .version = {1, 3}, .manager_ctx = f, .deleter = foreign_versioned, .dl_tensor = f->unversioned.dl_tensor};
}

static tg_tensor *import_foreign(foreign *f, int version) {
    return version ? tg_dlpack_import(ctx, (struct DLManagedTensorVersioned *)&f->versioned)
                   : tg_dlpack_import_unversioned(ctx, (struct DLManagedTensor *)&f->unversioned);
}

START_TEST(memory_is_given_back_once) {
    if (!test_on_host()) return; /* the memory is the host's */
    for (int version = 0; version < 2; version++) {
        foreign f;
        foreign_new(&f);
        begin();
        tg_tensor *x = import_foreign(&f, version), *y = tg_square(t, x);
        ck_assert(tg_host_data(x) == f.data && tg_is_contiguous(x));
        tg_set_requires_grad(x, true);
        y = tg_square(t, x);
        tg_drop(x);
        ck_assert_int_eq(f.deleted, 0); /* the node needs it */
        ck_assert(tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false)) == TG_OK);
        tg_tape_reset(t);
        ck_assert_int_eq(f.deleted, 1);
        end();
        ck_assert_int_eq(f.deleted, 1);
    }
}
END_TEST

START_TEST(the_context_gives_back_what_is_left) {
    if (!test_on_host()) return;
    foreign f, without;
    foreign_new(&f);
    foreign_new(&without);
    without.versioned.deleter = NULL;
    begin();
    import_foreign(&f, 0);
    import_foreign(&without, 1);
    end();
    ck_assert(f.deleted == 1 && without.deleted == 0);
}
END_TEST

START_TEST(strides_and_offsets_are_understood) {
    if (!test_on_host()) return;
    double v[6];
    foreign f;
    foreign_new(&f);
    tg_dl_tensor *d = &f.versioned.dl_tensor;
    d->strides = f.strides;
    f.strides[0] = -3;
    f.strides[1] = -1;
    d->byte_offset = 5 * sizeof *f.data;
    begin();
    tg_tensor *x = import_foreign(&f, 1);
    tg_read(x, v, sizeof v);
    ck_assert(v[0] == 6 && v[5] == 1 && tg_host_data(x) == &f.data[5]);
    f.strides[0] = 0;
    f.strides[1] = -2;
    x = import_foreign(&f, 1);
    tg_read(x, v, sizeof v);
    ck_assert(v[0] == 6 && v[1] == 4 && v[2] == 2 && v[3] == 6);
    d->ndim = 0;
    d->shape = d->strides = NULL;
    ck_assert(tg_item(import_foreign(&f, 1)) == 6);
    d->device.device_type = 3; /* pinned by CUDA */
    ck_assert(tg_item(import_foreign(&f, 1)) == 6);
    end();
    ck_assert_int_eq(f.deleted, 4);
}
END_TEST

START_TEST(an_import_is_exported_again) {
    if (!test_on_host()) return;
    foreign f;
    foreign_new(&f);
    begin();
    exported e = export_as(1, import_foreign(&f, 0));
    ck_assert(tensor_of(e)->data == f.data);
    end();
    ck_assert_int_eq(f.deleted, 0);
    give_back(e);
    ck_assert_int_eq(f.deleted, 1);
}
END_TEST

/* ---- Refusals ---- */

/* Imports f, which must fail with this error and call the deleter once. Makes f whole again. */
static void rejects(foreign *f, tg_status status, const char *text) {
    f->versioned.dl_tensor = f->unversioned.dl_tensor;
    for (int version = 0; version < 2; version++) {
        f->deleted = 0;
        ck_assert(!tg_is_alive(import_foreign(f, version)));
        ck_assert_int_eq(f->deleted, 1);
        ck_status(status);
        ck_says(version ? "tg_dlpack_import: " : "tg_dlpack_import_unversioned: ");
        ck_says(text);
        tg_ctx_clear(ctx);
    }
    foreign_new(f);
}

START_TEST(dtypes_are_refused_by_name) {
    static const struct {
        tg_dl_dtype dtype;
        const char *name;
    } row[] = {{{0, 128, 1}, "dtype int128,"},       {{1, 4, 1}, "dtype uint4,"},
               {{5, 64, 1}, "dtype complex64,"},     {{2, 128, 1}, "dtype float128,"},
               {{11, 8, 1}, "dtype float8_e4m3fnuz,"}, {{2, 32, 4}, "dtype float32x4,"},
               {{17, 4, 2}, "float4_e2m1fnx2,"},     {{3, 64, 1}, "dtype opaque64,"},
               {{4, 32, 1}, "dtype bfloat32,"},      {{99, 7, 1}, "of code 99 with bits 7,"},
               {{6, 32, 1}, "dtype bool32,"}};
    foreign f;
    foreign_new(&f);
    begin();
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        f.unversioned.dl_tensor.dtype = row[i].dtype;
        rejects(&f, TG_ERR_DTYPE, row[i].name);
    }
    end();
}
END_TEST

START_TEST(what_cannot_be_imported_is_given_back) {
    if (!test_on_host()) return;
    foreign f;
    foreign_new(&f);
    tg_dl_tensor *d = &f.unversioned.dl_tensor;
    begin();
    d->device = (tg_dl_device){2, 1};
    rejects(&f, TG_ERR_DEVICE,
            "the memory is on device type 2, number 1 of DLPack, but the context is on type 1, number 0");
    d->ndim = 9;
    rejects(&f, TG_ERR_SHAPE, "9 dims, expected 0 to 8");
    d->ndim = -1;
    rejects(&f, TG_ERR_SHAPE, "-1 dims, expected 0 to 8");
    d->shape = NULL;
    rejects(&f, TG_ERR_ARGUMENT, "the shape is NULL");
    f.shape[1] = -3;
    rejects(&f, TG_ERR_SHAPE, "dim 1 is -3, expected 0 or more");
    d->byte_offset = 4;
    rejects(&f, TG_ERR_ARGUMENT, "expected memory aligned to 8 bytes");
    d->data = NULL;
    rejects(&f, TG_ERR_ARGUMENT, "expected memory aligned to 8 bytes");
    d->strides = f.strides;
    f.strides[0] = INT64_MAX;
    rejects(&f, TG_ERR_ARGUMENT, "the strides span more bytes than 63 bits can count");
    f.versioned.version.major = 2;
    f.versioned.dl_tensor.shape = NULL; /* of another version, so it is not read */
    ck_assert(!tg_is_alive(import_foreign(&f, 1)) && f.deleted == 1);
    ck_status(TG_ERR_UNSUPPORTED);
    ck_says("tg_dlpack_import: version 2.3 of DLPack, expected 1.x");
    ck_assert(!tg_is_alive(import_foreign(&f, 0)) && f.deleted == 2); /* the context has an error already */
    tg_ctx_clear(ctx);
    ck_assert(!tg_is_alive(tg_dlpack_import(NULL, (struct DLManagedTensorVersioned *)&f.versioned)) && f.deleted == 3);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {memory_is_given_back_once,          the_context_gives_back_what_is_left,
                            strides_and_offsets_are_understood, an_import_is_exported_again,
                            dtypes_are_refused_by_name,         what_cannot_be_imported_is_given_back};
    return tg_check_main("dlpack_import", tests, sizeof tests / sizeof *tests);
}
