/* The interface for C++: it computes what the C functions compute, frees what it owns, and turns errors of the library
 * into exceptions, and exceptions of callbacks into errors and back. */
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include <tapegrad/tapegrad.hpp>

#include "cases.hpp"

namespace tg = tapegrad;

namespace {

using doubles = std::vector<double>;

tg::context in_f64() {
    return tg::context([](auto &c) {
        c.dtype = TG_F64;
        c.threads = 1;
        c.seed = 3;
    });
}

std::int64_t live_bytes(const tg::context &ctx) {
    auto info = tg_make<tg_memory_info>();
    tg_memory_query(ctx, &info);
    return static_cast<std::int64_t>(info.live);
}

/* Whether f throws tg::error with this status and this text somewhere in its message. */
template <class F> bool fails(F f, tg_status status, const char *text) {
    try {
        f();
    } catch (const tg::error &e) {
        if (e.status() == status && std::strstr(e.what(), text)) return true;
        std::printf("%s: %s\n", tg_status_name(e.status()), e.what());
    }
    return false;
}

void operators_compute_what_their_ops_compute() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::tensor a = t.input({3}, doubles{1, 2, 4}), b = t.input({3}, doubles{3, 5, 7});
    CHECK((a + b).values() == (doubles{4, 7, 11}));
    CHECK((a - b).values() == (doubles{-2, -3, -3}));
    CHECK((a * b).values() == (doubles{3, 10, 28}));
    CHECK((b / a).values() == (doubles{3, 2.5, 1.75}));
    CHECK((-a).values() == (doubles{-1, -2, -4}));
    CHECK((a + 1).values() == (doubles{2, 3, 5}));
    CHECK((a - 1).values() == (doubles{0, 1, 3}));
    CHECK((a * 3).values() == (doubles{3, 6, 12}));
    CHECK((a / 3).values() == (doubles{1. / 3, 2. / 3, 4. / 3})); /* divided, not multiplied by 1 / 3 */
    CHECK((1 + a).values() == (doubles{2, 3, 5}));
    CHECK((1 - a).values() == (doubles{0, -1, -3}));
    CHECK((3 * a).values() == (doubles{3, 6, 12}));
    CHECK((3 / a).values() == (doubles{3, 1.5, .75}));
    CHECK(lt(a, b).dtype() == TG_BOOL && lt(a, 2 + 0 * a).values() == (doubles{1, 0, 0}));
}

/* A function of x and w with every operator. */
tg::tensor formula(const tg::tensor &x, const tg::tensor &w) {
    return mean(square(tanh(x * w + 2) / (3 - x) - 1 / w) + exp(-x) * (w - .5) / 2);
}

double formula_at(const tg::context &ctx, const doubles &x, const doubles &w) {
    tg::tape t(ctx);
    return formula(t.input({3}, x), t.input({3}, w)).item();
}

void gradients_are_those_of_differences() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    doubles x{.3, -.7, 1.1}, w{.9, 1.7, -1.3};
    tg::tensor xs = t.input({3}, x).requires_grad(), ws = t.input({3}, w).requires_grad();
    t.backward(formula(xs, ws));
    for (std::size_t i = 0; i < 3; i++) {
        const double h = 1e-6;
        doubles up = w, down = w;
        up[i] += h;
        down[i] -= h;
        double slope = (formula_at(ctx, x, up) - formula_at(ctx, x, down)) / (2 * h);
        CHECK(std::fabs(slope - ws.grad().values()[i]) < 1e-8);
        up = down = x;
        up[i] += h;
        down[i] -= h;
        slope = (formula_at(ctx, up, w) - formula_at(ctx, down, w)) / (2 * h);
        CHECK(std::fabs(slope - xs.grad().values()[i]) < 1e-8);
    }
}

void derivatives_agree_in_both_directions() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::tensor x = t.input({2}, doubles{.5, -1.5}).requires_grad();
    tg::tensor v = t.input({2}, doubles{1, 2});
    tg::tensor y = sum(x * x * x);
    doubles h = t.hvp(y, x, v)[0].values(); /* 6 x v */
    double slope = t.jvp(y, x, v)[0].item();
    doubles g = t.grad(y, x)[0].values();
    CHECK(std::fabs(slope - (g[0] + 2 * g[1])) < 1e-12);
    CHECK(std::fabs(h[0] - 3) < 1e-12 && std::fabs(h[1] + 18) < 1e-12);
}

void lists_outputs_and_options_are_those_of_c() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::tensor x = t.input({2, 3}, doubles{3, 1, 2, 6, 5, 4}), index;
    CHECK(sort(x, 1, false, &index).values() == (doubles{1, 2, 3, 4, 5, 6}));
    CHECK(index.values<std::int64_t>() == (std::vector<std::int64_t>{1, 2, 0, 2, 1, 0}));
    CHECK(sum(x, 0).values() == (doubles{9, 6, 6}));
    CHECK(sum(x, {0, -1}, true).ndim() == 2 && sum(x).item() == 21);
    auto parts = split(x, 1, {1, 2});
    CHECK(parts.size() == 2 && parts[1].values() == (doubles{1, 2, 5, 4}));
    CHECK(tg::concat({parts[0], parts[1]}, 1).values() == x.values());
    CHECK(tg::concat(parts, 1).values() == x.values());
    CHECK(transpose(reshape(x, {3, -1}), 0, 1).sizes().dim[1] == 3);
    CHECK(full(t, TG_F64, {}, 7).item() == 7);
    std::array<double, 3> last{};
    t.input({3}, std::array<float, 3>{1, 2, 4}).read(last);
    CHECK(last == (std::array<double, 3>{1, 2, 4}));
    tg::tensor target = t.input({2}, std::vector<std::int64_t>{0, 0});
    auto in_c = tg_make<tg_cross_entropy_opts>();
    in_c.label_smoothing = .1;
    double expected = tg_item(tg_cross_entropy(t, x, target, &in_c));
    CHECK(cross_entropy(x, target, [](auto &o) { o.label_smoothing = .1; }).item() == expected);
    CHECK(cross_entropy(x, target).item() != expected);
    CHECK(apply(*tg_op_find("neg"), nullptr, x).values()[0] == -3);
    CHECK(parts[0].text([](auto &o) { o.values_only = true; }) == "[[3.]\n [6.]]");
}

void parameters_are_operands_of_the_tape_that_is_given() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::kept a = ctx.from({2}, doubles{2, 3}), b = ctx.from({2}, doubles{5, 7});
    CHECK((t(a) * b).values() == (doubles{10, 21}));
    CHECK(fails([&] { mul(a, b); }, TG_ERR_ARGUMENT, "no operand of the op has a tape"));
    CHECK(fails([&] { a / 2; }, TG_ERR_ARGUMENT, "no operand of the op has a tape"));
    CHECK((a * t(b)).values() == (doubles{10, 21})); /* the context goes on */
}

template <class T> void integers_of(tg::context &ctx) {
    const std::vector<T> v{0, 5, std::numeric_limits<T>::max()};
    auto x = ctx.from({3}, v);
    CHECK(x.dtype() == tg::dtype_of<T> && x.template values<T>() == v);
}

void integers_of_every_size() {
    tg::context ctx = in_f64();
    integers_of<std::int8_t>(ctx), integers_of<std::int16_t>(ctx), integers_of<std::int32_t>(ctx);
    integers_of<std::int64_t>(ctx), integers_of<std::uint8_t>(ctx), integers_of<std::uint16_t>(ctx);
    integers_of<std::uint32_t>(ctx), integers_of<std::uint64_t>(ctx);
}

void errors_are_thrown_once() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::tensor a = t.input({2}, doubles{1, 2}), b = t.input({3}, doubles{1, 2, 3});
    CHECK(fails([&] { a + b; }, TG_ERR_SHAPE, "test_cxx.cpp"));
    CHECK((a + a).values() == (doubles{2, 4}));
    CHECK(fails([&] { t.input({2, 2}, doubles{1}); }, TG_ERR_SHAPE, "a shape of 4 elements was given 1 values"));
    std::int64_t half = std::int64_t{1} << 32;
    CHECK(fails([&] { t.input({half, half}, doubles{}); }, TG_ERR_SHAPE, "input"));
    CHECK(fails([&] { ctx.from({-1}, doubles{}); }, TG_ERR_SHAPE, "a shape of -1 elements"));
    CHECK(fails([&] { ctx.zeros({1, 1, 1, 1, 1, 1, 1, 1, 1}); }, TG_ERR_SHAPE, "zeros"));
    CHECK(fails([&] { a.values<float>(); }, TG_ERR_DTYPE,
                "the tensor has dtype f64, but the program's elements have f32"));
    float one = 1;
    CHECK(fails([&] { a.write(&one, 1); }, TG_ERR_DTYPE, "write: the tensor has dtype f64"));
    CHECK(fails([&] { a.write(doubles{1}); }, TG_ERR_ARGUMENT, "1 element given"));
    CHECK(fails([&] { a.item(); }, TG_ERR_SHAPE, "item"));
    CHECK(fails([&] { a.grad(); }, TG_ERR_STATE, "grad"));
    CHECK(fails([] { tg::context([](auto &c) { c.device = "abacus"; }); }, TG_ERR_DEVICE, "abacus"));
    CHECK(fails([] { tg::tensor().item(); }, TG_ERR_ARGUMENT, "no context"));
    t.reset();
    CHECK(fails([&] { a + 1; }, TG_ERR_HANDLE, "add_scalar"));
    tg_item(b); /* a call of C, whose error stays */
    CHECK(fails([&] { ctx.check(); }, TG_ERR_HANDLE, "item"));
    CHECK(ctx.status() == TG_OK && ctx.message().empty());
}

void owners_free_what_they_own() {
    tg::context ctx = in_f64();
    std::int64_t before = live_bytes(ctx);
    {
        tg::tape t(ctx);
        tg::kept a = ctx.zeros({1000}), moved = std::move(a), saved;
        CHECK(!a && moved.numel() == 1000);
        a = ctx.randn({10});
        {
            tg::scope s(t, "part");
            tg::tensor y = t(moved) + 1;
            s.keep(y);
            saved = tg::kept(y);
        }
        t.reset();
        CHECK(saved.values()[999] == 1);
        std::vector<tg::kept> many;
        for (int i = 0; i < 10; i++) many.push_back(ctx.param("p", {100}, 1));
        tg::optimizer opt(tg_sgd_new, ctx, many, [](auto &o) { o.momentum = .9; });
        tg::nn_module net(tg_nn_linear(ctx, 3, 4, true, 1));
        CHECK(net.params().size() == 2 && net.params()[1].numel() == 4);
        CHECK(net(t.input({1, 3}, doubles{1, 2, 3})).size(1) == 4);
    }
    CHECK(live_bytes(ctx) == before);
}

void scopes_and_modes_end_with_their_objects() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::tensor x = t.input({2}, doubles{1, 2}).requires_grad(), lost, left;
    {
        tg::scope s(t, "part");
        lost = x + 1;
        left = x + 2;
        s.keep(left);
    }
    CHECK(left.values()[0] == 3);
    CHECK(fails([&] { lost.values(); }, TG_ERR_DISCARDED, "scope"));
    {
        tg::no_grad off(t);
        tg::evaluation as_well(t);
        CHECK(!tg_is_training(t));
        CHECK(!tg_requires_grad(x * 2));
    }
    CHECK(tg_is_training(t) && tg_requires_grad(x * 2));
}

void an_optimizer_trains() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::kept w = ctx.param("w", {2}, 1);
    tg::optimizer opt(tg_adamw_new, ctx, w);
    opt.lr(.05);
    CHECK(opt.lr() == .05);
    for (int i = 0; i < 400; i++, t.reset()) {
        t.backward(mse(t(w), t.input({2}, doubles{3, -1})));
        opt.step();
        opt.zero_grad();
    }
    CHECK(std::fabs(w.values()[0] - 3) < .05 && std::fabs(w.values()[1] + 1) < .05);
    CHECK(fails([&] { tg::optimizer(tg_sgd_new, ctx, w, [](auto &o) { o.lr = -1; }); }, TG_ERR_ARGUMENT, "lr"));
}

/* What a statement owns cannot be borrowed for longer. */
static_assert(!std::is_constructible_v<tg::tensor, tg::kept>);
static_assert(std::is_constructible_v<tg::tensor, tg::kept &>);
static_assert(!std::is_copy_constructible_v<tg::kept> && std::is_nothrow_move_constructible_v<tg::kept>);
static_assert(!std::is_copy_constructible_v<tg::tape> && std::is_nothrow_move_constructible_v<tg::tape>);

struct stop : std::runtime_error {
    using std::runtime_error::runtime_error;
};

void hooks_replace_gradients_and_throw() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::tensor x = t.input({2}, doubles{1, 2}).requires_grad();
    tg::tensor y = x * 3;
    {
        tg::grad_hook twice(y, [](const tg::tensor &g) { return g * 2; });
        t.backward(sum(y), [](auto &o) { o.retain = true; });
        CHECK(x.grad().values() == (doubles{6, 6}));
    }
    x.zero_grad();
    {
        int seen = 0;
        tg::grad_hook look(y, [&](const tg::tensor &) { return seen++, tg::tensor(); });
        t.backward(sum(y), [](auto &o) { o.retain = true; });
        CHECK(seen == 1 && x.grad().values() == (doubles{3, 3}));
    }
    tg::grad_hook bad(y, [](const tg::tensor &) -> tg::tensor { throw stop("enough"); });
    bool caught = false;
    try {
        t.backward(sum(y));
    } catch (const stop &e) {
        caught = std::strcmp(e.what(), "enough") == 0;
    }
    CHECK(caught && ctx.status() == TG_OK);
    CHECK((x + 1).values()[0] == 2);
}

void an_error_in_a_callback_comes_out_as_it_was() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::tensor x = t.input({2}, doubles{1, 2}).requires_grad(), y = x * 3;
    tg::grad_hook bad(y, [&](const tg::tensor &g) { return g + t.input({3}, doubles{1, 2, 3}); });
    CHECK(fails([&] { t.backward(sum(y)); }, TG_ERR_SHAPE, "add"));
    tg::grad_hook odd(x, [](const tg::tensor &) -> tg::tensor { throw 7; });
    int caught = 0;
    try {
        t.backward(sum(x * 2));
    } catch (int i) {
        caught = i;
    }
    CHECK(caught == 7 && ctx.status() == TG_OK);
}

void modules_take_several_inputs() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::nn_module lstm(tg_nn_lstm(ctx, 3, 4, 1, nullptr)), fc(tg_nn_linear(ctx, 4, 2, false, 1));
    tg::kept data = ctx.randn({5, 2, 3});
    tg::tensor x = t(data);
    auto out = lstm.call(3, {x, tg::tensor(), tg::tensor()});
    CHECK(out.size() == 3 && out[0].values() == lstm(x).values() && out[2].size(2) == 4);
    CHECK(fc(out[0]).sizes().ndim == 3);
    CHECK(fails([&] { fc(x); }, TG_ERR_SHAPE, "test_cxx.cpp"));
    CHECK(fails([&] { lstm.call(2, {x, x, x, x}); }, TG_ERR_SHAPE, "lstm"));
    tg::nn_module net(tg_nn_sequential(ctx));
    tg_sequential_add(net, fc.release());
    CHECK(net.params().size() == 1 && !fc);
}

void communicators_are_arguments_of_ops() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::comm alone(tg_comm_self_new(ctx));
    ctx.check();
    CHECK(all_reduce(t.input({2}, doubles{1, 2}), alone).values() == (doubles{1, 2}));
}

/* A call of C after one of C++ is not said to be at the line of the latter. */
void calls_of_c_have_their_own_places() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::tensor x = t.input({2}, doubles{1, 2});
    const int line = __LINE__ + 1;
    relu(x);
    tg_add(t, x, t.input({3}, doubles{1, 2, 3}));
    CHECK(ctx.message().find(":" + std::to_string(line)) == std::string::npos);
    ctx.clear();
    CHECK(fails([&] { x + t.input({3}, doubles{1, 2, 3}); }, TG_ERR_SHAPE, std::to_string(__LINE__).c_str()));
}

void recomputed_functions_run_twice_and_end() {
    tg::context ctx = in_f64();
    tg::tape t(ctx);
    tg::kept w = ctx.param("w", {3}, 1);
    auto runs = std::make_shared<int>(0);
    auto f = [&w, runs](const tg::tensors &x) {
        ++*runs;
        return tanh(x[0] * w) * x[1];
    };
    tg::kept x = ctx.from({3}, doubles{1, 2, 3}), y = ctx.from({3}, doubles{4, 5, 6});
    t.backward(sum(f({t(x), y})));
    doubles expected = w.grad().values();
    w.zero_grad();
    t.backward(sum(tg::recompute(f, {t(x), y})));
    CHECK(*runs == 3 && w.grad().values() == expected);
    t.reset();
    CHECK(runs.use_count() == 2); /* this one, and that of f */
    int left = 1;
    auto late = [&](const tg::tensors &in) { return left-- ? exp(in[0]) : throw stop("second run"); };
    tg::tensor loss = sum(tg::recompute(late, t(w), [](auto &o) { o.name = "late"; }));
    bool caught = false;
    try {
        t.backward(loss);
    } catch (const stop &) {
        caught = true;
    }
    CHECK(caught && ctx.status() == TG_OK);
}

void a_limit_of_memory_is_an_error_like_others() {
    tg::context ctx([](auto &c) {
        c.threads = 1;
        c.memory = 1 << 16;
    });
    tg::tape t(ctx);
    std::int64_t before = live_bytes(ctx);
    CHECK(fails([&] { ctx.zeros({1 << 20}); }, TG_ERR_MEMORY, "memory"));
    tg::kept x = ctx.zeros({1 << 10});
    CHECK(fails(
        [&] {
            for (tg::tensor y = t(x);;) y = y + 1;
        },
        TG_ERR_MEMORY, "memory"));
    t.reset();
    x = tg::kept();
    CHECK(live_bytes(ctx) == before);
}

#define CASE(f)                                                                                                        \
    { #f, f }
const test_case cases[] = {
    CASE(operators_compute_what_their_ops_compute),
    CASE(gradients_are_those_of_differences),
    CASE(derivatives_agree_in_both_directions),
    CASE(lists_outputs_and_options_are_those_of_c),
    CASE(parameters_are_operands_of_the_tape_that_is_given),
    CASE(integers_of_every_size),
    CASE(errors_are_thrown_once),
    CASE(owners_free_what_they_own),
    CASE(scopes_and_modes_end_with_their_objects),
    CASE(an_optimizer_trains),
    CASE(hooks_replace_gradients_and_throw),
    CASE(an_error_in_a_callback_comes_out_as_it_was),
    CASE(modules_take_several_inputs),
    CASE(communicators_are_arguments_of_ops),
    CASE(calls_of_c_have_their_own_places),
    CASE(recomputed_functions_run_twice_and_end),
    CASE(a_limit_of_memory_is_an_error_like_others),
};

} // namespace

int main() { return run_cases(cases); }
