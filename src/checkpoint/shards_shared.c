/* Parameters of which several ranks hold a copy (tg_share), and their state in optimizers, are saved under the keys of
 * the first owner, whichever owner writes them (save_deal.c). The other owners find these keys here. */
#include "checkpoint/shards.h"

#include "base/memory/host_memory.h"
#include "comm/comm.h"
#include "placement/placing.h"

static tg_comm *group_of(const tg_shard_item *i) { return i->like->ext ? i->like->ext->shared : NULL; }

static int count_of_group(const tg_shards *s, const tg_comm *c) {
    int n = 0;
    for (int i = 0; i < s->n; i++) n += group_of(&s->item[i]) == c;
    return n;
}

/* Returns whether no item before item i has its group. */
static bool is_first_of_group(const tg_shards *s, int i) {
    for (int k = 0; k < i; k++)
        if (group_of(&s->item[k]) == group_of(&s->item[i])) return false;
    return true;
}

/* Returns the owner's key for item number k of the group: the item's own key, if the owner has it, or the owner's key
 * number k. */
static const char *owner_of(const char *key, const char (*keys)[TG_SHARDS_KEY], int n, int k) {
    for (int i = 0; i < n; i++)
        if (strcmp(keys[i], key) == 0) return keys[i];
    return keys[k];
}

static tg_status set_owner(tg_shards *s, tg_shard_item *i, const char *key) {
    tg_host_strfree(s->ctx, (char *)i->owner);
    i->owner = NULL;
    if (strcmp(i->key, key) == 0) return TG_OK;
    return (i->owner = tg_host_strdup(s->ctx, key)) ? TG_OK : s->ctx->run.status;
}

/* Replaces keys[n] by those of rank 0 of the group. Collective over it. */
static tg_status take_keys(tg_comm *c, char (*keys)[TG_SHARDS_KEY], int n) {
    tg_ctx *ctx = tg_comm_ctx(c);
    size_t bytes = (size_t)n * sizeof *keys;
    tg_tensor *x = tg_from_host(ctx, TG_U8, TG_SHAPE((int64_t)bytes), keys);
    if (tg_comm_broadcast(c, x, 0)) tg_read(x, keys, bytes);
    tg_drop(x);
    return ctx->run.status;
}

/* Finds the owner's keys for the n items of a group. */
static tg_status find_in_group(tg_shards *s, tg_comm *c, char (*keys)[TG_SHARDS_KEY], int n, const char *who) {
    int k = 0;
    for (int i = 0; i < s->n; i++)
        if (group_of(&s->item[i]) == c) memcpy(keys[k++], s->item[i].key, strlen(s->item[i].key) + 1);
    if (take_keys(c, keys, n) != TG_OK)
        return tg_fail_note(s->ctx, " (%s: the %s of the tensors shared over \"%s\"; add them on all of its ranks)",
                            who, tg_count(n, "key").text, tg_comm_name(c));
    k = 0;
    for (int i = 0; i < s->n; i++) {
        tg_shard_item *e = &s->item[i];
        if (group_of(e) == c) TG_TRY(set_owner(s, e, owner_of(e->key, (const char(*)[TG_SHARDS_KEY])keys, n, k++)));
    }
    return TG_OK;
}

tg_status tg_shards_find_owners(tg_shards *s, const char *who) {
    for (int i = 0; i < s->n; i++) {
        tg_comm *c = group_of(&s->item[i]);
        if (!c || !is_first_of_group(s, i)) continue;
        int n = count_of_group(s, c);
        size_t bytes = (size_t)n * TG_SHARDS_KEY;
        void *keys = tg_host_alloc(s->ctx, bytes);
        tg_status status = keys ? find_in_group(s, c, keys, n, who) : s->ctx->run.status;
        tg_host_free(s->ctx, keys, bytes);
        TG_TRY(status);
    }
    return TG_OK;
}
