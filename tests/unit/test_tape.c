/* Lifetimes: scopes, discards, keep, several tapes, and recomputation. */
#include "world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/extend.h>
#include <tapegrad/tapegrad.h>
#include <tapegrad/explain.h>

#include "base/text.h"
#include "core/context.h"
#include "kernels/cpu/cpu.h"

static int64_t live(void) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m.live;
}

START_TEST(a_scope_discards_unkept_tensors) {
    begin();
    tg_tensor *p = tg_param_new(ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(100), 1),
              *x = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(100), 1);
    int64_t before = live();
    tg_scope_open(t, "layer");
    tg_tensor *a = tg_add(t, p, x), *b = tg_neg(t, a), *c = tg_exp(t, b), *y = tg_add(t, c, x);
    tg_scope_close(t, &y, 1);
    /* exp saves its output; y is the output; a and b are discarded */
    ck_assert(tg_storage_state_of(a) == TG_DISCARDED && tg_storage_state_of(b) == TG_DISCARDED);
    ck_assert(tg_storage_state_of(c) == TG_PRESENT && tg_storage_state_of(y) == TG_PRESENT);
    ck_assert_int_eq(live() - before, 2 * 832);
    ck_assert_int_eq(tg_dim(a, 0), 100); /* the handle and its shape remain */
    double v[100];
    ck_assert(tg_read(a, v, sizeof v) == TG_ERR_DISCARDED);
    ck_says("tg_scope_close");
    tg_ctx_clear(ctx);
    tg_neg(t, a);
    ck_status(TG_ERR_DISCARDED);
    tg_ctx_clear(ctx);
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    ck_assert(tg_storage_state_of(c) == TG_DISCARDED); /* freed by backward */
    char site[256];
    tg_node_site(tg_node_of(y), site, sizeof site);
    ck_assert(strncmp(site, "layer, ", 7) == 0);
    tg_tape_reset(t);
    ck_assert_int_eq(live(), before + 832); /* the gradient */
    end();
}
END_TEST

START_TEST(views_of_outputs_and_outer_tensors_survive_a_scope) {
    begin();
    tg_tensor *x = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 1), *outer = tg_neg(t, x);
    tg_scope_open(t, NULL);
    tg_tensor *y = tg_square(t, outer), *v = tg_transpose(t, y, 0, 1);
    tg_scope_open(t, "inner");
    tg_tensor *z = tg_neg(t, v), *kept = tg_keep(z);
    tg_scope_close(t, NULL, 0);
    tg_scope_close(t, &v, 1);
    ck_assert(tg_storage_state_of(y) == TG_PRESENT && tg_storage_state_of(outer) == TG_PRESENT);
    tg_tape_reset(t);
    ck_assert(tg_is_alive(kept) && tg_dim(kept, 0) == 3);
    double v6[6];
    ck_assert(tg_read(kept, v6, sizeof v6) == TG_OK);
    tg_drop(kept);
    ck_assert(tg_scope_close(t, NULL, 0) == TG_ERR_STATE);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

static tg_status refill(void *user, tg_ctx *c, void *dst, size_t bytes) {
    const double sevens[] = {7, 7, 7, 7, 7, 7, 7, 7};
    ++*(int *)user;
    return bytes == sizeof sevens ? poke(c, dst, sevens, bytes) : TG_ERR_INTERNAL;
}

START_TEST(discards_and_refills) {
    begin();
    tg_tensor *x = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(8), 1), *y = tg_neg(t, x);
    int fills = 0;
    ck_assert(tg_discard_with(y, refill, NULL, &fills) == TG_OK);
    ck_assert(tg_storage_state_of(y) == TG_DISCARDED);
    ck_assert(tg_item(tg_sum(t, y, TG_ALL_DIMS, false)) == 56);
    ck_assert_int_eq(fills, 1);
    tg_tensor *p = tg_param_new(ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(8), 1), *e = tg_exp(t, p);
    ck_assert(tg_discard(e) == TG_ERR_STATE);
    ck_says("saved");
    tg_ctx_clear(ctx);
    ck_assert(tg_discard(p) == TG_ERR_STATE);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(parameters_collect_gradients_of_several_tapes) {
    begin();
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1),
              *x = tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(3), 1);
    tg_tape *s[4];
    tg_tensor *mid[4], *in[4], *out[4];
    for (int i = 0; i < 4; i++) { /* two stages, four micro-batches */
        s[i] = tg_tape_new(ctx);
        mid[i] = tg_mul(t, x, w);
        in[i] = tg_tape_input(s[i], mid[i]);
        out[i] = tg_sum(s[i], tg_square(s[i], in[i]), TG_ALL_DIMS, false);
    }
    for (int i = 3; i >= 0; i--) {
        tg_backward(s[i], out[i]);
        tg_tensor *g = tg_grad_of(in[i]);
        tg_backward_with(t, &mid[i], 1, TG_BACKWARD(.seeds = &g));
        tg_tape_free(s[i]);
        ck_assert(!tg_is_alive(out[i]));
    }
    double g[3], a[3], b[3];
    tg_read(tg_grad_of(w), g, sizeof g);
    tg_read(x, a, sizeof a);
    tg_read(w, b, sizeof b);
    for (int i = 0; i < 3; i++) ck_assert_double_eq_tol(g[i], 4 * 2 * a[i] * a[i] * b[i], 1e-12);
    end();
}
END_TEST

START_TEST(a_parameter_dropped_too_early_is_kept_for_its_nodes) {
    begin();
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1),
              *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(3), 1);
    tg_tensor *y = tg_sum(t, tg_mul(t, w, x), TG_ALL_DIMS, false);
    tg_drop(w);
    ck_assert(!tg_is_alive(w));
    ck_assert(tg_backward(t, y) == TG_OK);
    ck_assert(tg_has_grad(x));
    tg_tape_reset(t);
    end();
}
END_TEST

START_TEST(a_gradient_is_kept_for_its_nodes_when_its_leaf_ends) {
    begin();
    tg_tape *u = tg_tape_new(ctx);
    tg_tensor *p = leaf(3), *w = leaf(5);
    tg_backward(t, tg_square(t, p));
    tg_tape_reset(t);
    tg_tensor *g = tg_grad_of(p), *y = tg_mul(t, g, w);
    tg_drop(p);
    ck_assert(!tg_is_alive(g));
    for (int i = 0; i < 200; i++) leaf(100); /* which would get its slot */
    tg_backward(t, y);
    ck_assert(grad(w) == 6);
    tg_tape_reset(t);
    tg_tensor *in = tg_tape_input(t, w); /* its gradient ends with t */
    tg_backward(t, tg_square(t, in));
    y = tg_mul(u, tg_grad_of(in), w);
    tg_tape_reset(t);
    for (int i = 0; i < 200; i++) leaf(100);
    tg_zero_grad(w);
    tg_backward(u, y);
    ck_assert(grad(w) == 10);
    int64_t before = live();
    tg_tape_free(u);
    ck_assert_int_lt(live(), before);
    end();
}
END_TEST

START_TEST(tensors_taken_over_in_place_are_no_longer_saved) {
    begin();
    tg_tensor *w = leaf(1), *v = leaf(2), *b = tg_add_(t, tg_exp(t, w), v), *kept = tg_keep(b);
    ck_assert(tg_discard(b) == TG_OK); /* exp had saved the earlier value */
    tg_drop(kept);
    b = tg_relu_(t, tg_exp(t, w));
    kept = tg_keep(b);
    ck_assert(tg_discard(b) == TG_ERR_STATE); /* relu_ has saved it */
    ck_says("saved");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    ck_assert(tg_discard(kept) == TG_OK);
    end();
}
END_TEST

START_TEST(a_scope_has_its_own_copy_of_its_name) {
    begin();
    char name[] = "layer", site[256];
    tg_scope_open(t, name);
    tg_tensor *y = tg_neg(t, leaf(1));
    tg_scope_close(t, &y, 1);
    memset(name, 'z', sizeof name - 1);
    tg_node_site(tg_node_of(y), site, sizeof site);
    ck_assert_msg(strncmp(site, "layer, ", 7) == 0, "%s", site);
    end();
}
END_TEST

/* ---- Recomputation ---- */

typedef struct fn_state {
    tg_tensor *w;
    int runs;
    double dropout;
    bool grows;
    struct fn_state *inner; /* recomputed within this one */
} fn_state;

static tg_status block(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    fn_state *s = state;
    s->runs++;
    tg_tensor *h = tg_exp(tape, tg_mul(tape, in[0], s->w));
    if (s->dropout > 0) h = tg_dropout(tape, h, s->dropout);
    if (s->grows && s->runs > 1) h = tg_reshape(tape, h, TG_SHAPE(1, -1));
    if (s->inner) {
        tg_tensor *deeper;
        tg_recompute(tape, block, s->inner, &h, 1, &deeper, 1, NULL);
        h = deeper;
    }
    out[0] = tg_square(tape, h);
    return TG_OK;
}

static double run_block(fn_state *s, tg_tensor *x, tg_tensor *w, bool recompute, double *gx, double *gw) {
    tg_rng rng;
    tg_rng_get(ctx, NULL, &rng);
    tg_zero_grad(w);
    if (tg_requires_grad(x)) tg_zero_grad(x);
    tg_tensor *y;
    for (fn_state *at = s; at; at = at->inner) at->w = w;
    if (recompute)
        tg_recompute(t, block, s, &x, 1, &y, 1, TG_RECOMPUTE(.name = "block"));
    else
        block(s, t, &x, 1, &y, 1);
    tg_tensor *loss = tg_sum(t, tg_mul(t, y, w), TG_ALL_DIMS, false); /* w again, outside of the function */
    double value = tg_item(loss);
    tg_backward(t, loss);
    tg_read(tg_grad_of(w), gw, 4 * sizeof *gw);
    if (gx) tg_read(tg_grad_of(x), gx, 4 * sizeof *gx);
    tg_tape_reset(t);
    tg_rng_set(ctx, NULL, &rng);
    return value;
}

static void same_with_and_without(fn_state *s, bool frozen) {
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(4), 0.3),
              *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(4), 0.3);
    tg_set_requires_grad(x, !frozen);
    double gx[2][4] = {{0}}, gw[2][4];
    double a = run_block(s, x, w, false, frozen ? NULL : gx[0], gw[0]);
    double b = run_block(s, x, w, true, frozen ? NULL : gx[1], gw[1]);
    ck_status(TG_OK);
    ck_assert(a == b);
    ck_assert(memcmp(gx[0], gx[1], sizeof gx[0]) == 0);
    for (int i = 0; i < 4; i++) ck_assert(fabs(gw[0][i] - gw[1][i]) <= 1e-14 * fabs(gw[0][i]));
}

START_TEST(recomputed_gradients_are_the_same) {
    begin();
    same_with_and_without(&(fn_state){0}, false);
    same_with_and_without(&(fn_state){0}, true);
    same_with_and_without(&(fn_state){.dropout = 0.5}, false);
    fn_state deep = {0}, middle = {.inner = &deep}, outer = {.inner = &middle};
    same_with_and_without(&outer, false);
    outer.dropout = middle.dropout = deep.dropout = 0.3;
    same_with_and_without(&outer, false);
    end();
}
END_TEST

START_TEST(recomputation_saves_only_its_inputs) {
    begin();
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(1000), 0.1),
              *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(1000), 0.1), *y;
    fn_state s = {.w = w};
    int64_t before = live();
    tg_recompute(t, block, &s, &x, 1, &y, 1, NULL);
    ck_assert_int_eq(live() - before, 8000); /* only the output */
    ck_assert_int_eq(tg_node_inputs(tg_node_of(y)), 2);
    ck_assert(tg_node_input(tg_node_of(y), 1) == w);
    end();
}
END_TEST

/* Sets all outputs in as many runs as *state says, and then only the first one. */
static tg_status forgets(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    int *left = state;
    (void)n_in;
    out[0] = tg_exp(tape, in[0]);
    for (int i = 1; i < n_out && *left > 0; i++) out[i] = out[0];
    --*left;
    return TG_OK;
}

START_TEST(outputs_that_are_not_set_are_refused) {
    begin();
    tg_tensor *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(4, 4), 0.1), *y[8];
    for (int runs = 3; runs >= 0; runs--) { /* later inner tapes use the memory of earlier ones */
        int left = runs;
        tg_status s = tg_recompute(t, forgets, &left, &x, 1, y, runs > 1 ? 1 : 8, NULL);
        ck_assert((s == TG_OK) == (runs > 0));
        if (s == TG_OK) s = tg_backward(t, tg_sum(t, y[0], TG_ALL_DIMS, false));
        ck_assert((s == TG_OK) == (runs > 1));
        if (s != TG_OK) ck_says("recompute: output 1 of the function: the tensor is NULL");
        tg_ctx_clear(ctx);
        tg_tape_reset(t);
    }
    end();
}
END_TEST

START_TEST(a_second_run_that_differs_is_found) {
    begin();
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(4), 0.1),
              *x = tg_param_new(ctx, "x", TG_DTYPE_DEFAULT, TG_SHAPE(4), 0.1), *y;
    fn_state s = {.w = w, .grows = true};
    tg_recompute(t, block, &s, &x, 1, &y, 1, TG_RECOMPUTE(.name = "grower"));
    tg_tensor *loss = tg_sum(t, y, TG_ALL_DIMS, false);
    ck_assert(tg_backward(t, loss) == TG_ERR_SHAPE);
    ck_says("grower");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    s = (fn_state){.w = w, .dropout = 0.5};
    tg_recompute(t, block, &s, &x, 1, &y, 1,
                 TG_RECOMPUTE(.keep_rng = true)); /* draws other masks, which check mode reports */
    ck_assert(tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false)) == TG_ERR_STATE);
    ck_says("bits");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

START_TEST(a_dump_names_ops_shapes_and_sites) {
    begin();
    tg_tensor *w = tg_param_new(ctx, "weights", TG_DTYPE_DEFAULT, TG_SHAPE(4), 0.1);
    tg_tape_set_timing(t, true);
    tg_backward_with(t, (tg_tensor *[]){tg_sum(t, tg_exp(t, w), TG_ALL_DIMS, false)}, 1, TG_BACKWARD(.retain = true));
    char text[4096], json[4096];
    size_t n = tg_tape_dump(t, TG_TEXT, text, sizeof text), m = tg_tape_dump(t, TG_JSON, json, sizeof json);
    ck_assert(n == strlen(text) && m == strlen(json));
    ck_assert(strstr(text, "exp") && strstr(text, "weights f64[4]") && strstr(text, "sum"));
    ck_assert(strstr(json, "\"op\": \"exp\"") && strstr(json, "\"saved_bytes\": 32"));
    ck_assert(tg_tape_dump(t, TG_TEXT, NULL, 0) == n);
    char dot[4096];
    ck_assert(tg_tape_dump(t, TG_DOT, dot, sizeof dot) == strlen(dot));
    ck_assert_msg(strstr(dot, "shape=ellipse, label=\"weights f64[4]\"") && strstr(dot, "label=\"exp\\nf64[4]\""), "%s",
                  dot);
    int edges = 0;
    for (const char *at = dot; (at = strstr(at, " -> ")); at++) edges++;
    ck_assert_int_eq(edges, 2);
    end();
}
END_TEST

/* Returns the number after the first `key` at or after `at`. */
static unsigned long long number_after(const char *at, const char *key) {
    at = strstr(at, key);
    ck_assert(at);
    return strtoull(at + strlen(key), NULL, 10);
}

START_TEST(json_lists_the_edges_of_the_graph_in_utf8) {
    begin();
    static char json[8192], dot[8192];
    tg_tensor *w = tg_param_new(ctx, "caf\xC3\xA9 caf\xE9 \xF0\x9F", TG_DTYPE_DEFAULT, TG_SHAPE(4), 0.1);
    tg_tensor *d = tg_param_new(ctx, "d", TG_DTYPE_DEFAULT, TG_SHAPE(4), 0.1);
    tg_tensor *e = tg_exp(t, w),
              *y = tg_mul(t, tg_mul(t, e, d), tg_param_new(ctx, "f", TG_DTYPE_DEFAULT, TG_SHAPE(4), 0.1));
    tg_drop(d); /* it has no serial number any more */
    ck_assert(tg_is_alive(y) && tg_tape_dump(t, TG_JSON, json, sizeof json) == strlen(json));
    ck_assert_msg(strstr(json, "caf\xC3\xA9 caf\\ufffd \\ufffd\\ufffd"), "%s", json);
    ck_assert(tg_utf8_check(json, strlen(json)) == strlen(json));
    const char *exp_row = strstr(json, "\"op\": \"exp\""), *mul_row = strstr(json, "\"op\": \"mul\"");
    ck_assert(exp_row && mul_row);
    const char *made = strstr(exp_row, "\"outputs\"");
    ck_assert(number_after(json, "\"id\": ") == number_after(exp_row, "\"id\": ")); /* w, a leaf, and exp's input */
    ck_assert(number_after(made, "\"id\": ") == number_after(mul_row, "\"id\": "));
    unsigned long long dropped = number_after(strstr(mul_row, "}, {"), "\"id\": ");
    ck_assert(dropped > 1);
    ck_assert(tg_tape_dump(t, TG_DOT, dot, sizeof dot) == strlen(dot));
    ck_assert_msg(strstr(dot, "caf\xC3\xA9 caf\xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD f64[4]"), "%s", dot);
    ck_assert(tg_utf8_check(dot, strlen(dot)) == strlen(dot));
    end();
}
END_TEST

START_TEST(the_report_names_the_peak) {
    begin();
    tg_memory_set_trace(ctx, true);
    tg_tensor *w = tg_param_new(ctx, "big.weight", TG_DTYPE_DEFAULT, TG_SHAPE(100000), 0.1);
    tg_backward(t, tg_sum(t, tg_exp(t, w), TG_ALL_DIMS, false));
    char text[16384];
    ck_assert(tg_memory_report(ctx, text, sizeof text) < sizeof text);
    ck_assert_msg(strstr(text, "big.weight") && strstr(text, "exp") && strstr(text, "called from"), "%s", text);
    ck_assert_msg(!strstr(text, "other blocks"), "%s", text);
    end();
}
END_TEST

/* The same as JSON: brackets and quotation marks are even in number, and the texts are there. */
START_TEST(the_report_as_json_names_the_peak) {
    begin();
    char text[65536];
    ck_assert(tg_memory_json(ctx, text, sizeof text) < sizeof text);
    ck_assert_msg(strstr(text, "\"blocks\": []}"), "%s", text);
    tg_memory_set_trace(ctx, true);
    tg_tensor *w = tg_param_new(ctx, "big \"weight\"", TG_DTYPE_DEFAULT, TG_SHAPE(100000), 0.1);
    tg_scope_open(t, "layer");
    tg_tensor *y = tg_exp(t, w);
    tg_scope_close(t, &y, 1);
    tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    size_t n = tg_memory_json(ctx, text, sizeof text);
    ck_assert(n == strlen(text) && n == tg_memory_json(ctx, NULL, 0));
    ck_assert_msg(strstr(text, "\"category\": \"parameters\", \"name\": \"big \\\"weight\\\"\""), "%s", text);
    ck_assert_msg(strstr(text, "\"op\": \"exp\", \"scope\": \"layer\", \"site\": \""), "%s", text);
    int depth = 0, quotes = 0;
    for (const char *c = text; *c; c++) {
        quotes += *c == '"' && c[-1] != '\\';
        depth += quotes % 2 ? 0 : *c == '{' || *c == '[' ? 1 : *c == '}' || *c == ']' ? -1 : 0;
    }
    ck_assert_msg(depth == 0 && quotes % 2 == 0, "%s", text);
    end();
    tg_device_ops named = tg_cpu_device;
    named.name = "a \"device\"";
    ctx = tg_ctx_new_on(&named, TG_CONFIG(.threads = 1));
    tg_memory_json(ctx, text, sizeof text);
    ck_assert_msg(strstr(text, "{\"device\": \"a \\\"device\\\"\", \"live\": 0"), "%s", text);
    tg_ctx_free(ctx);
}
END_TEST

/* A name that does not fit is cut between two characters. */
START_TEST(places_in_the_report_are_whole_characters) {
    for (int n = 200; n <= 1400; n += 601) {
        begin();
        char name[3000] = "", text[65536];
        for (int i = 0; i < n; i++) strcat(name, i % 2 ? "\xc3\xa9" : "\xe2\x82\xac");
        tg_memory_set_trace(ctx, true);
        tg_tape_set_site(t, name, 7);
        tg_tensor *y = tg_exp(t, tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(100000), 0.1));
        tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
        ck_assert(tg_memory_json(ctx, text, sizeof text) < sizeof text);
        ck_assert_msg(strstr(text, "\xe2\x82\xac\xc3\xa9") && !strstr(text, "ufffd"), "%s", text);
        ck_assert(!strstr(text, "\xc3\xa9:7\"") == (n > 200));
        end();
    }
}
END_TEST

/* Sums the first number of each row after the heading; one row stands for everything smaller than the 40 largest. */
static int64_t sum_of_rows(const char *text, int *rows) {
    int64_t sum = 0;
    *rows = 0;
    for (const char *at = strstr(text, "alive near the peak"); at && (at = strchr(at, '\n')) && at[1] == ' ';) {
        long long bytes;
        at++;
        if (sscanf(at, "%lld", &bytes) == 1) sum += bytes, ++*rows;
    }
    return sum;
}

/* With and without more blocks than a trace can list. */
START_TEST(the_report_adds_up) {
    for (int n = 30; n <= 9000; n *= 300) {
        begin();
        tg_memory_set_trace(ctx, true);
        for (int i = 0; i < n; i++) tg_zeros(ctx, TG_F64, TG_SHAPE(1 + i % 7));
        tg_zeros(ctx, TG_F64, TG_SHAPE(1000000)); /* causes a peak before it is a tensor */
        tg_memory_info m = TG_MEMORY_INFO();
        tg_memory_query(ctx, &m);
        char text[16384];
        int rows;
        ck_assert(tg_memory_report(ctx, text, sizeof text) < sizeof text);
        ck_assert_int_eq(sum_of_rows(text, &rows), m.peak);
        ck_assert(strstr(text, "8000000  temporaries        (the allocation that reached the peak)") != NULL);
        ck_assert(strstr(text, "temporaries        (unnamed)") != NULL);
        ck_assert_msg(rows == (n >= 40 ? 41 : n + 1), "%d rows of %d: %s", rows, n, text);
        end();
    }
}
END_TEST

/* Device meta records products of any size, so their counts can exceed int64. */
START_TEST(a_count_of_flops_that_overflows_is_the_greatest_one) {
    tg_ctx *meta = tg_ctx_new(TG_CONFIG(.device = "meta"));
    tg_tape *on_meta = tg_tape_new(meta);
    const int64_t n = 1 << 22;
    tg_tensor *a = tg_zeros(meta, TG_BF16, TG_SHAPE(n, n / 2)), *b = tg_zeros(meta, TG_BF16, TG_SHAPE(n / 2, n));
    tg_matmul(on_meta, a, b);
    tg_einsum(on_meta, "ij,jk->ik", a, b);
    ck_assert_msg(tg_ctx_status(meta) == TG_OK, "%s", tg_ctx_message(meta));
    for (int64_t i = 0; i < tg_tape_nodes(on_meta); i++)
        ck_assert_msg(tg_node_flops(tg_tape_node(on_meta, i)) == INT64_MAX, "node %lld", (long long)i);
    tg_tape_free(on_meta);
    tg_ctx_free(meta);
}
END_TEST

/* Each element of a convolution's result y is a sum of products over c / groups channels and a window. The transposed
 * convolution of a tensor of y's shape has as many products. */
START_TEST(convolutions_and_transposed_ones_count_the_same_flops) {
    begin();
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(2, 4, 9, 7)), *w = tg_zeros(ctx, TG_F32, TG_SHAPE(6, 2, 3, 3));
    tg_tensor *y = tg_zeros(ctx, TG_F32, TG_SHAPE(2, 6, 4, 3));
    tg_set_requires_grad(x, true);
    tg_set_requires_grad(w, true);
    const tg_conv_opts *opts = TG_CONV(.stride = {2, 2, 1}, .groups = 2);
    tg_tensor *forth = tg_conv2d(t, x, w, NULL, opts), *back = tg_conv_transpose2d(t, y, w, NULL, opts);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert_int_eq(tg_node_flops(tg_node_of(forth)), 2 * (2 * 6 * 4 * 3) * 2 * 9);
    ck_assert_int_eq(tg_node_flops(tg_node_of(back)), 2 * (2 * 6 * 4 * 3) * 2 * 9);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_scope_discards_unkept_tensors,
                            views_of_outputs_and_outer_tensors_survive_a_scope,
                            discards_and_refills,
                            parameters_collect_gradients_of_several_tapes,
                            a_parameter_dropped_too_early_is_kept_for_its_nodes,
                            a_gradient_is_kept_for_its_nodes_when_its_leaf_ends,
                            tensors_taken_over_in_place_are_no_longer_saved,
                            a_scope_has_its_own_copy_of_its_name,
                            recomputed_gradients_are_the_same,
                            recomputation_saves_only_its_inputs,
                            outputs_that_are_not_set_are_refused,
                            a_second_run_that_differs_is_found,
                            a_count_of_flops_that_overflows_is_the_greatest_one,
                            convolutions_and_transposed_ones_count_the_same_flops,
                            a_dump_names_ops_shapes_and_sites,
                            json_lists_the_edges_of_the_graph_in_utf8,
                            the_report_names_the_peak,
                            the_report_as_json_names_the_peak,
                            places_in_the_report_are_whole_characters,
                            the_report_adds_up};
    return tg_check_main("tape", tests, sizeof tests / sizeof *tests);
}
