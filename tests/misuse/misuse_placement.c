/* Placements: declared for leaves, stated by ops. Meanwhile the world's context is rank 0 of two on a tp axis. */
#include <tapegrad/parallel.h>
#include <tapegrad/op.h>

#include "misuse/misuse.h"
#include "placement/grid.h"

#define P (tg_grid_of(b->ctx)->owner)

/* Creates a new leaf for every call, because a leaf can be placed only once. */
static tg_status places(misuse_world *b, tg_axis axis, tg_placement to) {
    tg_tensor *x = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 3));
    tg_status s = tg_place(P, x, axis, to);
    tg_drop(x);
    return s;
}

static tg_status places_param(misuse_world *b, tg_placement to) {
    tg_tensor *x = tg_param_new(b->ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(2), 0);
    tg_status s = tg_place(P, x, TG_TP, to);
    tg_drop(x);
    return s;
}

static tg_status places_twice(misuse_world *b) {
    tg_tensor *x = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 3));
    tg_place(P, x, TG_TP, TG_R);
    tg_status s = tg_place(P, x, TG_TP, TG_I);
    tg_drop(x);
    return s;
}

/* Places a leaf of a tape that an op has used. */
static tg_status places_used_input(misuse_world *b) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *x = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 3)), *in = tg_tape_input(t, x);
    tg_add(t, in, b->w);
    tg_status s = tg_place(P, in, TG_TP, TG_R);
    tg_tape_free(t);
    tg_drop(x);
    return s;
}

static void declared(misuse_world *b) {
    const tg_placement unknown = {.kind = 9}, no_layout = {.kind = TG_VARYING, .layout = 7};
    QUIET(tg_place, tg_place(P, NULL, TG_TP, TG_R) == TG_ERR_ARGUMENT);
    FAILS(tg_place, ARGUMENT, "is not that of the tensor's context", tg_place(NULL, b->x, TG_TP, TG_R));
    FAILS(tg_place, ARGUMENT, "axis is 3, which has no placements", places(b, TG_PP, TG_R));
    FAILS(tg_place, ARGUMENT, "axis is 7, which has no placements", places(b, TG_AXIS_USER, TG_R));
    FAILS(tg_place, ARGUMENT, "axis is 8, which has no placements", places(b, TG_MAX_AXES, TG_R));
    FAILS(tg_place, ARGUMENT, "axis is -1, which has no placements", places(b, (tg_axis)-1, TG_R));
    FAILS(tg_place, ARGUMENT, "kind 9", places(b, TG_TP, unknown));
    FAILS(tg_place, ARGUMENT, "layout 7", places(b, TG_TP, no_layout));
    FAILS(tg_place, SHAPE, "the placement shards dim 2, but f32[2, 3] has 2 dims",
          places(b, TG_TP, TG_SHARD(2)));
    FAILS(tg_place, SHAPE, "the placement shards dim -3, but f32[2, 3] has 2 dims",
          places(b, TG_TP, TG_SHARD(-3)));
    FAILS(tg_place, SHAPE, "into 2 chunks", places(b, TG_TP, TG_SHARD_STRIDED(1, 2)));
    FAILS(tg_place, SHAPE, "into 0 chunks", places(b, TG_TP, TG_SHARD_STRIDED(0, 0)));
    FAILS(tg_place, SHAPE, "into 2 chunks", places(b, TG_TP, TG_SHARD_ZIGZAG(1)));
    FAILS(tg_place, STATE, "placed on axis tp already: it is R there, and cannot become I", places_twice(b));
    FAILS(tg_place, STATE, "f32[2, 3] is not a leaf; the placement rule has placed it", tg_place(P, b->r, TG_TP, TG_R));
    FAILS(tg_place, STATE, "w f32[2, 3] was already used by an op", tg_place(P, b->w, TG_TP, TG_R));
    FAILS(tg_place, STATE, "f32[2, 3] was already used by an op", places_used_input(b));
    FAILS(tg_place, PLACEMENT, "would be P", places_param(b, TG_P));
    FAILS(tg_place, PLACEMENT, "would be opaque", places_param(b, TG_V));
    EACH_DEAD(x) FAILS(tg_place, HANDLE, "the tensor", tg_place(P, x, TG_TP, TG_R));
}

static void read_off(misuse_world *b) {
    char text[8] = "?";
    DEAD_QUIET(tg_placement_of, tg_placement_of(x, TG_TP).kind == TG_INVARIANT);
    QUIET(tg_placement_of, tg_placement_of(NULL, TG_TP).kind == TG_INVARIANT);
    QUIET(tg_placement_of, tg_placement_of(b->x, TG_MAX_AXES).kind == TG_INVARIANT);
    QUIET(tg_placement_of, tg_placement_of(b->x, (tg_axis)-1).kind == TG_INVARIANT);
    DEAD_QUIET(tg_global_shape, tg_global_shape(x).ndim == 0 && tg_global_shape(NULL).ndim == 0);
    DEAD_QUIET(tg_placement_text, tg_placement_text(x, text, sizeof text) == 0 && !*text);
    QUIET(tg_placement_text, tg_placement_text(NULL, NULL, 8) == 0 && tg_placement_text(b->ids, NULL, 8) == 4);
}

static void parameters(misuse_world *b) {
    const tg_shape two_by_three = TG_SHAPE(2, 3);
#define PARAM(shape, std, ...) tg_param_new_placed(P, "p", TG_F32, shape, std, TG_PLACES(__VA_ARGS__))
    QUIET(tg_param_new_placed, misuse_inert(tg_param_new_placed(NULL, "p", TG_F32, two_by_three, 0, NULL, 0)));
    INERT(tg_param_new_placed, ARGUMENT, "std is -1", PARAM(two_by_three, -1, {TG_TP, TG_R}));
    INERT(tg_param_new_placed, ARGUMENT, "std is nan", PARAM(two_by_three, NAN, {TG_TP, TG_R}));
    INERT(tg_param_new_placed, ARGUMENT, "std is inf", PARAM(two_by_three, INFINITY, {TG_TP, TG_R}));
    INERT(tg_param_new_placed, DTYPE, "i64", tg_param_new_placed(P, "p", TG_I64, two_by_three, 0, NULL, 0));
    INERT(tg_param_new_placed, DTYPE, "expected one of",
          tg_param_new_placed(P, "p", (tg_dtype)99, two_by_three, 0, NULL, 0));
    INERT(tg_param_new_placed, SHAPE, "-3", PARAM(TG_SHAPE(2, -3), 0, {TG_TP, TG_R}));
    INERT(tg_param_new_placed, SHAPE, "of 2 chunks", PARAM(two_by_three, 0, {TG_TP, TG_SHARD_ZIGZAG(0)}));
    INERT(tg_param_new_placed, PLACEMENT, "would be P", PARAM(two_by_three, 0, {TG_TP, TG_P}));
    INERT(tg_param_new_placed, ARGUMENT, "axis is 3, which has no placements", PARAM(two_by_three, 0, {TG_PP, TG_R}));
    INERT(tg_param_new_placed, ARGUMENT, "axis is 8, which", PARAM(two_by_three, 0, {TG_MAX_AXES, TG_SHARD(0)}));
    INERT(tg_param_new_placed, ARGUMENT, "n is -1",
          tg_param_new_placed(P, NULL, TG_F32, two_by_three, 0, NULL, -1));
    INERT(tg_param_new_placed, ARGUMENT, "n is 1",
          tg_param_new_placed(P, NULL, TG_F32, two_by_three, 0, NULL, 1));
}

static void reshaped(misuse_world *b) {
    EACH_DEAD(x) INERT(tg_reshape_shard, HANDLE, "the tensor", tg_reshape_shard(b->t, x, TG_SHAPE(6), 0));
    INERT(tg_reshape_shard, ARGUMENT, "the tape is NULL", tg_reshape_shard(NULL, b->x, TG_SHAPE(6), 0));
    INERT(tg_reshape_shard, SHAPE, "4 elements", tg_reshape_shard(b->t, b->x, TG_SHAPE(4), 0));
    INERT(tg_reshape_shard, SHAPE, "dim 1 is out of range", tg_reshape_shard(b->t, b->x, TG_SHAPE(6), 1));
    INERT(tg_reshape_shard, SHAPE, "dim -2 is out of range", tg_reshape_shard(b->t, b->x, TG_SHAPE(6), -2));
    INERT(tg_reshape_shard, SHAPE, "out of range", tg_reshape_shard(b->t, b->x, TG_SHAPE(6), INT32_MAX));
    INERT(tg_reshape_shard, SHAPE, "dims", tg_reshape_shard(b->t, b->x, (tg_shape){.ndim = 99}, INT32_MIN));
}

static void assumed(misuse_world *b) {
    const tg_placement unknown = {.kind = 9};
    EACH_DEAD(x) INERT(tg_assume_placement, HANDLE, "the tensor", tg_assume_placement(b->t, x, P, TG_TP, TG_R));
    INERT(tg_assume_placement, ARGUMENT, "the tape is NULL", tg_assume_placement(NULL, b->x, P, TG_TP, TG_R));
    INERT(tg_assume_placement, HANDLE, "freed", tg_assume_placement(b->freed, b->x, P, TG_TP, TG_R));
    INERT(tg_assume_placement, HANDLE, "tg_tape_input", tg_assume_placement(b->t, b->elsewhere, P, TG_TP, TG_R));
    INERT(tg_assume_placement, ARGUMENT, "is not that of", tg_assume_placement(b->t, b->x, NULL, TG_TP, TG_R));
    INERT(tg_assume_placement, ARGUMENT, "has no placements", tg_assume_placement(b->t, b->x, P, TG_PP, TG_R));
    INERT(tg_assume_placement, ARGUMENT, "kind 9", tg_assume_placement(b->t, b->x, P, TG_TP, unknown));
    INERT(tg_assume_placement, SHAPE, "the placement shards dim 4",
          tg_assume_placement(b->t, b->x, P, TG_TP, TG_SHARD(4)));
}

/* ---- Statements of infer ---- */

static tg_status same(tg_call *c) { return tg_call_out(c, 0, TG_F32, 2, tg_array_of(c->input[0]).shape); }
static tg_status fill(tg_call *c) { return tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(c->out[0]), 1); }

#define CALL(name, expr) \
    static tg_status name(tg_call *c) { return same(c) == TG_OK ? (expr) : tg_ctx_status(c->ctx); }
CALL(role_beyond, tg_call_role(c, 1, 0, 0))
CALL(role_before, tg_call_role(c, -1, 0, 0))
CALL(role_of_no_dim, tg_call_role(c, 0, 8, 0))
CALL(role_to_no_dim, tg_call_role(c, 0, 0, 8))
CALL(role_unknown, tg_call_role(c, 0, 0, -3))
CALL(role_too_far, tg_call_role(c, 0, 0, 5))
CALL(convert_null, tg_call_convert(c, 0, TG_I, 0, TG_R, NULL, "remedy"))

static tg_status five_sets(tg_call *c) {
    TG_TRY(same(c));
    for (int i = 0; i < 4; i++) TG_TRY(tg_call_linear(c, 1));
    return tg_call_linear(c, 1);
}

static bool refused(misuse_world *b, tg_status (*infer)(tg_call *c)) {
    tg_op op = {.size = sizeof op, .name = "probe", .n_in = 1, .n_out = 1, .infer = infer, .forward = fill,
                .family = TG_FAMILY_CUSTOM};
    tg_tensor *y, *x = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 3));
    tg_place(P, x, TG_TP, TG_SHARD(0));
    tg_apply(b->t, &op, NULL, &x, 1, &y, 1, NULL, NULL, TG_SITE);
    tg_drop(x);
    return misuse_inert(y);
}

static void stated(misuse_world *b) {
    QUIET(tg_call_role, tg_call_role(NULL, 0, 0, 0) == TG_ERR_ARGUMENT);
    QUIET(tg_call_linear, tg_call_linear(NULL, 1) == TG_ERR_ARGUMENT);
    QUIET(tg_call_convert, tg_call_convert(NULL, 0, TG_I, 0, TG_R, NULL, NULL) == TG_ERR_ARGUMENT);
    GIVES(tg_call_role, ARGUMENT, "input is 1, dim 0 and role 0", refused(b, role_beyond));
    GIVES(tg_call_role, ARGUMENT, "input is -1, dim 0 and role 0", refused(b, role_before));
    GIVES(tg_call_role, ARGUMENT, "input is 0, dim 8 and role 0", refused(b, role_of_no_dim));
    GIVES(tg_call_role, ARGUMENT, "input is 0, dim 0 and role 8", refused(b, role_to_no_dim));
    GIVES(tg_call_role, ARGUMENT, "input is 0, dim 0 and role -3", refused(b, role_unknown));
    GIVES(tg_call_role, INTERNAL, "becomes dim 5 of 2", refused(b, role_too_far));
    GIVES(tg_call_linear, ARGUMENT, "an op may state at most 4 sets of inputs", refused(b, five_sets));
    GIVES(tg_call_convert, ARGUMENT, "the communicator is NULL", refused(b, convert_null));
}

void misuse_placement(misuse_world *b) {
    tg_comm *world = tg_comm_plan_new(b->ctx, 0, 2);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    declared(b);
    parameters(b);
    read_off(b);
    reshaped(b);
    assumed(b);
    stated(b);
    tg_parallel_free(p);
    tg_comm_free(world);
}
