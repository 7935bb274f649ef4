/* Which parameters of a run are trained, and with which learning rates: --lora, --freeze and --lr-of. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/lora.h>

#include "common/text.h"
#include "train/tune.h"

enum { MOST = 4096 }; /* bytes of the text of an option */

/* ---- The options ---- */

/* Reads a number that must be the whole text. Returns whether it is one. */
static bool read_number(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && isfinite(*out);
}

/* Sets the field that `key` names from text. Returns false if there is no such key, or the value is none for it. */
static bool set_key(tg_lora_opts *l, const char *key, const char *text) {
    double v = 0;
    bool number = read_number(text, &v);
    if (!strcmp(key, "r") && number && v >= 1 && v <= 1e6 && v == floor(v)) return l->rank = (int64_t)v, true;
    if (!strcmp(key, "alpha") && number && v > 0) return l->alpha = v, true;
    if (!strcmp(key, "dropout") && number && v >= 0 && v < 1) return l->dropout = v, true;
    if (!strcmp(key, "rslora") && (!strcmp(text, "yes") || !strcmp(text, "no"))) return l->rslora = *text == 'y', true;
    return false;
}

/* Appends a pattern to a list. */
static void add_target(char *targets, const char *pattern) {
    size_t at = strlen(targets);
    snprintf(targets + at, MOST - at, "%s%s", at ? "," : "", pattern);
}

/* Reads --lora: KEY=VALUE,.. where targets=A,B,.. goes on until the next key. Returns NULL, or the part that is
 * wrong, which belongs to `words`. */
static const char *read_lora(const char *text, tg_lora_opts *l, char words[MOST], char targets[MOST]) {
    bool in_targets = false;
    *l = *TG_LORA();
    targets[0] = 0;
    snprintf(words, MOST, "%s", text);
    for (char *rest = words, *word; (word = strsep(&rest, ",")) != NULL;) {
        char *value = strchr(word, '=');
        bool names = value && !strncmp(word, "targets=", 8);
        if (names || (!value && in_targets)) {
            const char *name = names ? value + 1 : word;
            if (!*name) return word;
            in_targets = true;
            add_target(targets, name);
            continue;
        }
        in_targets = false;
        if (!value) return word;
        *value = 0;
        bool good = set_key(l, word, value + 1);
        *value = '=';
        if (!good) return word;
    }
    l->targets = *targets ? targets : NULL;
    return NULL;
}

/* Takes the next PATTERN=RATE from --lr-of. Returns false at the end. Sets *rate to NaN if it is not of that form, or
 * the rate is below 0. */
static bool take_rate(const char **rest, char pattern[MOST], double *rate) {
    *rest += strspn(*rest, ",");
    size_t n = strcspn(*rest, ",");
    if (!n) return false;
    snprintf(pattern, MOST, "%.*s", (int)n, *rest);
    *rest += n;
    char *value = strrchr(pattern, '=');
    if (!value || value == pattern || !read_number(value + 1, rate) || *rate < 0) *rate = NAN;
    if (value) *value = 0;
    return true;
}

static int check_lora(const train_options *o) {
    char words[MOST], targets[MOST];
    tg_lora_opts l;
    if (strlen(o->lora) >= MOST)
        return usage_error(&train_command, "--lora has %zu bytes, expected at most %d; patterns of targets may have *",
                           strlen(o->lora), MOST - 1);
    const char *wrong = read_lora(o->lora, &l, words, targets);
    if (wrong)
        return usage_error(&train_command,
                           "--lora '%s': '%s' is none of r=N (1 or more), alpha=X (above 0), dropout=P (0 to below 1), "
                           "rslora=yes|no and targets=NAME,NAME..",
                           o->lora, wrong);
    if (!o->init) return usage_error(&train_command, "--lora adapts a trained model: add --init DIR");
    if (o->freeze) return usage_error(&train_command, "--lora freezes the model already; leave --freeze out");
    return 0;
}

static int check_rates(const train_options *o) {
    char pattern[MOST];
    double rate;
    for (const char *rest = o->lr_of; take_rate(&rest, pattern, &rate);)
        if (isnan(rate))
            return usage_error(&train_command,
                               "--lr-of '%s': expected PATTERN=RATE, such as lm_head=1e-5, separated by "
                               "commas",
                               o->lr_of);
    if (o->lr > 0) return 0;
    return usage_error(&train_command, "--lr-of scales the schedule of --lr, but --lr is 0; give a rate above 0");
}

int tune_options_check(const train_options *o) {
    const char *given = o->lora ? "--lora" : o->freeze ? "--freeze" : o->lr_of ? "--lr-of" : NULL;
    int status = o->lora ? check_lora(o) : 0;
    if (!status && o->lr_of) status = check_rates(o);
    if (status) return status;
    if (given && o->on.pp > 1)
        return usage_error(&train_command, "%s needs --pp 1: the stages of a pipeline have different parameters",
                           given);
    if ((o->patience || o->keep_best) && (!o->val_every || (o->val_fraction == 0 && !o->val_data)))
        return usage_error(&train_command, "%s compares validation losses, but %s is 0",
                           o->patience ? "--patience" : "--keep-best", o->val_every ? "--val-fraction" : "--val-every");
    return 0;
}

/* ---- The model ---- */

/* Returns whether the context has no error; prints the error of a call that got the option's patterns. */
static bool check_patterns(const tg_ctx *ctx, const train_options *o, const char *option) {
    char dir[MOST] = "";
    if (tg_ctx_status(ctx) != TG_ERR_ARGUMENT) return check(ctx);
    if (o->init) text_shell_word(dir, sizeof dir, o->init);
    fail("%s: %s; %s inspect --parameters%s%s lists the paths of all parameters", option, tg_ctx_message(ctx),
         program_word(), o->init ? " --model " : "", dir);
    return false;
}

static void add_adapters(tg_module *m, const train_options *o, const char *adapter) {
    char words[MOST], targets[MOST];
    tg_lora_opts l;
    if (adapter) {
        tg_lora_load(m, adapter);
        return;
    }
    read_lora(o->lora, &l, words, targets);
    tg_lora_apply(m, &l);
}

/* Returns the number of elements of the parameters that are trained. */
static int64_t count_trained(const tg_module *m) {
    int64_t n = 0;
    for (int i = 0, all = tg_module_param_count(m); i < all; i++) {
        const tg_tensor *x = tg_module_param(m, i, NULL);
        if (tg_requires_grad(x)) n += tg_numel(x);
    }
    return n;
}

bool tune_model(trainer *r, const train_options *o, const char *adapter) {
    tg_module *m = r->stage.chunk[0];
    if (o->lora) add_adapters(m, o, adapter);
    if (!check_patterns(r->ctx, o, "--lora")) return false;
    if (o->freeze) tg_module_train(m, o->freeze, false);
    if (!check_patterns(r->ctx, o, "--freeze")) return false;
    if (o->freeze && !count_trained(m)) return fail("--freeze '%s' leaves no parameter to train", o->freeze), false;
    r->lora = o->lora != NULL;
    return true;
}

bool tune_groups(trainer *r, const train_options *o) {
    char pattern[MOST];
    double rate;
    for (const char *rest = o->lr_of; rest && take_rate(&rest, pattern, &rate);) {
        int group = tg_optim_add_group(r->optim, TG_GROUP(.lr_scale = rate / o->lr));
        if (group < 0 || tg_optim_assign_named(r->optim, group, pattern) < 0) break;
    }
    return check_patterns(r->ctx, o, "--lr-of");
}

/* The path of the base model is recorded as an absolute one, so that the adapters find it from any directory. */
void tune_save(trainer *r, const char *dir) {
    char *base = realpath(r->base, NULL);
    tg_lora_save(r->stage.chunk[0], dir, base ? base : r->base);
    free(base);
}

void tune_print(const trainer *r, const train_options *o) {
    const tg_module *m = r->stage.chunk[0];
    if (o->lora) say("low-rank adapters of %d layers of '%s' (%s)\n", tg_lora_count(m), o->init, o->lora);
    if (!tune_freezes(o)) return;
    int64_t trained = count_trained(m), all = tg_module_numel(m);
    say("%" PRId64 " of %" PRId64 " parameters are trained (%.3g %%)\n", trained, all,
        100 * (double)trained / (double)all);
}
