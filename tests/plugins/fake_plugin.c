/* Shared objects that are no plugins of this library: of another version (FAKE_VERSION), bound to another copy of the
 * library, or, without either, one that exports nothing. */
#include "base/plugin.h"

#if defined(FAKE_VERSION)
TG_API extern const tg_plugin tg_cuda_plugin;
const tg_plugin tg_cuda_plugin = {.version = FAKE_VERSION, .library = tg_version};
#elif defined(FAKE_LIBRARY)
static const char *another(void) { return TG_VERSION; }

TG_API extern const tg_plugin tg_cuda_plugin;
const tg_plugin tg_cuda_plugin = {.version = TG_VERSION, .library = another};
#else
extern const int tg_no_plugin;
const int tg_no_plugin = 1;
#endif
