/* Tapegrad for C++17: objects that free themselves, errors as exceptions, operators, and lambdas as callbacks. A C++
 * program includes this header. It needs no library besides Tapegrad's own, and works with -fno-rtti, and with
 * -fno-exceptions (errors.hpp).
 *
 *     tapegrad::context ctx;
 *     tapegrad::tape t(ctx);
 *     auto w = ctx.param("w", {3}, 1);
 *     auto x = t.input({3}, std::vector<float>{1, 2, 3});
 *     t.backward(sum(x * w));
 *     w.grad().values();
 *
 * All of it is inline, over the C headers, which can be used next to it: objects convert to the pointers of C.
 * context::check throws if such a call has failed. */
#ifndef TAPEGRAD_HPP
#define TAPEGRAD_HPP

#include <tapegrad/cxx/callbacks.hpp>
#include <tapegrad/cxx/operators.hpp>

#endif
