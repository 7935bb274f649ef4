/* C++: functions of the program, such as lambdas, that the library calls: recomputed functions and hooks on gradients.
 * An exception that one of them throws comes out of the call that ran it, such as tape::backward. tapegrad.hpp includes
 * this header. */
#ifndef TAPEGRAD_CXX_CALLBACKS_HPP
#define TAPEGRAD_CXX_CALLBACKS_HPP

#include <tapegrad/cxx/call.hpp>

namespace tapegrad {
inline namespace TAPEGRAD_KIND {

/* Runs f(inputs), which returns a tensor, without keeping what its ops save, and runs it again in backward
 * (tg_recompute). f gets the inputs on a tape of the library's, and is copied. */
template <class F>
tensor recompute(F f, const tensors &in, const options<tg_recompute_opts> &opts = {}, const site &at = site::here()) {
    tg_fn run = [](void *state, tg_tape *t, tg_tensor *const *x, int n, tg_tensor **out, int) {
        return detail::guard(tg_tape_ctx(t), [&] {
            out[0] = (*static_cast<F *>(state))(tensors(std::vector<tg_tensor *>(x, x + n), t));
        });
    };
    auto record = [&](tg_tape *t, const tensors &x) {
        const tg_recompute_opts *given = opts;
        tg_recompute_opts owned = given ? *given : tg_make<tg_recompute_opts>();
        owned.destroy = [](void *state) { delete static_cast<F *>(state); };
        tg_tensor *y = nullptr;
        tg_recompute(t, run, new F(std::move(f)), x, x.size(), &y, 1, &owned);
        return y;
    };
    return detail::call(at, record, in);
}

/* A hook on the gradient of a tensor, which this object removes when it ends. f gets the complete gradient in each
 * backward, and returns a tensor in its place, or tensor() to leave it. Ops in f record on the tape of the
 * backward, to which the gradient belongs. The tensor must not end before the hook. */
template <class F> class grad_hook {
  public:
    grad_hook(const tensor &x, F f) : x_(x), f_(std::make_unique<F>(std::move(f))), id_(tg_on_grad(x, run, f_.get())) {
        check(x.ctx());
    }
    grad_hook(const grad_hook &) = delete;
    grad_hook &operator=(const grad_hook &) = delete;
    ~grad_hook() { tg_remove_hook(x_, id_); }

  private:
    static tg_status run(void *f, tg_tape *t, tg_tensor *, tg_tensor **grad) {
        return detail::guard(tg_tape_ctx(t), [&] {
            if (tensor g = (*static_cast<F *>(f))(tensor(*grad, t))) *grad = g;
        });
    }
    tensor x_;
    std::unique_ptr<F> f_;
    std::uint64_t id_;
};
} // namespace TAPEGRAD_KIND
} // namespace tapegrad

#endif
