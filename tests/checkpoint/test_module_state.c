/* The state dict of modules: loaded from a file with and without missing keys, on one rank and several, and added to
 * sharded state by modules with a rule of their own. */
#define _GNU_SOURCE
#include <tapegrad/tensor_parallel.h>

#include "state.h"

static tg_tensor *buffer_of(tg_ctx *ctx, double value) {
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(2));
    tg_write_f64(x, (double[]){value, -value}, 2);
    return x;
}

/* A column and a row layer, a buffer that is saved, and one that is not. */
static tg_module *model_new(const tg_parallel *p, double value) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    tg_module *m = tg_module_new(ctx, &box, NULL);
    tg_module_add_child(m, "up", tg_nn_column_linear(p, 4, 8, TG_PARALLEL_LINEAR(.std = 0.5)));
    tg_module_add_child(m, "down", tg_nn_row_linear(p, 8, 4, TG_PARALLEL_LINEAR(.std = 0.5, .no_bias = true)));
    tg_module_add_buffer(m, "mean", buffer_of(ctx, value), NULL);
    tg_module_add_buffer(m, "table", buffer_of(ctx, value), TG_BUFFER(.transient = true));
    return m;
}

/* The values of element i of tensor number k in the files of these tests. */
static tg_tensor *stored(tg_ctx *ctx, int k, tg_shape shape) { return made(ctx, k, shape); }

typedef struct entry {
    const char *name;
    tg_shape shape;
} entry;

static const entry all[] = {{"up.weight", {2, {8, 4}}},
                            {"up.bias", {1, {8}}},
                            {"down.weight", {2, {4, 8}}},
                            {"mean", {1, {2}}},
                            {"other", {1, {3}}}};

/* Writes a file with the tensors whose bits are set, with a prefix in front of their names. */
static tg_status write_file(tg_ctx *ctx, const char *path, const char *prefix, unsigned which) {
    tg_named_tensor named[5];
    char names[5][64];
    int n = 0;
    for (int k = 0; k < 5; k++) {
        if (!(which >> k & 1)) continue;
        snprintf(names[n], sizeof names[n], "%s%s", prefix, all[k].name);
        named[n] = (tg_named_tensor){names[n], stored(ctx, k, all[k].shape)};
        n++;
    }
    tg_status s = tg_safetensors_save(ctx, path, named, n, NULL, 0);
    for (int i = 0; i < n; i++) tg_drop(named[i].tensor);
    return s;
}

/* Writes a file from outside of any world. */
static void file_of(const char *name, const char *prefix, unsigned which) {
    char path[256];
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
    tg_status s = write_file(ctx, in_root(path, "%s", name), prefix, which);
    ck_assert_msg(s == TG_OK, "%s", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
}

enum { WHOLE = 0xf, BOTH = 0x1d };

static double value_at(tg_module *m, const char *path, int64_t i) {
    double v[64];
    tg_tensor *x = tg_module_find(m, path);
    return tg_read_f64(x, v, tg_numel(x)) == TG_OK ? v[i] : NAN;
}

/* ---- Strict and partial ---- */

static tg_status reports(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    char path[256], none[256], text[128], cut[20];
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_module *m = model_new(p, 7);
    double before = value_at(m, "up.weight", 0), bias = value_at(m, "up.bias", 3);
    RUN(write_file(ctx, in_root(path, "both"), "", BOTH));

    tg_load_opts strict = {.size = sizeof strict, .report = text, .report_size = sizeof text};
    REFUSED(ctx, TG_ERR_FORMAT,
            "1 tensor of the module missing and 1 key of the file unknown, the first: missing 'up.bias'",
            tg_module_load(m, path, &strict));
    EXPECT(ctx, !strcmp(text, "missing up.bias\nunknown other\n") && strict.missing == 1 && strict.unknown == 1);
    EXPECT(ctx, value_at(m, "up.weight", 0) == before && value_at(m, "mean", 0) == 7); /* nothing has changed */
    REFUSED(ctx, TG_ERR_FORMAT, "of the module missing", tg_module_load(m, path, NULL));
    REFUSED(ctx, TG_ERR_IO, "cannot open", tg_module_load(m, in_root(none, "none"), &strict));
    EXPECT(ctx, !*text && !strict.missing && !strict.unknown); /* nothing is left of the call before */

    tg_load_opts partial = {.size = sizeof partial, .partial = true, .report = cut, .report_size = sizeof cut};
    RUN(tg_module_load(m, path, &partial));
    EXPECT(ctx, !strcmp(cut, "missing up.bias\nunk") && partial.missing == 1 && partial.unknown == 1);
    for (int i = 0; i < 32; i++) EXPECT(ctx, value_at(m, "up.weight", i) == at(0, i));
    EXPECT(ctx, value_at(m, "mean", 1) == at(3, 1) && value_at(m, "up.bias", 3) == bias);
    EXPECT(ctx, value_at(m, "table", 0) == 7); /* a transient buffer is not asked for */

    RUN(write_file(ctx, in_root(path, "prefixed"), "net.", WHOLE));
    tg_load_opts prefixed = {.size = sizeof prefixed, .prefix = "net", .report = text, .report_size = sizeof text};
    RUN(tg_module_load(m, path, &prefixed));
    EXPECT(ctx, !*text && !prefixed.missing && !prefixed.unknown && value_at(m, "up.bias", 3) == at(1, 3));
    tg_module_free(m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(missing_and_unknown_keys_are_reported) { on_ranks(1, reports, NULL); }
END_TEST

static tg_status others(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    char path[256];
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_module *m = model_new(p, 7);
    double before = value_at(m, "up.weight", 0);
    tg_tensor *down = tg_zeros(ctx, TG_F32, TG_SHAPE(4, 8)), *short_ = tg_zeros(ctx, TG_F64, TG_SHAPE(4, 7));
    tg_tensor *x[] = {stored(ctx, 0, all[0].shape), stored(ctx, 1, all[1].shape), stored(ctx, 3, all[3].shape)};
    tg_named_tensor named[] = {{"up.weight", x[0]}, {"up.bias", x[1]}, {"mean", x[2]}, {"down.weight", down}};
    RUN(tg_safetensors_save(ctx, in_root(path, "dtype"), named, 4, NULL, 0));
    REFUSED(ctx, TG_ERR_FORMAT, "'down.weight' is F32[4, 8], expected f64[4, 8]; set convert",
            tg_module_load(m, path, TG_LOAD(.partial = true)));
    EXPECT(ctx, value_at(m, "up.weight", 0) == before);
    tg_tensor *last = tg_module_find(m, "down.weight");
    tg_set_read_only(last, true);
    REFUSED(ctx, TG_ERR_STATE, "tg_module_load: the tensor's memory is read-only",
            tg_module_load(m, path, TG_LOAD(.convert = true)));
    tg_set_read_only(last, false);
    EXPECT(ctx, value_at(m, "up.weight", 0) == before);
    RUN(tg_module_load(m, path, TG_LOAD(.convert = true)));
    EXPECT(ctx, value_at(m, "up.weight", 0) == at(0, 0) && value_at(m, "down.weight", 5) == 0);
    named[3].tensor = short_;
    RUN(tg_safetensors_save(ctx, in_root(path, "shape"), named, 4, NULL, 0));
    REFUSED(ctx, TG_ERR_FORMAT, "'down.weight' is F64[4, 7], expected f64[4, 8]",
            tg_module_load(m, path, TG_LOAD(.partial = true)));
    REFUSED(ctx, TG_ERR_IO, "/nonexistent", tg_module_load(m, "/nonexistent/file", NULL));
    tg_drop(down);
    tg_drop(short_);
    for (int i = 0; i < 3; i++) tg_drop(x[i]);
    tg_module_free(m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(other_shapes_and_dtypes_are_refused) { on_ranks(1, others, NULL); }
END_TEST

/* A damaged byte of the last tensor is found before the first one is read. */
static tg_status damaged(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    char path[256];
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_module *m = model_new(p, 7);
    double before = value_at(m, "up.weight", 0);
    RUN(write_file(ctx, in_root(path, "damaged"), "", WHOLE));
    FILE *f = fopen(path, "r+b");
    fseek(f, -1, SEEK_END);
    int byte = fgetc(f);
    fseek(f, -1, SEEK_END);
    fputc(byte ^ 1, f);
    fclose(f);
    REFUSED(ctx, TG_ERR_DATA, "the file is damaged", tg_module_load(m, path, TG_LOAD(.partial = true)));
    EXPECT(ctx, value_at(m, "up.weight", 0) == before);
    tg_module_free(m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(damage_is_found_before_anything_changes) { on_ranks(1, damaged, NULL); }
END_TEST

/* ---- Parts and round trips on several ranks ---- */

typedef struct trip {
    int tp;
    const char *from, *to;
} trip;

static tg_status parts(void *arg, tg_ctx *ctx, tg_comm *world) {
    const trip *j = arg;
    char path[256];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->tp));
    int r = tg_parallel_rank(p, TG_TP), n = j->tp;
    tg_module *m = model_new(p, 7);
    RUN(tg_module_load(m, in_root(path, "parts"), TG_LOAD(.prefix = "net")));
    tg_tensor *whole[4];
    for (int k = 0; k < 4; k++) whole[k] = stored(ctx, k, all[k].shape);
    EXPECT(ctx, off(tg_module_find(m, "up.weight"), whole[0], 0, r, n) == 0);
    EXPECT(ctx, off(tg_module_find(m, "up.bias"), whole[1], 0, r, n) == 0);
    EXPECT(ctx, off(tg_module_find(m, "down.weight"), whole[2], 1, r, n) == 0);
    EXPECT(ctx, off(tg_module_find(m, "mean"), whole[3], -1, 0, 1) == 0);
    for (int k = 0; k < 4; k++) tg_drop(whole[k]);
    tg_module_free(m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(every_rank_reads_its_parts) {
    file_of("parts", "net.", WHOLE);
    for (int n = 1; n <= 4; n *= 2) on_ranks(n, parts, &(trip){.tp = n});
}
END_TEST

/* Saved by `tp` ranks and loaded by others, with buffers. */
static tg_status round_trip(void *arg, tg_ctx *ctx, tg_comm *world) {
    const trip *j = arg;
    char dir[256];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->tp));
    tg_module *m = model_new(p, j->from ? 1 : 7);
    tg_shards *s = tg_shards_new(p);
    RUN(tg_shards_add_module(s, "net", m));
    EXPECT(ctx, tg_shards_count(s) == 4);
    if (j->to) RUN(tg_shards_save(s, in_root(dir, "%s", j->to)));
    if (j->from) RUN(tg_shards_load(s, in_root(dir, "%s", j->from)));
    EXPECT(ctx, value_at(m, "mean", 0) == 7 && value_at(m, "table", 0) == (j->from ? 1 : 7));
    tg_shards_free(s);
    tg_module_free(m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(buffers_are_saved_with_the_parameters) {
    on_ranks(2, round_trip, &(trip){2, NULL, "buffers"});
    on_ranks(1, round_trip, &(trip){1, "buffers", NULL});
    on_ranks(4, round_trip, &(trip){4, "buffers", NULL});
}
END_TEST

/* ---- Modules with a rule of their own ---- */

enum { LAYERS = 4 };

/* Adds the layers of a list as one tensor for each parameter. */
static tg_status stack_layers(tg_module *m, tg_shards *s) {
    const int *first = tg_module_state(m);
    for (int i = 0;; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        tg_module *layer = tg_module_child(m, name);
        if (!layer) return TG_OK;
        tg_shards_push(s, "layers", LAYERS, *first + i);
        tg_shards_add_module(s, NULL, layer);
        tg_status status = tg_shards_pop(s);
        if (status != TG_OK) return status;
    }
}

static const tg_module_ops stack = {.size = sizeof(tg_module_ops), .kind = "stack", .shards = stack_layers};

/* A model whose layers are `mine` of all LAYERS ones, from `first` on. Parameters get the values of their layer. */
static tg_module *stacked_new(const tg_parallel *p, int *first, int mine) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    tg_module *m = tg_module_new(ctx, &box, NULL), *inner = tg_module_new(ctx, &box, NULL),
              *list = tg_module_new(ctx, &stack, first);
    for (int i = 0; i < mine; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        tg_module *layer = tg_nn_column_linear(p, 3, 4, TG_PARALLEL_LINEAR(.init = TG_INIT(.kind = TG_INIT_CONSTANT)));
        tg_module_add_child(list, name, layer);
    }
    tg_module_add_child(inner, "list", list);
    tg_module_add_child(m, "body", inner); /* the rule works at any depth */
    return m;
}

/* Writes this rank's part of tensor number 10 + layer to each layer; or checks it. */
static tg_status values(const tg_parallel *p, tg_module *m, int first, int mine, bool check) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    int r = tg_parallel_rank(p, TG_TP), n = tg_parallel_size(p, TG_TP);
    for (int i = 0; i < mine; i++) {
        char path[40];
        double v[12];
        snprintf(path, sizeof path, "body.list.%d.weight", i);
        tg_tensor *w = tg_module_find(m, path), *whole = made(ctx, 10 + first + i, TG_SHAPE(4, 3));
        if (check) EXPECT(ctx, off(w, whole, 0, r, n) == 0);
        for (int k = 0; k < 12 / n; k++) v[k] = at(10 + first + i, k + r * (12 / n));
        if (!check) RUN(tg_write_f64(w, v, 12 / n));
        tg_drop(whole);
    }
    return TG_OK;
}

typedef struct stacked {
    int tp, pp;
    const char *from, *to;
} stacked;

static tg_status save_stacked(void *arg, tg_ctx *ctx, tg_comm *world) {
    const stacked *j = arg;
    char dir[256];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->tp, .pp = j->pp));
    int mine = LAYERS / j->pp, first = tg_parallel_rank(p, TG_PP) * mine;
    tg_module *m = stacked_new(p, &first, mine);
    tg_shards *s = tg_shards_new(p);
    tg_tensor *params[2 * LAYERS];
    int n = tg_module_params(m, params, 2 * LAYERS);
    tg_optim *o = tg_adamw_new(ctx, params, n, TG_ADAMW(.lr = 1));
    if (!j->from) RUN(values(p, m, first, mine, false));
    RUN(tg_shards_add_module(s, "net", m));
    RUN(tg_shards_add_optim(s, "optim", o));
    tg_shard_info info = TG_SHARD_INFO();
    RUN(tg_shards_at(s, 2 * (mine - 1), &info)); /* the weight of the last layer of this stage */
    EXPECT(ctx, !strcmp(info.key, "net.body.list.layers.weight") && info.whole.ndim == 3);
    EXPECT(ctx, info.whole.dim[0] == LAYERS && info.whole.dim[1] == 4 && info.offset.dim[0] == first + mine - 1);
    EXPECT(ctx, info.offset.dim[1] == tg_parallel_rank(p, TG_TP) * 4 / j->tp);
    if (j->from) RUN(tg_shards_load(s, in_root(dir, "%s", j->from)));
    RUN(values(p, m, first, mine, true));
    if (j->to) RUN(tg_shards_save(s, in_root(dir, "%s", j->to)));
    tg_shards_free(s);
    tg_optim_free(o);
    tg_module_free(m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Layers that are saved as one tensor move between any tp and pp. */
START_TEST(stacked_layers_move_between_compositions) {
    static const struct { int tp, pp; } grids[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 4}};
    char name[16];
    for (int a = 0; a < 5; a++) {
        snprintf(name, sizeof name, "stack-%d", a);
        on_ranks(grids[a].tp * grids[a].pp, save_stacked, &(stacked){grids[a].tp, grids[a].pp, NULL, name});
        for (int b = 0; b < 5; b++)
            on_ranks(grids[b].tp * grids[b].pp, save_stacked, &(stacked){grids[b].tp, grids[b].pp, name, NULL});
    }
}
END_TEST

/* A program that has one tensor for all layers loads what a list of layers has saved: dim 0 is an ordinary dim. */
static tg_status load_joined(void *arg, tg_ctx *ctx, tg_comm *world) {
    const char *key = "net.body.list.layers.weight";
    char dir[256];
    double v[12 * LAYERS];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world)));
    int n = tg_comm_size(world), r = tg_parallel_rank(p, TG_TP);
    tg_shards *s = tg_shards_new(p);
    tg_tensor *x = tg_param_new(ctx, "all", TG_F64, TG_SHAPE(LAYERS / n, 4, 3), 0);
    tg_place(p, x, TG_TP, TG_SHARD(0));
    RUN(tg_shards_add_tensor(s, key, x));
    tg_shards_load_opts *o = TG_SHARDS_LOAD(.partial = true);
    RUN(tg_shards_load_with(s, in_root(dir, "%s", (const char *)arg), o));
    EXPECT(ctx, o->missing == 0 && o->unknown == 5);
    RUN(tg_read_f64(x, v, 12 * LAYERS / n));
    for (int i = 0; i < 12 * LAYERS / n; i++) EXPECT(ctx, v[i] == at(10 + r * LAYERS / n + i / 12, i % 12));
    tg_drop(x);
    tg_shards_free(s);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(stacked_layers_are_one_tensor) {
    on_ranks(2, save_stacked, &(stacked){2, 1, NULL, "stacked"});
    for (int n = 1; n <= 4; n *= 2) on_ranks(n, load_joined, (char *)"stacked");
}
END_TEST

/* ---- Refused ---- */

static tg_status pushes(tg_module *m, tg_shards *s) {
    (void)m;
    return tg_shards_push(s, "left", 2, 0);
}

static tg_status pops(tg_module *m, tg_shards *s) {
    (void)m;
    return tg_shards_pop(s);
}

static tg_status fails(tg_module *m, tg_shards *s) {
    (void)m, (void)s;
    return TG_ERR_DATA;
}

static tg_status wrong_rules(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    static const tg_module_ops open = {.size = sizeof open, .kind = "open", .shards = pushes},
                               failing = {.size = sizeof failing, .kind = "failing", .shards = fails},
                               closing = {.size = sizeof closing, .kind = "closing", .shards = pops};
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_shards *s = tg_shards_new(p);
    tg_module *m[] = {tg_module_new(ctx, &open, NULL), tg_module_new(ctx, &failing, NULL),
                      tg_module_new(ctx, &closing, NULL)};
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(2)), *y = tg_zeros(ctx, TG_F64, TG_SHAPE(3)),
              *z = tg_zeros(ctx, TG_F64, TG_SHAPE(2));
    REFUSED(ctx, TG_ERR_STATE, "`shards` of a \"open\" left 1 dim in front that were 0 before",
            tg_shards_add_module(s, "m", m[0]));
    REFUSED(ctx, TG_ERR_CALLBACK, "`shards` of a \"failing\" failed with TG_ERR_DATA",
            tg_shards_add_module(s, "m", m[1]));
    REFUSED(ctx, TG_ERR_STATE, "no dim is in front", tg_shards_pop(s)); /* the failed push was undone */
    tg_shards_push(s, "a", 2, 0);
    REFUSED(ctx, TG_ERR_STATE, "the dims in front were pushed outside of this `shards`",
            tg_shards_add_module(s, "m", m[2]));
    tg_shards_add_tensor(s, "x", x); /* the dim is still in front */
    REFUSED(ctx, TG_ERR_STATE, "the key 'a.x' exists already", tg_shards_add_tensor(s, "x", z));
    tg_shards_pop(s);
    tg_shards_push(s, "a", 2, 1);
    REFUSED(ctx, TG_ERR_SHAPE, "differ in dtype or shape", tg_shards_add_tensor(s, "x", y));
    tg_shards_pop(s);
    tg_shards_push(s, "a", 3, 1);
    REFUSED(ctx, TG_ERR_STATE, "exists already", tg_shards_add_tensor(s, "x", z));
    REFUSED(ctx, TG_ERR_STATE, "'a.y' has other dims in front (tg_shards_push) than 'a.x'",
            tg_shards_add_tensor(s, "y", x));
    tg_shards_pop(s);
    REFUSED(ctx, TG_ERR_STATE, "'x' has other dims in front", tg_shards_add_tensor(s, "x", x));
    REFUSED(ctx, TG_ERR_ARGUMENT, "has dims in front", tg_shards_set_rows(s, "a.x", 1));
    EXPECT(ctx, tg_shards_count(s) == 1);
    tg_shards_free(s);
    for (int i = 0; i < 3; i++) tg_module_free(m[i]);
    for (int i = 0; i < 3; i++) tg_drop((tg_tensor *[]){x, y, z}[i]);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(wrong_rules_are_refused) { on_ranks(1, wrong_rules, NULL); }
END_TEST

/* ---- Initial values by position ---- */

static void position(void *user, int64_t first, int64_t n, double *out) {
    for (int64_t i = 0; i < n; i++) out[i] = *(double *)user + (double)(first + i);
}

enum { INITS = 9, MATRICES = 5 }; /* the initial values of the test, and the first of those that need 2 dims */

/* The initial values of all layers with a tg_init, joined, are those of one rank. */
static tg_status initialized(void *arg, tg_ctx *ctx, tg_comm *world) {
    double(*whole)[256] = arg, base = 100;
    int n = tg_comm_size(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = n));
    int r = tg_parallel_rank(p, TG_TP);
    const tg_init inits[INITS] = {
        *TG_INIT(.kind = TG_INIT_NORMAL, .a = -1, .b = 2),
        *TG_INIT(.kind = TG_INIT_UNIFORM, .a = -1, .b = 2),
        *TG_INIT(.kind = TG_INIT_TRUNCATED, .a = -1, .b = 2),
        *TG_INIT(.kind = TG_INIT_CONSTANT, .a = -1),
        *TG_INIT(.kind = TG_INIT_CALL, .fill = position, .user = &base),
        *TG_ORTHOGONAL(2),
        *TG_INIT(.kind = TG_INIT_EYE, .a = 3),
        *TG_KAIMING_UNIFORM(1),
        *TG_XAVIER_NORMAL(1),
    };
    for (int kind = 0; kind < INITS; kind++) {
        const tg_init *init = &inits[kind], *of_bias = kind < MATRICES ? init : NULL;
        tg_module *m[] = {tg_nn_column_linear(p, 8, 16, TG_PARALLEL_LINEAR(.init = init, .bias_init = of_bias)),
                          tg_nn_row_linear(p, 16, 8, TG_PARALLEL_LINEAR(.init = init, .bias_init = of_bias)),
                          tg_nn_column_linear(p, 8, 16, TG_PARALLEL_LINEAR(.init = init, .strides = 2)),
                          tg_nn_vocab_embedding(p, 16, 8, 0, TG_VOCAB_EMBEDDING(.init = init))};
        for (int i = 0; i < 4; i++)
            for (int b = 0; b < (i == 3 ? 1 : 2); b++) {
                tg_tensor *x = tg_module_param(m[i], b, NULL);
                double *to = whole[(kind * 4 + i) * 2 + b], v[128];
                RUN(tg_read_f64(x, v, tg_numel(x)));
                if (n == 1) memcpy(to, v, (size_t)tg_numel(x) * sizeof *v);
                tg_shape shape = tg_shape_of(x);
                bool rows = i != 1;
                for (int64_t k = 0; k < tg_numel(x) && n > 1; k++) {
                    int64_t inner = shape.ndim == 2 ? shape.dim[1] : 1, row = k / inner, col = k % inner,
                            half = i == 2 ? shape.dim[0] / 2 : shape.dim[0];
                    int64_t g = rows ? (row / half * n + r) * half + row % half : row;
                    int64_t where = rows ? g * inner + col : shape.ndim == 2 ? row * 16 + r * inner + col : row;
                    EXPECT(ctx, v[k] == to[where]);
                }
            }
        for (int i = 0; i < 4; i++) tg_module_free(m[i]);
    }
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(initial_values_of_shards_equal_the_whole) {
    static double whole[8 * INITS][256];
    for (int n = 1; n <= 4; n *= 2) on_ranks(n, initialized, whole);
    ck_assert(whole[32][5] == 105 && whole[24][5] == -1);
    ck_assert(whole[48][9] == 3 && whole[48][10] == 0 && whole[40][0] != whole[42][0]);
}
END_TEST

/* The dtype of a layer's parameters, and options that exclude each other. */
static tg_status options(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    const tg_init *init = TG_INIT(.b = 1), *bad = TG_INIT(.b = -1);
    tg_module *m[] = {tg_nn_column_linear(p, 4, 4, TG_PARALLEL_LINEAR(.dtype = TG_BF16)),
                      tg_nn_vocab_embedding(p, 4, 4, 1, TG_VOCAB_EMBEDDING(.dtype = TG_F32))};
    EXPECT(ctx, tg_dtype_of(tg_module_find(m[0], "bias")) == TG_BF16);
    EXPECT(ctx, tg_dtype_of(tg_module_find(m[1], "weight")) == TG_F32);
#define NO(code, says, call) REFUSED(ctx, code, says, tg_module_free(call))
    NO(TG_ERR_ARGUMENT, "std is 1, but init is given",
       tg_nn_column_linear(p, 4, 4, TG_PARALLEL_LINEAR(.init = init, .std = 1)));
    NO(TG_ERR_ARGUMENT, "init is given, but the layer has no values",
       tg_nn_row_linear(p, 4, 4, TG_PARALLEL_LINEAR(.init = init, .no_init = true)));
    NO(TG_ERR_ARGUMENT, "bias_init is given, but the layer has no values",
       tg_nn_row_linear(p, 4, 4, TG_PARALLEL_LINEAR(.bias_init = init, .no_bias = true)));
    NO(TG_ERR_ARGUMENT, "tg_nn_column_linear: bias_init: a is 0 and b -1",
       tg_nn_column_linear(p, 4, 4, TG_PARALLEL_LINEAR(.bias_init = bad)));
    NO(TG_ERR_DTYPE, "dtype is i64", tg_nn_column_linear(p, 4, 4, TG_PARALLEL_LINEAR(.dtype = TG_I64)));
    NO(TG_ERR_ARGUMENT, "std is 1, expected 0", tg_nn_vocab_embedding(p, 4, 4, 1, TG_VOCAB_EMBEDDING(.init = init)));
    NO(TG_ERR_DTYPE, "dtype is bool", tg_nn_vocab_embedding(p, 4, 4, 1, TG_VOCAB_EMBEDDING(.dtype = TG_BOOL)));
    for (int i = 0; i < 2; i++) tg_module_free(m[i]);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(layers_take_dtypes_and_refuse_contradictions) { on_ranks(2, options, NULL); }
END_TEST

/* ---- A module on several ranks ---- */

static tg_status two_call(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    tg_tensor *h = tg_module_forward(tg_module_child(m, "up"), t, in[0]);
    out[0] = tg_module_forward(tg_module_child(m, "down"), t, tg_tanh(t, h));
    out[1] = tg_add(t, in[1], tg_module_find(m, "mean"));
    out[2] = tg_sum(t, tg_square(t, out[0]), TG_ALL_DIMS, false);
    return tg_ctx_status(tg_tape_ctx(t));
}

static tg_status halve(void *user, tg_module *m, tg_tape *t, tg_tensor **x, int n) {
    (void)user, (void)m, (void)n;
    x[0] = tg_scale(t, x[0], 0.5);
    return TG_OK;
}

static tg_status on_two(void *arg, tg_ctx *ctx, tg_comm *world) {
    static const tg_module_ops two = {.size = sizeof two, .kind = "two", .call = two_call, .n_in = 2, .n_out = 3};
    double *want = arg, loss;
    int n = tg_comm_size(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = n));
    tg_tape *t = tape_on_nans(ctx);
    tg_module *m = tg_module_new(ctx, &two, NULL);
    tg_module_add_child(m, "up", tg_nn_column_linear(p, 4, 8, TG_PARALLEL_LINEAR(.std = 0.5)));
    tg_module_add_child(m, "down", tg_nn_row_linear(p, 8, 4, TG_PARALLEL_LINEAR(.std = 0.5)));
    tg_module_add_buffer(m, "mean", buffer_of(ctx, 3), NULL);
    tg_module_hook(m, TG_BEFORE, halve, NULL);
    tg_tensor *in[] = {made(ctx, 1, TG_SHAPE(3, 4)), made(ctx, 2, TG_SHAPE(2))}, *out[3];
    for (int i = 0; i < 2; i++) tg_place(p, in[i], TG_TP, TG_I);
    RUN(tg_module_call(m, t, in, 2, out, 3));
    /* The caller's bytes in a buffer are I, so a sum with it is too. */
    EXPECT(ctx, tg_placement_of(out[1], TG_TP).kind == TG_INVARIANT);
    loss = tg_item(out[2]);
    RUN(tg_backward(t, out[2]));
    tg_tensor *bias = tg_module_find(m, "down.bias");
    double g[4];
    RUN(tg_read_f64(tg_grad_of(bias), g, 4));
    if (n == 1) {
        want[0] = loss;
        memcpy(want + 1, g, sizeof g);
    }
    EXPECT(ctx, fabs(loss - want[0]) < 1e-12);
    for (int i = 0; i < 4; i++) EXPECT(ctx, fabs(g[i] - want[1 + i]) < 1e-12);
    for (int i = 0; i < 2; i++) tg_drop(in[i]);
    tg_tape_free(t);
    tg_module_free(m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_module_with_a_hook_and_a_buffer_runs_on_ranks) {
    double want[5];
    on_ranks(1, on_two, want);
    on_ranks(2, on_two, want);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        missing_and_unknown_keys_are_reported,          other_shapes_and_dtypes_are_refused,
        damage_is_found_before_anything_changes,        every_rank_reads_its_parts,
        buffers_are_saved_with_the_parameters,          stacked_layers_move_between_compositions,
        stacked_layers_are_one_tensor,      wrong_rules_are_refused,
        initial_values_of_shards_equal_the_whole,       layers_take_dtypes_and_refuse_contradictions,
        a_module_with_a_hook_and_a_buffer_runs_on_ranks};
    return state_main("module state", tests, sizeof tests / sizeof *tests);
}
