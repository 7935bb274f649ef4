/* Shares a tensor with another library by DLPack, without a copy. What stands for the other library here is a second
 * context: it takes the struct as NumPy or PyTorch would, and outlives the context that made the tensor. */
#include <stdio.h>

#include <tapegrad/dlpack.h>
#include <tapegrad/tapegrad.h>

int main(void) {
    tg_ctx *ours = tg_ctx_new(NULL), *theirs = tg_ctx_new(NULL);
    tg_tensor *x = tg_from_host(ours, TG_F32, TG_SHAPE(3), (float[]){1, 2, 3});

    struct DLManagedTensorVersioned *m = tg_dlpack_export(x);
    tg_tensor *y = tg_dlpack_import(theirs, m); /* calls the deleter of m when y ends */
    printf("one memory: %s\n", tg_host_data(y) == tg_host_data(x) ? "yes" : "no");

    tg_write(y, (float[]){1, 2, 4}, 3 * sizeof(float));
    tg_touch(x); /* the other side has written its bytes */
    tg_tape *t = tg_tape_new(ours);
    printf("the sum of x: %g\n", tg_item(tg_sum(t, x, TG_ALL_DIMS, false)));

    tg_ctx_free(ours); /* y stays valid */
    t = tg_tape_new(theirs);
    printf("the sum of y: %g\n", tg_item(tg_sum(t, y, TG_ALL_DIMS, false)));
    if (tg_ctx_status(theirs) != TG_OK) fprintf(stderr, "%s\n", tg_ctx_message(theirs));
    int failed = tg_ctx_status(theirs) != TG_OK;
    tg_ctx_free(theirs);
    return failed;
}
