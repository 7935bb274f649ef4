/* Model directories of stages: any layout writes and reads one checkpoint, in one file or in several with an index, and
 * what is wrong with it is refused before anything changes. */
#define _GNU_SOURCE
#include <stdlib.h>

#include <tapegrad/gpt.h>
#include <tapegrad/io.h>

#include "lm_cases.h"
#include "models/lm/lm.h"
#include "unit/io_fixture.h"

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

/* Returns element i of the global parameter of that name in model number `which`: a number that no other element
 * has. */
static double value(const char *path, int64_t i, int which) {
    double v = 0;
    for (const char *c = path; *c; c++) v = fmod(v * 31 + *c, 8191);
    return v + 1e-4 * (double)i + 1e4 * which;
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

/* Writes the value of each element of a model, or checks it. Rows of padding are zero. */
static tg_status visit_model(tg_module *m, const tg_parallel *p, bool check, int which) {
    double v[8192];
    for (int k = 0; k < tg_module_param_count(m); k++) {
        const char *path;
        tg_tensor *x = tg_module_param(m, k, &path);
        int64_t n = tg_numel(x), columns = tg_ndim(x) == 2 ? tg_dim(x, 1) : 1;
        bool words = strstr(path, "wte") || strstr(path, "embed_tokens") || !strcmp(path, "lm_head.weight");
        if (check) RUN(tg_read_f64(x, v, n));
        for (int64_t i = 0; i < n; i++) {
            int64_t at = global_index(x, p, i);
            double want = words && at / columns >= 50 ? 0 : value(path, at, which);
            if (check && v[i] != want)
                return tg_ctx_fail(tg_module_ctx(m), TG_ERR_INTERNAL, "%s[%lld] is %g, expected %g", path,
                                   (long long)at, v[i], want);
            v[i] = want;
        }
        if (!check) RUN(tg_write_f64(x, v, n));
    }
    return TG_OK;
}

static tg_status visit(tg_module *m, const tg_parallel *p, bool check) { return visit_model(m, p, check, 0); }

static tg_status files_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    tg_module *m[4];
    tg_parallel *p =
        tg_comm_size(world) > 1 ? tg_parallel_new(world, TG_PARALLEL(.tp = j->how.tp, .pp = j->how.pp)) : NULL;
    for (int i = 0; i < j->how.chunks; i++) m[i] = make(ctx, j, p, i);
    for (int i = 0; i < j->how.chunks && j->saves; i++) RUN(visit(m[i], p, false));
    if (j->saves)
        RUN(tg_lm_save(m, j->how.chunks, j->dir, j->file_bytes ? TG_LM_SAVE(.file_bytes = j->file_bytes) : NULL));
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

enum { CHUNKS = 2, ONE_FILE = 1 << 20 };

/* A model of several chunks in a directory, and file functions of which one call can fail. */
typedef struct saved {
    job j;
    faulty f;
    tg_file_ops ops;
    tg_ctx *ctx;
    tg_module *m[CHUNKS];
} saved;

static void saved_open(saved *s) {
    *s = (saved){.j = {.how = {1, 1, "E t*2|t*2 L", CHUNKS}}};
    s->ops = (tg_file_ops){.size = sizeof s->ops, .user = &s->f, .rename = faulty_rename, .unlink = faulty_unlink};
    make_directory(s->j.dir);
    s->ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .files = &s->ops));
    for (int i = 0; i < CHUNKS; i++) s->m[i] = make(s->ctx, &s->j, NULL, i);
}

static void saved_close(saved *s) {
    for (int i = 0; i < CHUNKS; i++) tg_module_free(s->m[i]);
    tg_ctx_free(s->ctx);
    remove_directory(s->j.dir);
}

/* Saves model number `which` in files of that many bytes. */
static tg_status save_as(saved *s, int which, int64_t file_bytes) {
    for (int i = 0; i < CHUNKS; i++) visit_model(s->m[i], NULL, false, which);
    return tg_lm_save(s->m, CHUNKS, s->j.dir, TG_LM_SAVE(.file_bytes = file_bytes));
}

/* Returns whether the directory has model number `which`, whole. */
static bool holds_model(saved *s, int which) {
    bool good = tg_lm_load(s->m, CHUNKS, s->j.dir) == TG_OK;
    for (int i = 0; i < CHUNKS; i++) good = good && visit_model(s->m[i], NULL, true, which) == TG_OK;
    tg_ctx_clear(s->ctx);
    return good;
}

/* Saves a model, and over it another one, of which the fail-th rename or removal fails. Whatever is then in the
 * directory is one of both, or no model. */
static bool survives(int64_t old_bytes, int64_t new_bytes, int fail) {
    saved s;
    saved_open(&s);
    ck_assert_int_eq(save_as(&s, 1, old_bytes), TG_OK);
    s.f = (faulty){.fail = fail, .error = EIO};
    tg_status status = save_as(&s, 2, new_bytes);
    tg_ctx_clear(s.ctx);
    s.f.fail = 0;
    bool old = holds_model(&s, 1), new = holds_model(&s, 2);
    ck_assert(old || new || !is_there(s.j.dir, "config.json"));
    ck_assert(new || status != TG_OK);
    ck_assert_int_eq(save_as(&s, 3, new_bytes), TG_OK); /* and again */
    ck_assert(holds_model(&s, 3) && is_there(s.j.dir, "config.json"));
    saved_close(&s);
    return status == TG_OK;
}

static const int64_t sizes[] = {ONE_FILE, 16384, 32768};
enum { SIZES = sizeof sizes / sizeof *sizes };

START_TEST(a_save_that_fails_leaves_a_whole_model_or_none) {
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < SIZES; k++) {
            int fail = 1;
            if (i == 2 && !getenv("TG_LONG")) continue;
            while (!survives(sizes[i], sizes[k], fail)) fail++;
            ck_assert_int_gt(fail, 3); /* as many calls have failed */
        }
}
END_TEST

/* ---- What is left of an older model ---- */

START_TEST(a_save_leaves_nothing_of_an_older_model) {
    int files[SIZES];
    for (int k = 0; k < SIZES; k++) {
        saved s;
        saved_open(&s);
        ck_assert_int_eq(save_as(&s, 1, sizes[k]), TG_OK);
        files[k] = entries_in(s.j.dir);
        saved_close(&s);
    }
    ck_assert(files[0] == 2 && files[1] > files[2] && files[2] > 4); /* three numbers of files, with config and index */
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < SIZES; k++) {
            saved s;
            saved_open(&s);
            ck_assert_int_eq(save_as(&s, 1, sizes[i]), TG_OK);
            ck_assert_int_eq(save_as(&s, 2, sizes[k]), TG_OK);
            ck_assert_int_eq(entries_in(s.j.dir), files[k]);
            ck_assert(holds_model(&s, 2));
            saved_close(&s);
        }
}
END_TEST

/* A save removes its own temporary files of an interrupted save, and no file of another name. */
START_TEST(files_of_other_names_are_kept) {
    static const struct {
        const char *name;
        bool stale;
    } files[] = {
        {"model.safetensors.tmp-17-0", true},
        {"model-00001-of-00003.safetensors.tmp-17-2", true},
        {"model.safetensors.index.json.tmp-4194304-12", true},
        {"model-00001-of-00009.safetensors", true},
        {"model-best.safetensors.tmp-17-0", false},
        {"model.safetensors.tmp-of-mine", false},
        {"model.safetensors.tmp-17-0.bak", false},
        {"model-1-of-9.safetensors", false},
        {"models.safetensors", false},
    };
    saved s;
    char path[160];
    saved_open(&s);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", s.j.dir, files[i].name);
        FILE *f = fopen(path, "w");
        ck_assert(f && fclose(f) == 0);
    }
    ck_assert_int_eq(save_as(&s, 1, sizes[0]), TG_OK);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", s.j.dir, files[i].name);
        ck_assert_msg((access(path, F_OK) != 0) == files[i].stale, "%s", files[i].name);
    }
    saved_close(&s);
}
END_TEST

/* Files of two saves, with equal names and shapes. */
START_TEST(files_of_two_saves_are_refused) {
    char copy[64], command[320], name[64] = "", message[1024];
    saved s;
    saved_open(&s);
    make_directory(copy);
    ck_assert_int_eq(save_as(&s, 1, sizes[2]), TG_OK);
    snprintf(name, sizeof name, "model-00002-of-%05d.safetensors", entries_in(s.j.dir) - 2);
    snprintf(command, sizeof command, "cp '%s/%s' '%s'", s.j.dir, name, copy);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(save_as(&s, 2, sizes[2]), TG_OK);
    snprintf(command, sizeof command, "cp '%s/%s' '%s'", copy, name, s.j.dir);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(tg_lm_load(s.m, CHUNKS, s.j.dir), TG_ERR_FORMAT);
    snprintf(message, sizeof message, "%s", tg_ctx_message(s.ctx));
    tg_ctx_clear(s.ctx);
    ck_assert_msg(strstr(message, name) && strstr(message, "is not the file that '"), "%s", message);
    for (int i = 0; i < CHUNKS; i++) ck_assert_int_eq(visit_model(s.m[i], NULL, true, 2), TG_OK); /* unchanged */
    remove_directory(copy);
    saved_close(&s);
}
END_TEST

/* ---- Memory ---- */

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
        int step = getenv("TG_LONG") ? 1 : 7;
        a = (counted){.fail = 1 + failures * step};
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, &a}));
        tg_status s = use_a_model(ctx, dir);
        done = ctx && s == TG_OK;
        ck_assert(done || !ctx || s == TG_ERR_MEMORY);
        tg_ctx_free(ctx);
        ck_assert_int_eq(a.held, 0);
    }
    ck_assert_int_gt(failures, 20);
    remove_directory(dir);
}
END_TEST

/* ---- config.json ---- */

/* A file has the rotated part of a head as a fraction, whose product with the head's size readers round down. */
START_TEST(a_config_describes_any_number_of_rotated_elements) {
    for (int64_t dims = 2; dims <= 98; dims += 2) {
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta"));
        tg_module *lm = tg_lm_new(ctx, TG_LM(.vocab = 8, .layers = 1, .heads = 1, .hidden = 8, .head_dim = 98,
                                             .positions = 4, .rope_dims = dims));
        ck_assert_msg(tg_lm_has_config(lm), "%lld: %s", (long long)dims, tg_ctx_message(ctx));
        tg_module_free(lm);
        tg_ctx_free(ctx);
    }
}
END_TEST

/* A model whose family has no config.json for it is saved without one, and that is no error. */
START_TEST(a_model_that_no_config_describes_is_saved_without_one) {
    static const struct {
        const char *family;
        int64_t hidden;
        double attention_scale;
    } rows[] = {{"gemma3_text", 8, TG_AUTO}, /* config.json has a rotation of its own for layers with windows */
                {"gemma2", 8, 1e-200},       /* whose square, 1e400, is no number of config.json */
                {"gemma2", 8, 1e200},
                {"llama", ((int64_t)1 << 24) + 8, TG_AUTO}};
    char dir[64];
    make_directory(dir);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .device = rows[i].hidden > 8 ? "meta" : NULL));
        tg_module *lm =
            tg_lm_new(ctx, TG_LM(.family = rows[i].family, .vocab = 8, .layers = 1, .heads = 1,
                                 .hidden = rows[i].hidden, .head_dim = 8, .ffn = 8, .positions = 4,
                                 .attention_scale = rows[i].attention_scale));
        ck_assert(!tg_lm_has_config(lm));
        ck_assert_msg(tg_ok(ctx), "row %zu: %s", i, tg_ctx_message(ctx));
        if (rows[i].hidden == 8) ck_assert(tg_lm_save(&lm, 1, dir, NULL) == TG_OK);
        ck_assert(!is_there(dir, "config.json"));
        tg_module_free(lm);
        tg_ctx_free(ctx);
    }
    remove_directory(dir);
}
END_TEST

/* Options of a kind of rope in rope_parameters do not stay if rope_scaling, which is read later, has another kind. */
START_TEST(the_kind_of_rope_is_that_of_the_object_that_is_read_last) {
    static const struct {
        const char *scaling;
        tg_rope_kind kind;
    } rows[] = {{"{\"rope_type\": \"default\"}", TG_ROPE_PLAIN},
                {"{\"rope_type\": \"linear\", \"factor\": 2}", TG_ROPE_LINEAR}};
    char dir[64], path[96];
    make_directory(dir);
    snprintf(path, sizeof path, "%s/config.json", dir);
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(path, "w");
        fprintf(f,
                "{\"model_type\": \"llama\", \"vocab_size\": 5, \"hidden_size\": 4, \"num_hidden_layers\": 1, "
                "\"num_attention_heads\": 2, \"intermediate_size\": 8, \"max_position_embeddings\": 8, "
                "\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 2, "
                "\"high_freq_factor\": 3}, \"rope_scaling\": %s}",
                rows[i].scaling);
        fclose(f);
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta"));
        tg_module *lm = tg_lm_from_config(ctx, path, NULL);
        const tg_lm_config *c = tg_lm_config_of(lm), usual = {TG_LM_DEFAULTS};
        ck_assert_msg(c != NULL, "%s", tg_ctx_message(ctx));
        ck_assert_int_eq(c->rope_kind, rows[i].kind);
        ck_assert_double_eq(c->rope_factor, i ? 2 : 1);
        ck_assert_double_eq(c->rope_low, usual.rope_low);
        ck_assert_double_eq(c->rope_high, usual.rope_high);
        ck_assert_int_eq(c->rope_original, 0);
        tg_module_free(lm);
        tg_ctx_free(ctx);
    }
    remove_directory(dir);
}
END_TEST

/* rope_local_base_freq counts unless the object of the layers with windows has a base too. */
START_TEST(the_base_of_windows_may_stand_next_to_the_object) {
    static const struct {
        const char *local;
        double base;
    } rows[] = {{"\"rope_local_base_freq\": 20000, ", 20000}, {"", 10000}};
    char dir[64], path[96];
    make_directory(dir);
    snprintf(path, sizeof path, "%s/config.json", dir);
    for (int i = 0; i < 4; i++) {
        FILE *f = fopen(path, "w");
        fprintf(f,
                "{\"model_type\": \"gemma3_text\", \"vocab_size\": 5, \"hidden_size\": 4, "
                "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
                "\"head_dim\": 2, \"intermediate_size\": 8, \"max_position_embeddings\": 8, "
                "%s\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}, "
                "\"sliding_attention\": {\"rope_type\": \"default\"%s}}}",
                rows[i % 2].local, i < 2 ? "" : ", \"rope_theta\": 500");
        fclose(f);
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta"));
        tg_module *lm = tg_lm_from_config(ctx, path, NULL);
        const tg_lm_config *c = tg_lm_config_of(lm);
        ck_assert_msg(c != NULL, "%s", tg_ctx_message(ctx));
        ck_assert_double_eq(c->rope_local_base, i < 2 ? rows[i % 2].base : 500);
        ck_assert_double_eq(c->rope_base, 1e6);
        tg_module_free(lm);
        tg_ctx_free(ctx);
    }
    remove_directory(dir);
}
END_TEST

/* A backward after a load is refused: the message names the call that has written the weights. */
START_TEST(a_load_between_forward_and_backward_is_named) {
    const int64_t numbers[] = {1, 2, 3};
    char dir[64];
    make_directory(dir);
    for (int map = 0; map < 2; map++) {
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
        tg_module *lm = tg_gpt_new(ctx, TG_GPT(.vocab = 5, .layers = 1, .heads = 2, .hidden = 8, .positions = 8));
        tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(1, 3), numbers);
        tg_tape *t = tg_tape_new(ctx);
        ck_assert_int_eq(tg_lm_save(&lm, 1, dir, NULL), TG_OK);
        tg_tensor *loss = tg_gpt_loss(lm, t, ids, ids, TG_LOSS_MEAN);
        ck_assert_int_eq(map ? tg_lm_map(&lm, 1, dir) : tg_lm_load(&lm, 1, dir), TG_OK);
        tg_backward(t, loss);
        ck_assert_msg(strstr(tg_ctx_message(ctx), map ? "tg_lm_map" : "tg_lm_load"), "%s", tg_ctx_message(ctx));
        tg_tape_free(t);
        tg_module_free(lm);
        tg_ctx_free(ctx);
    }
    remove_directory(dir);
}
END_TEST

int main(void) {
    const TTest *tests[] = {any_layout_writes_and_reads_one_checkpoint,
                            a_checkpoint_of_another_model_is_refused,
                            a_save_that_fails_leaves_a_whole_model_or_none,
                            a_save_leaves_nothing_of_an_older_model, files_of_other_names_are_kept,
                            files_of_two_saves_are_refused,
                            a_failing_allocator_leaves_nothing_behind,
                            a_config_describes_any_number_of_rotated_elements,
                            a_model_that_no_config_describes_is_saved_without_one,
                            the_kind_of_rope_is_that_of_the_object_that_is_read_last,
                            the_base_of_windows_may_stand_next_to_the_object,
                            a_load_between_forward_and_backward_is_named};
    return tg_check_main("lm_files", tests, sizeof tests / sizeof *tests);
}
