/* Configs of new models of published families. */
#include <math.h>

#include "base/options.h"
#include "base/text.h"
#include "models/files/families.h"

/* Returns whether the caller chooses the field: it is a size, a probability of dropout, or one that no family
 * determines. */
static bool is_given(const char *field) {
    static const char *const names[] = {
        "size", "vocab", "layers", "heads", "hidden", "positions", "kv_heads", "head_dim", "ffn", "dropout",
        "embed_dropout", "attention_dropout", "mtp", "mtp_weight", "mup_base", "recompute", "wgrad",
        "backend", "cp_kind", "cp_inner", "parallel", "layout", "chunk", "key", "unfilled"};
    for (int i = 0; i < TG_LEN(names); i++)
        if (strcmp(names[i], field) == 0) return true;
    return false;
}

/* Copies the fields that are the same in all models of the family. */
static void set_fixed(const tg_lm_family_row *f, tg_lm_config *c) {
    const tg_struct *s = &tg_lm_config_struct;
    for (int i = 0; i < s->n_fields; i++) {
        const tg_field *field = &s->fields[i];
        if (!is_given(field->name))
            memcpy((char *)c + field->offset, (const char *)&f->fixed + field->offset, field->bytes);
    }
    c->family = f->type;
}

static int64_t head_dim_of(const tg_lm_config *c) {
    return c->head_dim == TG_AUTO ? c->hidden / (c->heads > 0 ? c->heads : 1) : c->head_dim;
}

/* Sets the fields of the family's members to what a missing member of config.json means, except sizes and probabilities
 * of dropout. In attention's scale, 1 / sqrt(s), s is the size of a head, as in most published models. */
static void set_usual(const tg_lm_family_row *f, tg_lm_config *c) {
    for (int i = 0; i < f->n_members; i++) {
        const tg_member *m = &f->members[i];
        char *at = (char *)c + m->offset;
        if (m->kind == TG_MEMBER_REAL) *(double *)(void *)at = m->usual;
        if (m->kind == TG_MEMBER_BOOL) *(bool *)(void *)at = m->usual != 0;
        if (m->kind == TG_MEMBER_RSQRT) *(double *)(void *)at = 1 / sqrt((double)head_dim_of(c));
    }
}

/* Sets what differs between families, or follows from the sizes: the window, which is half of the longest sequence or
 * less, the kinds of the layers, the padding token, and the part that is rotated. */
static void set_layers(const tg_lm_family_row *f, tg_lm_config *c) {
    enum { MOST = 4096 };
    int64_t half = c->positions > 1 ? c->positions / 2 : 1;
    if (f->windowed) c->window = half < MOST ? half : MOST;
    c->attention_kinds = f->kinds;
    c->extra = f->pads ? "{\"pad_token_id\":null}" : NULL;
    if (f->rotated > 0 && f->rotated < 1) c->rope_dims = (int64_t)(f->rotated * (double)head_dim_of(c)) / 2 * 2;
    if (f->finish) f->finish(c);
}

tg_status tg_lm_family_config(tg_ctx *ctx, const char *family, tg_lm_config *c) {
    tg_lm_config own; /* whole, even if *c is of an earlier version, which had fewer fields */
    if (!ctx) return TG_ERR_ARGUMENT;
    TG_TRY(ctx->run.status);
    if (!family || !c)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_lm_family_config: %s is NULL", family ? "the config" : "family");
    TG_TRY(tg_options(ctx, &own, &tg_lm_config_struct, c, "tg_lm_family_config: the config"));
    const tg_lm_family_row *f = tg_lm_family_find(family);
    if (!f)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_lm_family_config: family is \"%s\", expected one of those that tg_lm_family lists", family);
    set_fixed(f, &own);
    set_usual(f, &own);
    set_layers(f, &own);
    tg_options_give(c, &own);
    return TG_OK;
}
