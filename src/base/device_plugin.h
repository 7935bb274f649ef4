/* What a plugin with a device exports as its table: plugin "cuda". */
#ifndef TG_DEVICE_PLUGIN_H
#define TG_DEVICE_PLUGIN_H

#include <tapegrad/device.h>

typedef struct tg_device_plugin {
    const tg_device_ops *ops;
    /* Returns how many bytes ops->alloc can still provide; TG_NONE after recording an error. */
    int64_t (*memory_left)(tg_ctx *ctx);
} tg_device_plugin;

#endif
