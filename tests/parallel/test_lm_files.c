/* Model directories of stages: any layout writes and reads one checkpoint, in one file or in several with an index, and
 * what is wrong with it is refused before anything changes. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <tapegrad/gpt.h>
#include <tapegrad/io.h>

#include "lm_cases.h"
#include "models/lm.h"

/* ---- Directories ---- */

static void make_directory(char dir[64]) {
    snprintf(dir, 64, "/tmp/tg-lm-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static bool is_there(const char *dir, const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static void remove_directory(const char *dir) {
    char command[96];
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    ck_assert_int_eq(system(command), 0);
}

/* ---- Save in one composition, load in another ---- */

typedef struct composition {
    int tp, pp;
    const char *layout; /* over pp stages, or over chunks of one rank; NULL: equal parts */
    int chunks;
} composition;

typedef struct job {
    composition how;
    tg_gpt_arch arch;
    bool tied, saves;
    int64_t file_bytes;
    char dir[64];
} job;

static tg_module *make(tg_ctx *ctx, const job *j, const tg_parallel *p, int chunk) {
    bool gpt2 = j->arch == TG_GPT2;
    return tg_gpt_new(ctx,
                      TG_GPT(.arch = j->arch, .vocab = 50, .layers = LM_LAYERS, .heads = 4, .hidden = LM_HIDDEN,
                             .ffn = 24, .positions = LM_LENGTH, .tied = !gpt2 && j->tied, .untied = gpt2 && !j->tied,
                             .parallel = p, .layout = j->how.layout, .chunk = chunk, .key = 1 + (uint64_t)j->arch));
}

/* Returns element i of the global parameter of that name: a number that no other element has. */
static double value(const char *path, int64_t i) {
    double v = 0;
    for (const char *c = path; *c; c++) v = fmod(v * 31 + *c, 8191);
    return v + 1e-4 * (double)i;
}

/* Returns the index in the global tensor of element i of this rank's part of x. */
static int64_t global_index(tg_tensor *x, const tg_parallel *p, int64_t i) {
    tg_placement at = tg_placement_of(x, TG_TP);
    int n = tg_parallel_size(p, TG_TP), r = tg_parallel_rank(p, TG_TP);
    int64_t columns = tg_ndim(x) == 2 ? tg_dim(x, 1) : 1, row = i / columns, column = i % columns;
    if (n == 1 || at.kind != TG_VARYING) return i;
    int64_t *d = at.dim ? &column : &row, size = tg_dim(x, at.dim),
            part = at.layout == TG_STRIDED ? size / at.chunks : size;
    *d = (*d / part * n + r) * part + *d % part;
    return row * (at.dim ? n * columns : columns) + column;
}

/* Writes the value of each element, or checks it. Rows of padding are zero. */
static tg_status visit(tg_module *m, const tg_parallel *p, bool check) {
    double v[8192];
    for (int k = 0; k < tg_module_param_count(m); k++) {
        const char *path;
        tg_tensor *x = tg_module_param(m, k, &path);
        int64_t n = tg_numel(x), columns = tg_ndim(x) == 2 ? tg_dim(x, 1) : 1;
        bool words = strstr(path, "wte") || strstr(path, "embed_tokens") || !strcmp(path, "lm_head.weight");
        if (check) RUN(tg_read_f64(x, v, n));
        for (int64_t i = 0; i < n; i++) {
            int64_t at = global_index(x, p, i);
            double want = words && at / columns >= 50 ? 0 : value(path, at);
            if (check && v[i] != want)
                return tg_ctx_fail(tg_module_ctx(m), TG_ERR_INTERNAL, "%s[%lld] is %g, expected %g", path,
                                   (long long)at, v[i], want);
            v[i] = want;
        }
        if (!check) RUN(tg_write_f64(x, v, n));
    }
    return TG_OK;
}

static tg_status files_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    tg_module *m[4];
    tg_parallel *p =
        tg_comm_size(world) > 1 ? tg_parallel_new(world, TG_PARALLEL(.tp = j->how.tp, .pp = j->how.pp)) : NULL;
    for (int i = 0; i < j->how.chunks; i++) m[i] = make(ctx, j, p, i);
    for (int i = 0; i < j->how.chunks && j->saves; i++) RUN(visit(m[i], p, false));
    if (j->saves)
        RUN(tg_lm_save(m, j->how.chunks, j->dir, TG_LM_SAVE(.file_bytes = j->file_bytes)));
    else
        RUN(tg_lm_load(m, j->how.chunks, j->dir));
    for (int i = 0; i < j->how.chunks; i++) {
        RUN(visit(m[i], p, true));
        tg_module_free(m[i]);
    }
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static const composition compositions[] = {
    {1, 1, NULL, 1}, {1, 2, NULL, 1}, {2, 2, "E t*3|t L", 1}, {1, 4, "E t|t|t*2|L", 1}, {1, 1, "E t|t*2|t L", 3},
};
enum { COMPOSITIONS = sizeof compositions / sizeof *compositions };

/* A tied model has no two parts on one stage. */
static bool is_possible(const composition *c, bool tied) { return !tied || c->chunks == 1; }

static void save_and_load(tg_gpt_arch arch, bool tied, const composition *from, int64_t file_bytes) {
    job j = {.how = *from, .arch = arch, .tied = tied, .saves = true, .file_bytes = file_bytes};
    make_directory(j.dir);
    on_ranks(from->tp * from->pp, files_rank, &j);
    bool one = from->pp == 1 && !file_bytes;
    ck_assert(is_there(j.dir, "config.json"));
    ck_assert(is_there(j.dir, "model.safetensors") == one && is_there(j.dir, "model.safetensors.index.json") == !one);
    for (int i = 0; i < COMPOSITIONS; i++) {
        if (!is_possible(&compositions[i], tied)) continue;
        j.how = compositions[i];
        j.saves = false;
        on_ranks(j.how.tp * j.how.pp, files_rank, &j);
    }
    remove_directory(j.dir);
}

START_TEST(any_layout_writes_and_reads_one_checkpoint) {
    for (int i = 0; i < COMPOSITIONS; i++)
        for (int k = 0; k < 4; k++)
            if (is_possible(&compositions[i], k % 2))
                save_and_load(k / 2 ? TG_LLAMA : TG_GPT2, k % 2, &compositions[i], (i + k) % 2 ? 4096 : 0);
}
END_TEST

/* ---- Refusals ---- */

static tg_status refusals_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    job other = *j;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2));
    other.arch = TG_LLAMA;
    tg_module *m = make(ctx, j, p, 0), *llama = make(ctx, &other, p, 0);
    RUN(visit(m, p, false));
    RUN(visit(llama, p, false));
    RUN(tg_lm_save(&m, 1, j->dir, NULL));
    REFUSED(ctx, TG_ERR_FORMAT, "does not belong to the model", tg_lm_load(&llama, 1, j->dir));
    RUN(tg_parallel_recover(p));
    RUN(visit(llama, p, true)); /* nothing has changed */
    tg_module_free(m), tg_module_free(llama);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_checkpoint_of_another_model_is_refused) {
    job j = {.how = {1, 2, NULL, 1}};
    make_directory(j.dir);
    on_ranks(2, refusals_rank, &j);
    remove_directory(j.dir);
}
END_TEST

/* ---- Failures ---- */

typedef struct faulty {
    int calls, fail;
} faulty;

static int faulty_rename(void *user, const char *from, const char *to) {
    faulty *f = user;
    return ++f->calls == f->fail ? (errno = EIO, -1) : rename(from, to);
}

static int faulty_unlink(void *user, const char *path) {
    faulty *f = user;
    return ++f->calls == f->fail ? (errno = EIO, -1) : unlink(path);
}

/* Makes the fail-th rename or removal of a save fail. Whatever is then in the directory is the old model, the new one,
 * or no model. */
static bool survives(int fail) {
    job j = {.how = {1, 1, "E t*2|t*2 L", 2}, .file_bytes = 4096};
    faulty f = {0};
    tg_module *m[2];
    make_directory(j.dir);
    const tg_file_ops ops = {.size = sizeof ops, .user = &f, .rename = faulty_rename, .unlink = faulty_unlink};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .files = &ops));
    for (int i = 0; i < 2; i++) m[i] = make(ctx, &j, NULL, i), visit(m[i], NULL, false);
    ck_assert_int_eq(tg_lm_save(m, 2, j.dir, TG_LM_SAVE(.file_bytes = 1 << 20)), TG_OK); /* one file */
    f = (faulty){.fail = fail};
    tg_status s = tg_lm_save(m, 2, j.dir, TG_LM_SAVE(.file_bytes = 4096));
    tg_ctx_clear(ctx);
    f.fail = 0;
    if (is_there(j.dir, "config.json")) {
        ck_assert_int_eq(tg_lm_load(m, 2, j.dir), TG_OK);
        for (int i = 0; i < 2; i++) ck_assert_int_eq(visit(m[i], NULL, true), TG_OK);
    }
    ck_assert(s == TG_OK ? is_there(j.dir, "config.json") : true);
    ck_assert_int_eq(tg_lm_save(m, 2, j.dir, TG_LM_SAVE(.file_bytes = 4096)), TG_OK); /* and again */
    for (int i = 0; i < 2; i++) tg_module_free(m[i]);
    tg_ctx_free(ctx);
    remove_directory(j.dir);
    return s == TG_OK;
}

START_TEST(a_save_that_fails_leaves_a_whole_model_or_none) {
    int fail = 1;
    while (!survives(fail)) fail++;
    ck_assert_int_gt(fail, 5); /* as many calls have failed */
}
END_TEST

/* ---- Memory ---- */

/* An allocator whose fail-th call fails, and which counts the blocks that are allocated. */
typedef struct counted {
    int64_t calls, fail, blocks;
} counted;

static void *counted_alloc(void *user, size_t bytes, size_t align) {
    counted *c = user;
    void *p = NULL;
    if (++c->calls == c->fail || posix_memalign(&p, align < sizeof p ? sizeof p : align, bytes ? bytes : 1))
        return NULL;
    c->blocks++;
    return p;
}

static void counted_free(void *user, void *p, size_t bytes) {
    (void)bytes;
    ((counted *)user)->blocks--;
    free(p);
}

/* Makes a model, runs it, saves it in several files and loads it. */
static tg_status use_a_model(tg_ctx *ctx, const char *dir) {
    tg_lm_config c = *TG_LM(LM_SIZES(50, 2), .mtp = LM_DEPTHS, .layout = "E t*2 m*2 L");
    tg_tape *t = tg_tape_new(ctx);
    tg_module *m = tg_lm_new(ctx, &c);
    tg_tensor *zeros = tg_zeros(ctx, TG_I64, TG_SHAPE(LM_BATCH, LM_LENGTH)), *loss = NULL;
    tg_tensor *const each[1 + LM_DEPTHS] = {zeros, zeros, zeros};
    if (tg_ctx_status(ctx) == TG_OK) tg_lm_run_part(m, t, NULL, &loss, each, each, NULL);
    if (tg_ctx_status(ctx) == TG_OK) tg_backward(t, loss);
    tg_lm_save(&m, 1, dir, TG_LM_SAVE(.file_bytes = 8192));
    tg_lm_load(&m, 1, dir);
    tg_module_free(m);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(a_failing_allocator_leaves_nothing_behind) {
    counted a = {0};
    char dir[64];
    int failures = 0;
    make_directory(dir);
    for (bool done = false; !done; failures++) {
        int64_t step = getenv("TG_LONG") ? 1 : 7;
        a = (counted){.fail = 1 + failures * step};
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, &a}));
        tg_status s = use_a_model(ctx, dir);
        done = ctx && s == TG_OK;
        ck_assert(done || !ctx || s == TG_ERR_MEMORY);
        tg_ctx_free(ctx);
        ck_assert_int_eq(a.blocks, 0);
    }
    ck_assert_int_gt(failures, 20);
    remove_directory(dir);
}
END_TEST

int main(void) {
    const TTest *tests[] = {any_layout_writes_and_reads_one_checkpoint, a_checkpoint_of_another_model_is_refused,
                            a_save_that_fails_leaves_a_whole_model_or_none, a_failing_allocator_leaves_nothing_behind};
    return tg_check_main("lm_files", tests, sizeof tests / sizeof *tests);
}
