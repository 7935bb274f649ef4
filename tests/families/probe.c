/* probe MODEL OUT DTYPE TOKENS: loads the model in the directory MODEL as DTYPE (f32, f64 or bf16), and computes for
 * the ids and targets [b, s] of MODEL/probe.safetensors the logits, the loss, its gradients, and TOKENS tokens after
 * the first half of each sequence, each the likeliest. Writes them to OUT/results.safetensors, and the model to
 * OUT. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/gpt.h>
#include <tapegrad/io.h>

enum { MOST = 4096 };

typedef struct probe {
    tg_ctx *ctx;
    tg_module *lm;
    tg_tape *t;
    tg_tensor *ids, *targets;
    tg_named_tensor results[MOST];
    int n;
} probe;

static bool fine(const probe *p) { return tg_ctx_status(p->ctx) == TG_OK; }

static void add(probe *p, const char *name, tg_tensor *x) {
    if (p->n < MOST) p->results[p->n++] = (tg_named_tensor){strdup(name), x};
}

static tg_tensor *read_ids(tg_ctx *ctx, const char *dir, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/probe.safetensors", dir);
    tg_safetensors *f = tg_safetensors_open(ctx, path);
    tg_tensor *x = tg_safetensors_load(f, name);
    tg_safetensors_close(f);
    return x;
}

/* Adds the logits of the ids and the loss, and its gradient for each parameter. */
static void differentiate(probe *p) {
    add(p, "logits", tg_gpt_logits(p->lm, p->t, p->ids));
    tg_tensor *loss = tg_gpt_loss(p->lm, p->t, p->ids, p->targets, TG_LOSS_MEAN);
    add(p, "loss", loss);
    tg_backward(p->t, loss);
    for (int i = 0; i < tg_module_param_count(p->lm); i++) {
        char name[256];
        const char *path;
        tg_tensor *x = tg_module_param(p->lm, i, &path);
        snprintf(name, sizeof name, "grad.%s", path);
        add(p, name, tg_grad_of(x));
    }
}

static int64_t likeliest(const double *v, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (v[i] > v[best]) best = i;
    return best;
}

/* Continues the first half of each sequence, and adds the tokens [b, n]. */
static void generate(probe *p, int64_t n) {
    int64_t b = tg_dim(p->ids, 0), half = tg_dim(p->ids, 1) / 2, vocab = tg_lm_config_of(p->lm)->vocab;
    int64_t *chosen = calloc((size_t)(b * n) + 1, sizeof *chosen), *last = calloc((size_t)b, sizeof *last);
    double *logits = calloc((size_t)(b * vocab), sizeof *logits);
    tg_gpt_cache *cache = tg_gpt_cache_new(p->lm, b, half + n);
    tg_tape *t = tg_tape_new(p->ctx);
    tg_tensor *next = tg_slice(t, p->ids, 1, 0, half, 1);
    for (int64_t i = 0; i < n && fine(p); i++) {
        tg_read_f64(tg_gpt_next(p->lm, t, cache, next), logits, b * vocab);
        for (int64_t k = 0; k < b; k++) chosen[k * n + i] = last[k] = likeliest(logits + k * vocab, vocab);
        tg_tape_reset(t);
        next = tg_from_host(p->ctx, TG_I64, TG_SHAPE(b, 1), last);
    }
    add(p, "tokens", tg_from_host(p->ctx, TG_I64, TG_SHAPE(b, n), chosen));
    tg_tape_free(t);
    tg_gpt_cache_free(cache);
    free(chosen);
    free(last);
    free(logits);
}

int main(int argc, char **argv) {
    static probe p;
    char path[4096];
    if (argc != 5) return fprintf(stderr, "probe MODEL OUT DTYPE TOKENS\n"), 2;
    tg_dtype dtype = strcmp(argv[3], "f64") == 0 ? TG_F64 : strcmp(argv[3], "bf16") == 0 ? TG_BF16 : TG_F32;
    p.ctx = tg_ctx_new(TG_CONFIG(.dtype = dtype, .threads = 1));
    p.lm = tg_lm_load_dir(p.ctx, argv[1], NULL);
    p.t = tg_tape_new(p.ctx);
    p.ids = read_ids(p.ctx, argv[1], "ids");
    p.targets = read_ids(p.ctx, argv[1], "targets");
    if (fine(&p)) differentiate(&p);
    if (fine(&p)) generate(&p, atoi(argv[4]));
    snprintf(path, sizeof path, "%s/results.safetensors", argv[2]);
    if (fine(&p)) tg_safetensors_save(p.ctx, path, p.results, p.n, NULL, 0);
    if (fine(&p)) tg_lm_save(&p.lm, 1, argv[2], NULL);
    int status = fine(&p) ? 0 : 1;
    if (status) fprintf(stderr, "%s\n", tg_ctx_message(p.ctx));
    for (int i = 0; i < p.n; i++) free((char *)p.results[i].name);
    tg_tape_free(p.t);
    tg_module_free(p.lm);
    tg_ctx_free(p.ctx);
    return status;
}
