/* A device that dumps masks: the CPU, which also notes the mask of each dropout by step, micro-batch, layer and place
 * in the layer. A mask is what the kernel itself keeps: the call is repeated on ones, and attention on equal scores and
 * on values that form a unit matrix, so that its result is the matrix of the probabilities that are kept.
 *
 * The first call of a place is its forward. Further ones are those of second runs, which name their place again, and
 * those of backward, which do not: each must apply a mask that the rank has dumped, and each dumped mask must be
 * applied once. */
#ifndef TG_TEST_MASK_DUMP_H
#define TG_TEST_MASK_DUMP_H

#include <pthread.h>
#include <stdlib.h>

#include "core/context.h"
#include "kernels/cpu/cpu.h"
#include "lm_cases.h"
#include "tape/tape.h"

enum { MASK_STEPS = 2, MASK_MICROS = 3, MASK_LAYERS = 12, MASK_PLACES = 3, MASK_HEADS = 4 };
/* The places of a layer: the probabilities of attention, and the results of its two halves. That of the embedding,
 * which stands before the layers, is the first of these rows. */
enum { MASK_ATTENTION, MASK_HALF };
enum { MASK_ROWS = LM_LENGTH * LM_BATCH * LM_HIDDEN, MASK_SCORES = LM_BATCH * MASK_HEADS * LM_LENGTH * LM_LENGTH };

typedef struct mask_label {
    int micro, layer, place; /* layer 0: the embedding, l + 1: layer l */
} mask_label;

/* The masks of a program by global coordinates: 0: not dumped, 1: dropped, 2: kept. */
typedef struct mask_dump {
    pthread_mutex_t lock;
    char at[MASK_STEPS][MASK_MICROS][1 + MASK_LAYERS][MASK_PLACES][MASK_SCORES];
} mask_dump;

/* A mask of this rank's part of a tensor. */
typedef struct mask_part {
    mask_label label;
    int n;
    bool attention, again; /* again: backward has applied it */
    char *kept;            /* [n] */
} mask_part;

enum { MASK_PARTS = MASK_MICROS * (1 + MASK_LAYERS) * MASK_PLACES };

/* What a rank dumps in a step. */
typedef struct mask_rank {
    tg_parallel *p;
    mask_label now; /* of the next call; layer -1: not in a forward */
    mask_part part[MASK_PARTS];
    int n;
} mask_rank;

static _Thread_local mask_rank masks; /* of this rank */

static inline int64_t mask_numel(int ndim, const int64_t *shape) {
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    return n;
}

/* ---- Masks of calls ---- */

/* An array over float64 memory, row-major. stride[ndim] receives its strides. */
static inline tg_array mask_array(double *data, int ndim, const int64_t *shape, int64_t *stride) {
    int64_t n = 1;
    for (int i = ndim - 1; i >= 0; n *= shape[i--]) stride[i] = n;
    return (tg_array){data, shape, stride, n, (uint8_t)ndim, TG_F64, true};
}

static inline char *mask_bits(const double *value, int64_t n) {
    char *kept = malloc((size_t)n);
    for (int64_t i = 0; i < n; i++) kept[i] = value[i] > 0 ? 2 : 1;
    return kept;
}

static inline tg_status mask_of_dropout(tg_ctx *ctx, tg_array x, double p, const tg_draws *draws, char **kept) {
    int64_t stride[TG_MAX_DIMS];
    double *v = malloc((size_t)x.numel * sizeof *v);
    for (int64_t i = 0; i < x.numel; i++) v[i] = 1;
    tg_array a = mask_array(v, x.ndim, x.shape, stride);
    tg_status s = tg_cpu_device.dropout(ctx, a, a, p, draws, false);
    *kept = mask_bits(v, x.numel);
    free(v);
    return s;
}

/* Runs attention with the draws of a call where every query sees every key. */
static inline tg_status mask_of_attention(tg_ctx *ctx, const tg_attention_args *a, char **kept) {
    int64_t b = a->q.shape[0], h = a->q.shape[1], g = a->k.shape[1], sq = a->q.shape[2], sk = a->k.shape[2];
    int64_t row[] = {b, h, sq, 1}, key[] = {b, g, sk, 1}, value[] = {b, g, sk, sk}, out[] = {b, h, sq, sk};
    int64_t stride[6][4], numel[] = {b * h * sq, b * g * sk, b * g * sk * sk, b * h * sq * sk};
    double *q = calloc((size_t)numel[0], sizeof *q), *k = calloc((size_t)numel[1], sizeof *k);
    double *v = calloc((size_t)numel[2], sizeof *v), *y = calloc((size_t)numel[3], sizeof *y);
    double *top = calloc((size_t)numel[0], sizeof *top), *mass = calloc((size_t)numel[0], sizeof *mass);
    for (int64_t i = 0; i < b * g * sk; i++) v[i * sk + i % sk] = 1;
    tg_attention_args ones = {.q = mask_array(q, 4, row, stride[0]),
                              .k = mask_array(k, 4, key, stride[1]),
                              .v = mask_array(v, 4, value, stride[2]),
                              .out = mask_array(y, 4, out, stride[3]),
                              .top = mask_array(top, 3, row, stride[4]),
                              .mass = mask_array(mass, 3, row, stride[5]),
                              .scale = 1,
                              .dropout = a->dropout,
                              .draws = a->draws};
    tg_status s = tg_cpu_device.attention(ctx, &ones);
    *kept = mask_bits(y, numel[3]);
    free(q), free(k), free(v), free(y), free(top), free(mass);
    return s;
}

/* ---- Dumping ---- */

static inline tg_status mask_wrong(tg_ctx *ctx, mask_label l, const char *what) {
    return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the mask of micro-batch %d, layer %d, place %d %s", l.micro, l.layer - 1,
                       l.place, what);
}

/* Returns whether the call is the forward of the place that `now` names, and moves on to the next place. */
static inline bool mask_is_forward(bool attention, mask_label *at) {
    mask_label *now = &masks.now;
    *at = *now;
    if (now->layer < 0 || now->place >= MASK_PLACES || attention != (now->layer && now->place == MASK_ATTENTION))
        return false;
    now->place = now->layer ? now->place + 1 : MASK_PLACES;
    return true;
}

static inline bool mask_same(const mask_part *p, bool attention, const char *kept, int n) {
    return p->attention == attention && p->n == n && memcmp(p->kept, kept, (size_t)n) == 0;
}

static inline tg_status mask_again(tg_ctx *ctx, bool attention, const char *kept, int n) {
    for (int i = 0; i < masks.n; i++) {
        if (masks.part[i].again || !mask_same(&masks.part[i], attention, kept, n)) continue;
        masks.part[i].again = true;
        return TG_OK;
    }
    return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "backward applies a mask of %d elements that no forward has applied", n);
}

/* Dumps a mask, whose memory it takes. */
static inline tg_status mask_note(tg_ctx *ctx, bool attention, char *kept, int64_t n) {
    mask_label at;
    tg_status s = TG_OK;
    if (mask_is_forward(attention, &at)) {
        mask_part *p = NULL;
        for (int i = 0; i < masks.n && !p; i++)
            if (!memcmp(&masks.part[i].label, &at, sizeof at)) p = &masks.part[i];
        if (!p) {
            masks.part[masks.n++] = (mask_part){at, (int)n, attention, false, kept};
            return TG_OK;
        }
        if (!mask_same(p, attention, kept, (int)n)) s = mask_wrong(ctx, at, "is another one in its second run");
    } else {
        s = mask_again(ctx, attention, kept, (int)n);
    }
    free(kept);
    return s;
}

static inline tg_status mask_dropout(tg_ctx *ctx, tg_array y, tg_array x, double p, const tg_draws *draws, bool add) {
    char *kept;
    RUN(mask_of_dropout(ctx, x, p, draws, &kept));
    RUN(mask_note(ctx, x.ndim > 3, kept, x.numel));
    return tg_cpu_device.dropout(ctx, y, x, p, draws, add);
}

static inline tg_status mask_attention_call(tg_ctx *ctx, const tg_attention_args *a) {
    char *kept;
    if (a->dropout <= 0) return TG_OK;
    RUN(mask_of_attention(ctx, a, &kept));
    return mask_note(ctx, true, kept, mask_numel(3, a->q.shape) * a->k.shape[2]);
}

static inline tg_status mask_attention(tg_ctx *ctx, const tg_attention_args *a) {
    RUN(mask_attention_call(ctx, a));
    return tg_cpu_device.attention(ctx, a);
}

static inline tg_status mask_attention_grad(tg_ctx *ctx, const tg_attention_args *a) {
    RUN(mask_attention_call(ctx, a));
    return tg_cpu_device.attention_grad(ctx, a);
}

static tg_device_ops mask_device; /* filled by mask_device_open */

static inline void mask_device_open(void) {
    mask_device = tg_cpu_device;
    mask_device.dropout = mask_dropout;
    mask_device.attention = mask_attention;
    mask_device.attention_grad = mask_attention_grad;
}

/* ---- Labels ---- */

/* Says that a part begins its forward of a micro-batch. */
static inline void mask_part_begins(int part, int micro) { masks.now = (mask_label){micro, part ? -1 : 0, 0}; }

/* The hook of layer `user`. */
static inline tg_status mask_layer_begins(void *user, tg_module *m, tg_tape *t, tg_tensor **in, int n) {
    (void)m, (void)in, (void)n;
    masks.now = (mask_label){(int)t->micro, 1 + (int)(intptr_t)user, 0};
    return TG_OK;
}

/* Hooks the layers of a part of a model with GPT-2's names. */
static inline void mask_watch(tg_module *lm) {
    tg_module *layers = tg_module_child(tg_module_child(lm, "transformer"), "h");
    for (int l = 0; l < MASK_LAYERS; l++) {
        char name[8];
        snprintf(name, sizeof name, "%d", l);
        tg_module *layer = layers ? tg_module_child(layers, name) : NULL;
        if (layer) tg_module_hook(layer, TG_BEFORE, mask_layer_begins, (void *)(intptr_t)l);
    }
}

/* ---- Global coordinates ---- */

/* Returns the index in the global mask of element i of a part. */
static inline int mask_index(const mask_part *m, int i) {
    int dp = tg_parallel_rank(masks.p, TG_DP), tp = tg_parallel_rank(masks.p, TG_TP);
    int rows = LM_BATCH / tg_parallel_size(masks.p, TG_DP);
    if (m->attention) { /* [b, heads, s, s] */
        int square = LM_LENGTH * LM_LENGTH, heads = m->n / square / rows, head = i / square % heads;
        if (heads < MASK_HEADS) head += tp * heads;
        return ((dp * rows + i / square / heads) * MASK_HEADS + head) * square + i % square;
    }
    int length = m->n / LM_HIDDEN / rows, at = i / LM_HIDDEN / rows; /* [s, b, h] */
    if (length < LM_LENGTH) at += tp * length;
    return (at * LM_BATCH + dp * rows + i / LM_HIDDEN % rows) * LM_HIDDEN + i % LM_HIDDEN;
}

/* Ends a step of this rank: moves its masks to the dump. */
static inline tg_status mask_step_ends(tg_ctx *ctx, mask_dump *d, int step) {
    tg_status s = tg_ctx_status(ctx);
    pthread_mutex_lock(&d->lock);
    for (int k = 0; k < masks.n; k++) {
        const mask_part *m = &masks.part[k];
        char *to = d->at[step][m->label.micro][m->label.layer][m->label.place];
        if (s == TG_OK && !m->again) s = mask_wrong(ctx, m->label, "was not applied in backward");
        for (int i = 0; i < m->n && s == TG_OK; i++) {
            char *bit = &to[mask_index(m, i)];
            if (*bit && *bit != m->kept[i]) s = mask_wrong(ctx, m->label, "differs between ranks that have the same");
            *bit = m->kept[i];
        }
        free(m->kept);
    }
    pthread_mutex_unlock(&d->lock);
    masks.n = 0;
    return s;
}

#endif
