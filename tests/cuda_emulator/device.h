/* device.h - CUDA's device side for a host compiler: a .cu file that is compiled with include/cuda_runtime.h in place
 * of the toolkit's runs its kernels on the CPU. Kernels are launched by TG_LAUNCH and get dynamic shared memory from
 * TG_DYN_SHARED. Code that the host cannot run (PTX, tensor cores, cooperative groups) needs a portable version. */
#ifndef TG_CUDA_EMULATOR_DEVICE_H
#define TG_CUDA_EMULATOR_DEVICE_H

#include <cuda_runtime.h>
#include <math_constants.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

/* Static shared arrays are in one section, so that the runner can fill them with NaN before every block; reads of
 * elements that were never set are then visible. */
#undef __shared__
#define __shared__ static __attribute__((section("emulator_shared")))
#undef __launch_bounds__
#define __launch_bounds__(...)

#define TG_DYN_SHARED(type, name) type *name = reinterpret_cast<type *>(emu::dynamic_shared)
#define TG_LAUNCH(kernel, ...)    emu::launch(#kernel, kernel, __VA_ARGS__)

namespace emu {

/* One CUDA thread, and what it waits for. */
struct Thread {
    uint3 index;
    unsigned linear;
    int state;
    const char *file;
    int line;
    int kind;
    unsigned mask, lane; /* for a warp's operation: the lanes that take part, and the lane whose value is read */
    uint64_t value, result;
    void *fiber;
};

extern Thread *current;
extern uint3 block_index;
extern dim3 block_size, grid_size;
extern unsigned char *dynamic_shared;

enum Wait { wait_block, wait_block_votes, wait_shuffle, wait_ballot, wait_warp };
uint64_t wait_in_block(int kind, uint64_t value, const char *file, int line);
uint64_t wait_in_warp(int kind, unsigned mask, uint64_t value, unsigned lane, const char *file, int line);

/* An argument's type without taking part in deduction, so that atomicAdd(&u64, 1) compiles as it does under nvcc. */
template <class T> struct Same { using type = T; };
template <class T> using same = typename Same<T>::type;

/* The work of one thread of a launch: the kernel with its arguments. There is one class for each kernel, and every
 * file of kernels includes this header, so it uses nothing of the standard library. */
struct Body {
    virtual ~Body() {}
    virtual void run() const = 0;
};
template <class F> struct BodyOf final : Body {
    const F f;
    explicit BodyOf(const F &g) : f(g) {}
    void run() const override { f(); }
};

struct Launch {
    const char *name;
    const void *kernel;
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    const void *const *pointers; /* pointer arguments of the kernel; not kept */
    int n_pointers;
};
void launch_kernel(const Launch &launch, Body *body); /* takes ownership of body */

template <class T> void note_pointer(const T &, const void **, int *) {}
template <class T> void note_pointer(T *const &p, const void **to, int *n) { to[(*n)++] = p; }

template <class... P>
void launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
            same<P>... a) {
    const void *pointers[sizeof...(P) + 1];
    Launch l{name, reinterpret_cast<const void *>(kernel), grid, block, shared, stream, pointers, 0};
    (note_pointer(a, pointers, &l.n_pointers), ...);
    auto thread = [kernel, a...] { kernel(a...); };
    launch_kernel(l, new BodyOf<decltype(thread)>(thread));
}

template <class T> T shuffle(unsigned mask, T value, unsigned lane, const char *file, int line) {
    static_assert(sizeof(T) <= 8, "a shuffle is of at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = wait_in_warp(wait_shuffle, mask, bits, lane, file, line);
    memcpy(static_cast<void *>(&value), &bits, sizeof value);
    return value;
}

/* Returns the lane that a shuffle among WIDTH lanes reads: TO, or the lane itself if TO is outside of the segment. */
inline unsigned lane_in_segment(int to, int width) {
    int own = static_cast<int>(current->linear & 31), first = own & ~(width - 1);
    return static_cast<unsigned>(to < first || to >= first + width ? own : to);
}

template <class T, class F> T read_modify_write(T *p, F change) {
    T old, changed;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do changed = change(old);
    while (!__atomic_compare_exchange(p, &old, &changed, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

} // namespace emu

#define threadIdx (emu::current->index)
#define blockIdx  emu::block_index
#define blockDim  emu::block_size
#define gridDim   emu::grid_size
enum { warpSize = 32 };

#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMU_HERE) { emu::wait_in_block(emu::wait_block, 0, file, line); }
inline int __syncthreads_count(int predicate, EMU_HERE) {
    return static_cast<int>(emu::wait_in_block(emu::wait_block_votes, predicate != 0, file, line));
}
inline int __syncthreads_or(int predicate, EMU_HERE) {
    return emu::wait_in_block(emu::wait_block_votes, predicate != 0, file, line) != 0;
}
inline int __syncthreads_and(int predicate, EMU_HERE) {
    return emu::wait_in_block(emu::wait_block_votes, predicate == 0, file, line) == 0;
}
inline void __syncwarp(unsigned mask = ~0u, EMU_HERE) { emu::wait_in_warp(emu::wait_warp, mask, 0, 0, file, line); }

inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_HERE) {
    return static_cast<unsigned>(emu::wait_in_warp(emu::wait_ballot, mask, predicate != 0, 0, file, line));
}
inline int __any_sync(unsigned mask, int predicate, EMU_HERE) {
    return emu::wait_in_warp(emu::wait_ballot, mask, predicate != 0, 0, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMU_HERE) {
    return emu::wait_in_warp(emu::wait_ballot, mask, predicate == 0, 0, file, line) == 0;
}

template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMU_HERE) {
    unsigned first = emu::current->linear & 31 & ~static_cast<unsigned>(width - 1);
    return emu::shuffle(mask, value, first + (static_cast<unsigned>(lane) & static_cast<unsigned>(width - 1)), file,
                        line);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMU_HERE) {
    int own = static_cast<int>(emu::current->linear & 31);
    return emu::shuffle(mask, value, emu::lane_in_segment(own ^ bits, width), file, line);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, EMU_HERE) {
    int own = static_cast<int>(emu::current->linear & 31);
    return emu::shuffle(mask, value, emu::lane_in_segment(own + static_cast<int>(by), width), file, line);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMU_HERE) {
    int own = static_cast<int>(emu::current->linear & 31);
    return emu::shuffle(mask, value, emu::lane_in_segment(own - static_cast<int>(by), width), file, line);
}

template <class T> T atomicAdd(T *p, emu::same<T> v) {
    return emu::read_modify_write(p, [=](T o) { return T(o + v); });
}
template <class T> T atomicMax(T *p, emu::same<T> v) {
    return emu::read_modify_write(p, [=](T o) { return o > v ? o : v; });
}
template <class T> T atomicMin(T *p, emu::same<T> v) {
    return emu::read_modify_write(p, [=](T o) { return o < v ? o : v; });
}
template <class T> T atomicExch(T *p, emu::same<T> v) {
    return emu::read_modify_write(p, [=](T) { return v; });
}
template <class T> T atomicCAS(T *p, emu::same<T> expected, emu::same<T> v) {
    return emu::read_modify_write(p, [=](T o) { return o == expected ? v : o; });
}

inline void __threadfence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T> T max(T a, emu::same<T> b) { return a < b ? b : a; }
template <class T> T min(T a, emu::same<T> b) { return b < a ? b : a; }

/* glibc declares a function of this name, so it is a macro. */
#define __expf(x) expf(x)

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) {
    volatile float product = a * b; /* keeps the host compiler from contracting it into a fused multiply-add */
    return product;
}
inline double __dmul_rn(double a, double b) {
    volatile double product = a * b;
    return product;
}
inline double __dadd_rn(double a, double b) { return a + b; }

#endif
