/* The adapter of a linear layer: a wrapper that adds the product of two small matrices. */
#include "models/lora/lora.h"

#include <math.h>
#include <tapegrad/megatron.h>

#include "base/memory/host_memory.h"
#include "models/lm/lm.h"
#include "parallel/parallel.h"
#include "parallel/tp/layers.h"
#include "placement/grid.h"
#include "tape/tape.h"

static const char *const names[2] = {"lora_A", "lora_B"};

double tg_lora_scale(const tg_lora *s) {
    return s->n.alpha / (s->n.rslora ? sqrt((double)s->n.rank) : (double)s->n.rank);
}

/* ---- Forward ---- */

/* Returns the input of A: x after dropout. For a column layer it is R, whole on every rank, because each rank computes
 * its own rows of the output from all of it. */
static tg_tensor *enter(const tg_lora *s, tg_tape *t, tg_tensor *x) {
    if (s->n.dropout > 0) x = tg_dropout(t, x, s->n.dropout);
    if (s->kind != TG_LORA_COLUMN || s->input_is_r) return x;
    return s->sp ? tg_gather_from_sp(t, x, s->comm, NULL) : tg_copy_to_tp(t, x, s->comm);
}

/* Returns the input of B: the product with A, scaled. In a row layer each rank has only some columns of A, so the
 * products of the ranks are summed. */
static tg_tensor *between(const tg_lora *s, tg_tape *t, tg_tensor *low) {
    low = tg_scale(t, low, tg_lora_scale(s));
    if (s->kind != TG_LORA_ROW) return low;
    return s->sp ? tg_reduce_scatter_to_sp(t, low, s->comm, NULL) : tg_reduce_from_tp(t, low, s->comm);
}

static tg_tensor *forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    const tg_lora *s = tg_lora_of(m);
    tg_tensor *in = x, *y = NULL;
    tg_module *layer = tg_module_part(m, "");
    if (!layer || tg_module_run_call(layer, t, &in, 1, &y, 1) != TG_OK || !y) return tg_inert(t->ctx);
    if (s->merged) return y;
    tg_tensor *low = tg_linear(t, enter(s, t, x), tg_lora_matrix(m, 0), NULL);
    return tg_add(t, y, tg_linear(t, between(s, t, low), tg_lora_matrix(m, 1), NULL));
}

/* ---- The module ---- */

static void state_free(void *state) {
    tg_lora *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

static const tg_module_ops adapter_ops = {
    .size = sizeof(tg_module_ops), .kind = "lora", .forward = forward, .free = state_free};
static const tg_module_ops matrix_ops = {.size = sizeof(tg_module_ops), .kind = "lora_matrix"};

bool tg_is_lora(const tg_module *m) { return m && m->ops == &adapter_ops; }

tg_tensor *tg_lora_matrix(const tg_module *adapter, int i) {
    return tg_module_own_at(adapter, names[i], "weight");
}

bool tg_lora_is_matrix(const char *path) { return strstr(path, ".lora_A.weight") || strstr(path, ".lora_B.weight"); }

static tg_lora_kind kind_of(const tg_module *layer) {
    if (layer->ops == &tg_column_linear.ops) return TG_LORA_COLUMN;
    return layer->ops == &tg_row_linear.ops ? TG_LORA_ROW : TG_LORA_WHOLE;
}

/* Of the parallel layers, those of experts and those on another axis than tp are left out, because their ranks are
 * other ones. So is a layer whose output is gathered or whose input is whole, because its product is then not the
 * layer's own, and a layer without a weight. */
bool tg_can_lora(const tg_module *m) {
    if (tg_is_linear(m) || tg_deferred_linear_wgrads(m)) return true;
    if (!m || !m->ops || kind_of(m) == TG_LORA_WHOLE) return false;
    const tg_parallel_linear *s = tg_parallel_linear_of(m);
    return !s->o.expert && !s->o.gather_output && !s->o.input_is_whole && !s->o.no_weight && s->axis == TG_TP;
}

/* ---- The matrices ---- */

/* Returns the placement on an axis of matrix i of a layer with weight w. A rank that has rows of the weight has the
 * same rows of B, and one that has columns has the same columns of A. The other matrix is whole on every rank; its
 * gradient is a sum over the ranks unless each rank computes all of it. */
static tg_placement place_of(const tg_lora *s, const tg_tensor *w, int i, tg_axis axis) {
    tg_placement at = tg_placement_of(w, axis);
    if (at.kind != TG_VARYING) return at;
    if (s->kind == TG_LORA_COLUMN) return i ? at : TG_R;
    return !i ? at : s->sp ? TG_R : TG_I;
}

static tg_tensor *matrix_new(const tg_lora *s, const tg_tensor *w, int i) {
    static const tg_axis axes[] = {TG_TP, TG_CP, TG_DP};
    tg_place_at at[TG_LEN(axes)];
    const tg_shape whole = tg_global_shape(w);
    const tg_shape shape = i ? (tg_shape){2, {whole.dim[0], s->n.rank}} : (tg_shape){2, {s->n.rank, whole.dim[1]}};
    uint32_t used = tg_grid_axes(s->ctx);
    int n = 0;
    for (int k = 0; k < TG_LEN(axes); k++)
        if (used >> axes[k] & 1) at[n++] = (tg_place_at){axes[k], place_of(s, w, i, axes[k])};
    return n ? tg_param_new_placed(tg_grid_of(s->ctx)->owner, "weight", (tg_dtype)w->dtype, shape, 0, at, n)
             : tg_param_new(s->ctx, "weight", (tg_dtype)w->dtype, shape, 0);
}

/* Adds A or B to the adapter. */
static void add_matrix(tg_module *adapter, const tg_tensor *w, int i) {
    tg_ctx *ctx = adapter->ctx;
    tg_tensor *x = tg_ok(ctx) ? matrix_new(tg_lora_of(adapter), w, i) : tg_inert(ctx);
    tg_module *m = tg_module_new(ctx, &matrix_ops, NULL);
    if (tg_module_add_param(m, "weight", x) != TG_OK) tg_drop(x);
    if (i == 0) tg_param_init(x, TG_KAIMING_UNIFORM(sqrt(1.0 / 3))); /* up to 1 / sqrt(in), as in PEFT; B stays 0 */
    tg_module_add_child(adapter, names[i], m);
}

/* Returns an adapter that holds nothing yet; NULL after an error. */
static tg_module *empty(const tg_module *layer, const tg_lora_numbers *n) {
    tg_lora *s = tg_host_alloc(layer->ctx, sizeof *s);
    if (!s) return NULL;
    *s = (tg_lora){.ctx = layer->ctx, .n = *n, .kind = kind_of(layer)};
    if (s->kind != TG_LORA_WHOLE) {
        s->comm = tg_parallel_linear_of(layer)->comm;
        s->sp = tg_parallel_linear_of(layer)->sp;
        s->input_is_r = tg_parallel_linear_of(layer)->o.no_dgrad_reduce;
        if (tg_comm_size(s->comm) == 1) s->kind = TG_LORA_WHOLE;
    }
    tg_module *m = tg_module_new(layer->ctx, &adapter_ops, s);
    return tg_module_ok(m) ? m : NULL;
}

tg_module *tg_lora_new(tg_module *layer, const tg_lora_numbers *n) {
    tg_module *m = empty(layer, n);
    if (!m) return NULL;
    if (tg_module_wrap_in_place(m, layer) != TG_OK) {
        tg_module_free(m);
        return NULL;
    }
    for (int i = 0; i < 2; i++) add_matrix(m, tg_module_own(layer, "weight"), i);
    if (tg_ok(m->ctx)) return m;
    tg_lora_free(m);
    return NULL;
}

void tg_lora_free(tg_module *adapter) {
    tg_module_unwrap(adapter);
    tg_module_free(adapter);
}
