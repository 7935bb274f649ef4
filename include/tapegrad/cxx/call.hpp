/* C++: how ops.hpp calls the ops of the C headers, and ops of the program's own. tapegrad.hpp includes this header. */
#ifndef TAPEGRAD_CXX_CALL_HPP
#define TAPEGRAD_CXX_CALL_HPP

#include <tapegrad/cxx/objects.hpp>
#include <tapegrad/op.h>

namespace tapegrad {
inline namespace TAPEGRAD_KIND {
namespace detail {

/* What an argument says of the tape that an op records on. */
template <class A> tg_tape *tape_of(const A &) { return nullptr; }
inline tg_tape *tape_of(const tensor &x) { return x.tape(); }
inline tg_tape *tape_of(const tensors &x) { return x.tape(); }

/* An output besides the result. The C function stores the handle, and the destructor gives it to *to. */
class out {
  public:
    out(tensor *to, tg_tape *t) : to_(to), t_(t) {}
    ~out() {
        if (to_) *to_ = tensor(x_, t_);
    }
    operator tg_tensor **() { return to_ ? &x_ : nullptr; }

  private:
    tensor *to_;
    tg_tape *t_;
    tg_tensor *x_ = nullptr;
};

/* Turns an argument of C++ into that of the C function. */
template <class A> const A &c_argument(const A &value, tg_tape *) { return value; }
inline out c_argument(tensor *to, tg_tape *t) { return {to, t}; }

inline int size(const std::vector<std::int64_t> &list) { return static_cast<int>(list.size()); }

/* Returns the tape of the first operand that has one. Fails if none has. */
template <class... A> tg_tape *first_tape(const A &...args) {
    tg_tape *t = nullptr;
    ((t = t ? t : tape_of(args)), ...);
    if (t) return t;
    tg_ctx *ctx = nullptr;
    auto look = [&](const auto &x) {
        if constexpr (std::is_convertible_v<decltype(x), const tensor &>) ctx = ctx ? ctx : tg_ctx_of(x);
    };
    (look(args), ...);
    tg_ctx_fail(ctx, TG_ERR_ARGUMENT, "no operand of the op has a tape; give one of them the tape t by t(x)");
    check(ctx);
    return nullptr;
}

/* Calls a C function f(t, arguments) at this place of the program, and returns its tensor. */
template <class F, class... A> tensor call_on(tg_tape *t, const site &at, F f, const A &...args) {
    at_site here(t, at);
    tensor y(f(t, c_argument(args, t)...), t);
    if (!tg_is_alive(y)) check(tg_tape_ctx(t));
    return y;
}

/* The same on the tape of the operands. */
template <class F, class... A> tensor call(const site &at, F f, const A &...args) {
    return call_on(first_tape(args...), at, f, args...);
}

/* The same for a C function that stores n tensors, f(t, arguments, out). */
template <class F, class... A> std::vector<tensor> call_n(int n, const site &at, F f, const A &...args) {
    tg_tape *t = first_tape(args...);
    std::vector<tg_tensor *> y(static_cast<std::size_t>(n > 0 ? n : 0));
    at_site here(t, at);
    f(t, c_argument(args, t)..., y.data());
    check(tg_tape_ctx(t));
    return with_tape(y, t);
}

} // namespace detail

/* Records an op of the program's own (op.h) with one output. */
inline tensor apply(const tg_op &op, const void *params, const tensors &in, const site &at = site::here()) {
    auto record = [&](tg_tape *t, const tensors &x) {
        tg_tensor *y = nullptr;
        tg_apply(t, &op, params, x, x.size(), &y, 1, nullptr, nullptr, TG_SITE);
        return y;
    };
    return detail::call(at, record, in);
}
} // namespace TAPEGRAD_KIND
} // namespace tapegrad

#endif
