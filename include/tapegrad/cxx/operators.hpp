/* C++: operators on tensors. A number is a scalar of the tensor's dtype. Comparisons are functions: eq, lt and so on.
 * matmul(a, b) is the matrix product. tapegrad.hpp includes this header. */
#ifndef TAPEGRAD_CXX_OPERATORS_HPP
#define TAPEGRAD_CXX_OPERATORS_HPP

#include <tapegrad/cxx/ops.hpp>

namespace tapegrad {
inline namespace TAPEGRAD_KIND {
namespace detail {

/* An operand and its place in the program. An operator has no default parameters, but the conversion of its operand
 * to this type has, and is called where the operator stands. */
struct operand {
    operand(const tensor &x_, const site &at_ = site::here()) : x(x_), at(at_) {}
    const tensor &x;
    site at;
};

/* Returns a scalar on the tape of x, with its dtype. */
inline tensor scalar_like(const operand &a, double value) {
    auto full = [&](tg_tape *t, const tensor &like) { return tg_full(t, tg_dtype_of(like), shape(), value); };
    return call(a.at, full, a.x);
}

/* The type R, if N is a number. A number has its own type here, as no conversion may be as good as that of a tensor
 * to a pointer, to which C++ would add. */
template <class N, class R> using if_number = std::enable_if_t<std::is_arithmetic_v<N>, R>;

} // namespace detail

inline tensor operator-(const detail::operand &a) { return neg(a.x, a.at); }
inline tensor operator+(const detail::operand &a, const tensor &b) { return add(a.x, b, a.at); }
inline tensor operator-(const detail::operand &a, const tensor &b) { return sub(a.x, b, a.at); }
inline tensor operator*(const detail::operand &a, const tensor &b) { return mul(a.x, b, a.at); }
inline tensor operator/(const detail::operand &a, const tensor &b) { return div(a.x, b, a.at); }

template <class N> detail::if_number<N, tensor> operator+(const detail::operand &a, N n) {
    return add_scalar(a.x, double(n), a.at);
}
template <class N> detail::if_number<N, tensor> operator-(const detail::operand &a, N n) {
    return add_scalar(a.x, -double(n), a.at);
}
template <class N> detail::if_number<N, tensor> operator*(const detail::operand &a, N n) {
    return scale(a.x, double(n), a.at);
}
template <class N> detail::if_number<N, tensor> operator/(const detail::operand &a, N n) {
    return div(a.x, detail::scalar_like(a, double(n)), a.at);
}
template <class N> detail::if_number<N, tensor> operator+(N n, const detail::operand &b) {
    return add_scalar(b.x, double(n), b.at);
}
template <class N> detail::if_number<N, tensor> operator-(N n, const detail::operand &b) {
    return sub(detail::scalar_like(b, double(n)), b.x, b.at);
}
template <class N> detail::if_number<N, tensor> operator*(N n, const detail::operand &b) {
    return scale(b.x, double(n), b.at);
}
template <class N> detail::if_number<N, tensor> operator/(N n, const detail::operand &b) {
    return div(detail::scalar_like(b, double(n)), b.x, b.at);
}
} // namespace TAPEGRAD_KIND
} // namespace tapegrad

#endif
