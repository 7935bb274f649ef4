/* The checkpoint that a run continues from: which one it is, and why it cannot be used if it cannot. */
#include <inttypes.h>
#include <stdio.h>

#include "train/run.h"

bool refuse_checkpoint(const plan *r) {
    char remedy[256] = "";
    hold_errors(NULL, 0);
    if (r->chief && !checkpoint_is_whole(r->from)) {
        int64_t step = checkpoint_newest_whole(r->o.out, r->o.resume_step ? INT64_MAX : r->done);
        if (step)
            snprintf(remedy, sizeof remedy,
                     "; the newest whole checkpoint is that of step %" PRId64 ": add --resume-step %" PRId64
                     " to go on from it",
                     step, step);
        else
            snprintf(remedy, sizeof remedy, "; no checkpoint of this run is whole");
    }
    return fail("%s%s", r->held, remedy), false;
}

/* Returns the step given by --resume-step if the run has a checkpoint of it; else -1 after printing an error. */
static int64_t find_given_step(const plan *r) {
    int64_t newest = newest_checkpoint(r->o.out);
    for (int64_t step = newest; step > 0; step = newest_checkpoint_before(r->o.out, step))
        if (step == r->o.resume_step) return step;
    fail("--resume-step %" PRId64 ": '%s' has no checkpoint of that step%s", r->o.resume_step, r->o.out,
         newest ? "" : ", nor any other");
    return -1;
}

/* Returns the step of the checkpoint to continue from. Returns 0 if there is none and the run begins at its first step,
 * which a run that was killed before its first checkpoint does too. Returns -1 after printing why the run cannot
 * begin. */
static int64_t look_for_checkpoint(plan *r) {
    run_directory *d = &r->directory;
    if (!r->chief && r->o.resume_step) return r->o.resume_step;
    if (!r->chief) return r->o.resume ? newest_checkpoint(r->o.out) : 0;
    if (!directory_open(d, r->o.out)) return -1;
    if (!r->o.resume) return directory_unused(d) ? 0 : -1;
    if (!directory_resumable(d)) return -1;
    if (r->o.resume_step) return find_given_step(r);
    if (d->newest >= 0) return d->newest;
    if (!r->o.data)
        return fail("there is no checkpoint in '%s': give the --out of a run that has one, or --data FILE and the "
                    "run's other options, to begin at its first step",
                    r->o.out),
               -1;
    say("no checkpoint in '%s': the run begins at its first step\n", r->o.out);
    return 0;
}

bool find_checkpoint(plan *r) {
    r->done = look_for_checkpoint(r);
    if (r->done <= 0) return r->done == 0;
    if (snprintf(r->from, sizeof r->from, "%s/checkpoints/step-%010" PRId64, r->o.out, r->done) >= (int)sizeof r->from)
        return fail("the path of '%s' is too long", r->o.out), false;
    hold_errors(r->held, sizeof r->held);
    bool good = checkpoint_read_options(r->from, &r->o, &r->p, &r->state);
    hold_errors(NULL, 0);
    return good || refuse_checkpoint(r);
}
