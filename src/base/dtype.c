/* Names and bits of dtypes, made from the public list TG_DTYPE_LIST. */
#include "base/runtime.h"

const char *tg_dtype_name(tg_dtype d) {
    static const char *const names[] = {"default",
#define TG_X(NAME, name, bits, kind) #name,
                                        TG_DTYPE_LIST(TG_X)
#undef TG_X
    };
    return (unsigned)d < TG_LEN(names) ? names[d] : "?";
}

int tg_dtype_bits(tg_dtype d) {
    static const uint8_t all[] = {0,
#define TG_X(NAME, name, bits, kind) bits,
                                  TG_DTYPE_LIST(TG_X)
#undef TG_X
    };
    return (unsigned)d < TG_LEN(all) ? all[d] : 0;
}
