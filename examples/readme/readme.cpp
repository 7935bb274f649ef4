/* README's program in C++. README has the lines from "begin" to "end". */
#include <tapegrad/tapegrad.hpp>

int main() {
    /* begin */
    tapegrad::context ctx([](auto &c) { c.seed = 1; });
    tapegrad::kept x = ctx.randn({64, 8}), y = ctx.randn({64, 1}), w = ctx.param("w", {1, 8}, 0.1);
    tapegrad::optimizer opt(tg_adamw_new, ctx, {w}, [](auto &o) { o.lr = 1e-2; });
    tapegrad::tape t(ctx);
    for (int step = 0; step < 200; step++, t.reset()) {
        t.backward(mse(linear(t(x), w), y));
        opt.step();
        opt.zero_grad();
    }
    /* end */
    return mse(linear(t(x), w), y).item() < 1.2 ? 0 : 1;
}
