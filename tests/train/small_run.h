/* A GPT that trains in a fraction of a second on any device, for tests of whole steps. */
#ifndef TG_TEST_SMALL_RUN_H
#define TG_TEST_SMALL_RUN_H

#include <stdlib.h>
#include <string.h>

#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/gpt.h>

enum { BATCH = 2, SEQ = 8, VOCAB = 19, STEPS = 3 };

/* An allocator that fails its nth call, and counts allocated memory. */
typedef struct faulty {
    int64_t calls, fail_at;
    int64_t blocks;
} faulty;

static inline void *faulty_alloc(void *user, size_t bytes, size_t align) {
    faulty *f = user;
    if (++f->calls == f->fail_at) return NULL;
    void *p = NULL;
    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes ? bytes : 1)) return NULL;
    f->blocks++;
    return p;
}

static inline void faulty_free(void *user, void *p, size_t bytes) {
    (void)bytes;
    ((faulty *)user)->blocks--;
    free(p);
}

typedef struct run {
    tg_ctx *ctx;
    tg_module *gpt;
    tg_optim *opt;
    tg_tape *t;
    tg_tensor *ids, *target;
    double loss[STEPS];
    uint64_t bits; /* bits of the parameters at the end */
    tg_memory_info memory;
} run;

typedef struct options {
    tg_gpt_arch arch;
    tg_dtype dtype;
    int threads;
    bool recompute;
    const char *device;
    faulty *f;
} options;

static inline void run_open(run *r, const options *o) {
    *r = (run){.memory = TG_MEMORY_INFO()};
    tg_config c = *TG_CONFIG(.seed = 11, .threads = o->threads, .dtype = o->dtype, .device = o->device);
    if (o->f) c.allocator = (tg_allocator){faulty_alloc, faulty_free, o->f};
    r->ctx = tg_ctx_new(&c);
    r->gpt = tg_gpt_new(r->ctx, TG_GPT(.arch = o->arch, .vocab = VOCAB, .layers = 2, .heads = 2, .hidden = 16,
                                       .positions = SEQ, .kv_heads = o->arch == TG_LLAMA ? 1 : 2,
                                       .dropout = o->arch == TG_GPT2 ? 0.1 : 0, .recompute = o->recompute));
    tg_tensor *p[64];
    int n = tg_module_params(r->gpt, p, 64);
    r->opt = tg_adamw_new(r->ctx, p, n, TG_ADAMW(.lr = 1e-2));
    tg_optim_set_clip(r->opt, 1);
    if (o->dtype == TG_F16) tg_optim_set_scale(r->opt, TG_LOSS_SCALE(.initial = 4096, .interval = 2));
    int64_t ids[BATCH * SEQ], target[BATCH * SEQ];
    for (int i = 0; i < BATCH * SEQ; i++) ids[i] = i * 5 % VOCAB, target[i] = (i * 5 + 5) % VOCAB;
    r->ids = tg_from_host(r->ctx, TG_I64, TG_SHAPE(BATCH, SEQ), ids);
    r->target = tg_from_host(r->ctx, TG_I64, TG_SHAPE(BATCH, SEQ), target);
    r->t = tg_tape_new(r->ctx);
}

/* Runs forward and backward, without the optimizer's step. */
static inline void run_gradients(run *r, int i) {
    tg_draws_step(r->ctx, 1 + (uint64_t)i);
    tg_tensor *loss = tg_gpt_loss(r->gpt, r->t, r->ids, r->target, TG_LOSS_MEAN);
    tg_backward(r->t, tg_scale_loss(r->t, loss, r->opt));
    tg_optim_set_lr(r->opt, 1e-2 / (1 + 0.1 * i));
    if (strcmp(tg_ctx_device(r->ctx), "meta") != 0) r->loss[i] = tg_item(loss);
}

static inline void run_step(run *r, int i) {
    run_gradients(r, i);
    tg_optim_step(r->opt);
    tg_optim_zero_grad(r->opt);
    tg_tape_reset(r->t);
}

static inline uint64_t tensor_bits(tg_tensor *x, uint64_t h) {
    unsigned char bytes[8192];
    size_t n = (size_t)(tg_numel(x) * tg_dtype_bits(tg_dtype_of(x)) / 8);
    if (n > sizeof bytes || tg_read(x, bytes, n) != TG_OK) return 0;
    for (size_t k = 0; k < n; k++) h = (h ^ bytes[k]) * 1099511628211u;
    return h;
}

/* Returns 0 after an error. */
static inline uint64_t parameter_bits(const run *r) {
    uint64_t h = 1469598103934665603u;
    for (int i = 0; i < tg_module_param_count(r->gpt); i++) h = tensor_bits(tg_module_param(r->gpt, i, NULL), h);
    return tg_ctx_status(r->ctx) == TG_OK ? h : 0;
}

static inline void run_close(run *r) {
    tg_memory_query(r->ctx, &r->memory);
    tg_optim_free(r->opt);
    tg_module_free(r->gpt);
    tg_tape_free(r->t);
    tg_ctx_free(r->ctx);
}

#endif
