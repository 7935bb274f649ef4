/* Status codes, and the one function that writes a context's error. */
#define _GNU_SOURCE
#include <stdio.h>

#include "core/core.h"

/* What a creation returns when there is no memory for a context. Const: tg_fail returns before writing to it. */
const tg_ctx tg_dead_ctx = {
    .run = {.status = TG_ERR_MEMORY, .dead = true, .message = "tg_ctx_new: no memory for the context"},
    .inert = {.ctx = (tg_ctx *)&tg_dead_ctx},
};

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
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the struct's size is %zu; its TG_ macro, or tg_struct_init, sets it",
                       who, size);
    if (size > known)
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "%s: the struct's size is %zu, this library knows %zu: it is a later version's, or its size was never set",
            who, size, known);
    return TG_OK;
}

tg_status tg_table_check(tg_ctx *ctx, size_t size, size_t known, const char *who) {
    TG_TRY(tg_size_check(ctx, size, known, who));
    return size == known ? TG_OK
                         : tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the table's size is %zu, expected %zu", who, size, known);
}

tg_status tg_options(tg_ctx *ctx, void *to, size_t known, const void *from, const char *who) {
    size_t size = from ? *(const size_t *)from : 0;
    memset(to, 0, known);
    if (!from) return TG_OK;
    TG_TRY(tg_size_check(ctx, size, known, who));
    memcpy(to, from, size);
    return TG_OK;
}

tg_status tg_failv(tg_ctx *ctx, tg_status s, const char *format, va_list ap) {
    if (!ctx) return s;
    if (ctx->run.status != TG_OK) return ctx->run.status;
    ctx->run.status = s;
    int n = format ? vsnprintf(ctx->run.message, sizeof ctx->run.message, format, ap) : 0;
    if (n <= 0) snprintf(ctx->run.message, sizeof ctx->run.message, "%s", status_text(s));
    for (tg_listener *l = ctx->run.listeners; l; l = l->next)
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
    if (ctx->run.dead || ctx->run.status == TG_OK) return ctx->run.status;
    size_t used = strlen(ctx->run.message);
    va_list ap;
    va_start(ap, format);
    vsnprintf(ctx->run.message + used, sizeof ctx->run.message - used, format, ap);
    va_end(ap);
    return ctx->run.status;
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

tg_status tg_ctx_status(const tg_ctx *ctx) { return ctx ? ctx->run.status : TG_ERR_ARGUMENT; }

double tg_ctx_deadline(const tg_ctx *ctx) { return ctx ? ctx->run.deadline : 0; }

const char *tg_ctx_message(const tg_ctx *ctx) { return ctx ? ctx->run.message : "context is NULL"; }

void tg_ctx_clear(tg_ctx *ctx) {
    if (!ctx || ctx->run.dead || ctx->run.status == TG_OK) return;
    ctx->run.status = TG_OK;
    ctx->run.message[0] = 0;
    for (tg_listener *l = ctx->run.listeners; l; l = l->next)
        if (l->cleared) l->cleared(l);
}

void tg_ctx_listen(tg_ctx *ctx, tg_listener *l) {
    l->next = ctx->run.listeners;
    ctx->run.listeners = l;
}

void tg_ctx_unlisten(tg_ctx *ctx, tg_listener *l) {
    for (tg_listener **at = &ctx->run.listeners; *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            return;
        }
}

void tg_ctx_skip(tg_ctx *ctx) {
    if (!ctx || ctx->run.dead) return;
    ctx->run.missed++;
    for (tg_listener *l = ctx->run.listeners; l; l = l->next)
        if (l->skipped) l->skipped(l);
}

void tg_ctx_may_skip(tg_ctx *ctx) {
    const uint32_t after_backward = 1u << TG_DP | 1u << TG_EDP;
    if (ctx->run.status != TG_OK && ctx->grid.axes & ~after_backward) tg_ctx_skip(ctx);
}

void tg_text(char *buf, size_t n, size_t *at, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int k = *at < n ? vsnprintf(buf + *at, n - *at, format, ap) : vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (k > 0) *at += (size_t)k;
}
