/* The structs of DLPack, and what its export and import share. Their layout is that of DLPack's C interface, and their
 * members have its names. */
#ifndef TG_DLPACK_H
#define TG_DLPACK_H

#include <tapegrad/dlpack.h>

#include "core/context.h"

/* ---- DLPack's structs ---- */

enum { TG_DL_CPU = 1, TG_DL_CUDA = 2, TG_DL_CUDA_HOST = 3, TG_DL_CUDA_MANAGED = 13 };
enum { TG_DL_INT, TG_DL_UINT, TG_DL_FLOAT, TG_DL_OPAQUE, TG_DL_BFLOAT, TG_DL_COMPLEX, TG_DL_BOOL };
enum { TG_DL_E4M3 = 10, TG_DL_E5M2 = 12, TG_DL_E8M0 = 14 }; /* float8_e4m3fn, float8_e5m2, float8_e8m0fnu */
enum { TG_DL_MAJOR = 1, TG_DL_MINOR = 1 }; /* the version that is exported; 1.1 has the 8-bit floats */
enum { TG_DL_READ_ONLY = 1 };              /* the only flag of tg_dl_versioned that matters here */

typedef struct tg_dl_device {
    int32_t device_type, device_id;
} tg_dl_device;

typedef struct tg_dl_dtype {
    uint8_t code, bits;
    uint16_t lanes;
} tg_dl_dtype;

typedef struct tg_dl_tensor {
    void *data;
    tg_dl_device device;
    int32_t ndim;
    tg_dl_dtype dtype;
    int64_t *shape, *strides; /* strides in elements; NULL means row-major */
    uint64_t byte_offset;     /* from data to element [0, 0, ..] */
} tg_dl_tensor;

/* DLManagedTensor, of version 0. */
typedef struct tg_dl_unversioned {
    tg_dl_tensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct tg_dl_unversioned *self);
} tg_dl_unversioned;

/* DLManagedTensorVersioned, of version 1 and later. In every version the members up to deleter are these. */
typedef struct tg_dl_versioned {
    struct {
        uint32_t major, minor;
    } version;
    void *manager_ctx;
    void (*deleter)(struct tg_dl_versioned *self);
    uint64_t flags;
    tg_dl_tensor dl_tensor;
} tg_dl_versioned;

/* ---- Both directions ---- */

/* An exported tensor. It pins the storage, and uses the memory of the context, until its deleter has been called. */
typedef struct tg_export {
    tg_later later; /* the deleter asks for tg_export_end */
    tg_storage *storage;
    int64_t shape[TG_MAX_DIMS], stride[TG_MAX_DIMS];
    union {
        tg_dl_unversioned unversioned;
        tg_dl_versioned versioned;
    } as;
} tg_export;

/* Removes the pin and frees e: on the context's thread or, after tg_ctx_free, on the thread of a deleter. */
void tg_export_end(tg_export *e);

/* Returns the dtype of DLPack for d; its bits are 0 if tensors cannot have d. */
tg_dl_dtype tg_dl_dtype_of(tg_dtype d);
/* Sets *d to the device of the context. Fails if DLPack has no such device. The error message begins with `who`. */
tg_status tg_dl_device_of(tg_ctx *ctx, tg_dl_device *d, const char *who);

#endif
