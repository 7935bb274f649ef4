/* The program of mlp.c in C++17: objects free themselves, ops are functions and operators, and errors are exceptions.
 */
#include <cstdio>

#include <tapegrad/tapegrad.hpp>

namespace {

struct linear_layer {
    linear_layer(const tapegrad::context &ctx, int64_t in, int64_t out, double std)
        : weight(ctx.param("weight", {out, in}, std)), bias(ctx.param("bias", {out}, 0)) {}
    tapegrad::tensor operator()(const tapegrad::tensor &x) const { return linear(x, weight, bias); }
    tapegrad::kept weight, bias;
};

double train(const tapegrad::context &ctx) {
    tapegrad::kept x = ctx.randn({64, 8}), y = ctx.randn({64, 1});
    linear_layer fc1(ctx, 8, 32, 0.35), fc2(ctx, 32, 1, 0.18);
    tapegrad::optimizer opt(tg_adamw_new, ctx, {fc1.weight, fc1.bias, fc2.weight, fc2.bias},
                            [](auto &o) { o.lr = 1e-2; });
    tapegrad::tape t(ctx);
    double last = 0;
    for (int step = 0; step < 200; step++) {
        tapegrad::tensor error = fc2(relu(fc1(t(x)))) - y;
        tapegrad::tensor loss = mean(error * error);
        t.backward(loss);
        opt.step();
        opt.zero_grad();
        last = loss.item();
        if (step % 50 == 0) std::printf("%4d  %.5f\n", step, last);
        t.reset();
    }
    return last;
}

/* Shows that a mistake becomes an exception that says what was wrong and where, and that the context can be used on. */
bool mistakes_are_caught(const tapegrad::context &ctx) {
    tapegrad::tape t(ctx);
    tapegrad::kept a = ctx.zeros({2, 3}), b = ctx.zeros({4});
    try {
        t(a) + b;
    } catch (const tapegrad::error &e) {
        std::printf("caught: %s\n", e.what());
        return e.status() == TG_ERR_SHAPE && (t(b) + 1).values()[0] == 1;
    }
    return false;
}

} // namespace

int main() try {
    tapegrad::context ctx([](auto &c) { c.seed = 1; });
    return train(ctx) < 0.5 && mistakes_are_caught(ctx) ? 0 : 1;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
