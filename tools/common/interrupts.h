/* The signals that ask a command to end: SIGINT, SIGTERM and SIGHUP. */
#ifndef TAPEGRAD_INTERRUPTS_H
#define TAPEGRAD_INTERRUPTS_H

#include <signal.h>

/* Calls sigaction, unless the signal was ignored when the program began: a shell makes its background jobs ignore
 * SIGINT, which is meant for the job in the foreground, and nohup makes a program ignore SIGHUP. */
void catch_signal(int number, const struct sigaction *a);

/* From now on the first one of each of the three signals is noted only, so that the command can end in order. A second
 * one of the same number ends the program. flags: more flags of sigaction, such as SA_RESTART. `also` is called in the
 * handler with the number of the signal; it may be NULL. */
void interrupts_catch(int flags, void (*also)(int number));
/* Returns the number of the signal that was noted last, or 0. May be called by any thread. */
int interrupted_by(void);

#endif
