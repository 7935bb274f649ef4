/* Checks the options of draws (sampling_options.h). */
#include "generate/sampling_options.h"

int sampling_options_check(const command *c, const parsed *p, double temperature) {
    static const char *const of_draws[] = {"top-k", "top-p", "min-p"};
    for (size_t i = 0; temperature == 0 && i < sizeof of_draws / sizeof of_draws[0]; i++)
        if (option_given(c, p, of_draws[i]))
            return usage_error(c, "--%s is for draws, and --temperature 0 always takes the likeliest token; leave one "
                               "of them out", of_draws[i]);
    return 0;
}
