/* Backward, gradients, accumulation buffers and hooks. */
#include "misuse/misuse.h"

#include <tapegrad/backward.h>
#include <tapegrad/ops.h>

/* ---- Roots, seeds, inputs ---- */

/* Calls on a tape of its own, with a graph that a backward could run: y = w^2. Nothing may reach w's gradient. */
static bool backward(misuse_world *b, tg_tensor *seed, tg_tensor *input, int n, const tg_backward_opts *fixed) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *y = tg_square(t, b->w), *seeds[] = {seed};
    tg_backward_opts opts = {
        .size = sizeof opts, .seeds = seed ? seeds : NULL, .inputs = n == 1 ? &input : NULL, .n_inputs = n};
    tg_status s = tg_backward_with(t, &y, 1, fixed ? fixed : &opts);
    tg_tape_free(t);
    return s != TG_OK && !tg_has_grad(b->w);
}

static tg_status again(void *user, tg_tape *t, tg_tensor *x, tg_tensor **g) {
    (void)user, (void)g;
    return tg_backward(t, x);
}

static bool in_itself(misuse_world *b) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *y = tg_sum(t, tg_square(t, b->w), TG_ALL_DIMS, false);
    tg_on_grad(y, again, NULL);
    tg_status s = tg_backward(t, y);
    tg_tape_free(t);
    return s == TG_ERR_STATE;
}

static bool twice(misuse_world *b) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *y = tg_sum(t, tg_square(t, b->w), TG_ALL_DIMS, false);
    tg_tensor *g;
    tg_grad(t, &y, 1, &b->w, 1, &g, NULL);
    tg_status s = tg_backward(t, y);
    tg_tape_free(t);
    return s == TG_ERR_STATE;
}

static void backwards(misuse_world *b) {
    tg_tensor *none = NULL;
    tg_backward_opts zero = {0}, later = {.size = sizeof later + 1};
    QUIET(tg_backward, tg_backward(NULL, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_backward, ARGUMENT, "tg_backward: the tape is NULL", tg_backward(NULL, b->r));
    FAILS(tg_backward, ARGUMENT, "the tensor is NULL", tg_backward(b->t, NULL));
    FAILS(tg_backward, SHAPE, "f32[2, 3], expected one element", tg_backward(b->t, b->r));
    FAILS(tg_backward, STATE, "depends on nothing that needs a gradient", tg_backward(b->t, b->x));
    FAILS(tg_backward, HANDLE, "another context", tg_backward(b->t, b->foreign));
    FAILS(tg_backward, HANDLE, "another tape", tg_backward(b->t, b->elsewhere));
    FAILS(tg_backward, HANDLE, "freed", tg_backward(b->freed, b->r));
    DEAD_STATUS(tg_backward, tg_backward(b->t, x));
    GIVES(tg_backward, STATE, "is running", in_itself(b));
    GIVES(tg_backward, STATE, "retain", twice(b));
    FAILS(tg_backward_with, ARGUMENT, "the tape is NULL", tg_backward_with(NULL, &b->r, 1, NULL));
    FAILS(tg_backward_with, HANDLE, "could not be made", tg_backward_with(b->inert_t, &b->r, 1, NULL));
    FAILS(tg_backward_with, ARGUMENT, "expected one or more", tg_backward_with(b->t, NULL, 1, NULL));
    FAILS(tg_backward_with, ARGUMENT, "0 roots", tg_backward_with(b->t, &b->r, 0, NULL));
    FAILS(tg_backward_with, ARGUMENT, "-1 roots", tg_backward_with(b->t, &b->r, -1, NULL));
    FAILS(tg_backward_with, ARGUMENT, "the tensor is NULL", tg_backward_with(b->t, &none, 1, NULL));
    GIVES(tg_backward_with, ARGUMENT, "size is 0", backward(b, NULL, NULL, 0, &zero));
    GIVES(tg_backward_with, ARGUMENT, "this library knows", backward(b, NULL, NULL, 0, &later));
    GIVES(tg_backward_with, SHAPE, "the seed is f32[3]", backward(b, b->v, NULL, 0, NULL));
    GIVES(tg_backward_with, SHAPE, "the seed is i64[2]", backward(b, b->ids, NULL, 0, NULL));
    GIVES(tg_backward_with, HANDLE, "another context", backward(b, b->foreign, NULL, 0, NULL));
    GIVES(tg_backward_with, DISCARDED, "tg_discard", backward(b, b->gone, NULL, 0, NULL));
    EACH_DEAD(x) GIVES(tg_backward_with, HANDLE, "the tensor", backward(b, x, NULL, 0, NULL));
    GIVES(tg_backward_with, ARGUMENT, "-1 inputs", backward(b, b->x, NULL, -1, NULL));
    GIVES(tg_backward_with, ARGUMENT, "2 inputs", backward(b, b->x, NULL, 2, NULL));
    GIVES(tg_backward_with, ARGUMENT, "the tensor is NULL", backward(b, b->x, NULL, 1, NULL));
    GIVES(tg_backward_with, STATE, "not a leaf that needs a gradient", backward(b, b->x, b->x, 1, NULL));
    GIVES(tg_backward_with, HANDLE, "another tape", backward(b, b->x, b->r, 1, NULL));
    FAILS(tg_backward_with, STATE, "not a leaf that needs a gradient",
          tg_backward_with(b->t, &b->r, 1, TG_BACKWARD(.seeds = &b->x, .inputs = &b->r, .n_inputs = 1)));
    GIVES(tg_backward_with, HANDLE, "another context", backward(b, b->x, b->foreign, 1, NULL));
    EACH_DEAD(x) GIVES(tg_backward_with, HANDLE, "the tensor", backward(b, b->x, x, 1, NULL));
}

/* A leaf of one tape cannot be an input of the backward of another. */
static bool leaf_of_another_tape(misuse_world *b, bool by_grad) {
    tg_tape *t = tg_tape_new(b->ctx), *u = tg_tape_new(b->ctx);
    tg_tensor *in = tg_tape_input(u, b->w), *y = tg_sum(t, tg_square(t, b->w), TG_ALL_DIMS, false), *g = NULL;
    tg_status s = by_grad ? tg_grad(t, &y, 1, &in, 1, &g, TG_GRAD(.allow_unused = true))
                          : tg_backward_with(t, &y, 1, TG_BACKWARD(.inputs = &in, .n_inputs = 1));
    bool good = s == TG_ERR_HANDLE && (!by_grad || misuse_inert(g));
    tg_tape_free(t);
    tg_tape_free(u);
    return good;
}

/* ---- tg_grad ---- */

static bool grad(misuse_world *b, tg_tensor *input, int n, const tg_grad_opts *opts) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *y = tg_sum(t, tg_square(t, b->w), TG_ALL_DIMS, false), *in[] = {input, input}, *g[2] = {b->x, b->x};
    tg_status s = tg_grad(t, &y, 1, in, n, g, opts);
    bool good = s != TG_OK && (n < 1 || misuse_inert(g[0])) && (n < 2 || misuse_inert(g[1])) && !tg_has_grad(b->w);
    tg_tape_free(t);
    return good;
}

static void grads(misuse_world *b) {
    tg_tensor *g, *none = NULL, *other = tg_param_new(b->ctx, "other", TG_DTYPE_DEFAULT, TG_SHAPE(2), 0);
    tg_grad_opts zero = {0}, later = {.size = sizeof later + 1};
    GIVES(tg_backward_with, HANDLE, "another tape", leaf_of_another_tape(b, false));
    FAILS(tg_grad, ARGUMENT, "the tape is NULL", tg_grad(NULL, &b->r, 1, &b->w, 1, &g, NULL));
    FAILS(tg_grad, HANDLE, "freed", tg_grad(b->freed, &b->r, 1, &b->w, 1, &g, NULL));
    FAILS(tg_grad, ARGUMENT, "one or more of each", tg_grad(b->t, NULL, 1, &b->w, 1, &g, NULL));
    FAILS(tg_grad, ARGUMENT, "0 roots", tg_grad(b->t, &b->r, 0, &b->w, 1, &g, NULL));
    FAILS(tg_grad, ARGUMENT, "one or more of each", tg_grad(b->t, &b->r, 1, NULL, 1, &g, NULL));
    FAILS(tg_grad, ARGUMENT, "grads must not be NULL", tg_grad(b->t, &b->r, 1, &b->w, 1, NULL, NULL));
    FAILS(tg_grad, ARGUMENT, "the tensor is NULL", tg_grad(b->t, &none, 1, &b->w, 1, &g, NULL));
    FAILS(tg_grad, SHAPE, "expected one element", tg_grad(b->t, &b->r, 1, &b->w, 1, &g, NULL));
    GIVES(tg_grad, ARGUMENT, "0 inputs", grad(b, b->w, 0, NULL));
    GIVES(tg_grad, ARGUMENT, "-3 inputs", grad(b, b->w, -3, NULL));
    GIVES(tg_grad, ARGUMENT, "the tensor is NULL", grad(b, NULL, 1, NULL));
    GIVES(tg_grad, STATE, "does not need a gradient", grad(b, b->x, 1, NULL));
    GIVES(tg_grad, STATE, "no root depends on input 0, other f32[2]", grad(b, other, 1, NULL));
    GIVES(tg_grad, HANDLE, "another context", grad(b, b->foreign, 1, NULL));
    GIVES(tg_grad, HANDLE, "another tape", leaf_of_another_tape(b, true));
    EACH_DEAD(x) GIVES(tg_grad, HANDLE, "the tensor", grad(b, x, 1, NULL));
    GIVES(tg_grad, STATE, "no root depends on input 0, other f32[2]",
          grad(b, other, 1, TG_GRAD(.create_graph = true)));
    GIVES(tg_grad, HANDLE, "the tensor", grad(b, b->w, 1, TG_GRAD(.create_graph = true, .seeds = &b->inert)));
    GIVES(tg_grad, SHAPE, "tg_grad: the seed is f32[3], expected the root's shape and dtype",
          grad(b, b->w, 1, TG_GRAD(.create_graph = true, .seeds = &b->v)));
    GIVES(tg_grad, ARGUMENT, "size is 0", grad(b, b->w, 1, &zero));
    GIVES(tg_grad, ARGUMENT, "this library knows", grad(b, b->w, 1, &later));
    tg_drop(other);
}

/* ---- Gradients of leaves ---- */

static bool buffer_gone(misuse_world *b, bool dropped) {
    tg_tensor *buf = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 3));
    tg_tape *t = tg_tape_new(b->ctx);
    tg_set_main_grad(b->w, buf);
    dropped ? tg_drop(buf) : (void)tg_discard(buf);
    tg_status s = tg_backward(t, tg_sum(t, tg_square(t, b->w), TG_ALL_DIMS, false));
    bool good = s != TG_OK && !tg_has_grad(b->w);
    char message[256];
    snprintf(message, sizeof message, "%s", tg_ctx_message(b->ctx));
    tg_ctx_clear(b->ctx);
    tg_set_main_grad(b->w, NULL);
    tg_tape_free(t);
    if (!dropped) tg_drop(buf);
    return good && strstr(message, dropped ? "was dropped" : "tg_discard");
}

/* A discarded gradient cannot be added to; after zeroing it is created again. */
static bool gradient_discarded(misuse_world *b) {
    tg_tensor *p = tg_param_new(b->ctx, "p", TG_DTYPE_DEFAULT, TG_SHAPE(), 0);
    tg_tape *t = tg_tape_new(b->ctx);
    tg_backward(t, tg_exp(t, p));
    tg_discard(tg_grad_of(p));
    bool refused = tg_backward(t, tg_exp(t, p)) == TG_ERR_DISCARDED;
    tg_ctx_clear(b->ctx);
    tg_zero_grad(p);
    tg_tape_reset(t);
    tg_backward(t, tg_exp(t, p));
    bool good = refused && tg_item(tg_grad_of(p)) == 1;
    tg_tape_free(t);
    tg_drop(p);
    return good;
}

static void gradients(misuse_world *b) {
    tg_tensor *bf16 = tg_zeros(b->ctx, TG_BF16, TG_SHAPE(2, 3)), *plain = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 3));
    QUIET(tg_grad_of, misuse_inert(tg_grad_of(NULL)));
    INERT(tg_grad_of, STATE, "it does not need one", tg_grad_of(b->x));
    INERT(tg_grad_of, STATE, "no backward has reached it", tg_grad_of(b->w));
    INERT(tg_grad_of, STATE, "not a leaf", tg_grad_of(b->r));
    DEAD_TENSOR(tg_grad_of, tg_grad_of(x));
    QUIET(tg_grad_of, gradient_discarded(b));
    QUIET(tg_grad_share, misuse_inert(tg_grad_share(NULL)));
    INERT(tg_grad_share, STATE, "it does not need one", tg_grad_share(b->x));
    INERT(tg_grad_share, STATE, "no backward has reached it", tg_grad_share(b->w));
    INERT(tg_grad_share, STATE, "not a leaf", tg_grad_share(b->r));
    DEAD_TENSOR(tg_grad_share, tg_grad_share(x));
    QUIET(tg_zero_grad, tg_zero_grad(NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_zero_grad, STATE, "not a leaf", tg_zero_grad(b->r));
    DEAD_STATUS(tg_zero_grad, tg_zero_grad(x));
    QUIET(tg_set_main_grad, tg_set_main_grad(NULL, b->x) == TG_ERR_ARGUMENT);
    FAILS(tg_set_main_grad, STATE, "not a leaf", tg_set_main_grad(b->r, plain));
    FAILS(tg_set_main_grad, SHAPE, "the buffer is f32[3]", tg_set_main_grad(b->w, b->v));
    FAILS(tg_set_main_grad, DTYPE, "the buffer is bf16[2, 3]; for w f32[2, 3] it must be f32",
          tg_set_main_grad(b->w, bf16));
    FAILS(tg_set_main_grad, STATE, "not share the tensor's bytes", tg_set_main_grad(b->w, b->w));
    FAILS(tg_set_main_grad, STATE, "owned by the context", tg_set_main_grad(b->w, b->r));
    FAILS(tg_set_main_grad, HANDLE, "another context", tg_set_main_grad(b->w, b->foreign));
    DEAD_STATUS(tg_set_main_grad, tg_set_main_grad(x, plain));
    DEAD_STATUS(tg_set_main_grad, tg_set_main_grad(b->w, x));
    QUIET(tg_set_main_grad, buffer_gone(b, true));
    QUIET(tg_set_main_grad, buffer_gone(b, false));
    tg_drop(bf16);
    tg_drop(plain);
}

/* ---- Hooks ---- */

static tg_status nothing(void *user, tg_tape *t, tg_tensor *x, tg_tensor **g) {
    (void)user, (void)t, (void)x, (void)g;
    return TG_OK;
}

static tg_status gives(void *user, tg_tape *t, tg_tensor *x, tg_tensor **g) {
    (void)t, (void)x;
    *g = user;
    return TG_OK;
}

/* A hook whose result does not match its tensor's gradient. */
static bool replaced_by(misuse_world *b, tg_tensor *by) {
    tg_tape *t = tg_tape_new(b->ctx);
    tg_tensor *y = tg_square(t, b->w);
    uint64_t id = tg_on_grad(y, gives, by);
    tg_status s = tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false));
    tg_tape_free(t);
    return id && s != TG_OK && !tg_has_grad(b->w);
}

static void hooks(misuse_world *b) {
    QUIET(tg_on_grad, tg_on_grad(NULL, nothing, NULL) == 0);
    GIVES(tg_on_grad, ARGUMENT, "the hook is NULL", tg_on_grad(b->w, NULL, NULL) == 0);
    GIVES(tg_on_grad, STATE, "needs no gradient", tg_on_grad(b->x, nothing, NULL) == 0);
    EACH_DEAD(x) GIVES(tg_on_grad, HANDLE, "the tensor", tg_on_grad(x, nothing, NULL) == 0);
    GIVES(tg_on_grad, ARGUMENT, "the tensor is NULL", replaced_by(b, NULL));
    GIVES(tg_on_grad, SHAPE, "returned f32[3], expected f32[2, 3]", replaced_by(b, b->v));
    GIVES(tg_on_grad, SHAPE, "returned bool[2, 3], expected f32[2, 3]", replaced_by(b, b->mask));
    GIVES(tg_on_grad, HANDLE, "another context", replaced_by(b, b->foreign));
    GIVES(tg_on_grad, DISCARDED, "tg_discard", replaced_by(b, b->gone));
    GIVES(tg_on_grad, HANDLE, "reset", replaced_by(b, b->reset));
    QUIET(tg_on_accumulated, tg_on_accumulated(NULL, nothing, NULL) == 0);
    GIVES(tg_on_accumulated, ARGUMENT, "the hook is NULL", tg_on_accumulated(b->w, NULL, NULL) == 0);
    GIVES(tg_on_accumulated, STATE, "not a leaf", tg_on_accumulated(b->r, nothing, NULL) == 0);
    GIVES(tg_on_accumulated, STATE, "needs no gradient", tg_on_accumulated(b->x, nothing, NULL) == 0);
    EACH_DEAD(x) GIVES(tg_on_accumulated, HANDLE, "the tensor", tg_on_accumulated(x, nothing, NULL) == 0);
    QUIET(tg_remove_hook, tg_remove_hook(NULL, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_remove_hook, ARGUMENT, "has no hook 0", tg_remove_hook(b->w, 0));
    FAILS(tg_remove_hook, ARGUMENT, "has no hook 77", tg_remove_hook(b->x, 77));
    DEAD_STATUS(tg_remove_hook, tg_remove_hook(x, 1));
}

void misuse_backward(misuse_world *b) {
    backwards(b);
    grads(b);
    gradients(b);
    hooks(b);
}
