/* `tapegrad inspect` records a step on device meta; its figures equal those of the step on the CPU: memory by category,
 * and the tape's nodes, FLOPs and saved bytes by op. */
#include "check_main.h"

#include <stdio.h>
#include <string.h>

#include <tapegrad/data_parallel.h>
#include <tapegrad/extend.h>
#include <tapegrad/io.h>
#include <tapegrad/lm.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/gpt.h>

#include "inspected.h"

typedef struct model {
    const char *options;
    tg_gpt_config config;
    tg_dtype dtype;
    tg_token_windows windows;
} model;

enum { BATCH = 3, SEQ = 24, VOCAB = 256 };
#define SHAPE "--layers 2 --hidden 32 --heads 4 --seq-len 24 --batch 3"
#define CONFIG(...)                                                                                                    \
    {                                                                                                                  \
        TG_GPT_DEFAULTS, .vocab = VOCAB, .layers = 2, .hidden = 32, .heads = 4, .positions = SEQ,        \
        __VA_ARGS__                                                                                                    \
    }

static const model models[] = {
    {"--arch gpt2", CONFIG(.arch = TG_GPT2), TG_F32, TG_WINDOWS_ACROSS},
    {"--arch gpt2 --dropout 0.1 --precision bf16", CONFIG(.arch = TG_GPT2, .dropout = 0.1), TG_BF16, TG_WINDOWS_ACROSS},
    {"--arch llama --kv-heads 2 --ffn 40", CONFIG(.arch = TG_LLAMA, .kv_heads = 2, .ffn = 40), TG_F32,
     TG_WINDOWS_ACROSS},
    {"--arch llama --precision fp64", CONFIG(.arch = TG_LLAMA), TG_F64, TG_WINDOWS_ACROSS},
    {"--arch gpt2 --no-attend-across", CONFIG(.arch = TG_GPT2), TG_F32, TG_WINDOWS_PACKED},
    {"--arch llama --kv-heads 2 --ffn 40 --no-attend-across --precision bf16",
     CONFIG(.arch = TG_LLAMA, .kv_heads = 2, .ffn = 40), TG_BF16, TG_WINDOWS_PACKED},
    {"--arch gpt2 --no-attend-across --pad-documents", CONFIG(.arch = TG_GPT2), TG_F32, TG_WINDOWS_PADDED},
};

/* Compares the program's figures of an op with the sums over the tape's nodes of that op. Returns the number of
 * nodes. */
static int64_t compare_op(const json_t *row, tg_tape *t, int64_t *flops) {
    const char *name = json_string_value(json_object_get(row, "op"));
    int64_t count = 0, op_flops = 0, saved = 0;
    for (int64_t i = 0; i < tg_tape_nodes(t); i++) {
        const tg_node *n = tg_tape_node(t, i);
        if (!tg_node_op(n) || strcmp(tg_node_op(n)->name, name) != 0) continue;
        count++;
        op_flops += tg_node_flops(n);
        saved += tg_node_saved_bytes(n);
    }
    ck_assert_msg(value_of(row, "count") == count, "%s: %lld nodes", name, (long long)count);
    ck_assert_msg(value_of(row, "flops") == op_flops, "%s: %lld FLOPs", name, (long long)op_flops);
    ck_assert_msg(value_of(row, "saved_bytes") == saved, "%s: %lld bytes saved", name, (long long)saved);
    *flops += op_flops;
    return count;
}

static void compare_tape(const json_t *all, tg_tape *t) {
    int64_t flops = 0, nodes = 0, expected = 0;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(all, "tape"), i, row) nodes += compare_op(row, t, &flops);
    for (int64_t k = 0; k < tg_tape_nodes(t); k++) expected += tg_node_op(tg_tape_node(t, k)) != NULL;
    ck_assert_int_eq(nodes, expected);
    ck_assert_int_eq(value_of(json_object_get(all, "flops"), "forward"), flops);
    ck_assert_int_eq(value_of(json_object_get(all, "flops"), "step"), 3 * flops);
}

/* The inputs of a step. The program allocates those of the next step too. */
typedef struct inputs {
    tg_tensor *ids, *target;
    tg_tensor *positions; /* of documents of 7 tokens; NULL: they are not packed */
    tg_tensor *tokens;    /* how many are predicted; NULL: all of them are */
} inputs;

static tg_tensor *new_input(tg_ctx *ctx) { return tg_zeros(ctx, TG_I64, TG_SHAPE(BATCH, SEQ)); }

static inputs new_inputs(tg_ctx *ctx, tg_token_windows windows) {
    int64_t position[BATCH * SEQ];
    double predicted = BATCH * (SEQ - SEQ / 7);
    inputs x = {new_input(ctx), new_input(ctx), NULL, NULL};
    for (int i = 0; i < BATCH * SEQ; i++) position[i] = i % SEQ % 7;
    for (int next = 0; next < 2; next++) new_input(ctx);
    if (windows == TG_WINDOWS_PACKED) {
        new_input(ctx);
        tg_write(x.positions = new_input(ctx), position, sizeof position);
    }
    if (windows != TG_WINDOWS_ACROSS) tg_write_f64(x.tokens = tg_zeros(ctx, TG_F64, TG_SHAPE()), &predicted, 1);
    return x;
}

static tg_tensor *loss_of(tg_module *gpt, tg_tape *t, const inputs *x) {
    return x->positions ? tg_lm_packed_loss(gpt, t, x->ids, x->positions, x->target, TG_LOSS_SUM)
                        : tg_gpt_loss(gpt, t, x->ids, x->target, TG_LOSS_SUM);
}

/* Trains two steps, as the program does: if tokens are not predicted, the gradients are divided by the number of those
 * that are, and otherwise the losses. */
static void compare_step(const model *m) {
    json_t *all = inspected(m->options, SHAPE);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.dtype = m->dtype));
    tg_comm *self = tg_comm_self_new(ctx);
    tg_parallel *parallel = tg_parallel_new(self, NULL);
    tg_module *gpt = tg_gpt_new(ctx, &m->config);
    tg_tensor *params[64];
    inputs x = new_inputs(ctx, m->windows);
    int n = tg_module_params(gpt, params, 64);
    tg_optim *optim = tg_adamw_new(ctx, params, n, NULL);
    tg_optim_no_decay_1d(optim);
    tg_tape *t = tg_tape_new(ctx);
    for (int step = 0; step < 2; step++) {
        tg_memory_reset_peak(ctx);
        tg_draws_step(ctx, 1 + (uint64_t)step);
        tg_tensor *loss = loss_of(gpt, t, &x);
        if (step == 0) compare_tape(all, t);
        tg_backward(t, x.tokens ? loss : tg_scale(t, loss, 0.01));
        tg_tape_reset(t);
        if (x.tokens) tg_grads_finalize(parallel, params, n, TG_FINALIZE(.tokens = x.tokens));
        tg_optim_clip(optim, 1);
        tg_optim_step(optim);
        tg_optim_zero_grad(optim);
    }
    tg_memory_info memory = TG_MEMORY_INFO();
    tg_memory_query(ctx, &memory);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    const json_t *said = json_object_get(all, "memory");
    ck_assert_int_eq(value_of(all, "parameters"), tg_module_numel(gpt));
    ck_assert_int_eq(value_of(said, "peak_bytes"), memory.peak);
    static const char *const categories[] = {"parameters", "gradients", "optimizer", "saved", "temporaries", "buffers",
                                             "captured", "kernels"};
    for (int c = 0; c < TG_MEM_CATEGORIES; c++)
        ck_assert_int_eq(value_of(said, categories[c]), memory.peak_by_category[c]);
    json_decref(all);
    tg_optim_free(optim);
    tg_tape_free(t);
    tg_module_free(gpt);
    tg_parallel_free(parallel);
    tg_comm_free(self);
    tg_ctx_free(ctx);
}

START_TEST(inspect_predicts_a_step) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) compare_step(&models[i]);
}
END_TEST

int main(void) {
    const TTest *tests[] = {inspect_predicts_a_step};
    return tg_check_main("inspect", tests, sizeof tests / sizeof *tests);
}
