/* Low-rank adapters (Hu et al., LoRA, arXiv 2106.09685): a trained model is adapted to new data by small matrices next
 * to some of its linear layers, while its own weights stay as they are. Include this header to fine-tune a model, or to
 * use adapters that were trained before. docs/fine-tuning.md shows both.
 *
 * An adapted layer computes y = W x + bias + s B A x, where W is the weight of the layer and s is alpha / rank. A is
 * [rank, in] and random at first. B is [out, rank] and 0 at first, so that the adapted model begins as the model that
 * it was. Only A and B are trained.
 *
 * The functions take any module m: a language model, or one of your own. Linear layers are the modules in m, not m
 * itself, that tg_nn_linear, tg_nn_column_linear or tg_nn_row_linear made, on any grid of ranks. Parallel layers with
 * one of the options expert, gather_output, input_is_whole or no_weight, or on another axis than tp, are not adapted.
 * An adapted layer is called like the layer that it was, so recomputation, pipelines, generation and hooks work as
 * before; only tg_parallel_linear_apply, which calls a layer with another weight, refuses it. Paths of parameters stay
 * as they were. The matrices are added after the parameters of their layer, as "<path of the layer>.lora_A.weight" and
 * ".lora_B.weight". The dtype of the matrices is that of the layer's weight.
 *
 * tg_lm_save and tg_lm_load (lm.h) save and fill the model's own weights, and leave out the matrices. So a model may be
 * adapted before it is loaded or after. */
#ifndef TAPEGRAD_LORA_H
#define TAPEGRAD_LORA_H

#include <tapegrad/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_lora_opts {
    size_t size;
    int64_t rank;   /* 1 or more; 8 by default */
    double alpha;   /* above 0; TG_AUTO, the default, means 2 * rank */
    double dropout; /* probability of dropout of the input of A, in [0, 1); 0 by default */
    bool rslora;    /* s is alpha / sqrt(rank) instead of alpha / rank (Kalajdzievski, arXiv 2312.03732) */
    /* Which layers are adapted: patterns for paths of layers, as tg_module_train (nn.h) takes them, such as
     * "q_proj,v_proj" or "layers.0". NULL, the default, means all linear layers, except the output matrix if m is a
     * language model. A pattern that matches no linear layer fails with TG_ERR_ARGUMENT. */
    const char *targets;
} tg_lora_opts;
#define TG_LORA_DEFAULTS .size = sizeof(tg_lora_opts), .rank = 8, .alpha = TG_AUTO
#define TG_LORA(...)     (&(tg_lora_opts){TG_LORA_DEFAULTS, __VA_ARGS__})

/* Adapts layers of m, and freezes all parameters of m except the matrices: frozen parameters get no gradient. To train
 * some of them too, such as norms, call tg_module_train afterwards. The elements of the matrices A are drawn like
 * initial values (nn.h), uniformly between -1 / sqrt(in) and 1 / sqrt(in).
 *
 * Call it before you create what holds the parameters: an optimizer, buckets, a captured step. Pass only parameters
 * that require a gradient to the optimizer, so that frozen ones have no state. Fails with TG_ERR_ARGUMENT if an option
 * is out of its range, or if m has no linear layer to adapt. Fails with TG_ERR_STATE if m has adapters already, if m or
 * a module in it runs its forward, or if a layer is in a captured module (tg_captured_new). On an error no layer is
 * adapted. opts may be NULL. */
TG_API tg_status tg_lora_apply(tg_module *m, const tg_lora_opts *opts);
/* Returns the number of adapted layers in m; 0 if m is NULL. */
TG_API int tg_lora_count(const tg_module *m);

/* Merges the adapters of m: adds s B A to the weight of each adapted layer. From then on the layer computes one product
 * with this weight, without dropout, and its matrices get no gradient. Each sum is rounded once to the dtype of the
 * weight. Layers that are merged already stay as they are. Fails with TG_ERR_STATE if m has no adapters. */
TG_API tg_status tg_lora_merge(tg_module *m);
/* Subtracts s B A again from the weights of layers that are merged. This does not undo rounding: a weight may differ in
 * its last bits from what it was before the merge. To get the exact weight back, load it again. Fails as tg_lora_merge
 * does. */
TG_API tg_status tg_lora_unmerge(tg_module *m);
/* Removes the adapters from m and frees their matrices. m then has its own layers again, with the weights that they
 * have now. To keep what was learned, call tg_lora_merge first. Frozen parameters stay frozen until tg_module_train is
 * called. Before the call, free what holds the matrices, such as an optimizer. Fails as tg_lora_merge does, and with
 * TG_ERR_STATE if m or a module in it runs its forward. */
TG_API tg_status tg_lora_remove(tg_module *m);

/* ---- Files ----
 *
 * Adapters are saved in the files of PEFT, a library of Hugging Face. adapter_config.json has the options, and
 * adapter_model.safetensors the matrices. PEFT loads what tg_lora_save saves, and tg_lora_load loads what PEFT saves,
 * with the exceptions that the comment of tg_lora_load names. */

/* Saves the adapters of m into dir, which must exist. The file of matrices is written first, and each file whole or not
 * at all. The config names base as the model to which the adapters belong. base is a path or a name for PEFT, in UTF-8
 * (TG_ERR_ARGUMENT), and may be NULL. Collective over the ranks of the model. m must be whole, not a part of a pipeline
 * (TG_ERR_UNSUPPORTED). Fails as tg_lora_merge does. */
TG_API tg_status tg_lora_save(tg_module *m, const char *dir, const char *base);
/* Adapts the layers of m for which dir has matrices, and fills the matrices. Rank, alpha, dropout and rslora of each
 * layer are those of the files. Freezes all other parameters, and fails with TG_ERR_STATE where tg_lora_apply does. A
 * variant of LoRA that the library does not compute, such as DoRA, fails with TG_ERR_UNSUPPORTED; the message names the
 * key of adapter_config.json, or the tensor, that needs the variant. A matrix of a layer that m does not have, or files
 * without matrices, fail with TG_ERR_FORMAT, and a matrix that does not fit its layer with TG_ERR_SHAPE. So m must be
 * whole, as for tg_lora_save. On an error no layer is adapted, and no parameter is frozen. Every rank that has m must
 * make the call, and reads the files. */
TG_API tg_status tg_lora_load(tg_module *m, const char *dir);

#ifdef __cplusplus
}
#endif

#endif
