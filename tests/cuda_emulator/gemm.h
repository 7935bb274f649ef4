/* gemm.h - matrix products of the emulator of cuBLASLt, with their epilogues. */
#ifndef TG_CUDA_EMULATOR_GEMM_H
#define TG_CUDA_EMULATOR_GEMM_H

#include "emulator.h"
#include <library_types.h>

namespace emu {

/* Element (i, j) of batch b is at b * batch + i * row + j * column. */
struct Matrix {
    void *at;
    cudaDataType type;
    int64_t rows, columns, row, column, batch;
};

enum class Activation { none, relu, gelu, drelu, dgelu };

struct Product {
    int64_t batches;
    Matrix a, b, c, d; /* d = activation(alpha a b + beta c + bias) */
    bool wide;         /* sums in double */
    const void *alpha, *beta;
    bool scalars_on_device;
    double alpha_value, beta_value; /* else in float */
    Activation activation;
    Matrix bias;                                            /* a column; at == NULL: none */
    bool bias_gradient_d, bias_gradient_a, bias_gradient_b; /* bias receives these sums instead */
    void *aux; /* the input of GELU in `aux_type`, or a bit mask of where ReLU passes */
    cudaDataType aux_type;
    int64_t aux_ld, aux_batch;
    bool aux_written;
    void *workspace;
    size_t workspace_size;
};

size_t bytes_of(cudaDataType type); /* 0: an unsupported type */
size_t span_of(const Matrix &m, int64_t batches);

/* Returns "" if everything that the product uses is in allocations of the stream's device. */
std::string out_of_bounds(const Product &p, int device);

/* Queues the product. */
cudaError_t queue_product(const char *what, Product p, cudaStream_t stream);

} // namespace emu

#endif
