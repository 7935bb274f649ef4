// cublas.cpp - the calls of cuBLAS itself: handles and products.
#include "gemm.h"
#include <cublas_v2.h>

struct cublasContext {
    cudaStream_t stream;
    int device;
    cublasPointerMode_t pointer_mode;
    cublasMath_t math_mode;
    void *workspace;
    size_t workspace_size;
};

namespace emu {

namespace {

struct Form {
    cublasOperation_t transposed;
    int rows, columns; /* of op(x) */
    const void *at;
    cudaDataType type;
    int ld;
    long long stride;
};

// Columns of x are LD elements apart.
bool matrix_of(const Form &f, Matrix *m) {
    bool plain = f.transposed == CUBLAS_OP_N;
    int64_t ld = f.ld;
    *m = {const_cast<void *>(f.at), f.type, f.rows, f.columns, plain ? 1 : ld, plain ? ld : 1, f.stride};
    return f.rows >= 0 && f.columns >= 0 && f.ld >= std::max(1, plain ? f.rows : f.columns) && bytes_of(f.type);
}

bool wide_of(cublasComputeType_t type) { return type == CUBLAS_COMPUTE_64F || type == CUBLAS_COMPUTE_64F_PEDANTIC; }

double scalar(const void *p, bool wide) {
    return wide ? *static_cast<const double *>(p) : *static_cast<const float *>(p);
}

cublasStatus_t product(const char *name, cublasHandle_t h, const Form &a, const Form &b, const Form &c, int batches,
                       const void *alpha, const void *beta, cublasComputeType_t compute) {
    Call call(name);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (call.refused(cudaErrorUnknown)) return CUBLAS_STATUS_EXECUTION_FAILED;
    Product p{};
    if (!alpha || !beta || batches < 0 || !matrix_of(a, &p.a) || !matrix_of(b, &p.b) || !matrix_of(c, &p.c))
        return CUBLAS_STATUS_INVALID_VALUE;
    p.d = p.c;
    p.batches = batches;
    p.wide = wide_of(compute);
    if (p.wide != (a.type == CUDA_R_64F) || a.type != b.type) return CUBLAS_STATUS_NOT_SUPPORTED;
    p.scalars_on_device = h->pointer_mode == CUBLAS_POINTER_MODE_DEVICE;
    p.alpha = alpha;
    p.beta = beta;
    if (!p.scalars_on_device) {
        p.alpha_value = scalar(alpha, p.wide);
        p.beta_value = scalar(beta, p.wide);
    }
    if (!p.d.rows || !p.d.columns || !batches) return CUBLAS_STATUS_SUCCESS;
    std::string wrong = out_of_bounds(p, h->device);
    if (!wrong.empty()) {
        report(std::string(name) + ": " + wrong, h->device);
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    cudaError_t e = queue_product("gemm", p, h->stream);
    return call.end(e) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

} // namespace

} // namespace emu

using namespace emu;

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *h) {
    Call c(__func__, true);
    if (c.refused(cudaErrorUnknown)) return CUBLAS_STATUS_NOT_INITIALIZED;
    *h = new cublasContext{nullptr, current_device(), CUBLAS_POINTER_MODE_HOST, CUBLAS_DEFAULT_MATH, nullptr, 0};
    count_live("cublas", 1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t h) {
    Call c(__func__, true);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    delete h;
    count_live("cublas", -1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int *version) {
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t s) {
    h->stream = s;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t h, cudaStream_t *s) {
    *s = h->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t h, void *workspace, size_t size) {
    Call c(__func__);
    if (size && !inside(workspace, size)) return CUBLAS_STATUS_INVALID_VALUE;
    h->workspace = workspace;
    h->workspace_size = size;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t mode) {
    h->math_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t mode) {
    h->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                                          int k, const void *alpha, const void *A, cudaDataType a_type, int lda,
                                          long long a_stride, const void *B, cudaDataType b_type, int ldb,
                                          long long b_stride, const void *beta, void *C, cudaDataType c_type, int ldc,
                                          long long c_stride, int batches, cublasComputeType_t compute,
                                          cublasGemmAlgo_t) {
    Form a{ta, m, k, A, a_type, lda, a_stride}, b{tb, k, n, B, b_type, ldb, b_stride};
    Form c{CUBLAS_OP_N, m, n, C, c_type, ldc, c_stride};
    return product(__func__, h, a, b, c, batches, alpha, beta, compute);
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                            const void *alpha, const void *A, cudaDataType a_type, int lda, const void *B,
                            cudaDataType b_type, int ldb, const void *beta, void *C, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
    Form a{ta, m, k, A, a_type, lda, 0}, b{tb, k, n, B, b_type, ldb, 0}, c{CUBLAS_OP_N, m, n, C, c_type, ldc, 0};
    return product(__func__, h, a, b, c, 1, alpha, beta, compute);
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                              const float *alpha, const float *A, int lda, const float *B, int ldb, const float *beta,
                              float *C, int ldc) {
    Form a{ta, m, k, A, CUDA_R_32F, lda, 0}, b{tb, k, n, B, CUDA_R_32F, ldb, 0};
    Form c{CUBLAS_OP_N, m, n, C, CUDA_R_32F, ldc, 0};
    return product(__func__, h, a, b, c, 1, alpha, beta, CUBLAS_COMPUTE_32F);
}

cublasStatus_t cublasDgemm_v2(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                              const double *alpha, const double *A, int lda, const double *B, int ldb,
                              const double *beta, double *C, int ldc) {
    Form a{ta, m, k, A, CUDA_R_64F, lda, 0}, b{tb, k, n, B, CUDA_R_64F, ldb, 0};
    Form c{CUBLAS_OP_N, m, n, C, CUDA_R_64F, ldc, 0};
    return product(__func__, h, a, b, c, 1, alpha, beta, CUBLAS_COMPUTE_64F);
}

#define STATUS(name)                                                                                                   \
    case name:                                                                                                         \
        return #name
const char *cublasGetStatusName(cublasStatus_t s) {
    switch (s) {
        STATUS(CUBLAS_STATUS_SUCCESS);
        STATUS(CUBLAS_STATUS_NOT_INITIALIZED);
        STATUS(CUBLAS_STATUS_ALLOC_FAILED);
        STATUS(CUBLAS_STATUS_INVALID_VALUE);
        STATUS(CUBLAS_STATUS_ARCH_MISMATCH);
        STATUS(CUBLAS_STATUS_MAPPING_ERROR);
        STATUS(CUBLAS_STATUS_EXECUTION_FAILED);
        STATUS(CUBLAS_STATUS_INTERNAL_ERROR);
        STATUS(CUBLAS_STATUS_NOT_SUPPORTED);
        STATUS(CUBLAS_STATUS_LICENSE_ERROR);
    }
    return "CUBLAS_STATUS_UNKNOWN";
}

const char *cublasGetStatusString(cublasStatus_t s) {
    switch (s) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the requested functionality is not supported";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    default:
        return cublasGetStatusName(s);
    }
}

const char *cublasLtGetStatusName(cublasStatus_t s) { return cublasGetStatusName(s); }
const char *cublasLtGetStatusString(cublasStatus_t s) { return cublasGetStatusString(s); }

} // extern "C"
