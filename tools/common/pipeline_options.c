/* The options that divide a model over the stages of a pipeline: completes them, and checks that they agree. */
#include "common/ranks.h"

/* Returns whether the stages of the schedule may have several chunks. */
static bool takes_chunks(int schedule) { return schedule == TG_PIPE_GPIPE || schedule == TG_PIPE_INTERLEAVED; }

void pipeline_options_complete(const command *c, const parsed *p, rank_options *o) {
    bool given = option_given(c, p, "schedule");
    int64_t vp = o->vp;
    bool one_chunk = option_given(c, p, "pp") || o->pp == 1 || (given && !takes_chunks(o->schedule));
    if (one_chunk && !option_given(c, p, "vp")) o->vp = 1;
    bool divided = option_given(c, p, "pp") || option_given(c, p, "vp") || o->vp != vp;
    if (divided && !option_given(c, p, "layout")) o->layout = NULL;
    if (given) return;
    if (o->vp > 1 && !takes_chunks(o->schedule)) o->schedule = TG_PIPE_INTERLEAVED;
    if (o->vp == 1 && o->schedule == TG_PIPE_INTERLEAVED) o->schedule = TG_PIPE_1F1B;
}

int pipeline_options_check(const command *c, const parsed *p, const rank_options *o) {
    static const char *const names[] = {"vp", "schedule", "layout"};
    static const char *const kinds[] = {"gpipe", "1f1b", "interleaved", "zb-h1"};
    for (size_t i = 0; o->pp == 1 && i < sizeof names / sizeof names[0]; i++)
        if (option_given(c, p, names[i]) && !(i == 0 && o->vp == 1))
            return usage_error(c, "--%s needs --pp N of 2 or more, because it is for the stages of a pipeline",
                               names[i]);
    if (o->vp > 1 && !takes_chunks(o->schedule))
        return usage_error(c,
                           "--vp %lld: --schedule %s has one chunk of layers on each stage; leave --vp out, or give "
                           "--schedule interleaved or gpipe",
                           (long long)o->vp, kinds[o->schedule]);
    return 0;
}
