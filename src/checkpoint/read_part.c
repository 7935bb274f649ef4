/* Reads this rank's part of a tensor from a safetensors file that contains the whole tensor. The placement of the
 * destination says which part that is. */
#include "io/safetensors.h"
#include "checkpoint/shards.h"
#include "placement/placing.h"

static const char *const call = "tg_safetensors_read_part";

/* Fails unless the placement says which part of the whole tensor dst is. */
static tg_status check_place(const tg_tensor *dst) {
    char what[160], text[128];
    const tg_placements *p = tg_place_of(dst);
    if (tg_shard_is_located(dst)) return tg_place_check_shards(dst, p, 0, call);
    tg_describe(dst, what, sizeof what);
    tg_place_text(dst->ctx, p, text, sizeof text);
    return tg_fail(dst->ctx, TG_ERR_PLACEMENT,
                   "%s: the destination %s is %s, expected a shard with a layout or a tensor that is equal on every "
                   "rank; %s",
                   call, what, text,
                   p->partial ? "read into a tensor that is I or R instead, because a PARTIAL one is an addend of a sum"
                              : "declare the leaf with tg_place before its first use");
}

tg_status tg_safetensors_read_part(tg_safetensors *f, const char *name, tg_tensor *dst, bool convert) {
    if (!f) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = f->file.ctx;
    TG_TRY(tg_io_enter(ctx));
    TG_TRY(tg_check(ctx, dst, call));
    TG_TRY(check_place(dst));
    const tg_safetensors_part part = {tg_shard_global(dst), tg_shard_index, tg_grid_of(ctx)->rank};
    return tg_safetensors_fill_part(f, name, dst, &part, convert, call, TG_SITE);
}
