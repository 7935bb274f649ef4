/* Detects which instruction sets this machine and its operating system support. */
#include "kernels/cpu/cpu.h"

#ifdef __x86_64__
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Returns which register states the operating system saves: bits 1 and 2 for AVX, 5 to 7 for AVX-512, 17 and 18 for the
 * tiles of AMX. */
static uint64_t saved_states(void) {
    uint32_t lo, hi;
    __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Asks the operating system for the use of tiles, and returns whether it agrees. It saves their state only for
 * processes that have asked. Linux refuses if the signal stack of a thread is too small for that state. */
static bool may_use_tiles(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILE_DATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) == 0;
#else
    return false;
#endif
}

tg_cpu_level_t tg_cpu_detect(void) {
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    const uint32_t avx2 = 1u << 5, f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, bf16 = 1u << 5;
    const uint32_t amx_bf16 = 1u << 22, amx_tile = 1u << 24, amx = amx_bf16 | amx_tile;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (fma | osxsave | avx | f16c)) != (fma | osxsave | avx | f16c))
        return TG_CPU_PORTABLE;
    uint64_t saved = saved_states();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & avx2) || (saved & 0x06) != 0x06) return TG_CPU_PORTABLE;
    if ((b & (f | dq | bw | vl)) != (f | dq | bw | vl) || (saved & 0xe6) != 0xe6) return TG_CPU_AVX2;
    bool tiles = (d & amx) == amx && (saved & 0x60000) == 0x60000;
    if (a < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & bf16)) return TG_CPU_AVX512;
    return tiles && may_use_tiles() ? TG_CPU_AMX : TG_CPU_AVX512_BF16;
}
#else
tg_cpu_level_t tg_cpu_detect(void) {
    return TG_CPU_PORTABLE;
}
#endif

const char *tg_cpu_level_name(tg_cpu_level_t level) {
    static const char *const name[TG_CPU_LEVELS] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
    return (unsigned)level < TG_CPU_LEVELS ? name[level] : "?";
}
