/* sanitizers.h - functions of the sanitizers' runtimes, if a program has one. The emulator itself is not
 * instrumented, because its state is used by fibers and threads under a lock of its own. */
#ifndef TG_CUDA_EMULATOR_SANITIZERS_H
#define TG_CUDA_EMULATOR_SANITIZERS_H

#include <cstddef>
#include <cstdint>

#define EMU_WEAK __attribute__((weak))
extern "C" {
void __asan_poison_memory_region(const volatile void *at, size_t size) EMU_WEAK;
void __asan_unpoison_memory_region(const volatile void *at, size_t size) EMU_WEAK;
void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t size) EMU_WEAK;
void __sanitizer_finish_switch_fiber(void *save, const void **bottom, size_t *size) EMU_WEAK;
void *__tsan_get_current_fiber() EMU_WEAK;
void *__tsan_create_fiber(unsigned flags) EMU_WEAK;
void __tsan_destroy_fiber(void *fiber) EMU_WEAK;
void __tsan_switch_to_fiber(void *fiber, unsigned flags) EMU_WEAK;
void __tsan_acquire(void *at) EMU_WEAK;
void __tsan_release(void *at) EMU_WEAK;
void __tsan_read_range(void *at, unsigned long size) EMU_WEAK;
void __tsan_write_range(void *at, unsigned long size) EMU_WEAK;
void __tsan_java_init(uintptr_t heap, uintptr_t size) EMU_WEAK;
void __tsan_java_alloc(uintptr_t at, uintptr_t size) EMU_WEAK;
void __tsan_java_free(uintptr_t at, uintptr_t size) EMU_WEAK;
void AnnotateIgnoreReadsBegin(const char *file, int line) EMU_WEAK;
void AnnotateIgnoreReadsEnd(const char *file, int line) EMU_WEAK;
void AnnotateIgnoreWritesBegin(const char *file, int line) EMU_WEAK;
void AnnotateIgnoreWritesEnd(const char *file, int line) EMU_WEAK;
}

namespace emu {

inline bool under_asan() { return __asan_poison_memory_region != nullptr; }
inline bool under_tsan() { return __tsan_create_fiber != nullptr; }
enum { no_order = 1 }; /* a switch of fibers that orders no memory */

} // namespace emu

#endif
