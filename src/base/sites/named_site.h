/* Named sites: places in a program of another language, which stand for call sites. A named site is passed on as a call
 * site is, as an address: that of a tg_named_site with the highest bit set. No code and no data of a program has an
 * address with this bit. */
#ifndef TG_NAMED_SITE_H
#define TG_NAMED_SITE_H

#include <stdint.h>

typedef struct tg_named_site {
    int line;
    const char *file;
} tg_named_site;

_Static_assert(sizeof(uintptr_t) == 8, "the highest bit of an address is free");
#define TG_NAMED_SITE_BIT ((uintptr_t)1 << 63)

static inline const void *tg_named_site_address(const tg_named_site *s) {
    return (const void *)((uintptr_t)s | TG_NAMED_SITE_BIT);
}
/* Returns the named site that this address stands for, or NULL if it is the address of a call. */
static inline const tg_named_site *tg_named_site_of(const void *site) {
    uintptr_t at = (uintptr_t)site;
    return at & TG_NAMED_SITE_BIT ? (const tg_named_site *)(at & ~TG_NAMED_SITE_BIT) : (const tg_named_site *)0;
}

#endif
