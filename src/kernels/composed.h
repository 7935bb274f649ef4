/* Optional slots of a device, composed of its required slots (tapegrad/device.h). Ops use these functions where the
 * device leaves a slot NULL. A function follows the contract of its slot (tg_device_ops), but is slower than a kernel
 * of the device would be, and needs work memory for temporaries. */
#ifndef TG_COMPOSED_H
#define TG_COMPOSED_H

#include <tapegrad/device.h>

tg_status tg_composed_softmax(tg_ctx *ctx, tg_array y, tg_array x, bool log);
tg_status tg_composed_softmax_grad(tg_ctx *ctx, tg_array gx, tg_array gy, tg_array y, bool log, bool add);
tg_status tg_composed_norm(tg_ctx *ctx, const tg_norm_args *a);
tg_status tg_composed_norm_grad(tg_ctx *ctx, const tg_norm_args *a);
tg_status tg_composed_cross_entropy(tg_ctx *ctx, const tg_cross_entropy_args *a);
tg_status tg_composed_cross_entropy_grad(tg_ctx *ctx, const tg_cross_entropy_args *a);
tg_status tg_composed_attention(tg_ctx *ctx, const tg_attention_args *a);
tg_status tg_composed_attention_grad(tg_ctx *ctx, const tg_attention_args *a);
tg_status tg_composed_dropout(tg_ctx *ctx, tg_array y, tg_array x, double p, const tg_draws *draws, bool add);
tg_status tg_composed_scan(tg_ctx *ctx, tg_reduction kind, tg_array y, tg_array x, bool back, bool add);
tg_status tg_composed_put(tg_ctx *ctx, tg_array dst, tg_array src, tg_array index, int dim, int64_t *bad);
tg_status tg_composed_prepare(tg_ctx *ctx, const tg_prepare_args *a);
tg_status tg_composed_adamw(tg_ctx *ctx, const tg_adamw_args *a, int n);

#endif
