/* The module that adapts a linear layer (tapegrad/lora.h): its state, and what the files of adapters share. The module
 * is a wrapper (nn/module.h), so the layer's parameters keep their paths. */
#ifndef TG_LORA_PARTS_H
#define TG_LORA_PARTS_H

#include <tapegrad/lora.h>

#include "nn/module.h"

/* How the ranks of tp divide the layer. */
typedef enum tg_lora_kind { TG_LORA_WHOLE, TG_LORA_COLUMN, TG_LORA_ROW } tg_lora_kind;

/* The options of one adapter (tg_lora_opts). alpha is a number, not TG_AUTO. */
typedef struct tg_lora_numbers {
    int64_t rank;
    double alpha, dropout;
    bool rslora;
} tg_lora_numbers;

/* The state of an adapter. */
typedef struct tg_lora {
    tg_ctx *ctx;
    tg_lora_numbers n;
    tg_lora_kind kind;
    tg_comm *comm;   /* the ranks that divide the layer; NULL: it is no parallel layer */
    bool sp;         /* sequence parallelism: the layer's input (column) or output (row) is a shard of rows */
    bool input_is_r; /* the input of a column layer is R already, and the caller sums its gradient (no_dgrad_reduce) */
    bool merged;     /* the layer's weight has the product of the matrices already */
} tg_lora;

static inline tg_lora *tg_lora_of(const tg_module *adapter) { return adapter->state; }
double tg_lora_scale(const tg_lora *s); /* Returns the factor s of the product of the matrices. */

/* ---- lora.c ---- */

bool tg_is_lora(const tg_module *m);
bool tg_can_lora(const tg_module *m); /* whether m is a linear layer that can be adapted */
/* Puts an adapter in the place of the layer, which it then holds. Returns the adapter. On an error returns NULL; the
 * layer is then where it was. */
tg_module *tg_lora_new(tg_module *layer, const tg_lora_numbers *n);
/* Takes an adapter away, and frees it; its layer takes its place again. */
void tg_lora_free(tg_module *adapter);
/* Returns A (0) or B (1). If the module that had it was freed, records an error and returns NULL. */
tg_tensor *tg_lora_matrix(const tg_module *adapter, int i);
/* Returns whether a parameter of this path in a model is a matrix of an adapter. */
bool tg_lora_is_matrix(const char *path);

/* ---- lora_apply.c ---- */

/* A list of n modules that are in another module. Free it with tg_lora_list_free. */
typedef struct tg_lora_list {
    tg_ctx *ctx;
    tg_module **list;
    int n;
} tg_lora_list;

/* Lists the adapters in m, or the layers that could be adapted. */
tg_status tg_lora_list_adapters(tg_module *m, tg_lora_list *out);
tg_status tg_lora_list_layers(tg_module *m, tg_lora_list *out);
void tg_lora_list_free(tg_lora_list *l);
/* Writes the path of a module in m. Returns the length of the whole path, which may not have fitted. */
size_t tg_lora_path(const tg_module *m, const tg_module *of, char *path, size_t n);
/* Fails unless m has no adapters and its layers can be replaced. `who` is the public function. */
tg_status tg_lora_check_new(tg_module *m, const char *who);
/* Adapts the layers of the list, layer i with numbers[i], and replaces the elements of the list by the adapters. On an
 * error no layer is adapted. `who` is the public function. */
tg_status tg_lora_adapt(tg_module *m, tg_lora_list *l, const tg_lora_numbers *numbers, const char *who);
/* Lets only the matrices of adapters get gradients: freezes all other parameters of m. */
tg_status tg_lora_freeze(tg_module *m);
/* Lists the adapters of m. Fails if m has none, or if the layer of an adapter was freed. */
tg_status tg_lora_need(tg_module *m, tg_lora_list *l, const char *who);

#endif
