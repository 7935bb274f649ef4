/* scenarios.h - small programs for the emulator, each run in a process of its own by test_emulator.cpp. */
#ifndef TG_CUDA_EMULATOR_SCENARIOS_H
#define TG_CUDA_EMULATOR_SCENARIOS_H

#include <cstdio>
#include <vector>
#include <cuda_runtime_api.h>

struct Scenario {
    const char *name;
    bool (*run)(); /* returns whether all results were right */
};

extern const std::vector<Scenario> runtime_scenarios, capture_scenarios, product_scenarios, nccl_scenarios,
    window_scenarios;

/* Fails the scenario and says where. */
#define RIGHT(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);                                                     \
            return false;                                                                                              \
        }                                                                                                              \
    } while (0)
#define FINE(call) RIGHT((call) == 0)

/* Allocates device memory with these values, or unset. */
template <class T> T *on_device(const std::vector<T> &values) {
    void *p = nullptr;
    if (cudaMalloc(&p, values.size() * sizeof(T)) != cudaSuccess) return nullptr;
    cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
    return static_cast<T *>(p);
}

template <class T> T *unset_on_device(size_t n) {
    void *p = nullptr;
    return cudaMalloc(&p, n * sizeof(T)) == cudaSuccess ? static_cast<T *>(p) : nullptr;
}

template <class T> std::vector<T> on_host(const T *p, size_t n) {
    std::vector<T> v(n);
    cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost);
    return v;
}

#endif
