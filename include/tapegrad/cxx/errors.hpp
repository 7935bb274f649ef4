/* C++: errors of the library as exceptions, and exceptions of callbacks as errors of the library. tapegrad.hpp includes
 * this header.
 *
 * A failed call of this interface throws tapegrad::error, and clears the error of the context, so that the context can
 * be used further.
 *
 * Without exceptions, in a program that is compiled with -fno-exceptions or defines TAPEGRAD_NO_EXCEPTIONS, nothing is
 * thrown and nothing is cleared: errors are sticky as in C (tapegrad.h), and the program asks context::status(). */
#ifndef TAPEGRAD_CXX_ERRORS_HPP
#define TAPEGRAD_CXX_ERRORS_HPP

#include <exception>
#include <stdexcept>
#include <utility>

#include <tapegrad/tapegrad.h>

#if defined(__cpp_exceptions) && !defined(TAPEGRAD_NO_EXCEPTIONS)
#define TAPEGRAD_EXCEPTIONS 1
#else
#define TAPEGRAD_EXCEPTIONS 0
#endif

/* The two kinds of the interface have different names for the linker, so that a program may have files of both. */
#if TAPEGRAD_EXCEPTIONS
#define TAPEGRAD_KIND throwing
#else
#define TAPEGRAD_KIND sticky
#endif

namespace tapegrad {
inline namespace TAPEGRAD_KIND {

/* What a failed call throws. what() is the message of the library. */
class error : public std::runtime_error {
  public:
    error(tg_status status, const char *message) : std::runtime_error(message), status_(status) {}
    tg_status status() const noexcept { return status_; }

  private:
    tg_status status_;
};

#if TAPEGRAD_EXCEPTIONS

namespace detail {

/* The exception that a callback of ctx has thrown on this thread, until the call of the library that ran the
 * callback has returned. */
struct thrown {
    const tg_ctx *ctx = nullptr;
    std::exception_ptr exception;
};
inline thread_local thrown last_thrown;

} // namespace detail

/* Throws if ctx has an error, and clears it: the exception of a callback if that was the cause, otherwise an error.
 * For calls of the C interface, whose errors are sticky. */
inline void check(tg_ctx *ctx) {
    if (tg_ctx_status(ctx) == TG_OK) return;
    error failure(tg_ctx_status(ctx), ctx ? tg_ctx_message(ctx) : "no context");
    tg_ctx_clear(ctx);
    if (failure.status() == TG_ERR_CALLBACK && detail::last_thrown.ctx == ctx) {
        detail::last_thrown.ctx = nullptr;
        std::rethrow_exception(std::exchange(detail::last_thrown.exception, nullptr));
    }
    throw failure;
}

namespace detail {

/* Runs the body of a callback. No exception leaves it, as C functions are between here and the handler: it becomes
 * the error of ctx, and check throws it again. */
template <class F> tg_status guard(tg_ctx *ctx, F &&body) {
    try {
        body();
    } catch (const std::exception &e) {
        last_thrown = {ctx, std::current_exception()};
        return tg_ctx_fail(ctx, TG_ERR_CALLBACK, "a C++ function threw: %s", e.what());
    } catch (...) {
        last_thrown = {ctx, std::current_exception()};
        return tg_ctx_fail(ctx, TG_ERR_CALLBACK, "a C++ function threw something that is no std::exception");
    }
    return tg_ctx_status(ctx);
}

} // namespace detail

#else

inline void check(tg_ctx *) {}

namespace detail {

template <class F> tg_status guard(tg_ctx *ctx, F &&body) {
    body();
    return tg_ctx_status(ctx);
}

} // namespace detail

#endif
} // namespace TAPEGRAD_KIND
} // namespace tapegrad

#endif
