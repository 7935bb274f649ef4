/* C++: owners of contexts, tapes, optimizers, modules and communicators, and guards of what a tape opens. Objects move
 * but do not copy, convert to the pointers of the C headers, and must end before their context. Declare the context
 * first: C++ ends objects in the reverse order. tapegrad.hpp includes this header. */
#ifndef TAPEGRAD_CXX_OBJECTS_HPP
#define TAPEGRAD_CXX_OBJECTS_HPP

#include <memory>

#include <tapegrad/comm.h>
#include <tapegrad/cxx/tensor.hpp>
#include <tapegrad/derivatives.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>

namespace tapegrad {
inline namespace TAPEGRAD_KIND {

/* Owns an object of the C headers, which `end` frees. */
template <class T, void (*end)(T *)> class owner {
  public:
    owner() = default;
    explicit owner(T *object) : object_(object) {}
    operator T *() const { return object_.get(); }
    /* Gives the object to the caller, who frees it or passes it on: tg_sequential_add(net, fc.release()). */
    T *release() { return object_.release(); }

  private:
    struct deleter {
        void operator()(T *object) const { end(object); }
    };
    std::unique_ptr<T, deleter> object_;
};

using comm = owner<tg_comm, tg_comm_free>; /* comm.h has functions that make a tg_comm */

namespace detail {

/* The dtype of the elements of a container. */
template <class C>
inline constexpr tg_dtype dtype_in =
    dtype_of<std::remove_cv_t<std::remove_pointer_t<decltype(std::declval<C>().data())>>>;

/* Returns the elements of a container. Fails unless there are as many as s has. */
template <class C> auto fitting(tg_ctx *ctx, const shape &s, const C &values) {
    static_assert(dtype_in<C> != TG_DTYPE_DEFAULT, "the elements have the type of no dtype");
    std::uint64_t n = 1; /* unsigned, as it may overflow; the library refuses such a shape */
    for (std::int64_t i = 0; i < s.ndim && i < TG_MAX_DIMS; i++) n *= static_cast<std::uint64_t>(s.dim[i]);
    if (n != values.size())
        tg_ctx_fail(ctx, TG_ERR_SHAPE, "a shape of %lld elements was given %zu values; give one for each element",
                    static_cast<long long>(n), values.size());
    return values.data();
}

/* Names a place of the program to a tape for as long as this object lives. After it, calls of the C headers name their
 * own places again. */
class at_site {
  public:
    at_site(tg_tape *t, const site &at) : t_(t) { tg_tape_set_site(t, at.file, at.line); }
    at_site(const at_site &) = delete;
    at_site &operator=(const at_site &) = delete;
    ~at_site() { tg_tape_set_site(t_, nullptr, 0); }

  private:
    tg_tape *t_;
};

/* Returns the tensors of a C array as results of t. */
inline std::vector<tensor> with_tape(const std::vector<tg_tensor *> &list, tg_tape *t) {
    std::vector<tensor> results;
    for (tg_tensor *x : list) results.emplace_back(x, t);
    return results;
}

} // namespace detail

/* A context: context ctx([](auto &c) { c.seed = 1; }). */
class context : public owner<tg_ctx, tg_ctx_free> {
  public:
    explicit context(const options<tg_config> &config = {}) : owner(tg_ctx_new(config)) { check(); }
    /* Without exceptions: the first error (tg_ctx_status), its message, and a way to go on after it. */
    tg_status status() const { return tg_ctx_status(*this); }
    std::string message() const { return tg_ctx_message(*this); }
    void clear() const { tg_ctx_clear(*this); }
    /* Throws if the context has an error: for calls of the C headers. */
    void check() const { tapegrad::check(*this); }

    /* Create tensors that the result owns (tensor.h). */
    kept zeros(const shape &s, tg_dtype dtype = TG_DTYPE_DEFAULT) const { return kept(tg_zeros(*this, dtype, s)); }
    kept randn(const shape &s, double std = 1, tg_dtype dtype = TG_DTYPE_DEFAULT) const {
        return kept(tg_randn(*this, dtype, s, std));
    }
    kept uniform(const shape &s, double lo, double hi, tg_dtype dtype = TG_DTYPE_DEFAULT) const {
        return kept(tg_uniform(*this, dtype, s, lo, hi));
    }
    kept param(const char *name, const shape &s, double std, tg_dtype dtype = TG_DTYPE_DEFAULT) const {
        return kept(tg_param_new(*this, name, dtype, s, std));
    }
    /* Creates a tensor of s with the elements of a std::vector, std::array or std::span, whose type gives the dtype. */
    template <class C> kept from(const shape &s, const C &values) const {
        return kept(tg_from_host(*this, detail::dtype_in<C>, s, detail::fitting(*this, s, values)));
    }
};

/* A scope of a tape (tg_scope_open), which ends with this object. keep() names the tensors that stay. */
class scope {
  public:
    scope(tg_tape *t, const char *name) : t_(t) {
        tg_scope_open(t, name);
        check(tg_tape_ctx(t));
    }
    scope(const scope &) = delete;
    scope &operator=(const scope &) = delete;
    ~scope() { tg_scope_close(t_, stays_, stays_.size()); }
    /* Closing the scope keeps the bytes of these tensors. */
    void keep(const tensors &stays) { stays_ = stays; }

  private:
    tg_tape *t_;
    tensors stays_;
};

/* Sets a mode of a tape. The destructor restores the previous value. */
template <bool (*set)(tg_tape *, bool)> class mode {
  public:
    mode(tg_tape *t, bool on) : t_(t), before_(set(t, on)) {}
    mode(const mode &) = delete;
    mode &operator=(const mode &) = delete;
    ~mode() { set(t_, before_); }

  private:
    tg_tape *t_;
    bool before_;
};
using grad_mode = mode<tg_tape_set_grad_mode>;
using training_mode = mode<tg_tape_set_training>;
/* Guards. While a no_grad exists, its tape keeps nothing for backward; while an evaluation exists, dropout and batch
 * norms on its tape behave as in evaluation. Example: no_grad off(t). */
struct no_grad : grad_mode {
    explicit no_grad(tg_tape *t) : grad_mode(t, false) {}
};
struct evaluation : training_mode {
    explicit evaluation(tg_tape *t) : training_mode(t, false) {}
};

class tape : public owner<tg_tape, tg_tape_free> {
  public:
    explicit tape(tg_ctx *ctx) : owner(tg_tape_new(ctx)) { check(ctx); }
    tg_ctx *ctx() const { return tg_tape_ctx(*this); }
    /* Ends all results of the tape (tg_tape_reset). Objects `tensor` that refer to them are refused from then on.
     */
    void reset() const { tg_tape_reset(*this); }
    /* Returns x as an operand with this tape, for ops on tensors of the context alone. Copies nothing. */
    tensor operator()(const tensor &x) const { return {x, *this}; }
    tensor operator()(kept &&) const = delete; /* it would be dropped at the end of the statement */
    /* Creates a leaf that ends with the step, as context::from creates a tensor. */
    template <class C> tensor input(const shape &s, const C &values) const {
        tensor x(tg_input(*this, detail::dtype_in<C>, s, detail::fitting(ctx(), s, values)), *this);
        check(ctx());
        return x;
    }

    void backward(const tensors &roots, const options<tg_backward_opts> &opts = {}) const {
        tg_backward_with(*this, roots, roots.size(), opts);
        check(ctx());
    }
    /* Returns d (sum of roots) / d input for each input (tg_grad). */
    std::vector<tensor> grad(const tensors &roots, const tensors &inputs,
                             const options<tg_grad_opts> &opts = {}) const {
        return collect(inputs.size(),
                       [&](tg_tensor **g) { tg_grad(*this, roots, roots.size(), inputs, inputs.size(), g, opts); });
    }
    /* Returns J * tangents for each of outs (tg_jvp). There is one tangent for each input; tensor() is 0. */
    std::vector<tensor> jvp(const tensors &outs, const tensors &inputs, const tensors &tangents) const {
        return collect(outs.size(),
                       [&](tg_tensor **d) { tg_jvp(*this, outs, outs.size(), inputs, inputs.size(), tangents, d); });
    }
    /* Returns the product of the Hessian of root and v, a tensor for each input (tg_hvp). */
    std::vector<tensor> hvp(const tensor &root, const tensors &inputs, const tensors &v) const {
        return collect(inputs.size(), [&](tg_tensor **h) { tg_hvp(*this, root, inputs, inputs.size(), v, h); });
    }

    /* Returns the n tensors that fill(array of n) stores. */
    template <class F> std::vector<tensor> collect(int n, F fill) const {
        std::vector<tg_tensor *> out(static_cast<std::size_t>(n));
        fill(out.data());
        check(ctx());
        return detail::with_tape(out, *this);
    }
};

/* An optimizer: optimizer opt(tg_adamw_new, ctx, params, [](auto &o) { o.lr = 1e-2; }). The first argument is any
 * function of optim.h that makes one. The parameters must outlive it. */
class optimizer : public owner<tg_optim, tg_optim_free> {
  public:
    template <class S, class O = options<S>>
    optimizer(tg_optim *(*make)(tg_ctx *, tg_tensor *const *, int, const S *), tg_ctx *ctx, const tensors &params,
              const O &opts = {})
        : owner(make(ctx, params, params.size(), options<S>(opts))), ctx_(ctx) {
        check(ctx);
    }
    void step() const {
        tg_optim_step(*this);
        check(ctx_);
    }
    void zero_grad() const {
        tg_optim_zero_grad(*this);
        check(ctx_);
    }
    double lr() const { return tg_optim_lr(*this); }
    void lr(double value) const {
        tg_optim_set_lr(*this, value);
        check(ctx_);
    }

  private:
    tg_ctx *ctx_ = nullptr;
};

/* A layer or a model: nn_module fc(tg_nn_linear(ctx, 8, 32, true, 0.1)), and y = fc(x). */
class nn_module : public owner<tg_module, tg_module_free> {
  public:
    explicit nn_module(tg_module *m) : owner(m) { check(tg_module_ctx(m)); }
    /* Runs the forward on the tape of x. */
    tensor operator()(const tensor &x, const site &at = site::here()) const {
        detail::at_site here(x.tape(), at);
        tensor y(tg_module_forward(*this, x.tape(), x), x.tape());
        check(tg_module_ctx(*this));
        return y;
    }
    /* Runs the forward on several inputs, where tensor() is one that is left out, and returns n outputs
     * (tg_module_call). */
    std::vector<tensor> call(int n, const tensors &in, const site &at = site::here()) const {
        detail::at_site here(in.tape(), at);
        std::vector<tg_tensor *> out(static_cast<std::size_t>(n));
        tg_module_call(*this, in.tape(), in, in.size(), out.data(), n);
        check(tg_module_ctx(*this));
        return detail::with_tape(out, in.tape());
    }
    /* Returns all parameters, also those of the modules in this one. */
    tensors params() const {
        std::vector<tg_tensor *> list(static_cast<std::size_t>(tg_module_param_count(*this)));
        tg_module_params(*this, list.data(), static_cast<int>(list.size()));
        return {list, nullptr};
    }
};
} // namespace TAPEGRAD_KIND
} // namespace tapegrad

#endif
