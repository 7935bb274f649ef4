/* Contexts: creation from a config, and release. A context is the state of one rank. It owns the tensors, tapes, works
 * and captured steps that are made on it; the program frees other objects, such as modules, before it. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/sites/debug_lines.h"
#include "base/device_plugin.h"
#include "base/memory/host_memory.h"
#include "base/options.h"
#include "base/plugin.h"
#include "core/memory/mapping.h"
#include "core/memory/scratch.h"
#include "core/capture/capture.h"
#include "core/memory/copies.h"
#include "core/tensor/dlpack.h"
#include "core/tensor/handles.h"
#include "base/threads/thread_pool.h"
#include "core/memory/memory_report.h"
#include "core/random/rng.h"
#include "base/memory/shadow.h"
#include "base/os.h"
#include "core/work.h"
#include "kernels/cpu/cpu.h"

/* ---- Requests of other threads ---- */

/* Does what an entry of the list asks for, `times` times. */
static void do_request(tg_later *e, unsigned times) {
    if (e->kind == TG_LATER_DROP)
        tg_handle_drop((tg_tensor *)((char *)e - offsetof(tg_tensor, later)), times);
    else if (e->kind == TG_LATER_UNPIN)
        tg_storage_unpin((tg_storage_extra *)((char *)e - offsetof(tg_storage_extra, unpin)), times);
    else
        tg_export_end((tg_export *)((char *)e - offsetof(tg_export, later)));
}

/* ---- The tg_heap_source of a context: segments on the device, descriptors on the host ---- */

static void *heap_segment(void *user, size_t bytes, size_t align) {
    tg_ctx *ctx = user;
    ctx->run.host_allocations++;
    void *p = ctx->arena && ctx->host ? ctx->arena->take(ctx->arena, bytes, align) : NULL;
    if (!p) p = ctx->run.ops->alloc(ctx, bytes, align);
    if (p && ctx->host) tg_shadow_close(p, bytes);
    return p;
}

static void heap_segment_free(void *user, void *p, size_t bytes) {
    tg_ctx *ctx = user;
    if (ctx->host) tg_shadow_open(p, bytes);
    if (!ctx->arena || !ctx->arena->owns(ctx->arena, p)) ctx->run.ops->free(ctx, p, bytes);
}

static void *heap_host(void *user, size_t bytes) {
    tg_ctx *ctx = user;
    ctx->run.host_allocations++;
    void *p = ctx->run.allocator.alloc(ctx->run.allocator.user, bytes, _Alignof(max_align_t));
    return p ? memset(p, 0, bytes) : NULL;
}

static void heap_host_free(void *user, void *p, size_t bytes) { tg_host_free(user, p, bytes); }

/* ---- Threads ---- */

static tg_status start_threads(tg_ctx *ctx, const tg_config *config, const char *who) {
    ctx->run.threads = config->threads == TG_AUTO ? tg_system_cores() : config->threads;
    if (config->parallel_for) {
        ctx->run.parallel_for = config->parallel_for;
        ctx->run.parallel_user = config->parallel_user;
        return TG_OK;
    }
    if (ctx->run.threads == 1) return TG_OK;
    ctx->run.pool = tg_pool_new(ctx, ctx->run.threads, who);
    if (!ctx->run.pool) return ctx->run.status;
    ctx->run.parallel_for = tg_pool_run;
    ctx->run.parallel_user = ctx->run.pool;
    return TG_OK;
}

/* ---- New ---- */

/* Returns whether the name is "cuda" or "cuda:N", where N is the number of a GPU. Sets *index to -1 for "cuda", and to
 * N for "cuda:N". */
static bool is_cuda(const char *name, int *index) {
    char *end;
    if (strncmp(name, "cuda", 4) != 0) return false;
    *index = -1;
    if (!name[4]) return true;
    if (name[4] != ':' || name[5] < '0' || name[5] > '9') return false;
    long n = strtol(name + 5, &end, 10);
    *index = (int)(n < INT_MAX ? n : INT_MAX);
    return !*end;
}

static tg_status check_table(tg_ctx *ctx, const tg_device_ops *ops) {
    TG_TRY(tg_table_check(ctx, ops->size, sizeof *ops, "tg_ctx_new_on: the device table"));
    bool whole = ops->name && ops->open && ops->close && ops->alloc && ops->free && ops->copy && ops->sync &&
                 ops->event_record && ops->event_wait && ops->event_free && ops->apply && ops->fill && ops->iota &&
                 ops->reduce && ops->gemm && ops->take && ops->put_add && ops->random;
    if (!whole)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_ctx_new_on: the device table lacks a required slot: name, open, close, alloc, free, copy, "
                       "sync, event_record, event_wait, event_free, apply, fill, iota, reduce, gemm, take, put_add or "
                       "random");
    if (ops->copy_async && !(ops->host_alloc && ops->host_free && ops->event_test && ops->event_await))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_ctx_new_on: the device table lacks a slot that copy_async needs: host_alloc, host_free, "
                       "event_test or event_await");
    return TG_OK;
}

/* Sets the context's device: `ops`, or, if that is NULL, the one that the config names, by default "cpu". */
static tg_status choose_device(tg_ctx *ctx, const tg_device_ops *ops, const tg_config *config) {
    const char *name = config->device ? config->device : ops ? ops->name : "cpu";
    if (ops) {
        TG_TRY(check_table(ctx, ops));
        ctx->run.ops = ops;
    } else if (strcmp(name, "cpu") == 0) {
        ctx->run.ops = &tg_cpu_device;
    } else if (strcmp(name, "meta") == 0) {
        ctx->run.ops = &tg_meta_device;
    } else if (is_cuda(name, &ctx->run.device_index)) {
        const tg_device_plugin *p = tg_plugin_table(ctx, "cuda", TG_ERR_DEVICE, "tg_ctx_new: device \"cuda\"");
        if (!p) return ctx->run.status;
        ctx->run.ops = p->ops;
    } else {
        return tg_fail(ctx, TG_ERR_DEVICE,
                       "tg_ctx_new: device \"%s\" is unknown; expected \"cpu\", \"meta\", \"cuda\" or "
                       "\"cuda:N\"",
                       name);
    }
    ctx->meta = ctx->run.ops == &tg_meta_device;
    ctx->host = ctx->run.ops->host;
    return TG_OK;
}

static tg_status choose_isa(tg_ctx *ctx, const tg_config *config, const char *who) {
    tg_cpu_level_t best = tg_cpu_detect();
    ctx->run.cpu_level = best;
    if (!config->isa) return TG_OK;
    for (int l = 0; l < TG_CPU_LEVELS; l++) {
        if (strcmp(config->isa, tg_cpu_level_name(l)) != 0) continue;
        if (l > (int)best)
            return tg_fail(ctx, TG_ERR_UNSUPPORTED, "%s: this CPU cannot run isa \"%s\"; its best is \"%s\"", who,
                           config->isa, tg_cpu_level_name(best));
        ctx->run.cpu_level = l;
        return TG_OK;
    }
    return tg_fail(ctx, TG_ERR_ARGUMENT,
                   "%s: isa \"%s\" is unknown; expected portable, avx2, avx512, avx512_bf16 or amx", who, config->isa);
}

static tg_status check_config(tg_ctx *ctx, const tg_device_ops *ops, const tg_config *config, const char *who) {
    char files[64];
    if (ops && config->device)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_ctx_new_on: config->device is \"%s\", but ops already selects the device; leave it NULL",
                       config->device);
    if (config->threads != TG_AUTO && (config->threads < 1 || config->threads > 1024))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: threads is %d, expected 1 to 1024, or TG_AUTO for all cores", who,
                       config->threads);
    if (config->dtype && !tg_is_float(config->dtype))
        return tg_fail(ctx, TG_ERR_DTYPE, "%s: dtype %s, expected a float", who, tg_dtype_name(config->dtype));
    if (config->memory != TG_NONE && config->memory < 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: memory is %lld bytes, expected 1 or more, or TG_NONE for no limit",
                       who, (long long)config->memory);
    if (!(config->deadline > 0))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: deadline is %g seconds, expected a number above 0", who,
                       config->deadline);
    if (!config->files) return TG_OK;
    snprintf(files, sizeof files, "%s: the file table", who);
    return tg_table_check(ctx, config->files->size, sizeof *config->files, files);
}

/* Applies the config: checks it, sets the fields of the context, starts its threads, and opens its device and heap.
 * who: the public function, for errors. */
static tg_status configure(tg_ctx *ctx, const tg_device_ops *ops, const tg_config *config, const char *who) {
    TG_TRY(check_config(ctx, ops, config, who));
    TG_TRY(choose_device(ctx, ops, config));
    TG_TRY(choose_isa(ctx, config, who));
    ctx->dtype = config->dtype ? config->dtype : TG_F32;
    ctx->check = config->check;
    ctx->run.memory_limit = config->memory == TG_NONE ? 0 : config->memory;
    ctx->rng = (tg_rng){.seed = config->seed};
    ctx->streams.seed = config->seed;
    ctx->log = config->log;
    ctx->log_user = config->log_user;
    ctx->files = config->files;
    ctx->run.deadline = config->deadline;
    TG_TRY(start_threads(ctx, config, who));
    TG_TRY(ctx->run.ops->open(ctx, &ctx->run.device_state));
    tg_heap_source source = {.segment = heap_segment, .segment_free = heap_segment_free, .host = heap_host,
                             .host_free = heap_host_free, .user = ctx, .on_host = ctx->host};
    ctx->run.heap = tg_heap_new(&source);
    if (ctx->run.heap) return TG_OK;
    ctx->run.ops->close(ctx, ctx->run.device_state);
    return tg_fail(ctx, TG_ERR_MEMORY, "%s: out of memory for the allocator", who);
}

/* Allocates a context and configures it. `refused`, if not NULL, is an error of the call. The config's allocator is
 * read first, so that every error of the call or the config can be recorded in a context. */
static tg_ctx *open_context(const tg_device_ops *ops, const tg_config *given, const char *refused, const char *who) {
    tg_config config;
    char the_config[64];
    snprintf(the_config, sizeof the_config, "%s: the config", who);
    tg_options_complete(&config, &tg_config_struct, given);
    tg_allocator a = config.allocator;
    bool partial = !a.alloc != !a.free;
    if (!a.alloc || !a.free) a = tg_system_allocator();
    tg_ctx *ctx = a.alloc(a.user, sizeof *ctx, 64);
    if (!ctx) return (tg_ctx *)&tg_dead_ctx;
    memset(ctx, 0, sizeof *ctx);
    ctx->run.allocator = a;
    ctx->inert = (tg_tensor){.ctx = ctx};
    ctx->serial = TG_SERIAL_FIRST;
    ctx->do_request = do_request;
    atomic_init(&ctx->users, 1);
    atomic_init(&ctx->settling, true);
    ctx->run.heartbeat = &ctx->run.own_heartbeat;
    if (refused)
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s", who, refused);
    else if (partial)
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the allocator needs both alloc and free", who);
    else if (!given || tg_size_check(ctx, given->size, sizeof config, the_config) == TG_OK)
        configure(ctx, ops, &config, who);
    ctx->run.dead = ctx->run.status != TG_OK;
    return ctx;
}

tg_ctx *tg_ctx_new_on(const tg_device_ops *ops, const tg_config *config) {
    return open_context(ops, config, ops ? NULL : "the device table is NULL", "tg_ctx_new_on");
}

tg_ctx *tg_ctx_new(const tg_config *config) { return open_context(NULL, config, NULL, "tg_ctx_new"); }

/* ---- Free ---- */

static void free_chunks(tg_ctx *ctx, tg_host_chunk *c) {
    while (c) {
        tg_host_chunk *next = c->next;
        tg_host_free(ctx, c, c->bytes);
        c = next;
    }
}

/* Returns why the context cannot end now, or NULL if it can. */
static const char *why_held(const tg_ctx *ctx) {
    if (ctx->ending || ctx->capture) return ctx->ending ? "the context is ending" : "a step is being captured";
    for (int i = TG_PARTS - 1; i >= 0; i--) {
        const tg_part *p = &ctx->part[i];
        const char *why = p->ops && p->ops->held ? p->ops->held(ctx, p->state) : NULL;
        if (why) return why;
    }
    return ctx->busy ? "a function that a call of this context runs has not returned" : NULL;
}

static void end_parts(tg_ctx *ctx) {
    for (int i = TG_PARTS - 1; i >= 0; i--)
        if (ctx->part[i].ops && ctx->part[i].ops->end) ctx->part[i].ops->end(ctx, ctx->part[i].state);
}

static void release_parts(tg_ctx *ctx) {
    for (int i = TG_PARTS - 1; i >= 0; i--)
        if (ctx->part[i].ops && ctx->part[i].ops->release) ctx->part[i].ops->release(ctx, ctx->part[i].state);
}

/* Abandons the works that were not waited for, also those that fill a pinned storage. One that cannot be aborted is
 * waited for. */
static void end_works(tg_ctx *ctx) {
    for (tg_work *w; (w = ctx->works);) {
        if (w->fills) w->fills->extra->work = NULL;
        tg_work_abandon(w);
    }
}

/* Ends the program's pins. Those of exports remain. */
static void end_pins(tg_ctx *ctx) {
    for (tg_storage_extra *e = ctx->pinned, *next; e; e = next) {
        next = e->pinned_next;
        tg_storage_unpin(e, e->pins);
    }
}

/* Frees what is left of a context that tg_ctx_free has ended. The last export may do this on any thread. */
static void free_memory(tg_ctx *ctx) {
    tg_later_settle(ctx);
    if (ctx->run.heap) tg_heap_free(ctx->run.heap);
    for (int i = 0; i < TG_WORKSPACES; i++) tg_host_free(ctx, ctx->run.workspace[i].p, ctx->run.workspace[i].bytes);
    if (ctx->run.ops && ctx->run.heap) ctx->run.ops->close(ctx, ctx->run.device_state);
    if (ctx->arena) ctx->arena->end(ctx->arena);
    free_chunks(ctx, ctx->chunks);
    tg_works_free(ctx);
    tg_storage_extras_free(ctx);
    tg_mappings_free(ctx);
    release_parts(ctx);
    tg_hooks_free(ctx);
    tg_buffers_free(ctx);
    tg_rngs_free(ctx);
    tg_key_notes_free(ctx);
    tg_debug_lines_close(ctx);
    tg_allocator a = ctx->run.allocator;
    a.free(a.user, ctx, sizeof *ctx);
}

/* Does what other threads have asked for since the context ended. This cannot wait for the last user, because a user
 * may depend on it: an export can keep an import alive, and the import a second export of the same context, which is a
 * user until the first one has been processed. One thread at a time does it. A thread that finds another one at it may
 * go on, because the other one looks at the list again after its exchange. */
static void settle_ended(tg_ctx *ctx) {
    while (atomic_load(&ctx->later) && !atomic_exchange(&ctx->settling, true)) {
        tg_later_run(ctx);
        atomic_exchange(&ctx->settling, false);
    }
}

void tg_ctx_leave(tg_ctx *ctx) {
    settle_ended(ctx);
    if (atomic_fetch_sub_explicit(&ctx->users, 1, memory_order_acq_rel) == 1) free_memory(ctx);
}

void tg_ctx_free(tg_ctx *ctx) {
    if (!ctx || ctx == &tg_dead_ctx) return;
    const char *held = why_held(ctx);
    if (held) {
        tg_fail(ctx, TG_ERR_STATE, "tg_ctx_free: %s", held);
        return;
    }
    tg_later_settle(ctx);
    ctx->ending = true;
    tg_graphs_free(ctx);
    end_parts(ctx);
    while (ctx->owned) tg_owned_free(ctx->owned);
    tg_trace_free(ctx);
    tg_copies_free(ctx);
    end_works(ctx);
    end_pins(ctx);
    tg_pool_free(ctx, ctx->run.pool); /* waiting for a work may have used the threads */
    atomic_exchange(&ctx->settling, false);
    tg_ctx_leave(ctx);
}

/* ---- Queries ---- */

int tg_ctx_threads(const tg_ctx *ctx) { return ctx ? ctx->run.threads : 0; }
double tg_ctx_deadline(const tg_ctx *ctx) { return ctx ? ctx->run.deadline : 0; }
const char *tg_ctx_device(const tg_ctx *ctx) { return ctx && ctx->run.ops ? ctx->run.ops->name : ""; }
const char *tg_ctx_isa(const tg_ctx *ctx) { return ctx ? tg_cpu_level_name(ctx->run.cpu_level) : ""; }
