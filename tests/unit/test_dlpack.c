/* Tensors exchanged by DLPack: the structs of both versions, who frees the bytes and when, refusals, and failing
 * allocators. tests/bindings does the same with NumPy and PyTorch. */
#include "world.h"

#include <pthread.h>

#include "core/dlpack.h"

/* ---- Both versions of the struct, as one ---- */

typedef struct exported {
    struct DLManagedTensor *unversioned;
    struct DLManagedTensorVersioned *versioned;
} exported;

static exported export_as(int version, tg_tensor *x) {
    exported e = {0};
    if (version)
        e.versioned = tg_dlpack_export(x);
    else
        e.unversioned = tg_dlpack_export_unversioned(x);
    return e;
}

static tg_dl_tensor *tensor_of(exported e) {
    if (e.versioned) return &((tg_dl_versioned *)e.versioned)->dl_tensor;
    return e.unversioned ? &((tg_dl_unversioned *)e.unversioned)->dl_tensor : NULL;
}

static void give_back(exported e) {
    tg_dl_versioned *v = (tg_dl_versioned *)e.versioned;
    tg_dl_unversioned *u = (tg_dl_unversioned *)e.unversioned;
    if (v) v->deleter(v);
    if (u) u->deleter(u);
}

static tg_tensor *import(exported e) {
    return e.versioned ? tg_dlpack_import(ctx, e.versioned) : tg_dlpack_import_unversioned(ctx, e.unversioned);
}

static int64_t live(void) {
    tg_memory_info info = TG_MEMORY_INFO();
    tg_memory_query(ctx, &info);
    return info.live;
}

/* ---- Export ---- */

START_TEST(the_struct_describes_the_tensor) {
    for (int version = 0; version < 2; version++) {
        begin();
        int64_t before = live();
        tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(2, 3)), *y = tg_transpose(t, x, 0, 1);
        tg_tensor *last = tg_slice(t, y, 0, 2, 3, 1);
        exported e = export_as(version, last);
        tg_dl_tensor *d = tensor_of(e);
        ck_assert(d && d->data == (char *)bytes_of(x) + 8 && d->byte_offset == 0);
        ck_assert(d->ndim == 2 && d->shape[0] == 1 && d->shape[1] == 2 && d->strides[0] == 1 && d->strides[1] == 3);
        ck_assert(d->dtype.code == 2 && d->dtype.bits == 32 && d->dtype.lanes == 1);
        ck_assert_int_eq(d->device.device_type, test_on_host() ? 1 : 2);
        ck_assert_int_eq(d->device.device_id, 0);
        if (e.versioned) {
            const tg_dl_versioned *v = (tg_dl_versioned *)e.versioned;
            ck_assert(v->version.major == 1 && v->flags == 0);
        }
        give_back(e);
        tg_tape_reset(t);
        tg_drop(x);
        ck_assert_int_eq(live(), before);
        end();
    }
}
END_TEST

START_TEST(every_dtype_and_shape_goes_there_and_back) {
    static const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_BF16, TG_F16, TG_I64, TG_I32, TG_U8, TG_BOOL};
    const tg_shape shapes[] = {TG_SHAPE(), TG_SHAPE(5), TG_SHAPE(0, 3), TG_SHAPE(1, 2, 1, 2, 1, 2, 1, 2)};
    begin();
    for (int i = 0; i < 2 * 8 * 4; i++) {
        tg_tensor *x = tg_zeros(ctx, dtypes[i / 2 % 8], shapes[i / 16]);
        exported e = export_as(i % 2, x);
        ck_assert(!tensor_of(e)->data == !tg_numel(x));
        tg_tensor *y = import(e);
        ck_assert(tg_dtype_of(y) == tg_dtype_of(x) && tg_ndim(y) == tg_ndim(x) && tg_numel(y) == tg_numel(x));
        ck_assert(!tg_numel(x) || bytes_of(y) == bytes_of(x));
        for (int k = 0; k < tg_ndim(x); k++) ck_assert_int_eq(tg_dim(y, k), tg_dim(x, k));
    }
    end();
}
END_TEST

START_TEST(writes_are_seen_on_both_sides) {
    begin();
    double v[6] = {1, 2, 3, 4, 5, 6};
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(2, 3), v), *y = import(export_as(1, tg_transpose(t, x, 0, 1)));
    ck_assert(tg_dim(y, 0) == 3 && tg_stride(y, 0) == 1 && tg_stride(y, 1) == 3);
    tg_read(y, v, sizeof v);
    ck_assert(v[0] == 1 && v[1] == 4 && v[2] == 2);
    tg_write(y, (double[]){10, 40, 20, 50, 30, 60}, sizeof v);
    tg_read(x, v, sizeof v);
    ck_assert(v[0] == 10 && v[2] == 30 && v[3] == 40);
    tg_write(x, (double[]){7, 8, 9, 7, 8, 9}, sizeof v);
    tg_read(y, v, sizeof v);
    ck_assert(v[0] == 7 && v[1] == 7 && v[4] == 9);
    end();
}
END_TEST

START_TEST(gradients_reach_an_import) {
    begin();
    double v[3] = {1, 2, 3}, g[3];
    tg_tensor *x = import(export_as(0, tg_from_host(ctx, TG_F64, TG_SHAPE(3), v)));
    tg_set_requires_grad(x, true);
    tg_tensor *loss = tg_sum(t, tg_mul(t, tg_square(t, x), x), TG_ALL_DIMS, false);
    ck_assert(tg_backward(t, loss) == TG_OK);
    tg_read(tg_grad_of(x), g, sizeof g);
    for (int i = 0; i < 3; i++) ck_assert(g[i] == 3 * v[i] * v[i]);
    end();
}
END_TEST

/* ---- The order of ends ---- */

START_TEST(exported_bytes_stay_where_they_are) {
    begin();
    tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(4), 7);
    exported e = export_as(1, x);
    void *at = tensor_of(e)->data;
    ck_assert(tg_discard(x) == TG_ERR_STATE);
    ck_says("tg_discard: the tensor is pinned or exported; call tg_unpin or the deleter first");
    tg_ctx_clear(ctx);
    for (int i = 0; i < 3; i++) {
        tg_tape_reset(t);
        ck_assert(bytes_of(tg_full(t, TG_F64, TG_SHAPE(4), i)) != at);
    }
    double v[4];
    peek(ctx, v, at, sizeof v);
    ck_assert(v[0] == 7 && v[3] == 7);
    give_back(e);
    tg_tape_reset(t);
    end();
}
END_TEST

/* An allocator whose fail_at-th call fails, and which counts the blocks that it has given. */
typedef struct counted {
    _Atomic int64_t calls, fail_at, held;
} counted;

static void *counted_alloc(void *user, size_t bytes, size_t align) {
    counted *c = user;
    if (++c->calls == c->fail_at) return NULL;
    c->held++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void counted_free(void *user, void *p, size_t bytes) {
    (void)bytes;
    ((counted *)user)->held--;
    free(p);
}

static void begin_counted(counted *memory) {
    ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1, .dtype = TG_F64,
                               .allocator = {counted_alloc, counted_free, memory}));
    t = tg_tape_new(ctx);
}

static void count(void *user) { ++*(int *)user; }

static void *give_both_back(void *arg) {
    give_back(((exported *)arg)[0]);
    give_back(((exported *)arg)[1]);
    return NULL;
}

START_TEST(exports_outlive_the_context) {
    static double data[4] = {1, 2, 3, 4};
    counted memory = {0};
    pthread_t thread;
    int released = 0;
    begin_counted(&memory);
    tg_tensor *wrapped = test_on_host() ? tg_wrap(ctx, TG_F64, TG_SHAPE(4), NULL, data, count, &released) : NULL;
    exported e[2] = {export_as(0, tg_full(t, TG_F64, TG_SHAPE(4), 7)), export_as(1, wrapped)};
    const double *seven = tensor_of(e[0])->data;
    end();
    ck_assert_int_gt(memory.held, 0);
    ck_assert_int_eq(released, 0);
    ck_assert(!test_on_host() || (seven[0] == 7 && seven[3] == 7));
    ck_assert(!pthread_create(&thread, NULL, give_both_back, e));
    pthread_join(thread, NULL);
    ck_assert_int_eq(released, test_on_host());
    ck_assert_int_eq(memory.held, 0);
}
END_TEST

START_TEST(pins_end_with_the_context) {
    static double data[4] = {1, 2, 3, 4};
    int released = 0;
    if (!test_on_host()) return; /* tg_wrap needs a context on the CPU */
    begin();
    tg_tensor *x = tg_wrap(ctx, TG_F64, TG_SHAPE(4), NULL, data, count, &released);
    ck_assert(tg_pin(x) && tg_pin(x) && tg_pin(tg_full(t, TG_F64, TG_SHAPE(2), 1)));
    exported e = export_as(1, x);
    end();
    ck_assert_int_eq(released, 0);
    give_back(e);
    ck_assert_int_eq(released, 1);
}
END_TEST

enum { THREADS = 4, EACH = 200 };

typedef struct receiver {
    exported of[EACH];
    _Atomic int ready; /* number of exports that may be deleted */
} receiver;

static void *receive(void *arg) {
    receiver *r = arg;
    for (int i = 0; i < EACH; i++) {
        while (atomic_load(&r->ready) <= i) {}
        give_back(r->of[i]);
    }
    return NULL;
}

/* Exports while other threads delete; some deleters run after the context was freed. */
START_TEST(deleters_run_on_any_thread) {
    static receiver r[THREADS];
    counted memory = {0};
    pthread_t thread[THREADS];
    begin_counted(&memory);
    for (int k = 0; k < THREADS; k++) {
        atomic_store(&r[k].ready, 0);
        ck_assert(!pthread_create(&thread[k], NULL, receive, &r[k]));
    }
    for (int i = 0; i < EACH; i++)
        for (int k = 0; k < THREADS; k++) {
            tg_tensor *x = i % 2 ? tg_full(t, TG_F64, TG_SHAPE(8), i) : tg_zeros(ctx, TG_F32, TG_SHAPE(8));
            r[k].of[i] = export_as((i + k) % 2, x);
            tg_drop(x);
            if (i < EACH - 20) atomic_store(&r[k].ready, i + 1);
            if (i % 50 == 49) tg_tape_reset(t);
        }
    end();
    for (int k = 0; k < THREADS; k++) atomic_store(&r[k].ready, EACH);
    for (int k = 0; k < THREADS; k++) pthread_join(thread[k], NULL);
    ck_assert_int_eq(memory.held, 0);
}
END_TEST

START_TEST(a_loop_of_exports_keeps_its_memory) {
    counted memory = {0};
    begin_counted(&memory);
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(8));
    for (int i = 0; i < 3; i++) give_back(export_as(i % 2, x));
    int64_t held = memory.held;
    for (int i = 0; i < 100; i++) give_back(export_as(i % 2, x));
    ck_assert_int_eq(memory.held, held);
    end();
}
END_TEST

/* ---- Imports from another library ---- */

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

/* ---- Read-only memory ---- */

START_TEST(read_only_memory_stays_so) {
    begin();
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(2));
    tg_set_read_only(x, true);
    exported e = export_as(1, x);
    ck_assert(((tg_dl_versioned *)e.versioned)->flags == 1);
    ck_assert(!export_as(0, x).unversioned);
    ck_status(TG_ERR_STATE);
    ck_says("tg_dlpack_export_unversioned: the tensor's memory is read-only, which DLManagedTensor cannot say; use "
            "tg_dlpack_export");
    tg_ctx_clear(ctx);
    tg_tensor *y = import(e);
    ck_assert(tg_write(y, (double[]){1, 2}, 16) == TG_ERR_STATE);
    ck_says("tg_write: the tensor's memory is read-only");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

/* ---- Refusals ---- */

/* Exports x in both versions, which must fail with this error. */
static void refuses(tg_tensor *x, tg_status status, const char *text) {
    for (int version = 0; version < 2; version++) {
        exported e = export_as(version, x);
        ck_assert(!e.versioned && !e.unversioned);
        ck_status(status);
        ck_says(version ? "tg_dlpack_export: " : "tg_dlpack_export_unversioned: ");
        ck_says(text);
        tg_ctx_clear(ctx);
    }
}

START_TEST(what_cannot_be_exported_is_refused) {
    begin();
    tg_tensor *x = leaf(3), *y = tg_square(t, x), *gone = tg_full(t, TG_F64, TG_SHAPE(2), 1);
    tg_set_name(x, "x");
    refuses(x, TG_ERR_STATE,
            "x f64[] requires a gradient, and no gradient would flow through the exported tensor; export "
            "what tg_detach or tg_keep returns for it");
    refuses(y, TG_ERR_STATE, "f64[] requires a gradient");
    give_back(export_as(1, tg_detach(t, y)));
    give_back(export_as(0, tg_keep(x)));
    tg_discard(gone);
    ck_assert(!tg_dlpack_export(gone));
    ck_status(TG_ERR_DISCARDED);
    ck_assert(!tg_dlpack_export(x)); /* the context has an error already */
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    refuses(y, TG_ERR_HANDLE, "the tensor was freed when its tape was reset");
    ck_assert(!tg_dlpack_export(NULL) && !tg_dlpack_export_unversioned(NULL));
    end();
    ctx = tg_ctx_new(TG_CONFIG(.device = "meta"));
    refuses(tg_zeros(ctx, TG_F32, TG_SHAPE(2)), TG_ERR_DEVICE,
            "DLPack has no device \"meta\"; expected a context of \"cpu\" or \"cuda\"");
    tg_ctx_free(ctx);
}
END_TEST

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
    } row[] = {{{0, 16, 1}, "dtype int16,"},         {{1, 32, 1}, "dtype uint32,"},
               {{5, 64, 1}, "dtype complex64,"},     {{2, 128, 1}, "dtype float128,"},
               {{10, 8, 1}, "dtype float8_e4m3fn,"}, {{2, 32, 4}, "dtype float32x4,"},
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

START_TEST(any_allocation_may_fail) {
    for (int version = 0; version < 2; version++)
        for (int64_t n = 1, left = 1; left; n++) {
            counted memory = {0};
            begin_counted(&memory);
            tg_tensor *x = tg_full(t, TG_F64, TG_SHAPE(2, 3), 1);
            memory.fail_at = memory.calls + n;
            exported e = export_as(version, x);
            tg_tensor *y = tensor_of(e) ? import(e) : NULL;
            left = memory.calls >= memory.fail_at;
            ck_assert(tg_is_alive(y) == !left);
            ck_status(left ? TG_ERR_MEMORY : TG_OK);
            memory.fail_at = 0;
            tg_ctx_clear(ctx);
            tg_zeros(ctx, TG_F64, TG_SHAPE()); /* does what a deleter has asked for */
            ck_assert(tg_is_alive(x) && tg_discard(x) == (left ? TG_OK : TG_ERR_STATE)); /* no pin was left */
            tg_ctx_clear(ctx);
            end();
            ck_assert_int_eq(memory.held, 0);
            ck_assert_int_lt(n, 20);
        }
}
END_TEST

int main(void) {
    const TTest *tests[] = {the_struct_describes_the_tensor,
                            every_dtype_and_shape_goes_there_and_back,
                            writes_are_seen_on_both_sides,
                            gradients_reach_an_import,
                            exported_bytes_stay_where_they_are,
                            exports_outlive_the_context,
                            pins_end_with_the_context,
                            deleters_run_on_any_thread,
                            a_loop_of_exports_keeps_its_memory,
                            memory_is_given_back_once,
                            the_context_gives_back_what_is_left,
                            strides_and_offsets_are_understood,
                            an_import_is_exported_again,
                            read_only_memory_stays_so,
                            what_cannot_be_exported_is_refused,
                            dtypes_are_refused_by_name,
                            what_cannot_be_imported_is_given_back,
                            any_allocation_may_fail};
    return tg_check_main("dlpack", tests, sizeof tests / sizeof *tests);
}
