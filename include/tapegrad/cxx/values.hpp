/* C++: the small values that calls take: shapes, lists of dims, structs of options, and dtypes of C++ types.
 * tapegrad.hpp includes this header. */
#ifndef TAPEGRAD_CXX_VALUES_HPP
#define TAPEGRAD_CXX_VALUES_HPP

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <tapegrad/cxx/errors.hpp>

namespace tapegrad {
inline namespace TAPEGRAD_KIND {

/* A place in the program, which messages name ("called from mine.cpp:12"). As the default of a parameter, here() is
 * where the function is called. */
struct site {
    const char *file;
    int line;
    static site here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

/* A shape: {2, 3} has two dims, and {} none. */
struct shape : tg_shape {
    shape() : tg_shape(tg_shape_make(0, nullptr)) {}
    shape(std::initializer_list<std::int64_t> sizes) : tg_shape(tg_shape_make(sizes.size(), sizes.begin())) {}
    shape(const std::vector<std::int64_t> &sizes) : tg_shape(tg_shape_make(sizes.size(), sizes.data())) {}
    shape(const tg_shape &other) : tg_shape(other) {}
};

/* A list of dims: {0, -1}, one dim as a number, or all dims, which is what dims() means. */
struct dims : tg_dims {
    dims() : tg_dims(TG_ALL_DIMS) {}
    dims(int dim) : dims({dim}) {}
    dims(std::initializer_list<std::int64_t> list) : tg_dims(tg_dims_make(list.size(), list.begin())) {}
    dims(const tg_dims &other) : tg_dims(other) {}
};

/* A struct of options S with its defaults, which a function changes: [](auto &o) { o.lr = 1e-2; }. */
template <class S> class options {
  public:
    options() = default;
    options(const S &value) : value_(value) {}
    template <class F, class = std::enable_if_t<std::is_invocable_v<F, S &>>> options(F &&set) : value_(tg_make<S>()) {
        std::forward<F>(set)(*value_);
    }
    operator const S *() const { return value_ ? &*value_ : nullptr; }

  private:
    std::optional<S> value_;
};

/* The dtype of tensors whose elements are of the type T. */
template <class T> inline constexpr tg_dtype dtype_of = TG_DTYPE_DEFAULT;
template <> inline constexpr tg_dtype dtype_of<float> = TG_F32;
template <> inline constexpr tg_dtype dtype_of<double> = TG_F64;
template <> inline constexpr tg_dtype dtype_of<std::int64_t> = TG_I64;
template <> inline constexpr tg_dtype dtype_of<std::int32_t> = TG_I32;
template <> inline constexpr tg_dtype dtype_of<std::uint8_t> = TG_U8;
template <> inline constexpr tg_dtype dtype_of<std::int8_t> = TG_I8;
template <> inline constexpr tg_dtype dtype_of<std::int16_t> = TG_I16;
template <> inline constexpr tg_dtype dtype_of<std::uint16_t> = TG_U16;
template <> inline constexpr tg_dtype dtype_of<std::uint32_t> = TG_U32;
template <> inline constexpr tg_dtype dtype_of<std::uint64_t> = TG_U64;
template <> inline constexpr tg_dtype dtype_of<bool> = TG_BOOL;
} // namespace TAPEGRAD_KIND
} // namespace tapegrad

#endif
