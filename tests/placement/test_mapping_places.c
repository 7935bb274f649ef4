/* The placements that each mapping accepts and returns, and shards whose placement says their layout. */
#include "on_ranks.h"

#include <tapegrad/backward.h>
#include <tapegrad/megatron.h>

#include "parallel/mappings/mapping.h"

/* from: the placements that the op accepts if x requires a gradient: I, R, P, S (a shard along dim 0), V (opaque). */
static const struct row {
    const char *name, *from, *to;
    tg_mapping_params params;
} table[] = {
    {"CopyToModelParallelRegion", "I", "tp R", {.dim = 0}},
    {"ReduceFromModelParallelRegion", "P", "", {.dim = 0}},
    {"ScatterToModelParallelRegion", "I", "tp V1", {.dim = -1}},
    {"GatherFromModelParallelRegion", "VS", "", {.dim = 0}},
    {"ScatterToSequenceParallelRegion", "I", "tp V0", {.dim = 0}},
    {"GatherFromSequenceParallelRegion", "VS", "tp R", {.dim = 0}},
    {"GatherFromSequenceParallelRegion", "VS", "", {.dim = 0, .invariant = true}},
    {"ReduceScatterToSequenceParallelRegion", "P", "tp V0", {.dim = 0}},
    {"ReduceScatterToSequenceParallelRegion", "P", "tp V", {.dim = 0, .splits = (const int64_t[]){1, 3}}},
    {"AllGatherFromTensorParallelRegion", "VS", "tp R", {.dim = 0}},
    {"ReduceScatterToTensorParallelRegion", "P", "tp V1", {.dim = -1}},
    {"AllToAll", "V", "tp V", {.dim = 0}},
    {"all_reduce", "P", "tp R", {.dim = 0}},
    {"scatter_to", "I", "tp V1", {.dim = 1}},
    {"scatter_to", "I", "tp V1:s2", {.dim = 1, .shard = {.layout = TG_STRIDED, .chunks = 2}}},
    {"gather_from", "VS", "", {.dim = 0}},
    {"gather_from", "V", "", {.dim = 1}},
    {"all_gather", "VS", "tp R", {.dim = 0}},
    {"reduce_scatter", "P", "tp V0:z", {.dim = 0, .shard = {.layout = TG_ZIGZAG}}},
    {"shard", "R", "tp V0", {.dim = 0}},
    {"unshard", "VS", "tp P", {.dim = 0}},
    {"reshard", "S", "tp V1", {.dim = 0, .cut = 1}},
    {"reshard", "V", "tp V", {.dim = 1, .cut = 0}},
    {"shift", "V", "tp V", {.root = 1}},
    {"broadcast", "V", "", {.root = 1}},
    {"on_root", "I", "tp V", {.root = 1}},
    {"as_partial", "V", "tp P", {.dim = 0}},
    {"as_local", "R", "tp V", {.dim = 0}},
    {"as_opaque", "VS", "tp V", {.dim = 0}},
    {"as_shard", "V", "tp V1", {.dim = 1}},
    {"i_to_p", "I", "tp P", {.dim = 0}},
    {"r_to_i", "R", "", {.dim = 0}},
};

static tg_placement placement_of(char c) {
    return c == 'I' ? TG_I : c == 'R' ? TG_R : c == 'P' ? TG_P : c == 'V' ? TG_V : TG_SHARD(0);
}

/* If one row accepts an opaque tensor and another a shard, x is V in both ways. */
static bool takes(const struct row *r, char from) {
    if (strchr(r->from, from)) return true;
    return !strcmp(r->name, "reshard") && from == 'V'; /* on each rank separately */
}

static tg_status one(const struct row *r, char from, const tg_parallel *p, tg_tape *t) {
    tg_ctx *ctx = tg_tape_ctx(t);
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(4, 4))), *y = NULL;
    tg_mapping_params params = r->params;
    params.comm = tg_parallel_comm(p, TG_TP);
    RUN(tg_place(p, x, TG_TP, placement_of(from)));
    tg_status s = tg_apply(t, tg_op_find(r->name), &params, &x, 1, &y, 1, NULL, NULL, TG_SITE);
    char text[64] = "";
    if (s == TG_OK) tg_placement_text(y, text, sizeof text);
    bool taken = takes(r, from), right = s == (taken ? TG_OK : TG_ERR_PLACEMENT);
    if (right && taken && strchr(r->from, from)) right = !strcmp(text, r->to);
    char message[256];
    snprintf(message, sizeof message, "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    if (right) return TG_OK;
    return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "%s of %c: %s, \"%s\", expected \"%s\": %s", r->name, from,
                       tg_status_name(s), text, r->to, message);
}

static tg_status every_placement(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i < TG_LEN(table); i++)
        for (const char *from = "IRPVS"; *from; from++) RUN(one(&table[i], *from, p, t));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(placements_are_converted) { on_ranks(2, every_placement, NULL); }
END_TEST

/* The part along dim 1 of tensor number 1, [3, 12], that rank me of n has, divided into k chunks per rank. */
static tg_tensor *strided(tg_ctx *ctx, int me, int n, int k) {
    double v[36];
    int w = 12 / n / k, width = 12 / n;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < width; j++) v[i * width + j] = at(1, i * 12 + (j / w * n + me) * w + j % w);
    return grad_leaf(tg_from_host(ctx, TG_F64, TG_SHAPE(3, width), v));
}

static tg_tensor *zigzag(tg_ctx *ctx, int me, int n) {
    double v[36];
    int w = 6 / n, width = 12 / n;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < width; j++) {
            int chunk = j < w ? me : 2 * n - 1 - me;
            v[i * width + j] = at(1, i * 12 + chunk * w + j % w);
        }
    return grad_leaf(tg_from_host(ctx, TG_F64, TG_SHAPE(3, width), v));
}

/* The vjp of y's op, applied to the whole tensor as the gradient (or to shares of it, if that is P), is x in x's
 * layout. */
static tg_status check_vjp(const tg_parallel *p, tg_tape *t, tg_tensor *x, tg_tensor *y, tg_placement gradient) {
    tg_ctx *ctx = tg_tape_ctx(t);
    tg_tensor *u = made(ctx, 1, TG_SHAPE(3, 12)), *g = NULL;
    double v[36], shares = gradient.kind == TG_PARTIAL ? tg_parallel_size(p, TG_TP) : 1;
    for (int i = 0; i < 36; i++) v[i] = at(1, i) / shares;
    RUN(tg_write_f64(u, v, 36));
    RUN(tg_place(p, u, TG_TP, gradient));
    RUN(tg_node_op(tg_node_of(y))->vjp(t, tg_node_of(y), &u, &g));
    char is[64], want[64];
    tg_placement_text(g, is, sizeof is);
    tg_placement_text(x, want, sizeof want);
    EXPECT(ctx, !strcmp(is, want) && off(g, x, -1, 0, 1) < 1e-14);
    return TG_OK;
}

static tg_status layouts(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    int n = tg_comm_size(world), me = tg_comm_rank(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = n));
    tg_comm *c = tg_parallel_comm(p, TG_TP);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *whole = made(ctx, 1, TG_SHAPE(3, 12));
    for (int way = 0; way < 4; way++) {
        tg_tensor *x = way / 2 ? zigzag(ctx, me, n) : strided(ctx, me, n, 3 - n % 2);
        RUN(tg_place(p, x, TG_TP, way / 2 ? TG_SHARD_ZIGZAG(1) : TG_SHARD_STRIDED(1, 3 - n % 2)));
        tg_tensor *y = way % 2 ? tg_all_gather(t, x, 1, c) : tg_gather_from(t, x, 1, c);
        EXPECT(ctx, off(y, whole, -1, 0, 1) == 0);
        RUN(check_vjp(p, t, x, y, way % 2 ? TG_P : TG_I));
        /* An R root is seeded with 1/n; the gradient of sum(y^2) / 2 is x in both cases. */
        RUN(tg_backward(t, tg_scale(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false), 0.5)));
        double most = off(tg_grad_of(x), x, -1, 0, 1);
        EXPECT(ctx, most < 1e-14);
        tg_tape_reset(t);
    }
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(layouts_come_from_placements) {
    for (int n = 2; n <= 3; n++) on_ranks(n, layouts, NULL);
}
END_TEST

/* Parts that are passed in are rows in the order of ranks, which a strided or zigzag shard does not have. */
static tg_status splits_of_chunks(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_comm *c = tg_parallel_comm(p, TG_TP);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *whole = made(ctx, 1, TG_SHAPE(8, 2)), *mine = part(ctx, 1, TG_SHAPE(8, 2), 0, tg_comm_rank(c), 2);
    tg_tensor *twice = made(ctx, 1, TG_SHAPE(4, 2)), *mirrored = made(ctx, 1, TG_SHAPE(4, 2));
    RUN(tg_place(p, mine, TG_TP, TG_SHARD(0)));
    RUN(tg_place(p, twice, TG_TP, TG_SHARD_STRIDED(0, 2)));
    RUN(tg_place(p, mirrored, TG_TP, TG_SHARD_ZIGZAG(0)));
    const tg_sp_opts *four = TG_SP(.splits = (int64_t[]){4, 4});
    EXPECT(ctx, off(tg_gather_from_sp(t, mine, c, four), whole, -1, 0, 1) == 0);
    REFUSED(ctx, TG_ERR_PLACEMENT, "splits need a contiguous shard: leave splits NULL",
            tg_gather_from_sp(t, twice, c, four));
    REFUSED(ctx, TG_ERR_PLACEMENT, "(2 chunks per rank)", tg_gather_from_sp(t, mirrored, c, four));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(given_parts_of_chunks_are_refused) { on_ranks(2, splits_of_chunks, NULL); }
END_TEST

/* Placements on other axes stay. */
static tg_status two_axes(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_comm *tp = tg_parallel_comm(p, TG_TP), *dp = tg_parallel_comm(p, TG_DP);
    tg_tape *t = tg_tape_new(ctx);
    char text[64];
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(4, 4)));
    RUN(tg_place(p, x, TG_DP, TG_SHARD(0)));
    RUN(tg_place(p, x, TG_TP, TG_P));
    tg_tensor *y = tg_reduce_from_tp(t, x, tp);
    tg_placement_text(y, text, sizeof text);
    EXPECT(ctx, !strcmp(text, "dp V0"));
    tg_tensor *z = tg_scatter_to(t, y, 1, tp);
    tg_placement_text(z, text, sizeof text);
    EXPECT(ctx, !strcmp(text, "tp V1, dp V0") && tg_global_shape(z).dim[0] == 8 && tg_global_shape(z).dim[1] == 4);
    tg_placement_text(tg_gather_from(t, z, 0, dp), text, sizeof text);
    EXPECT(ctx, !strcmp(text, "tp V1"));
    REFUSED(ctx, TG_ERR_PLACEMENT, "linear", tg_all_reduce_max(t, tg_detach(t, x), dp));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(other_axes_pass_through) { on_ranks(4, two_axes, NULL); }
END_TEST

int main(void) {
    const TTest *const tests[] = {placements_are_converted, layouts_come_from_placements,
                                  given_parts_of_chunks_are_refused, other_axes_pass_through};
    return tg_check_main("mapping places", tests, sizeof tests / sizeof tests[0]);
}
