/* What the subcommands share. Each run_* gets the arguments behind its name and returns the exit status: 0, 1 for
 * errors of data, files and the library, 2 for errors of the command line. */
#ifndef TAPEGRAD_PROGRAM_H
#define TAPEGRAD_PROGRAM_H

#include <stdarg.h>
#include <stdio.h>

#include <jansson.h>

#include <tapegrad/io.h>
#include <tapegrad/nn.h>
#include <tapegrad/tapegrad.h>
#include <tapegrad/gpt.h>

#include "options.h"

int run_train(int argc, char **argv);
int run_run(int argc, char **argv);
int run_generate(int argc, char **argv);
int run_eval(int argc, char **argv);
int run_inspect(int argc, char **argv);
int run_gradcheck(int argc, char **argv);
int run_diff(int argc, char **argv);
int run_ops(int argc, char **argv);

/* Which subcommand runs: error messages begin with it. */
void name_command(const char *name);
/* A rank whose messages another prints says nothing; one among processes says which it is. */
void mute(bool on);
void name_rank(int rank);
/* printf, but for a rank that is mute or not the first. */
void say(const char *format, ...) TG_PRINTF(1, 2);
/* Whether a launcher started this process as rank 0, or none did: the others are silent about what all were given. */
bool is_first_process(void);
/* "tapegrad NAME: ..." to stderr as one line, in one piece: other ranks write there too. NAME may be "". */
void print_error(const char *name, const char *format, va_list args);
/* Standard output has the beginning of a line, behind which a message would stand: print_error ends it. */
void leave_line(bool open);
/* print_error of the subcommand that runs; 1. */
int fail(const char *format, ...) TG_PRINTF(1, 2);
/* Whether the context is in order; else its message is printed. */
bool check(const tg_ctx *ctx);
/* Prints json and frees it; the exit status. */
int print_json(json_t *json);
/* What path is where it is no regular file, in words; NULL: it is one, or not there yet. What is written to is to be
 * so: a device gives lines without end, and would lose its name to a file that takes its place. */
const char *not_regular(const char *path);
/* A regular file for reading; NULL after printing what is wrong. A pipe is not waited for. */
FILE *open_regular(const char *path);
/* The directory's file as a path to free; NULL is for no memory, which has been printed. */
char *path_in(const char *dir, const char *name);

/* ---- Models on the command line ---- */

typedef struct model_options {
    int arch, precision, recompute;
    int64_t layers, heads, kv_heads, hidden, ffn, vocab, seq_len;
    double dropout;
} model_options;

#define RECOMPUTE "none|full|selective|distributed" /* as tg_gpt_recompute */
#define PRECISIONS "fp32|bf16|fp16|fp64"
#define DATA_FORMATS "text|u16|u32|megatron"
#define DATA_FORMATS_HELP                                                                                              \
    "text: a token is a byte; u16, u32: raw token ids; megatron: FILE.bin and FILE.idx as Megatron-LM makes them"
#define MANY 1e9
#define MANY_LAYERS 1e4 /* each is made, one after the other */

/* Rows for the field `model` of the struct S. */
#define MODEL_ROWS(S)                                                                                                  \
    {"arch", OPTION_CHOICE, offsetof(S, model.arch), "gpt2|llama", "kind of model", .fixed = true},                    \
    {"layers", OPTION_INT, offsetof(S, model.layers), "N", "transformer layers", 1, MANY_LAYERS, true},                \
    {"heads", OPTION_INT, offsetof(S, model.heads), "N", "attention heads", 1, MANY, true},                            \
    {"kv-heads", OPTION_INT, offsetof(S, model.kv_heads), "N", "key-value heads; 0: as many as heads", 0, MANY, true}, \
    {"hidden", OPTION_INT, offsetof(S, model.hidden), "N", "width of the model", 1, MANY, true},                       \
    {"ffn", OPTION_INT, offsetof(S, model.ffn), "N", "width of the MLP; 0: the kind's own", 0, MANY, true},            \
    {"vocab", OPTION_INT, offsetof(S, model.vocab), "N", "token ids; 0: 256 for text", 0, 4294967296.0, true},         \
    {"seq-len", OPTION_INT, offsetof(S, model.seq_len), "N", "tokens of a sequence", 1, MANY, true},                   \
    {"dropout", OPTION_REAL, offsetof(S, model.dropout), "P", "dropout (gpt2)", 0, 0.999, true},                       \
    {"precision", OPTION_CHOICE, offsetof(S, model.precision), PRECISIONS, "of parameters and arithmetic",             \
     .fixed = true},                                                                                                   \
    {"recompute", OPTION_CHOICE, offsetof(S, model.recompute), RECOMPUTE,                                              \
     "in backward: each layer (its input shared out over tp: distributed), or norms and activations", .fixed = false}

#define MODEL_DEFAULTS {.layers = 4, .heads = 4, .hidden = 128, .seq_len = 128}

tg_dtype dtype_of_precision(int precision);
/* Checks what belongs together; 0, or the exit status after printing. */
int model_options_check(const command *c, const model_options *o);
/* The config of the options. */
tg_gpt_config model_config(const model_options *o);
/* How many parameters the model has, whatever the ranks and their padding; -1 after printing what is wrong. */
int64_t count_parameters(const tg_gpt_config *config);
/* Whether the model takes such sequences; else it prints so. */
bool check_seq_len(int64_t seq_len, const tg_gpt_config *config);
/* The config in a config.json; false after printing what is wrong. */
bool read_model_config(const char *path, tg_gpt_config *out);

/* ---- Losses ---- */

/* The sum of the losses of n sequences of seq_len tokens that begin at the offsets, in evaluation mode, at most
 * `batch` of them at once. Data-parallel ranks each have their own. NaN after an error. */
double sum_of_losses(tg_module *gpt, tg_tape *t, tg_tokens *tokens, const int64_t *offsets, int64_t n, int64_t seq_len,
                     int64_t batch);

/* ---- Random numbers of the program's own: number i of the sequence that a key names ---- */

static inline uint64_t random_at(uint64_t key, uint64_t i) {
    uint64_t z = key + (i + 1) * 0x9E3779B97F4A7C15u; /* SplitMix64 (Steele et al., OOPSLA 2014) */
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

#endif
