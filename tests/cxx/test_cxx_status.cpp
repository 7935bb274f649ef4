/* The interface for C++ without exceptions (-fno-exceptions): errors are sticky, as in C. */
#include <cstring>

#include <tapegrad/tapegrad.hpp>

#include "cases.hpp"

namespace tg = tapegrad;

namespace {

using floats = std::vector<float>;

void the_first_error_stays_until_it_is_cleared() {
    tg::context ctx([](auto &c) { c.threads = 1; });
    tg::tape t(ctx);
    tg::tensor a = t.input({2}, floats{1, 2}), b = t.input({3}, floats{1, 2, 3});
    tg::tensor y = relu(a + b) * 2;
    CHECK(ctx.status() == TG_ERR_SHAPE && ctx.message().find("test_cxx_status.cpp") != std::string::npos);
    CHECK(!tg_is_alive(y) && !tg_is_alive(a + a));
    ctx.clear();
    CHECK((a + a).values<float>() == (floats{2, 4}));
    CHECK(ctx.status() == TG_OK);
}

void operands_without_a_tape_are_an_error() {
    tg::context ctx([](auto &c) { c.threads = 1; });
    tg::kept a = ctx.from({2}, floats{1, 2});
    tg::tensor y = a * a;
    CHECK(!tg_is_alive(y) && ctx.status() == TG_ERR_ARGUMENT);
    CHECK(ctx.message().find("no operand of the op has a tape") == 0);
}

void a_failed_hook_fails_the_backward() {
    tg::context ctx([](auto &c) { c.threads = 1; });
    tg::tape t(ctx);
    tg::tensor x = t.input({2}, floats{1, 2}).requires_grad(), b = t.input({3}, floats{1, 2, 3});
    tg::tensor y = x * 3;
    {
        tg::grad_hook bad(y, [&](const tg::tensor &g) { return g + b; });
        t.backward(sum(y), [](auto &o) { o.retain = true; });
        CHECK(ctx.status() == TG_ERR_SHAPE);
        ctx.clear();
    }
    t.backward(sum(tg::recompute([](const tg::tensors &in) { return square(in[0]); }, y)));
    CHECK(ctx.status() == TG_OK && x.grad().values<float>() == (floats{18, 36}));
}

const test_case cases[] = {
    {"the_first_error_stays_until_it_is_cleared", the_first_error_stays_until_it_is_cleared},
    {"operands_without_a_tape_are_an_error", operands_without_a_tape_are_an_error},
    {"a_failed_hook_fails_the_backward", a_failed_hook_fails_the_backward},
};

} // namespace

int main() { return run_cases(cases); }
