/* The maximal update parametrization (Yang et al., arXiv 2203.03466, table 8, for Adam): factors that depend on the
 * width of a model, so that learning rates that are tuned on a narrow model are right for a wide one. */
#include <math.h>

#include "models/lm/lm.h"

double tg_mup_width(const tg_lm_config *c) { return c->mup_base > 0 ? (double)c->hidden / c->mup_base : 1; }

double tg_hidden_std(const tg_lm_config *c) { return c->init_std / sqrt(tg_mup_width(c)); }

/* The division by sqrt(2 layers), one for each sublayer, is that of GPT-2 (Radford et al., 2019). */
double tg_residual_std(const tg_lm_config *c) { return tg_hidden_std(c) / sqrt(2.0 * (double)c->layers); }

double tg_attention_scale(const tg_lm_config *c) {
    if (c->attention_scale != TG_AUTO) return c->attention_scale;
    return c->mup_base > 0 ? 1 / (double)c->head_dim : 1 / sqrt((double)c->head_dim);
}
