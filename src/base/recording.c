/* Refuses operations that are not allowed while a step is recorded for replay. */
#include "base/recording.h"

#include "base/runtime.h"

tg_status tg_recording_refuse(tg_ctx *ctx, const char *who, const char *what, const void *site) {
    const tg_runtime *r = tg_runtime_of(ctx);
    char where[192];
    if (TG_LIKELY(!r->recording)) return TG_OK;
    r->recording->refused = true;
    if (!who) who = r->running ? r->running : r->recording->words->record;
    if (!site) site = r->running_site ? r->running_site : r->recording->site;
    tg_describe_site(ctx, site, where, sizeof where);
    return tg_fail(ctx, TG_ERR_UNSUPPORTED, "%s: %s %s (called from %s); do it %s", who,
                   r->recording->words->recorded, what, where, r->recording->words->elsewhere);
}
