/* Which line of the program a message names when a layer of the library made the call. The program is linked with the
 * shared library as users' programs are, because a static one is one file with the library. */
#include <stdlib.h>
#include <string.h>

#include <tapegrad/explain.h>
#include <tapegrad/gpt.h>
#include <tapegrad/megatron.h>
#include <tapegrad/op.h>
#include <tapegrad/parallel.h>
#include <tapegrad/tapegrad.h>
#include <tapegrad/tensor_parallel.h>

#include "check_main.h"

#define HERE "test_call_lines" /* with debug information the file, else the program */

typedef struct world {
    tg_ctx *ctx;
    tg_tape *t;
    tg_comm *comm;
    tg_parallel *p;
} world;

static world begin(void) {
    world w = {.ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1))};
    w.t = tg_tape_new(w.ctx);
    w.comm = tg_comm_plan_new(w.ctx, 0, 2);
    w.p = tg_parallel_new(w.comm, TG_PARALLEL(.tp = 2));
    return w;
}

static void end(world *w) {
    ck_assert_msg(tg_ctx_status(w->ctx) == TG_OK, "%s", tg_ctx_message(w->ctx));
    tg_tape_free(w->t);
    tg_parallel_free(w->p);
    tg_comm_free(w->comm);
    tg_ctx_free(w->ctx);
}

/* Every op on the tape was called from here. */
static void ck_all_from_here(world *w, int64_t least) {
    char site[256];
    int64_t seen = 0;
    ck_assert_msg(tg_ctx_status(w->ctx) == TG_OK, "%s", tg_ctx_message(w->ctx));
    for (int64_t i = 0; i < tg_tape_nodes(w->t); i++) {
        const tg_node *n = tg_tape_node(w->t, i);
        if (!tg_node_site(n, site, sizeof site)) continue;
        ck_assert_msg(strstr(site, HERE) != NULL, "%s was called from %s", tg_node_op(n)->name, site);
        seen++;
    }
    ck_assert_int_ge(seen, least);
    tg_tape_reset(w->t);
}

START_TEST(nodes_of_layers_name_the_callers_line) {
    world w = begin();
    tg_tensor *x = tg_zeros(w.ctx, TG_F32, TG_SHAPE(2, 2, 4)), *ids = tg_zeros(w.ctx, TG_I64, TG_SHAPE(2, 2));
    tg_module *column = tg_nn_column_linear(w.p, 4, 4, TG_PARALLEL_LINEAR(.gather_output = true));
    tg_module *row = tg_nn_row_linear(w.p, 8, 4, NULL), *table = tg_nn_vocab_embedding(w.p, 4, 4, 1, NULL);
    tg_module *linear = tg_nn_linear(w.ctx, 4, 4, true, 1);
    tg_set_requires_grad(x, true);
    tg_module_forward(column, w.t, x);
    ck_all_from_here(&w, 2);
    tg_parallel_linear_apply(column, w.t, x, NULL, 1);
    ck_all_from_here(&w, 2);
    tg_module_forward(table, w.t, ids);
    ck_all_from_here(&w, 2);
    tg_module_forward(linear, w.t, x);
    ck_all_from_here(&w, 1);
    tg_tensor *wide = tg_zeros(w.ctx, TG_F32, TG_SHAPE(2, 2, 4));
    tg_place(w.p, wide, TG_TP, TG_SHARD(2));
    tg_module_forward(row, w.t, wide);
    ck_all_from_here(&w, 2);
    tg_module_free(column);
    tg_module_free(row);
    tg_module_free(table);
    tg_module_free(linear);
    end(&w);
}
END_TEST

START_TEST(nodes_of_models_name_the_callers_line) {
    world w = begin();
    tg_gpt_config c = *TG_GPT(.vocab = 16, .positions = 4, .hidden = 8, .heads = 2, .layers = 1, .parallel = w.p);
    tg_module *gpt = tg_gpt_new(w.ctx, &c);
    tg_tensor *ids = tg_zeros(w.ctx, TG_I64, TG_SHAPE(1, 4));
    tg_gpt_loss(gpt, w.t, ids, ids, TG_LOSS_MEAN);
    ck_all_from_here(&w, 10);
    tg_gpt_logits(gpt, w.t, ids);
    ck_all_from_here(&w, 10);
    tg_module_forward(gpt, w.t, ids);
    ck_all_from_here(&w, 10);
    tg_module_free(gpt);
    end(&w);
}
END_TEST

START_TEST(errors_of_layers_name_the_callers_line) {
    world w = begin();
    float v[16] = {0};
    tg_tensor *x = tg_from_host(w.ctx, TG_F32, TG_SHAPE(2, 2, 4), v); /* not placed */
    tg_module *column = tg_nn_column_linear(w.p, 4, 4, NULL);
    tg_module_forward(column, w.t, x);
    const char *says = strstr(tg_ctx_message(w.ctx), "called from");
    ck_assert_msg(says && strstr(says, HERE), "%s", tg_ctx_message(w.ctx));
    tg_ctx_clear(w.ctx);
    tg_module_free(column);
    end(&w);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {nodes_of_layers_name_the_callers_line, nodes_of_models_name_the_callers_line,
                                  errors_of_layers_name_the_callers_line};
    return tg_check_main("call lines", tests, sizeof tests / sizeof *tests);
}
