/* C++: tensors, which are borrowed or kept, and lists of them. tapegrad.hpp includes this header. */
#ifndef TAPEGRAD_CXX_TENSOR_HPP
#define TAPEGRAD_CXX_TENSOR_HPP

#include <string>

#include <tapegrad/cxx/values.hpp>

namespace tapegrad {
inline namespace TAPEGRAD_KIND {

class kept;

/* A tensor that something else owns: a tape until its reset, a context, a module, or a `kept`. It is as small as
 * two pointers, copies freely, and converts to tg_tensor *, so that every function of the C headers takes it.
 *
 * Ops record on the tape of their first operand that has one. A result has the tape that made it. A parameter, or
 * another tensor of the context, has none; for an op that takes only such tensors, t(x) gives x the tape t.
 * tensor() is an optional operand that is left out. */
class tensor {
  public:
    tensor() = default;
    tensor(tg_tensor *x, tg_tape *t) : x_(x), t_(t) {}
    tensor(kept &&) = delete; /* it would be dropped at the end of the statement */
    operator tg_tensor *() const { return x_; }
    tg_tape *tape() const { return t_; }
    tg_ctx *ctx() const { return tg_ctx_of(x_); }

    int ndim() const { return tg_ndim(x_); }
    std::int64_t size(int dim) const { return tg_dim(x_, dim); }
    std::int64_t numel() const { return tg_numel(x_); }
    tg_shape sizes() const { return tg_shape_of(x_); }
    tg_dtype dtype() const { return tg_dtype_of(x_); }
    std::string name() const { return tg_name(x_); }

    /* Returns the values as NumPy prints them (tg_print). */
    std::string text(const options<tg_print_opts> &opts = {}) const {
        std::string s(tg_print(x_, nullptr, 0, opts), '\0');
        tg_print(x_, s.data(), s.size() + 1, opts);
        check(ctx());
        return s;
    }

    /* Returns the only element (tg_item). */
    double item() const {
        double v = tg_item(x_);
        check(ctx());
        return v;
    }

    /* Copy all elements to or from n elements at data, in row-major order. n must be numel(). T is the type of the
     * elements; double is converted from and to every dtype. Any other T fails with TG_ERR_DTYPE. */
    template <class T> void read(T *data, std::size_t n) const {
        if constexpr (std::is_same_v<T, double>) {
            tg_read_f64(x_, data, static_cast<std::int64_t>(n));
        } else if (has_elements<T>("read")) {
            tg_read(x_, data, n * sizeof(T));
        }
        check(ctx());
    }
    template <class T> void write(const T *data, std::size_t n) const {
        if constexpr (std::is_same_v<T, double>) {
            tg_write_f64(x_, data, static_cast<std::int64_t>(n));
        } else if (has_elements<T>("write")) {
            tg_write(x_, data, n * sizeof(T));
        }
        check(ctx());
    }
    /* The same with a std::vector, std::array or std::span. */
    template <class C> auto read(C &&values) const -> decltype(values.data(), void()) {
        read(values.data(), values.size());
    }
    template <class C> auto write(const C &values) const -> decltype(values.data(), void()) {
        write(values.data(), values.size());
    }
    template <class T = double> std::vector<T> values() const {
        std::vector<T> v(static_cast<std::size_t>(numel()));
        read(v.data(), v.size());
        return v;
    }

    /* ---- Gradients ---- */

    bool has_grad() const { return tg_has_grad(x_); }
    /* Returns the accumulated gradient of a leaf (tg_grad_of). */
    tensor grad() const {
        tensor g(tg_grad_of(x_), t_);
        check(ctx());
        return g;
    }
    void zero_grad() const {
        tg_zero_grad(x_);
        check(ctx());
    }
    /* Sets whether a leaf gets a gradient, and returns the leaf. */
    tensor requires_grad(bool on = true) const {
        tg_set_requires_grad(x_, on);
        check(ctx());
        return *this;
    }

  protected:
    tg_tensor *x_ = nullptr;
    tg_tape *t_ = nullptr;

  private:
    template <class T> bool has_elements(const char *call) const {
        static_assert(dtype_of<T> != TG_DTYPE_DEFAULT, "T is the type of no dtype");
        if (!tg_is_alive(x_) || dtype() == dtype_of<T>) return true; /* the call reports what is not alive */
        tg_ctx_fail(ctx(), TG_ERR_DTYPE, "%s: the tensor has dtype %s, but the program's elements have %s", call,
                    tg_dtype_name(dtype()), tg_dtype_name(dtype_of<T>));
        return false;
    }
};

/* A tensor of the context that this object owns, and drops (tg_drop) when it ends: a parameter, data, or a result
 * that outlives its tape. It must end before the context. */
class kept : public tensor {
  public:
    kept() = default;
    explicit kept(tg_tensor *x) : tensor(x, nullptr) { check(ctx()); }
    /* Keeps a result of a tape (tg_keep). */
    explicit kept(const tensor &x) : kept(tg_keep(x)) {}
    kept(kept &&other) noexcept : tensor(std::exchange(other.x_, nullptr), nullptr) {}
    kept &operator=(kept &&other) noexcept {
        std::swap(x_, other.x_);
        return *this;
    }
    ~kept() { tg_drop(x_); }
};

/* A list of tensors, as calls take it: {x, y}, or any container of tensors. */
class tensors {
  public:
    tensors() = default;
    tensors(const tensor &x) : tensors({x}) {}
    tensors(std::initializer_list<tensor> list) { add(list); }
    template <class C, class = decltype(tensor(*std::declval<const C &>().begin()))> tensors(const C &list) {
        add(list);
    }
    tensors(const std::vector<tg_tensor *> &list, tg_tape *t) : x_(list), t_(t) {}
    operator tg_tensor * const *() const { return x_.data(); }
    int size() const { return static_cast<int>(x_.size()); }
    tensor operator[](int i) const { return {x_[static_cast<std::size_t>(i)], t_}; }
    tg_tape *tape() const { return t_; }

  private:
    template <class C> void add(const C &list) {
        for (const tensor &x : list) {
            x_.push_back(x);
            if (!t_) t_ = x.tape();
        }
    }
    std::vector<tg_tensor *> x_;
    tg_tape *t_ = nullptr;
};
} // namespace TAPEGRAD_KIND
} // namespace tapegrad

#endif
