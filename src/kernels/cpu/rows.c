/* Builds the view of an array as rows; see rows.h. */
#include "kernels/cpu/rows.h"

tg_rows tg_rows_of(const tg_array *a, int inner) {
    tg_rows x = {.data = a->data, .count = 1, .n = 1, .dtype = (tg_dtype)a->dtype, .ndim = 1, .shape = {1}};
    if (!a->data)
        return x;
    x.size = tg_dtype_bits(x.dtype) / 8;
    int lead = a->ndim;
    if (inner && lead) {
        lead--;
        x.n = a->shape[lead];
        x.stride = a->stride[lead];
    }
    for (int d = lead - 1, top = 0; d >= 0; d--) {
        x.count *= a->shape[d];
        if (a->shape[d] == 1)
            continue;
        if (x.shape[top] == 1) {
            x.step[top] = a->stride[d];
        } else if (a->stride[d] != x.shape[top] * x.step[top]) {
            top = x.ndim++;
            x.shape[top] = 1;
            x.step[top] = a->stride[d];
        }
        x.shape[top] *= a->shape[d];
    }
    return x;
}

tg_rows tg_flat_of(const tg_array *a) {
    tg_rows x = {.data = a->data, .count = 1, .n = a->numel, .stride = 1, .dtype = (tg_dtype)a->dtype, .ndim = 1,
                 .shape = {1}};
    x.size = a->data ? tg_dtype_bits(x.dtype) / 8 : 0;
    return x;
}
