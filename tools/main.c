/* The program tapegrad: finds the subcommand and calls it. Subcommand NAME is in the file NAME.c. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/program.h"

typedef struct entry {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} entry;

static const entry entries[] = {
    {"train", run_train, "train a GPT language model on a file"},
    {"run", run_run, "start a program as N processes that share memory"},
    {"world", run_world, "say how this process was started, and let the ranks meet"},
    {"generate", run_generate, "continue a prompt"},
    {"chat", run_chat, "talk with a model"},
    {"eval", run_eval, "compute the loss and perplexity of a model on a file"},
    {"inspect", run_inspect, "print the parameters, FLOPs and memory of a training step"},
    {"schedule", run_schedule, "print the schedule of a pipeline and what it costs"},
    {"tokenizer", run_tokenizer, "train a tokenizer, or show what one does"},
    {"tokenize", run_tokenize, "encode documents as token ids"},
    {"convert", run_convert, "convert a model to saved state of ranks, or back"},
    {"check", run_check, "read all of a checkpoint or model, and name what is damaged"},
    {"gradcheck", run_gradcheck, "check the ops' gradients against finite differences"},
    {"compare", run_compare, "compare training runs, also as a page of curves"},
    {"tape", run_tape, "show the tape of a model's step: ops, times and memory"},
    {"diff", run_diff, "compare two recorded steps op by op"},
    {"ops", run_ops, "print the table of ops"},
};

enum { ENTRIES = sizeof entries / sizeof entries[0] };

static const char *name_of_entry(const void *of, int i) {
    return ((const entry *)of)[i].name;
}

static int help(FILE *to) {
    fprintf(to, "usage: tapegrad COMMAND [OPTION...]\n\n");
    for (int i = 0; i < ENTRIES; i++) fprintf(to, "  %-11s %s\n", entries[i].name, entries[i].summary);
    fprintf(to, "\n'tapegrad COMMAND --help' lists a command's options; 'tapegrad --version' prints\nthe version.\n");
    return to == stdout ? 0 : 2;
}

static int unknown(const char *name) {
    if (!is_first_process()) return 2;
    const char *near = nearest_name(name, name_of_entry, entries, ENTRIES);
    fprintf(stderr, "tapegrad: there is no command '%s'", name);
    if (near) fprintf(stderr, "; did you mean '%s'?", near);
    fprintf(stderr, "\n");
    return help(stderr);
}

static bool asks_help(const char *word) {
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
}

static int run(int argc, char **argv) {
    if (argc < 2) return help(stderr);
    bool asked = asks_help(argv[1]);
    if (asked && (argc == 2 || asks_help(argv[2]))) return help(stdout);
    if (strcmp(argv[1], "--version") == 0) {
        printf("tapegrad %s\n", tg_version());
        return 0;
    }
    const char *name = argv[asked ? 2 : 1];
    char option[] = "--help";
    for (int i = 0; i < ENTRIES; i++) {
        if (strcmp(name, entries[i].name) != 0) continue;
        name_command(name);
        return asked ? entries[i].run(1, (char *[]){option, NULL}) : entries[i].run(argc - 2, argv + 2);
    }
    return unknown(name);
}

/* Opens /dev/null for those of descriptors 0 to 2 that the caller has closed. Otherwise the next files that the
 * program opens would get these numbers, and messages would be written into them. */
static bool fill_descriptors(void) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) return false;
    return true;
}

int main(int argc, char **argv) {
    if (!fill_descriptors()) return fail("cannot open '/dev/null' in place of closed output: %s", strerror(errno));
    json_text_begin();
    name_program(argc > 0 ? argv[0] : NULL);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit of a file's size then fails with EFBIG */
    int status = run(argc, argv);
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    if (written) return status;
    fail("cannot write to standard output");
    return argc > 1 && strcmp(argv[1], "diff") == 0 ? 2 : 1; /* diff ends with 1 if runs differ */
}
