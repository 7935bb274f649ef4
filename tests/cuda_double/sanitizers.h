/* sanitizers.h - what the sanitizers' runtimes offer, where a program has one. The double itself is not instrumented:
 * its bookkeeping crosses fibers and threads under a lock of its own. */
#ifndef TG_CUDA_DOUBLE_SANITIZERS_H
#define TG_CUDA_DOUBLE_SANITIZERS_H

#include <cstddef>
#include <cstdint>

#define DBL_WEAK __attribute__((weak))
extern "C" {
void __asan_poison_memory_region(const volatile void *at, size_t size) DBL_WEAK;
void __asan_unpoison_memory_region(const volatile void *at, size_t size) DBL_WEAK;
void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t size) DBL_WEAK;
void __sanitizer_finish_switch_fiber(void *save, const void **bottom, size_t *size) DBL_WEAK;
void *__tsan_get_current_fiber() DBL_WEAK;
void *__tsan_create_fiber(unsigned flags) DBL_WEAK;
void __tsan_destroy_fiber(void *fiber) DBL_WEAK;
void __tsan_switch_to_fiber(void *fiber, unsigned flags) DBL_WEAK;
void __tsan_acquire(void *at) DBL_WEAK;
void __tsan_release(void *at) DBL_WEAK;
void __tsan_read_range(void *at, unsigned long size) DBL_WEAK;
void __tsan_write_range(void *at, unsigned long size) DBL_WEAK;
void __tsan_java_init(uintptr_t heap, uintptr_t size) DBL_WEAK;
void __tsan_java_alloc(uintptr_t at, uintptr_t size) DBL_WEAK;
void __tsan_java_free(uintptr_t at, uintptr_t size) DBL_WEAK;
void AnnotateIgnoreReadsBegin(const char *file, int line) DBL_WEAK;
void AnnotateIgnoreReadsEnd(const char *file, int line) DBL_WEAK;
void AnnotateIgnoreWritesBegin(const char *file, int line) DBL_WEAK;
void AnnotateIgnoreWritesEnd(const char *file, int line) DBL_WEAK;
}

namespace dbl {

inline bool under_asan() { return __asan_poison_memory_region != nullptr; }
inline bool under_tsan() { return __tsan_create_fiber != nullptr; }
enum { no_order = 1 }; /* a switch of fibers that orders no memory */

} // namespace dbl

#endif
