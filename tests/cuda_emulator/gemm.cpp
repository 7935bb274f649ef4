// gemm.cpp - operands are converted to panels of float or double, multiplied in a fixed order by a loop that compilers
// vectorize, and finished element by element.
#include "gemm.h"
#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace emu {

namespace {

enum { panel_rows = 16, panel_columns = 4 };

float from_bf16(uint16_t bits) {
    uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

double load(const void *p, int64_t i, cudaDataType type) {
    switch (type) {
    case CUDA_R_32F:
        return static_cast<const float *>(p)[i];
    case CUDA_R_64F:
        return static_cast<const double *>(p)[i];
    case CUDA_R_16BF:
        return from_bf16(static_cast<const uint16_t *>(p)[i]);
    default:
        return __half2float(static_cast<const __half *>(p)[i]);
    }
}

void store(void *p, int64_t i, cudaDataType type, double v) {
    switch (type) {
    case CUDA_R_32F:
        static_cast<float *>(p)[i] = static_cast<float>(v);
        break;
    case CUDA_R_64F:
        static_cast<double *>(p)[i] = v;
        break;
    case CUDA_R_16BF:
        static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16(static_cast<float>(v));
        break;
    default:
        static_cast<__half *>(p)[i] = __float2half(static_cast<float>(v));
    }
}

// Packs WIDTH rows of M, K after K: out[panel][k][row]; rows past the end are 0. M is rows x K by its strides.
template <class T, class From, class Convert>
void pack_as(std::vector<T> &out, const From *p, const Matrix &m, int64_t width, Convert convert) {
    int64_t panels = (m.rows + width - 1) / width;
    out.assign(static_cast<size_t>(panels * width * m.columns), T(0));
    for (int64_t i = 0; i < m.rows; i++) {
        T *to = out.data() + i / width * width * m.columns + i % width;
        for (int64_t k = 0; k < m.columns; k++) to[k * width] = static_cast<T>(convert(p[i * m.row + k * m.column]));
    }
}

template <class T> void pack(std::vector<T> &out, const Matrix &m, int64_t batch, int64_t width) {
    int64_t first = batch * m.batch;
    switch (m.type) {
    case CUDA_R_32F:
        pack_as(out, static_cast<float *>(m.at) + first, m, width, [](float x) { return x; });
        break;
    case CUDA_R_64F:
        pack_as(out, static_cast<double *>(m.at) + first, m, width, [](double x) { return x; });
        break;
    case CUDA_R_16BF:
        pack_as(out, static_cast<uint16_t *>(m.at) + first, m, width, from_bf16);
        break;
    default:
        pack_as(out, static_cast<__half *>(m.at) + first, m, width, [](__half x) { return __half2float(x); });
    }
}

template <class T> struct Vector;
template <> struct Vector<float> { typedef float type __attribute__((vector_size(32))); };
template <> struct Vector<double> { typedef double type __attribute__((vector_size(32))); };

// Computes one block of panel_rows x panel_columns sums, K after K.
template <class T>
inline __attribute__((always_inline)) void multiply_block(const T *a, const T *b, int64_t k, T *out) {
    using V = typename Vector<T>::type;
    const int lanes = sizeof(V) / sizeof(T), parts = panel_rows / lanes;
    V sum[panel_columns][parts] = {};
    for (int64_t l = 0; l < k; l++) {
        V rows[parts];
        memcpy(rows, a + l * panel_rows, sizeof rows);
        for (int j = 0; j < panel_columns; j++)
            for (int i = 0; i < parts; i++) sum[j][i] += rows[i] * b[l * panel_columns + j];
    }
    memcpy(out, sum, sizeof sum);
}

template <class T>
inline __attribute__((always_inline)) void multiply_all(const T *a, const T *b, int64_t m, int64_t n, int64_t k,
                                                        T *out) {
    for (int64_t j = 0; j < n; j += panel_columns)
        for (int64_t i = 0; i < m; i += panel_rows) {
            T block[panel_rows * panel_columns];
            multiply_block<T>(a + i * k, b + j * k, k, block);
            for (int64_t c = 0; c < std::min<int64_t>(panel_columns, n - j); c++)
                memcpy(out + (j + c) * m + i, block + c * panel_rows,
                       sizeof(T) * static_cast<size_t>(std::min<int64_t>(panel_rows, m - i)));
        }
}

void multiply(const float *a, const float *b, int64_t m, int64_t n, int64_t k, float *out) {
    multiply_all<float>(a, b, m, n, k, out);
}
void multiply(const double *a, const double *b, int64_t m, int64_t n, int64_t k, double *out) {
    multiply_all<double>(a, b, m, n, k, out);
}

#ifdef __x86_64__
#define EMU_AVX2 __attribute__((target("avx2,fma")))
EMU_AVX2 void multiply_avx2(const float *a, const float *b, int64_t m, int64_t n, int64_t k, float *out) {
    multiply_all<float>(a, b, m, n, k, out);
}
EMU_AVX2 void multiply_avx2(const double *a, const double *b, int64_t m, int64_t n, int64_t k, double *out) {
    multiply_all<double>(a, b, m, n, k, out);
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
template <class T> void multiply_avx2(const T *a, const T *b, int64_t m, int64_t n, int64_t k, T *out) {
    multiply(a, b, m, n, k, out);
}
bool has_avx2() { return false; }
#endif

// cuBLASLt's GELU is the one with tanh.
const double gelu_scale = 0.7978845608028654, gelu_cube = 0.044715;

double gelu(double x) { return 0.5 * x * (1 + std::tanh(gelu_scale * (x + gelu_cube * x * x * x))); }

double gelu_slope(double x) {
    double t = std::tanh(gelu_scale * (x + gelu_cube * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_scale * (1 + 3 * gelu_cube * x * x);
}

double finish(const Product &p, double x, int64_t i, int64_t j, int64_t batch) {
    int64_t at = batch * p.aux_batch + j * p.aux_ld + i;
    auto *bits = static_cast<uint8_t *>(p.aux);
    switch (p.activation) {
    case Activation::relu:
        if (p.aux_written && x > 0) bits[at / 8] = static_cast<uint8_t>(bits[at / 8] | 1 << at % 8);
        return x > 0 || x != x ? x : 0;
    case Activation::gelu:
        if (p.aux_written) store(p.aux, at, p.aux_type, x);
        return gelu(x);
    case Activation::drelu:
        return bits[at / 8] >> at % 8 & 1 ? x : 0;
    case Activation::dgelu:
        return x * gelu_slope(load(p.aux, at, p.aux_type));
    default:
        return x;
    }
}

void clear_bits(const Product &p, int64_t batch) {
    if (!p.aux_written || p.activation != Activation::relu) return;
    for (int64_t j = 0; j < p.d.columns; j++)
        memset(static_cast<char *>(p.aux) + (batch * p.aux_batch + j * p.aux_ld) / 8, 0,
               static_cast<size_t>((p.d.rows + 7) / 8));
}

struct Scalars {
    double alpha, beta;
};

Scalars scalars_of(const Product &p) {
    if (!p.scalars_on_device) return {p.alpha_value, p.beta_value};
    cudaDataType type = p.wide ? CUDA_R_64F : CUDA_R_32F;
    return {load(p.alpha, 0, type), load(p.beta, 0, type)};
}

template <class T> void finish_batch(const Product &p, const T *sums, int64_t batch, Scalars s) {
    const Matrix &d = p.d;
    bool adds_bias = p.bias.at && !p.bias_gradient_d && !p.bias_gradient_a && !p.bias_gradient_b;
    std::vector<double> gradient(static_cast<size_t>(p.bias_gradient_d ? d.rows : 0));
    clear_bits(p, batch);
    for (int64_t j = 0; j < d.columns; j++)
        for (int64_t i = 0; i < d.rows; i++) {
            double x = s.alpha * static_cast<double>(sums[j * d.rows + i]);
            // beta 0 reads no c, which may be NaN
            if (s.beta != 0) x += s.beta * load(p.c.at, batch * p.c.batch + i * p.c.row + j * p.c.column, p.c.type);
            if (adds_bias) x += load(p.bias.at, batch * p.bias.batch + i, p.bias.type);
            x = finish(p, x, i, j, batch);
            if (p.bias_gradient_d) gradient[static_cast<size_t>(i)] += x;
            store(d.at, batch * d.batch + i * d.row + j * d.column, d.type, x);
        }
    for (size_t i = 0; i < gradient.size(); i++)
        store(p.bias.at, batch * p.bias.batch + static_cast<int64_t>(i), p.bias.type, gradient[i]);
}

// Sums M's rows along K, for BGRADA and BGRADB.
void sum_rows(const Matrix &m, const Matrix &out, int64_t batch) {
    for (int64_t i = 0; i < m.rows; i++) {
        double sum = 0;
        for (int64_t k = 0; k < m.columns; k++) sum += load(m.at, batch * m.batch + i * m.row + k * m.column, m.type);
        store(out.at, batch * out.batch + i, out.type, sum);
    }
}

Matrix transposed(Matrix m) {
    std::swap(m.rows, m.columns);
    std::swap(m.row, m.column);
    return m;
}

template <class T> void run_as(const Product &p) {
    int64_t m = p.d.rows, n = p.d.columns, k = p.a.columns;
    std::vector<T> a, b, sums(static_cast<size_t>(m * n));
    Scalars s = scalars_of(p);
    for (int64_t batch = 0; batch < p.batches; batch++) {
        pack(a, p.a, batch, panel_rows);
        pack(b, transposed(p.b), batch, panel_columns);
        if (has_avx2())
            multiply_avx2(a.data(), b.data(), m, n, k, sums.data());
        else
            multiply(a.data(), b.data(), m, n, k, sums.data());
        if (p.bias_gradient_a) sum_rows(p.a, p.bias, batch);
        if (p.bias_gradient_b) sum_rows(transposed(p.b), p.bias, batch);
        finish_batch(p, sums.data(), batch, s);
    }
}

void note_matrix(const Matrix &m, int64_t batches, bool written) {
    if (!m.at) return;
    // Processes whole runs in the direction in which elements are adjacent.
    bool by_column = m.row == 1;
    int64_t runs = by_column ? m.columns : m.rows, length = by_column ? m.rows : m.columns;
    int64_t stride = by_column ? m.column : m.row;
    for (int64_t b = 0; b < batches; b++)
        for (int64_t i = 0; i < runs; i++) {
            char *at = static_cast<char *>(m.at) + (b * m.batch + i * stride) * static_cast<int64_t>(bytes_of(m.type));
            size_t size = static_cast<size_t>(length) * bytes_of(m.type);
            written ? note_write(at, size) : note_read(at, size);
        }
}

void note_accesses(const Product &p) {
    bool writes_bias = p.bias_gradient_a || p.bias_gradient_b || p.bias_gradient_d;
    note_matrix(p.a, p.batches, false);
    note_matrix(p.b, p.batches, false);
    if (p.scalars_on_device || p.beta_value != 0) note_matrix(p.c, p.batches, false);
    note_matrix(p.bias, p.batches, writes_bias);
    note_matrix(p.d, p.batches, true);
}

size_t aux_span(const Product &p) {
    int64_t elements = (p.batches - 1) * p.aux_batch + (p.d.columns - 1) * p.aux_ld + p.d.rows;
    bool bits = p.activation == Activation::relu || p.activation == Activation::drelu;
    return bits ? static_cast<size_t>((elements + 7) / 8) : static_cast<size_t>(elements) * bytes_of(p.aux_type);
}

} // namespace

size_t bytes_of(cudaDataType type) {
    switch (type) {
    case CUDA_R_64F:
        return 8;
    case CUDA_R_32F:
        return 4;
    case CUDA_R_16BF:
    case CUDA_R_16F:
        return 2;
    default:
        return 0;
    }
}

size_t span_of(const Matrix &m, int64_t batches) {
    if (!m.rows || !m.columns || !batches) return 0;
    int64_t last = (batches - 1) * m.batch + (m.rows - 1) * m.row + (m.columns - 1) * m.column;
    return static_cast<size_t>(last + 1) * bytes_of(m.type);
}

std::string out_of_bounds(const Product &p, int device) {
    struct {
        const char *name;
        const void *at;
        size_t size;
    } const parts[] = {
        {"A", p.a.at, span_of(p.a, p.batches)},
        {"B", p.b.at, span_of(p.b, p.batches)},
        {"C", p.c.at, p.scalars_on_device || p.beta_value != 0 ? span_of(p.c, p.batches) : 0},
        {"D", p.d.at, span_of(p.d, p.batches)},
        {"the bias", p.bias.at, p.bias.at ? span_of(p.bias, p.batches) : 0},
        {"the auxiliary buffer", p.aux, p.aux ? aux_span(p) : 0},
        {"the workspace", p.workspace, p.workspace_size},
    };
    for (auto &part : parts) {
        if (!part.size) continue;
        Block *b = find_block(part.at);
        std::string has = std::string(part.name) +
                          " reaches outside its device allocation: " + std::to_string(part.size) +
                          " bytes are needed, it is " + describe(part.at, part.size);
        if (!inside(part.at, part.size)) return has;
        if (b->device != device) return std::string(part.name) + " is of another device";
    }
    return "";
}

cudaError_t queue_product(const char *what, Product p, cudaStream_t stream) {
    Op op;
    op.what = std::string(what) + " " + std::to_string(p.d.rows) + "x" + std::to_string(p.d.columns) + "x" +
              std::to_string(p.a.columns);
    op.names = names_of({p.a.at, p.b.at, p.d.at, p.bias.at, p.aux, p.workspace});
    op.run = [p] {
        note_accesses(p);
        // so that a product that shares the workspace too early is found
        if (p.workspace) memset(p.workspace, 0xff, std::min<size_t>(p.workspace_size, 64 << 10));
        p.wide ? run_as<double>(p) : run_as<float>(p);
        return true;
    };
    return push(stream, std::move(op));
}

} // namespace emu
