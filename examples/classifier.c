/* classifier [ENGLISH GERMAN FRENCH]: recognizes the language of a word from its letters.
 *
 * The word lists are those of Debian's packages wamerican, wngerman and wfrench. A word is the bag of its n-grams of
 * one to four letters, which are hashed into a table of embeddings. The sum of the embeddings goes through an MLP. One
 * word in ten is held out, and more than 85 % of those must be recognized. Ends with status 77 if a list is missing. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/optim.h>
#include <tapegrad/tapegrad.h>

enum { LANGUAGES = 3, WORDS = 20000, LETTERS = 16, RUNS = 64, BUCKETS = 8192 }; /* RUNS: most n-grams of a word */
enum { WIDTH = 32, HIDDEN = 64, BATCH = 256, STEPS = 500 };
enum { ALL = LANGUAGES * WORDS, HELD_OUT = ALL / 10 / BATCH * BATCH, TRAIN = ALL - HELD_OUT };

static const struct {
    const char *path, *package;
} lists[LANGUAGES] = {{"/usr/share/dict/american-english", "wamerican"}, {"/usr/share/dict/ngerman", "wngerman"},
                      {"/usr/share/dict/french", "wfrench"}};

typedef struct word {
    int32_t run[RUNS]; /* for each n-gram, its row in the table of embeddings; the rest is 0 */
    int64_t language;
} word;

static uint32_t next_random(uint32_t *state) { /* xorshift32 (Marsaglia, 2003) */
    *state ^= *state << 13;
    *state ^= *state >> 17;
    return *state ^= *state << 5;
}

/* ---- Data ---- */

/* Makes a word from its letters. The n-grams are those of "<letters>", so that n-grams at the ends of a word differ
 * from the same letters in its middle. */
static word word_of(const char *letters, int language) {
    word w = {.language = language};
    char text[LETTERS + 3];
    int n = snprintf(text, sizeof text, "<%s>", letters), runs = 0;
    for (int length = 1; length <= 4; length++)
        for (int at = 0; at + length <= n && runs < RUNS; at++) {
            uint32_t hash = 2166136261u; /* FNV-1a */
            for (int i = 0; i < length; i++) hash = (hash ^ (uint8_t)tolower((unsigned char)text[at + i])) * 16777619u;
            w.run[runs++] = (int32_t)(1 + hash % (BUCKETS - 1));
        }
    return w;
}

/* Chooses WORDS words of the list at random, each with the same probability (reservoir sampling). */
static void read_list(const char *path, int language, word *out) {
    char line[256];
    uint32_t seen = 0, state = (uint32_t)(1 + language);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        size_t n = strcspn(line, "\n");
        line[n] = 0;
        if (n < 3 || n > LETTERS || strchr(line, '\'')) continue;
        uint32_t at = seen < WORDS ? seen : next_random(&state) % (seen + 1);
        if (at < WORDS) out[at] = word_of(line, language);
        seen++;
    }
    if (f) fclose(f);
    if (seen >= WORDS) return;
    fprintf(stderr, "classifier: %s is missing or has less than %d words; Debian's package %s has it\n", path, WORDS,
            lists[language].package);
    exit(77);
}

static void shuffle(word *words, int n) {
    uint32_t state = 7;
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(next_random(&state) % (uint32_t)(i + 1));
        word w = words[i];
        words[i] = words[j], words[j] = w;
    }
}

/* ---- Model ---- */

enum { TABLE, W1, B1, W2, B2, PARAMS };

/* Computes the logits [batch, LANGUAGES] of words whose n-grams are runs [batch, RUNS]. */
static tg_tensor *model(tg_tape *t, tg_tensor *const *p, tg_tensor *runs) {
    tg_tensor *bag = tg_sum(t, tg_embedding(t, p[TABLE], runs), TG_DIMS(1), false); /* [batch, WIDTH] */
    return tg_linear(t, tg_linear_relu(t, bag, p[W1], p[B1]), p[W2], p[B2]);
}

/* Writes BATCH words into the tensors. */
static void load(tg_tensor *runs, tg_tensor *languages, const word *words) {
    int32_t run[BATCH][RUNS];
    int64_t language[BATCH];
    for (int i = 0; i < BATCH; i++) {
        memcpy(run[i], words[i].run, sizeof run[i]);
        language[i] = words[i].language;
    }
    tg_write(runs, run, sizeof run);
    tg_write(languages, language, sizeof language);
}

/* Returns the fraction of n words that are recognized; n is a multiple of BATCH. */
static double accuracy(tg_tape *t, tg_tensor *const *p, tg_tensor *runs, tg_tensor *languages, const word *w, int n) {
    double sum = 0;
    tg_tape_set_grad_mode(t, false);
    for (int done = 0; done < n; done += BATCH) {
        load(runs, languages, w + done);
        tg_tensor *right = tg_eq(t, tg_argmax(t, model(t, p, runs), -1, false), languages);
        sum += tg_item(tg_sum(t, tg_cast(t, right, TG_F32), TG_ALL_DIMS, false));
        tg_tape_reset(t);
    }
    tg_tape_set_grad_mode(t, true);
    return sum / n;
}

int main(int argc, char **argv) {
    word *words = calloc(ALL, sizeof *words);
    if (!words) return 1;
    for (int i = 0; i < LANGUAGES; i++)
        read_list(argc > LANGUAGES ? argv[1 + i] : lists[i].path, i, words + i * WORDS);
    shuffle(words, ALL);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.seed = 1));
    tg_tensor *runs = tg_zeros(ctx, TG_I32, TG_SHAPE(BATCH, RUNS)), *languages = tg_zeros(ctx, TG_I64, TG_SHAPE(BATCH));
    tg_tensor *p[PARAMS] = {
        [TABLE] = tg_param_new(ctx, "embedding.weight", TG_F32, TG_SHAPE(BUCKETS, WIDTH), 0.1),
        [W1] = tg_param_new(ctx, "fc1.weight", TG_F32, TG_SHAPE(HIDDEN, WIDTH), 0.2),
        [B1] = tg_param_new(ctx, "fc1.bias", TG_F32, TG_SHAPE(HIDDEN), 0),
        [W2] = tg_param_new(ctx, "fc2.weight", TG_F32, TG_SHAPE(LANGUAGES, HIDDEN), 0.1),
        [B2] = tg_param_new(ctx, "fc2.bias", TG_F32, TG_SHAPE(LANGUAGES), 0),
    };
    tg_optim *opt = tg_adamw_new(ctx, p, PARAMS, TG_ADAMW(.lr = 5e-3));
    tg_tape *t = tg_tape_new(ctx);
    for (int step = 1; step <= STEPS; step++) {
        load(runs, languages, words + (step - 1) * BATCH % (TRAIN - BATCH));
        tg_tensor *loss = tg_cross_entropy(t, model(t, p, runs), languages, NULL);
        tg_backward(t, loss);
        tg_optim_step(opt);
        tg_optim_zero_grad(opt);
        if (step % 100 == 0) printf("%4d  %.4f\n", step, tg_item(loss));
        tg_tape_reset(t);
    }
    double share = accuracy(t, p, runs, languages, words + TRAIN, HELD_OUT);
    printf("%.1f %% of %d words held out are recognized\n", 100 * share, HELD_OUT);
    bool failed = tg_ctx_status(ctx) != TG_OK;
    if (failed) fprintf(stderr, "%s\n", tg_ctx_message(ctx));
    tg_optim_free(opt);
    tg_tape_free(t);
    tg_ctx_free(ctx);
    free(words);
    return failed || !(share > 0.85);
}
