/* Status codes and errors: the functions that set and clear a context's error, the listeners that are notified of it,
 * and the checks of the size field at the start of a caller's struct. */
#define _GNU_SOURCE
#include <stdio.h>

#include "base/runtime.h"

const char *tg_status_name(tg_status s) {
    static const char *const names[] = {
#define TG_X(name, text) "TG_" #name,
        TG_STATUS_LIST(TG_X)
#undef TG_X
    };
    return (unsigned)s < TG_LEN(names) ? names[s] : "?";
}

static const char *status_text(tg_status s) {
    static const char *const texts[] = {
#define TG_X(name, text) text,
        TG_STATUS_LIST(TG_X)
#undef TG_X
    };
    return (unsigned)s < TG_LEN(texts) ? texts[s] : "unknown status";
}

const char *tg_version(void) { return TG_VERSION; }

void tg_struct_init(void *s, size_t size) {
    if (!s || size < sizeof size) return;
    memset(s, 0, size);
    memcpy(s, &size, sizeof size);
}

tg_status tg_size_check(tg_ctx *ctx, size_t size, size_t known, const char *who) {
    if (size < sizeof size)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: the struct's size is %zu; fill the struct with its TG_ macro, tg_struct_fill or tg_make",
                       who, size);
    if (size > known)
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "%s: the struct's size is %zu, but this library knows %zu; it is of a later version, or its size was not "
            "set",
            who, size, known);
    return TG_OK;
}

tg_status tg_table_check(tg_ctx *ctx, size_t size, size_t known, const char *who) {
    TG_TRY(tg_size_check(ctx, size, known, who));
    return size == known ? TG_OK
                         : tg_fail(ctx, TG_ERR_ARGUMENT,
                                   "%s: the table's size is %zu, expected %zu; set .size = sizeof of the table", who,
                                   size, known);
}

tg_status tg_failv(tg_ctx *ctx, tg_status s, const char *format, va_list ap) {
    if (!ctx) return s;
    tg_runtime *r = tg_runtime_of(ctx);
    if (r->status != TG_OK) return r->status;
    r->status = s;
    int n = format ? vsnprintf(r->message, sizeof r->message, format, ap) : 0;
    if (n <= 0) snprintf(r->message, sizeof r->message, "%s", status_text(s));
    for (tg_listener *l = r->listeners; l; l = l->next)
        if (l->failed) l->failed(l);
    return s;
}

tg_status tg_fail(tg_ctx *ctx, tg_status s, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    s = tg_failv(ctx, s, format, ap);
    va_end(ap);
    return s;
}

tg_status tg_fail_note(tg_ctx *ctx, const char *format, ...) {
    tg_runtime *r = tg_runtime_of(ctx);
    if (r->dead || r->status == TG_OK) return r->status;
    size_t used = strlen(r->message);
    va_list ap;
    va_start(ap, format);
    vsnprintf(r->message + used, sizeof r->message - used, format, ap);
    va_end(ap);
    return r->status;
}

tg_counted tg_count(int64_t n, const char *noun) {
    tg_counted c;
    size_t k = strlen(noun);
    bool ch = k > 1 && strcmp(noun + k - 2, "ch") == 0;
    snprintf(c.text, sizeof c.text, "%lld %s%s", (long long)n, noun, n == 1 ? "" : ch ? "es" : "s");
    return c;
}

tg_status tg_ctx_fail(tg_ctx *ctx, tg_status s, const char *format, ...) {
    if (!ctx) return TG_ERR_ARGUMENT;
    if (s == TG_OK || (unsigned)s > TG_ERR_INTERNAL) s = TG_ERR_INTERNAL;
    va_list ap;
    va_start(ap, format);
    s = tg_failv(ctx, s, format, ap);
    va_end(ap);
    return s;
}

tg_status tg_ctx_status(const tg_ctx *ctx) { return ctx ? tg_runtime_of(ctx)->status : TG_ERR_ARGUMENT; }

const char *tg_ctx_message(const tg_ctx *ctx) { return ctx ? tg_runtime_of(ctx)->message : "context is NULL"; }

void tg_ctx_clear(tg_ctx *ctx) {
    if (!ctx) return;
    tg_runtime *r = tg_runtime_of(ctx);
    if (r->dead || r->status == TG_OK) return;
    r->status = TG_OK;
    r->message[0] = 0;
    for (tg_listener *l = r->listeners; l; l = l->next)
        if (l->cleared) l->cleared(l);
}

void tg_ctx_listen(tg_ctx *ctx, tg_listener *l) {
    l->next = tg_runtime_of(ctx)->listeners;
    tg_runtime_of(ctx)->listeners = l;
}

void tg_ctx_unlisten(tg_ctx *ctx, tg_listener *l) {
    for (tg_listener **at = &tg_runtime_of(ctx)->listeners; *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            return;
        }
}

void tg_ctx_skip(tg_ctx *ctx) {
    if (!ctx) return;
    tg_runtime *r = tg_runtime_of(ctx);
    if (r->dead) return;
    r->missed++;
    for (tg_listener *l = r->listeners; l; l = l->next)
        if (l->skipped) l->skipped(l);
}
