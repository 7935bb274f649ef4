/* Tensors exported by DLPack: the structs of both versions, what is read-only, refusals, and failing allocators.
 * tests/bindings does the same with NumPy and PyTorch. */
#include "dlpack_structs.h"

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
    const tg_shape shapes[] = {TG_SHAPE(), TG_SHAPE(5), TG_SHAPE(0, 3), TG_SHAPE(1, 2, 1, 2, 1, 2, 1, 2)};
    begin();
    for (int i = 0; i < 2 * 4 * TG_F8E8M0; i++) {
        tg_tensor *x = tg_zeros(ctx, (tg_dtype)(TG_F32 + i / 8), shapes[i / 2 % 4]);
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

/* Imports x, a batch of three 2 x 2 matrices, with the last matrix first. */
static tg_tensor *import_reversed(tg_tensor *x) {
    exported e = export_as(1, x);
    tg_dl_tensor *d = tensor_of(e);
    d->data = (double *)d->data + 8;
    d->strides[0] = -4;
    return import(e);
}

START_TEST(products_take_batches_in_reverse_order) {
    begin();
    double v[12], y[12];
    for (int i = 0; i < 12; i++) v[i] = i;
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(3, 2, 2), v), *r = import_reversed(x);
    tg_tensor *one = tg_from_host(ctx, TG_F64, TG_SHAPE(2, 2), (double[]){1, 0, 0, 1});
    tg_tensor *ones = tg_contiguous(t, tg_expand(t, one, TG_SHAPE(3, 2, 2)));
    for (int left = 0; left < 2; left++) {
        tg_read(left ? tg_matmul(t, r, ones) : tg_matmul(t, ones, r), y, sizeof y);
        for (int i = 0; i < 12; i++) ck_assert(y[i] == v[8 - i / 4 * 4 + i % 4]);
    }
    end();
}
END_TEST

/* ---- Captured steps ---- */

static tg_status square(void *x, tg_ctx *of) {
    tg_square(t, x);
    return tg_ctx_status(of);
}

static tg_status export_in_step(void *x, tg_ctx *of) {
    ck_assert(!tg_dlpack_export(x));
    return tg_ctx_status(of);
}

START_TEST(a_captured_step_refuses_imports_and_exports) {
    if (test_on_host()) return; /* the CPU captures nothing */
    begin();
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(3)), *y = import(export_as(1, x));
    tg_graph_free(tg_graph_new(ctx, square, y));
    ck_status(TG_ERR_UNSUPPORTED);
    ck_says("the step that tg_graph_new records uses memory of another library, which may be freed before a replay");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    tg_graph_free(tg_graph_new(ctx, export_in_step, x));
    ck_status(TG_ERR_UNSUPPORTED);
    ck_says("tg_dlpack_export: the step that tg_graph_new records pins memory of the step");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    end();
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

/* ---- Failing allocators ---- */

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
                            products_take_batches_in_reverse_order,
                            a_captured_step_refuses_imports_and_exports,
                            read_only_memory_stays_so,
                            what_cannot_be_exported_is_refused,
                            any_allocation_may_fail};
    return tg_check_main("dlpack", tests, sizeof tests / sizeof *tests);
}
