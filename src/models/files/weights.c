/* The form of a model's parameters in its files: shapes, the order of dims, and padding. */
#include "models/lora/lora.h"
#include "models/files/model_files.h"

bool tg_weight_is_transposed(const tg_module *lm, const char *path) {
    static const char *const projections[] = {".c_attn.weight", ".c_proj.weight", ".c_fc.weight", ".c_gate.weight"};
    if (!tg_lm_is_transposed(&tg_lm_of(lm)->c)) return false;
    for (size_t i = 0; i < TG_LEN(projections); i++)
        if (tg_ends_with(path, projections[i])) return true;
    return false;
}

/* Returns whether the parameter is the embedding of token ids, by any family's name. */
static bool is_embedding(const char *path) {
    return tg_ends_with(path, ".wte.weight") || tg_ends_with(path, ".embed_tokens.weight");
}

int64_t tg_weight_rows(const tg_module *lm, const tg_tensor *p, const char *path) {
    bool padded = is_embedding(path) || strcmp(path, TG_WEIGHT_HEAD) == 0;
    return padded ? tg_lm_of(lm)->c.vocab : tg_global_shape(p).dim[0];
}

tg_shape tg_weight_shape(const tg_module *lm, const tg_tensor *p, const char *path) {
    tg_shape g = tg_global_shape(p), stored = g;
    stored.dim[0] = g.dim[0] = tg_weight_rows(lm, p, path);
    for (int d = 0; tg_weight_is_transposed(lm, path) && d < 2; d++) stored.dim[d] = g.dim[1 - d];
    return stored;
}

tg_tensor *tg_weight_view(const tg_module *lm, const tg_tensor *p, int64_t rows, const char *path) {
    bool swap = tg_weight_is_transposed(lm, path);
    int64_t shape[TG_MAX_DIMS], stride[TG_MAX_DIMS];
    for (int i = 0; i < p->ndim; i++) {
        int d = swap ? 1 - i : i;
        shape[i] = d == 0 ? rows : p->shape[d];
        stride[i] = p->stride[d];
    }
    return tg_temp_new(p->ctx, p->dtype, p->ndim, shape, stride, tg_storage_ref(p->storage), p->offset);
}

bool tg_weight_is_copy(const tg_module *lm, const char *path) {
    return !tg_lm_of(lm)->stage.embedding && is_embedding(path);
}

bool tg_weight_is_adapter(const char *path) { return tg_lora_is_matrix(path); }

tg_status tg_chunks_check(tg_module *const *lm, int n, const char *dir, const char *who, tg_lm_chunks *m) {
    tg_ctx *ctx = lm && n > 0 && lm[0] ? lm[0]->ctx : NULL;
    if (!ctx) return TG_ERR_ARGUMENT;
    TG_TRY(ctx->run.status);
    if (!dir) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: dir is NULL", who);
    for (int i = 0; i < n; i++)
        if (!tg_is_lm(lm[i]) || lm[i]->ctx != ctx)
            return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: module %d is not a language model of the context", who, i);
    *m = (tg_lm_chunks){ctx, lm, n};
    return TG_OK;
}
