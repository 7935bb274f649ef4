/* What a run prints at its end: the commands that go on with it, or use the model. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/ranks.h"
#include "common/text.h"
#include "train/train.h"

/* Prints the first `length` bytes of text as one word of a shell command. Without memory for it, prints words that no
 * shell takes, so that a command which lacks the word cannot run. */
static void say_part(const char *text, size_t length) {
    size_t n = 4 * length + 3; /* a quotation mark takes four bytes */
    char *part = strndup(text, length), *word = part ? malloc(n) : NULL;
    say("%s", word ? text_shell_word(word, n, part) : "(no memory)");
    free(word);
    free(part);
}

static void say_word(const char *text) { say_part(text, strlen(text)); }

/* Prints the words of --data, each as one word of a shell command, with a space before it. In a run that was resumed in
 * another directory, relative paths belong to the directory in which it began (o->origin); for them prints paths that
 * lead there from here. */
static void say_data(const train_options *o) {
    size_t n;
    for (const char *line = o->data; *line; line += n + (line[n] == '\n')) {
        n = strcspn(line, "\n");
        char *word = strndup(line, n), *path = word ? path_from(o->origin, word) : NULL;
        say(" ");
        if (path) say_word(path);
        else say_part(line, n);
        free(path);
        free(word);
    }
}

/* Prints an option of the run and its value, which is a choice or a device, and so is short. */
static void say_option(const ending *e, const char *name) {
    char text[64];
    option_text(&train_command.options[option_find(&train_command, name)], e->o, text, sizeof text);
    say(" --%s ", name);
    say_word(text);
}

/* Prints --device, if it was given: neither checkpoints nor models keep it. */
static void say_device(const ending *e) {
    if (option_given(&train_command, e->p, "device")) say_option(e, "device");
}

/* Prints the end of a command that resumes the run: --device and --comm, if they were given, because checkpoints do not
 * keep them. */
static void say_place(const ending *e) {
    say_device(e);
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

/* Prints the beginning of a command: `label`, which says what it does; `launcher`, which starts its ranks; the program;
 * `words`, which end with the option that takes the run's directory; and the directory. */
static void say_command(const ending *e, const char *label, const char *launcher, const char *words) {
    say("%s: %s%s %s ", label, launcher, program_word(), words);
    say_word(e->o->out);
}

void say_what_next(const ending *e) {
    char launcher[4200];
    say_command(e, "generate", "", "generate --model");
    say(e->text ? " --prompt " : " --prompt-ids ");
    say_word(!e->text ? "1,2,3" : e->o->sample_prompt ? e->o->sample_prompt : "The ");
    say_device(e);
    say("\n");
    say_command(e, "evaluate", "", "eval --model");
    say(" --data");
    say_data(e->o);
    if (e->o->data_format != DATA_AUTO) say_option(e, "data-format");
    say("%s%s", e->o->attend_across ? "" : " --no-attend-across", e->o->pad_documents ? " --pad-documents" : "");
    say_device(e);
    say("\n");
    /* An older checkpoint would not continue from this model. And --steps takes at most MANY. */
    if (e->saved != e->o->steps || 2 * e->o->steps > (int64_t)MANY) return;
    launcher_text(&e->o->on, e->world, launcher, sizeof launcher);
    say_command(e, "train further", launcher, "train --resume --out");
    say(" --steps %" PRId64, 2 * e->o->steps);
    say_place(e);
}
