/* What the parts of a model cost: each is recorded once on device meta, as a chunk of one rank, and the FLOPs of its
 * nodes are added up. Ranks of tensor parallelism divide all parts alike. */
#include "common/part_costs.h"

#include <inttypes.h>
#include <stdlib.h>

#include <tapegrad/extend.h>
#include <tapegrad/lm.h>

#include "common/program.h"

/* Returns the layout of n equal parts, which the caller frees; NULL: no memory. */
static char *equal_layout(int64_t layers, int n) {
    enum { ITEM = 32 };
    size_t size = (size_t)n * ITEM, at = 0;
    char *text = malloc(size);
    for (int i = 0; text && i < n; i++)
        at += (size_t)snprintf(text + at, size - at, "%s t*%" PRId64 "%s", i ? "|" : "E", layers / n,
                               i == n - 1 ? " L" : "");
    return text;
}

/* Adds a node to the costs of part i. A product with a weight takes as many operations for the gradient of its input,
 * and for that of the weight, as forward. Any other op, such as attention, is taken to need twice as many for its
 * gradients. With `recompute`, backward runs the forward of the layers again. */
static void add_node(part_costs *c, int i, const tg_node *n, bool recompute) {
    const tg_op *op = tg_node_op(n);
    double flops = (double)tg_node_flops(n);
    bool head = op && op->family == TG_FAMILY_LOSS, weight = head || (op && op->family == TG_FAMILY_LINEAR);
    c->f[i] += flops;
    c->b[i] += (weight ? 1 : 2) * flops + (recompute && !head ? flops : 0);
    c->w[i] += weight ? flops : 0;
}

/* Records part i and adds up its nodes. The context frees the tensors. */
static void add_part(part_costs *c, int i, tg_ctx *ctx, const tg_lm_config *config, int64_t seq_len) {
    bool recompute = config->recompute == TG_GPT_FULL || config->recompute == TG_GPT_DISTRIBUTED;
    tg_lm_config part = *config;
    part.parallel = NULL;
    part.cp_inner = TG_AUTO;
    part.recompute = TG_GPT_KEEP;
    part.dropout = part.embed_dropout = part.attention_dropout = 0;
    part.tied = false; /* one rank would have the matrix twice */
    part.mtp = 0;      /* its depths need ids of their own, which there are not */
    part.chunk = i;
    tg_module *lm = tg_lm_new(ctx, &part);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *ids = tg_zeros(ctx, TG_I64, TG_SHAPE(1, seq_len)), *out = NULL;
    tg_tensor *in = tg_zeros(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(seq_len, 1, config->hidden));
    tg_pipe_call call = {.size = sizeof call, .tape = t, .chunk = i, .part = i, .parts = c->n, .input = &in,
                         .out = &out};
    tg_lm_part(lm, &call, &ids, &ids, NULL);
    for (int64_t k = 0; k < tg_tape_nodes(t); k++) add_node(c, i, tg_tape_node(t, k), recompute);
    tg_tape_free(t);
    tg_module_free(lm);
}

bool part_costs_open(part_costs *c, const tg_lm_config *config, const char *layout, int n, int64_t seq_len) {
    tg_lm_config whole = *config;
    char *equal = layout ? NULL : equal_layout(config->layers, n);
    *c = (part_costs){.n = n, .f = calloc(3 * (size_t)n, sizeof *c->f)};
    if (!c->f || (!layout && !equal)) return free(equal), fail("no memory"), false;
    c->b = c->f + n;
    c->w = c->b + n;
    whole.layout = layout ? layout : equal;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    for (int i = 0; i < n && tg_ctx_status(ctx) == TG_OK; i++) add_part(c, i, ctx, &whole, seq_len);
    bool good = check(ctx);
    tg_ctx_free(ctx);
    free(equal);
    return good;
}

void part_costs_close(part_costs *c) { free(c->f); }
