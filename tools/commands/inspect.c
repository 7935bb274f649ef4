/* tapegrad inspect: prints the parameters, FLOPs, memory and communication of a model's training step. It runs the code
 * of `tapegrad train` for a step, so the figures are those of a real run. The step runs on device meta, which computes
 * nothing and allocates no memory for its tensors. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/extend.h>
#include <tapegrad/flat.h>

#include "commands/inspect_parameters.h"
#include "commands/inspect_stages.h"
#include "common/model_files.h"
#include "common/text.h"
#include "train/meta_rank.h"

typedef struct inspect_options {
    const char *config, *dir;
    model_options model;
    rank_options on;
    int64_t batch, accumulate;
    bool attend_across, pad_documents, parameters, json;
} inspect_options;

#define AT(field) offsetof(inspect_options, field)

static const option rows[] = {
    {"config", OPTION_TEXT, AT(config), "FILE", "a config.json, in place of the options of the model", .fixed = false},
    {"model", OPTION_TEXT, AT(dir), "DIR", "a model directory, in place of the options of the model", .fixed = false},
    MODEL_ROWS(inspect_options),
    RANK_ROWS(inspect_options),
    CP_ROWS(inspect_options),
    SP_ROW(inspect_options),
    PP_ROWS(inspect_options),
    SCHEDULE_ROWS(inspect_options),
    ZERO_ROWS(inspect_options),
    {"batch", OPTION_INT, AT(batch), "N", "sequences in a step, over all ranks", 1, MANY, false},
    MICRO_BATCH_ROWS(inspect_options, false),
    {"attend-across", OPTION_FLAG, AT(attend_across), "",
     "a token attends to all before it in its sequence [yes]; no: the step has packed documents, and attention stays "
     "within each", .fixed = false},
    {"pad-documents", OPTION_FLAG, AT(pad_documents), "", "with --no-attend-across: the documents are padded",
     .fixed = false},
    {"parameters", OPTION_FLAG, AT(parameters), "",
     "print the path, shape and size of each parameter, and nothing else; patterns of train --freeze and --lr-of match "
     "the paths", .fixed = false},
    {"json", OPTION_FLAG, AT(json), "", "print JSON", .fixed = false},
};

static const command inspect_command = {
    .name = "inspect",
    .usage = "[--config FILE | --model DIR] [OPTION...]",
    .summary = "Prints the parameters, FLOPs, memory and communication of one training step, and\n"
               "the ops on its tape. Nothing is computed, so the model may be of any size.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

/* The sums over all nodes of one op. */
typedef struct op_row {
    const tg_op *op;
    int64_t count, flops, saved;
} op_row;

typedef struct findings {
    tg_lm_config config;
    int64_t ranks;
    int64_t whole; /* number of parameters of the whole model */
    /* The other figures are those of rank 0. */
    int64_t layers;                      /* number of layers */
    int64_t parameters, parameter_bytes; /* number of parameters, and their bytes */
    int64_t nodes;                       /* number of nodes of the forward of one micro-batch */
    int64_t forward, recomputed, step;   /* FLOPs of a step: in forward; recomputed in backward; all */
    tg_memory_info memory;
    tg_comm_info sent, layer; /* collectives of a step: all, and those of one layer */
    json_t *flat;             /* what tg_flat_text writes; NULL: there is one replica */
    stage_table stages;       /* the figures of every stage; empty without a pipeline */
    op_row *ops;              /* one for each op that has nodes, in the order of their first nodes */
    int n_ops;
} findings;

/* ---- Measuring ---- */

/* Returns the row of an op, which is added if there is none; NULL if there is no memory. */
static op_row *row_of(findings *f, const tg_op *op) {
    for (int i = 0; i < f->n_ops; i++)
        if (f->ops[i].op == op) return &f->ops[i];
    op_row *more = realloc(f->ops, (size_t)(f->n_ops + 1) * sizeof *more);
    if (!more) return NULL;
    f->ops = more;
    more[f->n_ops] = (op_row){.op = op};
    return &more[f->n_ops++];
}

/* Prints that a count does not fit 64 bits. Returns false. */
static bool fail_too_many(void) {
    return fail("a step takes more than %" PRId64 " FLOPs or bytes, the most that are counted; give a smaller model or "
                "--batch", INT64_MAX),
           false;
}

/* Sets *flops to the FLOPs of the tape's nodes. Returns false after printing that they do not fit 64 bits. */
static bool sum_flops(tg_tape *t, int64_t *flops) {
    *flops = 0;
    for (int64_t i = 0; i < tg_tape_nodes(t); i++)
        if (__builtin_add_overflow(*flops, tg_node_flops(tg_tape_node(t, i)), flops)) return fail_too_many();
    return true;
}

/* Adds the tape's nodes, whose FLOPs fit 64 bits, to the rows of their ops. Returns false after printing what is
 * wrong. */
static bool count_nodes(findings *f, tg_tape *t) {
    for (int64_t i = 0; i < tg_tape_nodes(t); i++) {
        const tg_node *n = tg_tape_node(t, i);
        op_row *row = row_of(f, tg_node_op(n));
        if (!row) return fail("no memory"), false;
        row->count++;
        row->flops += tg_node_flops(n);
        if (__builtin_add_overflow(row->saved, tg_node_saved_bytes(n), &row->saved)) return fail_too_many();
        f->nodes++;
    }
    return true;
}

/* Records the forward pass of a micro-batch through the layers of rank 0, with this kind of recomputation, and sums the
 * FLOPs of the nodes. If `rows` is true, also counts the nodes in the rows of their ops. */
static bool record_forward(const train_options *o, findings *f, tg_gpt_recompute recompute, bool rows, int64_t *flops) {
    meta_rank w;
    tg_lm_config config = f->config;
    config.recompute = recompute;
    bool good = meta_rank_open(&w, o, &config, 0) && meta_rank_forward(&w) && sum_flops(w.r.tape, flops) &&
                (!rows || count_nodes(f, w.r.tape));
    meta_rank_close(&w);
    return good;
}

/* Returns the FLOPs that selective recomputation adds in one layer for one micro-batch. It computes again the norms
 * before attention and MLP and the activation of the MLP. Their ops count one FLOP for each element of their results.
 * A tape that keeps everything does not show these FLOPs, because an op of its own may compute the first projection of
 * the MLP with the activation, and counts the product only. */
static int64_t selective_flops(const train_options *o, const tg_lm_config *c) {
    const rank_options *on = &o->on;
    int64_t sequences = o->batch / o->accumulate / (on->ranks / (on->tp * on->cp * on->pp));
    int64_t tokens = sequences * (o->model.seq_len / on->cp);
    int norms = c->norm_place == TG_LM_NORM_AFTER ? 0 : c->parallel_residual ? 1 : 2;
    int64_t norm = c->hidden * (tokens / (on->sp ? on->tp : 1) + c->unit_norm); /* unit_norm adds 1 to each weight */
    return norms * norm + (c->activation == TG_LM_GEGLU_TANH ? 2 : 1) * tokens * (c->ffn / on->tp);
}

/* Counts the FLOPs that recomputation adds for one micro-batch. `kept` is those of a forward that keeps everything. If
 * layers are recomputed as a whole, the step's tape has one node for each, which counts no FLOPs. So the tape lacks
 * what is recomputed, whatever the layers' kinds are. */
static bool count_recomputed(const train_options *o, findings *f, int64_t kept, int64_t *flops) {
    *flops = 0;
    if (f->config.recompute == TG_GPT_KEEP) return true;
    if (f->config.recompute == TG_GPT_SELECTIVE)
        return !__builtin_mul_overflow(selective_flops(o, &f->config), f->layers, flops) || fail_too_many();
    int64_t rest;
    if (!record_forward(o, f, f->config.recompute, false, &rest)) return false;
    *flops = kept - rest;
    return true;
}

/* Counts the FLOPs of a step, with what recomputation adds to those of forward and backward. */
static bool count_flops(const train_options *o, findings *f) {
    int64_t forward, recomputed;
    if (!record_forward(o, f, TG_GPT_KEEP, true, &forward)) return false;
    if (!count_recomputed(o, f, forward, &recomputed)) return false;
    bool over = __builtin_mul_overflow(forward, o->accumulate, &f->forward) ||
                __builtin_mul_overflow(recomputed, o->accumulate, &f->recomputed) ||
                __builtin_mul_overflow(f->forward, 3, &f->step) ||
                __builtin_add_overflow(f->step, f->recomputed, &f->step);
    return !over || fail_too_many();
}

/* Returns the buckets of a tg_flat as JSON; NULL if there is no memory. */
static json_t *flat_json(const tg_flat *f) {
    size_t n = tg_flat_text(f, TG_JSON, NULL, 0) + 1;
    char *text = malloc(n);
    if (text) tg_flat_text(f, TG_JSON, text, n);
    json_t *json = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return json;
}

/* Copies the config of a model, in which defaults are filled in, to *to. The texts of *to stay: the model will free its
 * own. */
static void take_config(tg_lm_config *to, const tg_lm_config *from) {
    const tg_lm_config was = *to;
    *to = *from;
    to->layout = was.layout;
    to->attention_kinds = was.attention_kinds;
    to->extra = was.extra;
}

/* Sums the bytes of the rank's parameters. Returns false after printing that they do not fit 64 bits. */
static bool count_parameter_bytes(const trainer *r, int64_t *bytes) {
    for (int i = 0; i < r->n_params; i++) {
        int64_t size = tg_dtype_bits(tg_dtype_of(r->params[i])) / 8, of;
        if (__builtin_mul_overflow(tg_numel(r->params[i]), size, &of) || __builtin_add_overflow(*bytes, of, bytes))
            return fail_too_many();
    }
    return true;
}

/* Runs a step of rank 0, and measures the parameters, memory and collectives of that rank. */
static bool measure_step(const train_options *o, findings *f) {
    meta_rank w;
    bool good = meta_rank_open(&w, o, &f->config, 0);
    if (good) {
        const trainer *r = &w.r;
        f->parameters = stage_numel(&r->stage);
        f->layers = stage_layers(&r->stage);
        if (r->flat) f->flat = flat_json(r->flat);
        take_config(&f->config, tg_lm_config_of(r->stage.chunk[0]));
        good = count_parameter_bytes(r, &f->parameter_bytes) && meta_rank_step(&w, &f->memory, &f->sent);
        if (good && r->flat && !f->flat) good = (fail("no memory for the table of buckets"), false);
    }
    meta_rank_close(&w);
    return good;
}

/* Returns options without a pipeline whose ranks divide each layer in the same way. They are for models of one or two
 * layers, which may have fewer layers than the pipeline has stages. */
static train_options without_pipeline(const train_options *o) {
    train_options one = *o;
    one.on.ranks /= o->on.pp;
    one.on.pp = one.on.vp = 1;
    one.on.layout = NULL;
    return one;
}

/* Computes what the second layer sends in a step: the difference between a model of two layers and one of a single
 * layer. Other layers may send less or more if context parallelism meets layers with and without a window. */
static bool count_layer(const train_options *o, const findings *f, tg_comm_info *layer) {
    tg_comm_info of[2];
    train_options flat = without_pipeline(o);
    for (int i = 0; i < 2; i++) {
        meta_rank w;
        tg_lm_config config = f->config;
        config.layers = i + 1;
        bool good = meta_rank_open(&w, &flat, &config, 0) && meta_rank_step(&w, NULL, &of[i]);
        meta_rank_close(&w);
        if (!good) return false;
    }
    *layer = TG_COMM_INFO();
    for (int k = 0; k < TG_COLLECTIVES; k++) {
        layer->calls[k] = of[1].calls[k] - of[0].calls[k];
        layer->bytes[k] = of[1].bytes[k] - of[0].bytes[k];
    }
    return true;
}

/* ---- Printing ---- */

static const char *const categories[] = {"parameters",  "gradients", "optimizer", "saved",
                                         "temporaries", "buffers",   "captured",  "kernels"};
_Static_assert(sizeof categories / sizeof categories[0] == TG_MEM_CATEGORIES, "a category has no name");

static json_t *memory_json(const findings *f) {
    json_t *memory = json_pack("{s:I}", "peak_bytes", (json_int_t)f->memory.peak);
    for (int i = 0; i < TG_MEM_CATEGORIES; i++)
        json_object_set_new(memory, categories[i], json_integer(f->memory.peak_by_category[i]));
    return memory;
}

static json_t *tape_json(const findings *f) {
    json_t *all = json_array();
    for (int i = 0; i < f->n_ops; i++)
        json_array_append_new(all, json_pack("{s:s, s:I, s:I, s:I}", "op", f->ops[i].op->name, "count",
                                             (json_int_t)f->ops[i].count, "flops", (json_int_t)f->ops[i].flops,
                                             "saved_bytes", (json_int_t)f->ops[i].saved));
    return all;
}

static json_t *sent_json(const findings *f) {
    json_t *all = json_array();
    for (int k = 0; k < TG_COLLECTIVES; k++)
        if (f->sent.calls[k])
            json_array_append_new(all, json_pack("{s:s, s:I, s:I, s:I, s:I}", "collective",
                                                 tg_collective_name((tg_collective)k), "calls",
                                                 (json_int_t)f->sent.calls[k], "bytes", (json_int_t)f->sent.bytes[k],
                                                 "calls_per_layer", (json_int_t)f->layer.calls[k], "bytes_per_layer",
                                                 (json_int_t)f->layer.bytes[k]));
    return all;
}

static void print_sent(const findings *f) {
    printf("ranks       %" PRId64 "; collectives of rank 0 in a step, and of one layer in it:\n", f->ranks);
    printf("            %-16s %8s %16s %13s %16s\n", "collective", "calls", "bytes", "layer's calls",
           "layer's bytes");
    for (int k = 0; k < TG_COLLECTIVES; k++)
        if (f->sent.calls[k])
            printf("            %-16s %8" PRId64 " %16" PRId64 " %13" PRId64 " %16" PRId64 "\n",
                   tg_collective_name((tg_collective)k), f->sent.calls[k], f->sent.bytes[k], f->layer.calls[k],
                   f->layer.bytes[k]);
}

/* Prints the buckets of gradients, and how many elements of each bucket the optimizer of a rank updates. */
static void print_flat(const json_t *flat) {
    size_t i;
    json_t *b;
    printf("buckets     zero %lld; replicas sum the gradients of a bucket, and each rank updates its part of it:\n",
           (long long)json_integer_value(json_object_get(flat, "zero")));
    printf("            %6s %6s %-6s %6s %16s %12s %16s\n", "bucket", "dtype", "group", "ranks", "elements", "padding",
           "part of a rank");
    json_array_foreach(json_object_get(flat, "buckets"), i, b)
        printf("            %6zu %6s %-6s %6lld %16lld %12lld %16lld\n", i,
               json_string_value(json_object_get(b, "dtype")), json_string_value(json_object_get(b, "group")),
               (long long)json_integer_value(json_object_get(b, "ranks")),
               (long long)json_integer_value(json_object_get(b, "numel")),
               (long long)json_integer_value(json_object_get(b, "padding")),
               (long long)json_integer_value(json_object_get(b, "part")));
}

static json_t *findings_json(const findings *f) {
    const tg_lm_config *c = &f->config;
    json_t *all = json_pack(
        "{s:{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}, s:I, s:I, s:{s:I, s:I, s:I, s:I}, s:o, s:o, s:I, "
        "s:o}",
        "model", "arch", c->family, "layers", (json_int_t)c->layers, "heads",
        (json_int_t)c->heads, "kv_heads", (json_int_t)c->kv_heads, "hidden", (json_int_t)c->hidden, "ffn",
        (json_int_t)c->ffn, "vocab", (json_int_t)c->vocab, "positions", (json_int_t)c->positions, "parameters",
        (json_int_t)f->whole, "parameters", (json_int_t)f->parameters, "parameter_bytes",
        (json_int_t)f->parameter_bytes, "flops", "forward", (json_int_t)f->forward, "backward",
        (json_int_t)(2 * f->forward), "recomputation", (json_int_t)f->recomputed, "step",
        (json_int_t)f->step, "memory", memory_json(f), "tape", tape_json(f), "ranks",
        (json_int_t)f->ranks, "collectives", sent_json(f));
    if (f->stages.n) json_object_set_new(all, "stages", stage_table_json(&f->stages));
    if (f->flat) json_object_set(all, "flat", f->flat);
    return all;
}

static void print_text(const findings *f, const train_options *o) {
    const tg_lm_config *c = &f->config;
    printf("model       %s, %" PRId64 " layer%s, %" PRId64 " head%s (%" PRId64 " key-value), hidden %" PRId64
           ", ffn %" PRId64 ", vocabulary %" PRId64 ", %" PRId64 " position%s\n",
           c->family, c->layers, plural(c->layers), c->heads, plural(c->heads), c->kv_heads,
           c->hidden, c->ffn, c->vocab, c->positions, plural(c->positions));
    printf("parameters  %" PRId64, f->whole);
    if (f->ranks > 1) printf("; rank 0 has %" PRId64, f->parameters);
    printf(", %" PRId64 " bytes\n", f->parameter_bytes);
    static const char *const documents[] = {[TG_WINDOWS_ACROSS] = "",
                                            [TG_WINDOWS_PACKED] = ", documents packed",
                                            [TG_WINDOWS_PADDED] = ", documents padded"};
    printf("step        %" PRId64 " x %" PRId64 " tokens in %" PRId64 " micro-batch%s%s\n", o->batch, o->model.seq_len,
           o->accumulate, o->accumulate > 1 ? "es" : "", documents[train_windows(o)]);
    printf("FLOPs       %" PRId64 " a step%s: forward %" PRId64 ", backward twice that, recomputation %" PRId64 "\n",
           f->step, f->ranks > 1 ? " of rank 0" : "", f->forward, f->recomputed);
    printf("memory      %" PRId64 " bytes at the peak%s:\n", f->memory.peak, f->ranks > 1 ? " of rank 0" : "");
    for (int i = 0; i < TG_MEM_CATEGORIES; i++)
        printf("            %16" PRId64 "  %s\n", f->memory.peak_by_category[i], categories[i]);
    if (f->ranks > 1) print_sent(f);
    if (f->flat) print_flat(f->flat);
    if (f->stages.n) stage_table_print(&f->stages, o);
    printf("tape        %" PRId64 " nodes a micro-batch%s\n", f->nodes,
           c->recompute ? ", if nothing were recomputed" : "");
    printf("            %-22s %8s %16s %18s\n", "op", "nodes", "saved bytes", "forward FLOPs");
    for (int i = 0; i < f->n_ops; i++)
        printf("            %-22s %8" PRId64 " %16" PRId64 " %18" PRId64 "\n", f->ops[i].op->name, f->ops[i].count,
               f->ops[i].saved, f->ops[i].flops);
}

/* ---- The program ---- */

/* Sets the model's config from --config, --model or the options of the model. With --config or --model, --seq-len is
 * the model's number of positions if it was not given. Returns false after printing what is wrong. */
static bool choose_model(inspect_options *o, const parsed *p, findings *f) {
    bool from_file = o->config || o->dir;
    model_files m;
    bool good = !o->dir || model_find(&m, o->dir, false);
    if (good && o->dir) f->config = m.config;
    if (good && o->config) good = read_model_config(o->config, &f->config);
    if (!from_file) {
        if (!o->model.vocab) o->model.vocab = 256;
        good = model_config(&o->model, &f->config);
    } else if (!option_given(&inspect_command, p, "seq-len")) {
        o->model.seq_len = f->config.positions;
    }
    f->config.recompute = (tg_gpt_recompute)o->model.recompute;
    return good && check_seq_len(o->model.seq_len, &f->config);
}

static int inspect(inspect_options *o, const parsed *p, findings *f) {
    if (!choose_model(o, p, f)) return 1;
    if (o->parameters) return print_parameters(&f->config, o->json);
    if (cp_options_check(&inspect_command, p, &o->on, o->model.seq_len)) return 2;
    train_options t = train_defaults();
    t.model = o->model;
    t.batch = o->batch;
    t.accumulate = o->accumulate;
    t.threads = 1;
    t.on = o->on;
    t.attend_across = o->attend_across;
    t.pad_documents = o->pad_documents;
    t.masked = !o->attend_across; /* the first token of a document is not predicted */
    f->ranks = o->on.ranks;
    f->whole = count_parameters(&f->config);
    if (f->whole < 0 || !measure_step(&t, f) || !count_flops(&t, f)) return 1;
    if (f->ranks > 1 && !count_layer(&t, f, &f->layer)) return 1;
    if (t.on.pp > 1 && !stage_table_measure(&f->stages, &t, &f->config)) return 1;
    if (o->json) return print_json(findings_json(f));
    print_text(f, &t);
    return 0;
}

/* Checks that --parameters is given with --json and the options that say which model it is, and with no others. */
static int check_parameters(const inspect_options *o, const parsed *p) {
    static const char *const read[] = {"parameters", "json", "config", "model", "arch", "layers", "heads", "kv-heads",
                                       "hidden", "ffn", "vocab", "seq-len"};
    const command *c = &inspect_command;
    int n = sizeof read / sizeof read[0];
    if (o->config || o->dir) n--; /* a config has its own positions, and --seq-len is that of a step */
    const char *other = o->parameters ? option_given_other(c, p, read, n) : NULL;
    if (!other) return 0;
    return usage_error(c, "--%s is for a step, but --parameters prints the parameters and nothing else; leave one of "
                       "them out", other);
}

/* Checks that the options agree with each other, and that no option is given whose value --config or --model sets.
 * Returns 0, or the exit status after printing what is wrong. The options of --cp are checked later, because --config
 * or --model may set --seq-len. */
static int check_options(const inspect_options *o, const parsed *p) {
    static const char *const decided[] = {"arch", "layers", "heads", "kv-heads", "hidden", "ffn", "vocab", "dropout"};
    const command *c = &inspect_command;
    if (o->config && o->dir) return usage_error(c, "expected one of --config and --model, not both");
    for (size_t i = 0; (o->config || o->dir) && i < sizeof decided / sizeof decided[0]; i++)
        if (option_given(c, p, decided[i]))
            return usage_error(c, "--%s is set by the config; leave it out", decided[i]);
    if (o->attend_across && o->pad_documents)
        return usage_error(c, "--pad-documents is for --no-attend-across; add that, or leave --pad-documents out");
    if (check_parameters(o, p)) return 2;
    if (ranks_check_divisible(c, p, &o->on) || zero_options_check(c, p, &o->on, o->on.ranks)) return 2;
    if (tp_options_check(c, p, &o->on, o->model.recompute) || pipeline_options_check(c, p, &o->on)) return 2;
    if (o->batch % o->accumulate)
        return usage_error(c, "--batch %" PRId64 " cannot be cut into --%s %" PRId64 " equal micro-batches", o->batch,
                           option_given_name(c, p, "micro-batches"), o->accumulate);
    return o->config || o->dir ? 0 : model_options_check(c, &o->model, o->on.tp);
}

int run_inspect(int argc, char **argv) {
    train_options defaults = train_defaults();
    inspect_options o = {.model = defaults.model, .on = RANK_DEFAULTS, .batch = defaults.batch, .accumulate = 1,
                         .attend_across = true};
    parsed p;
    if (!options_parse(&inspect_command, &o, &p, argc, argv)) return p.status;
    pipeline_options_complete(&inspect_command, &p, &o.on);
    int status = check_options(&o, &p);
    if (status) return status;
    findings *f = calloc(1, sizeof *f);
    status = f ? inspect(&o, &p, f) : fail("no memory");
    if (f) free_model_config(&f->config);
    if (f) stage_table_free(&f->stages);
    if (f) json_decref(f->flat);
    if (f) free(f->ops);
    free(f);
    return status;
}
