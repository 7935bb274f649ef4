/* The smallest program of a user of C++: it must build by the target tapegrad::tapegrad of CMake alone. */
#include <tapegrad/tapegrad.hpp>

int main() {
    tapegrad::context ctx;
    tapegrad::tape t(ctx);
    tapegrad::kept w = ctx.param("w", {3}, 0);
    t.backward(sum(w * t.input({3}, std::vector<float>{1, 2, 3})));
    return w.grad().values<float>() == std::vector<float>{1, 2, 3} ? 0 : 1;
}
