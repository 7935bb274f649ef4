/* Parts of whole tensors in safetensors files: each rank gets what its placement says, reads no other byte, and keeps
 * its old bytes if the call fails. */
#define _GNU_SOURCE
#include <stdatomic.h>

#include <tapegrad/checkpoint.h>
#include <tapegrad/extend.h>
#include <tapegrad/parallel.h>

#include "on_ranks.h"
#include "unit/io_fixture.h"

/* ---- A file with a tensor of each dtype ---- */

enum { A = 24, B = 24, C = 16, NUMEL = A * B * C };

static const struct {
    tg_dtype dtype;
    const char *name;
} dtypes[] = {
    {TG_F64, "f64"}, {TG_F32, "f32"}, {TG_BF16, "bf16"}, {TG_F16, "f16"},
    {TG_I64, "i64"}, {TG_I32, "i32"}, {TG_U8, "u8"},     {TG_BOOL, "bool"},
    {TG_I8, "i8"},   {TG_I16, "i16"}, {TG_U16, "u16"},   {TG_U32, "u32"},   {TG_U64, "u64"},
};

static workplace work;
static char whole_path[512], big_path[512];

/* Value of element i: exact in every dtype. */
static double value(tg_dtype dtype, int64_t i) { return dtype == TG_BOOL ? i % 3 == 0 : (double)(i * 7 % 128); }

static tg_tensor *numbers(tg_ctx *ctx, tg_dtype dtype, tg_shape shape) {
    tg_tensor *x = tg_zeros(ctx, dtype, shape);
    int64_t n = tg_numel(x);
    double *v = calloc((size_t)n + 1, sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = value(dtype, i);
    tg_write_f64(x, v, n);
    free(v);
    return x;
}

static bool save_whole(const char *path) {
    tg_named_tensor named[COUNT(dtypes) + 2];
    tg_ctx *ctx = tg_ctx_new(NULL);
    for (size_t k = 0; k < COUNT(dtypes); k++)
        named[k] = (tg_named_tensor){dtypes[k].name, numbers(ctx, dtypes[k].dtype, TG_SHAPE(A, B, C))};
    named[COUNT(dtypes)] = (tg_named_tensor){"scalar", numbers(ctx, TG_F32, TG_SHAPE())};
    named[COUNT(dtypes) + 1] = (tg_named_tensor){"empty", numbers(ctx, TG_F32, TG_SHAPE(0, 8))};
    bool saved = tg_safetensors_save(ctx, path, named, COUNT(named), NULL, 0) == TG_OK;
    tg_ctx_free(ctx);
    return saved;
}

/* ---- Layouts ---- */

typedef struct layout {
    int ranks, tp, cp, ep, etp, n;
    tg_place_at at[3];
} layout;

#define AT(axis, to)                                                                                                   \
    { TG_##axis, to }
#define SHARD(d)                                                                                                       \
    { .kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = d }
#define STRIDED(d, k)                                                                                                  \
    { .kind = TG_VARYING, .layout = TG_STRIDED, .dim = d, .chunks = k }
#define ZIGZAG(d)                                                                                                      \
    { .kind = TG_VARYING, .layout = TG_ZIGZAG, .dim = d }
#define R                                                                                                              \
    { .kind = TG_REPLICATED }

static const layout layouts[] = {
    {.ranks = 1, .tp = 1, .n = 1, .at = {AT(TP, SHARD(0))}},
    {.ranks = 2, .tp = 2},
    {.ranks = 4, .tp = 2, .n = 1, .at = {AT(DP, R)}},
    {.ranks = 2, .tp = 2, .n = 1, .at = {AT(TP, SHARD(0))}},
    {.ranks = 4, .tp = 4, .n = 1, .at = {AT(TP, SHARD(0))}},
    {.ranks = 2, .tp = 2, .n = 1, .at = {AT(TP, SHARD(1))}},
    {.ranks = 4, .tp = 4, .n = 2, .at = {AT(TP, SHARD(1)), AT(DP, R)}},
    {.ranks = 4, .tp = 4, .n = 1, .at = {AT(TP, SHARD(2))}},
    {.ranks = 2, .tp = 2, .n = 1, .at = {AT(TP, STRIDED(0, 2))}},
    {.ranks = 4, .tp = 4, .n = 1, .at = {AT(TP, STRIDED(1, 3))}},
    {.ranks = 4, .tp = 4, .n = 1, .at = {AT(TP, STRIDED(2, 4))}},
    {.ranks = 4, .tp = 1, .cp = 4, .n = 1, .at = {AT(CP, ZIGZAG(0))}},
    {.ranks = 4, .tp = 2, .n = 2, .at = {AT(TP, SHARD(1)), AT(DP, SHARD(0))}},
    {.ranks = 4, .tp = 2, .cp = 2, .n = 2, .at = {AT(CP, SHARD(0)), AT(TP, SHARD(0))}},
    {.ranks = 4, .tp = 2, .cp = 2, .n = 2, .at = {AT(TP, SHARD(0)), AT(CP, STRIDED(0, 3))}},
    {.ranks = 4, .tp = 2, .cp = 2, .n = 2, .at = {AT(CP, ZIGZAG(0)), AT(TP, SHARD(2))}},
    {.ranks = 4, .tp = 2, .ep = 2, .etp = 2, .n = 2, .at = {AT(EP, SHARD(0)), AT(ETP, SHARD(1))}},
    {.ranks = 4, .tp = 2, .ep = 2, .etp = 1, .n = 2, .at = {AT(EP, SHARD(0)), AT(EDP, R)}},
    {.ranks = 4, .tp = 2, .ep = 2, .etp = 2, .n = 2, .at = {AT(EP, SHARD(0)), AT(ETP, STRIDED(2, 2))}},
};

static int given_or(int given, int usual) { return given ? given : usual; }

static tg_parallel *groups_of(const layout *l, tg_comm *world) {
    return tg_parallel_new(world, TG_PARALLEL(.tp = l->tp, .cp = given_or(l->cp, 1), .ep = given_or(l->ep, 1),
                                              .etp = given_or(l->etp, TG_AUTO)));
}

/* Returns the index in the whole tensor of index i of dim d: the axis that was placed last has cut it last. */
static int64_t whole_index(const tg_parallel *p, const layout *l, int d, int64_t size, int64_t i) {
    for (int k = l->n - 1; k >= 0; k--) {
        tg_placement to = l->at[k].placement;
        int64_t n = tg_parallel_size(p, l->at[k].axis), r = tg_parallel_rank(p, l->at[k].axis);
        if (to.kind != TG_VARYING || to.dim != d) continue;
        int64_t chunks = to.layout == TG_ZIGZAG ? 2 : to.layout == TG_STRIDED ? to.chunks : 1, rows = size / chunks;
        int64_t chunk = i / rows;
        chunk = to.layout == TG_ZIGZAG ? (chunk ? 2 * n - 1 - r : r) : chunk * n + r;
        i = chunk * rows + i % rows;
        size *= n;
    }
    return i;
}

static tg_shape part_shape(const tg_parallel *p, const layout *l) {
    tg_shape s = TG_SHAPE(A, B, C);
    for (int k = 0; k < l->n; k++)
        if (l->at[k].placement.kind == TG_VARYING) s.dim[l->at[k].placement.dim] /= tg_parallel_size(p, l->at[k].axis);
    return s;
}

static tg_tensor *placed(const tg_parallel *p, const layout *l, tg_tensor *x) {
    for (int k = 0; k < l->n; k++) tg_place(p, x, l->at[k].axis, l->at[k].placement);
    return x;
}

static tg_status holds_part(tg_tensor *x, const tg_parallel *p, const layout *l, tg_dtype from) {
    static _Thread_local double v[NUMEL];
    tg_ctx *ctx = tg_parallel_ctx(p);
    tg_shape s = part_shape(p, l);
    RUN(tg_read_f64(x, v, tg_numel(x)));
    for (int64_t i = 0; i < tg_numel(x); i++) {
        int64_t a = whole_index(p, l, 0, s.dim[0], i / s.dim[2] / s.dim[1]);
        int64_t b = whole_index(p, l, 1, s.dim[1], i / s.dim[2] % s.dim[1]);
        int64_t c = whole_index(p, l, 2, s.dim[2], i % s.dim[2]);
        EXPECT(ctx, v[i] == value(from, (a * B + b) * C + c));
    }
    return TG_OK;
}

/* Reads into a tensor whose strides are those of a transposed one. */
static tg_status into_columns(tg_safetensors *f, const tg_parallel *p, const layout *l) {
    static _Thread_local float bytes[NUMEL];
    tg_shape s = part_shape(p, l);
    const int64_t strides[] = {1, s.dim[0], s.dim[0] * s.dim[1]};
    tg_tensor *x = tg_wrap(tg_parallel_ctx(p), TG_F32, s, strides, bytes, NULL, NULL);
    placed(p, l, x);
    if (!l->n) tg_place(p, x, TG_TP, TG_I), tg_place(p, x, TG_DP, TG_I);
    for (tg_axis a = TG_TP; a <= TG_DP; a++) /* the caller's bytes are V where nothing is declared */
        if (tg_placement_of(x, a).kind == TG_VARYING && tg_placement_of(x, a).layout == TG_OPAQUE)
            tg_place(p, x, a, TG_I);
    RUN(tg_safetensors_read_part(f, "f16", x, true));
    RUN(holds_part(x, p, l, TG_F16));
    tg_drop(x);
    return TG_OK;
}

static tg_status reads_parts(void *arg, tg_ctx *ctx, tg_comm *world) {
    const layout *l = arg;
    tg_parallel *p = groups_of(l, world);
    tg_safetensors *f = tg_safetensors_open(ctx, whole_path);
    for (size_t k = 0; k < COUNT(dtypes); k++)
        for (size_t to = 0; to < COUNT(dtypes); to++) {
            if (to != k && (k > 3 || to > 3)) continue; /* only floats are converted */
            tg_tensor *x = placed(p, l, tg_zeros(ctx, dtypes[to].dtype, part_shape(p, l)));
            char before[64], after[64];
            tg_placement_text(x, before, sizeof before);
            RUN(tg_safetensors_read_part(f, dtypes[k].name, x, to != k));
            tg_placement_text(x, after, sizeof after);
            EXPECT(ctx, strcmp(before, after) == 0);
            RUN(holds_part(x, p, l, dtypes[k].dtype));
            RUN(tg_safetensors_read_part(f, dtypes[k].name, x, true)); /* again */
            tg_drop(x);
        }
    if (!ranks_on_gpus()) RUN(into_columns(f, p, l));
    tg_safetensors_close(f);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(every_rank_gets_its_part) {
    for (size_t i = 0; i < COUNT(layouts); i++) on_ranks(layouts[i].ranks, reads_parts, (void *)&layouts[i]);
}
END_TEST

static tg_status reads_odd_shapes(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_safetensors *f = tg_safetensors_open(ctx, whole_path);
    tg_tensor *scalar = tg_zeros(ctx, TG_F32, TG_SHAPE()), *empty = tg_zeros(ctx, TG_F32, TG_SHAPE(0, 4));
    (void)arg;
    tg_place(p, empty, TG_TP, TG_SHARD(1));
    RUN(tg_safetensors_read_part(f, "scalar", scalar, false));
    RUN(tg_safetensors_read_part(f, "empty", empty, false));
    EXPECT(ctx, tg_item(scalar) == value(TG_F32, 0));
    tg_safetensors_close(f);
    tg_drop(scalar);
    tg_drop(empty);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(scalars_and_empty_tensors) { on_ranks(2, reads_odd_shapes, NULL); }
END_TEST

/* ---- What is read, and what it costs ---- */

/* The number of times that each byte of the file was read, by all ranks together. */
static _Atomic unsigned char reads[1 << 19];

static int64_t counting_pread(void *user, int fd, void *buf, size_t n, int64_t offset) {
    int64_t got = pread(fd, buf, n, offset);
    (void)user;
    for (int64_t i = 0; i < got; i++) atomic_fetch_add(&reads[offset + i], 1);
    return got;
}

static tg_status reads_one(void *arg, tg_ctx *ctx, tg_comm *world) {
    const layout *l = arg;
    tg_parallel *p = groups_of(l, world);
    tg_safetensors *f = tg_safetensors_open(ctx, whole_path);
    tg_tensor *x = placed(p, l, tg_zeros(ctx, TG_BF16, part_shape(p, l)));
    RUN(tg_safetensors_read_part(f, "f32", x, true));
    tg_safetensors_close(f);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Ranks that hold different parts read every byte of the tensor once, and no byte of another tensor. */
START_TEST(each_rank_reads_only_its_part) {
    char message[1024];
    const tg_file_ops *ops = TG_FILE_OPS(.pread = counting_pread);
    tg_safetensors *f = tg_safetensors_open(work.ctx, whole_path);
    const tg_safetensors_entry e = *tg_safetensors_find(f, "f32");
    int64_t data = tg_safetensors_at(f, 0)->begin;
    tg_safetensors_close(f);
    for (size_t i = 0; i < COUNT(layouts); i++) {
        const layout *l = &layouts[i];
        int parts = 1, wrong = 0;
        for (size_t k = 0; k < COUNT(reads); k++) atomic_store(&reads[k], 0);
        tg_status s = run_ranks(l->ranks, reads_one, (void *)l,
                                TG_RANKS(.config = TG_CONFIG(.threads = 1, .files = ops), .message = message,
                                         .message_size = sizeof message));
        ck_assert_msg(s == TG_OK, "layout %zu: %s", i, message);
        for (int k = 0; k < l->n; k++)
            if (l->at[k].placement.kind == TG_VARYING) {
                tg_axis a = l->at[k].axis;
                parts *= a == TG_TP    ? l->tp
                         : a == TG_CP  ? l->cp
                         : a == TG_EP  ? l->ep
                         : a == TG_ETP ? l->etp
                                       : l->ranks / l->tp;
            }
        for (int64_t k = data; k < (int64_t)COUNT(reads); k++)
            wrong += atomic_load(&reads[k]) != (k >= e.begin && k < e.stop ? l->ranks / parts : 0);
        ck_assert_msg(!wrong, "layout %zu: %d bytes were read another number of times", i, wrong);
    }
}
END_TEST

enum { BIG_ROWS = 2048, BIG_COLUMNS = 512 }; /* 4 MiB in float32 */

static tg_status measures(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 4));
    const tg_placement *to = arg;
    tg_shape s = TG_SHAPE(BIG_ROWS, BIG_COLUMNS);
    tg_memory_info before = TG_MEMORY_INFO(), after = TG_MEMORY_INFO();
    s.dim[to->dim] /= 4;
    tg_tensor *x = tg_zeros(ctx, TG_F32, s);
    tg_safetensors *f = tg_safetensors_open(ctx, big_path);
    tg_place(p, x, TG_TP, *to);
    tg_memory_query(ctx, &before);
    tg_memory_reset_peak(ctx);
    RUN(tg_safetensors_read_part(f, "x", x, false));
    tg_memory_query(ctx, &after);
    EXPECT(ctx, after.live == before.live);
    EXPECT(ctx, after.peak - before.live <= BIG_ROWS * BIG_COLUMNS * 4 / 4 + 4096);
    int64_t rows = s.dim[0], columns = s.dim[1], r = tg_parallel_rank(p, TG_TP);
    double *v = malloc((size_t)(rows * columns) * sizeof *v);
    int wrong = v && tg_read_f64(x, v, rows * columns) == TG_OK ? 0 : 1;
    for (int64_t i = 0; i < rows * columns && !wrong; i++) {
        int64_t row = i / columns + (to->dim ? 0 : r * rows), column = i % columns + (to->dim ? r * columns : 0);
        wrong += v[i] != value(TG_F32, row * BIG_COLUMNS + column);
    }
    free(v);
    EXPECT(ctx, !wrong);
    tg_safetensors_close(f);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(memory_is_needed_for_the_part_alone) {
    tg_named_tensor x = {"x", numbers(work.ctx, TG_F32, TG_SHAPE(BIG_ROWS, BIG_COLUMNS))};
    ck_assert_int_eq(tg_safetensors_save(work.ctx, big_path, &x, 1, NULL, 0), TG_OK);
    tg_drop(x.tensor);
    for (int d = 0; d < 2; d++) on_ranks(4, measures, (tg_placement[]){TG_SHARD(d)});
}
END_TEST

/* ---- Other devices, without peers ---- */

static tg_tensor *third_quarter(tg_ctx *ctx, const tg_parallel *p, int64_t columns) {
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(BIG_ROWS, columns / 4));
    tg_place(p, x, TG_TP, TG_SHARD(1));
    return x;
}

/* A device whose memory the host cannot access gets the bytes through a buffer, here more than one full. Device meta
 * makes the checks. */
START_TEST(parts_on_other_devices) {
    enum { COLUMNS = 4 * BIG_COLUMNS, MINE = BIG_COLUMNS };
    tg_named_tensor named = {"x", numbers(work.ctx, TG_F32, TG_SHAPE(BIG_ROWS, COLUMNS))};
    ck_assert_int_eq(tg_safetensors_save(work.ctx, in(&work, "wide"), &named, 1, NULL, 0), TG_OK);
    tg_device_ops far_ops = *tg_ctx_ops(work.ctx);
    far_ops.host = false;
    for (int meta = 0; meta < 2; meta++) {
        tg_ctx *ctx = meta ? tg_ctx_new(TG_CONFIG(.device = "meta")) : tg_ctx_new_on(&far_ops, NULL);
        tg_comm *world = tg_comm_plan_new(ctx, 2, 4);
        tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 4));
        tg_safetensors *f = tg_safetensors_open(ctx, in(&work, "wide"));
        tg_tensor *x = third_quarter(ctx, p, COLUMNS), *narrow = third_quarter(ctx, p, COLUMNS / 2);
        ck_assert_int_eq(tg_safetensors_read_part(f, "x", x, false), TG_OK);
        ck_assert_int_eq(tg_safetensors_read_part(f, "x", narrow, false), TG_ERR_SHAPE);
        expect_error(ctx, TG_ERR_SHAPE, "is [2048, 2048], expected [2048, 1024]");
        if (!meta) {
            double *v = malloc(BIG_ROWS * MINE * sizeof *v);
            int wrong = 0;
            ck_assert_int_eq(tg_read_f64(x, v, BIG_ROWS * MINE), TG_OK);
            for (int64_t i = 0; i < BIG_ROWS * MINE; i++)
                wrong += v[i] != value(TG_F32, i / MINE * COLUMNS + 2 * MINE + i % MINE);
            ck_assert_int_eq(wrong, 0);
            free(v);
        }
        tg_safetensors_close(f);
        tg_drop(x);
        tg_drop(narrow);
        tg_parallel_free(p);
        tg_comm_free(world);
        tg_ctx_free(ctx);
    }
    tg_drop(named.tensor);
}
END_TEST

/* Without a tg_parallel the whole tensor is read, as by tg_safetensors_read. */
START_TEST(one_rank_reads_the_whole_tensor) {
    double v[NUMEL];
    tg_safetensors *f = tg_safetensors_open(work.ctx, whole_path);
    tg_tensor *x = tg_zeros(work.ctx, TG_F32, TG_SHAPE(A, B, C));
    tg_tensor *bytes = tg_from_host(work.ctx, TG_F64, TG_SHAPE(), v);
    ck_assert_int_eq(tg_safetensors_read_part(f, "f64", x, true), TG_OK);
    ck_assert_int_eq(tg_read_f64(x, v, NUMEL), TG_OK);
    for (int64_t i = 0; i < NUMEL; i++) ck_assert(v[i] == value(TG_F64, i));
    ck_assert_int_eq(tg_safetensors_read_part(f, "scalar", bytes, true), TG_OK); /* nothing is varying here */
    tg_safetensors_close(f);
    tg_drop(x);
    tg_drop(bytes);
}
END_TEST

static tg_status reads_of_index(void *arg, tg_ctx *ctx, tg_comm *world) {
    const layout *l = arg;
    char path[300];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", work.dir);
    tg_parallel *p = groups_of(l, world);
    tg_safetensors *f = tg_safetensors_open(ctx, path);
    tg_tensor *x = placed(p, l, tg_zeros(ctx, TG_F32, part_shape(p, l)));
    RUN(tg_safetensors_read_part(f, "bf16", x, true));
    RUN(holds_part(x, p, l, TG_BF16));
    REFUSED(ctx, TG_ERR_DATA, "index.json' has no tensor 'f64'", tg_safetensors_read_part(f, "f64", x, true));
    REFUSED(ctx, TG_ERR_SHAPE, "second.safetensors'", tg_safetensors_read_part(f, "one", x, false));
    tg_safetensors_close(f);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(files_of_an_index) {
    static const char map[] = "{\"weight_map\": {\"one\": \"second.safetensors\", \"bf16\": \"whole.safetensors\"}}";
    tg_named_tensor one = {"one", numbers(work.ctx, TG_F32, TG_SHAPE(1))};
    ck_assert_int_eq(tg_safetensors_save(work.ctx, in(&work, "second.safetensors"), &one, 1, NULL, 0), TG_OK);
    put_file(&work, "model.safetensors.index.json", map, sizeof map - 1);
    for (size_t i = 0; i < COUNT(layouts); i += 3) on_ranks(layouts[i].ranks, reads_of_index, (void *)&layouts[i]);
    tg_drop(one.tensor);
}
END_TEST

/* ---- Refusals, which change nothing ---- */

static double kept[4][NUMEL]; /* by rank */

static tg_status remember(tg_tensor *x, int rank) { return tg_read_f64(x, kept[rank], tg_numel(x)); }

static tg_status is_unchanged(tg_tensor *x, int rank) {
    static _Thread_local double now[NUMEL];
    RUN(tg_read_f64(x, now, tg_numel(x)));
    EXPECT(tg_ctx_of(x), !memcmp(now, kept[rank], (size_t)tg_numel(x) * sizeof *now));
    return TG_OK;
}

/* A float64 leaf [A, B / 2, C] with values of its own. */
static tg_tensor *half(tg_ctx *ctx, const tg_parallel *p, tg_placement to) {
    static _Thread_local double v[NUMEL];
    for (int i = 0; i < NUMEL; i++) v[i] = -1 - i;
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(A, B / 2, C));
    tg_place(p, x, TG_TP, to);
    tg_write_f64(x, v, NUMEL / 2);
    return x;
}

static tg_status refuses(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    double v = 0;
    int rank = tg_comm_rank(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_safetensors *f = tg_safetensors_open(ctx, whole_path);
    tg_tensor *x = half(ctx, p, TG_SHARD(1)), *along = half(ctx, p, TG_SHARD(0)), *whole = half(ctx, p, TG_I);
    tg_tensor *ids = tg_zeros(ctx, TG_I64, TG_SHAPE(A, B / 2, C)), *partial = half(ctx, p, TG_P);
    tg_tensor *given = tg_from_host(ctx, TG_F64, TG_SHAPE(), &v), *opaque = half(ctx, p, TG_V);
    tg_place(p, ids, TG_TP, TG_SHARD(1));
    RUN(remember(x, rank));
    REFUSED(ctx, TG_ERR_SHAPE, "is [24, 24, 16], expected [48, 12, 16]", tg_safetensors_read_part(f, "f64", along, 0));
    REFUSED(ctx, TG_ERR_SHAPE, "is [24, 24, 16], expected [24, 12, 16]", tg_safetensors_read_part(f, "f64", whole, 0));
    REFUSED(ctx, TG_ERR_SHAPE, "is [], expected [24, 24, 16]", tg_safetensors_read_part(f, "scalar", x, true));
    REFUSED(ctx, TG_ERR_DATA, "has no tensor 'f128'", tg_safetensors_read_part(f, "f128", x, false));
    REFUSED(ctx, TG_ERR_ARGUMENT, "read_part: name is NULL", tg_safetensors_read_part(f, NULL, x, 0));
    REFUSED(ctx, TG_ERR_DTYPE, "is F32, expected f64", tg_safetensors_read_part(f, "f32", x, false));
    REFUSED(ctx, TG_ERR_DTYPE, "only floats and float8 are converted", tg_safetensors_read_part(f, "i64", x, true));
    REFUSED(ctx, TG_ERR_DTYPE, "only floats and float8 are converted", tg_safetensors_read_part(f, "f64", ids, true));
    REFUSED(ctx, TG_ERR_PLACEMENT, "is tp P, expected a shard", tg_safetensors_read_part(f, "f64", partial, false));
    REFUSED(ctx, TG_ERR_PLACEMENT, "tensor that is I or R", tg_safetensors_read_part(f, "f64", partial, false));
    REFUSED(ctx, TG_ERR_PLACEMENT, "is tp V, expected a shard", tg_safetensors_read_part(f, "f64", opaque, false));
    REFUSED(ctx, TG_ERR_PLACEMENT, "declare the leaf with tg_place", tg_safetensors_read_part(f, "f64", given, false));
    RUN(is_unchanged(x, rank));
    tg_place(p, given, TG_TP, TG_R); /* the remedy */
    RUN(tg_safetensors_read_part(f, "scalar", given, true));
    EXPECT(ctx, tg_safetensors_read_part(NULL, "f64", x, false) == TG_ERR_ARGUMENT);
    REFUSED(ctx, TG_ERR_ARGUMENT, "the tensor is NULL", tg_safetensors_read_part(f, "f64", NULL, false));
    tg_discard(x);
    REFUSED(ctx, TG_ERR_DISCARDED, "tg_discard", tg_safetensors_read_part(f, "f64", x, false));
    tg_drop(x);
    REFUSED(ctx, TG_ERR_HANDLE, "tg_safetensors_read_part", tg_safetensors_read_part(f, "f64", x, false));
    tg_safetensors_close(f);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(wrong_destinations_are_refused) { on_ranks(2, refuses, NULL); }
END_TEST

/* Makes a copy of the file for this rank, damages it, and reads a part of "u8", "bool" and "f64" from it. */
static char *copy_of_whole(int rank, char *path, size_t n, size_t *bytes) {
    static _Thread_local char copy[1 << 19];
    FILE *from = fopen(whole_path, "rb");
    snprintf(path, n, "%s/copy-%d", work.dir, rank);
    *bytes = from ? fread(copy, 1, sizeof copy, from) : 0;
    if (from) fclose(from);
    return copy;
}

static bool put(const char *path, const char *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    bool good = f && fwrite(bytes, 1, n, f) == n;
    return f && fclose(f) == 0 && good;
}

static tg_status damaged(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    char path[300];
    size_t n;
    int rank = tg_comm_rank(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tensor *x = half(ctx, p, TG_SHARD(1)), *flags = tg_zeros(ctx, TG_BOOL, TG_SHAPE(A, B / 2, C));
    tg_tensor *whole = tg_zeros(ctx, TG_F64, TG_SHAPE(A, B, C));
    tg_place(p, flags, TG_TP, TG_SHARD(1));
    RUN(remember(x, rank));
    char *bytes = copy_of_whole(rank, path, sizeof path, &n);
    EXPECT(ctx, put(path, bytes, n));
    tg_safetensors *f = tg_safetensors_open(ctx, path);
    const tg_safetensors_entry *f64 = tg_safetensors_find(f, "f64"), *b = tg_safetensors_find(f, "bool");
    /* The last byte of the tensor belongs to the part of rank 1, its first to that of rank 0. */
    EXPECT(ctx, f64 && truncate(path, rank ? f64->stop - 1 : f64->begin + 7) == 0);
    REFUSED(ctx, TG_ERR_IO, "ends at offset", tg_safetensors_read_part(f, "f64", x, false));
    RUN(is_unchanged(x, rank));
    /* A byte that is no bool, in the part of rank 1. */
    bytes[b->stop - 1] = 7;
    bytes[f64->stop - 1] ^= 1;
    EXPECT(ctx, put(path, bytes, n));
    RUN(remember(flags, rank));
    if (rank == 0) RUN(tg_safetensors_read_part(f, "bool", flags, false));
    if (rank == 1) REFUSED(ctx, TG_ERR_DATA, "(BOOL) holds the byte 7", tg_safetensors_read_part(f, "bool", flags, 0));
    if (rank == 1) RUN(is_unchanged(flags, rank));
    /* The checksum is that of the whole tensor. */
    RUN(tg_safetensors_read_part(f, "f64", x, false));
    RUN(remember(whole, rank));
    REFUSED(ctx, TG_ERR_DATA, "the file is damaged", tg_safetensors_read_part(f, "f64", whole, false));
    RUN(is_unchanged(whole, rank));
    tg_safetensors_close(f);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(damaged_files_change_nothing) { on_ranks(2, damaged, NULL); }
END_TEST

/* Each system call fails in turn, in transfers of a few hundred bytes of which some are interrupted. */
START_TEST(a_call_that_fails_changes_nothing) {
    faulty fault = {.error = EIO, .most = 700, .interrupts = true};
    const tg_file_ops ops = faulty_ops(&fault);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.files = &ops));
    tg_comm *world = tg_comm_plan_new(ctx, 1, 2);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_safetensors *f = tg_safetensors_open(ctx, whole_path);
    tg_tensor *x = half(ctx, p, TG_SHARD(1));
    int failed = 0;
    ck_assert_int_eq(remember(x, 0), TG_OK);
    for (fault.fail = 1;; fault.fail++) {
        fault.calls = 0;
        if (tg_safetensors_read_part(f, "f32", x, true) == TG_OK) break;
        expect_error(ctx, TG_ERR_IO, "cannot read");
        ck_assert_int_eq(is_unchanged(x, 0), TG_OK);
        failed++;
    }
    ck_assert_int_ge(failed, A * B * C * 4 / 2 / 700);
    ck_assert_int_eq(holds_part(x, p, &(layout){.ranks = 2, .tp = 2, .n = 1, .at = {AT(TP, SHARD(1))}}, TG_F32), TG_OK);
    tg_safetensors_close(f);
    tg_drop(x);
    tg_parallel_free(p);
    tg_comm_free(world);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Values that a tape has saved ---- */

START_TEST(reading_counts_as_a_write) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.dtype = TG_F64));
    tg_comm *world = tg_comm_plan_new(ctx, 1, 2);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_safetensors *f = tg_safetensors_open(ctx, whole_path);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = half(ctx, p, TG_SHARD(1)), *frozen = half(ctx, p, TG_SHARD(1));
    tg_set_requires_grad(x, true);
    tg_tensor *y = tg_sum(t, tg_square(t, tg_mul(t, x, frozen)), TG_ALL_DIMS, false);
    ck_assert_int_eq(tg_safetensors_read_part(f, "i64", x, true), TG_ERR_DTYPE); /* writes nothing */
    tg_ctx_clear(ctx);
    ck_assert_int_eq(tg_safetensors_read_part(f, "f64", frozen, false), TG_OK);
    ck_assert_int_eq(tg_backward(t, y), TG_ERR_VERSION);
    expect_error(ctx, TG_ERR_VERSION, "tg_safetensors_read_part");
    tg_safetensors_close(f);
    tg_tape_free(t);
    tg_parallel_free(p);
    tg_comm_free(world);
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        every_rank_gets_its_part,
        scalars_and_empty_tensors,
        each_rank_reads_only_its_part,
        memory_is_needed_for_the_part_alone,
        parts_on_other_devices,
        one_rank_reads_the_whole_tensor,
        files_of_an_index,
        wrong_destinations_are_refused,
        damaged_files_change_nothing,
        a_call_that_fails_changes_nothing,
        reading_counts_as_a_write,
    };
    snprintf(work.dir, sizeof work.dir, "/tmp/tapegrad-parts-XXXXXX");
    if (!mkdtemp(work.dir)) return EXIT_FAILURE;
    work.ctx = tg_ctx_new(NULL);
    snprintf(whole_path, sizeof whole_path, "%s/whole.safetensors", work.dir);
    snprintf(big_path, sizeof big_path, "%s/big.safetensors", work.dir);
    int failed = !save_whole(whole_path) || tg_check_main("read_part", tests, sizeof tests / sizeof *tests);
    workplace_free(&work);
    return failed;
}
