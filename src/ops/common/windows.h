/* Windows over the last one or two dims of x [n, c, ..], for convolutions and pools. Internally there are always two
 * such dims, h and w; if x has only one, h is 1. */
#ifndef TG_WINDOWS_H
#define TG_WINDOWS_H

#include "ops/common/op.h"

#include <tapegrad/ops.h>

typedef struct tg_windows {
    size_t given, known; /* sizes of the caller's options struct and of the library's */
    int dims;            /* 1 or 2: number of window dims that the tensors have */
    int64_t size[2], step[2], pad[2], apart[2]; /* of h and w: window size, stride, padding at each end, dilation */
    bool ceil; /* if elements are left over, one more window is used if it starts before the end of x */
    const char *unused; /* the name of an option that is set although the op does not use it, or NULL */
} tg_windows;

/* Builds windows from options for `dims` dims: size, stride (step), padding (pad) and dilation (apart). The elements of
 * the options for further dims must be 0 or their defaults (tg_windows_infer). */
tg_windows tg_windows_of(int dims, const int64_t *size, const int64_t *step, const int64_t *pad, const int64_t *apart);
/* Builds the windows of a pool, whose stride may be TG_AUTO. */
tg_windows tg_windows_of_pool(int dims, const int64_t *size, const tg_pool_opts *o);
/* Initializes the tg_windows of a sample's params. */
#define TG_WINDOWS(dims_, ...) {.given = sizeof(size_t), .known = sizeof(size_t), .dims = dims_, __VA_ARGS__}

/* Fails with TG_ERR_ARGUMENT if the size of the caller's options struct is not valid, or if an option is set that the
 * op does not use. tg_windows_infer, tg_windows_fit and tg_windows_infer_pool make this check too. */
tg_status tg_windows_check_options(tg_call *c, const tg_windows *w);
/* Checks the options in *w, and that input i, called x, is [n, c, ..]. in[] receives the sizes h and w of x. out[]
 * receives the numbers of windows that fit along h and w. */
tg_status tg_windows_infer(tg_call *c, const tg_windows *w, int i, int64_t in[2], int64_t out[2]);
/* Checks the options in *w, and counts the windows that fit into x and its padding, if x has these sizes h and w. */
tg_status tg_windows_fit(tg_call *c, const tg_windows *w, const int64_t in[2], int64_t out[2]);
/* Writes the shape [n, channels, ..]. Its last dims are the last w->dims entries of size[]. Returns its ndim. */
int tg_windows_shape(const tg_windows *w, int64_t n, int64_t channels, const int64_t size[2], int64_t *shape);
/* Views x [n, c, l] as [n, c, 1, l]. Returns an x of four dims as it is. */
tg_array tg_windows_inside(tg_array x, tg_extent *e);

/* For one position (i, j) in the windows: the elements of x that have this position in some window, and the entries of
 * the same windows in y. */
typedef struct tg_window_part {
    tg_array x, y;
    tg_extent ex, ey; /* memory for their layouts */
} tg_window_part;
/* Selects the part for position (i, j). x is [.., h, w], and y is [.., windows along h, windows along w]. Leaves out
 * the windows whose element (i, j) lies in the padding. Returns false if no window remains. */
bool tg_windows_part(const tg_windows *w, int64_t i, int64_t j, tg_array x, tg_array y, tg_window_part *part);

/* tg_windows_gather writes the elements of the windows of x [n, c, h, w] to cols
 * [n, c, kh, kw, windows along h, windows along w], where kh and kw are the window sizes. Elements in the padding are
 * 0. tg_windows_scatter adds the elements of cols back to x, in the order of dims kh and kw. */
tg_status tg_windows_gather(tg_call *c, const tg_windows *w, tg_array cols, tg_array x);
tg_status tg_windows_scatter(tg_call *c, const tg_windows *w, tg_array x, tg_array cols);

/* Returns whether an element of x may lie in several windows. */
bool tg_windows_overlap(const tg_windows *w);

/* The elements [first, end) of a window along one dim. */
typedef struct tg_window_reach {
    int64_t first, end;
} tg_window_reach;
/* Returns which elements of a window along dim d lie in x for at least one window. x has `in` elements along dim d, and
 * there are `out` windows. The other elements always lie in the padding. There may be very many of them, so loops skip
 * them. */
tg_window_reach tg_windows_reach(const tg_windows *w, int d, int64_t in, int64_t out);

/* Does what tg_windows_infer does for input 0, and makes the checks of pools: every window must have an element of x,
 * and padding must be at most half of the window. A stride of TG_AUTO becomes the window size. */
tg_status tg_windows_infer_pool(tg_call *c, tg_windows *w, int64_t in[2], int64_t out[2]);
/* Fills n [windows] with the number of elements of each window along dim d that lie in x. */
tg_status tg_windows_count(tg_call *c, const tg_windows *w, int d, int64_t in, const tg_tensor *n);

#endif
