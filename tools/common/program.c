/* Functions that the subcommands share: messages, files, the options that describe a model, and losses. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <tapegrad/world.h>

#include "common/ranks.h"
#include "common/text.h"

static const char *command_name = "";

void name_command(const char *name) {
    command_name = name;
}

static char program_text[4096] = "tapegrad";

void name_program(const char *path) {
    if (path && strchr(path, '/')) text_shell_word(program_text, sizeof program_text, path);
}

const char *program_word(void) { return program_text; }

static _Thread_local bool silent;
static bool line_open; /* the last line on standard output is incomplete; only rank 0 prints such lines */
static int process_rank; /* 0 if ranks are threads */
static _Atomic int64_t messages; /* number of messages printed so far */

int64_t message_count(void) { return messages; }

void mute(bool on) {
    silent = on;
}

void name_rank(int rank) {
    process_rank = rank;
}

void say(const char *format, ...) {
    va_list args;
    if (silent || process_rank) return;
    messages++;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
}

void flush_or_go_on(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return;
    int error = errno;
    line_open = false;
    if (!freopen("/dev/null", "w", stdout)) clearerr(stdout);
    warn("cannot write to standard output (%s); the run goes on without it", strerror(error));
}

bool is_first_process(void) {
    tg_world_info w = TG_WORLD_INFO();
    tg_world_query(&w, NULL, 0);
    return w.rank == 0;
}

void set_line_open(bool open) {
    line_open = open;
}

static _Thread_local char *held; /* buffer that receives this thread's first error; NULL: errors are printed */
static _Thread_local size_t held_size;

void hold_errors(char *buffer, size_t n) {
    held = buffer;
    held_size = n;
    if (held) held[0] = 0;
}

void print_error(const char *name, const char *format, va_list args) {
    char message[4096], text[4096], line[4200], rank[32] = "";
    vsnprintf(message, sizeof message, format, args); /* a longer message is truncated */
    text_drop_sites(message);
    if (held) {
        if (!held[0]) snprintf(held, held_size, "%s", message);
        return;
    }
    if (process_rank) snprintf(rank, sizeof rank, "rank %d: ", process_rank);
    snprintf(line, sizeof line, "tapegrad%s%s: %s%s\n", *name ? " " : "", name, rank,
             text_escape(text, sizeof text, message));
    if (line_open) putchar('\n');
    line_open = false;
    messages++;
    fflush(stdout);
    fputs(line, stderr);
}

int fail(const char *format, ...) {
    va_list args;
    if (silent) return 1;
    va_start(args, format);
    print_error(command_name, format, args);
    va_end(args);
    return 1;
}

void warn(const char *format, ...) {
    char message[4096];
    va_list args;
    if (silent || process_rank || held) return;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fail("warning: %s", message);
}

bool check(const tg_ctx *ctx) {
    if (tg_ctx_status(ctx) == TG_OK) return true;
    fail("%s", tg_ctx_message(ctx));
    return false;
}

double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool is_time_to_say(double *said) {
    enum { SECONDS = 5 };
    double now = seconds_now();
    if (now - *said < SECONDS) return false;
    *said = now;
    return true;
}

/* Returns the kind of a file that is not regular, such as "a directory"; NULL: it is regular. */
static const char *kind_of(const struct stat *st) {
    return S_ISREG(st->st_mode) ? NULL : S_ISDIR(st->st_mode) ? "a directory" : "a device, pipe or socket";
}

const char *not_regular(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? kind_of(&st) : NULL;
}

bool check_directory(const char *path) {
    struct stat st;
    bool other = stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
    if (!other && access(path, R_OK | X_OK) == 0) return true;
    return fail("cannot read the directory '%s': %s", path, strerror(other ? ENOTDIR : errno)), false;
}

bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

FILE *open_regular(const char *path) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    FILE *f = fd < 0 || fstat(fd, &st) != 0 ? NULL : fdopen(fd, "rb");
    if (!f) fail("cannot open '%s': %s", path, strerror(errno));
    if (!f && fd >= 0) close(fd);
    if (!f || !kind_of(&st)) return f;
    fail("'%s' is %s, expected a regular file", path, kind_of(&st));
    fclose(f);
    return NULL;
}

char *read_whole(const char *path, size_t *n) {
    enum { MOST = 16 << 20 };
    FILE *f = open_regular(path);
    if (!f) return NULL;
    char *text = malloc(MOST + 1);
    *n = text ? fread(text, 1, MOST + 1, f) : 0;
    bool good = text && !ferror(f) && *n <= MOST;
    if (text && ferror(f))
        fail("cannot read '%s': %s", path, strerror(errno));
    else if (!good)
        fail(text ? "'%s' is longer than 16 MiB, the most that such a file may have" : "no memory to read '%s'", path);
    fclose(f);
    if (good) return text;
    free(text);
    return NULL;
}

char *path_in(const char *dir, const char *name) {
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n);
    if (path)
        snprintf(path, n, "%s/%s", dir, name);
    else
        fail("no memory");
    return path;
}

bool is_there(const char *dir, const char *name) {
    char *path = path_in(dir, name);
    bool found = path && access(path, F_OK) == 0;
    free(path);
    return found;
}

/* ---- Models ---- */

tg_dtype dtype_of_precision(int precision) {
    static const tg_dtype dtypes[] = {TG_F32, TG_BF16, TG_F16, TG_F64};
    return dtypes[precision];
}

/* Refuses early, by the options alone, some of the models that tg_gpt_new would refuse on tp ranks. */
static int check_tp(const command *c, const model_options *o, int64_t kv_heads, int64_t tp) {
    if (o->heads % tp)
        return usage_error(c, "--heads %lld is not divisible by --tp %lld; each rank has the same number of heads",
                           (long long)o->heads, (long long)tp);
    if (kv_heads < tp ? tp % kv_heads : kv_heads % tp)
        return usage_error(c, "--kv-heads %lld and --tp %lld: one must be divisible by the other", (long long)kv_heads,
                           (long long)tp);
    if (o->ffn % tp)
        return usage_error(c, "--ffn %lld is not divisible by --tp %lld", (long long)o->ffn, (long long)tp);
    return 0;
}

int model_options_check(const command *c, const model_options *o, int64_t tp) {
    int64_t kv_heads = o->kv_heads ? o->kv_heads : o->heads;
    bool gpt2 = o->arch == ARCH_GPT2;
    char arch[32];
    arch_text(o->arch, arch, sizeof arch);
    if (o->hidden % o->heads)
        return usage_error(c, "--hidden %lld is not a multiple of --heads %lld", (long long)o->hidden,
                           (long long)o->heads);
    if (o->heads % kv_heads)
        return usage_error(c, "--heads %lld is not a multiple of --kv-heads %lld", (long long)o->heads,
                           (long long)kv_heads);
    if (gpt2 && kv_heads != o->heads)
        return usage_error(c, "--kv-heads %lld: --arch gpt2 has as many as --heads %lld; leave --kv-heads out",
                           (long long)kv_heads, (long long)o->heads);
    if (!gpt2 && o->hidden / o->heads % 2)
        return usage_error(c,
                           "--hidden %lld / --heads %lld is odd; --arch %s rotates pairs of elements and needs an "
                           "even number of them for each head",
                           (long long)o->hidden, (long long)o->heads, arch);
    if (!gpt2 && o->dropout > 0)
        return usage_error(c, "--dropout %g: --arch %s has no dropout; leave --dropout out", o->dropout, arch);
    return check_tp(c, o, kv_heads, tp);
}

/* Replaces the texts of a config by copies, which free_model_config frees. False after printing that there is no
 * memory; the config has no texts then. */
static bool copy_texts(tg_lm_config *c) {
    const char *kinds = c->attention_kinds, *extra = c->extra;
    c->attention_kinds = kinds ? strdup(kinds) : NULL;
    c->extra = extra ? strdup(extra) : NULL;
    if (!kinds == !c->attention_kinds && !extra == !c->extra) return true;
    free_model_config(c);
    return fail("no memory for the config of a model"), false;
}

const char *arch_text(int arch, char *buf, size_t n) {
    const char *at = ARCHS;
    for (; arch > 0; arch--) at += strcspn(at, "|"), at += *at == '|';
    snprintf(buf, n, "%.*s", (int)strcspn(at, "|"), at);
    return buf;
}

int arch_of(const char *family) {
    char name[32];
    for (int i = 0; *arch_text(i, name, sizeof name); i++)
        if (!strcmp(name, family)) return i;
    return ARCH_LLAMA;
}

bool model_config(const model_options *o, tg_lm_config *out) {
    char family[32];
    *out = *TG_LM(.vocab = o->vocab, .layers = o->layers, .heads = o->heads, .hidden = o->hidden,
                  .kv_heads = auto_if_zero(o->kv_heads), .ffn = auto_if_zero(o->ffn), .positions = o->seq_len,
                  .dropout = o->dropout, .recompute = (tg_gpt_recompute)o->recompute);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    tg_lm_family_config(ctx, arch_text(o->arch, family, sizeof family), out);
    bool good = copy_texts(out) && check(ctx);
    tg_ctx_free(ctx);
    return good;
}

bool read_model_config(const char *path, tg_lm_config *out) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    tg_module *lm = tg_lm_from_config(ctx, path, NULL);
    bool good = check(ctx);
    if (good) {
        *out = *tg_lm_config_of(lm);
        good = copy_texts(out);
    }
    tg_module_free(lm);
    tg_ctx_free(ctx);
    return good;
}

void free_model_config(tg_lm_config *c) {
    free((char *)c->attention_kinds);
    free((char *)c->extra);
    c->attention_kinds = c->extra = NULL;
}

tg_module *whole_model(tg_ctx *ctx, const tg_lm_config *config) {
    tg_lm_config whole = *config;
    whole.parallel = NULL;
    whole.layout = NULL;
    whole.chunk = 0;
    whole.cp_inner = TG_AUTO;
    tg_module *m = tg_lm_new(ctx, &whole);
    if (check(ctx)) return m;
    tg_module_free(m);
    return NULL;
}

int64_t count_parameters(const tg_lm_config *config) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    tg_module *m = whole_model(ctx, config);
    int64_t n = m ? tg_module_numel(m) : -1;
    tg_module_free(m);
    tg_ctx_free(ctx);
    return n;
}

bool check_seq_len(int64_t seq_len, const tg_lm_config *config) {
    if (seq_len <= config->positions) return true;
    fail("--seq-len %lld is more than the model's %lld positions; give at most that many", (long long)seq_len,
         (long long)config->positions);
    return false;
}

/* ---- Losses ---- */

/* Returns this rank's part of n sequences. buffer: memory for n seq_len numbers. */
static tg_tensor *read_batch(tg_ctx *ctx, const tg_parallel *p, tg_tokens *tokens, const int64_t *offsets, int64_t n,
                             int64_t seq_len, token_kind kind, int64_t *buffer) {
    int64_t length = tokens_of_rank(p, seq_len);
    for (int64_t i = 0; i < n; i++) read_tokens_of_rank(p, tokens, offsets[i], seq_len, kind, buffer + i * length);
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(n, length), buffer);
    place_batch(p, x, false);
    return x;
}

/* Returns the sum of the losses of n sequences, computed at once. buffer: memory for n seq_len numbers. */
static double loss_of_batch(tg_module *gpt, tg_tape *t, tg_tokens *tokens, const int64_t *offsets, int64_t n,
                            int64_t seq_len, int64_t *buffer) {
    const tg_parallel *p = tg_lm_config_of(gpt)->parallel;
    int kinds = tg_tokens_windows(tokens) == TG_WINDOWS_PACKED ? 3 : 2;
    tg_tensor *x[3] = {NULL};
    for (int k = 0; k < kinds; k++)
        x[k] = read_batch(tg_tape_ctx(t), p, tokens, offsets, n, seq_len, (token_kind)k, buffer);
    double sum = tg_item(x[TOKEN_POSITIONS] ? tg_lm_packed_loss(gpt, t, x[TOKEN_IDS], x[TOKEN_POSITIONS],
                                                                x[TOKEN_TARGETS], TG_LOSS_SUM)
                                            : tg_gpt_loss(gpt, t, x[TOKEN_IDS], x[TOKEN_TARGETS], TG_LOSS_SUM));
    tg_tape_reset(t);
    for (int k = 0; k < kinds; k++) tg_drop(x[k]);
    return sum;
}

double sum_of_losses(tg_module *gpt, tg_tape *t, tg_tokens *tokens, const int64_t *offsets, int64_t n, int64_t seq_len,
                     int64_t batch) {
    if (batch > n) batch = n;
    int64_t *buffer = calloc((size_t)(batch * seq_len), sizeof *buffer);
    if (!buffer) {
        tg_ctx_fail(tg_tape_ctx(t), TG_ERR_MEMORY, "no memory for a batch of %lld tokens",
                    (long long)(batch * seq_len));
        return NAN;
    }
    bool training = tg_tape_set_training(t, false), grad = tg_tape_set_grad_mode(t, false);
    double sum = 0;
    for (int64_t i = 0; i < n; i += batch)
        sum += loss_of_batch(gpt, t, tokens, offsets + i, n - i < batch ? n - i : batch, seq_len, buffer);
    tg_tape_set_training(t, training);
    tg_tape_set_grad_mode(t, grad);
    free(buffer);
    return sum;
}
