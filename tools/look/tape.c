/* tapegrad tape: runs a training step of a model without the optimizer, and shows its tape as a table or a page: the
 * times of ops, the memory over the step, and the collectives. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/explain.h>
#include <tapegrad/extend.h>
#include <tapegrad/lm.h>

#include "common/model_files.h"
#include "common/start.h"
#include "common/text.h"
#include "look/page.h"
#include "look/profile.h"

typedef struct tape_options {
    const char *html, *trace, *device;
    int64_t batch, seq_len, threads, seed;
    int64_t documents; /* of a sequence, if attention stays within each */
    int precision;
    bool attend_across, json;
    rank_options on;
} tape_options;

#define AT(field) offsetof(tape_options, field)

static const option rows[] = {
    {"html", OPTION_TEXT, AT(html), "FILE", "write a page with the tape, the times and the memory to FILE",
     .fixed = false},
    {"trace", OPTION_TEXT, AT(trace), "FILE", "write the step as a trace for Perfetto to FILE", .fixed = false},
    {"json", OPTION_FLAG, AT(json), "", "print JSON", .fixed = false},
    {"batch", OPTION_INT, AT(batch), "N", "sequences in the step, over all ranks", 1, MANY, false},
    {"seq-len", OPTION_INT, AT(seq_len), "N", "tokens of a sequence; 0: the model's positions, at most 256", 0, MANY,
     false},
    {"attend-across", OPTION_FLAG, AT(attend_across), "",
     "a token attends to all before it in its sequence [yes]; no: a sequence has packed documents, and attention stays "
     "within each", .fixed = false},
    {"documents", OPTION_INT, AT(documents), "N",
     "with --no-attend-across: the documents of a sequence; their lengths differ by at most one token", 1, MANY,
     false},
    {"seed", OPTION_INT, AT(seed), "N", "seed of the tokens, which are random", 0, LARGEST, false},
    RANK_ROWS(tape_options),
    SP_ROW(tape_options),
    COMM_ROWS(tape_options),
    {"device", OPTION_DEVICE, AT(device), DEVICES, "where tensors lie and kernels run", .fixed = false},
    {"threads", OPTION_INT, AT(threads), "N", "threads of each rank; 0: the cores, divided among the ranks", 0, 1024,
     false},
    {"precision", OPTION_CHOICE, AT(precision), PRECISIONS, "dtype of parameters and arithmetic", .fixed = false},
};

static const command tape_command = {
    .name = "tape",
    .usage = "MODEL [OPTION...]",
    .summary = "Runs forward and backward of a model on random tokens, and prints for each op how\n"
               "often it ran, and how long, forward and backward. --html writes a page with the\n"
               "tape as a graph and a table with source lines, the memory over the step, what was\n"
               "alive at its peak, and what the ranks did. MODEL is a model directory, or that of\n"
               "a training run.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
    .operands = 1,
};

/* What all ranks share. */
typedef struct shown {
    const tape_options *o;
    model_files model;
    json_t *profile; /* set by rank 0 */
} shown;

/* ---- The step ---- */

typedef struct stepper {
    tg_ctx *ctx;
    tg_parallel *parallel;
    tg_module *gpt;
    tg_tape *tape;
    tg_tensor *ids, *target;
    tg_tensor *positions; /* of packed documents; NULL: attention goes across documents */
} stepper;

static void run_step(stepper *s) {
    tg_tensor *loss = s->positions
                          ? tg_lm_packed_loss(s->gpt, s->tape, s->ids, s->positions, s->target, TG_LOSS_SUM)
                          : tg_gpt_loss(s->gpt, s->tape, s->ids, s->target, TG_LOSS_SUM);
    tg_backward(s->tape, loss);
    tg_tape_reset(s->tape);
    for (int i = 0, n = tg_module_param_count(s->gpt); i < n; i++) tg_zero_grad(tg_module_param(s->gpt, i, NULL));
}

/* Returns the token at which a document of a sequence begins. For document number `documents`, which there is not,
 * returns the length of the sequence. */
static int64_t begin_of_document(const tape_options *o, int64_t document) {
    return document * o->seq_len / o->documents;
}

/* Returns the number of the document to which a token of a sequence belongs: the last document that begins at the token
 * or before it. */
static int64_t document_of(const tape_options *o, int64_t token) {
    return ((token + 1) * o->documents - 1) / o->seq_len;
}

/* Returns an input [n, seq_len] of a kind. Tokens are random, and the same in each run with the same key. As in
 * training, the last token of a packed document has no target (-100). */
static tg_tensor *new_input(stepper *s, const tape_options *o, int64_t n, token_kind kind, uint64_t key) {
    int64_t all = n * o->seq_len;
    int64_t vocab = tg_lm_config_of(s->gpt)->vocab, *v = malloc((size_t)all * sizeof *v);
    if (!v) return tg_ctx_fail(s->ctx, TG_ERR_MEMORY, "no memory for a batch of %" PRId64 " tokens", all), NULL;
    for (int64_t i = 0; i < all; i++) {
        int64_t token = i % o->seq_len, document = document_of(o, token);
        bool last = token + 1 == begin_of_document(o, document + 1);
        v[i] = kind == TOKEN_POSITIONS ? token - begin_of_document(o, document)
               : !o->attend_across && kind == TOKEN_TARGETS && last
                                    ? -100
                                       : (int64_t)(random_at(key + kind, (uint64_t)i) % (uint64_t)vocab);
    }
    tg_tensor *x = tg_from_host(s->ctx, TG_I64, TG_SHAPE(n, o->seq_len), v);
    place_batch(s->parallel, x, true);
    free(v);
    return x;
}

static bool open_step(stepper *s, const shown *of, tg_ctx *ctx, tg_comm *world) {
    const tape_options *o = of->o;
    *s = (stepper){.ctx = ctx, .parallel = groups_of_ranks(&o->on, world)};
    int dp = tg_parallel_size(s->parallel, TG_DP);
    if (!check(ctx)) return false;
    if (o->batch % dp)
        return fail("--batch %" PRId64 " cannot be cut into equal parts for %d data-parallel ranks", o->batch, dp),
               false;
    s->gpt = load_on_ranks(ctx, s->parallel, &of->model.config, of->model.dir, false);
    model_adapt(&of->model, s->gpt);
    s->tape = tg_tape_new(ctx);
    if (!check(ctx)) return false;
    uint64_t key = random_at((uint64_t)o->seed, (uint64_t)tg_parallel_rank(s->parallel, TG_DP));
    s->ids = new_input(s, o, o->batch / dp, TOKEN_IDS, key);
    s->target = new_input(s, o, o->batch / dp, TOKEN_TARGETS, key);
    if (!o->attend_across) s->positions = new_input(s, o, o->batch / dp, TOKEN_POSITIONS, key);
    return check(ctx);
}

static void close_step(stepper *s) {
    tg_drop(s->ids);
    tg_drop(s->target);
    tg_drop(s->positions);
    tg_tape_free(s->tape);
    tg_module_free(s->gpt);
    tg_parallel_free(s->parallel);
}

/* Runs three steps: the first fills caches and allocates, the second is timed, and in the third the memory is noted. */
static json_t *profile_step(stepper *s, profile *p) {
    run_step(s);
    if (!check(s->ctx)) return NULL;
    profile_begin_times(p, s->tape, 1);
    run_step(s);
    profile_end_times(p, s->tape);
    profile_begin_memory(p);
    run_step(s);
    profile_end_memory(p);
    return tg_ctx_status(s->ctx) == TG_OK ? profile_gather(p) : NULL;
}

static int tape_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    shown *of = arg;
    stepper s = {.ctx = ctx};
    start_facts f = {0};
    facts_add_start(&f, &tape_command, of->o, ctx);
    if (!facts_agree(&f, ctx, world)) return 1;
    profile *p = profile_new(ctx, world);
    bool good = p && open_step(&s, of, ctx, world);
    json_t *profile = good ? profile_step(&s, p) : NULL;
    if (profile) of->profile = profile;
    good = good && check(ctx);
    profile_free(p);
    close_step(&s);
    return good ? 0 : 1;
}

/* ---- The table ---- */

typedef struct op_times {
    const char *name;
    int64_t count, saved, flops;
    double forward, backward; /* microseconds */
} op_times;

enum { MOST_OPS = 256 };

/* Returns the row of an op, which is added if there is none; NULL if there are MOST_OPS others. */
static op_times *times_of(op_times *all, int *n, const char *name) {
    for (int i = 0; i < *n; i++)
        if (!strcmp(all[i].name, name)) return &all[i];
    if (*n == MOST_OPS) return NULL;
    all[*n] = (op_times){.name = name};
    return &all[(*n)++];
}

static int by_time(const void *a, const void *b) {
    const op_times *x = a, *y = b;
    double left = x->forward + x->backward, right = y->forward + y->backward;
    return left < right ? 1 : left > right ? -1 : 0;
}

static void add_row(op_times *to, const json_t *row) {
    const json_t *own = json_object_get(row, "e"); /* without ops that ran within it */
    double d = json_number_value(own ? own : json_object_get(row, "d"));
    bool backward = json_integer_value(json_object_get(row, "b")) != 0;
    to->count += !backward;
    *(backward ? &to->backward : &to->forward) += d;
    to->flops += json_integer_value(json_object_get(row, "f"));
    to->saved += json_integer_value(json_object_get(row, "sv"));
}

/* Prints the times by op of one rank. */
static void print_table(const json_t *rank) {
    op_times all[MOST_OPS];
    int n = 0;
    size_t i;
    const json_t *row;
    double forward = 0, backward = 0;
    json_array_foreach(json_object_get(rank, "ops"), i, row) {
        op_times *to = times_of(all, &n, json_string_value(json_object_get(row, "n")));
        if (to) add_row(to, row);
    }
    qsort(all, (size_t)n, sizeof *all, by_time);
    printf("%-22s %7s %12s %12s %14s %12s\n", "op", "calls", "forward us", "backward us", "saved bytes", "GFLOP/s");
    for (int k = 0; k < n; k++) {
        const op_times *o = &all[k];
        printf("%-22s %7" PRId64 " %12.1f %12.1f %14" PRId64 " %12.1f\n", o->name, o->count, o->forward, o->backward,
               o->saved, o->forward > 0 ? 1e-3 * (double)o->flops / o->forward : 0);
        forward += o->forward;
        backward += o->backward;
    }
    printf("%-22s %7s %12.1f %12.1f\n", "all", "", forward, backward);
}

static void print_text(const json_t *profile) {
    const json_t *rank = json_array_get(json_object_get(profile, "ranks"), 0),
                 *memory = json_object_get(rank, "memory");
    print_table(rank);
    printf("\nmemory at the peak: %" JSON_INTEGER_FORMAT " bytes\n",
           json_integer_value(json_object_get(memory, "peak")));
    const char *name;
    json_t *bytes;
    json_object_foreach(json_object_get(memory, "peak_by"), name, bytes)
        printf("%22s %14" JSON_INTEGER_FORMAT "\n", name, json_integer_value(bytes));
}

/* ---- The program ---- */

static json_t *page_data(const char *title, json_t *profile) {
    char text[512];
    snprintf(text, sizeof text, "The tape of %s", title);
    text_make_utf8(text, strlen(text)); /* after snprintf, which may have cut a character */
    return json_pack("{s:s, s:s, s:s, s:O}", "kind", "tape", "title", text, "version", tg_version(), "step", profile);
}

static bool show(const tape_options *o, const char *model, json_t *profile) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    bool good = !o->trace || trace_save(ctx, o->trace, profile);
    good = good && (!o->html || page_save(ctx, o->html, page_data(model, profile)));
    tg_ctx_free(ctx);
    if (good && o->json) return print_json(json_incref(profile)) == 0;
    if (good) print_text(profile);
    return good;
}

static bool check_documents(const tape_options *o) {
    if (o->attend_across || o->documents <= o->seq_len) return true;
    return fail("--documents %" PRId64 " is more than the %" PRId64 " tokens of a sequence; give fewer, or a longer "
                "--seq-len", o->documents, o->seq_len),
           false;
}

static int run_on_model(tape_options *o, const char *model) {
    shown *of = calloc(1, sizeof *of);
    if (!of) return fail("no memory");
    of->o = o;
    bool good = model_find(&of->model, model, true);
    if (good && !o->seq_len) o->seq_len = of->model.config.positions < 256 ? of->model.config.positions : 256;
    good = good && check_seq_len(o->seq_len, &of->model.config) && check_documents(o);
    tg_config config = *TG_CONFIG(.device = o->device, .threads = (int)auto_if_zero(o->threads),
                                  .dtype = dtype_of_precision(o->precision));
    int status = good ? run_on_ranks(&o->on, config, tape_rank, of) : 1;
    if (status == 0 && of->profile && !show(o, model, of->profile)) status = 1;
    json_decref(of->profile);
    free_model_config(&of->model.config);
    free(of);
    return status;
}

int run_tape(int argc, char **argv) {
    tape_options o = {.batch = 4, .documents = 4, .attend_across = true, .seed = 1, .on = RANK_DEFAULTS};
    parsed p;
    bool chief;
    if (!options_parse(&tape_command, &o, &p, argc, argv)) return p.status;
    if (!p.operand[0]) return usage_error(&tape_command, "expected the directory of a MODEL");
    if (o.attend_across && option_given(&tape_command, &p, "documents"))
        return usage_error(&tape_command, "--documents is for --no-attend-across; add that, or leave --documents out");
    int status = rank_options_check(&tape_command, &p, &o.on);
    if (!status) status = tp_options_check(&tape_command, &p, &o.on, TG_GPT_KEEP);
    if (status) return status;
    ranks_begin(&chief);
    return run_on_model(&o, p.operand[0]);
}
