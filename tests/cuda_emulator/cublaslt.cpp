// cublaslt.cpp - cuBLASLt: descriptors with their attributes, and products with epilogues. It refuses what the real
// library refuses: mixtures of types, shapes that do not match, buffers with less alignment than stated.
#include "gemm.h"
#include <cublasLt.h>

namespace emu {

namespace {

struct Description {
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t pointer_mode, transpose_a, transpose_b;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t bias_stride, aux_ld, aux_stride;
    int32_t bias_type, aux_type, sm_count;
    int8_t fast;
};

struct Layout {
    uint32_t type, order;
    uint64_t rows, columns;
    int64_t ld;
    int32_t batches;
    int64_t stride;
};

struct Preference {
    uint32_t search, reduction, align[4];
    uint64_t workspace, implementations;
    float waves;
};

// An algorithm: its number, and what the heuristic assumed for it.
struct Algorithm {
    uint32_t magic, number, align[4];
    uint64_t workspace, problem;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm lies in the caller's structure");
const uint32_t algorithm_magic = 0xa190d0b1;

struct Field {
    void *at;
    size_t size;
};

template <class T> Field field(T &x) { return {&x, sizeof x}; }

Field field_of(Description &d, int attribute) {
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
        return field(d.compute);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        return field(d.scale);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        return field(d.pointer_mode);
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return field(d.transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return field(d.transpose_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return field(d.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return field(d.bias);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
        return field(d.bias_stride);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return field(d.bias_type);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return field(d.aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return field(d.aux_ld);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
        return field(d.aux_stride);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        return field(d.aux_type);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return field(d.sm_count);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
        return field(d.fast);
    default:
        return {nullptr, 0};
    }
}

Field field_of(Layout &l, int attribute) {
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        return field(l.type);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        return field(l.order);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return field(l.rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return field(l.columns);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return field(l.ld);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return field(l.batches);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return field(l.stride);
    default:
        return {nullptr, 0};
    }
}

Field field_of(Preference &p, int attribute) {
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
        return field(p.search);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return field(p.workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return field(p.reduction);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return field(p.align[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return field(p.align[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return field(p.align[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return field(p.align[3]);
    case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT:
        return field(p.waves);
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
        return field(p.implementations);
    default:
        return {nullptr, 0};
    }
}

cublasStatus_t set(Field f, const void *value, size_t size) {
    if (!f.at || !value || size != f.size) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(f.at, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t get(Field f, void *value, size_t size, size_t *written) {
    if (!f.at || (!size && !written)) return CUBLAS_STATUS_INVALID_VALUE;
    if (written) *written = f.size;
    if (!size) return CUBLAS_STATUS_SUCCESS;
    if (!value || size != f.size) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, f.at, size);
    return CUBLAS_STATUS_SUCCESS;
}

// Handles point to objects of the emulator; the library's own types are opaque.
template <class T, class Handle> T &of(Handle h) { return *reinterpret_cast<T *>(h); }

template <class T, class Handle> cublasStatus_t make(const char *name, Handle *h, const T &value) {
    Call c(name);
    if (c.refused(cudaErrorMemoryAllocation)) return CUBLAS_STATUS_ALLOC_FAILED;
    *h = reinterpret_cast<Handle>(new T(value));
    count_live("cublas", 1);
    return CUBLAS_STATUS_SUCCESS;
}

template <class T, class Handle> cublasStatus_t destroy(Handle h) {
    Lock lock(mutex());
    if (!h) return CUBLAS_STATUS_SUCCESS;
    delete reinterpret_cast<T *>(h);
    count_live("cublas", -1);
    return CUBLAS_STATUS_SUCCESS;
}

// The rows of the real library's table of supported types that training needs.
struct Types {
    cublasComputeType_t compute;
    cudaDataType scale, ab, cd;
};
const Types supported[] = {
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16F, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F_FAST_16BF, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F_FAST_16F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_64F, CUDA_R_64F, CUDA_R_64F, CUDA_R_64F},
};

struct Problem {
    const Description &op;
    const Layout &a, &b, &c, &d;
};

bool types_supported(const Problem &p) {
    cublasComputeType_t compute = p.op.compute;
    if (compute == CUBLAS_COMPUTE_32F_PEDANTIC) compute = CUBLAS_COMPUTE_32F;
    if (compute == CUBLAS_COMPUTE_64F_PEDANTIC) compute = CUBLAS_COMPUTE_64F;
    for (const Types &t : supported)
        if (t.compute == compute && t.scale == p.op.scale && t.ab == p.a.type && t.ab == p.b.type && t.cd == p.c.type &&
            t.cd == p.d.type)
            return true;
    return false;
}

bool layout_valid(const Layout &l) {
    uint64_t least = l.order == CUBLASLT_ORDER_ROW ? l.columns : l.rows;
    return l.ld >= static_cast<int64_t>(least) && l.batches >= 1;
}

bool has(const Description &d, unsigned bit) { return (d.epilogue & bit) != 0; }
enum : unsigned {
    relu_bit = 2,
    bias_bit = 4,
    drelu_bit = 8,
    bgrad_bit = 16,
    gelu_bit = 32,
    dgelu_bit = 64,
    aux_bit = 128
};

bool epilogue_known(uint32_t e) {
    switch (e) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_RELU_AUX:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DRELU:
    case CUBLASLT_EPILOGUE_DRELU_BGRAD:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
        return true;
    default:
        return false;
    }
}

bool uses_bias(const Description &d) {
    return has(d, bias_bit) || has(d, bgrad_bit) || d.epilogue == CUBLASLT_EPILOGUE_BGRADA ||
           d.epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

// INVALID_VALUE: wrong in any version; NOT_SUPPORTED: another version might do it.
cublasStatus_t epilogue_status(const Problem &p) {
    const Description &d = p.op;
    if (!epilogue_known(d.epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
    if (p.d.type == CUDA_R_64F && d.epilogue != CUBLASLT_EPILOGUE_BIAS) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p.d.order != CUBLASLT_ORDER_COL) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (uses_bias(d) && d.bias_type >= 0 && static_cast<uint32_t>(d.bias_type) != p.d.type)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!has(d, aux_bit)) return CUBLAS_STATUS_SUCCESS;
    bool bits = has(d, relu_bit) || has(d, drelu_bit);
    if (d.aux_ld < static_cast<int64_t>(p.d.rows) || d.aux_ld % (bits ? 128 : 8)) return CUBLAS_STATUS_INVALID_VALUE;
    bool other = d.aux_type >= 0 && static_cast<uint32_t>(d.aux_type) != p.d.type;
    return !bits && other ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

Matrix matrix_of(const Layout &l, const void *at) {
    bool by_row = l.order == CUBLASLT_ORDER_ROW;
    return {const_cast<void *>(at),
            static_cast<cudaDataType>(l.type),
            static_cast<int64_t>(l.rows),
            static_cast<int64_t>(l.columns),
            by_row ? l.ld : 1,
            by_row ? 1 : l.ld,
            l.stride};
}

Matrix operand(const Layout &l, const void *at, int32_t transpose) {
    Matrix m = matrix_of(l, at);
    if (transpose == CUBLAS_OP_N) return m;
    std::swap(m.rows, m.columns);
    std::swap(m.row, m.column);
    return m;
}

cublasStatus_t problem_status(const Problem &p) {
    for (const Layout *l : {&p.a, &p.b, &p.c, &p.d}) {
        if (!layout_valid(*l)) return CUBLAS_STATUS_INVALID_VALUE;
        if (l->order != CUBLASLT_ORDER_COL && l->order != CUBLASLT_ORDER_ROW) return CUBLAS_STATUS_NOT_SUPPORTED;
        if (l->batches != p.d.batches) return CUBLAS_STATUS_INVALID_VALUE;
    }
    Matrix a = operand(p.a, nullptr, p.op.transpose_a), b = operand(p.b, nullptr, p.op.transpose_b);
    Matrix d = matrix_of(p.d, nullptr), c = matrix_of(p.c, nullptr);
    if (a.rows != d.rows || b.columns != d.columns || a.columns != b.rows || c.rows != d.rows || c.columns != d.columns)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!a.rows || !a.columns || !b.columns) return CUBLAS_STATUS_INVALID_VALUE;
    if (!types_supported(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p.op.pointer_mode != CUBLASLT_POINTER_MODE_HOST && p.op.pointer_mode != CUBLASLT_POINTER_MODE_DEVICE)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return epilogue_status(p);
}

// Returns a hash of the problem's types, transpositions and epilogue. An algorithm is valid for the problems with the
// hash of the problem for which it was requested.
uint64_t signature(const Problem &p) {
    uint64_t s = p.op.epilogue;
    for (uint64_t x :
         {static_cast<uint64_t>(p.op.compute), static_cast<uint64_t>(p.op.transpose_a),
          static_cast<uint64_t>(p.op.transpose_b), static_cast<uint64_t>(p.a.type), static_cast<uint64_t>(p.d.type)})
        s = s * 1000003 + x;
    return s;
}

Product product_of(const Problem &p, const void *a, const void *b, const void *c, void *d) {
    Product r{};
    const Description &op = p.op;
    r.batches = p.d.batches;
    r.a = operand(p.a, a, op.transpose_a);
    r.b = operand(p.b, b, op.transpose_b);
    r.c = matrix_of(p.c, c);
    r.d = matrix_of(p.d, d);
    r.wide = op.scale == CUDA_R_64F;
    r.activation = has(op, relu_bit)    ? Activation::relu
                   : has(op, gelu_bit)  ? Activation::gelu
                   : has(op, drelu_bit) ? Activation::drelu
                   : has(op, dgelu_bit) ? Activation::dgelu
                                        : Activation::none;
    r.bias_gradient_d = has(op, bgrad_bit);
    r.bias_gradient_a = op.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    r.bias_gradient_b = op.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    int64_t length = r.bias_gradient_b ? r.d.columns : r.d.rows;
    if (uses_bias(op)) r.bias = {op.bias, r.d.type, length, 1, 1, length, op.bias_stride};
    if (!has(op, aux_bit)) return r;
    r.aux = op.aux;
    r.aux_written = r.activation == Activation::relu || r.activation == Activation::gelu;
    r.aux_type = r.d.type;
    r.aux_ld = op.aux_ld;
    r.aux_batch = op.aux_stride;
    return r;
}

void take_scalars(Product *p, const Description &op, const void *alpha, const void *beta) {
    p->alpha = alpha;
    p->beta = beta;
    p->scalars_on_device = op.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
    if (p->scalars_on_device) return;
    p->alpha_value = p->wide ? *static_cast<const double *>(alpha) : *static_cast<const float *>(alpha);
    p->beta_value = p->wide ? *static_cast<const double *>(beta) : *static_cast<const float *>(beta);
}

cublasStatus_t refuse(const std::string &why, cublasStatus_t status) {
    say("cublasLtMatmul: " + why);
    return status;
}

cublasStatus_t check_algorithm(const Algorithm &algorithm, const Problem &problem, const Product &p) {
    if (algorithm.magic != algorithm_magic)
        return refuse("an algorithm that no call gave", CUBLAS_STATUS_INVALID_VALUE);
    if (algorithm.problem != signature(problem))
        return refuse("an algorithm for another problem", CUBLAS_STATUS_NOT_SUPPORTED);
    if (p.workspace_size < algorithm.workspace)
        return refuse("the workspace is smaller than the algorithm's", CUBLAS_STATUS_INVALID_VALUE);
    const void *at[] = {p.a.at, p.b.at, p.c.at, p.d.at};
    for (int i = 0; i < 4; i++) {
        uintptr_t align = std::min<uint32_t>(algorithm.align[i], 16);
        if (align && reinterpret_cast<uintptr_t>(at[i]) % align)
            return refuse(std::string("operand ") + "ABCD"[i] + " is less aligned than the preference said",
                          CUBLAS_STATUS_NOT_SUPPORTED);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t multiply(Call &call, const Problem &problem, Product p, const cublasLtMatmulAlgo_t *given,
                        cudaStream_t s) {
    cublasStatus_t status = problem_status(problem);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if ((uses_bias(problem.op) && !p.bias.at) || (has(problem.op, aux_bit) && !p.aux))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p.c.at == p.d.at && (p.c.row != p.d.row || p.c.column != p.d.column)) return CUBLAS_STATUS_INVALID_VALUE;
    if (given) status = check_algorithm(*reinterpret_cast<const Algorithm *>(given), problem, p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    int device = stream_of(s)->device;
    std::string wrong = out_of_bounds(p, device);
    if (!wrong.empty()) {
        report("cublasLtMatmul: " + wrong, device);
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    cudaError_t e = queue_product("cublasLtMatmul", p, s);
    return call.end(e) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

} // namespace

} // namespace emu

using namespace emu;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) { return make(__func__, h, current_device()); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return destroy<int>(h); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *h, cublasComputeType_t compute, cudaDataType_t scale) {
    Description d{};
    d.compute = compute;
    d.scale = scale;
    d.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    d.bias_type = d.aux_type = -1;
    return make(__func__, h, d);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t h) { return destroy<Description>(h); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t h, cublasLtMatmulDescAttributes_t a,
                                              const void *value, size_t size) {
    return set(field_of(of<Description>(h), a), value, size);
}
cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t h, cublasLtMatmulDescAttributes_t a, void *value,
                                              size_t size, size_t *written) {
    return get(field_of(of<Description>(h), a), value, size, written);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *h, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t ld) {
    return make(__func__, h, Layout{static_cast<uint32_t>(type), CUBLASLT_ORDER_COL, rows, columns, ld, 1, 0});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t h) { return destroy<Layout>(h); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t h, cublasLtMatrixLayoutAttribute_t a,
                                                const void *value, size_t size) {
    return set(field_of(of<Layout>(h), a), value, size);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *h) {
    return make(__func__, h, Preference{0, 0, {256, 256, 256, 256}, 0, 0, 0});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t h) { return destroy<Preference>(h); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t h,
                                                    cublasLtMatmulPreferenceAttributes_t a, const void *value,
                                                    size_t size) {
    return set(field_of(of<Preference>(h), a), value, size);
}

// Up to three algorithms; the first takes the most workspace.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                                              int wanted, cublasLtMatmulHeuristicResult_t results[], int *count) {
    Call call(__func__);
    if (call.refused(cudaErrorUnknown)) return CUBLAS_STATUS_INTERNAL_ERROR;
    if (!h || !op || !a || !b || !c || !d || !preference || wanted <= 0) return CUBLAS_STATUS_INVALID_VALUE;
    Problem problem{of<Description>(op), of<Layout>(a), of<Layout>(b), of<Layout>(c), of<Layout>(d)};
    const Preference &p = of<Preference>(preference);
    *count = 0;
    cublasStatus_t status = problem_status(problem);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    for (; *count < std::min(wanted, 3); ++*count) {
        Algorithm x{algorithm_magic,
                    static_cast<uint32_t>(*count),
                    {p.align[0], p.align[1], p.align[2], p.align[3]},
                    0,
                    signature(problem)};
        if (*count == 0) x.workspace = std::min<uint64_t>(p.workspace, 64 << 10);
        cublasLtMatmulHeuristicResult_t &r = results[*count];
        memset(static_cast<void *>(&r), 0, sizeof r);
        memcpy(static_cast<void *>(&r.algo), &x, sizeof x);
        r.workspaceSize = x.workspace;
        r.state = CUBLAS_STATUS_SUCCESS;
        r.wavesCount = 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t op, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_size, cudaStream_t stream) {
    Call call(__func__);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (call.refused(cudaErrorUnknown)) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (of<int>(h) != current_device() || stream_of(stream)->device != current_device()) {
        say("cublasLtMatmul: its handle or its stream is of another device than the current one");
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    if (!op || !alpha || !beta || !a || !b || !d || !a_layout || !b_layout || !c_layout || !d_layout)
        return CUBLAS_STATUS_INVALID_VALUE;
    Problem problem{of<Description>(op), of<Layout>(a_layout), of<Layout>(b_layout), of<Layout>(c_layout),
                    of<Layout>(d_layout)};
    Product p = product_of(problem, a, b, c, d);
    take_scalars(&p, problem.op, alpha, beta);
    p.workspace = workspace;
    p.workspace_size = workspace_size;
    return multiply(call, problem, p, algo, stream);
}

const char *cublasLtGetStatusString(cublasStatus_t s) {
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
        return "another status";
    }
}

} // extern "C"
