/* What a run prints at its end: the commands that go on with it, or use the model. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/ranks.h"
#include "common/text.h"
#include "train/train.h"

/* Prints text as one word of a shell command. */
static void say_word(const char *text) {
    size_t n = 4 * strlen(text) + 3; /* a quotation mark takes four bytes */
    char *word = malloc(n);
    if (word) say("%s", text_shell_word(word, n, text));
    free(word);
}

/* Prints words that are separated by line breaks, each after a space. */
static void say_words(const char *words) {
    char word[4096];
    for (size_t n; *words; words += n + (words[n] == '\n')) {
        n = strcspn(words, "\n");
        snprintf(word, sizeof word, "%.*s", (int)n, words);
        say(" ");
        say_word(word);
    }
}

static void say_option(const ending *e, const char *name) {
    char text[4096];
    option_text(&train_command.options[option_find(&train_command, name)], e->o, text, sizeof text);
    say(" --%s ", name);
    say_word(text);
}

/* Prints the end of a command that resumes the run: options that checkpoints do not keep, if they were given. */
static void say_place(const ending *e) {
    if (option_given(&train_command, e->p, "device")) say_option(e, "device");
    if (option_given(&train_command, e->p, "comm")) say_option(e, "comm");
    say("\n");
}

void say_how_to_go_on(const ending *e, int64_t step) {
    char launcher[4200];
    say("interrupted after step %" PRId64 "; to go on: %s%s train --resume --out ", step,
        launcher_text(&e->o->on, e->world, launcher, sizeof launcher), program_word());
    say_word(e->o->out);
    say_place(e);
}

/* Prints the beginning of a command that uses the model: what it does, how its ranks are started, and the command up to
 * the name of the model. */
static void say_command(const ending *e, const char *what, const char *launcher, const char *words) {
    say("%s: %s%s %s ", what, launcher, program_word(), words);
    say_word(e->o->out);
}

void say_what_next(const ending *e) {
    char launcher[4200];
    say_command(e, "generate", "", "generate --model");
    say(e->text ? " --prompt " : " --prompt-ids ");
    say_word(!e->text ? "1,2,3" : e->o->sample_prompt ? e->o->sample_prompt : "The ");
    say_command(e, "\nevaluate", "", "eval --model");
    say(" --data");
    say_words(e->o->data);
    if (e->o->data_format != DATA_AUTO) say_option(e, "data-format");
    say("%s%s\n", e->o->attend_across ? "" : " --no-attend-across", e->o->pad_documents ? " --pad-documents" : "");
    if (e->saved != e->o->steps) return;
    launcher_text(&e->o->on, e->world, launcher, sizeof launcher);
    say_command(e, "train on", launcher, "train --resume --out");
    say(" --steps %" PRId64, 2 * e->o->steps);
    say_place(e);
}
