/* What a zero in a field of options means: zero, or an error that says what was expected. Every number whose default is
 * not 0 has a probe, which sets the field to 0 and uses the options. */
#include <math.h>
#include <string.h>

#include <tapegrad/context_parallel.h>
#include <tapegrad/tensor_parallel.h>

#include "check_main.h"
#include "gradcheck/difference.h"
#include "option_zeros.h"

tg_ctx *ctx;
tg_tape *t;
char says[2048];

/* ---- Contexts ---- */

static bool config(const void *o) {
    tg_ctx *made = tg_ctx_new(o);
    snprintf(says, sizeof says, "%s", tg_ctx_message(made));
    tg_ctx_free(made);
    return false;
}

/* ---- Ops ---- */

bool reads(tg_tensor *x, int n, const double *want) {
    double got[8];
    if (tg_read_f64(x, got, n) != TG_OK) return false;
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-12)) return false;
    return true;
}

tg_tensor *of(tg_shape shape, const double *v) { return tg_from_host(ctx, TG_F64, shape, v); }

/* Three queries and keys of one number; the results are the values that a query sees, weighed by softmax. */
static tg_tensor *attention(const void *o) {
    const double q[] = {1, 2, 3}, v[] = {3, 6, 9};
    tg_tensor *x = of(TG_SHAPE(1, 1, 3, 1), q);
    return tg_attention(t, x, x, of(TG_SHAPE(1, 1, 3, 1), v), o);
}
static bool scores_are_zero(const void *o) { return reads(attention(o), 3, (const double[]){6, 6, 6}); }
static bool scores_have_no_room(const void *o) {
    attention(o);
    return false;
}
static bool no_keys_before(const void *o) {
    double got[3];
    return tg_read_f64(attention(o), got, 3) == TG_OK && fabs(got[2] - 9) < 1e-12;
}
static bool no_keys_after(const void *o) {
    double got[3];
    return tg_read_f64(attention(o), got, 3) == TG_OK && fabs(got[0] - 3) < 1e-12;
}

static tg_tensor *rope(const void *o, tg_rope_kind kind) {
    tg_rope_opts own = *(const tg_rope_opts *)o;
    own.kind = kind;
    own.original = kind == TG_ROPE_PLAIN ? 0 : 4;
    own.offset = 1;
    return tg_rope_with(t, of(TG_SHAPE(1, 2), (const double[]){1, 2}), &own);
}
static bool rope_of_turns(const void *o) { return rope(o, TG_ROPE_LLAMA3), false; }
static bool rope_of_one_kind(const void *o) { return rope(o, TG_ROPE_PLAIN), false; }
static bool rope_of_no_dims(const void *o) { return reads(rope(o, TG_ROPE_PLAIN), 2, (const double[]){1, 2}); }
static bool rope_of_no_gain(const void *o) { return reads(rope(o, TG_ROPE_PLAIN), 2, (const double[]){0, 0}); }

/* Attention over the ranks of a group: of one rank, or of two without peers. */
static tg_tensor *context(const void *o, int ranks) {
    const double q[] = {1, 2, 3, 4}, v[] = {3, 6, 9, 12};
    tg_comm *c = ranks == 1 ? tg_comm_self_new(ctx) : tg_comm_plan_new(ctx, 0, ranks);
    tg_tensor *x = of(TG_SHAPE(1, 1, 4, 1), q);
    tg_tensor *y = tg_context_attention(t, x, x, of(TG_SHAPE(1, 1, 4, 1), v), c, o);
    tg_comm_free(c);
    return y;
}
static bool scores_of_ranks_are_zero(const void *o) {
    return reads(context(o, 1), 4, (const double[]){7.5, 7.5, 7.5, 7.5});
}
static bool scores_of_ranks_have_no_room(const void *o) {
    context(o, 2);
    return false;
}
static bool no_keys_of_ranks_before(const void *o) {
    double got[4];
    return tg_read_f64(context(o, 1), got, 4) == TG_OK && fabs(got[3] - 12) < 1e-12;
}
static bool groups_of_no_ranks(const void *o) {
    tg_context_attention_opts opts = *(const tg_context_attention_opts *)o;
    opts.kind = TG_CP_HIERARCHY;
    context(&opts, 2);
    return false;
}

static bool conv(const void *o) {
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(1, 1, 3, 3));
    tg_conv2d(t, x, x, NULL, o);
    return false;
}

static bool pool(const void *o) {
    tg_max_pool2d(t, tg_zeros(ctx, TG_F64, TG_SHAPE(1, 1, 3, 3)), 2, 2, o);
    return false;
}

static bool mean(const void *o) {
    tg_avg_pool2d(t, tg_zeros(ctx, TG_F64, TG_SHAPE(1, 1, 3, 3)), 2, 2, o);
    return false;
}

/* Whether the mean of the rows 1 and 3 of the ids 0 and 1 is that of id 1 alone. */
static bool bag_ignores_0(const void *o) {
    tg_tensor *table = of(TG_SHAPE(2, 1), (const double[]){1, 3}), *ids = tg_reshape(t, tg_arange(t, TG_I64, 0, 2, 1),
                                                                                    TG_SHAPE(1, 2));
    double y = 0;
    return tg_read_f64(tg_embedding_bag(t, table, ids, NULL, NULL, o), &y, 1) == TG_OK && y == 3;
}

static bool upsample(const void *o) {
    tg_upsample_nearest(t, tg_zeros(ctx, TG_F64, TG_SHAPE(1, 1, 3, 3)), TG_SHAPE(2, 2), o);
    return false;
}

/* The loss of class 0, which is ignored. */
static tg_tensor *logits(void) { return of(TG_SHAPE(1, 2), (const double[]){-1, -2}); }
static tg_tensor *class_0(void) { return tg_zeros(ctx, TG_I64, TG_SHAPE(1)); }
static bool cross_entropy_ignores_0(const void *o) {
    tg_cross_entropy_opts sum = *(const tg_cross_entropy_opts *)o;
    sum.reduction = TG_LOSS_SUM;
    return tg_item(tg_cross_entropy(t, logits(), class_0(), &sum)) == 0;
}
static bool nll_ignores_0(const void *o) {
    tg_loss_opts sum = *(const tg_loss_opts *)o;
    sum.reduction = TG_LOSS_SUM;
    return tg_item(tg_nll(t, logits(), class_0(), NULL, &sum)) == 0;
}
static double vocab_loss(const void *o) {
    tg_vocab_opts sum = *(const tg_vocab_opts *)o;
    tg_comm *self = tg_comm_self_new(ctx);
    sum.reduction = TG_LOSS_SUM;
    double loss = tg_item(tg_vocab_parallel_cross_entropy(t, logits(), class_0(), self, &sum));
    tg_tape_reset(t);
    tg_comm_free(self);
    return loss;
}
static bool vocab_ignores_0(const void *o) { return vocab_loss(o) == 0; }
static bool vocab(const void *o) { return vocab_loss(o), false; }

/* ---- Gradient checks ---- */

static tg_diff difference(const void *o) {
    const char *what;
    tg_diff d = {.atol = -1, .rtol = -1};
    if (!tg_diff_options(&d, o, &what)) snprintf(says, sizeof says, "%s", what);
    return d;
}
static bool gradcheck(const void *o) { return difference(o), false; }
static bool no_atol(const void *o) { return difference(o).atol == 0; }
static bool no_rtol(const void *o) { return difference(o).rtol == 0; }


/* ---- Printing ---- */

/* Prints seven numbers into `says`. */
static bool prints(const void *o, const char *want) {
    const double v[] = {1.25, 2, 3, 4, 5, 6, 7};
    tg_print(of(TG_SHAPE(7), v), says, sizeof says, o);
    return strstr(says, want) != NULL;
}
static bool print_has_no_decimals(const void *o) { return prints(o, "[1. 2. 3. 4. 5. 6. 7.]"); }
static bool print_summarizes(const void *o) { return prints(o, "[1.25 2.   3.   ... "); }
static bool print(const void *o) { return prints(o, "") && (says[0] = 0); }

/* ---- The probes ---- */

static const tg_zero_probe probes[] = {
    {"tg_config", "threads", config, "threads is 0, expected 1 to 1024"},
    {"tg_config", "deadline", config, "deadline is 0"},
    {"tg_config", "memory", config, "memory is 0 bytes, expected 1 or more"},
    {"tg_print_opts", "precision", print_has_no_decimals, NULL},
    {"tg_print_opts", "threshold", print_summarizes, NULL},
    {"tg_print_opts", "edge", print, "edge 0"},
    {"tg_print_opts", "width", print, "width 0"},
    {"tg_attention_opts", "scale", scores_are_zero, NULL},
    {"tg_attention_opts", "softcap", scores_have_no_room, "softcap is 0; it must be finite and greater than 0"},
    {"tg_attention_opts", "left", no_keys_before, NULL},
    {"tg_attention_opts", "right", no_keys_after, NULL},
    {"tg_rope_opts", "base", rope_of_one_kind, "base is 0; it must be finite and greater than 0"},
    {"tg_rope_opts", "dims", rope_of_no_dims, NULL},
    {"tg_rope_opts", "factor", rope_of_one_kind, "factor is 0; it must be finite and greater than 0"},
    {"tg_rope_opts", "low", rope_of_turns, "low is 0 and high 4"},
    {"tg_rope_opts", "high", rope_of_turns, "low is 1 and high 0"},
    {"tg_rope_opts", "gain", rope_of_no_gain, NULL},
    {"tg_context_attention_opts", "inner", groups_of_no_ranks, "inner is 0; it must divide the 2 ranks"},
    {"tg_context_attention_opts", "scale", scores_of_ranks_are_zero, NULL},
    {"tg_context_attention_opts", "softcap", scores_of_ranks_have_no_room, "softcap is 0; it must be finite and"},
    {"tg_context_attention_opts", "left", no_keys_of_ranks_before, NULL},
    {"tg_conv_opts", "stride", conv, "stride 0"},
    {"tg_conv_opts", "dilation", conv, "dilation 0"},
    {"tg_conv_opts", "groups", conv, "groups is 0; it must be 1 or more"},
    {"tg_pool_opts", "stride", pool, "stride 0"},
    {"tg_pool_opts", "dilation", pool, "dilation 0"},
    {"tg_pool_opts", "divisor", mean, "divisor is 0"},
    {"tg_upsample_opts", "scale0", upsample, "scale0 is 0"},
    {"tg_upsample_opts", "scale1", upsample, "scale1 is 0"},
    {"tg_upsample_opts", "scale2", upsample, "scale2 is 0"},
    {"tg_bag_opts", "ignore_index", bag_ignores_0, NULL},
    {"tg_cross_entropy_opts", "ignore_index", cross_entropy_ignores_0, NULL},
    {"tg_loss_opts", "ignore_index", nll_ignores_0, NULL},
    {"tg_vocab_opts", "ignore_index", vocab_ignores_0, NULL},
    {"tg_vocab_opts", "classes", vocab, "classes is 0, expected 1 to 2"},
    {"tg_gradcheck_opts", "eps", gradcheck, "expected a step in (0, 1]"},
    {"tg_gradcheck_opts", "atol", no_atol, NULL},
    {"tg_gradcheck_opts", "rtol", no_rtol, NULL},
    {NULL},
};
/* All tables, and probe i of them. */
static const tg_zero_probe *const tables[] = {probes, tg_zeros_generate, tg_zeros_optim, tg_zeros_ranks,
                                             tg_zeros_templates};
enum { TABLES = sizeof tables / sizeof *tables };
static const tg_zero_probe *probe_at(int i) {
    for (int k = 0; k < TABLES; k++)
        for (const tg_zero_probe *p = tables[k]; p->owner; p++)
            if (i-- == 0) return p;
    return NULL;
}

static const tg_field *field_of(const tg_struct *s, const char *name) {
    const tg_field *f = s->fields;
    while (f < s->fields + s->n_fields && strcmp(f->name, name)) f++;
    return f < s->fields + s->n_fields ? f : NULL;
}

START_TEST(a_zero_is_zero_or_refused) {
    const tg_zero_probe *p;
    for (int i = 0; (p = probe_at(i)); i++) {
        _Alignas(max_align_t) char o[512];
        const tg_struct *s = tg_struct_find(p->owner);
        const tg_field *f = s ? field_of(s, p->field) : NULL;
        ck_assert_msg(f && tg_struct_fill(s->name, o, s->size) == TG_OK, "no %s.%s", p->owner, p->field);
        memset(o + f->offset, 0, f->bytes);
        says[0] = 0;
        bool zero = p->use(o);
        if (!says[0]) snprintf(says, sizeof says, "%s", tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
        tg_tape_reset(t);
        tg_draws_step(ctx, i + 1); /* models of one key may draw again */
        if (p->refused)
            ck_assert_msg(strstr(says, p->refused), "%s.%s: %s", s->name, f->name, says);
        else
            ck_assert_msg(zero, "%s.%s: 0 is another number; %s", s->name, f->name, says);
    }
}
END_TEST

static bool is_number(const tg_field *f) {
    return f->kind == TG_FIELD_INT || f->kind == TG_FIELD_INT64 || f->kind == TG_FIELD_UINT64 ||
           f->kind == TG_FIELD_SIZE || f->kind == TG_FIELD_DOUBLE;
}

static bool is_zero(const char *p, size_t n) {
    while (n && !*p) p++, n--;
    return n == 0;
}

static int probes_of(const tg_struct *s, const tg_field *f) {
    int n = 0;
    const tg_zero_probe *p;
    for (int i = 0; (p = probe_at(i)); i++) n += !strcmp(p->owner, s->name) && !strcmp(p->field, f->name);
    return n;
}

START_TEST(every_number_with_another_default_has_a_probe) {
    int n = 0;
    for (int i = 0; i < tg_struct_count(); i++) {
        const tg_struct *s = tg_struct_at(i);
        for (const tg_field *f = s->fields; f < s->fields + s->n_fields; f++) {
            bool probed = is_number(f) && !is_zero((const char *)s->defaults + f->offset, f->bytes);
            ck_assert_msg(probes_of(s, f) == probed, "%s.%s", s->name, f->name);
            n += probed;
        }
    }
    ck_assert(!probe_at(n));
}
END_TEST

int main(void) {
    ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .seed = 3, .dtype = TG_F64));
    t = tg_tape_new(ctx);
    const TTest *tests[] = {a_zero_is_zero_or_refused, every_number_with_another_default_has_a_probe};
    int failed = tg_check_main("option zeros", tests, sizeof tests / sizeof *tests);
    tg_tape_free(t);
    tg_ctx_free(ctx);
    return failed;
}
