/* A device whose memory the host cannot access, and which has the required slots alone: all others are composed. Its
 * addresses are those of the CPU's memory with one bit set, so a slot recognizes an address of the host, and the host
 * cannot use one of the device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/backward.h>
#include <tapegrad/gpt.h>
#include <tapegrad/optim.h>

#include "check_main.h"
#include "contract/device_contract.h"
#include "kernels/composed.h"
#include "kernels/cpu/cpu.h"

/* ---- The device ---- */

static const uintptr_t far_bit = (uintptr_t)1 << 56; /* no address of a process has it */
static int host_addresses;                           /* how many addresses of the host the slots have received */

static void *to_far(void *p) { return p ? (void *)((uintptr_t)p | far_bit) : NULL; }

static void *to_near(const void *p) {
    if (!p) return NULL;
    host_addresses += !((uintptr_t)p & far_bit);
    return (void *)((uintptr_t)p & ~far_bit);
}

/* Empty arrays may have any address. */
static tg_array near_array(tg_array a) {
    if (a.numel) a.data = to_near(a.data);
    return a;
}

static void *far_alloc(tg_ctx *c, size_t bytes, size_t align) { return to_far(tg_cpu_device.alloc(c, bytes, align)); }
static void far_free(tg_ctx *c, void *p, size_t bytes) { tg_cpu_device.free(c, to_near(p), bytes); }

static tg_status far_copy(tg_ctx *c, void *to, const void *from, size_t bytes, tg_copy_kind kind) {
    if (bytes && kind != TG_COPY_TO_HOST) to = to_near(to);
    if (bytes && kind != TG_COPY_FROM_HOST) from = to_near(from);
    return tg_cpu_device.copy(c, to, from, bytes, kind);
}

static tg_status far_apply(tg_ctx *c, tg_formula f, tg_array out, const tg_array *in, int n, const double p[2],
                           bool add) {
    tg_array x[8];
    for (int i = 0; i < n; i++) x[i] = near_array(in[i]);
    return tg_cpu_device.apply(c, f, near_array(out), x, n, p, add);
}

static tg_status far_fill(tg_ctx *c, tg_array out, double v) { return tg_cpu_device.fill(c, near_array(out), v); }

static tg_status far_iota(tg_ctx *c, tg_array out, double start, double step) {
    return tg_cpu_device.iota(c, near_array(out), start, step);
}

static tg_status far_reduce(tg_ctx *c, tg_reduction kind, tg_array out, tg_array in, double scale, bool add) {
    return tg_cpu_device.reduce(c, kind, near_array(out), near_array(in), scale, add);
}

static tg_status far_gemm(tg_ctx *c, const tg_gemm *far) {
    tg_gemm g = *far;
    tg_matrix *const m[] = {&g.a, &g.b, &g.c, &g.pre};
    if (!g.m || !g.n || !g.batch[0] || !g.batch[1]) return TG_OK;
    for (int i = 0; i < 4; i++)
        if (i > 1 || g.k) m[i]->data = to_near(m[i]->data);
    g.bias = to_near(g.bias);
    return tg_cpu_device.gemm(c, &g);
}

static tg_status far_take(tg_ctx *c, tg_array out, tg_array src, tg_array index, int dim, int64_t *bad) {
    return tg_cpu_device.take(c, near_array(out), near_array(src), near_array(index), dim, bad);
}

static tg_status far_put_add(tg_ctx *c, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad) {
    return tg_cpu_device.put_add(c, near_array(dst), near_array(src), near_array(index), dim, bad);
}

static tg_status far_random(tg_ctx *c, tg_random kind, tg_array out, double a, double b, const tg_draws *draws) {
    return tg_cpu_device.random(c, kind, near_array(out), a, b, draws);
}

/* Returns the table of a device that has the required slots alone: the CPU's, which computes in the host's memory, or
 * the one that is far. */
static tg_device_ops required(bool far) {
    const tg_device_ops *cpu = &tg_cpu_device;
    tg_device_ops ops = {.size = sizeof ops,
                         .name = far ? "far" : "near",
                         .host = !far,
                         .open = cpu->open,
                         .close = cpu->close,
                         .alloc = far ? far_alloc : cpu->alloc,
                         .free = far ? far_free : cpu->free,
                         .copy = far ? far_copy : cpu->copy,
                         .sync = cpu->sync,
                         .event_record = cpu->event_record,
                         .event_wait = cpu->event_wait,
                         .event_free = cpu->event_free,
                         .apply = far ? far_apply : cpu->apply,
                         .fill = far ? far_fill : cpu->fill,
                         .iota = far ? far_iota : cpu->iota,
                         .reduce = far ? far_reduce : cpu->reduce,
                         .gemm = far ? far_gemm : cpu->gemm,
                         .take = far ? far_take : cpu->take,
                         .put_add = far ? far_put_add : cpu->put_add,
                         .random = far ? far_random : cpu->random};
    return ops;
}

/* ---- Slots ---- */

START_TEST(composed_slots_are_those_of_the_contract) {
    tg_device_ops ops = required(true);
    ops.softmax = tg_composed_softmax, ops.softmax_grad = tg_composed_softmax_grad;
    ops.norm = tg_composed_norm, ops.norm_grad = tg_composed_norm_grad;
    ops.cross_entropy = tg_composed_cross_entropy, ops.cross_entropy_grad = tg_composed_cross_entropy_grad;
    ops.dropout = tg_composed_dropout;
    ops.scan = tg_composed_scan;
    ops.put = tg_composed_put;
    ops.adamw = tg_composed_adamw;
    host_addresses = 0;
    tg_ctx *ctx = tg_ctx_new_on(&ops, TG_CONFIG(.threads = 1));
    contract c = contract_of(ctx);
    contract_softmax(&c), contract_softmax_grad(&c);
    contract_norm(&c), contract_norm_grad(&c);
    contract_cross_entropy(&c), contract_cross_entropy_grad(&c);
    contract_dropout(&c);
    contract_scan(&c), contract_scan_long(&c);
    contract_put(&c);
    contract_adamw(&c), contract_adamw_list(&c);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert_msg(c.failures == 0, "%lld of %lld checks failed, the first: %s", (long long)c.failures,
                  (long long)c.checks, c.message);
    ck_assert_int_eq(host_addresses, 0);
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    ck_assert_int_eq(m.by_category[TG_MEM_WORKSPACE], 0); /* each call has given back its temporaries */
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Training ---- */

enum { BATCH = 2, SEQ = 8, VOCAB = 19, PARAMS = 40, STEPS = 3, VALUES = 8192 };

typedef struct run {
    double loss[STEPS], value[VALUES];
} run;

/* Trains a GPT, whose layers use all slots that are composed: attention, norms, dropout, cross-entropy and AdamW. */
static void train(const tg_device_ops *ops, run *r) {
    int64_t ids[BATCH * SEQ], at = 0;
    tg_tensor *p[PARAMS];
    tg_ctx *ctx = tg_ctx_new_on(ops, TG_CONFIG(.threads = 1, .seed = 11));
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.arch = TG_GPT2, .vocab = VOCAB, .layers = 1, .heads = 2, .hidden = 16,
                                            .positions = SEQ, .dropout = 0.1));
    int n = tg_module_params(gpt, p, PARAMS);
    tg_optim *o = tg_adamw_new(ctx, p, n, TG_ADAMW(.lr = 1e-2));
    tg_optim_set_clip(o, 1);
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i < BATCH * SEQ; i++) ids[i] = i * 5 % VOCAB;
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(BATCH, SEQ), ids);
    for (int i = 0; i < STEPS; i++) {
        tg_draws_step(ctx, (uint64_t)i + 1);
        tg_tensor *loss = tg_gpt_loss(gpt, t, x, x, TG_LOSS_MEAN);
        tg_backward(t, loss);
        tg_optim_step(o), tg_optim_zero_grad(o);
        r->loss[i] = tg_item(loss);
        tg_tape_reset(t);
    }
    for (int i = 0; i < n; i++) {
        ck_assert_int_le(at + tg_numel(p[i]), VALUES);
        tg_read_f64(p[i], r->value + at, tg_numel(p[i]));
        at += tg_numel(p[i]);
    }
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_optim_free(o);
    tg_module_free(gpt);
    tg_ctx_free(ctx);
}

/* The host cannot read the indices, so the error has the position of the first wrong one in the caller's tensor. */
START_TEST(wrong_indices_are_counted_once) {
    tg_device_ops ops = required(true);
    tg_ctx *ctx = tg_ctx_new_on(&ops, TG_CONFIG(.threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(5, 4));
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(3), (const int64_t[]){1, 2, 7});
    for (int k = 0; k < 3; k++) {
        if (k == 0) tg_embedding(t, x, ids);
        if (k > 0) tg_index_select(t, x, k - 1, ids);
        ck_assert_msg(strstr(tg_ctx_message(ctx), "element 2 of the indices is out of range"), "call %d: %s", k,
                      tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
    }
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(training_has_the_bits_of_a_near_device) {
    static run near, far;
    const tg_device_ops ops[] = {required(false), required(true)};
    host_addresses = 0;
    train(&ops[0], &near);
    train(&ops[1], &far);
    ck_assert_int_eq(host_addresses, 0);
    ck_assert_mem_eq(&near, &far, sizeof near);
    ck_assert(far.loss[STEPS - 1] < far.loss[0]);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {composed_slots_are_those_of_the_contract, wrong_indices_are_counted_once,
                                  training_has_the_bits_of_a_near_device};
    return tg_check_main("far_device", tests, sizeof tests / sizeof *tests);
}
