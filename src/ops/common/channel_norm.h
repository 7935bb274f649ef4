/* The computation that batch norm and group norm share. x [n, c, ..] is viewed in the internal shape
 * [n, groups, c / groups, rest], where rest is the product of the sizes after c, and normalized to mean 0 and variance
 * 1 over some of these dims. Then each channel is multiplied by its element of w, and its element of b is added. */
#ifndef TG_CHANNEL_NORM_H
#define TG_CHANNEL_NORM_H

#include "ops/common/op.h"

enum { TG_NORM_X, TG_NORM_W, TG_NORM_B }; /* inputs; w and b may be absent */
enum { TG_NORM_MEAN, TG_NORM_RSTD };      /* private saved buffers */
enum { TG_NORM_DIMS = 4 };

typedef struct tg_channel_norm {
    int64_t shape[TG_NORM_DIMS]; /* the internal shape of x */
    uint32_t means;              /* bit mask of the dims over which mean and variance are computed */
    double eps;
    bool given;                  /* mean and variance are not computed from x; backward treats them as constants */
} tg_channel_norm;

/* Describes the normalization of x. `means` and `eps` are the fields of tg_channel_norm. */
tg_channel_norm tg_channel_norm_of(const tg_tensor *x, int64_t groups, uint32_t means, double eps);

/* Checks that input i, if given, is [c]. `what` names the input in the message. */
tg_status tg_need_channels(tg_call *c, int i, const char *what);
/* Checks that w and b, if given, are [c] and have the dtype of x. Declares the saved buffers for mean and rstd. */
tg_status tg_channel_norm_infer(tg_call *c, const tg_channel_norm *k);

/* Views w [c] as [1, groups, c / groups, 1], which broadcasts against the internal shape. */
tg_tensor *tg_norm_by_channel(tg_call *c, const tg_channel_norm *k, tg_tensor *w);
/* Returns how many elements one mean and one variance are computed from. */
double tg_norm_members(const tg_channel_norm *k);

/* Returns x, a tensor of the op's shape, in the internal shape: a view of x if it is row-major, otherwise a copy. */
tg_tensor *tg_norm_inside(tg_call *c, const tg_channel_norm *k, tg_tensor *x);
/* Returns a temporary of the internal shape, in the accumulation dtype. */
tg_tensor *tg_norm_temp(tg_call *c, const tg_channel_norm *k);

/* Computes the mean and the biased variance of x, and stores them in the buffers TG_NORM_MEAN and TG_NORM_RSTD. t is a
 * temporary of the internal shape. */
tg_status tg_norm_moments(tg_call *c, const tg_channel_norm *k, const tg_tensor *x, const tg_tensor *t);
/* Replaces the variance in TG_NORM_RSTD by 1 / sqrt(variance + eps), and computes the op's result. x is in the internal
 * shape. t, a temporary of that shape, receives the normalized x. */
tg_status tg_norm_apply(tg_call *c, const tg_channel_norm *k, const tg_tensor *x, const tg_tensor *t);
/* Computes the gradients of x, w and b that are needed. */
tg_status tg_norm_back(tg_call *c, const tg_channel_norm *k);

#endif
