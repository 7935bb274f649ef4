// copies.cpp - allocation of device memory, copies and fills.
#include "emulator.h"

namespace emu {

namespace {

// A matrix of bytes in memory: rows of WIDTH bytes, PITCH apart.
struct Area {
    const void *at;
    size_t pitch;
};

size_t extent(Area a, size_t width, size_t height) { return height && width ? (height - 1) * a.pitch + width : 0; }

void copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height) {
    for (size_t i = 0; i < height; i++) {
        char *row = static_cast<char *>(to) + i * to_pitch;
        const char *source = static_cast<const char *>(from) + i * from_pitch;
        note_read(source, width);
        note_write(row, width);
        memmove(row, source, width);
    }
}

enum class Place { device, pinned, pageable, wrong };

Place place_of(const void *p, size_t n) {
    if (in_heap(p)) return inside(p, n) ? Place::device : Place::wrong;
    return is_pinned(p, n) ? Place::pinned : Place::pageable;
}

bool kind_fits(cudaMemcpyKind kind, Place to, Place from) {
    if (to == Place::wrong || from == Place::wrong) return false;
    bool to_device = to == Place::device, from_device = from == Place::device;
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
        return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
        return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
        return to_device && from_device;
    default:
        return true;
    }
}

bool capturing(cudaStream_t s) { return s->capture != nullptr; }

// Waits if the host may use its memory as soon as the call returns.
cudaError_t copy(Call &c, Area to, Area from, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream,
                 bool wait_for_it) {
    if (!width || !height) return cudaSuccess;
    cudaStream_t s = stream_of(stream);
    if (!stream_alive(s)) return cudaErrorInvalidResourceHandle;
    size_t to_size = extent(to, width, height), from_size = extent(from, width, height);
    if (!to.at || !from.at || to.pitch < width || from.pitch < width) return cudaErrorInvalidValue;
    Place target = place_of(to.at, to_size), source = place_of(from.at, from_size);
    if (!kind_fits(kind, target, source)) {
        say("a copy from " + describe(from.at, from_size) + " to " + describe(to.at, to_size));
        return cudaErrorInvalidValue;
    }
    void *out = const_cast<void *>(to.at);
    Op op;
    op.what = "a copy of " + std::to_string(width * height) + " bytes";
    op.names = names_of({to.at, from.at});
    if (source == Place::pageable && !capturing(s)) { // staged before the call returns
        auto staged = std::make_shared<std::string>(width * height, '\0');
        copy_rows(&(*staged)[0], width, from.at, from.pitch, width, height);
        op.run = [=] { return copy_rows(out, to.pitch, staged->data(), width, width, height), true; };
    } else {
        op.run = [=] { return copy_rows(out, to.pitch, from.at, from.pitch, width, height), true; };
    }
    cudaError_t e = push(s, std::move(op));
    if (e != cudaSuccess || capturing(s)) return e;
    if (target == Place::pageable || (wait_for_it && !(target == Place::device && source == Place::device)))
        return wait(c.lock, s->last, s->device);
    return e;
}

cudaError_t fill(void *p, int value, size_t pitch, size_t width, size_t height, cudaStream_t stream) {
    if (!width || !height) return cudaSuccess;
    size_t size = extent({p, pitch}, width, height);
    Place target = place_of(p, size);
    if (target != Place::device && target != Place::pinned) {
        say("a fill of " + describe(p, size));
        return cudaErrorInvalidValue;
    }
    Op op;
    op.what = "a fill of " + std::to_string(width * height) + " bytes";
    op.names = names_of({p});
    op.run = [=] {
        for (size_t i = 0; i < height; i++) {
            note_write(static_cast<char *>(p) + i * pitch, width);
            memset(static_cast<char *>(p) + i * pitch, value, width);
        }
        return true;
    };
    return push(stream, std::move(op));
}

// Memory that a queued operation uses must not be freed. The real call happens to wait for the device, but only for
// this one. A program that cleans up after a failure may rely on that.
cudaError_t free_now(Call &c, void *p) {
    Block *b = find_block(p);
    if (!b || b->base != p || b->dying) return cudaErrorInvalidValue;
    std::string use;
    bool after_failure = emulator_failed() || sticky(b->device) != cudaSuccess;
    if (!after_failure && first_queued_use(b->number, &use))
        report("device memory is freed while an operation is queued that uses it: " + use, b->device);
    int device = b->device;
    wait_device(c.lock, device);
    b = find_block(p);
    if (b && b->base == p) release(b);
    return cudaSuccess;
}

} // namespace

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaMalloc(void **p, size_t n) {
    Call c(__func__, true);
    return c.refused(cudaErrorMemoryAllocation) ? c.error : c.end(allocate(p, n, current_device()));
}

cudaError_t cudaFree(void *p) {
    Call c(__func__, true);
    bool refused = c.refused(cudaErrorUnknown);
    cudaError_t e = p ? free_now(c, p) : cudaSuccess;
    return refused ? c.error : c.end(e);
}

// Frees in the order of the stream; uses by other streams must be ordered by events.
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t) {
    Call c(__func__);
    return c.refused(cudaErrorMemoryAllocation) ? c.error : c.end(allocate(p, n, current_device()));
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t stream) {
    Call c(__func__);
    if (c.refused(cudaErrorUnknown)) return c.error;
    Block *b = find_block(p);
    if (!b || b->base != p || b->dying) return c.end(cudaErrorInvalidValue);
    b->dying = true;
    Op op;
    op.what = "cudaFreeAsync";
    op.run = [p] {
        Block *dying = find_block(p);
        if (dying) release(dying);
        return true;
    };
    return c.end(push(stream, std::move(op)));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind, cudaStream_t stream) {
    Call c(__func__);
    return c.refused(cudaErrorUnknown) ? c.error : c.end(copy(c, {to, n}, {from, n}, n, 1, kind, stream, false));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind kind) {
    Call c(__func__, true);
    return c.refused(cudaErrorUnknown) ? c.error : c.end(copy(c, {to, n}, {from, n}, n, 1, kind, nullptr, true));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    Call c(__func__);
    if (c.refused(cudaErrorUnknown)) return c.error;
    return c.end(copy(c, {to, to_pitch}, {from, from_pitch}, width, height, kind, stream, false));
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t stream) {
    Call c(__func__);
    return c.refused(cudaErrorUnknown) ? c.error : c.end(fill(p, value, n, n, 1, stream));
}

cudaError_t cudaMemset(void *p, int value, size_t n) {
    Call c(__func__);
    return c.refused(cudaErrorUnknown) ? c.error : c.end(fill(p, value, n, n, 1, nullptr));
}

cudaError_t cudaMemset2DAsync(void *p, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
    Call c(__func__);
    return c.refused(cudaErrorUnknown) ? c.error : c.end(fill(p, value, pitch, width, height, stream));
}

} // extern "C"
