/* The library's structs of DLPack have the layout and the numbers of DLPack's own header, and a program may include
 * both headers. Compiled only; -DDLPACK_H='<ATen/dlpack.h>' names DLPack's header. */
#include "core/tensor/dlpack.h"
#include DLPACK_H

#define SAME_PLACE(ours, theirs, member) \
    _Static_assert(offsetof(ours, member) == offsetof(theirs, member), #ours "." #member)

SAME_PLACE(tg_dl_tensor, DLTensor, data);
SAME_PLACE(tg_dl_tensor, DLTensor, device.device_type);
SAME_PLACE(tg_dl_tensor, DLTensor, device.device_id);
SAME_PLACE(tg_dl_tensor, DLTensor, ndim);
SAME_PLACE(tg_dl_tensor, DLTensor, dtype.code);
SAME_PLACE(tg_dl_tensor, DLTensor, dtype.bits);
SAME_PLACE(tg_dl_tensor, DLTensor, dtype.lanes);
SAME_PLACE(tg_dl_tensor, DLTensor, shape);
SAME_PLACE(tg_dl_tensor, DLTensor, strides);
SAME_PLACE(tg_dl_tensor, DLTensor, byte_offset);
SAME_PLACE(tg_dl_unversioned, DLManagedTensor, dl_tensor);
SAME_PLACE(tg_dl_unversioned, DLManagedTensor, manager_ctx);
SAME_PLACE(tg_dl_unversioned, DLManagedTensor, deleter);
SAME_PLACE(tg_dl_versioned, DLManagedTensorVersioned, version.major);
SAME_PLACE(tg_dl_versioned, DLManagedTensorVersioned, version.minor);
SAME_PLACE(tg_dl_versioned, DLManagedTensorVersioned, manager_ctx);
SAME_PLACE(tg_dl_versioned, DLManagedTensorVersioned, deleter);
SAME_PLACE(tg_dl_versioned, DLManagedTensorVersioned, flags);
SAME_PLACE(tg_dl_versioned, DLManagedTensorVersioned, dl_tensor);
_Static_assert(sizeof(tg_dl_unversioned) == sizeof(DLManagedTensor), "size of DLManagedTensor");
_Static_assert(sizeof(tg_dl_versioned) == sizeof(DLManagedTensorVersioned), "size of DLManagedTensorVersioned");

_Static_assert((int)TG_DL_CPU == kDLCPU && (int)TG_DL_CUDA == kDLCUDA && (int)TG_DL_CUDA_HOST == kDLCUDAHost &&
               (int)TG_DL_CUDA_MANAGED == kDLCUDAManaged, "devices");
_Static_assert((int)TG_DL_INT == kDLInt && (int)TG_DL_UINT == kDLUInt && (int)TG_DL_FLOAT == kDLFloat &&
               (int)TG_DL_BFLOAT == kDLBfloat && (int)TG_DL_COMPLEX == kDLComplex && (int)TG_DL_BOOL == kDLBool,
               "dtypes");
_Static_assert(TG_DL_READ_ONLY == DLPACK_FLAG_BITMASK_READ_ONLY && TG_DL_MAJOR == DLPACK_MAJOR_VERSION, "flags");
