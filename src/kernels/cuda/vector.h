/* Quads: the elements of an operand that a thread moves together. In the compute type T a quad has 16 bytes: four
 * elements of float, or two of double or int64_t.
 *
 * A quad is fetched as raw bytes, by the size of its elements, and decoded later, by their dtype. So a thread starts
 * the loads of all operands before it waits for the first. Elements wider than T do not form quads. */
#ifndef TG_CUDA_VECTOR_H
#define TG_CUDA_VECTOR_H

#include "kernels/cuda/array.h"

namespace tg {

template <class T> struct Quad {
    static constexpr int size = 16 / (int)sizeof(T);
};

struct alignas(16) Raw {
    uint32_t w[4];
};

__host__ __device__ inline int element_size(int dtype) {
    switch (dtype) {
    case TG_F64:
    case TG_I64:
    case TG_U64:
    case TG_U64_RANK:
    case TG_U64_ODD: return 8;
    case TG_F32:
    case TG_I32:
    case TG_U32: return 4;
    case TG_BF16:
    case TG_F16:
    case TG_I16:
    case TG_U16: return 2;
    default: return 1;
    }
}

/* Returns the value of the element with these bits. */
template <class T> __device__ inline T value_of(uint64_t bits, int dtype) {
    alignas(8) char e[8];
    memcpy(e, &bits, sizeof e);
    return load<T>(e, dtype, 0);
}

/* Load and store the bits of element i, which has `size` bytes. */
__device__ inline uint64_t fetch_one(const char *data, int size, int64_t i) {
    switch (size) {
    case 1: return ((const uint8_t *)data)[i];
    case 2: return ((const uint16_t *)data)[i];
    case 4: return ((const uint32_t *)data)[i];
    default: return ((const uint64_t *)data)[i];
    }
}

__device__ inline void put_one(char *data, int size, int64_t i, uint64_t bits) {
    switch (size) {
    case 1: ((uint8_t *)data)[i] = (uint8_t)bits; break;
    case 2: ((uint16_t *)data)[i] = (uint16_t)bits; break;
    case 4: ((uint32_t *)data)[i] = (uint32_t)bits; break;
    default: ((uint64_t *)data)[i] = bits;
    }
}

template <class S, int N> struct alignas(sizeof(S) * N) Pack {
    S e[N];
};

/* The type as which a whole quad of elements S is loaded and stored. It consists of words, because elements of 16 bits
 * would each take a register. */
template <class S, int N> struct WordsOf {
    typedef Pack<uint32_t, sizeof(S) * N / 4> type;
};
template <> struct WordsOf<uint8_t, 2> {
    typedef Pack<uint16_t, 1> type;
};

template <class S, int Q> __device__ inline void fetch_as(Raw &r, const char *data, int64_t at, int64_t stride, int n,
                                                          bool whole) {
    typedef typename WordsOf<S, Q>::type Words;
    Pack<S, Q> pack;
    const S *p = (const S *)data + at;
    if (whole && n == Q) {
        Words words = *(const Words *)p;
        memcpy(&r, &words, sizeof words);
        return;
    }
    if (stride == 0 && n > 0) {
        S e = *p;
        TG_UNROLL
        for (int k = 0; k < Q; k++) pack.e[k] = e;
    } else {
        TG_UNROLL
        for (int k = 0; k < Q; k++) pack.e[k] = k < n ? p[k * stride] : S(0);
    }
    memcpy(&r, &pack, sizeof pack);
}

/* Loads n elements from element `at` on, `stride` elements apart; the rest of the quad is undefined. If `whole` is
 * true, the stride is 1 and every quad is aligned to its own size, so that loading a full quad is a single access. */
template <int Q> __device__ inline void fetch(Raw &r, const char *data, int size, int64_t at, int64_t stride, int n,
                                              bool whole) {
    switch (size) {
    case 1: fetch_as<uint8_t, Q>(r, data, at, stride, n, whole); break;
    case 2: fetch_as<uint16_t, Q>(r, data, at, stride, n, whole); break;
    case 4: fetch_as<uint32_t, Q>(r, data, at, stride, n, whole); break;
    default:
        if constexpr (Q == 2) fetch_as<uint64_t, Q>(r, data, at, stride, n, whole);
    }
}

template <class S, int Q> __device__ inline void put_as(const Raw &r, char *data, int64_t at, int64_t stride, int n,
                                                        bool whole) {
    typedef typename WordsOf<S, Q>::type Words;
    Pack<S, Q> pack;
    S *p = (S *)data + at;
    if (whole && n == Q) {
        Words words;
        memcpy(&words, &r, sizeof words);
        *(Words *)p = words;
    } else {
        memcpy(&pack, &r, sizeof pack);
        TG_UNROLL
        for (int k = 0; k < Q; k++)
            if (k < n) p[k * stride] = pack.e[k];
    }
}

/* Stores n elements. The arguments mean the same as those of fetch. */
template <int Q> __device__ inline void put(const Raw &r, char *data, int size, int64_t at, int64_t stride, int n,
                                            bool whole) {
    switch (size) {
    case 1: put_as<uint8_t, Q>(r, data, at, stride, n, whole); break;
    case 2: put_as<uint16_t, Q>(r, data, at, stride, n, whole); break;
    case 4: put_as<uint32_t, Q>(r, data, at, stride, n, whole); break;
    default:
        if constexpr (Q == 2) put_as<uint64_t, Q>(r, data, at, stride, n, whole);
    }
}

/* Returns the value of the bfloat16 with these bits. A shift is cheaper than moving each element to a register of 16
 * bits. */
template <class S> __device__ inline float widened(S bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

template <class T, int DTYPE, class S> __device__ inline void decode_as(const Raw &r, T *v) {
    constexpr int Q = Quad<T>::size;
    if constexpr (sizeof(S) * Q <= sizeof(Raw)) {
        alignas(16) S e[Q];
        memcpy(e, &r, sizeof e);
        TG_UNROLL
        for (int k = 0; k < Q; k++) v[k] = DTYPE == TG_BF16 ? (T)widened(e[k]) : load<T>((const char *)e, DTYPE, k);
    }
}

/* Decodes elements of the size of S, whose dtype has no case in decode. */
template <class T, class S> __device__ inline void decode_sized(const Raw &r, int dtype, T *v) {
    constexpr int Q = Quad<T>::size;
    if constexpr (sizeof(S) * Q <= sizeof(Raw)) {
        alignas(16) S e[Q];
        memcpy(e, &r, sizeof e);
        TG_UNROLL
        for (int k = 0; k < Q; k++) v[k] = load<T>((const char *)e, dtype, k);
    }
}

template <class T> __device__ inline void decode_any(const Raw &r, int dtype, T *v) {
    switch (element_size(dtype)) {
    case 1: decode_sized<T, uint8_t>(r, dtype, v); break;
    case 2: decode_sized<T, uint16_t>(r, dtype, v); break;
    case 4: decode_sized<T, uint32_t>(r, dtype, v); break;
    default: decode_sized<T, uint64_t>(r, dtype, v);
    }
}

template <class T> __device__ inline void decode(const Raw &r, int dtype, T *v) {
    switch (dtype) {
    case TG_F32: decode_as<T, TG_F32, float>(r, v); break;
    case TG_F64: decode_as<T, TG_F64, double>(r, v); break;
    case TG_BF16: decode_as<T, TG_BF16, uint16_t>(r, v); break;
    case TG_F16: decode_as<T, TG_F16, uint16_t>(r, v); break;
    case TG_I64: decode_as<T, TG_I64, int64_t>(r, v); break;
    case TG_I32: decode_as<T, TG_I32, int32_t>(r, v); break;
    case TG_U8: decode_as<T, TG_U8, uint8_t>(r, v); break;
    case TG_BOOL: decode_as<T, TG_BOOL, uint8_t>(r, v); break;
    default: decode_any<T>(r, dtype, v);
    }
}

/* Calls f(n), where the type of n has the dtype as its constant `value`, so that the loop in f is compiled for the
 * dtype. Only float32, bfloat16 and float16 with compute type float have loops of their own; otherwise `value` is
 * ANY_QUAD. */
enum { ANY_QUAD = -1 };
template <int D> struct Constant {
    static constexpr int value = D;
};
template <class T, class F> __device__ inline void with_dtype(int dtype, F f) {
    if constexpr (sizeof(T) == sizeof(float)) {
        switch (dtype) {
        case TG_F32: return f(Constant<TG_F32>());
        case TG_BF16: return f(Constant<TG_BF16>());
        case TG_F16: return f(Constant<TG_F16>());
        }
    }
    f(Constant<ANY_QUAD>());
}

/* Fetch and decode a quad of dtype D. Unless D is ANY_QUAD, the quad is whole. */
template <class T, int D>
__device__ inline void fetch_of(Raw &r, const char *data, int size, int64_t at, int64_t stride, int n, bool whole) {
    constexpr int Q = Quad<T>::size;
    if constexpr (D == TG_F32)
        fetch_as<float, Q>(r, data, at, 1, Q, true);
    else if constexpr (D == TG_BF16 || D == TG_F16)
        fetch_as<uint16_t, Q>(r, data, at, 1, Q, true);
    else
        fetch<Q>(r, data, size, at, stride, n, whole);
}
template <class T, int D> __device__ inline void decode_of(const Raw &r, int dtype, T *v) {
    decode<T>(r, D == ANY_QUAD ? dtype : D, v);
}

template <class T, int DTYPE, class S> __device__ inline void encode_as(Raw &r, const T *v) {
    constexpr int Q = Quad<T>::size;
    if constexpr (sizeof(S) * Q <= sizeof(Raw)) {
        alignas(16) char e[sizeof(S) * Q];
        TG_UNROLL
        for (int k = 0; k < Q; k++) store<T>(e, DTYPE, k, v[k]);
        memcpy(&r, e, sizeof e);
    } else {
        r = Raw{}; /* elements wider than T do not form quads */
    }
}

/* Encodes elements of the size of S, whose dtype has no case in encode. */
template <class T, class S> __device__ inline void encode_sized(Raw &r, int dtype, const T *v) {
    constexpr int Q = Quad<T>::size;
    r = Raw{};
    if constexpr (sizeof(S) * Q <= sizeof(Raw)) {
        alignas(16) char e[sizeof(S) * Q];
        TG_UNROLL
        for (int k = 0; k < Q; k++) store<T>(e, dtype, k, v[k]);
        memcpy(&r, e, sizeof e);
    }
}

template <class T> __device__ inline void encode_any(Raw &r, int dtype, const T *v) {
    switch (element_size(dtype)) {
    case 1: encode_sized<T, uint8_t>(r, dtype, v); break;
    case 2: encode_sized<T, uint16_t>(r, dtype, v); break;
    case 4: encode_sized<T, uint32_t>(r, dtype, v); break;
    default: encode_sized<T, uint64_t>(r, dtype, v);
    }
}

template <class T> __device__ inline void encode(Raw &r, int dtype, const T *v) {
    switch (dtype) {
    case TG_F32: encode_as<T, TG_F32, float>(r, v); break;
    case TG_F64: encode_as<T, TG_F64, double>(r, v); break;
    case TG_BF16: encode_as<T, TG_BF16, uint16_t>(r, v); break;
    case TG_F16: encode_as<T, TG_F16, uint16_t>(r, v); break;
    case TG_I64: encode_as<T, TG_I64, int64_t>(r, v); break;
    case TG_I32: encode_as<T, TG_I32, int32_t>(r, v); break;
    case TG_U8: encode_as<T, TG_U8, uint8_t>(r, v); break;
    case TG_BOOL: encode_as<T, TG_BOOL, uint8_t>(r, v); break;
    default: encode_any<T>(r, dtype, v);
    }
}

} // namespace tg

#endif
