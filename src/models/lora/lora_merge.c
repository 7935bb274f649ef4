/* Adds the product of an adapter's matrices to the weight of its layer, and subtracts it again. */
#include "models/lora/lora.h"
#include "ops/common/product.h"

/* Computes w += factor B A. Each rank has the parts of B and of A that belong to its part of w. */
static tg_status add_product(tg_tensor *w, tg_tensor *a, tg_tensor *b, double factor, const char *who,
                             const void *site) {
    TG_TRY(tg_storage_need(a->storage, a));
    TG_TRY(tg_storage_need(b->storage, b));
    TG_TRY(tg_storage_may_change(w));
    tg_tensor_wrote(w, who, site); /* check mode has not compared a and b if nothing has used them */
    tg_product p = {.g = {.alpha = factor, .beta = 1, .m = w->shape[0], .n = w->shape[1], .k = a->shape[0]}};
    p.g.a = tg_matrix_of(b);
    p.g.b = tg_matrix_of(a);
    p.g.c = tg_matrix_of(w);
    return w->ctx->meta ? TG_OK : tg_product_run(w->ctx, &p);
}

static tg_status merge(tg_module *m, bool on, const char *who, const void *site) {
    tg_lora_list l;
    TG_TRY(tg_lora_need(m, &l, who));
    for (int i = 0; i < l.n && tg_ok(m->ctx); i++) {
        tg_module *adapter = l.list[i];
        tg_lora *s = tg_lora_of(adapter);
        double factor = on ? tg_lora_scale(s) : -tg_lora_scale(s);
        if (s->merged == on) continue;
        tg_tensor *w = tg_module_own(adapter, "weight");
        tg_tensor *a = tg_lora_matrix(adapter, 0), *b = tg_lora_matrix(adapter, 1);
        if (!w) tg_fail(m->ctx, TG_ERR_STATE, "%s: the layer of an adapter was replaced by one without a weight", who);
        if (w && a && b && add_product(w, a, b, factor, who, site) == TG_OK) {
            s->merged = on;
            adapter->settings++;
        }
    }
    tg_lora_list_free(&l);
    return m->ctx->run.status;
}

tg_status tg_lora_merge(tg_module *m) { return merge(m, true, "tg_lora_merge", TG_SITE); }
tg_status tg_lora_unmerge(tg_module *m) { return merge(m, false, "tg_lora_unmerge", TG_SITE); }
