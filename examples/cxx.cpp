/* The program of mlp.c in C++17, with the same headers. Smart pointers own the objects, and errors become
 * exceptions. */
#include <cstdio>
#include <memory>
#include <stdexcept>

#include <tapegrad/optim.h>
#include <tapegrad/tapegrad.h>

namespace {

/* A smart pointer's deleter: calls tg_*_free on what tg_*_new has returned. */
template <auto release> struct releaser {
    template <class T> void operator()(T *object) const { release(object); }
};
using context = std::unique_ptr<tg_ctx, releaser<tg_ctx_free>>;
using tape = std::unique_ptr<tg_tape, releaser<tg_tape_free>>;
using optimizer = std::unique_ptr<tg_optim, releaser<tg_optim_free>>;

/* Throws if the context has an error. Errors are sticky, so one check at the end of a piece of work is enough. */
void check(const context &ctx) {
    if (tg_ctx_status(ctx.get()) != TG_OK) throw std::runtime_error(tg_ctx_message(ctx.get()));
}

context make_context(uint64_t seed) {
    auto config = tg_make<tg_config>(); /* as TG_CONFIG(.seed = seed) in C; C++17 has no such initializers */
    config.seed = seed;
    context ctx(tg_ctx_new(&config));
    check(ctx);
    return ctx;
}

/* Tensors are owned by the context or the tape, and are passed as plain pointers. */
class linear {
  public:
    linear(const context &ctx, int64_t in, int64_t out, double std)
        : parameters{tg_param_new(ctx.get(), "weight", TG_F32, TG_SHAPE(out, in), std),
                     tg_param_new(ctx.get(), "bias", TG_F32, TG_SHAPE(out), 0)} {}
    tg_tensor *operator()(tg_tape *t, tg_tensor *x) const { return tg_linear(t, x, parameters[0], parameters[1]); }
    tg_tensor *parameters[2];
};

double train(const context &ctx) {
    tg_tensor *x = tg_randn(ctx.get(), TG_F32, TG_SHAPE(64, 8), 1),
              *y = tg_randn(ctx.get(), TG_F32, TG_SHAPE(64, 1), 1);
    linear fc1(ctx, 8, 32, 0.35), fc2(ctx, 32, 1, 0.18);
    tg_tensor *p[] = {fc1.parameters[0], fc1.parameters[1], fc2.parameters[0], fc2.parameters[1]};
    auto opts = tg_make<tg_adamw_opts>();
    opts.lr = 1e-2;
    optimizer opt(tg_adamw_new(ctx.get(), p, 4, &opts));
    tape t(tg_tape_new(ctx.get()));
    double last = 0;
    for (int step = 0; step < 200; step++) {
        tg_tensor *loss = tg_mse(t.get(), fc2(t.get(), tg_relu(t.get(), fc1(t.get(), x))), y);
        tg_backward(t.get(), loss);
        tg_optim_step(opt.get());
        tg_optim_zero_grad(opt.get());
        last = tg_item(loss);
        if (step % 50 == 0) std::printf("%4d  %.5f\n", step, last);
        tg_tape_reset(t.get());
    }
    check(ctx);
    return last;
}

/* Shows that a mistake becomes an exception that says what was wrong, and that the context can be used again after a
 * clear. */
bool mistakes_are_caught(const context &ctx) {
    tape t(tg_tape_new(ctx.get()));
    try {
        tg_add(t.get(), tg_zeros(ctx.get(), TG_F32, TG_SHAPE(2, 3)), tg_zeros(ctx.get(), TG_F32, TG_SHAPE(4)));
        check(ctx);
    } catch (const std::runtime_error &e) {
        std::printf("caught: %s\n", e.what());
        tg_ctx_clear(ctx.get());
        return true;
    }
    return false;
}

} // namespace

int main() try {
    context ctx = make_context(1);
    return train(ctx) < 0.5 && mistakes_are_caught(ctx) ? 0 : 1;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
