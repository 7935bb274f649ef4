/* Notifications to memory checkers. A checker knows only the whole segments from which the heap cuts its blocks.
 * tg_shadow_close tells the checker that bytes must not be accessed: a free block, or the bytes of a block after the
 * requested size. tg_shadow_open tells it that bytes may be accessed and are undefined. The checker is AddressSanitizer
 * if the build uses it, and valgrind's memcheck in a build with the option memcheck. In other builds the functions do
 * nothing. */
#ifndef TG_SHADOW_H
#define TG_SHADOW_H

#include <stddef.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TG_SHADOW_ADDRESS
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define TG_SHADOW_ADDRESS
#endif

#if defined(TG_SHADOW_ADDRESS)
#include <sanitizer/asan_interface.h>
#define TG_SHADOWED 1
static inline void tg_shadow_open(void *p, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(p, bytes); }
static inline void tg_shadow_close(void *p, size_t bytes) { ASAN_POISON_MEMORY_REGION(p, bytes); }
#elif defined(TG_MEMCHECK)
#include <valgrind/memcheck.h>
#define TG_SHADOWED 1
static inline void tg_shadow_open(void *p, size_t bytes) { VALGRIND_MAKE_MEM_UNDEFINED(p, bytes); }
static inline void tg_shadow_close(void *p, size_t bytes) { VALGRIND_MAKE_MEM_NOACCESS(p, bytes); }
#else
#define TG_SHADOWED 0
static inline void tg_shadow_open(void *p, size_t bytes) { (void)p, (void)bytes; }
static inline void tg_shadow_close(void *p, size_t bytes) { (void)p, (void)bytes; }
#endif

#endif
