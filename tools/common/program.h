/* Functions that the subcommands share: their entry points, messages, files, the options that describe a model, and the
 * loss of a model on sequences. Each run_* function gets the arguments after the subcommand's name and returns the exit
 * status: 0 for success, 1 for errors of data, files and the library, 2 for errors of the command line. run_diff and
 * run_run have other statuses too (see their help). */
#ifndef TAPEGRAD_PROGRAM_H
#define TAPEGRAD_PROGRAM_H

#include <stdarg.h>
#include <stdio.h>

#include <jansson.h>

#include <tapegrad/gpt.h>
#include <tapegrad/io.h>
#include <tapegrad/nn.h>
#include <tapegrad/tapegrad.h>

#include "common/options.h"

int run_train(int argc, char **argv);
int run_run(int argc, char **argv);
int run_world(int argc, char **argv);
int run_generate(int argc, char **argv);
int run_chat(int argc, char **argv);
int run_eval(int argc, char **argv);
int run_inspect(int argc, char **argv);
int run_schedule(int argc, char **argv);
int run_tokenizer(int argc, char **argv);
int run_tokenize(int argc, char **argv);
int run_convert(int argc, char **argv);
int run_check(int argc, char **argv);
int run_gradcheck(int argc, char **argv);
int run_compare(int argc, char **argv);
int run_tape(int argc, char **argv);
int run_diff(int argc, char **argv);
int run_ops(int argc, char **argv);

/* Keeps how the program was started: argv[0], which may be NULL. Called before other threads exist. */
void name_program(const char *path);
/* Returns the word with which a command in a message begins, so that the user can start it: the path of the program as
 * it was given, in quotes if it needs them, or "tapegrad" if the shell has found the program by its name. */
const char *program_word(void);
/* Sets the subcommand whose name error messages begin with. */
void name_command(const char *name);
/* Silences this thread if `on` is true, else lets it print again. Of ranks that are threads, all but rank 0 are
 * silenced, so that each message is printed once. */
void mute(bool on);
/* Sets the rank of this process if ranks are processes. Error messages of ranks other than 0 begin with the rank. */
void name_rank(int rank);
/* Prints like printf, unless this thread is silenced or this process is not rank 0. */
void say(const char *format, ...) TG_PRINTF(1, 2);
/* Returns how many messages say, fail and warn have printed in this process. */
int64_t message_count(void);
/* Writes out what say and printf have printed. If that fails, for example because a pipe was closed, warns once and
 * discards all later output, so that a long run does not end because of its messages. */
void flush_or_go_on(void);
/* Returns whether a launcher started this process as rank 0, or no launcher started it. Errors that all processes of a
 * job have in common, such as those of the command line, are printed by this first process alone. */
bool is_first_process(void);
/* Prints "tapegrad NAME: ..." to standard error as one line, by one write, because other ranks write there too. `name`
 * is NAME, and may be "". Control characters are escaped. */
void print_error(const char *name, const char *format, va_list args);
/* Must be called when the last line on standard output becomes incomplete (true) or complete (false). print_error first
 * ends an incomplete line. */
void set_line_open(bool open);
/* Prints an error of the running subcommand. Returns 1, the exit status for it. */
int fail(const char *format, ...) TG_PRINTF(1, 2);
/* Prints a warning of the running subcommand. Ranks other than 0 print none. */
void warn(const char *format, ...) TG_PRINTF(1, 2);
/* From now on stores this thread's first error in the buffer of n bytes, and prints neither errors nor warnings. With
 * buffer NULL they are printed again. */
void hold_errors(char *buffer, size_t n);
/* Returns whether the context has no error; prints its error message if it has one. */
bool check(const tg_ctx *ctx);
/* Converts an option of the program, where 0 leaves the choice to the library, to an option of the library. */
static inline int64_t auto_if_zero(int64_t v) { return v ? v : TG_AUTO; }
/* Makes json_text notice members that are missing. main calls it before any other function that uses JSON. */
void json_text_begin(void);
/* Returns the text of a JSON value, with the flags of jansson's json_dumps. The caller frees it. Returns NULL if json
 * is NULL, and if this thread has lacked memory for JSON since its last call, because json may then lack a member. So
 * code that builds a value need not check that each member was added. */
char *json_text(const json_t *json, size_t flags);
/* Prints json and frees it. Returns the exit status. */
int print_json(json_t *json);
/* Returns the time of the monotonic clock in seconds. */
double seconds_now(void);
/* Returns whether five seconds have passed since *said, a time of seconds_now; if so, sets *said to now. Progress that
 * is printed only then does not fill the terminal. */
bool is_time_to_say(double *said);
/* Returns the kind of the file at path if it is not a regular file ("a directory"); NULL if it is regular or does not
 * exist. Files to write must be regular, because writing replaces the file: a device would be lost. */
const char *not_regular(const char *path);
/* Returns whether the path leads to a directory whose files can be found; prints why if it does not. */
bool check_directory(const char *path);
/* Returns whether both paths lead to one file or directory that exists. */
bool same_file(const char *a, const char *b);
/* Opens a regular file for reading, and refuses others at once, without waiting for the writer of a pipe. NULL after
 * printing what is wrong. */
FILE *open_regular(const char *path);
/* Returns all *n bytes of a regular file of at most 16 MiB, which the caller frees. NULL after printing what is
 * wrong. */
char *read_whole(const char *path, size_t *n);
/* Returns "dir/name", which the caller frees. NULL after printing that there is no memory. */
char *path_in(const char *dir, const char *name);
/* Returns whether dir has a file of that name. */
bool is_there(const char *dir, const char *name);

/* ---- Models on the command line ---- */

typedef struct model_options {
    int arch, precision, recompute;
    int64_t layers, heads, kv_heads, hidden, ffn, vocab, seq_len;
    double dropout;
} model_options;

#define RECOMPUTE "none|full|selective|distributed" /* in the order of tg_gpt_recompute */
#define PRECISIONS "fp32|bf16|fp16|fp64"
#define DATA_FORMATS "text|u16|u32|megatron"
#define DATA_FORMATS_HELP                                                                                              \
    "text: each byte is a token; u16, u32: raw little-endian token ids; megatron: FILE.bin and FILE.idx of Megatron-LM"
#define DEVICES "cpu|cuda|cuda:N"
#define MANY 1e9                      /* upper limit of counts */
#define MANY_LAYERS 1e4               /* upper limit of layers, lower because each layer takes time to create */
#define LARGEST 9223372036854775807.0 /* INT64_MAX, rounded to a double */

/* The families of new models, which tg_lm_family lists, in the order of model_options.arch. */
#define ARCHS "gpt2|llama|mistral|qwen2|qwen3|smollm3|gemma|gemma2|gemma3_text|phi|phi3|olmo|olmo2"
enum { ARCH_GPT2, ARCH_LLAMA };

/* Rows of options for the field `model` of the struct S. */
#define MODEL_ROWS(S)                                                                                                  \
    {"arch", OPTION_CHOICE, offsetof(S, model.arch), ARCHS, "family of the model", .fixed = true},                     \
    {"layers", OPTION_INT, offsetof(S, model.layers), "N", "transformer layers", 1, MANY_LAYERS, true},                \
    {"heads", OPTION_INT, offsetof(S, model.heads), "N", "attention heads", 1, MANY, true},                            \
    {"kv-heads", OPTION_INT, offsetof(S, model.kv_heads), "N", "key-value heads; 0: as many as --heads", 0, MANY,      \
     true},                                                                                                            \
    {"hidden", OPTION_INT, offsetof(S, model.hidden), "N", "width of the model", 1, MANY, true},                       \
    {"ffn", OPTION_INT, offsetof(S, model.ffn), "N", "width of the MLP; 0: what is usual for --arch", 0, MANY, true},  \
    {"vocab", OPTION_INT, offsetof(S, model.vocab), "N", "number of token ids; 0: 256, for text", 0, 4294967296.0,     \
     true},                                                                                                            \
    {"seq-len", OPTION_INT, offsetof(S, model.seq_len), "N", "tokens of a sequence", 1, MANY, true},                   \
    {"dropout", OPTION_REAL, offsetof(S, model.dropout), "P", "dropout probability (gpt2 only)", 0, 0.999, true},      \
    {"precision", OPTION_CHOICE, offsetof(S, model.precision), PRECISIONS, "dtype of parameters and arithmetic",       \
     .fixed = true},                                                                                                   \
    {"recompute", OPTION_CHOICE, offsetof(S, model.recompute), RECOMPUTE,                                              \
     "what backward computes again to save memory: nothing; each layer (full); norms and activations (selective); "   \
     "each layer, whose input is split over --tp (distributed)", .fixed = false}

/* The rows of the number of micro-batches, an option with two names, for the field `accumulate` of the struct S. */
#define MICRO_BATCH_ROWS(S, FIXED)                                                                                     \
    {"micro-batches", OPTION_INT, offsetof(S, accumulate), "N", "micro-batches into which a step's batch is split", 1, \
     MANY, FIXED},                                                                                                     \
    {"accumulate", OPTION_INT, offsetof(S, accumulate), "N", "another name of --micro-batches", 1, MANY, FIXED}

#define MODEL_DEFAULTS {.layers = 4, .heads = 4, .hidden = 128, .seq_len = 128}

tg_dtype dtype_of_precision(int precision);
/* Checks that the options agree with each other and with tp tensor-parallel ranks. Returns 0, or the exit status after
 * printing what is wrong. */
int model_options_check(const command *c, const model_options *o, int64_t tp);
/* Writes the name of a family of ARCHS, by its number, to buf, and returns buf. */
const char *arch_text(int arch, char *buf, size_t n);
/* Returns the number of a family in ARCHS; ARCH_LLAMA if it is not there. */
int arch_of(const char *family);
/* Sets *out to the config that the options describe, whose texts free_model_config frees. False after printing what is
 * wrong. */
bool model_config(const model_options *o, tg_lm_config *out);
/* Makes the whole model on one rank, without the padding of the vocabulary for ranks. ctx: of device meta, where it
 * takes no memory. Returns NULL after printing what is wrong; else the caller frees the model. */
tg_module *whole_model(tg_ctx *ctx, const tg_lm_config *config);
/* Returns the number of parameters of the whole model, without the padding of the vocabulary for ranks; -1 after
 * printing what is wrong. */
int64_t count_parameters(const tg_lm_config *config);
/* Returns whether the model takes sequences of seq_len tokens; prints why if it does not. */
bool check_seq_len(int64_t seq_len, const tg_lm_config *config);
/* Reads a config.json of any family, whose texts free_model_config frees. False after printing what is wrong. */
bool read_model_config(const char *path, tg_lm_config *out);
void free_model_config(tg_lm_config *c);

/* ---- Losses ---- */

/* Returns the sum of the losses of n sequences of seq_len tokens that begin at the offsets, computed in evaluation
 * mode, at most `batch` sequences at once. Each data-parallel rank passes its own sequences, and a rank of cp computes
 * the losses of its own rows; the sums of the ranks are not added up. Returns NaN after an error, which is recorded in
 * the context. */
double sum_of_losses(tg_module *gpt, tg_tape *t, tg_tokens *tokens, const int64_t *offsets, int64_t n, int64_t seq_len,
                     int64_t batch);

/* ---- Random numbers of the program's own ---- */

/* Returns element i of the pseudorandom sequence whose seed is `key`. */
static inline uint64_t random_at(uint64_t key, uint64_t i) {
    uint64_t z = key + (i + 1) * 0x9E3779B97F4A7C15u; /* SplitMix64 (Steele et al., OOPSLA 2014) */
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

#endif
