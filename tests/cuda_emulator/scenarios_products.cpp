// scenarios_products.cpp - cuBLASLt compared with naive sums.
#include "scenarios.h"
#include "control.h"
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <chrono>
#include <cmath>
#include <cstdlib>

namespace {

using Values = std::vector<double>;

size_t size_of(cudaDataType t) { return t == CUDA_R_64F ? 8 : t == CUDA_R_32F ? 4 : 2; }

// Values that are exact in all types.
Values values(size_t n, int seed) {
    Values v(n);
    for (size_t i = 0; i < n; i++)
        v[i] = static_cast<double>(static_cast<int>(i * 7 + static_cast<size_t>(seed)) % 11 - 5) / 4;
    return v;
}

void *upload(const Values &v, cudaDataType type) {
    std::vector<char> bytes(v.size() * size_of(type));
    for (size_t i = 0; i < v.size(); i++) {
        void *at = bytes.data() + i * size_of(type);
        float f = static_cast<float>(v[i]);
        switch (type) {
        case CUDA_R_64F:
            *static_cast<double *>(at) = v[i];
            break;
        case CUDA_R_32F:
            *static_cast<float *>(at) = f;
            break;
        case CUDA_R_16BF:
            *static_cast<__nv_bfloat16 *>(at) = __float2bfloat16(f);
            break;
        default:
            *static_cast<__half *>(at) = __float2half(f);
        }
    }
    return on_device(bytes);
}

Values download(const void *p, size_t n, cudaDataType type) {
    std::vector<char> bytes = on_host(static_cast<const char *>(p), n * size_of(type));
    Values v(n);
    for (size_t i = 0; i < n; i++) {
        const void *at = bytes.data() + i * size_of(type);
        switch (type) {
        case CUDA_R_64F:
            v[i] = *static_cast<const double *>(at);
            break;
        case CUDA_R_32F:
            v[i] = static_cast<double>(*static_cast<const float *>(at));
            break;
        case CUDA_R_16BF:
            v[i] = static_cast<double>(__bfloat162float(*static_cast<const __nv_bfloat16 *>(at)));
            break;
        default:
            v[i] = static_cast<double>(__half2float(*static_cast<const __half *>(at)));
        }
    }
    return v;
}

struct Case {
    cudaDataType ab, cd;
    int m, n, k, batches;
    bool transpose_a, transpose_b;
    double alpha, beta;
    cublasLtEpilogue_t epilogue;
};

// A matrix of rows x columns, `pad` more between columns.
struct Stored {
    int rows, columns, ld;
    size_t stride;
    Values v;
    void *at;
    cudaDataType type;
};

Stored stored(int rows, int columns, int batches, int pad, cudaDataType type, int seed) {
    Stored s{rows, columns, rows + pad, 0, {}, nullptr, type};
    s.stride = static_cast<size_t>(s.ld * columns);
    s.v = values(s.stride * static_cast<size_t>(batches), seed);
    s.at = upload(s.v, type);
    return s;
}

double at(const Stored &s, int b, int i, int j, bool transposed) {
    if (transposed) std::swap(i, j);
    return s.v[static_cast<size_t>(b) * s.stride + static_cast<size_t>(j * s.ld + i)];
}

double sum_at(const Case &x, const Stored &a, const Stored &b, int batch, int i, int j) {
    double s = 0;
    for (int k = 0; k < x.k; k++) s += at(a, batch, i, k, x.transpose_a) * at(b, batch, k, j, x.transpose_b);
    return s;
}

cublasLtMatrixLayout_t layout(const Stored &s, int batches) {
    cublasLtMatrixLayout_t l = nullptr;
    int32_t count = batches;
    int64_t stride = static_cast<int64_t>(s.stride);
    cublasLtMatrixLayoutCreate(&l, s.type, static_cast<uint64_t>(s.rows), static_cast<uint64_t>(s.columns), s.ld);
    cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
    return l;
}

template <class T> cublasStatus_t set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t what, T value) {
    return cublasLtMatmulDescSetAttribute(op, what, &value, sizeof value);
}

// A call of cublasLtMatmul with all its arguments.
struct Call {
    cublasLtHandle_t h;
    cublasLtMatmulDesc_t op;
    cublasLtMatmulPreference_t preference;
    Stored a, b, c, d;
    cublasLtMatrixLayout_t la, lb, lc, ld;
    cublasLtMatmulHeuristicResult_t results[2];
    int found;
    Values bias, aux;
    void *bias_at, *aux_at, *workspace;
    int aux_ld;
};

bool wide(const Case &x) { return x.ab == CUDA_R_64F; }

bool prepare(const Case &x, Call *c) {
    *c = Call();
    c->a = x.transpose_a ? stored(x.k, x.m, x.batches, 3, x.ab, 1) : stored(x.m, x.k, x.batches, 3, x.ab, 1);
    c->b = x.transpose_b ? stored(x.n, x.k, x.batches, 0, x.ab, 2) : stored(x.k, x.n, x.batches, 0, x.ab, 2);
    c->c = stored(x.m, x.n, x.batches, 2, x.cd, 3);
    c->d = stored(x.m, x.n, x.batches, 1, x.cd, 4);
    c->la = layout(c->a, x.batches);
    c->lb = layout(c->b, x.batches);
    c->lc = layout(c->c, x.batches);
    c->ld = layout(c->d, x.batches);
    FINE(cublasLtCreate(&c->h));
    FINE(cublasLtMatmulDescCreate(&c->op, wide(x) ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                  wide(x) ? CUDA_R_64F : CUDA_R_32F));
    FINE(set<int32_t>(c->op, CUBLASLT_MATMUL_DESC_TRANSA, x.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    FINE(set<int32_t>(c->op, CUBLASLT_MATMUL_DESC_TRANSB, x.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    FINE(set<uint32_t>(c->op, CUBLASLT_MATMUL_DESC_EPILOGUE, x.epilogue));
    FINE(cublasLtMatmulPreferenceCreate(&c->preference));
    uint64_t bytes = 1 << 16;
    FINE(cublasLtMatmulPreferenceSetAttribute(c->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                              sizeof bytes));
    c->workspace = unset_on_device<char>(bytes);
    int length = x.epilogue == CUBLASLT_EPILOGUE_BGRADB ? x.n : x.m;
    c->bias = values(static_cast<size_t>(length), 5);
    c->bias_at = upload(c->bias, x.cd);
    FINE(set(c->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, c->bias_at));
    c->aux_ld = (x.m + 127) / 128 * 128;
    c->aux = values(static_cast<size_t>(c->aux_ld * x.n), 6);
    c->aux_at = upload(c->aux, x.cd);
    FINE(set(c->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, c->aux_at));
    FINE(set<int64_t>(c->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, c->aux_ld));
    return true;
}

cublasStatus_t ask(Call *c) {
    return cublasLtMatmulAlgoGetHeuristic(c->h, c->op, c->la, c->lb, c->lc, c->ld, c->preference, 2, c->results,
                                          &c->found);
}

cublasStatus_t multiply(const Case &x, const Call &c, cudaStream_t s) {
    float alpha = static_cast<float>(x.alpha), beta = static_cast<float>(x.beta);
    const void *pa = wide(x) ? static_cast<const void *>(&x.alpha) : &alpha;
    const void *pb = wide(x) ? static_cast<const void *>(&x.beta) : &beta;
    return cublasLtMatmul(c.h, c.op, pa, c.a.at, c.la, c.b.at, c.lb, pb, c.c.at, c.lc, c.d.at, c.ld, &c.results[0].algo,
                          c.workspace, c.results[0].workspaceSize, s);
}

void finish(Call *c) {
    cublasLtMatrixLayoutDestroy(c->la);
    cublasLtMatrixLayoutDestroy(c->lb);
    cublasLtMatrixLayoutDestroy(c->lc);
    cublasLtMatrixLayoutDestroy(c->ld);
    cublasLtMatmulPreferenceDestroy(c->preference);
    cublasLtMatmulDescDestroy(c->op);
    cublasLtDestroy(c->h);
    for (void *p : {c->a.at, c->b.at, c->c.at, c->d.at, c->bias_at, c->aux_at, c->workspace}) cudaFree(p);
}

bool close_to(double a, double b, cudaDataType type) {
    double tolerance = type == CUDA_R_64F ? 1e-12 : type == CUDA_R_32F ? 1e-5 : type == CUDA_R_16F ? 2e-3 : 1e-2;
    return std::fabs(a - b) <= tolerance * std::max(1.0, std::fabs(b));
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

double activated(const Case &x, const Call &c, double v, int i, int j) {
    unsigned e = x.epilogue;
    double aux = c.aux[static_cast<size_t>(j * c.aux_ld + i)];
    if (e & 4) v += c.bias[static_cast<size_t>(i)];
    if (e & 2) return std::max(v, 0.0);
    if (e & 32) return gelu(v);
    if (e & 64) return v * (gelu(aux + 1e-6) - gelu(aux - 1e-6)) / 2e-6;
    return v;
}

bool compare(const Case &x, const Call &c) {
    Values d = download(c.d.at, c.d.v.size(), x.cd), aux = download(c.aux_at, c.aux.size(), x.cd);
    for (int b = 0; b < x.batches; b++)
        for (int j = 0; j < x.n; j++)
            for (int i = 0; i < x.m; i++) {
                double v = x.alpha * sum_at(x, c.a, c.b, b, i, j) + x.beta * at(c.c, b, i, j, false);
                double got = d[static_cast<size_t>(b) * c.d.stride + static_cast<size_t>(j * c.d.ld + i)];
                RIGHT(close_to(got, activated(x, c, v, i, j), x.cd));
                double input = v + (x.epilogue & 4 ? c.bias[static_cast<size_t>(i)] : 0);
                if ((x.epilogue & 160) == 160) // GELU_AUX
                    RIGHT(close_to(aux[static_cast<size_t>(j * c.aux_ld + i)], input, x.cd));
            }
    return true;
}

bool compare_bias_gradient(const Case &x, const Call &c) {
    Values got = download(c.bias_at, c.bias.size(), x.cd), d = download(c.d.at, c.d.v.size(), x.cd);
    for (int i = 0; i < static_cast<int>(got.size()); i++) {
        double sum = 0;
        if (x.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD)
            for (int j = 0; j < x.n; j++) sum += d[static_cast<size_t>(j * c.d.ld + i)];
        for (int k = 0; k < x.k; k++) {
            if (x.epilogue == CUBLASLT_EPILOGUE_BGRADA) sum += at(c.a, 0, i, k, x.transpose_a);
            if (x.epilogue == CUBLASLT_EPILOGUE_BGRADB) sum += at(c.b, 0, k, i, x.transpose_b);
        }
        RIGHT(close_to(got[static_cast<size_t>(i)], sum, x.cd == CUDA_R_32F ? CUDA_R_32F : CUDA_R_16BF));
    }
    return true;
}

bool check(const Case &x) {
    Call c;
    RIGHT(prepare(x, &c));
    FINE(ask(&c));
    RIGHT(c.found == 2 && c.results[0].workspaceSize > 0);
    FINE(multiply(x, c, nullptr));
    FINE(cudaDeviceSynchronize());
    RIGHT(compare(x, c));
    bool gradient = x.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD || x.epilogue == CUBLASLT_EPILOGUE_BGRADA ||
                    x.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    if (gradient) RIGHT(compare_bias_gradient(x, c));
    finish(&c);
    return true;
}

bool products() {
    const struct {
        cudaDataType ab, cd;
    } types[] = {{CUDA_R_32F, CUDA_R_32F},  {CUDA_R_64F, CUDA_R_64F}, {CUDA_R_16BF, CUDA_R_16BF},
                 {CUDA_R_16BF, CUDA_R_32F}, {CUDA_R_16F, CUDA_R_16F}, {CUDA_R_16F, CUDA_R_32F}};
    for (auto t : types)
        for (int form = 0; form < 4; form++) {
            bool ta = form & 1, tb = form & 2;
            RIGHT(check({t.ab, t.cd, 19, 7, 33, 1, ta, tb, 1, 0, CUBLASLT_EPILOGUE_DEFAULT}));
            RIGHT(check({t.ab, t.cd, 5, 18, 3, 3, ta, tb, 0.5, 1, CUBLASLT_EPILOGUE_DEFAULT}));
        }
    RIGHT(emulator_live("cublas") == 0 && emulator_live("memory") == 0);
    return true;
}

bool epilogues() {
    const cublasLtEpilogue_t all[] = {
        CUBLASLT_EPILOGUE_BIAS,     CUBLASLT_EPILOGUE_RELU,          CUBLASLT_EPILOGUE_RELU_BIAS,
        CUBLASLT_EPILOGUE_GELU,     CUBLASLT_EPILOGUE_GELU_AUX,      CUBLASLT_EPILOGUE_GELU_BIAS,
        CUBLASLT_EPILOGUE_RELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
        CUBLASLT_EPILOGUE_DGELU,    CUBLASLT_EPILOGUE_DGELU_BGRAD,   CUBLASLT_EPILOGUE_BGRADA,
        CUBLASLT_EPILOGUE_BGRADB};
    for (cublasLtEpilogue_t e : all)
        for (cudaDataType type : {CUDA_R_32F, CUDA_R_16BF})
            RIGHT(check({type, type, 21, 10, 12, 1, false, true, 0.25, 0, e}));
    return true;
}

// One product writes ReLU's mask, and the next one applies it.
bool relu_masks() {
    Case x{CUDA_R_32F, CUDA_R_32F, 40, 6, 9, 1, false, false, 1, 0, CUBLASLT_EPILOGUE_RELU_AUX};
    Call c;
    RIGHT(prepare(x, &c));
    FINE(ask(&c));
    FINE(multiply(x, c, nullptr));
    Values forward = download(c.d.at, c.d.v.size(), x.cd);
    x.epilogue = CUBLASLT_EPILOGUE_DRELU_BGRAD;
    FINE(set<uint32_t>(c.op, CUBLASLT_MATMUL_DESC_EPILOGUE, x.epilogue));
    FINE(ask(&c));
    FINE(multiply(x, c, nullptr));
    Values back = download(c.d.at, c.d.v.size(), x.cd), bias = download(c.bias_at, 40, x.cd);
    for (int i = 0; i < x.m; i++) {
        double sum = 0;
        for (int j = 0; j < x.n; j++) {
            size_t k = static_cast<size_t>(j * c.d.ld + i);
            RIGHT(close_to(back[k], forward[k] > 0 ? sum_at(x, c.a, c.b, 0, i, j) : 0, x.cd));
            sum += back[k];
        }
        RIGHT(close_to(bias[static_cast<size_t>(i)], sum, x.cd));
    }
    return true;
}

// Calls that the real library refuses. A refusal prints nothing unless the product itself refuses.
bool product_refusals() {
    Case x{CUDA_R_32F, CUDA_R_32F, 8, 8, 8, 1, false, false, 1, 0, CUBLASLT_EPILOGUE_GELU_AUX};
    Call c;
    RIGHT(prepare(x, &c));
    FINE(set<int64_t>(c.op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 12)); // not a multiple of 8
    RIGHT(ask(&c) == CUBLAS_STATUS_INVALID_VALUE);
    x = {CUDA_R_16BF, CUDA_R_16F, 8, 8, 8, 1, false, false, 1, 0, CUBLASLT_EPILOGUE_DEFAULT};
    RIGHT(prepare(x, &c));
    RIGHT(ask(&c) == CUBLAS_STATUS_NOT_SUPPORTED);
    x = {CUDA_R_64F, CUDA_R_64F, 8, 8, 8, 1, false, false, 1, 0, CUBLASLT_EPILOGUE_GELU};
    RIGHT(prepare(x, &c));
    RIGHT(ask(&c) == CUBLAS_STATUS_NOT_SUPPORTED);
    x = {CUDA_R_32F, CUDA_R_32F, 8, 8, 8, 1, false, false, 1, 0, CUBLASLT_EPILOGUE_DEFAULT};
    RIGHT(prepare(x, &c));
    c.b = stored(9, 8, 1, 0, x.ab, 2);
    c.lb = layout(c.b, 1);
    RIGHT(ask(&c) == CUBLAS_STATUS_INVALID_VALUE);
    uint32_t short_value = 0;
    RIGHT(cublasLtMatmulDescSetAttribute(c.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &short_value, 4) ==
          CUBLAS_STATUS_INVALID_VALUE);
    return true;
}

bool gemm_outside() {
    Case x{CUDA_R_32F, CUDA_R_32F, 8, 8, 8, 1, false, false, 1, 0, CUBLASLT_EPILOGUE_DEFAULT};
    Call c;
    RIGHT(prepare(x, &c));
    FINE(ask(&c));
    c.b = stored(8, 7, 1, 0, x.ab, 2); // one column is missing
    RIGHT(multiply(x, c, nullptr) == CUBLAS_STATUS_EXECUTION_FAILED);
    return true;
}

bool product_elsewhere() {
    Case x{CUDA_R_32F, CUDA_R_32F, 8, 8, 8, 1, false, false, 1, 0, CUBLASLT_EPILOGUE_DEFAULT};
    Call c;
    RIGHT(prepare(x, &c));
    FINE(ask(&c));
    FINE(cudaSetDevice(1));
    RIGHT(multiply(x, c, nullptr) == CUBLAS_STATUS_EXECUTION_FAILED);
    return true;
}

// Two products share one workspace on two streams, although only one at a time may use it.
bool workspace_shared() {
    cudaStream_t s, t;
    Case x{CUDA_R_32F, CUDA_R_32F, 8, 8, 8, 1, false, false, 1, 0, CUBLASLT_EPILOGUE_DEFAULT};
    Call c;
    RIGHT(prepare(x, &c));
    FINE(ask(&c));
    FINE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    FINE(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    for (int i = 0; i < 4; i++) {
        FINE(cudaMemsetAsync(c.workspace, 0, 64, s));
        FINE(multiply(x, c, t));
        std::vector<char> seen(64, 1);
        FINE(cudaMemcpyAsync(seen.data(), c.workspace, 64, cudaMemcpyDeviceToHost, s));
        FINE(cudaStreamSynchronize(s));
        RIGHT(seen == std::vector<char>(64, 0));
        FINE(cudaStreamSynchronize(t));
    }
    return true;
}

// Not a test: prints the time of a product of 256.
bool product_speed() {
    Case x{CUDA_R_32F, CUDA_R_32F, 256, 256, 256, 1, false, false, 1, 0, CUBLASLT_EPILOGUE_DEFAULT};
    Call c;
    RIGHT(prepare(x, &c));
    FINE(ask(&c));
    auto since = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; i++) FINE(multiply(x, c, nullptr));
    FINE(cudaDeviceSynchronize());
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - since;
    printf("%.2f ms a product of 256x256x256\n", took.count() / 20);
    return true;
}

} // namespace

const std::vector<Scenario> product_scenarios = {
    {"products", products},
    {"epilogues", epilogues},
    {"relu_masks", relu_masks},
    {"product_refusals", product_refusals},
    {nullptr, nullptr},
    {"gemm_outside", gemm_outside},
    {"product_elsewhere", product_elsewhere},
    {"workspace_shared", workspace_shared},
    {"product_speed", product_speed},
};
