/* The options of `tapegrad train`: their table and defaults, and the checks that need only the command line. */
#include <stdio.h>

#include "common/text.h"
#include "train/tune.h"

#define AT(field) offsetof(train_options, field)

static const option rows[] = {
    {"data", OPTION_LIST, AT(data), "FILE...",
     "the data to train on: files, directories, patterns, - for standard input, .gz and .zst; or weights and files, as "
     "in 0.7 a.txt 0.3 b.txt; required, unless --resume finds a checkpoint", .fixed = false},
    {"val-data", OPTION_LIST, AT(val_data), "FILE...", "data to validate on, in place of --val-fraction of --data",
     .fixed = false},
    {"data-format", OPTION_CHOICE, AT(data_format), CORPUS_FORMATS, CORPUS_FORMATS_HELP, .fixed = true},
    {"tokenizer", OPTION_TEXT, AT(tokenizer), "PATH",
     "a tokenizer.json, or a directory that has one, for text; without it that of --init, else each byte is a token",
     .fixed = true},
    {"attend-across", OPTION_FLAG, AT(attend_across), "",
     "a token attends to all before it in its sequence, also to those of other documents [yes]; no: documents "
     "share sequences, but attention stays within each, with positions from 0 on", .fixed = true},
    {"pad-documents", OPTION_FLAG, AT(pad_documents), "",
     "with --no-attend-across: each document begins a sequence, and short ones are padded",
     .fixed = true},
    {"time", OPTION_TEXT, AT(time), "TIME",
     "how long the run may take, such as 30m or 2h: measures this machine, and chooses the model, --batch, --steps, "
     "--lr and what else is not given, so that a step fits into the memory", .fixed = false},
    {"out", OPTION_TEXT, AT(out), "DIR",
     "the directory of the run; if it is not given, a new one: run, run-2 and so on", .fixed = false},
    {"init", OPTION_TEXT, AT(init), "DIR", "a model directory to start from, whose config sets the architecture",
     .fixed = true},
    {"lora", OPTION_TEXT, AT(lora), "r=N,alpha=X,..",
     "train low-rank adapters of the linear layers of --init, and save them in place of the model. Keys: r (8), alpha "
     "(2 r), dropout (0), rslora=yes, targets=NAME,NAME.. (all but the output matrix)", .fixed = true},
    {"freeze", OPTION_TEXT, AT(freeze), "NAME,NAME..",
     "parameters that are not trained, such as embed_tokens,layers.0 or *norm*", .fixed = true},
    {"resume", OPTION_FLAG, AT(resume), "", "continue from the newest checkpoint in --out, with its options",
     .fixed = false},
    {"resume-step", OPTION_INT, AT(resume_step), "N",
     "with --resume: continue from the checkpoint of step N, and rename later ones; 0: from the newest", 0, MANY,
     false},
    MODEL_ROWS(train_options),
    {"batch", OPTION_INT, AT(batch), "N", "sequences in a step, over all ranks", 1, MANY, true},
    MICRO_BATCH_ROWS(train_options, true),
    {"steps", OPTION_INT, AT(steps), "N", "steps of the whole run, those before a resume included", 1, MANY, false},
    {"lr", OPTION_REAL, AT(lr), "X", "learning rate", 0, 1e6, false},
    {"lr-of", OPTION_TEXT, AT(lr_of), "NAME=X,..",
     "other learning rates of some parameters, such as lm_head=1e-5; they follow the schedule of --lr", .fixed = false},
    {"min-lr", OPTION_REAL, AT(min_lr), "X", "learning rate at the end of the schedule", 0, 1e6, false},
    {"warmup", OPTION_INT, AT(warmup), "N", "steps of linear warm-up; at most a tenth of --steps if not given", 0,
     MANY, false},
    {"lr-schedule", OPTION_CHOICE, AT(lr_schedule), "constant|linear|cosine|inverse-sqrt|wsd",
     "how the rate falls after the warm-up",
     .fixed = false},
    {"wsd-steps", OPTION_INT, AT(wsd_steps), "N",
     "length of the decay of --lr-schedule wsd, which begins after the warm-up; 0: a tenth of --steps", 0, MANY, false},
    {"wsd-decay", OPTION_CHOICE, AT(wsd_decay), "linear|cosine|exponential|minus-sqrt",
     "form of the decay of --lr-schedule wsd", .fixed = false},
    {"beta1", OPTION_REAL, AT(beta1), "X", "AdamW: decay of the first moment", 0, 0.9999999, false},
    {"beta2", OPTION_REAL, AT(beta2), "X", "AdamW: decay of the second moment", 0, 0.9999999, false},
    {"eps", OPTION_REAL, AT(eps), "X", "AdamW: added to the denominator", 0, 1, false},
    {"weight-decay", OPTION_REAL, AT(weight_decay), "X",
     "AdamW: weight decay; biases and other 1-D parameters have none", 0, 1e6,
     false},
    {"clip", OPTION_REAL, AT(clip), "X", "clip gradients to this global norm; 0: do not clip", 0, 1e9, false},
    {"loss-scale", OPTION_REAL, AT(loss_scale), "X", "fp16: fixed scale of the loss; 0: dynamic loss scaling", 0, 1e30,
     true},
    {"initial-loss-scale", OPTION_REAL, AT(initial_scale), "X",
     "dynamic loss scaling: the first scale", 1e-30, 1e30, true},
    {"min-loss-scale", OPTION_REAL, AT(min_scale), "X", "dynamic loss scaling: the smallest scale", 1e-30, 1e30, false},
    {"loss-scale-window", OPTION_INT, AT(scale_window), "N",
     "dynamic loss scaling: steps without an overflow after which the scale doubles", 1,
     MANY, false},
    {"hysteresis", OPTION_INT, AT(hysteresis), "N",
     "dynamic loss scaling: overflow number N after the last doubling, and later ones, halve the scale", 1,
     MANY, false},
    {"seed", OPTION_INT, AT(seed), "N", "seed of initial weights, dropout and the order of the data", 0, LARGEST, true},
    RANK_ROWS(train_options),
    CP_ROWS(train_options),
    SP_ROW(train_options),
    PP_ROWS(train_options),
    SCHEDULE_ROWS(train_options),
    ZERO_ROWS(train_options),
    COMM_ROWS(train_options),
    {"rng", OPTION_CHOICE, AT(on.rng), "global|megatron",
     "how ranks draw dropout; global: the numbers that one rank would draw; megatron: from streams that are seeded by "
     "Megatron-Core's formulas",
     .fixed = true},
    {"device", OPTION_DEVICE, AT(device), DEVICES, "where tensors lie and kernels run", .fixed = false},
    {"capture", OPTION_FLAG, AT(capture), "", "capture a step as a graph and replay it (cuda)",
     .fixed = false},
    {"find-nan", OPTION_FLAG, AT(find_nan), "",
     "stop at the first op that makes a NaN or an infinity, forward or backward, and name it; slow", .fixed = false},
    {"record", OPTION_TEXT, AT(record), "FILE",
     "write the results of each op of a step to FILE, or to FILE.RANK if there are several ranks, for "
     "tapegrad diff", .fixed = false},
    {"record-step", OPTION_INT, AT(record_step), "N",
     "the step to record; 0: the first one of this call", 0, MANY, false},
    {"record-values", OPTION_INT, AT(record_values), "N", "elements to record of each tensor; 0: all", 0, MANY,
     false},
    {"html", OPTION_FLAG, AT(html), "",
     "write the page run.html in --out, at each checkpoint and at the end: curves, samples, and where the time and "
     "the memory of a step go", .fixed = false},
    {"live", OPTION_FLAG, AT(live), "",
     "on a terminal: show the curve of the loss while the run goes on", .fixed = false},
    {"tensorboard", OPTION_TEXT, AT(tensorboard), "DIR", "write an event file for TensorBoard to DIR",
     .fixed = false},
    {"trace", OPTION_TEXT, AT(trace), "FILE",
     "write a step, the second one of this call, as a trace for Perfetto to FILE", .fixed = false},
    {"threads", OPTION_INT, AT(threads), "N",
     "threads of each rank; 0: the cores, divided among the ranks", 0, 1024, false},
    {"memory", OPTION_TEXT, AT(memory), "SIZE",
     "memory that the tensors of each rank may take, such as 900M or 6G: --time chooses a model that takes less, and a "
     "step that needs more ends the run", .fixed = false},
    {"order", OPTION_TEXT, AT(order), "FILE",
     "offsets of all sequences of all steps in the tokens, as little-endian int64, in place of the shuffle",
     .fixed = true},
    {"val-fraction", OPTION_REAL, AT(val_fraction), "X",
     "share of the tokens, at the end of the data, that are used for validation", 0, 0.9, true},
    {"val-every", OPTION_INT, AT(val_every), "N", "steps between validations; 0: never", 0, MANY, false},
    {"val-batches", OPTION_INT, AT(val_batches), "N",
     "batches in a validation, evenly spread over its tokens; 0: all", 0, MANY, false},
    {"samples", OPTION_INT, AT(samples), "N",
     "continuations of --sample-prompt to print at each validation, and to keep in samples.jsonl; 1 if only the "
     "prompt is given", 0, 1000, false},
    {"sample-prompt", OPTION_TEXT, AT(sample_prompt), "TEXT",
     "what samples continue; if not given, the first 16 tokens of the validation data", .fixed = false},
    {"sample-tokens", OPTION_INT, AT(sample_tokens), "N", "tokens that a sample adds", 1, MANY, false},
    {"keep-best", OPTION_FLAG, AT(keep_best), "",
     "keep the model with the lowest validation loss in the folder best of --out", .fixed = false},
    {"patience", OPTION_INT, AT(patience), "N",
     "end the run after N validations in a row without a lower loss; 0: never", 0, MANY, false},
    {"log-every", OPTION_INT, AT(log_every), "N",
     "steps between lines of progress when the output is not a terminal", 1, MANY,
     false},
    {"checkpoint-every", OPTION_INT, AT(checkpoint_every), "N",
     "steps between checkpoints; 0: only when the run is interrupted", 0, MANY, false},
    {"async-save", OPTION_FLAG, AT(async_save), "",
     "copy the optimizer's state of a checkpoint to host memory, and write it\nwhile training goes on", .fixed = false},
    {"keep", OPTION_INT, AT(keep), "N", "how many of the newest checkpoints to keep", 1, 1e6, false},
};

const command train_command = {
    .name = "train",
    .usage = "--data FILE... [--time 30m] [--out DIR] [OPTION...]",
    .summary = "Trains a GPT language model on text or tokens. Writes the model (config.json and\n"
               "model.safetensors), metrics.jsonl, loss.svg and checkpoints to the directory\n"
               "DIR. SIGINT (Ctrl-C), SIGTERM and SIGHUP end the run after its step, with a\n"
               "checkpoint; --resume --out DIR continues it as if it had never stopped.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

_Static_assert(sizeof rows / sizeof rows[0] <= MAX_OPTIONS, "parsed.given is too short");

train_options train_defaults(void) {
    return (train_options){
        .model = MODEL_DEFAULTS,
        .on = RANK_DEFAULTS,
        .data_format = DATA_AUTO,
        .attend_across = true,
        .batch = 16,
        .accumulate = 1,
        .steps = 1000,
        .lr = 1e-3,
        .min_lr = 1e-4,
        .warmup = 100,
        .lr_schedule = TG_DECAY_COSINE,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-8,
        .weight_decay = 0.1,
        .clip = 1,
        .initial_scale = 65536,
        .min_scale = 1,
        .scale_window = 1000,
        .hysteresis = 2,
        .seed = 1,
        .val_fraction = 0.05,
        .val_every = 100,
        .val_batches = 20,
        .sample_tokens = 100,
        .log_every = 10,
        .checkpoint_every = 200,
        .keep = 2,
        .record_values = 1024,
    };
}

/* The options that the config of --init sets, so that they must not be given. */
static const char *const decided[] = {"arch", "layers", "heads", "kv-heads", "hidden", "ffn", "vocab"};

static int check_init(const parsed *p) {
    for (size_t i = 0; i < sizeof decided / sizeof decided[0]; i++)
        if (option_given(&train_command, p, decided[i]))
            return usage_error(&train_command, "--%s is set by the config in --init; leave it out", decided[i]);
    return 0;
}

bool train_scales(const train_options *o) {
    return dtype_of_precision(o->model.precision) == TG_F16;
}

/* Checks that the options of loss scaling fit the precision and each other. */
static int check_scale(const train_options *o, const parsed *p) {
    static const char *const all[] = {"loss-scale", "initial-loss-scale", "min-loss-scale", "loss-scale-window",
                                      "hysteresis"};
    const command *c = &train_command;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!option_given(c, p, all[i])) continue;
        if (!train_scales(o))
            return usage_error(c, "--%s is for --precision fp16; leave it out, or add --precision fp16", all[i]);
        if (i && o->loss_scale > 0)
            return usage_error(c,
                               "--%s is for dynamic loss scaling, but --loss-scale %g is a fixed scale; leave one of "
                               "them out",
                               all[i], o->loss_scale);
    }
    if (o->loss_scale == 0 && o->min_scale > o->initial_scale)
        return usage_error(c, "--min-loss-scale %g is above --initial-loss-scale %g", o->min_scale, o->initial_scale);
    return 0;
}

/* Checks the options that observe each op as it runs, --record, --trace and --find-nan. */
static int check_observers(const train_options *o, const parsed *p) {
    const command *c = &train_command;
    if (o->record && o->capture)
        return usage_error(c,
                           "--record observes ops as they run, and --capture replays a step without them; leave one "
                           "out");
    if (o->record && o->on.pp > 1)
        return usage_error(c, "--record needs --pp 1: it records the ops of a step in one order, and the stages of a "
                              "pipeline run at the same time");
    if (!o->record && (option_given(c, p, "record-step") || option_given(c, p, "record-values")))
        return usage_error(c, "--record-step and --record-values are for --record FILE, which is missing");
    if (o->record_step > o->steps)
        return usage_error(c, "--record-step %lld: the run ends at --steps %lld", (long long)o->record_step,
                           (long long)o->steps);
    if (o->find_nan && o->capture)
        return usage_error(c,
                           "--find-nan observes ops as they run, and --capture replays a step without them; leave one "
                           "out");
    if (o->trace && o->capture)
        return usage_error(c,
                           "--trace observes ops as they run, and --capture replays a step without them; leave one "
                           "out");
    if (o->find_nan && train_scales(o) && o->loss_scale == 0)
        return usage_error(c, "--find-nan: dynamic loss scaling overflows on purpose; give a fixed --loss-scale X");
    return 0;
}

/* Checks that samples can be made: each rank must generate with all layers and whole sequences. */
static int check_samples(const train_options *o) {
    const rank_options *on = &o->on;
    if (o->samples && !o->val_every)
        return usage_error(&train_command, "--samples are made at validations, but --val-every is 0; give --val-every "
                                           "N, or --samples 0");
    if (o->samples && o->model.seq_len < 2 && !o->init)
        return usage_error(&train_command,
                           "--samples needs a model of two positions or more; give --seq-len 2 or more");
    if (!o->samples || (on->pp == 1 && on->cp == 1 && !on->sp)) return 0;
    return usage_error(&train_command,
                       "--samples: text cannot be generated by ranks of --pp, --cp or --sp; leave out --samples and "
                       "--sample-prompt, and use tapegrad generate after the run");
}

static bool is_utf8(const char *text) {
    json_t *string = json_string(text); /* NULL if it is not UTF-8 */
    json_decref(string);
    return string != NULL;
}

/* Checks that the texts which state.json records for --resume are UTF-8, as JSON must be. */
static int check_paths(const train_options *o) {
    const struct { const char *name, *path; } all[] = {
        {"data", o->data},   {"val-data", o->val_data},           {"init", o->init}, {"tokenizer", o->tokenizer},
        {"order", o->order}, {"sample-prompt", o->sample_prompt}, {"lora", o->lora}, {"freeze", o->freeze},
        {"lr-of", o->lr_of}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].path && !is_utf8(all[i].path))
            return usage_error(&train_command,
                               "--%s is '%s', expected text in UTF-8: checkpoints record it for --resume, as JSON",
                               all[i].name, all[i].path);
    return 0;
}

int64_t train_memory(const train_options *o) { return o->memory ? text_read_bytes(o->memory) : TG_NONE; }

tg_token_windows train_windows(const train_options *o) {
    return o->attend_across ? TG_WINDOWS_ACROSS : o->pad_documents ? TG_WINDOWS_PADDED : TG_WINDOWS_PACKED;
}

/* Checks that the options of documents agree with each other. */
static int check_documents(const train_options *o) {
    if (o->attend_across && o->pad_documents)
        return usage_error(&train_command, "--pad-documents is for --no-attend-across; add that, or leave "
                           "--pad-documents out");
    return 0;
}

void train_options_complete(train_options *o, const parsed *p, bool resumed) {
    pipeline_options_complete(&train_command, p, &o->on);
    if (o->sample_prompt && !option_given(&train_command, p, "samples") && !o->samples) o->samples = 1;
    if (resumed) return;
    if (!option_given(&train_command, p, "warmup") && o->warmup > o->steps / 10) o->warmup = o->steps / 10;
    if (!option_given(&train_command, p, "min-lr") && o->min_lr > o->lr) o->min_lr = o->lr;
}

/* Returns the length of the decay of --lr-schedule wsd. If it is not given, it is what is left after the warm-up, at
 * most a tenth of the steps. */
static int64_t wsd_length(const train_options *o) {
    int64_t tenth = o->steps / 10, left = o->steps - o->warmup;
    return o->wsd_steps ? o->wsd_steps : tenth < left ? tenth : left;
}

/* Checks that the parts of the learning rate's schedule fit into the steps. */
static int check_schedule(const train_options *o, const parsed *p) {
    const command *c = &train_command;
    bool constant = o->lr_schedule == TG_DECAY_CONSTANT;
    if (constant && option_given(c, p, "min-lr"))
        return usage_error(c, "--min-lr ends a decay, but --lr-schedule is constant; leave --min-lr out");
    if (!constant && o->min_lr > o->lr) return usage_error(c, "--min-lr %g is above --lr %g", o->min_lr, o->lr);
    if (o->warmup > o->steps)
        return usage_error(c, "--warmup %lld is longer than --steps %lld", (long long)o->warmup, (long long)o->steps);
    if (o->wsd_steps > o->steps)
        return usage_error(c, "--wsd-steps %lld is more than --steps %lld", (long long)o->wsd_steps,
                           (long long)o->steps);
    if (o->lr_schedule != TG_DECAY_WSD && (option_given(c, p, "wsd-steps") || option_given(c, p, "wsd-decay")))
        return usage_error(c, "--wsd-steps and --wsd-decay are for --lr-schedule wsd, which is missing");
    if (o->lr_schedule == TG_DECAY_WSD && o->warmup + wsd_length(o) > o->steps)
        return usage_error(c,
                           "--warmup %lld and --wsd-steps %lld are more than --steps %lld together: the decay would "
                           "begin before the warm-up ends; give fewer of one of them, or more --steps",
                           (long long)o->warmup, (long long)o->wsd_steps, (long long)o->steps);
    return 0;
}

/* Checks that the options of validations have an effect. */
static int check_validations(const train_options *o, const parsed *p) {
    const command *c = &train_command;
    if (o->val_data && option_given(c, p, "val-fraction"))
        return usage_error(c, "--val-fraction is for validation on a part of --data, but --val-data names other files; "
                              "leave one out");
    if (!o->val_every && option_given(c, p, "val-batches"))
        return usage_error(c, "--val-batches is for validations, but --val-every is 0; give --val-every N");
    if (!o->samples && option_given(c, p, "sample-tokens"))
        return usage_error(c, "--sample-tokens is for --samples N or --sample-prompt TEXT, which are missing");
    return 0;
}

int train_options_check(const train_options *o, const parsed *p) {
    const command *c = &train_command;
    if (!o->data) return usage_error(c, "--data FILE, the data to train on, is missing");
    if (o->batch % o->accumulate)
        return usage_error(c, "--batch %lld cannot be cut into --%s %lld equal micro-batches", (long long)o->batch,
                           option_given_name(c, p, "micro-batches"), (long long)o->accumulate);
    if (check_schedule(o, p)) return 2;
    if (o->on.rng == TG_RNG_MEGATRON && !o->seed)
        return usage_error(c, "--rng megatron needs a --seed of 1 or more, but --seed is 0; give --seed N");
    bool ids = o->data_format == DATA_U16 || o->data_format == DATA_U32 || o->data_format == DATA_MEGATRON;
    if (ids && !o->model.vocab && !o->init)
        return usage_error(c, "--vocab N is missing: a file of token ids does not say how many ids there are");
    if (o->memory && text_read_bytes(o->memory) < 1)
        return usage_error(c, "--memory is '%s', expected bytes from 1 on, or a number with a unit, as 900M or 6G",
                           o->memory);
    if (o->resume_step && !o->resume) return usage_error(c, "--resume-step is for --resume; give both");
    bool model_sets_length = o->init && !option_given(c, p, "seq-len"); /* then it is checked with the model */
    int status = check_paths(o);
    if (!status) status = check_scale(o, p);
    if (!status) status = check_observers(o, p);
    if (!status) status = check_validations(o, p);
    if (!status) status = check_samples(o);
    if (!status) status = check_documents(o);
    if (!status) status = tune_options_check(o);
    if (!status) status = rank_options_check(c, p, &o->on);
    if (!status) status = zero_options_check(c, p, &o->on, rank_count(&o->on));
    if (!status) status = tp_options_check(c, p, &o->on, o->model.recompute);
    if (!status) status = cp_options_check(c, p, &o->on, model_sets_length ? 0 : o->model.seq_len);
    if (!status) status = pipeline_options_check(c, p, &o->on);
    if (status) return status;
    return o->init ? check_init(p) : model_options_check(c, &o->model, o->on.tp);
}

tg_schedule train_schedule(const train_options *o) {
    bool constant = o->lr_schedule == TG_DECAY_CONSTANT; /* then --min-lr, which is not used, may be above --lr */
    tg_schedule s = *TG_SCHEDULE(.lr = o->lr, .min_lr = constant ? o->lr : o->min_lr, .warmup = o->warmup,
                                 .steps = o->steps, .decay = (tg_decay)o->lr_schedule);
    if (s.decay != TG_DECAY_WSD) return s;
    s.wsd = (tg_wsd)o->wsd_decay;
    s.wsd_steps = wsd_length(o);
    return s;
}
