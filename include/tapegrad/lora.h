/* Low-rank adapters (Hu et al., LoRA, arXiv 2106.09685): a trained model is adapted to new data by small matrices next
 * to some of its linear layers, while its own weights stay as they are. Include it to fine-tune a model, or to use
 * adapters that were trained before. docs/fine-tuning.md shows both.
 *
 * An adapted layer computes y = W x + bias + s B A x. A is [rank, in] and random at first; B is [out, rank] and 0 at
 * first, so that the adapted model begins as the model that it was. s is alpha / rank. Only A and B are trained.
 *
 * The functions take any module: a language model, or one of your own. They adapt the layers of tg_nn_linear,
 * tg_nn_column_linear and tg_nn_row_linear in it, on any grid of ranks. An adapted layer is called like the layer that
 * it was, so recomputation, pipelines, generation and hooks work as before. Paths of parameters stay as they were; the
 * matrices are added after those of their layer, as "<path of the layer>.lora_A.weight" and ".lora_B.weight". The dtype
 * of the matrices is that of the layer's weight.
 *
 * tg_lm_save saves the model's own weights, without the matrices; tg_lm_load fills them. So a model may be adapted
 * before it is loaded or after. */
#ifndef TAPEGRAD_LORA_H
#define TAPEGRAD_LORA_H

#include <tapegrad/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_lora_opts {
    size_t size;
    int64_t rank;   /* 1 or more; 8 by default */
    double alpha;   /* above 0; TG_AUTO means 2 * rank */
    double dropout; /* probability of dropout of the input of A, in [0, 1); 0 by default */
    bool rslora;    /* s is alpha / sqrt(rank) instead of alpha / rank (Kalajdzievski, arXiv 2312.03732) */
    /* Which layers are adapted: patterns of tg_module_train (nn.h), such as "q_proj,v_proj" or "layers.0". NULL means
     * all linear layers, except the output matrix of a language model. A pattern that matches no linear layer fails
     * with TG_ERR_ARGUMENT. */
    const char *targets;
} tg_lora_opts;
#define TG_LORA_DEFAULTS .size = sizeof(tg_lora_opts), .rank = 8, .alpha = TG_AUTO
#define TG_LORA(...)     (&(tg_lora_opts){TG_LORA_DEFAULTS, __VA_ARGS__})

/* Adapts layers of m, and freezes all other parameters of m: they get no gradient. To train some of them too, such as
 * norms, call tg_module_train afterwards. The matrices A are drawn from the uniform distribution between
 * -1 / sqrt(in) and 1 / sqrt(in), from the current random stream.
 *
 * Call it before you create what holds the parameters: an optimizer, buckets, a captured step. Pass only parameters
 * that require a gradient to the optimizer, so that frozen ones have no state. Fails with TG_ERR_ARGUMENT if m has no
 * linear layer to adapt, and with TG_ERR_STATE if m has adapters already, if m or a module in it runs its forward, or
 * if a layer is in a captured module (tg_captured_new). On an error no layer is adapted. opts may be NULL. */
TG_API tg_status tg_lora_apply(tg_module *m, const tg_lora_opts *opts);
/* Returns the number of adapted layers in m; 0 if m is NULL. */
TG_API int tg_lora_count(const tg_module *m);

/* Adds s B A to the weight of each adapted layer, which from then on computes one product. Sums are rounded once to the
 * dtype of the weight. Layers that are merged already stay as they are. Fails with TG_ERR_STATE if m has no
 * adapters. */
TG_API tg_status tg_lora_merge(tg_module *m);
/* Subtracts s B A again from layers that are merged. This does not undo rounding: a weight may differ in its last bits
 * from what it was before the merge. To get the exact weight back, load it again. Fails as tg_lora_merge does. */
TG_API tg_status tg_lora_unmerge(tg_module *m);
/* Takes the adapters away and frees their matrices: m has its own layers again, with the weights that they have now. To
 * keep what was learned, call tg_lora_merge first. All parameters stay frozen (tg_module_train). Before the call, free
 * what holds the matrices, such as an optimizer. Fails as tg_lora_merge does, and with TG_ERR_STATE if m or a module in
 * it runs its forward. */
TG_API tg_status tg_lora_remove(tg_module *m);

/* ---- Files ----
 *
 * Adapters are saved as Hugging Face's library PEFT saves them, so PEFT loads what is saved here, and the other way
 * round: adapter_config.json, and the matrices in adapter_model.safetensors. */

/* Saves the adapters of m into dir, which must exist. The matrices are written first, each file whole or not at all.
 * base is recorded as the model to which they belong: a path or a name for PEFT, in UTF-8 (TG_ERR_ARGUMENT); it may be
 * NULL. Collective over the ranks of the model; m must be whole, not a part of a pipeline (TG_ERR_UNSUPPORTED). Fails
 * as tg_lora_merge does. */
TG_API tg_status tg_lora_save(tg_module *m, const char *dir, const char *base);
/* Adapts the layers of m that the adapters in dir adapt, and fills the matrices. Their rank, alpha and dropout are
 * those of the files. Freezes all other parameters, as tg_lora_apply does, and fails as it does. A variant of LoRA that
 * the library does not compute, such as DoRA, fails with TG_ERR_UNSUPPORTED and the name of its key in
 * adapter_config.json. A matrix that fits no linear layer of m fails with TG_ERR_FORMAT or TG_ERR_SHAPE. On an error no
 * layer is adapted, and no parameter is frozen. */
TG_API tg_status tg_lora_load(tg_module *m, const char *dir);

#ifdef __cplusplus
}
#endif

#endif
