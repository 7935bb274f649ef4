/* Convolutions, pooling, batch norm and triangular systems: each operand with every wrong tensor, and arguments that
 * they refuse. */
#include "misuse/misuse.h"

#include <tapegrad/ops.h>

typedef struct images {
    tg_tensor *x, *w, *s;      /* f32[1, 2, 4, 4], f32[2, 2, 2, 2], f32[2, 2] */
    tg_tensor *line, *volume; /* f32[2, 2, 3], f32[1, 1, 2, 3, 4] */
    tg_tensor *grid, *bags;   /* f32[1, 2, 2, 2], i64[2, 2] */
} images;

static void places(misuse_world *b, const images *m) {
    OP(tg_conv1d, tg_conv1d(t, x, b->cube, NULL, NULL));
    OP(tg_conv1d, tg_conv1d(t, b->cube, x, NULL, NULL));
    OPTIONAL(tg_conv1d, tg_conv1d(t, b->cube, b->cube, x, NULL));
    OP(tg_conv2d, tg_conv2d(t, x, m->w, NULL, NULL));
    OP(tg_conv2d, tg_conv2d(t, m->x, x, NULL, NULL));
    OPTIONAL(tg_conv2d, tg_conv2d(t, m->x, m->w, x, NULL));
    OP(tg_conv3d, tg_conv3d(t, x, m->volume, NULL, NULL));
    OP(tg_conv3d, tg_conv3d(t, m->volume, x, NULL, NULL));
    OPTIONAL(tg_conv3d, tg_conv3d(t, m->volume, m->volume, x, NULL));
    OP(tg_conv_transpose1d, tg_conv_transpose1d(t, x, b->cube, NULL, NULL));
    OP(tg_conv_transpose1d, tg_conv_transpose1d(t, m->line, x, NULL, NULL));
    OPTIONAL(tg_conv_transpose1d, tg_conv_transpose1d(t, m->line, m->line, x, NULL));
    OP(tg_conv_transpose2d, tg_conv_transpose2d(t, x, m->w, NULL, NULL));
    OP(tg_conv_transpose2d, tg_conv_transpose2d(t, m->x, x, NULL, NULL));
    OPTIONAL(tg_conv_transpose2d, tg_conv_transpose2d(t, m->x, m->w, x, NULL));
    OP(tg_conv_transpose3d, tg_conv_transpose3d(t, x, m->volume, NULL, NULL));
    OP(tg_conv_transpose3d, tg_conv_transpose3d(t, m->volume, x, NULL, NULL));
    OPTIONAL(tg_conv_transpose3d, tg_conv_transpose3d(t, m->volume, m->volume, x, NULL));
    OP(tg_max_pool3d, tg_max_pool3d(t, x, 1, 2, 2, NULL));
    OP(tg_avg_pool3d, tg_avg_pool3d(t, x, 1, 2, 2, NULL));
    OP(tg_max_pool2d_with_indices, tg_max_pool2d_with_indices(t, x, 2, 2, NULL, NULL));
    OP(tg_max_pool3d_with_indices, tg_max_pool3d_with_indices(t, x, 1, 2, 2, NULL, NULL));
    OP(tg_max_pool1d, tg_max_pool1d(t, x, 2, NULL));
    OP(tg_max_pool2d, tg_max_pool2d(t, x, 2, 2, NULL));
    OP(tg_avg_pool1d, tg_avg_pool1d(t, x, 2, NULL));
    OP(tg_avg_pool2d, tg_avg_pool2d(t, x, 2, 2, NULL));
    OP(tg_adaptive_avg_pool, tg_adaptive_avg_pool(t, x, TG_SHAPE(2)));
    OP(tg_adaptive_max_pool, tg_adaptive_max_pool(t, x, TG_SHAPE(2), NULL));
    OP(tg_im2col, tg_im2col(t, x, 2, 2, NULL));
    OP(tg_col2im, tg_col2im(t, x, TG_SHAPE(2, 2), 1, 1, NULL));
    OP(tg_grid_sampler_2d, tg_grid_sampler_2d(t, x, m->grid, NULL));
    OP(tg_grid_sampler_2d, tg_grid_sampler_2d(t, m->x, x, NULL));
    OP(tg_cdist, tg_cdist(t, x, b->x, 2));
    OP(tg_cdist, tg_cdist(t, b->x, x, 2));
    OP(tg_instance_norm, tg_instance_norm(t, x, NULL, NULL, 1e-5));
    OPTIONAL(tg_instance_norm, tg_instance_norm(t, b->x, x, NULL, 1e-5));
    OP(tg_local_response_norm, tg_local_response_norm(t, x, 2, 1e-4, 0.75, 1));
    OP(tg_embedding_bag, tg_embedding_bag(t, x, m->bags, NULL, NULL, NULL));
    OP(tg_embedding_bag, tg_embedding_bag(t, b->x, x, NULL, NULL, NULL));
    OPTIONAL(tg_embedding_bag, tg_embedding_bag(t, b->x, b->ids, x, NULL, NULL));
    OPTIONAL(tg_embedding_bag, tg_embedding_bag(t, b->x, m->bags, NULL, x, TG_BAG(.mode = TG_BAG_SUM)));
    OP(tg_upsample_nearest, tg_upsample_nearest(t, x, TG_SHAPE(2), NULL));
    OP(tg_upsample_linear, tg_upsample_linear(t, x, TG_SHAPE(2), NULL));
    OP(tg_constant_pad, tg_constant_pad(t, x, (const int64_t[]){1, 1}, 2, 0));
    OP(tg_reflection_pad, tg_reflection_pad(t, x, (const int64_t[]){1, 1}, 2));
    OP(tg_replication_pad, tg_replication_pad(t, x, (const int64_t[]){1, 1}, 2));
    OP(tg_circular_pad, tg_circular_pad(t, x, (const int64_t[]){1, 1}, 2));
    OP(tg_pixel_shuffle, tg_pixel_shuffle(t, x, 2));
    OP(tg_pixel_unshuffle, tg_pixel_unshuffle(t, x, 2));
    OP(tg_channel_shuffle, tg_channel_shuffle(t, x, 2));
    OP(tg_triangular_solve, tg_triangular_solve(t, x, b->x, NULL));
    OP(tg_triangular_solve, tg_triangular_solve(t, m->s, x, NULL));
    OP(tg_cholesky, tg_cholesky(t, x));
    OP(tg_batch_norm, tg_batch_norm(t, x, NULL, NULL, NULL, NULL, 0.1, 1e-5));
    OPTIONAL(tg_batch_norm, tg_batch_norm(t, b->x, x, NULL, NULL, NULL, 0.1, 1e-5));
    OPTIONAL(tg_batch_norm, tg_batch_norm(t, b->x, NULL, x, NULL, NULL, 0.1, 1e-5));
    OPTIONAL(tg_batch_norm, tg_batch_norm(t, b->x, NULL, NULL, x, b->v, 0.1, 1e-5));
    OPTIONAL(tg_batch_norm, tg_batch_norm(t, b->x, NULL, NULL, b->v, x, 0.1, 1e-5));
}

static void dtypes(misuse_world *b, const images *m) {
    tg_tape *t = b->t;
    tg_tensor *d = tg_zeros(b->ctx, TG_F64, TG_SHAPE(2, 3)), *h = tg_zeros(b->ctx, TG_BF16, TG_SHAPE(3));
    INERT(tg_conv1d, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_conv1d(t, b->ids, b->ids, NULL, NULL));
    INERT(tg_conv2d, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_conv2d(t, b->ids, b->ids, NULL, NULL));
    INERT(tg_conv1d, DTYPE,
          "input 0 is f32 and input 1 is f64; they must have one dtype (tg_cast converts)",
          tg_conv1d(t, b->cube, d, NULL, NULL));
    INERT(tg_conv2d, DTYPE,
          "input 0 is f32 and input 2 is f64; they must have one dtype (tg_cast converts)",
          tg_conv2d(t, m->x, m->w, d, NULL));
    INERT(tg_max_pool1d, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16", tg_max_pool1d(t, b->ids, 2, NULL));
    INERT(tg_max_pool2d, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_max_pool2d(t, b->ids, 2, 2, NULL));
    INERT(tg_avg_pool1d, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16", tg_avg_pool1d(t, b->ids, 2, NULL));
    INERT(tg_avg_pool2d, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_avg_pool2d(t, b->ids, 2, 2, NULL));
    INERT(tg_triangular_solve, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_triangular_solve(t, b->ids, b->ids, NULL));
    INERT(tg_triangular_solve, DTYPE,
          "input 0 is f32 and input 1 is f64; they must have one dtype (tg_cast converts)",
          tg_triangular_solve(t, m->s, d, NULL));
    INERT(tg_cholesky, DTYPE, "input 0 is bool; it must be f32, f64, bf16 or f16", tg_cholesky(t, b->mask));
    INERT(tg_batch_norm, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16",
          tg_batch_norm(t, b->ids, NULL, NULL, NULL, NULL, 0.1, 1e-5));
    INERT(tg_batch_norm, DTYPE, "running_mean is bf16; it must be f32",
          tg_batch_norm(t, b->x, NULL, NULL, h, b->v, 0.1, 1e-5));
    tg_drop(d);
    tg_drop(h);
}

static void of_windows(misuse_world *b, const images *m) {
    tg_tape *t = b->t;
    tg_conv_opts conv = {.size = sizeof conv + 8};
    tg_pool_opts pool = {.size = sizeof pool + 8};
    INERT(tg_conv1d, SHAPE, "x must be [n, c, l]", tg_conv1d(t, b->x, b->cube, NULL, NULL));
    INERT(tg_conv1d, SHAPE, "w must be [o, c / groups, k]", tg_conv1d(t, b->cube, b->x, NULL, NULL));
    INERT(tg_conv1d, ARGUMENT,
          "groups is -1; it must be 1 or more", tg_conv1d(t, b->cube, b->cube, NULL, TG_CONV(.groups = -1)));
    INERT(tg_conv2d, SHAPE,
          "b must be a vector of 2 elements, one for each output channel", tg_conv2d(t, m->x, m->w, b->v, NULL));
    INERT(tg_conv2d, SHAPE,
          "a window spans 5 elements, but x with its padding has 4",
          tg_conv2d(t, m->x, m->w, NULL, TG_CONV(.dilation = {4, 1})));
    INERT(tg_conv2d, SHAPE, "overflows", tg_conv2d(t, m->x, m->w, NULL, TG_CONV(.padding = {INT64_MAX, 0})));
    INERT(tg_conv2d, ARGUMENT, "stride -1", tg_conv2d(t, m->x, m->w, NULL, TG_CONV(.stride = {1, -1})));
    INERT(tg_conv2d, ARGUMENT, "stride 0", tg_conv2d(t, m->x, m->w, NULL, TG_CONV(.stride = {2})));
    INERT(tg_conv2d, ARGUMENT, "dilation 0", tg_conv2d(t, m->x, m->w, NULL, TG_CONV(.dilation = {0, 1})));
    INERT(tg_conv2d, ARGUMENT, "groups is 0", tg_conv2d(t, m->x, m->w, NULL, TG_CONV(.groups = 0)));
    INERT(tg_max_pool2d, ARGUMENT, "stride 0", tg_max_pool2d(t, m->x, 2, 2, TG_POOL(.stride = {2})));
    INERT(tg_conv2d, ARGUMENT, "padding -1", tg_conv2d(t, m->x, m->w, NULL, TG_CONV(.padding = {-1, 0})));
    INERT(tg_conv2d, ARGUMENT, "dilation -2", tg_conv2d(t, m->x, m->w, NULL, TG_CONV(.dilation = {-2, 1})));
    INERT(tg_conv2d, ARGUMENT, "this library knows", tg_conv2d(t, m->x, m->w, NULL, &conv));
    INERT(tg_max_pool1d, ARGUMENT,
          "window size is 0, stride 0, dilation 1 and padding 0", tg_max_pool1d(t, b->cube, 0, NULL));
    tg_tensor *dot = tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 1, 1, 1));
    INERT(tg_max_pool2d, SHAPE, "windows are 4294967296 x 4294967296, and 2 x 2 of them fit into x and its padding; "
          "the number of elements of a window, or that of windows, overflows 64 bits",
          tg_max_pool2d(t, dot, INT64_C(1) << 32, INT64_C(1) << 32,
                        TG_POOL(.stride = {1, 1}, .padding = {INT64_C(1) << 31, INT64_C(1) << 31})));
    tg_drop(dot);
    INERT(tg_max_pool1d, ARGUMENT, "at most half", tg_max_pool1d(t, b->cube, 3, TG_POOL(.padding = {2})));
    INERT(tg_max_pool2d, SHAPE,
          "a window spans 5 elements, but x with its padding has 4", tg_max_pool2d(t, m->x, 2, 5, NULL));
    INERT(tg_max_pool2d, ARGUMENT, "this library knows", tg_max_pool2d(t, m->x, 2, 2, &pool));
    INERT(tg_avg_pool1d, SHAPE, "x must be [n, c, l]", tg_avg_pool1d(t, m->x, 2, NULL));
    INERT(tg_avg_pool2d, ARGUMENT,
          "window size is -1, stride -1, dilation 1 and padding 0", tg_avg_pool2d(t, m->x, -1, 1, NULL));
    INERT(tg_avg_pool2d, ARGUMENT,
          "dilation is set, but average pooling has none; leave it at 1",
          tg_avg_pool2d(t, m->x, 2, 2, TG_POOL(.dilation = {1, 2})));
    INERT(tg_avg_pool2d, ARGUMENT, "this library knows", tg_avg_pool2d(t, m->x, 2, 2, &pool));
}

/* Options that compile, and that the op does not use. */
static void of_unused(misuse_world *b, const images *m) {
    tg_tape *t = b->t;
    tg_tensor *line = tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 2, 4)), *taps = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 2, 2));
    INERT(tg_max_pool1d, ARGUMENT, "option exclude_padding is set",
          tg_max_pool1d(t, line, 2, TG_POOL(.exclude_padding = true)));
    INERT(tg_max_pool2d, ARGUMENT, "option exclude_padding is set",
          tg_max_pool2d(t, m->x, 2, 2, TG_POOL(.exclude_padding = true)));
    INERT(tg_max_pool1d, ARGUMENT, "option dilation[1] is set", tg_max_pool1d(t, line, 2, TG_POOL(.dilation = {1, 2})));
    INERT(tg_avg_pool1d, ARGUMENT, "option stride[1] is set", tg_avg_pool1d(t, line, 2, TG_POOL(.stride = {2, 2})));
    INERT(tg_avg_pool1d, ARGUMENT, "dilation is set", tg_avg_pool1d(t, line, 2, TG_POOL(.dilation = {2})));
    INERT(tg_conv1d, ARGUMENT, "option padding[1] is set",
          tg_conv1d(t, line, taps, NULL, TG_CONV(.padding = {1, 1})));
    tg_drop(line);
    tg_drop(taps);
}

static void of_volumes(misuse_world *b, const images *m) {
    tg_tape *t = b->t;
    tg_conv_opts conv = *TG_CONV();
    tg_pool_opts pool = *TG_POOL();
    conv.size = pool.size = 4096;
    INERT(tg_conv_transpose1d, ARGUMENT, "output_padding 2; the first three",
          tg_conv_transpose1d(t, m->line, m->line, NULL, TG_CONV(.stride = {2}, .output_padding = {2})));
    INERT(tg_conv_transpose1d, ARGUMENT, "option output_padding[1] is set",
          tg_conv_transpose1d(t, m->line, m->line, NULL, TG_CONV(.output_padding = {0, 1})));
    INERT(tg_conv_transpose1d, SHAPE, "x must be [n, c, l]", tg_conv_transpose1d(t, m->x, m->line, NULL, NULL));
    INERT(tg_conv_transpose2d, SHAPE, "the result has no elements along a dim",
          tg_conv_transpose2d(t, m->x, m->w, NULL, TG_CONV(.padding = {3, 0})));
    INERT(tg_conv_transpose2d, SHAPE, "b must be a vector of 2 elements",
          tg_conv_transpose2d(t, m->x, m->w, b->v, NULL));
    INERT(tg_conv_transpose2d, ARGUMENT, "this library knows", tg_conv_transpose2d(t, m->x, m->w, NULL, &conv));
    INERT(tg_conv1d, ARGUMENT, "option output_padding is set",
          tg_conv1d(t, m->line, m->line, NULL, TG_CONV(.output_padding = {1})));
    INERT(tg_conv2d, ARGUMENT, "option stride[2] is set",
          tg_conv2d(t, m->x, m->w, NULL, TG_CONV(.stride = {1, 1, 2})));
    INERT(tg_conv3d, ARGUMENT, "option output_padding is set",
          tg_conv3d(t, m->volume, m->volume, NULL, TG_CONV(.output_padding = {0, 0, 1})));
    INERT(tg_conv3d, SHAPE, "x has 4 dims and w 5", tg_conv3d(t, m->x, m->volume, NULL, NULL));
    INERT(tg_conv3d, SHAPE, "a window has 2 elements along d",
          tg_conv3d(t, m->volume, m->volume, NULL, TG_CONV(.dilation = {2, 1, 1})));
    INERT(tg_conv3d, ARGUMENT, "this library knows", tg_conv3d(t, m->volume, m->volume, NULL, &conv));
    INERT(tg_conv_transpose3d, SHAPE, "x has 4 dims and w 5", tg_conv_transpose3d(t, m->x, m->volume, NULL, NULL));
    INERT(tg_conv_transpose3d, SHAPE, "x has 1 channel, w is for 1, and groups is 2",
          tg_conv_transpose3d(t, m->volume, m->volume, NULL, TG_CONV(.groups = 2)));
    INERT(tg_conv_transpose3d, ARGUMENT, "groups is 0; it must be 1 or more",
          tg_conv_transpose3d(t, m->volume, m->volume, NULL, TG_CONV(.groups = 0)));
    INERT(tg_conv_transpose3d, SHAPE, "b must be a vector of 1 element,",
          tg_conv_transpose3d(t, m->volume, m->volume, b->v, NULL));
    INERT(tg_conv_transpose3d, SHAPE, "no elements along d",
          tg_conv_transpose3d(t, m->volume, m->volume, NULL, TG_CONV(.padding = {2, 0, 0})));
    INERT(tg_conv_transpose3d, ARGUMENT, "stride is 2, dilation 1, padding 0 and output_padding 2",
          tg_conv_transpose3d(t, m->volume, m->volume, NULL, TG_CONV(.stride = {2, 1, 1}, .output_padding = {2})));
    INERT(tg_conv_transpose3d, ARGUMENT, "this library knows",
          tg_conv_transpose3d(t, m->volume, m->volume, NULL, &conv));
    INERT(tg_max_pool3d, SHAPE, "x has 4 dims; it must be [n, c, d, h, w]", tg_max_pool3d(t, m->x, 1, 1, 1, NULL));
    INERT(tg_max_pool3d, ARGUMENT, "option divisor is set",
          tg_max_pool3d(t, m->volume, 1, 1, 1, TG_POOL(.divisor = 2)));
    INERT(tg_avg_pool3d, ARGUMENT, "divisor is 0", tg_avg_pool3d(t, m->volume, 1, 1, 1, TG_POOL(.divisor = 0)));
    INERT(tg_avg_pool3d, ARGUMENT, "this library knows", tg_avg_pool3d(t, m->volume, 1, 1, 1, &pool));
    INERT(tg_max_pool2d_with_indices, ARGUMENT, "option stride[2] is set",
          tg_max_pool2d_with_indices(t, m->x, 1, 1, TG_POOL(.stride = {1, 1, 2}), NULL));
    INERT(tg_max_pool3d_with_indices, ARGUMENT, "option exclude_padding is set",
          tg_max_pool3d_with_indices(t, m->volume, 1, 1, 1, TG_POOL(.exclude_padding = true), NULL));
    INERT(tg_max_pool3d_with_indices, ARGUMENT, "window size is 0",
          tg_max_pool3d_with_indices(t, m->volume, 0, 1, 1, NULL, NULL));
}

/* Sizes that do not fit the dims of x, and pads of more elements than x has. */
static void of_sizes(misuse_world *b, const images *m) {
    tg_tape *t = b->t;
    tg_upsample_opts later = *TG_UPSAMPLE();
    later.size = 4096;
    INERT(tg_adaptive_avg_pool, SHAPE, "size has 1 number", tg_adaptive_avg_pool(t, m->x, TG_SHAPE(2)));
    INERT(tg_adaptive_avg_pool, SHAPE, "size[1] is -1", tg_adaptive_avg_pool(t, m->x, TG_SHAPE(2, -1)));
    INERT(tg_upsample_nearest, SHAPE, "size has 3 numbers and x has 4 dims",
          tg_upsample_nearest(t, m->x, TG_SHAPE(2, 2, 2), NULL));
    INERT(tg_upsample_linear, ARGUMENT, "scale1 is 2, but align_corners is set; it must be TG_AUTO then",
          tg_upsample_linear(t, m->x, TG_SHAPE(2, 2), TG_UPSAMPLE(.scale1 = 2, .align_corners = true)));
    INERT(tg_upsample_nearest, ARGUMENT, "align_corners is set",
          tg_upsample_nearest(t, m->x, TG_SHAPE(2, 2), TG_UPSAMPLE(.align_corners = true)));
    INERT(tg_upsample_nearest, ARGUMENT, "this library knows", tg_upsample_nearest(t, m->x, TG_SHAPE(2, 2), &later));
    INERT(tg_upsample_linear, ARGUMENT, "scale1 is nan",
          tg_upsample_linear(t, m->x, TG_SHAPE(2, 2), TG_UPSAMPLE(.scale0 = 1, .scale1 = NAN)));
    INERT(tg_upsample_linear, SHAPE, "size[0] is 0", tg_upsample_linear(t, m->x, TG_SHAPE(0, 2), NULL));
    INERT(tg_adaptive_max_pool, SHAPE, "size[1] is 0", tg_adaptive_max_pool(t, m->x, TG_SHAPE(2, 0), NULL));
    tg_tensor *one = tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 1, 1)), *line = tg_expand(t, one, TG_SHAPE(1, 1, 1 << 27));
    INERT(tg_adaptive_max_pool, SHAPE, "must be at most 2^53",
          tg_adaptive_max_pool(t, line, TG_SHAPE(1 << 27), NULL));
    tg_drop(one);
    INERT(tg_im2col, ARGUMENT, "option groups is set", tg_im2col(t, m->x, 2, 2, TG_CONV(.groups = 2)));
    INERT(tg_im2col, SHAPE, "overflows 64 bits",
          tg_im2col(t, m->x, INT64_C(1) << 40, INT64_C(1) << 40,
                    TG_CONV(.padding = {INT64_C(1) << 40, INT64_C(1) << 40})));
    INERT(tg_im2col, SHAPE, "their number overflows 64 bits",
          tg_im2col(t, m->x, 1, 1, TG_CONV(.padding = {INT64_C(1) << 40, INT64_C(1) << 40})));
    INERT(tg_col2im, ARGUMENT, "option output_padding is set",
          tg_col2im(t, m->line, TG_SHAPE(3, 1), 1, 1, TG_CONV(.output_padding = {0, 1})));
    INERT(tg_col2im, SHAPE, "windows are 2 x 1, and 2 x 2 of them fit",
          tg_col2im(t, m->line, TG_SHAPE(3, 2), 2, 1, NULL));
    INERT(tg_col2im, SHAPE, "size must be the height and the width", tg_col2im(t, m->line, TG_SHAPE(3), 1, 1, NULL));
    INERT(tg_constant_pad, SHAPE, "pad has 0 numbers", tg_constant_pad(t, m->x, NULL, 2, 0));
    INERT(tg_constant_pad, SHAPE, "pad has 3 numbers", tg_constant_pad(t, m->x, (const int64_t[]){1, 1, 1}, 3, 0));
    INERT(tg_constant_pad, SHAPE, "pad is -3 and -2 for dim 3, which has only 4 elements to remove",
          tg_constant_pad(t, m->x, (const int64_t[]){-3, -2}, 2, 0));
    INERT(tg_constant_pad, SHAPE, "overflows", tg_constant_pad(t, m->x, (const int64_t[]){INT64_MAX, -1}, 2, 0));
    INERT(tg_reflection_pad, SHAPE,
          "pad adds 4 elements at an end of dim 3, which has 4; reflection needs more elements than it adds",
          tg_reflection_pad(t, m->x, (const int64_t[]){4, 0}, 2));
    INERT(tg_replication_pad, SHAPE, "pad has 10 numbers; it must have two for each padded dim, and x has 4 dims",
          tg_replication_pad(t, m->x, (const int64_t[10]){1}, 10));
    INERT(tg_circular_pad, SHAPE, "which has 4; wrapping needs as many elements as it adds",
          tg_circular_pad(t, m->x, (const int64_t[]){0, 5}, 2));
    INERT(tg_pixel_shuffle, SHAPE, "dim 1 has 2 elements, which 4 does not divide", tg_pixel_shuffle(t, m->x, 2));
    INERT(tg_pixel_unshuffle, ARGUMENT, "factor is -1", tg_pixel_unshuffle(t, m->x, -1));
    INERT(tg_channel_shuffle, SHAPE, "x has 2 dims", tg_channel_shuffle(t, b->x, 2));
}

static void of_places(misuse_world *b, const images *m) {
    tg_tape *t = b->t;
    tg_grid_opts grid = *TG_GRID();
    tg_bag_opts bag = *TG_BAG();
    grid.size = bag.size = 4096;
    INERT(tg_grid_sampler_2d, SHAPE, "grid [n, i, j, 2]", tg_grid_sampler_2d(t, m->x, m->x, NULL));
    INERT(tg_grid_sampler_2d, ARGUMENT, "padding 9",
          tg_grid_sampler_2d(t, m->x, m->grid, TG_GRID(.padding = (tg_grid_padding)9)));
    INERT(tg_grid_sampler_2d, ARGUMENT, "this library knows", tg_grid_sampler_2d(t, m->x, m->grid, &grid));
    INERT(tg_cdist, ARGUMENT, "p is nan", tg_cdist(t, b->x, b->x, NAN));
    INERT(tg_cdist, SHAPE, "a has 2 dims and b 1 dim", tg_cdist(t, b->x, b->v, 2));
    INERT(tg_cdist, SHAPE, "rows of a have 3 elements and rows of b have 2", tg_cdist(t, b->x, m->s, 2));
    INERT(tg_instance_norm, ARGUMENT, "eps is nan", tg_instance_norm(t, b->x, NULL, NULL, NAN));
    INERT(tg_local_response_norm, ARGUMENT, "size is 0", tg_local_response_norm(t, b->x, 0, 1, 1, 1));
    INERT(tg_embedding_bag, SHAPE, "ids [b, l], or [n] with offsets",
          tg_embedding_bag(t, b->x, b->ids, NULL, NULL, NULL));
    INERT(tg_embedding_bag, ARGUMENT, "there are no offsets",
          tg_embedding_bag(t, b->x, m->bags, NULL, NULL, TG_BAG(.include_last_offset = true)));
    static const int64_t starts[][3] = {{0, 2, 1}, {1, 1, 2}, {-1, 0, 1}, {0, 1, 4}};
    static const char *const says[] = {"offsets[2] is 1; the first must be 0, and none may be less than the one before",
                                       "offsets[0] is 1; the first must be 0", "offsets[0] is -1",
                                       "offsets[2] is 4; the first must be 0"};
    for (int i = 0; i < 4; i++) {
        tg_tensor *offsets = tg_from_host(b->ctx, TG_I64, TG_SHAPE(3), starts[i]);
        INERT(tg_embedding_bag, DATA, says[i], tg_embedding_bag(t, b->x, b->ids, offsets, NULL, NULL));
        tg_drop(offsets);
    }
    tg_tensor *no_offsets = tg_zeros(b->ctx, TG_I64, TG_SHAPE(0));
    INERT(tg_embedding_bag, SHAPE, "offsets is empty, but there are 2 ids",
          tg_embedding_bag(t, b->x, b->ids, no_offsets, NULL, NULL));
    tg_drop(no_offsets);
    INERT(tg_embedding_bag, ARGUMENT, "mode is 5",
          tg_embedding_bag(t, b->x, m->bags, NULL, NULL, TG_BAG(.mode = (tg_bag_mode)5)));
    INERT(tg_embedding_bag, ARGUMENT, "this library knows", tg_embedding_bag(t, b->x, m->bags, NULL, NULL, &bag));
}

static void of_norm(misuse_world *b) {
    tg_tape *t = b->t;
    tg_tensor *g = tg_zeros(b->ctx, TG_F32, TG_SHAPE(3)), *one = tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 3));
    tg_set_requires_grad(g, true);
    INERT(tg_batch_norm, ARGUMENT, "eps is nan", tg_batch_norm(t, b->x, NULL, NULL, NULL, NULL, 0.1, NAN));
    INERT(tg_batch_norm, ARGUMENT, "momentum is 2", tg_batch_norm(t, b->x, NULL, NULL, NULL, NULL, 2, 1e-5));
    INERT(tg_batch_norm, ARGUMENT, "momentum is nan", tg_batch_norm(t, b->x, NULL, NULL, NULL, NULL, NAN, 1e-5));
    INERT(tg_batch_norm, ARGUMENT,
          "only one of running_mean and running_var is given; give both or neither",
          tg_batch_norm(t, b->x, NULL, NULL, b->v, NULL, 0.1, 1e-5));
    INERT(tg_batch_norm, ARGUMENT, "share bytes", tg_batch_norm(t, b->x, NULL, NULL, b->v, b->v, 0.1, 1e-5));
    INERT(tg_batch_norm, ARGUMENT,
          "running_mean requires a gradient", tg_batch_norm(t, b->x, NULL, NULL, g, b->v, 0.1, 1e-5));
    INERT(tg_batch_norm, SHAPE,
          "x has one value per channel, which has no unbiased variance for running_var",
          tg_batch_norm(t, one, NULL, NULL, b->v, b->v, 0.1, 1e-5));
    INERT(tg_batch_norm, SHAPE,
          "x has too few dims; it must be [n, c, ..] with 2 or more",
          tg_batch_norm(t, b->v, NULL, NULL, NULL, NULL, 0.1, 1e-5));
    INERT(tg_batch_norm, SHAPE,
          "w must be a vector of 3 elements, one for each channel of x",
          tg_batch_norm(t, b->x, one, NULL, NULL, NULL, 0.1, 1e-5));
    INERT(tg_batch_norm, SHAPE,
          "b must be a vector of 3 elements, one for each channel of x",
          tg_batch_norm(t, b->x, NULL, one, NULL, NULL, 0.1, 1e-5));
    tg_drop(g);
    tg_drop(one);
}

static void of_triangles(misuse_world *b, const images *m) {
    tg_tape *t = b->t;
    tg_solve_opts later = {.size = sizeof later + 8};
    INERT(tg_triangular_solve, SHAPE, "square", tg_triangular_solve(t, b->x, b->x, NULL));
    INERT(tg_triangular_solve, SHAPE,
          "b must be [.., n, k], with the leading dims and the n of a", tg_triangular_solve(t, m->s, b->v, NULL));
    INERT(tg_triangular_solve, SHAPE,
          "b must be [.., n, k], with the leading dims and the n of a", tg_triangular_solve(t, m->w, b->x, NULL));
    INERT(tg_triangular_solve, ARGUMENT, "this library knows", tg_triangular_solve(t, m->s, b->x, &later));
    INERT(tg_cholesky, SHAPE, "square", tg_cholesky(t, b->x));
    INERT(tg_cholesky, SHAPE, "square", tg_cholesky(t, b->v));
    INERT(tg_cholesky, DATA, "matrix 0 is not positive definite: its leading minor of order 1", tg_cholesky(t, m->s));
}

void misuse_windows(misuse_world *b) {
    images m = {tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 2, 4, 4)), tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 2, 2, 2)),
                tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 2)), tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 2, 3)),
                tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 1, 2, 3, 4)), tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 2, 2, 2)),
                tg_zeros(b->ctx, TG_I64, TG_SHAPE(2, 2))};
    places(b, &m);
    dtypes(b, &m);
    of_windows(b, &m);
    of_unused(b, &m);
    of_volumes(b, &m);
    of_sizes(b, &m);
    of_places(b, &m);
    of_norm(b);
    of_triangles(b, &m);
    tg_drop(m.x);
    tg_drop(m.w);
    tg_drop(m.s);
    tg_drop(m.line);
    tg_drop(m.volume);
    tg_drop(m.grid);
    tg_drop(m.bags);
}
