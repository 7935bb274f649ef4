/* The loss that a model of a size reaches with a number of tokens, some of them read several times: the law of
 * Muennighoff et al., "Scaling Data-Constrained Language Models" (NeurIPS 2023, arXiv 2305.16264), with the values that
 * they fit. It extends that of Hoffmann et al. (NeurIPS 2022, arXiv 2203.15556): about 20 tokens for each parameter are
 * best if all tokens are new. Tokens that are read again count less and less, and so do parameters beyond those that
 * the data can fill. */
#include <math.h>

#include "train/choose.h"

/* Returns how many different tokens (or useful parameters) `all` of them count as: the first `unique` count fully, and
 * the others less and less, by the constant r. */
static double worth(double all, double unique, double r) {
    double rest = all / unique - 1;
    return rest > 0 ? unique * (1 + r * (1 - exp(-rest / r))) : all;
}

double predict_loss(double parameters, double tokens, double unique) {
    static const double least = 1.87, a = 521, b = 1488, power = 0.353, repeated = 15.39, excess = 5.31;
    double per_token = pow(a / b, 1 / power); /* parameters for each token where more of either helps equally */
    double data = worth(tokens, tokens < unique ? tokens : unique, repeated);
    double size = worth(parameters, per_token * (tokens < unique ? tokens : unique), excess);
    return least + a / pow(size, power) + b / pow(data, power);
}
