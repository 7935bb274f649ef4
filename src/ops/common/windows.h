/* Windows over the last one or two dims of x [n, c, ..], shared by convolutions and pools. Internally there are
 * always two such dims, h and w; a tensor with one has h = 1. */
#ifndef TG_WINDOWS_H
#define TG_WINDOWS_H

#include "ops/common/op.h"

typedef struct tg_windows {
    size_t given, known; /* sizes of the caller's options and of ours */
    int dims;            /* 1 or 2 window dims of the tensors */
    int64_t size[2], step[2], pad[2], apart[2];
    const char *unused; /* the name of an option that is set although the op does not use it; NULL: none */
} tg_windows;

/* Builds windows from options. A stride of 0 means `step`, or 1 if step is NULL. apart NULL means 1. With one dim,
 * element 1 of step, pad and apart is unused. */
tg_windows tg_windows_of(int dims, const int64_t *size, const int64_t *step, const int64_t *or_step, const int64_t *pad,
                         const int64_t *apart);
/* The params of a sample. */
#define TG_WINDOWS(dims_, ...) {.given = sizeof(size_t), .known = sizeof(size_t), .dims = dims_, __VA_ARGS__}

/* Checks w and x, input i, [n, c, ..]. in[] and out[] receive h and w of x and of the windows that fit. */
tg_status tg_windows_infer(tg_call *c, const tg_windows *w, int i, int64_t in[2], int64_t out[2]);
/* The shape [n, c, ..] with this number of dims. */
int tg_windows_shape(const tg_windows *w, int64_t n, int64_t channels, const int64_t size[2], int64_t *shape);
/* x [n, c, l] viewed as [n, c, 1, l]. */
tg_array tg_windows_inside(tg_array x, tg_extent *e);

/* The elements (i, j) of all windows: their positions in y [.., windows, windows], as a part of y, and in x [.., h,
 * w]. Returns false if none of them lies in x. */
typedef struct tg_window_part {
    tg_array x, y;
    tg_extent ex, ey;
} tg_window_part;
bool tg_windows_part(const tg_windows *w, int64_t i, int64_t j, tg_array x, tg_array y, tg_window_part *part);

/* cols [n, c, kh, kw, windows, windows] := the elements of the windows of x [n, c, h, w], 0 outside of x. The
 * inverse: x += the columns, in the order of kh and kw. */
tg_status tg_windows_gather(tg_call *c, const tg_windows *w, tg_array cols, tg_array x);
tg_status tg_windows_scatter(tg_call *c, const tg_windows *w, tg_array x, tg_array cols);

bool tg_windows_overlap(const tg_windows *w);

/* The elements of a window along dim d that lie in x for at least one window: from .first on, before .end. The
 * others are padding, of which there may be any number. */
typedef struct tg_window_reach {
    int64_t first, end;
} tg_window_reach;
tg_window_reach tg_windows_reach(const tg_windows *w, int d, int64_t in, int64_t out);

/* For pools: every window has an element of x, and padding is at most half of the window. */
tg_status tg_windows_infer_pool(tg_call *c, const tg_windows *w, int64_t in[2], int64_t out[2]);
/* n [windows]: how many elements of each window along dim d lie in x. */
tg_status tg_windows_count(tg_call *c, const tg_windows *w, int d, int64_t in, const tg_tensor *n);

#endif
