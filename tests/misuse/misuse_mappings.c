/* Mappings and ops over shards, on a communicator of two ranks that moves nothing. */
#include <tapegrad/context_parallel.h>
#include <tapegrad/parallel.h>
#include <tapegrad/megatron.h>

#include "misuse/misuse.h"

#define MAPPING(symbol, ...)                                                                          \
    do {                                                                                              \
        OP(symbol, symbol(t, x, __VA_ARGS__));                                                        \
        REFUSED(symbol, __VA_ARGS__);                                                                 \
    } while (0)
#define MAPPED_VIEW(symbol, ...)                                                                      \
    do {                                                                                              \
        VIEW(symbol, symbol(t, x, __VA_ARGS__));                                                      \
        REFUSED(symbol, __VA_ARGS__);                                                                 \
    } while (0)
/* Calls with NULL, or a communicator of another context, as the last argument, which is named c. */
#define REFUSED(symbol, ...)                                                                          \
    do {                                                                                              \
        tg_comm *given = c;                                                                           \
        c = NULL;                                                                                     \
        INERT(symbol, ARGUMENT, "the communicator is NULL", symbol(b->t, b->x, __VA_ARGS__));         \
        c = far;                                                                                      \
        INERT(symbol, ARGUMENT, "of another context", symbol(b->t, b->x, __VA_ARGS__));               \
        c = given;                                                                                    \
    } while (0)

static void same_shape(misuse_world *b, tg_comm *c, tg_comm *far) {
    MAPPED_VIEW(tg_copy_to_tp, c);
    MAPPING(tg_reduce_from_tp, c);
    MAPPING(tg_all_reduce, c);
    MAPPING(tg_all_reduce_max, c);
    INERT(tg_all_reduce_max, PLACEMENT, "tg_detach it first", tg_all_reduce_max(b->t, b->w, c));
    MAPPING(tg_broadcast, 0, c);
    INERT(tg_broadcast, ARGUMENT, "root is 2, expected a rank from 0 to 1", tg_broadcast(b->t, b->x, 2, c));
    INERT(tg_broadcast, ARGUMENT, "root is -1, expected a rank from 0 to 1", tg_broadcast(b->t, b->x, -1, c));
    MAPPED_VIEW(tg_as_partial, c);
    MAPPED_VIEW(tg_as_opaque, c);
    MAPPED_VIEW(tg_as_shard, 0, c);
    INERT(tg_as_shard, SHAPE, "dim 2 is out of range", tg_as_shard(b->t, b->x, 2, c));
    MAPPING(tg_i_to_p, c);
    INERT(tg_i_to_p, DTYPE, "i64", tg_i_to_p(b->t, b->ids, c));
    MAPPED_VIEW(tg_r_to_i, c);
    MAPPING(tg_shift, c);
}

static void received(misuse_world *b, tg_comm *c, tg_comm *far) {
    const tg_shape shape = TG_SHAPE(2, 3), wide = {.ndim = 9};
    QUIET(tg_recv, misuse_inert(tg_recv(NULL, c, TG_F32, shape, 1)));
    INERT(tg_recv, HANDLE, "the tape was freed", tg_recv(b->freed, c, TG_F32, shape, 1));
    INERT(tg_recv, ARGUMENT, "c is NULL", tg_recv(b->t, NULL, TG_F32, shape, 1));
    INERT(tg_recv, ARGUMENT, "c is of another context", tg_recv(b->t, far, TG_F32, shape, 1));
    INERT(tg_recv, ARGUMENT, "or its constructor failed", tg_recv(b->t, tg_comm_self_new(NULL), TG_F32, shape, 1));
    INERT(tg_recv, SHAPE, "tg_recv", tg_recv(b->t, c, TG_F32, wide, 1));
    INERT(tg_recv, ARGUMENT, "from is 2, expected 0 to 1", tg_recv(b->t, c, TG_F32, shape, 2));
    INERT(tg_recv, ARGUMENT, "which is this rank", tg_recv(b->t, c, TG_F32, shape, 0));
}

static void cut(misuse_world *b, tg_comm *c, tg_comm *far) {
    MAPPING(tg_scatter_to_tp, c);
    INERT(tg_scatter_to_tp, SHAPE, "dim 1 has size 3, expected a multiple of the 2 ranks of group \"\"",
          tg_scatter_to_tp(b->t, b->x, c));
    MAPPING(tg_gather_from_tp, c);
    MAPPING(tg_scatter_to_sp, c);
    INERT(tg_scatter_to_sp, SHAPE, "dim 0 has size 3", tg_scatter_to_sp(b->t, b->v, c));
    MAPPING(tg_all_gather_last_dim, c);
    MAPPING(tg_reduce_scatter_last_dim, c);
    INERT(tg_reduce_scatter_last_dim, SHAPE, "dim 1 has size 3", tg_reduce_scatter_last_dim(b->t, b->x, c));
    MAPPING(tg_scatter_to, 0, c);
    INERT(tg_scatter_to, SHAPE, "dim 2 is out of range", tg_scatter_to(b->t, b->x, 2, c));
    MAPPING(tg_gather_from, 0, c);
    INERT(tg_gather_from, SHAPE, "dim -3 is out of range", tg_gather_from(b->t, b->x, -3, c));
    MAPPING(tg_all_gather, 0, c);
    INERT(tg_all_gather, SHAPE, "dim 2 is out of range", tg_all_gather(b->t, b->x, 2, c));
    MAPPING(tg_reduce_scatter, 0, c);
    INERT(tg_reduce_scatter, SHAPE, "dim 1 has size 3", tg_reduce_scatter(b->t, b->x, 1, c));
    MAPPING(tg_shard, 0, c);
    INERT(tg_shard, SHAPE, "dim 1 has size 3", tg_shard(b->t, b->x, 1, c));
    MAPPING(tg_shard_as, TG_SHARD(0), c);
    INERT(tg_shard_as, SHAPE, "expected a multiple of 4, the number of chunks",
          tg_shard_as(b->t, b->x, TG_SHARD_ZIGZAG(0), c));
    INERT(tg_shard_as, SHAPE, "dim 2 is out of range", tg_shard_as(b->t, b->x, TG_SHARD(2), c));
    INERT(tg_shard_as, PLACEMENT, "`to` is P, expected a shard", tg_shard_as(b->t, b->x, TG_P, c));
    INERT(tg_shard_as, HANDLE, "the tape was freed", tg_shard_as(b->freed, b->x, TG_P, c));
    INERT(tg_shard_as, ARGUMENT, "the tape is NULL", tg_shard_as(NULL, b->x, TG_P, c));
}

static void given_parts(misuse_world *b, tg_comm *c, tg_comm *far) {
    tg_sp_opts zero = {0}, later = {.size = sizeof later + 8};
    const int64_t three[] = {2, 1}, minus[] = {3, -1}, huge[] = {2, INT64_MAX};
    MAPPING(tg_gather_from_sp, c, NULL);
    INERT(tg_gather_from_sp, ARGUMENT, "size is 0", tg_gather_from_sp(b->t, b->x, c, &zero));
    INERT(tg_gather_from_sp, ARGUMENT, "this library knows", tg_gather_from_sp(b->t, b->x, c, &later));
    INERT(tg_gather_from_sp, SHAPE, "expected 2, this rank's split",
          tg_gather_from_sp(b->t, b->v, c, TG_SP(.splits = three)));
    INERT(tg_gather_from_sp, ARGUMENT, "of rank 1 is -1", tg_gather_from_sp(b->t, b->x, c, TG_SP(.splits = minus)));
    INERT(tg_gather_from_sp, ARGUMENT, "the number of rows of rank 1 is 9223372036854775807, too many for 64 bits",
          tg_gather_from_sp(b->t, b->x, c, TG_SP(.splits = huge)));
    MAPPING(tg_reduce_scatter_to_sp, c, NULL);
    INERT(tg_reduce_scatter_to_sp, ARGUMENT, "size is 0", tg_reduce_scatter_to_sp(b->t, b->x, c, &zero));
    INERT(tg_reduce_scatter_to_sp, SHAPE, "expected 3, the sum of the splits",
          tg_reduce_scatter_to_sp(b->t, b->x, c, TG_SP(.splits = three)));
    INERT(tg_reduce_scatter_to_sp, SHAPE, "dim 0 has size 3", tg_reduce_scatter_to_sp(b->t, b->v, c, NULL));
    INERT(tg_reduce_scatter_to_sp, ARGUMENT, "only tg_gather_from_sp uses it",
          tg_reduce_scatter_to_sp(b->t, b->x, c, TG_SP(.invariant = true)));
}

static void exchanges(misuse_world *b, tg_comm *c, tg_comm *far) {
    const int64_t one[] = {1, 1}, three[] = {2, 1}, huge[] = {INT64_MAX / 4, INT64_MAX / 4};
    MAPPING(tg_all_to_all, NULL, NULL, c);
    INERT(tg_all_to_all, ARGUMENT, "the rows to send are given", tg_all_to_all(b->t, b->x, one, NULL, c));
    INERT(tg_all_to_all, ARGUMENT, "the rows to receive are given", tg_all_to_all(b->t, b->x, NULL, one, c));
    INERT(tg_all_to_all, SHAPE, "dim 0 has 2 rows", tg_all_to_all(b->t, b->x, three, one, c));
    INERT(tg_all_to_all, SHAPE, "a multiple of the 2 ranks", tg_all_to_all(b->t, b->v, NULL, NULL, c));
    INERT(tg_all_to_all, SHAPE, "", tg_all_to_all(b->t, b->x, one, huge, c));
    MAPPING(tg_reshard, 1, 0, c);
    INERT(tg_reshard, ARGUMENT, "cat and split are both dim 1", tg_reshard(b->t, b->x, 1, -1, c));
    INERT(tg_reshard, SHAPE, "dim 1 has size 3", tg_reshard(b->t, b->x, 0, 1, c));
    INERT(tg_reshard, SHAPE, "dim 2 is out of range", tg_reshard(b->t, b->x, 2, 1, c));
    MAPPING(tg_all_to_all_sp2hp, c);
    INERT(tg_all_to_all_sp2hp, SHAPE, "dim 1 has size 3", tg_all_to_all_sp2hp(b->t, b->x, c));
    MAPPING(tg_all_to_all_hp2sp, c);
}

static void utilities(misuse_world *b, tg_comm *c, tg_comm *far) {
    tg_tensor *out[3];
    int64_t first, last;
    EACH_DEAD(x) FAILS(tg_split_last_dim, HANDLE, "tg_split_last_dim", tg_split_last_dim(b->t, x, 3, false, out));
    FAILS(tg_split_last_dim, ARGUMENT, "the tape is NULL", tg_split_last_dim(NULL, b->x, 3, false, out));
    FAILS(tg_split_last_dim, SHAPE, "must be a multiple of n = 2", tg_split_last_dim(b->t, b->x, 2, true, out));
    FAILS(tg_split_last_dim, ARGUMENT, "n is 0", tg_split_last_dim(b->t, b->x, 0, true, out));
    FAILS(tg_split_last_dim, ARGUMENT, "n is 3", tg_split_last_dim(b->t, b->x, 3, true, NULL));
    MAPPING(tg_split_1d, c);
    MAPPING(tg_gather_1d, 12, c);
    INERT(tg_gather_1d, ARGUMENT, "numel is -1, expected 0 or more", tg_gather_1d(b->t, b->v, -1, c));
    INERT(tg_gather_1d, SHAPE, "this rank's split", tg_gather_1d(b->t, b->v, 9, c));
    INERT(tg_gather_1d, SHAPE, "this rank's split", tg_gather_1d(b->t, b->v, INT64_MAX, c));
    INERT(tg_gather_1d, SHAPE, "x has 3 elements, expected 4, a part of numel = 8", tg_gather_1d(b->t, b->v, 8, c));
    QUIET(tg_vocab_range, tg_vocab_range(NULL, 8, 0, 2, &first, &last) == TG_ERR_ARGUMENT);
    FAILS(tg_vocab_range, SHAPE, "vocab is 9, expected a multiple of the 2 ranks; pad it",
          tg_vocab_range(b->ctx, 9, 0, 2, &first, &last));
    FAILS(tg_vocab_range, ARGUMENT, "rank is 2, n 2 and vocab 8", tg_vocab_range(b->ctx, 8, 2, 2, &first, &last));
    FAILS(tg_vocab_range, ARGUMENT, "rank is 0, n 0 and vocab 8", tg_vocab_range(b->ctx, 8, 0, 0, &first, &last));
    FAILS(tg_vocab_range, ARGUMENT, "rank is 0, n 2 and vocab -8", tg_vocab_range(b->ctx, -8, 0, 2, &first, &last));
}

static void data(misuse_world *b, tg_comm *c, tg_comm *far) {
    tg_tensor *x[] = {b->x, b->v}, *dead[] = {b->x, b->dropped};
    FAILS(tg_broadcast_data, ARGUMENT, "the tape is NULL", tg_broadcast_data(NULL, x, 2, TG_F32, c));
    QUIET(tg_broadcast_data, tg_broadcast_data(NULL, x, 2, TG_F32, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_broadcast_data, ARGUMENT, "the communicator is NULL", tg_broadcast_data(b->t, x, 2, TG_F32, NULL));
    FAILS(tg_broadcast_data, ARGUMENT, "of another context", tg_broadcast_data(b->t, x, 2, TG_F32, far));
    FAILS(tg_broadcast_data, ARGUMENT, "n is -1", tg_broadcast_data(b->t, x, -1, TG_F32, c));
    FAILS(tg_broadcast_data, ARGUMENT, "n is 1", tg_broadcast_data(b->t, NULL, 1, TG_F32, c));
    FAILS(tg_broadcast_data, DTYPE, "expected one of", tg_broadcast_data(b->t, x, 2, (tg_dtype)0, c));
    FAILS(tg_broadcast_data, DTYPE, "tensor 0 of rank 0 is f32, expected i64",
          tg_broadcast_data(b->t, x, 2, TG_I64, c));
    tg_tensor *one = tg_full(b->t, TG_U8, TG_SHAPE(), 1);
    tg_tensor *huge = tg_expand(b->t, one, TG_SHAPE((int64_t)1 << 62)), *two[] = {huge, huge};
    FAILS(tg_broadcast_data, SHAPE, "tensors 0 to 1 of rank 0 have 2^63 elements or more together",
          tg_broadcast_data(b->t, two, 2, TG_U8, c));
    FAILS(tg_broadcast_data, HANDLE, "tensor 1 of rank 0", tg_broadcast_data(b->t, dead, 2, TG_F32, c));
}

static void vocabulary(misuse_world *b, tg_comm *c, tg_comm *far) {
    tg_vocab_opts zero = {0}, later = {.size = sizeof later + 8};
    tg_tensor *ids = tg_from_host(b->ctx, TG_I64, TG_SHAPE(2), (const int64_t[]){0, 9});
    tg_tensor *no_rows = tg_full(b->t, TG_F32, TG_SHAPE(0, 3), 0);
    OP(tg_vocab_parallel_embedding, tg_vocab_parallel_embedding(t, x, b->ids, c));
    OP(tg_vocab_parallel_embedding, tg_vocab_parallel_embedding(t, b->x, x, c));
    INERT(tg_vocab_parallel_embedding, ARGUMENT, "is NULL", tg_vocab_parallel_embedding(b->t, b->x, b->ids, NULL));
    INERT(tg_vocab_parallel_embedding, ARGUMENT, "of another", tg_vocab_parallel_embedding(b->t, b->x, b->ids, far));
    INERT(tg_vocab_parallel_embedding, SHAPE, "has 1 dim", tg_vocab_parallel_embedding(b->t, b->v, b->ids, c));
    INERT(tg_vocab_parallel_embedding, DTYPE, "indices", tg_vocab_parallel_embedding(b->t, b->x, b->v, c));
    INERT(tg_vocab_parallel_embedding, DATA, "index 0 is out of range; no index is valid",
          tg_vocab_parallel_embedding(b->t, no_rows, ids, c));
    tg_tensor *long_table = tg_full(b->t, TG_F32, TG_SHAPE((int64_t)1 << 62, 0), 0);
    INERT(tg_vocab_parallel_embedding, SHAPE, "the size of the whole vocabulary is too large",
          tg_vocab_parallel_embedding(b->t, long_table, b->ids, c));
    INERT(tg_vocab_parallel_embedding, DATA, "index 9 is out of range",
          tg_vocab_parallel_embedding(b->t, b->x, ids, c));
#define LOSS(symbol, ...)                                                                                           \
    do {                                                                                                            \
        INERT(symbol, ARGUMENT, "is NULL", symbol(b->t, __VA_ARGS__, b->ids, NULL, NULL));                          \
        INERT(symbol, ARGUMENT, "of another context", symbol(b->t, __VA_ARGS__, b->ids, far, NULL));                \
        INERT(symbol, ARGUMENT, "size is 0", symbol(b->t, __VA_ARGS__, b->ids, c, &zero));                          \
        INERT(symbol, ARGUMENT, "this library knows", symbol(b->t, __VA_ARGS__, b->ids, c, &later));                \
        INERT(symbol, ARGUMENT, "smoothing is 2",                                                                   \
              symbol(b->t, __VA_ARGS__, b->ids, c, TG_VOCAB(.label_smoothing = 2)));                                \
        INERT(symbol, ARGUMENT, "smoothing_kind is 7",                                                              \
              symbol(b->t, __VA_ARGS__, b->ids, c, TG_VOCAB(.smoothing_kind = 7)));                                 \
        INERT(symbol, ARGUMENT, "classes is 99", symbol(b->t, __VA_ARGS__, b->ids, c, TG_VOCAB(.classes = 99)));       \
        INERT(symbol, ARGUMENT, "classes is 0", symbol(b->t, __VA_ARGS__, b->ids, c, TG_VOCAB(.classes = 0)));       \
        INERT(symbol, DATA, "is 9; it must be from 0 to", symbol(b->t, __VA_ARGS__, ids, c, NULL));                    \
        INERT(symbol, DTYPE, "it must be i64", symbol(b->t, __VA_ARGS__, b->v, c, NULL));                           \
    } while (0)
    OP(tg_vocab_parallel_cross_entropy, tg_vocab_parallel_cross_entropy(t, x, b->ids, c, NULL));
    OP(tg_vocab_parallel_cross_entropy, tg_vocab_parallel_cross_entropy(t, b->x, x, c, NULL));
    LOSS(tg_vocab_parallel_cross_entropy, b->x);
    INERT(tg_vocab_parallel_cross_entropy, STATE, "in_place is set",
          tg_vocab_parallel_cross_entropy(b->t, b->w, b->ids, c, TG_VOCAB(.in_place = true)));
#define LINEAR(x_, w_, ids_) tg_vocab_parallel_linear_cross_entropy(t, x_, w_, ids_, c, NULL)
    OP(tg_vocab_parallel_linear_cross_entropy, LINEAR(x, b->x, b->ids));
    OP(tg_vocab_parallel_linear_cross_entropy, LINEAR(b->x, x, b->ids));
    OP(tg_vocab_parallel_linear_cross_entropy, LINEAR(b->x, b->x, x));
    LOSS(tg_vocab_parallel_linear_cross_entropy, b->x, b->x);
    INERT(tg_vocab_parallel_linear_cross_entropy, ARGUMENT, "in_place is set, but this op keeps no logits to overwrite",
          tg_vocab_parallel_linear_cross_entropy(b->t, b->x, b->x, b->ids, c, TG_VOCAB(.in_place = true)));
    tg_drop(ids);
}

static void sequences(misuse_world *b, tg_comm *c, tg_comm *far) {
    tg_context_attention_opts zero = {0}, later = {.size = sizeof later + 8};
    const int64_t starts[] = {0, 8}, odd[] = {0, 6};
    int64_t rows[8];
    tg_tensor *q = tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 2, 4, 2));
    tg_tensor *three = tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 3, 4, 2));
#define ATTEND(...) tg_context_attention(b->t, q, q, q, c, TG_CONTEXT_ATTENTION(__VA_ARGS__))
    OP(tg_context_attention, tg_context_attention(t, x, q, q, c, NULL));
    OP(tg_context_attention, tg_context_attention(t, q, x, q, c, NULL));
    OP(tg_context_attention, tg_context_attention(t, q, q, x, c, NULL));
    INERT(tg_context_attention, ARGUMENT, "the communicator is NULL", tg_context_attention(b->t, q, q, q, NULL, NULL));
    INERT(tg_context_attention, ARGUMENT, "of another context", tg_context_attention(b->t, q, q, q, far, NULL));
    INERT(tg_context_attention, ARGUMENT, "size is 0", tg_context_attention(b->t, q, q, q, c, &zero));
    INERT(tg_context_attention, ARGUMENT, "this library knows", tg_context_attention(b->t, q, q, q, c, &later));
    INERT(tg_context_attention, ARGUMENT, "kind is 4", ATTEND(.kind = (tg_cp_kind)4));
    INERT(tg_context_attention, ARGUMENT, "inner is 0; it must divide", ATTEND(.kind = TG_CP_HIERARCHY, .inner = 0));
    INERT(tg_context_attention, ARGUMENT, "scale is -2", ATTEND(.scale = -2));
    INERT(tg_context_attention, ARGUMENT, "dropout is 1", ATTEND(.dropout = 1));
    INERT(tg_context_attention, ARGUMENT, "left is -3", ATTEND(.left = -3));
    INERT(tg_context_attention, SHAPE, "sink must be a vector of 2 elements", ATTEND(.sink = b->v));
    INERT(tg_context_attention, DTYPE, "starts is f32", ATTEND(.starts = b->v));
    INERT(tg_context_attention, SHAPE, "2 ranks exchange heads",
          tg_context_attention(b->t, three, three, three, c, TG_CONTEXT_ATTENTION(.kind = TG_CP_ULYSSES)));
    QUIET(tg_context_cut, tg_context_cut(NULL, 1, 2, 0, rows) == TG_ERR_ARGUMENT);
    QUIET(tg_context_cut, tg_context_cut(starts, 1, 2, 0, NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_context_cut, tg_context_cut(starts, 0, 2, 0, rows) == TG_ERR_ARGUMENT);
    QUIET(tg_context_cut, tg_context_cut(starts, 1, 2, -1, rows) == TG_ERR_ARGUMENT);
    QUIET(tg_context_cut, tg_context_cut(odd, 1, 2, 0, rows) == TG_ERR_DATA);
    tg_drop(q);
    tg_drop(three);
}

/* With one rank a mapping returns x itself, but checks it as with several ranks. */
static void alone(misuse_world *b) {
    tg_comm *c = tg_comm_self_new(b->ctx);
    tg_context_attention_opts zero = {0};
    INERT(tg_context_attention, ARGUMENT, "size is 0", tg_context_attention(b->t, b->x, b->x, b->x, c, &zero));
    INERT(tg_context_attention, ARGUMENT, "the tape is NULL", tg_context_attention(NULL, b->x, b->x, b->x, c, NULL));
#define ALONE(symbol, ...)                                                                            \
    do {                                                                                              \
        QUIET(symbol, symbol(b->t, b->x, __VA_ARGS__) == b->x);                                       \
        VIEW(symbol, symbol(t, x, __VA_ARGS__));                                                      \
    } while (0)
    ALONE(tg_copy_to_tp, c);
    ALONE(tg_reduce_from_tp, c);
    ALONE(tg_all_reduce, c);
    ALONE(tg_all_reduce_max, c);
    ALONE(tg_broadcast, 0, c);
    ALONE(tg_shift, c);
    ALONE(tg_as_partial, c);
    ALONE(tg_as_opaque, c);
    ALONE(tg_as_shard, 0, c);
    ALONE(tg_i_to_p, c);
    ALONE(tg_r_to_i, c);
    ALONE(tg_scatter_to_tp, c);
    ALONE(tg_gather_from_tp, c);
    ALONE(tg_scatter_to_sp, c);
    ALONE(tg_gather_from_sp, c, NULL);
    ALONE(tg_reduce_scatter_to_sp, c, NULL);
    ALONE(tg_all_gather_last_dim, c);
    ALONE(tg_reduce_scatter_last_dim, c);
    ALONE(tg_scatter_to, 0, c);
    ALONE(tg_gather_from, 0, c);
    ALONE(tg_all_gather, 0, c);
    ALONE(tg_reduce_scatter, 0, c);
    ALONE(tg_shard, 0, c);
    ALONE(tg_shard_as, TG_SHARD(0), c);
    ALONE(tg_all_to_all, NULL, NULL, c);
    ALONE(tg_reshard, 1, 0, c);
    VIEW(tg_gather_1d, tg_gather_1d(t, x, 6, c));
    VIEW(tg_split_1d, tg_split_1d(t, x, c));
    VIEW(tg_all_to_all_sp2hp, tg_all_to_all_sp2hp(t, x, c));
    VIEW(tg_all_to_all_hp2sp, tg_all_to_all_hp2sp(t, x, c));
    tg_comm_free(c);
}

void misuse_mappings(misuse_world *b) {
    tg_comm *c = tg_comm_plan_new(b->ctx, 0, 2), *far = tg_comm_plan_new(b->far, 0, 2);
    same_shape(b, c, far);
    received(b, c, far);
    cut(b, c, far);
    given_parts(b, c, far);
    exchanges(b, c, far);
    utilities(b, c, far);
    data(b, c, far);
    vocabulary(b, c, far);
    sequences(b, c, far);
    alone(b);
    tg_comm_free(c);
    tg_comm_free(far);
}
