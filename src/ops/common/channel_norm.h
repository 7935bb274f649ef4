/* What batch norm and group norm share. x [n, c, ..] is looked at as [n, groups, c / groups, the rest], and brought to
 * mean 0 and variance 1 over some of these dims; then it is multiplied with w and b is added, by channel. */
#ifndef TG_CHANNEL_NORM_H
#define TG_CHANNEL_NORM_H

#include "ops/common/op.h"

enum { TG_NORM_X, TG_NORM_W, TG_NORM_B }; /* inputs; w and b may be absent */
enum { TG_NORM_MEAN, TG_NORM_RSTD };      /* private saved buffers */
enum { TG_NORM_DIMS = 4 };

typedef struct tg_channel_norm {
    int64_t shape[TG_NORM_DIMS]; /* of x inside */
    uint32_t means;              /* the dims that statistics are over */
    double eps;
    bool given;                  /* they are not x's own: constants in backward */
} tg_channel_norm;

tg_channel_norm tg_channel_norm_of(const tg_tensor *x, int64_t groups, uint32_t means, double eps);

/* Input i, where it is given, is [c]; `what` names it. */
tg_status tg_need_channels(tg_call *c, int i, const char *what);
/* The same of w and b, in x's dtype; and room for statistics. */
tg_status tg_channel_norm_infer(tg_call *c, const tg_channel_norm *k);

/* Of a number a channel, as it stands beside x inside. */
tg_tensor *tg_norm_by_channel(tg_call *c, const tg_channel_norm *k, tg_tensor *w);
/* How many elements have their statistics together. */
double tg_norm_members(const tg_channel_norm *k);

/* Of a tensor of x's shape: itself as it is inside, or a copy where its strides do not allow that; and room for one. */
tg_tensor *tg_norm_inside(tg_call *c, const tg_channel_norm *k, tg_tensor *x);
tg_tensor *tg_norm_temp(tg_call *c, const tg_channel_norm *k);

/* Of x, inside: the mean, and where the deviation belongs the biased variance. t is a temporary. */
tg_status tg_norm_moments(tg_call *c, const tg_channel_norm *k, const tg_tensor *x, const tg_tensor *t);
/* The result, and the deviation, from these two. */
tg_status tg_norm_apply(tg_call *c, const tg_channel_norm *k, const tg_tensor *x, const tg_tensor *t);
tg_status tg_norm_back(tg_call *c, const tg_channel_norm *k);

#endif
