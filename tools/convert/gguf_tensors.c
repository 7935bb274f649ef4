/* The tensors of a GGUF file: finds the tensor of the weights from which each one is made, and writes their values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "convert/gguf.h"

typedef struct gguf_entry {
    char name[96];
    const tg_safetensors_entry *source; /* NULL: the factors of rope's frequencies */
    gguf_dtype dtype;
    tg_shape shape;
    gguf_change change;
} gguf_entry;

struct gguf_plan {
    tg_ctx *ctx;
    tg_safetensors *f;
    const gguf_family *family;
    const tg_module *lm;
    const tg_lm_config *c;
    gguf_entry *entry;
    int n;
};

void gguf_plan_free(gguf_plan *p) {
    if (p) free(p->entry);
    free(p);
}

/* ---- The plan ---- */

/* Returns the weights' tensor of the parameter `path`; NULL if there is none. Published files of GPT-2 omit the first
 * part of the names. */
static const tg_safetensors_entry *find_source(const gguf_plan *p, const char *path) {
    static const char first[] = "transformer.";
    const tg_safetensors_entry *e = tg_safetensors_find(p->f, path);
    return e || strncmp(path, first, strlen(first)) != 0 ? e : tg_safetensors_find(p->f, path + strlen(first));
}

static bool same_shape(const tg_shape *a, const tg_shape *b, bool transposed) {
    bool same = a->ndim == b->ndim;
    for (int64_t i = 0; same && i < a->ndim; i++) same = a->dim[i] == b->dim[transposed ? a->ndim - 1 - i : i];
    return same;
}

/* Returns the dtype of a tensor in the file. llama.cpp adds vectors, and the table of positions, in float32. */
static gguf_dtype dtype_of(const gguf_entry *e) {
    bool exact = e->shape.ndim == 1 || strncmp(e->name, "position_embd", 13) == 0 || e->source->dtype == TG_F32;
    if (exact) return GGUF_TENSOR_F32;
    return e->source->dtype == TG_F16 ? GGUF_TENSOR_F16 : GGUF_TENSOR_BF16;
}

static tg_status check_source(const gguf_plan *p, const gguf_entry *e, const char *path) {
    const tg_safetensors_entry *s = e->source;
    if (!s)
        return tg_ctx_fail(p->ctx, TG_ERR_FORMAT,
                           "the weights have no tensor \"%s\", which the model of config.json needs", path);
    if (!same_shape(&s->shape, &e->shape, e->change == GGUF_TRANSPOSED))
        return tg_ctx_fail(p->ctx, TG_ERR_SHAPE, "tensor \"%s\" has another shape than the model of config.json",
                           s->name);
    if (s->dtype == TG_F32 || s->dtype == TG_F16 || s->dtype == TG_BF16) return TG_OK;
    return tg_ctx_fail(p->ctx, TG_ERR_UNSUPPORTED, "tensor \"%s\" has dtype %s; only F32, F16 and BF16 become GGUF",
                       s->name, s->dtype_name);
}

static tg_status plan_parameter(gguf_plan *p, int i) {
    const char *path;
    gguf_entry *e = &p->entry[p->n];
    tg_tensor *x = tg_module_param(p->lm, i, &path);
    if (!gguf_name(p->family, p->c, path, e->name, sizeof e->name, &e->change))
        return tg_ctx_fail(p->ctx, TG_ERR_UNSUPPORTED,
                           "llama.cpp has no tensor for \"%s\" in models of the type \"%s\"", path, p->family->type);
    e->source = find_source(p, path);
    e->shape = tg_shape_of(x);
    tg_status s = check_source(p, e, path);
    if (s) return s;
    e->dtype = dtype_of(e);
    p->n++;
    return TG_OK;
}

/* Adds the embedding a second time, as the output matrix. */
static void plan_output(gguf_plan *p) {
    for (int i = 0, n = p->n; i < n; i++)
        if (strcmp(p->entry[i].name, "token_embd.weight") == 0) {
            p->entry[p->n] = p->entry[i];
            strcpy(p->entry[p->n++].name, "output.weight");
        }
}

static void plan_frequencies(gguf_plan *p) {
    gguf_entry *e = &p->entry[p->n++];
    strcpy(e->name, "rope_freqs.weight");
    e->shape = TG_SHAPE(p->c->head_dim / 2);
    e->dtype = GGUF_TENSOR_F32;
}

/* Returns whether the tensor is not a parameter, as the masks in files of GPT-2, or repeats the embedding. */
static bool ignorable(const gguf_plan *p, const char *name) {
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n >= strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0) return true;
    return p->c->tied && strcmp(name, "lm_head.weight") == 0;
}

/* Fails if the weights have a tensor that does not belong to the model. */
static tg_status check_others(const gguf_plan *p) {
    for (int i = 0; i < tg_safetensors_count(p->f); i++) {
        const tg_safetensors_entry *s = tg_safetensors_at(p->f, i);
        bool found = ignorable(p, s->name);
        for (int k = 0; k < p->n && !found; k++) found = p->entry[k].source == s;
        if (!found)
            return tg_ctx_fail(p->ctx, TG_ERR_FORMAT,
                               "tensor \"%s\" does not belong to the model that config.json describes", s->name);
    }
    return TG_OK;
}

static tg_status make_plan(gguf_plan *p, gguf_head *h) {
    tg_status s = TG_OK;
    int n = tg_module_param_count(p->lm);
    p->entry = calloc((size_t)n + 2, sizeof *p->entry);
    if (!p->entry) return tg_ctx_fail(p->ctx, TG_ERR_MEMORY, "no memory for the names of %d tensors", n);
    for (int i = 0; i < n && !s; i++) s = plan_parameter(p, i);
    if (!s) s = check_others(p);
    if (p->c->tied && p->family->output) plan_output(p);
    if (p->c->rope_kind == TG_ROPE_LLAMA3) plan_frequencies(p);
    for (int i = 0; i < p->n; i++) gguf_tensor(h, p->entry[i].name, p->entry[i].dtype, p->entry[i].shape);
    return s;
}

gguf_plan *gguf_plan_new(tg_ctx *ctx, gguf_head *h, tg_safetensors *f, const gguf_family *family, const tg_module *lm) {
    gguf_plan *p = calloc(1, sizeof *p);
    if (!p) return tg_ctx_fail(ctx, TG_ERR_MEMORY, "no memory for the names of the tensors"), NULL;
    *p = (gguf_plan){.ctx = ctx, .f = f, .family = family, .lm = lm, .c = tg_lm_config_of(lm)};
    if (make_plan(p, h) == TG_OK) return p;
    gguf_plan_free(p);
    return NULL;
}

int gguf_plan_file_type(const gguf_plan *p) {
    int64_t count[31] = {0};
    for (int i = 0; i < p->n; i++)
        if (p->entry[i].shape.ndim > 1) count[p->entry[i].dtype] += p->entry[i].shape.dim[0] * p->entry[i].shape.dim[1];
    if (count[GGUF_TENSOR_BF16] > count[GGUF_TENSOR_F16])
        return count[GGUF_TENSOR_BF16] > count[GGUF_TENSOR_F32] ? 32 : 0;
    return count[GGUF_TENSOR_F16] > count[GGUF_TENSOR_F32] ? 1 : 0;
}

/* ---- Values ---- */

static size_t size_of(gguf_dtype dtype) { return dtype == GGUF_TENSOR_F32 ? 4 : 2; }

static size_t bytes_of(const gguf_entry *e) {
    size_t n = size_of(e->dtype);
    for (int64_t i = 0; i < e->shape.ndim; i++) n *= (size_t)e->shape.dim[i];
    return n;
}

/* Reads the values into memory in the order of e->shape. A transposed tensor is read through a transposed view. */
static tg_status read_values(const gguf_plan *p, const gguf_entry *e, void *memory) {
    tg_dtype dtype = e->dtype == GGUF_TENSOR_F32 ? TG_F32 : e->source->dtype;
    bool turned = e->change == GGUF_TRANSPOSED;
    int64_t strides[] = {1, turned ? e->shape.dim[1] : 0};
    tg_tensor *x = tg_wrap(p->ctx, dtype, e->source->shape, turned ? strides : NULL, memory, NULL, NULL);
    tg_status s = tg_safetensors_read(p->f, e->source->name, x, true);
    tg_drop(x);
    return s;
}

/* Writes the rows of each head of d rows in such an order that rows i and i + d / 2 become neighbors. */
static tg_status write_paired(const gguf_plan *p, const gguf_entry *e, tg_writer *w, const char *values) {
    int64_t rows = e->shape.dim[0], d = p->c->head_dim;
    size_t row = bytes_of(e) / (size_t)rows;
    tg_status s = TG_OK;
    for (int64_t i = 0; i < rows && !s; i++) {
        int64_t at = i % d, from = i - at + at / 2 + at % 2 * (d / 2);
        s = tg_writer_put(w, values + (size_t)from * row, row);
    }
    return s;
}

/* Computes the factors by which rope of the kind llama3 divides the frequencies (Llama 3.1; see tg_rope_opts). */
static void frequencies(const tg_lm_config *c, float *out) {
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        double wave = 2 * 3.14159265358979323846 * pow(c->rope_base, 2.0 * (double)i / (double)c->head_dim);
        double t = ((double)c->rope_original / wave - c->rope_low) / (c->rope_high - c->rope_low);
        t = t < 0 ? 0 : t > 1 ? 1 : t;
        out[i] = (float)(1 / ((1 - t) / c->rope_factor + t));
    }
}

static tg_status write_entry(const gguf_plan *p, const gguf_entry *e, tg_writer *w, void *memory) {
    tg_status s = TG_OK;
    if (e->source)
        s = read_values(p, e, memory);
    else
        frequencies(p->c, memory);
    if (!s && e->change == GGUF_PLUS_ONE)
        for (int64_t i = 0; i < e->shape.dim[0]; i++) ((float *)memory)[i] += 1;
    if (!s) s = e->change == GGUF_PAIRED ? write_paired(p, e, w, memory) : tg_writer_put(w, memory, bytes_of(e));
    return s ? s : gguf_align(w);
}

tg_status gguf_plan_write(const gguf_plan *p, tg_writer *w) {
    tg_status s = TG_OK;
    for (int i = 0; i < p->n && !s; i++) {
        void *memory = malloc(bytes_of(&p->entry[i]));
        s = memory ? write_entry(p, &p->entry[i], w, memory)
                   : tg_ctx_fail(p->ctx, TG_ERR_MEMORY, "no memory for the values of \"%s\"", p->entry[i].name);
        free(memory);
    }
    return s;
}
