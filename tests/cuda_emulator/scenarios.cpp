// scenarios.cpp - the runtime: kernels, streams, events, memory. Scenarios after the row without a name are wrong on
// purpose.
#include "scenarios.h"
#include "control.h"
#include "kernels.h"
#include <cmath>
#include <cstring>
#include <thread>

namespace {

enum { rows = 5, columns = 1000 };

std::vector<float> ramp(size_t n, int period) {
    std::vector<float> v(n);
    for (size_t i = 0; i < n; i++) v[i] = static_cast<float>(static_cast<int>(i) % period);
    return v;
}

bool sums(bool barrier) {
    std::vector<float> h = ramp(rows * columns, 7);
    float *x = on_device(h), *y = unset_on_device<float>(rows);
    FINE(k_row_sum(x, y, rows, columns, barrier, nullptr));
    std::vector<float> out = on_host(y, rows);
    for (int r = 0; r < rows; r++) {
        float sum = 0;
        for (int c = 0; c < columns; c++) sum += h[static_cast<size_t>(r * columns + c)];
        RIGHT(out[static_cast<size_t>(r)] == sum);
    }
    FINE(cudaFree(x));
    FINE(cudaFree(y));
    return true;
}

bool row_sums() { return sums(true); }
bool no_barrier() { return sums(false); }

bool bf16_sums() {
    std::vector<uint16_t> h(2 * 64, 0x3f80); // ones
    uint16_t *x = on_device(h);
    float *y = unset_on_device<float>(2);
    FINE(k_row_sum_bf16(x, y, 2, 64, nullptr));
    RIGHT(on_host(y, 2) == std::vector<float>({64, 64}));
    return true;
}

bool tiles() {
    enum { n = 64 };
    std::vector<float> h = ramp(n * n, 4096);
    float *x = on_device(h), *y = unset_on_device<float>(n * n);
    FINE(k_transpose(x, y, n, 16 * 17 * sizeof(float), nullptr));
    FINE(cudaFuncSetAttribute(k_transpose_kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    FINE(k_transpose(x, y, n, 100 << 10, nullptr));
    std::vector<float> out = on_host(y, n * n);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) RIGHT(out[i * n + j] == h[j * n + i]);
    return true;
}

bool shared_too_much() {
    float *x = on_device(ramp(256, 3)), *y = unset_on_device<float>(256);
    RIGHT(k_transpose(x, y, 16, 100 << 10, nullptr) == cudaErrorInvalidConfiguration);
    return true;
}

bool device_functions() {
    int *wrong = on_device(std::vector<int>{0});
    FINE(k_warp_operations(wrong, nullptr));
    RIGHT(on_host(wrong, 1)[0] == 0);
    auto *out = on_device(std::vector<unsigned long long>(3, 0));
    double *sum = on_device(std::vector<double>{1});
    int *most = on_device(std::vector<int>{-1});
    FINE(k_atomics(out, sum, most, nullptr));
    RIGHT(on_host(out, 3) == std::vector<unsigned long long>({192, 7, 9}));
    RIGHT(on_host(sum, 1)[0] == 97 && on_host(most, 1)[0] == 95);
    unsigned *draws = unset_on_device<unsigned>(100);
    FINE(k_draw_philox(draws, 100, nullptr));
    std::vector<unsigned> d = on_host(draws, 100);
    RIGHT(d[0] != d[1] && d[99] != 0xffffffffu);
    return true;
}

// Two streams that take turns, ordered by events if `wait` is true.
bool take_turns(bool wait) {
    enum { n = 4096 };
    std::vector<float> one(n, 1);
    float *x = on_device(one), *y = on_device(one), *z = on_device(one);
    cudaStream_t a, b;
    cudaEvent_t e;
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    FINE(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    for (int k = 0; k < 4; k++) {
        FINE(k_axpy(1, x, y, n, a));
        FINE(cudaEventRecord(e, a));
        if (wait) FINE(cudaStreamWaitEvent(b, e, 0));
        FINE(k_axpy(1, y, z, n, b));
        FINE(cudaEventRecord(e, b));
        if (wait) FINE(cudaStreamWaitEvent(a, e, 0));
    }
    FINE(cudaDeviceSynchronize());
    RIGHT(on_host(z, n)[7] == 15);
    FINE(cudaEventDestroy(e));
    FINE(cudaStreamDestroy(a));
    FINE(cudaStreamDestroy(b));
    return cudaFree(x) == 0 && cudaFree(y) == 0 && cudaFree(z) == 0;
}

bool streams() { return take_turns(true); }
bool no_event_wait() { return take_turns(false); }

bool copy_of_pinned(bool wait) {
    enum { n = 1024 };
    void *h = nullptr;
    float *d = unset_on_device<float>(n);
    cudaStream_t s;
    FINE(cudaMallocHost(&h, n * sizeof(float)));
    FINE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (int i = 0; i < n; i++) static_cast<float *>(h)[i] = 1;
    FINE(cudaMemcpyAsync(d, h, n * sizeof(float), cudaMemcpyHostToDevice, s));
    if (wait) FINE(cudaStreamSynchronize(s));
    for (int i = 0; i < n; i++) static_cast<float *>(h)[i] = 0;
    FINE(cudaStreamSynchronize(s));
    RIGHT(on_host(d, n)[3] == 1);
    FINE(cudaFreeHost(h));
    return true;
}

bool pinned() { return copy_of_pinned(true); }
bool pinned_early() { return copy_of_pinned(false); }

bool copies() {
    std::vector<float> h = ramp(64, 64);
    float *d = unset_on_device<float>(64);
    FINE(cudaMemset(d, 0, 64 * sizeof(float)));
    // columns 1 and 2 of an 8 x 8 matrix
    FINE(cudaMemcpy2DAsync(d + 1, 32, h.data() + 1, 32, 8, 8, cudaMemcpyHostToDevice, nullptr));
    std::vector<float> out = on_host(d, 64);
    for (size_t i = 0; i < 64; i++) RIGHT(out[i] == (i % 8 == 1 || i % 8 == 2 ? h[i] : 0));
    FINE(cudaMemset2DAsync(d, 32, 0, 12, 8, nullptr));
    float *e = unset_on_device<float>(64);
    FINE(cudaMemcpyAsync(e, d, 64 * sizeof(float), cudaMemcpyDeviceToDevice, nullptr));
    RIGHT(on_host(e, 64) == std::vector<float>(64, 0));
    cudaPointerAttributes a;
    FINE(cudaPointerGetAttributes(&a, e + 3));
    RIGHT(a.type == cudaMemoryTypeDevice && a.device == 0);
    FINE(cudaPointerGetAttributes(&a, h.data()));
    RIGHT(a.type == cudaMemoryTypeUnregistered);
    return true;
}

bool copy_outside() {
    float *d = unset_on_device<float>(16);
    float h[17] = {};
    RIGHT(cudaMemcpy(d, h, sizeof h, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    return true;
}

bool limits() {
    int count = 0, value = 0;
    size_t free_bytes = 0, total = 0;
    void *p = nullptr;
    cudaDeviceProp properties;
    FINE(cudaGetDeviceCount(&count));
    RIGHT(count == 4);
    RIGHT(cudaSetDevice(4) == cudaErrorInvalidDevice && cudaGetLastError() == cudaErrorInvalidDevice);
    FINE(cudaGetLastError());
    FINE(cudaSetDevice(3));
    FINE(cudaGetDeviceProperties(&properties, 3));
    FINE(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 3));
    RIGHT(properties.major == 9 && value == 227 << 10);
    emulator_memory_limit(1 << 20);
    RIGHT(cudaMalloc(&p, 2 << 20) == cudaErrorMemoryAllocation && !p);
    RIGHT(!strcmp(cudaGetErrorName(cudaGetLastError()), "cudaErrorMemoryAllocation"));
    FINE(cudaMalloc(&p, 1 << 19));
    FINE(cudaMemGetInfo(&free_bytes, &total));
    RIGHT(total == 1 << 20 && free_bytes == 1 << 19 && emulator_memory_used(3) == 1 << 19);
    FINE(cudaFree(p));
    RIGHT(cudaFree(p) == cudaErrorInvalidValue && emulator_live("memory") == 0);
    return true;
}

void CUDART_CB count_up(void *counter) {
    ++*static_cast<int *>(counter);
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaErrorNotPermitted) *static_cast<int *>(counter) += 100;
}

bool host_functions() {
    int counter = 0;
    cudaStream_t s;
    FINE(cudaStreamCreate(&s));
    for (int i = 0; i < 3; i++) FINE(cudaLaunchHostFunc(s, count_up, &counter));
    FINE(cudaStreamSynchronize(s));
    RIGHT(counter == 3);
    FINE(cudaStreamQuery(s));
    return true;
}

// The default stream waits for blocking streams, and they for it.
bool default_stream() {
    enum { n = 256 };
    std::vector<float> one(n, 1);
    float *x = on_device(one), *y = on_device(one);
    cudaStream_t s;
    FINE(cudaStreamCreate(&s));
    for (int k = 0; k < 3; k++) {
        FINE(k_axpy(1, x, y, n, s));
        FINE(k_axpy(1, y, x, n, nullptr));
    }
    RIGHT(on_host(x, n)[9] == 21);
    return true;
}

bool stream_ordered_memory() {
    void *p = nullptr;
    cudaStream_t s;
    FINE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    FINE(cudaMallocAsync(&p, 1024, s));
    FINE(cudaMemsetAsync(p, 0, 1024, s));
    FINE(cudaFreeAsync(p, s));
    FINE(cudaStreamSynchronize(s));
    RIGHT(emulator_live("memory") == 0 && emulator_queued() == 0);
    return true;
}

bool threads_of_ranks() {
    bool good[4] = {};
    std::vector<std::thread> ranks;
    for (int r = 0; r < 4; r++) ranks.emplace_back([r, &good] { good[r] = cudaSetDevice(r) == 0 && take_turns(true); });
    for (std::thread &t : ranks) t.join();
    return good[0] && good[1] && good[2] && good[3];
}

// Each call of a program fails in turn. The program ends with the error, unless the call was one that frees.
bool every_failure() {
    for (long n = 1; n < 100; n++) {
        emulator_fail_at(n);
        void *p = nullptr;
        float out = 0;
        cudaError_t e = cudaMalloc(&p, 64);
        if (e == cudaSuccess) e = cudaMemsetAsync(p, 0, 64, nullptr);
        if (e == cudaSuccess) e = k_scale(static_cast<float *>(p), 2, 16, nullptr);
        if (e == cudaSuccess) e = cudaMemcpy(&out, p, sizeof out, cudaMemcpyDeviceToHost);
        cudaError_t freed = cudaFree(p);
        cudaGetLastError();
        RIGHT(emulator_live("memory") == 0);
        if (!emulator_failed()) return n == 6 && out == 0 && e == cudaSuccess && freed == cudaSuccess;
        RIGHT(e != cudaSuccess || freed != cudaSuccess);
    }
    return false;
}

bool unchecked_failure() // the launch fails
{
    float *x = on_device(std::vector<float>(16, 1));
    k_scale(x, 2, 16, nullptr);
    cudaGetLastError();
    k_scale(x, 2, 16, nullptr);
    RIGHT(on_host(x, 16)[0] == 4);
    return true;
}

bool bug(Bug which, int n, std::vector<float> *out) {
    float *y = unset_on_device<float>(static_cast<size_t>(n));
    FINE(k_bug(which, y, n, nullptr));
    cudaError_t e = cudaDeviceSynchronize();
    if (e == cudaSuccess) *out = on_host(y, static_cast<size_t>(n));
    return e == cudaSuccess;
}

bool reused() {
    std::vector<float> out;
    return bug(Bug::reused, 128, &out) && out == std::vector<float>(128, 12);
}

bool diverge() {
    std::vector<float> out;
    return bug(Bug::diverge, 64, &out);
}

bool kernel_past_end() {
    std::vector<float> out;
    return bug(Bug::past_end, 64, &out);
}

bool unset_shared() {
    std::vector<float> out;
    if (!bug(Bug::unset, 32, &out)) return false;
    printf("%g\n", static_cast<double>(std::fabs(out[31])));
    return out[30] == 1;
}

bool unset_memory() {
    printf("%g\n", static_cast<double>(std::fabs(on_host(unset_on_device<float>(8), 8)[5])));
    return true;
}

bool blocks_race() {
    std::vector<float> out;
    return bug(Bug::blocks_race, 32, &out) && out[3] == 1;
}

bool atomic_sum() {
    enum { n = 4096 };
    std::vector<float> h(n);
    float expected = 0;
    for (size_t i = 0; i < n; i++) expected += h[i] = 1.0f / static_cast<float>(i + 1);
    float *x = on_device(h), *sum = on_device(std::vector<float>{0});
    FINE(k_add_all(sum, x, n, nullptr));
    RIGHT(on_host(sum, 1)[0] == expected);
    return true;
}

bool host_reads() {
    float *y = unset_on_device<float>(64);
    return y[3] > 1;
}

bool host_writes() {
    *unset_on_device<float>(64) = 1;
    return true;
}

bool freed_then_used() {
    float *x = on_device(std::vector<float>(64, 1));
    FINE(cudaFree(x));
    FINE(k_scale(x, 2, 64, nullptr));
    return cudaDeviceSynchronize() == cudaSuccess;
}

bool freed_while_queued() {
    cudaStream_t s;
    float *x = on_device(std::vector<float>(64, 1));
    FINE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    FINE(k_scale(x, 2, 64, s));
    return cudaFree(x) == cudaSuccess;
}

bool freed_async() {
    cudaStream_t a, b;
    cudaEvent_t never;
    FINE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    FINE(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    FINE(cudaEventCreateWithFlags(&never, cudaEventDisableTiming));
    float *x = on_device(std::vector<float>(64, 1));
    emulator_schedule("lazy");
    FINE(k_scale(x, 2, 64, b)); // b is not ordered before what a frees
    FINE(cudaFreeAsync(x, a));
    FINE(cudaStreamSynchronize(a));
    return cudaStreamSynchronize(b) == cudaSuccess && cudaStreamSynchronize(a) == cudaSuccess;
}

bool read_early() {
    void *h = nullptr;
    cudaStream_t s;
    float *x = on_device(std::vector<float>(64, 1));
    FINE(cudaMallocHost(&h, 256));
    FINE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    FINE(k_scale(x, 2, 64, s));
    FINE(cudaMemcpyAsync(h, x, 256, cudaMemcpyDeviceToHost, s));
    RIGHT(static_cast<float *>(h)[5] == 2);
    return true;
}

bool other_device() {
    FINE(cudaSetDevice(1));
    float *x = on_device(std::vector<float>(64, 1));
    FINE(cudaSetDevice(0));
    FINE(k_scale(x, 2, 64, nullptr));
    return cudaDeviceSynchronize() == cudaSuccess;
}

bool other_stream() {
    cudaStream_t s;
    float *x = on_device(std::vector<float>(64, 1));
    FINE(cudaSetDevice(1));
    FINE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    FINE(cudaSetDevice(0));
    RIGHT(k_scale(x, 2, 64, s) == cudaErrorInvalidResourceHandle);
    return true;
}

bool host_pointer() {
    float x[64] = {};
    FINE(k_scale(x, 2, 64, nullptr));
    return cudaDeviceSynchronize() == cudaSuccess;
}

} // namespace

const std::vector<Scenario> runtime_scenarios = {
    {"row_sums", row_sums},
    {"bf16_sums", bf16_sums},
    {"tiles", tiles},
    {"device_functions", device_functions},
    {"streams", streams},
    {"pinned", pinned},
    {"copies", copies},
    {"limits", limits},
    {"host_functions", host_functions},
    {"default_stream", default_stream},
    {"stream_ordered_memory", stream_ordered_memory},
    {"threads_of_ranks", threads_of_ranks},
    {"every_failure", every_failure},
    {nullptr, nullptr},
    {"no_barrier", no_barrier},
    {"reused", reused},
    {"diverge", diverge},
    {"kernel_past_end", kernel_past_end},
    {"unset_shared", unset_shared},
    {"unset_memory", unset_memory},
    {"blocks_race", blocks_race},
    {"atomic_sum", atomic_sum},
    {"host_reads", host_reads},
    {"host_writes", host_writes},
    {"freed_then_used", freed_then_used},
    {"freed_while_queued", freed_while_queued},
    {"freed_async", freed_async},
    {"no_event_wait", no_event_wait},
    {"pinned_early", pinned_early},
    {"read_early", read_early},
    {"other_device", other_device},
    {"other_stream", other_stream},
    {"host_pointer", host_pointer},
    {"copy_outside", copy_outside},
    {"shared_too_much", shared_too_much},
    {"unchecked_failure", unchecked_failure},
};
