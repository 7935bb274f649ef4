/* The rules of tg_nn_self_attention: which options and calls are refused, positions of packed sequences, what the ranks
 * send, and the names of the parameters. */
#include "models/layers/heads.h"
#include "parallel/self_attention_cases.h"

#define MADE(...) tg_module_free(tg_nn_self_attention(p, HIDDEN, TG_SELF_ATTENTION(.heads = HEADS, __VA_ARGS__)))
#define LINEAR(...) .linear = TG_PARALLEL_LINEAR(__VA_ARGS__)

/* ---- Refusals ---- */

static tg_status refused_sizes(tg_ctx *ctx, const tg_parallel *p) {
    REFUSED(ctx, TG_ERR_ARGUMENT, "hidden is 0, expected 1 or more",
            tg_nn_self_attention(p, 0, TG_SELF_ATTENTION(.heads = HEADS)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "heads is 0, expected 1 or more", tg_nn_self_attention(p, HIDDEN, NULL));
    REFUSED(ctx, TG_ERR_ARGUMENT, "kv_heads is 0, expected 1 or more", MADE(.kv_heads = 0));
    REFUSED(ctx, TG_ERR_ARGUMENT, "head_dim is 0, expected 1 or more", MADE(.head_dim = 0));
    REFUSED(ctx, TG_ERR_ARGUMENT, "v_dim is 0, expected 1 or more", MADE(.v_dim = 0));
    REFUSED(ctx, TG_ERR_SHAPE, "heads is 4 and kv_heads is 3; kv_heads must divide heads", MADE(.kv_heads = 3));
    REFUSED(ctx, TG_ERR_SHAPE, "hidden is 9 and heads is 4; set head_dim",
            tg_nn_self_attention(p, 9, TG_SELF_ATTENTION(.heads = HEADS)));
    REFUSED(ctx, TG_ERR_SHAPE, "head_dim is 3, but rope_base rotates pairs", MADE(.head_dim = 3, .rope_base = 10));
    return tg_ctx_status(ctx);
}

static tg_status refused_numbers(tg_ctx *ctx, const tg_parallel *p) {
    REFUSED(ctx, TG_ERR_ARGUMENT, "left is -2, expected 0 or more", MADE(.left = -2));
    REFUSED(ctx, TG_ERR_ARGUMENT, "scale is -3, expected a finite number", MADE(.scale = -3));
    REFUSED(ctx, TG_ERR_ARGUMENT, "dropout is 1, expected 0 or more and less than 1", MADE(.dropout = 1));
    REFUSED(ctx, TG_ERR_ARGUMENT, "softcap is 0, expected a finite number above 0", MADE(.softcap = 0));
    REFUSED(ctx, TG_ERR_ARGUMENT, "rope_base is 0, expected a finite number above 0", MADE(.rope_base = 0));
    REFUSED(ctx, TG_ERR_ARGUMENT, "norm_eps is -1, expected a finite number", MADE(.qk_norm = true, .norm_eps = -1));
    REFUSED(ctx, TG_ERR_ARGUMENT, "norm_eps is 0.5, but qk_norm is false", MADE(.norm_eps = 0.5));
    REFUSED(ctx, TG_ERR_ARGUMENT, "rope_base is 10, but cross is set", MADE(.cross = true, .rope_base = 10));
    REFUSED(ctx, TG_ERR_ARGUMENT, "cp_kind is set, but with cross", MADE(.cross = true, .cp_kind = TG_CP_GATHER));
    REFUSED(ctx, TG_ERR_ARGUMENT, "cp_inner is set, but with cross", MADE(.cross = true, .cp_inner = 1));
    REFUSED(ctx, TG_ERR_ARGUMENT, "cp_kind is 9, expected TG_CP_RING", MADE(.cp_kind = (tg_cp_kind)9));
    REFUSED(ctx, TG_ERR_ARGUMENT, "cp_inner is 3 and cp is", MADE(.cp_kind = TG_CP_HIERARCHY, .cp_inner = 3));
    REFUSED(ctx, TG_ERR_ARGUMENT, "cp_inner is 1 and cp is", MADE(.cp_inner = 1));
    return tg_ctx_status(ctx);
}

static tg_status refused_linears(tg_ctx *ctx, const tg_parallel *p) {
    tg_tensor *w = tg_zeros(ctx, TG_F64, TG_SHAPE(2, 2));
    REFUSED(ctx, TG_ERR_ARGUMENT, "linear sets no_bias, which the layer sets itself", MADE(LINEAR(.no_bias = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "linear sets strides,", MADE(LINEAR(.strides = 3)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "linear sets gather_output,", MADE(LINEAR(.gather_output = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "linear sets input_is_whole,", MADE(LINEAR(.input_is_whole = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "linear sets skip_bias_add,", MADE(LINEAR(.skip_bias_add = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "linear sets axis,", MADE(LINEAR(.axis = TG_DP)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "linear sets sequence_parallel,", MADE(LINEAR(.sequence_parallel = 0)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "linear sets weight,", MADE(LINEAR(.weight = w)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "linear sets no_weight,", MADE(LINEAR(.no_weight = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "linear sets no_dgrad_reduce,", MADE(LINEAR(.no_dgrad_reduce = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "linear sets expert,", MADE(LINEAR(.expert = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "out_linear sets no_bias,",
            MADE(.out_linear = TG_PARALLEL_LINEAR(.no_bias = true)));
    return tg_ctx_status(ctx);
}

static tg_status refused_calls(tg_ctx *ctx, const tg_parallel *p) {
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(S, B, HIDDEN)), *thin = tg_zeros(ctx, TG_F64, TG_SHAPE(S, B, 3)), *y;
    tg_tensor *three[] = {x, x, x}, *none[] = {x, NULL}, *narrow[] = {x, thin};
    tg_module *own = tg_nn_self_attention(p, HIDDEN, TG_SELF_ATTENTION(.heads = HEADS));
    tg_module *cross = tg_nn_self_attention(p, HIDDEN, TG_SELF_ATTENTION(.heads = HEADS, .cross = true));
    REFUSED(ctx, TG_ERR_SHAPE, "called with 3 inputs and 1 outputs, expected x or x and starts",
            tg_module_call(own, t, three, 3, &y, 1));
    REFUSED(ctx, TG_ERR_SHAPE, "called with 1 inputs and 1 outputs, expected x and memory",
            tg_module_call(cross, t, three, 1, &y, 1));
    REFUSED(ctx, TG_ERR_SHAPE, "x is f64[8, 2, 3], expected [sequence, batch, 8]", tg_module_forward(own, t, thin));
    REFUSED(ctx, TG_ERR_SHAPE, "memory is NULL, expected", tg_module_call(cross, t, none, 2, &y, 1));
    REFUSED(ctx, TG_ERR_SHAPE, "memory is f64[8, 2, 3], expected", tg_module_call(cross, t, narrow, 2, &y, 1));
    tg_module_free(own);
    tg_module_free(cross);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

static tg_status refused_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    RUN(refused_sizes(ctx, p));
    RUN(refused_numbers(ctx, p));
    RUN(refused_linears(ctx, p));
    RUN(refused_calls(ctx, p));
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(wrong_options_and_calls_are_refused) { on_ranks(1, refused_rank, NULL); }
END_TEST

static tg_status refused_heads(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world)));
    REFUSED(ctx, TG_ERR_SHAPE, "heads is 4, expected a multiple of the 3 ranks of tp", MADE(.kv_heads = 4));
    REFUSED(ctx, TG_ERR_SHAPE, "kv_heads is 2, expected a multiple or a divisor of the 3 ranks",
            tg_nn_self_attention(p, 12, TG_SELF_ATTENTION(.heads = 6, .kv_heads = 2)));
    REFUSED(ctx, TG_ERR_SHAPE, "out is 10, expected a multiple of the 3 ranks",
            tg_nn_self_attention(p, 6, TG_SELF_ATTENTION(.heads = 6, .kv_heads = 1, .v_dim = 3)));
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(heads_that_ranks_cannot_divide_are_refused) { on_ranks(3, refused_heads, NULL); }
END_TEST

static tg_status refused_sequences(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = 2));
    REFUSED(ctx, TG_ERR_UNSUPPORTED, "causal is set with cross, but the 2 ranks of cp divide the queries",
            MADE(.cross = true, .causal = true));
    REFUSED(ctx, TG_ERR_UNSUPPORTED, "left is set with cross, but", MADE(.cross = true, .left = 0));
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(positions_that_divided_sequences_hide_are_refused) { on_ranks(2, refused_sequences, NULL); }
END_TEST

/* ---- Positions ---- */

/* Rotates a rank's rows of sequences of 4, 12, 0 and 8 rows, and compares them with rows rotated by hand. */
static tg_status positions_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    enum { M = 4, ROWS = 24 };
    const int64_t starts[M + 1] = {0, 4, 16, 16, ROWS};
    int64_t rows[ROWS], n = ROWS / tg_comm_size(world);
    double ones[ROWS * 2], a[ROWS * 2], b[ROWS * 2];
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = tg_comm_size(world)));
    tg_tape *t = tg_tape_new(ctx);
    RUN(tg_context_cut(starts, M, tg_comm_size(world), tg_comm_rank(world), rows));
    for (int64_t i = 0; i < n; i++) {
        int s = 0;
        while (rows[i] >= starts[s + 1]) s++;
        rows[i] -= starts[s];
        ones[2 * i] = ones[2 * i + 1] = 1;
    }
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1, 1, n, 2), ones), *qk[] = {x, x};
    tg_tensor *at = tg_from_host(ctx, TG_I64, TG_SHAPE(n), rows);
    tg_tensor *s = tg_from_host(ctx, TG_I64, TG_SHAPE(M + 1), starts);
    tg_place(p, x, TG_CP, TG_SHARD_ZIGZAG(2));
    tg_place(p, at, TG_CP, TG_SHARD_ZIGZAG(0));
    tg_place(p, s, TG_CP, TG_I);
    tg_heads_rotate(t, qk, TG_ROPE(.base = BASE), s, p);
    RUN(tg_read_f64(tg_rope_at(t, x, at, BASE), a, 2 * n));
    for (int i = 0; i < 2; i++) {
        RUN(tg_read_f64(qk[i], b, 2 * n));
        EXPECT(ctx, !memcmp(a, b, (size_t)(2 * n) * sizeof *a));
    }
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(rows_of_packed_sequences_have_their_own_positions) { on_ranks(2, positions_rank, NULL); }
END_TEST

/* ---- What is sent ---- */

typedef struct count_row {
    attention_case c;
    bool sp;
    int64_t calls[3], bytes[3]; /* forward: all-reduces, all-gathers, reduce-scatters */
    int64_t all_calls[3];       /* with backward */
} count_row;

static const tg_collective kinds[] = {TG_ALL_REDUCE, TG_ALL_GATHER, TG_REDUCE_SCATTER};

static tg_status count_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const count_row *r = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 4, .sequence_parallel = r->sp));
    attention_rows rows = attention_rows_of(p, &r->c);
    tg_module *m = attention_new(p, &r->c, &(attention_grid){0});
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(attention_place(p, attention_input(ctx, 1, B, rows.row, rows.n), true));
    tg_tensor *seed = attention_place(p, attention_input(ctx, 2, B, rows.row, rows.n), true), *y;
    tg_tensor *memory = attention_place(p, attention_input(ctx, 3, B, rows.row, MEMORY / (r->sp ? 4 : 1)), false);
    tg_tensor *in[] = {x, grad_leaf(memory)};
    tg_comm_info before = TG_COMM_INFO(), forward = TG_COMM_INFO(), all = TG_COMM_INFO();
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    RUN(tg_comm_query(tp, &before));
    RUN(tg_module_call(m, t, in, r->c.cross ? 2 : 1, &y, 1));
    RUN(tg_comm_query(tp, &forward));
    tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &seed));
    RUN(tg_comm_query(tp, &all));
    for (int i = 0; i < 3; i++) {
        int k = kinds[i];
        EXPECT(ctx, forward.calls[k] - before.calls[k] == r->calls[i]);
        EXPECT(ctx, forward.bytes[k] - before.bytes[k] == r->bytes[i] * (int64_t)sizeof(double));
        EXPECT(ctx, all.calls[k] - before.calls[k] == r->all_calls[i]);
    }
    tg_tape_free(t);
    tg_module_free(m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(ranks_send_what_parallel_md_says) {
    enum { X = S * B * HIDDEN, FEW = S * B * (HEADS * DK + 2 * 2 * DK) };
    enum { M = MEMORY * B * HIDDEN, FEW_OF_MEMORY = MEMORY * B * 2 * 2 * DK };
    static const count_row rows[] = {
        {.c = {.kv = 4}, .calls = {1, 0, 0}, .bytes = {X, 0, 0}, .all_calls = {2, 0, 0}},
        {.c = {.kv = 4}, .sp = true, .calls = {0, 1, 1}, .bytes = {0, X, X}, .all_calls = {0, 3, 2}},
        {.c = {.kv = 2}, .calls = {1, 1, 0}, .bytes = {X, FEW, 0}, .all_calls = {2, 1, 1}},
        {.c = {.kv = 2}, .sp = true, .calls = {0, 2, 1}, .bytes = {0, X + FEW, X}, .all_calls = {0, 4, 3}},
        {.c = {.kv = 4, .cross = 1}, .calls = {1, 0, 0}, .bytes = {X, 0, 0}, .all_calls = {3, 0, 0}},
        {.c = {.kv = 4, .cross = 1}, .sp = true, .calls = {0, 2, 1}, .bytes = {0, X + M, X}, .all_calls = {0, 5, 3}},
        {.c = {.kv = 2, .cross = 1}, .calls = {1, 1, 0}, .bytes = {X, FEW_OF_MEMORY, 0}, .all_calls = {3, 1, 1}},
    };
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) on_ranks(4, count_rank, (void *)&rows[i]);
}
END_TEST

/* ---- Names ---- */

static tg_status names_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    const attention_case c[] = {{.kv = 2, .bias = 1, .out_bias = 1, .norm = 1, .sink = 1},
                                {.kv = 2, .bias = 1, .out_bias = 1, .norm = 1, .sink = 1, .cross = 1}};
    const char *says[] = {"qkv.weight [16, 8], qkv.bias [16], q_norm.weight [2], k_norm.weight [2], sink [4], "
                          "out.weight [8, 8], out.bias [8], ",
                          "q.weight [8, 8], q.bias [8], kv.weight [8, 8], kv.bias [8], q_norm.weight [2], "
                          "k_norm.weight [2], sink [4], out.weight [8, 8], out.bias [8], "};
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world)));
    for (int k = 0; k < 2; k++) {
        char text[512] = "";
        size_t n = 0;
        tg_module *m = attention_new(p, &c[k], &(attention_grid){0});
        for (int i = 0; i < tg_module_param_count(m); i++) {
            const char *path;
            tg_shape s = tg_global_shape(tg_module_param(m, i, &path));
            n += (size_t)snprintf(text + n, sizeof text - n, s.ndim == 1 ? "%s [%lld], " : "%s [%lld, %lld], ", path,
                                  (long long)s.dim[0], (long long)s.dim[1]);
        }
        if (strcmp(text, says[k])) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the parameters are %s", text);
        tg_module_free(m);
    }
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(parameters_have_the_same_names_and_shapes_for_any_ranks) {
    for (int tp = 1; tp <= 4; tp *= 2) on_ranks(tp, names_rank, NULL);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {wrong_options_and_calls_are_refused, heads_that_ranks_cannot_divide_are_refused,
                                  positions_that_divided_sequences_hide_are_refused,
                                  rows_of_packed_sequences_have_their_own_positions,
                                  ranks_send_what_parallel_md_says,
                                  parameters_have_the_same_names_and_shapes_for_any_ranks};
    return tg_check_main("self_attention_rules", tests, sizeof tests / sizeof *tests);
}
