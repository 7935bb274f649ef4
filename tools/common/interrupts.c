/* Notes the signals that ask a command to end. */
#include "common/interrupts.h"

#include <stddef.h>

static volatile sig_atomic_t noted;
static void (*on_signal)(int number);

void catch_signal(int number, const struct sigaction *a) {
    struct sigaction was;
    if (sigaction(number, NULL, &was) == 0 && was.sa_handler != SIG_IGN) sigaction(number, a, NULL);
}

static void on_interrupt(int number) {
    noted = number;
    if (on_signal) on_signal(number);
}

void interrupts_catch(int flags, void (*also)(int number)) {
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND | flags};
    sigemptyset(&a.sa_mask);
    on_signal = also;
    catch_signal(SIGINT, &a);
    catch_signal(SIGTERM, &a);
    catch_signal(SIGHUP, &a);
}

int interrupted_by(void) { return noted; }
