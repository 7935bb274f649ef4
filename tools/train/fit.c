/* What fits into the memory: how much of it the ranks can obtain, and how much a training step of theirs takes. The
 * second is measured by a step on device meta, as `tapegrad inspect` does. */
#include <stdlib.h>
#include <string.h>

#include <tapegrad/memory.h>

#include "common/text.h"
#include "train/choose.h"
#include "train/meta_rank.h"

/* The share of the memory that a step may take. The rest is for what device meta does not know: work memory of kernels,
 * messages between ranks, holes between blocks, and the program itself. Together these took 5 to 33 % of the step's
 * memory in runs on the CPU. */
static const double SHARE = 0.75;

static int64_t least(int64_t a, int64_t b) { return a == TG_NONE || (b != TG_NONE && b < a) ? b : a; }

static int ask_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    int64_t *left = arg;
    left[tg_comm_rank(world)] = tg_memory_left(ctx);
    return check(ctx) ? 0 : 1;
}

bool room_of_ranks(const train_options *o, rank_bytes *room) {
    bool on_gpu = o->device && !strncmp(o->device, "cuda", 4);
    tg_config config = train_config(o);
    config.memory = TG_NONE; /* so that tg_memory_left tells what the device has, without the limit of --memory */
    int64_t *left = calloc((size_t)o->on.ranks, sizeof *left), all = TG_NONE;
    if (!left) return fail("no memory"), false;
    bool good = run_on_ranks(&o->on, config, ask_rank, left) == 0;
    for (int64_t i = 0; i < o->on.ranks; i++) all = least(all, left[i]);
    free(left);
    *room = (rank_bytes){.one = train_memory(o), .all = on_gpu ? TG_NONE : all};
    if (on_gpu) room->one = least(room->one, all);
    return good;
}

/* Measures a step of a stage's first rank. Stages are the outermost division of the ranks (tg_parallel_opts.order). */
static bool measure_stage(const train_options *o, const tg_lm_config *config, int64_t stage, int64_t *peak) {
    meta_rank w;
    tg_memory_info m = TG_MEMORY_INFO();
    bool good = meta_rank_open(&w, o, config, (int)(stage * o->on.ranks / o->on.pp)) && meta_rank_step(&w, &m, NULL);
    meta_rank_close(&w);
    *peak = m.peak;
    return good;
}

bool need_of_step(const train_options *o, const tg_lm_config *config, rank_bytes *need) {
    *need = (rank_bytes){0};
    for (int64_t stage = 0; stage < o->on.pp; stage++) {
        int64_t peak;
        if (!measure_stage(o, config, stage, &peak)) return false;
        if (peak > need->one) need->one = peak;
        need->all += peak * (o->on.ranks / o->on.pp);
    }
    return true;
}

/* Returns the share of a limit that is needed; 0 if there is no limit. */
static double load(int64_t need, int64_t limit) { return limit == TG_NONE ? 0 : (double)need / ((double)limit + 1); }

bool room_holds(const rank_bytes *room, const rank_bytes *need) {
    return load(need->one, room->one) <= SHARE && load(need->all, room->all) <= SHARE;
}

const char *room_text(const rank_bytes *room, const rank_bytes *need, char *buf, size_t n) {
    char bytes[32];
    bool each = load(need->one, room->one) > load(need->all, room->all);
    text_bytes(bytes, sizeof bytes, (double)(each ? room->one : room->all));
    snprintf(buf, n, "%s of memory%s", bytes, each && need->all > need->one ? " for each rank" : "");
    return buf;
}

const char *need_text(const rank_bytes *room, const rank_bytes *need, char *buf, size_t n) {
    bool each = load(need->one, room->one) > load(need->all, room->all);
    text_bytes(buf, n, (double)(each ? need->one : need->all));
    return buf;
}
