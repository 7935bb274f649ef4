/* Notifications to memory checkers. A checker knows only the whole segments from which the heap cuts its blocks.
 * tg_shadow_close tells the checker that a range must not be accessed: a free block, or the end of a block, after the
 * requested size. tg_shadow_open tells it that a range may be accessed. The checker is AddressSanitizer if the build
 * uses it, and valgrind's memcheck in a build with the option memcheck. In other builds the functions do nothing.
 *
 * memcheck also takes the contents of an opened range as undefined, and reports branches that depend on them.
 * AddressSanitizer does not track contents, and tracks access in units of 8 bytes: ranges begin at a multiple of 8, and
 * a range that is closed ends at one. The blocks of the heap do, because they are multiples of 64 bytes. */
#ifndef TG_SHADOW_H
#define TG_SHADOW_H

#include <stddef.h>

/* Compilers announce AddressSanitizer by the macro, by the feature, or by both, so one does not exclude the other. */
#if defined(__SANITIZE_ADDRESS__)
#define TG_SHADOW_ADDRESS
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TG_SHADOW_ADDRESS
#endif
#endif

/* TG_SHADOWED: 1 if a checker is notified, otherwise 0. Callers test it to leave out work that only a checker needs. */

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
