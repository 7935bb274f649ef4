/* What batch norm and group norm share. x [n, c, ..] is viewed as [n, groups, c / groups, rest] and normalized to
 * mean 0 and variance 1 over some of these dims; then it is multiplied by w and b is added, per channel. */
#ifndef TG_CHANNEL_NORM_H
#define TG_CHANNEL_NORM_H

#include "ops/common/op.h"

enum { TG_NORM_X, TG_NORM_W, TG_NORM_B }; /* inputs; w and b may be absent */
enum { TG_NORM_MEAN, TG_NORM_RSTD };      /* private saved buffers */
enum { TG_NORM_DIMS = 4 };

typedef struct tg_channel_norm {
    int64_t shape[TG_NORM_DIMS]; /* of x in the internal shape */
    uint32_t means;              /* the dims that statistics are taken over */
    double eps;
    bool given;                  /* statistics are given, not computed from x: constants in backward */
} tg_channel_norm;

tg_channel_norm tg_channel_norm_of(const tg_tensor *x, int64_t groups, uint32_t means, double eps);

/* Checks that input i, if given, is [c]; `what` names it. */
tg_status tg_need_channels(tg_call *c, int i, const char *what);
/* Checks w and b, in x's dtype, and declares the saved statistics. */
tg_status tg_channel_norm_infer(tg_call *c, const tg_channel_norm *k);

/* A tensor with one number per channel, in the shape that broadcasts against x. */
tg_tensor *tg_norm_by_channel(tg_call *c, const tg_channel_norm *k, tg_tensor *w);
/* How many elements share their statistics. */
double tg_norm_members(const tg_channel_norm *k);

/* A tensor of x's shape in the internal shape: a view, or a copy if its strides do not allow one; and a temporary of
 * that shape. */
tg_tensor *tg_norm_inside(tg_call *c, const tg_channel_norm *k, tg_tensor *x);
tg_tensor *tg_norm_temp(tg_call *c, const tg_channel_norm *k);

/* Computes the mean of x and, in the place of the deviation, the biased variance. t is a temporary. */
tg_status tg_norm_moments(tg_call *c, const tg_channel_norm *k, const tg_tensor *x, const tg_tensor *t);
/* Computes the result and the deviation from these two. */
tg_status tg_norm_apply(tg_call *c, const tg_channel_norm *k, const tg_tensor *x, const tg_tensor *t);
tg_status tg_norm_back(tg_call *c, const tg_channel_norm *k);

#endif
