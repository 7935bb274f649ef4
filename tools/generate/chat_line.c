/* Lines of tapegrad chat: edited with libedit on a terminal, read as they are elsewhere. Ctrl-C ends a line or an
 * answer. */
#define _GNU_SOURCE
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TG_HAVE_LIBEDIT
#include <editline/readline.h>
#endif

#include "generate/chat.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal) {
    (void)signal;
    interrupted = 1;
}

bool chat_is_interactive(void) { return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO); }

/* libedit reads characters of the locale. Ours are UTF-8, also where the user's locale is another one. */
static void choose_characters(void) {
    const char *now = setlocale(LC_CTYPE, "");
    if (!now || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

/* Catches SIGINT without SA_RESTART, so that it also ends the reading of a line. */
void chat_begin_lines(void) {
    choose_characters();
    struct sigaction catch = {.sa_handler = on_interrupt};
    sigemptyset(&catch.sa_mask);
    sigaction(SIGINT, &catch, NULL);
}

bool chat_was_interrupted(void) {
    bool was = interrupted;
    interrupted = 0;
    return was;
}

static line_end read_plain(const char *prompt, char **line) {
    size_t capacity = 0;
    if (chat_is_interactive()) {
        fputs(prompt, stdout);
        fflush(stdout);
    }
    errno = 0;
    ssize_t n = getline(line, &capacity, stdin);
    if (n >= 0) {
        if (n && (*line)[n - 1] == '\n') (*line)[n - 1] = 0;
        return LINE_GIVEN;
    }
    bool stopped = chat_was_interrupted() || errno == EINTR;
    clearerr(stdin);
    free(*line);
    *line = NULL;
    return stopped ? LINE_INTERRUPTED : LINE_END;
}

#ifdef TG_HAVE_LIBEDIT
/* libedit puts the terminal back before it calls our handler, and ends the line. */
static line_end read_edited(const char *prompt, char **line) {
    *line = readline(prompt);
    if (*line && **line) add_history(*line);
    if (*line) return LINE_GIVEN;
    return chat_was_interrupted() ? LINE_INTERRUPTED : LINE_END;
}
#endif

line_end chat_read_line(const char *prompt, char **line) {
    *line = NULL;
    chat_was_interrupted();
#ifdef TG_HAVE_LIBEDIT
    if (chat_is_interactive()) return read_edited(prompt, line);
#endif
    return read_plain(prompt, line);
}
