/* Heads for rows: within a group of `inner` neighboring ranks, each rank gives the others its rows of their heads, and
 * gets their rows of its own heads (DeepSpeed-Ulysses, arXiv 2309.14509). The chunks of neighbors are neighbors in the
 * sequence, at both of its ends, so the rows of the group are a zigzag shard too, of fewer and larger chunks (USP,
 * arXiv 2405.07719). */
#include "parallel/cp/cp.h"

/* The heads that rank number `member` of the group works on, and where its rows lie among those of the group. */
typedef struct part {
    int64_t head, heads; /* the first of these heads, and their number */
    int64_t rows;        /* number of rows of a chunk, which is half of the member's rows */
    int64_t early, late; /* rows of x.heads at which the member's chunks begin */
    bool again;          /* an earlier member of the group has the same heads */
} part;

static part part_of(const tg_cp_params *p, const tg_cp_heads *x, int member) {
    int64_t heads = x->rows.shape[1], own = x->heads.shape[1], rows = x->rows.shape[2] / 2;
    int64_t first = member * heads / p->opts.inner;
    return (part){.head = first,
                  .heads = own,
                  .rows = rows,
                  .early = member * rows,
                  .late = (2 * p->opts.inner - 1 - member) * rows,
                  .again = member > 0 && (member - 1) * heads / p->opts.inner == first};
}

/* Returns the number of elements of a message to one member. */
static int64_t elements(const tg_cp_heads *x) {
    return x->heads.shape[0] * x->heads.shape[1] * x->rows.shape[2] * x->heads.shape[3];
}

/* Copies between a message of a member, at element *at of `buffer`, and this rank's rows of the member's heads; from
 * the message if `out`, else into it. Moves *at past the message. */
static tg_status copy_heads(tg_call *c, const tg_cp_heads *x, int member, tg_tensor *buffer, int64_t *at, bool out) {
    part q = part_of(tg_cp_of(c), x, member);
    tg_extent e, m = {.shape = {x->rows.shape[0], q.heads, 2 * q.rows, x->rows.shape[3]}};
    tg_array rows = tg_array_slice(x->rows, 1, q.head, q.heads, 1, &e);
    tg_row_major(4, m.shape, m.stride);
    tg_array message = tg_array_at(tg_array_of(buffer), *at, 4, m.shape, m.stride);
    *at += elements(x);
    return out ? tg_op_copy(c, rows, message, x->add || q.again) : tg_op_copy(c, message, rows, false);
}

/* Copies in the same way between such a message and the member's rows of this rank's heads. */
static tg_status copy_rows(tg_call *c, const tg_cp_heads *x, int member, tg_tensor *buffer, int64_t *at, bool out) {
    part q = part_of(tg_cp_of(c), x, member);
    tg_extent e[2], m = {.shape = {x->heads.shape[0], q.heads, 2 * q.rows, x->heads.shape[3]}};
    tg_row_major(4, m.shape, m.stride);
    tg_array message = tg_array_at(tg_array_of(buffer), *at, 4, m.shape, m.stride);
    *at += elements(x);
    for (int late = 0; late < 2; late++) {
        tg_array part = tg_array_slice(message, 2, late * q.rows, q.rows, 1, &e[0]);
        tg_array rows = tg_array_slice(x->heads, 2, late ? q.late : q.early, q.rows, 1, &e[1]);
        TG_TRY(out ? tg_op_copy(c, rows, part, false) : tg_op_copy(c, part, rows, false));
    }
    return TG_OK;
}

tg_status tg_cp_exchange(tg_call *c, const tg_cp_heads *x, int n, const int64_t *counts, bool back) {
    const tg_cp_params *p = tg_cp_of(c);
    int64_t size = 0, from = 0, to = 0;
    for (int i = 0; i < n; i++) size += p->opts.inner * elements(&x[i]);
    tg_dtype dtype = (tg_dtype)x[0].rows.dtype;
    tg_tensor *out = tg_call_temp(c, dtype, 1, &size), *in = tg_call_temp(c, dtype, 1, &size);
    TG_TRY(tg_ctx_status(c->ctx));
    for (int member = 0; member < p->opts.inner; member++)
        for (int i = 0; i < n; i++)
            TG_TRY(back ? copy_rows(c, &x[i], member, out, &from, false)
                        : copy_heads(c, &x[i], member, out, &from, false));
    tg_collective_args a = {.kind = TG_ALL_TO_ALL, .dst = in, .src = out, .send = counts, .recv = counts};
    TG_TRY(tg_collective_start(c, p->comm, a));
    TG_TRY(tg_storage_need(in->storage, in));
    for (int member = 0; member < p->opts.inner; member++)
        for (int i = 0; i < n; i++)
            TG_TRY(back ? copy_heads(c, &x[i], member, in, &to, true) : copy_rows(c, &x[i], member, in, &to, true));
    return TG_OK;
}
