/* Memory of a tensor-parallel rank after a training step. Of sharded tensors it has exactly 1 / tp of one rank's, in
 * shapes, bytes and the allocator's account of parameters, gradients and moments; of logits 1 / tp; of all other
 * tensors the whole. The figures come from real steps on thread ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/extend.h>
#include <tapegrad/mappings.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/parallel.h>
#include <tapegrad/step.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/gpt.h>
#include <tapegrad/ranks.h>

#include "device_ranks.h"

/* Every shard on 4 ranks is a multiple of the allocator's 64 bytes, and the vocabulary one of 128 tp, so nothing is
 * rounded. */
enum { BATCH = 2, LENGTH = 32, HIDDEN = 128, HEADS = 8, LAYERS = 2, VOCAB = 512, TENSORS = 64 };

typedef struct setup {
    tg_gpt_arch arch;
    tg_dtype dtype;
    int tp;
    bool sp;
    int64_t vocab;
} setup;

/* A parameter with its gradient and state on one rank. */
typedef struct share {
    char name[64];
    tg_shape shape, whole;
    int64_t bytes, grad_bytes, state_bytes; /* state_bytes: all tensors of the optimizer for it */
    bool alike; /* its gradient and its moments have its shape */
} share;

typedef struct rank_share {
    int n;
    share of[TENSORS];
    int64_t parameters, gradients, optimizer; /* live bytes in the report */
    int64_t saved;         /* live bytes after the forward pass in the report */
    int64_t logits, logits_freed; /* bytes before the gather; bytes that freeing them releases */
    tg_shape logits_shape;
} rank_share;

typedef struct job {
    const setup *s;
    rank_share *out; /* results of each rank */
} job;

static int passed, failed;

static void verdict(bool good, const setup *s, int rank, const char *what, const char *of, double got, double want) {
    *(good ? &passed : &failed) += 1;
    if (!good)
        printf("FAIL %s %s tp %d%s rank %d: %s %s is %.10g, expected %.10g\n", s->arch == TG_GPT2 ? "gpt2" : "llama",
               tg_dtype_name(s->dtype), s->tp, s->sp ? " sp" : "", rank, what, of, got, want);
}

/* ---- One rank ---- */

static int64_t bytes_of(const tg_tensor *x) { return tg_numel(x) * tg_dtype_bits(tg_dtype_of(x)) / 8; }

static bool same_shape(tg_shape a, tg_shape b) {
    bool same = a.ndim == b.ndim;
    for (int i = 0; same && i < a.ndim; i++) same = a.dim[i] == b.dim[i];
    return same;
}

/* Returns the live bytes of a category in the report. */
static int64_t reported(tg_ctx *ctx, const char *category) {
    char text[8192];
    long long live = -1;
    tg_memory_report(ctx, text, sizeof text);
    char *at = strstr(text, category);
    if (!at || sscanf(at + strlen(category), "%lld live", &live) != 1)
        tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the report has no row of %s:\n%s", category, text);
    return live;
}

static void take_states(tg_optim *o, tg_tensor *param, const char *path, share *out) {
    size_t n = strlen(path);
    for (int i = 0; i < tg_optim_state_count(o); i++) {
        const char *name;
        tg_tensor *x = tg_optim_state(o, i, &name);
        if (strncmp(name, path, n) != 0 || name[n] != '.' || strchr(name + n + 1, '.')) continue;
        out->state_bytes += bytes_of(x);
        out->alike &= same_shape(tg_shape_of(x), tg_shape_of(param));
    }
}

static void take_shares(tg_module *gpt, tg_optim *o, rank_share *out) {
    out->n = tg_module_param_count(gpt);
    for (int i = 0; i < out->n && i < TENSORS; i++) {
        const char *path;
        tg_tensor *p = tg_module_param(gpt, i, &path), *g = tg_grad_of(p);
        share *s = &out->of[i];
        snprintf(s->name, sizeof s->name, "%s", path);
        s->shape = tg_shape_of(p);
        s->whole = tg_global_shape(p);
        s->bytes = bytes_of(p);
        s->grad_bytes = bytes_of(g);
        s->alike = same_shape(tg_shape_of(g), s->shape);
        take_states(o, p, path, s);
    }
}

/* Finds the product with the output matrix, which is the last one on the tape. */
static void take_logits(tg_module *gpt, tg_tape *t, tg_tensor *ids, rank_share *out) {
    tg_ctx *ctx = tg_tape_ctx(t);
    tg_tensor *logits = NULL;
    tg_gpt_logits(gpt, t, ids);
    for (int64_t i = 0; i < tg_tape_nodes(t); i++) {
        const tg_node *n = tg_tape_node(t, i);
        if (tg_node_op(n) && !strcmp(tg_node_op(n)->name, "linear")) logits = tg_node_output(n, 0);
    }
    if (!logits) {
        tg_ctx_fail(ctx, TG_ERR_INTERNAL, "there is no product on the tape");
        return;
    }
    out->logits_shape = tg_shape_of(logits);
    out->logits = bytes_of(logits);
    tg_memory_info before = TG_MEMORY_INFO(), after = TG_MEMORY_INFO();
    tg_memory_query(ctx, &before);
    tg_discard(logits);
    tg_memory_query(ctx, &after);
    out->logits_freed = before.live - after.live;
}

static tg_status run_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    const setup *s = j->s;
    rank_share *out = &j->out[tg_comm_rank(world)];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = s->tp, .sequence_parallel = s->sp));
    tg_module *gpt = tg_gpt_new(ctx, TG_GPT(.arch = s->arch, .vocab = s->vocab, .layers = LAYERS, .heads = HEADS,
                                            .kv_heads = s->arch == TG_LLAMA ? 4 : TG_AUTO, .hidden = HIDDEN,
                                            .ffn = 4 * HIDDEN, .positions = LENGTH, .parallel = p));
    tg_tensor *params[TENSORS];
    int n = tg_module_params(gpt, params, TENSORS);
    for (int i = 0; i < n; i++) {
        const char *path;
        tg_tensor *x = tg_module_param(gpt, i, &path);
        tg_set_name(x, path);
    }
    tg_optim *o = tg_adamw_new(ctx, params, n, NULL);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *ids = tg_zeros(ctx, TG_I64, TG_SHAPE(BATCH, LENGTH));
    tg_tensor *loss = tg_gpt_loss(gpt, t, ids, ids, TG_LOSS_SUM);
    out->saved = reported(ctx, "saved activations");
    tg_backward(t, loss);
    tg_tape_reset(t);
    tg_grads_finalize(p, params, n, NULL);
    tg_optim_step(o);
    out->parameters = reported(ctx, "parameters");
    out->gradients = reported(ctx, "gradients");
    out->optimizer = reported(ctx, "optimizer state");
    if (tg_ctx_status(ctx) == TG_OK) take_shares(gpt, o, out);
    take_logits(gpt, t, ids, out);
    tg_tape_free(t);
    tg_optim_free(o);
    tg_module_free(gpt);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Returns the results of each rank, to be freed. */
static rank_share *run(const setup *s) {
    char message[1024] = "";
    rank_share *out = calloc((size_t)s->tp, sizeof *out);
    job j = {s, out};
    if (!out) exit(EXIT_FAILURE);
    tg_status status = run_ranks(s->tp, run_rank, &j, TG_RANKS(.config = TG_CONFIG(.dtype = s->dtype, .threads = 1),
                                                                  .message = message, .message_size = sizeof message));
    verdict(status == TG_OK, s, 0, "the run", message, status, TG_OK);
    return out;
}

/* ---- Comparison with one rank ---- */

static bool ends_in_one_of(const char *name, const char *const *endings) {
    for (; *endings; endings++)
        if (strlen(name) >= strlen(*endings) && !strcmp(name + strlen(name) - strlen(*endings), *endings)) return true;
    return false;
}

/* Returns the dim that is sharded, by the parameter's name in published checkpoints; -1: none. */
static int sharded_dim(const char *name) {
    static const char *const rows[] = {"wte.weight", "c_attn.weight", "c_attn.bias", "c_fc.weight", "c_fc.bias",
                                       "embed_tokens.weight", "q_proj.weight", "k_proj.weight", "v_proj.weight",
                                       "gate_proj.weight", "up_proj.weight", "lm_head.weight", NULL};
    static const char *const columns[] = {"c_proj.weight", "o_proj.weight", "down_proj.weight", NULL};
    if (ends_in_one_of(name, rows)) return 0;
    return ends_in_one_of(name, columns) ? 1 : -1;
}

/* Returns the number of ranks over which the parameter is sharded. */
static int check_share(const setup *s, int rank, const share *got, const share *one) {
    int dim = sharded_dim(one->name), over = dim < 0 ? 1 : s->tp;
    tg_shape want = one->shape;
    if (dim >= 0) want.dim[dim] /= s->tp;
    verdict(!strcmp(got->name, one->name), s, rank, "the order of", one->name, 0, 1);
    verdict(same_shape(got->shape, want), s, rank, "the shape of", one->name, (double)got->shape.dim[0],
            (double)want.dim[0]);
    verdict(same_shape(got->whole, one->shape), s, rank, "the global shape of", one->name, (double)got->whole.dim[0],
            (double)one->shape.dim[0]);
    verdict(got->alike, s, rank, "a shape of gradient and moments of", one->name, 0, 1);
    verdict(over * got->bytes == one->bytes, s, rank, "bytes of", one->name, (double)(over * got->bytes),
            (double)one->bytes);
    verdict(over * got->grad_bytes == one->grad_bytes, s, rank, "bytes of the gradient of", one->name,
            (double)(over * got->grad_bytes), (double)one->grad_bytes);
    verdict(over * got->state_bytes == one->state_bytes && got->state_bytes >= 2 * got->grad_bytes, s, rank,
            "bytes of the moments of", one->name, (double)(over * got->state_bytes), (double)one->state_bytes);
    return over;
}

/* Bytes of the optimizer in addition to the moments: the scalars of all possible groups, in float64 and float32, and a
 * few numbers for itself and for each parameter, of any size. */
static int64_t beside_moments(const rank_share *r) {
    int64_t n = r->optimizer;
    for (int i = 0; i < r->n && i < TENSORS; i++) n -= r->of[i].state_bytes;
    return n;
}

/* The allocator's account equals that of the tensors, to the byte. */
static void check_rank(const setup *s, int rank, const rank_share *got, const rank_share *one) {
    int64_t parameters = 0, gradients = 0, states = beside_moments(one);
    int64_t scalars = TG_STEP_GROUPS * TG_STEP_SCALARS * (int64_t)(sizeof(double) + sizeof(float));
    int64_t numbers = 1024 + scalars + 16 * one->n;
    verdict(states >= 0 && states <= numbers, s, rank, "bytes in addition to", "moments", (double)states,
            (double)numbers);
    verdict(got->n == one->n && got->n <= TENSORS, s, rank, "the number of", "parameters", got->n, one->n);
    for (int i = 0; i < one->n; i++) {
        int over = check_share(s, rank, &got->of[i], &one->of[i]);
        parameters += one->of[i].bytes / over;
        gradients += one->of[i].grad_bytes / over;
        states += one->of[i].state_bytes / over;
    }
    verdict(got->parameters == parameters, s, rank, "live bytes of", "parameters", (double)got->parameters,
            (double)parameters);
    verdict(got->gradients == gradients, s, rank, "live bytes of", "gradients", (double)got->gradients,
            (double)gradients);
    verdict(got->optimizer == states, s, rank, "live bytes of", "the optimizer", (double)got->optimizer,
            (double)states);
    verdict(got->logits_shape.dim[2] * s->tp == s->vocab && got->logits_shape.dim[0] == LENGTH, s, rank, "the width of",
            "logits", (double)got->logits_shape.dim[2], (double)(s->vocab / s->tp));
    verdict(got->logits * s->tp == one->logits && got->logits_freed == got->logits, s, rank, "bytes of", "logits",
            (double)got->logits_freed, (double)(one->logits / s->tp));
}

/* Logits that the loss keeps: the difference between steps with two sizes of the vocabulary. */
static void check_kept_logits(const setup *s, const rank_share *got, const rank_share *one,
                              const rank_share *one_wide) {
    setup wide = *s;
    wide.vocab = 2 * VOCAB;
    rank_share *more = run(&wide);
    int64_t whole = one_wide[0].saved - one[0].saved;
    verdict(whole >= (int64_t)BATCH * LENGTH * VOCAB * tg_dtype_bits(s->dtype) / 8, s, 0, "bytes kept of", "logits",
            (double)whole, (double)BATCH * LENGTH * VOCAB);
    for (int r = 0; r < s->tp; r++)
        verdict((more[r].saved - got[r].saved) * s->tp == whole, s, r, "bytes kept of", "logits",
                (double)(more[r].saved - got[r].saved), (double)(whole / s->tp));
    free(more);
}

static void try(tg_gpt_arch arch, tg_dtype dtype) {
    const setup alone = {arch, dtype, 1, false, VOCAB}, alone_wide = {arch, dtype, 1, false, 2 * VOCAB};
    rank_share *one = run(&alone), *one_wide = run(&alone_wide);
    for (int tp = 1; tp <= 4; tp *= 2)
        for (int sp = 0; sp < (tp > 1 ? 2 : 1); sp++) {
            const setup s = {arch, dtype, tp, sp, VOCAB};
            rank_share *many = run(&s);
            for (int r = 0; r < tp; r++) check_rank(&s, r, &many[r], one);
            check_kept_logits(&s, many, one, one_wide);
            free(many);
        }
    free(one);
    free(one_wide);
}

int main(void) {
    try(TG_GPT2, TG_F32);
    try(TG_GPT2, TG_BF16);
    try(TG_LLAMA, TG_F32);
    try(TG_LLAMA, TG_BF16);
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
