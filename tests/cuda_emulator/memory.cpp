// memory.cpp - device memory: one range of addresses that the host cannot access. A new allocation is NaN. The bytes
// after it are a red zone, checked whenever the host waits. Freed memory is unmapped, so that any use of it faults.
#include "emulator.h"
#include "sanitizers.h"
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <sys/mman.h>
#include <unistd.h>

namespace emu {

namespace {

const size_t page = 4096, huge_page = 2 << 20, red_zone = 64, reserve = static_cast<size_t>(96) << 30;
const unsigned char nan_byte = 0xff;
char *heap, *heap_top;
std::map<char *, Block> blocks;
std::vector<std::pair<char *, size_t>> holes; // freed memory, in order; reused only when the range is full
std::map<int, size_t> used_bytes;
std::map<char *, size_t> pinned;
std::vector<std::pair<char *, size_t>> runs; // ranges of live memory
bool runs_known, shown;
size_t costs; // cost of the guard over all blocks
uint64_t next_number = 1;
struct sigaction other_handler;

// Reports whose memory it was, and then calls the previous handler or the default one, which ends the process.
void on_fault(int signal, siginfo_t *info, void *) {
    const char *at = static_cast<const char *>(info->si_addr);
    if (in_heap(at)) {
        std::string text = "cuda emulator: ";
        text += shown ? "device code touches " : "the host touches device memory: ";
        text += describe(at, 1) + "\n";
        if (write(STDERR_FILENO, text.c_str(), text.size()) < 0) _exit(1);
    }
    sigaction(signal, &other_handler, nullptr);
}

bool make_heap() {
    void *p = mmap(nullptr, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    heap = heap_top = static_cast<char *>(p);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &other_handler);
    return true;
}

char *take_hole(size_t span) {
    for (size_t i = 0; i < holes.size(); i++) {
        if (holes[i].second < span) continue;
        char *p = holes[i].first;
        holes[i].first += span;
        holes[i].second -= span;
        if (!holes[i].second) holes.erase(holes.begin() + static_cast<long>(i));
        return p;
    }
    return nullptr;
}

char *take_range(size_t span) {
    if (!heap && !make_heap()) return nullptr;
    if (span > reserve) return nullptr;
    auto *p = heap_top + (span > huge_page ? -reinterpret_cast<uintptr_t>(heap_top) % huge_page : 0);
    if (p + span > heap + reserve) return take_hole(span);
    heap_top = p + span;
    return p;
}

void find_runs() {
    runs.clear();
    for (auto &b : blocks) {
        if (!runs.empty() && runs.back().first + runs.back().second == b.second.base)
            runs.back().second += b.second.span;
        else
            runs.push_back({b.second.base, b.second.span});
    }
    runs_known = true;
}

void protect(bool show) {
    if (show == shown) return;
    if (!runs_known) find_runs();
    for (auto &r : runs) mprotect(r.first, r.second, show ? PROT_READ | PROT_WRITE : PROT_NONE);
    shown = show;
}

// The cost to hide and show a block's memory grows with its pages; there are few huge ones.
size_t guard_cost(size_t span) {
    static const bool huge = [] {
        char text[64] = "";
        FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
        bool there = f && fgets(text, sizeof text, f) && !strstr(text, "[never]");
        if (f) fclose(f);
        return there;
    }();
    return huge && span > huge_page ? span % huge_page + span / huge_page * page : span;
}

bool guarded() { return costs <= settings().guard_limit; }

// Not memset and memcmp: the sanitizers' versions of these would see the red zone.
void fill_red_zone(Block &b) {
    volatile auto *p = reinterpret_cast<volatile unsigned char *>(b.base);
    for (size_t i = b.size; i < b.span; i++) p[i] = nan_byte;
}

// By words, because every wait checks all of them.
bool damaged(const Block &b) {
    const volatile auto *p = reinterpret_cast<const volatile unsigned char *>(b.base);
    const volatile auto *words = reinterpret_cast<const volatile uint64_t *>(b.base);
    size_t i = b.size;
    for (; i % sizeof *words; i++)
        if (p[i] != nan_byte) return true;
    for (i /= sizeof *words; i < b.span / sizeof *words; i++)
        if (words[i] != UINT64_MAX) return true;
    return false;
}

void report_damage(Block &b) {
    size_t i = b.size;
    while (reinterpret_cast<unsigned char *>(b.base)[i] == nan_byte) i++;
    report("a write " + std::to_string(i - b.size) + " bytes past the end of an allocation of " +
               std::to_string(b.size) + " bytes of device " + std::to_string(b.device),
           b.device);
    fill_red_zone(b);
}

Block *block_before(const void *p) {
    auto it = blocks.upper_bound(static_cast<char *>(const_cast<void *>(p)));
    return it == blocks.begin() ? nullptr : &(--it)->second;
}

} // namespace

bool in_heap(const void *p) { return heap && p >= heap && p < heap + reserve; }

Block *find_block(const void *p) {
    Block *b = block_before(p);
    return b && static_cast<const char *>(p) <= b->base + b->size ? b : nullptr;
}

bool inside(const void *p, size_t n) {
    Block *b = find_block(p);
    return b && n <= b->size && static_cast<const char *>(p) + n <= b->base + b->size;
}

bool is_pinned(const void *p, size_t n) {
    auto it = pinned.upper_bound(static_cast<char *>(const_cast<void *>(p)));
    return it != pinned.begin() && (--it, static_cast<const char *>(p) + n <= it->first + it->second);
}

std::string describe(const void *p, size_t n) {
    Block *b = block_before(p);
    const char *at = static_cast<const char *>(p);
    if (!in_heap(p)) return is_pinned(p, n) ? "pinned host memory" : p ? "memory of the host" : "NULL";
    if (!b || at >= b->base + b->span) return "memory of the device that was freed or never allocated";
    std::string whole = "an allocation of " + std::to_string(b->size) + " bytes of device " + std::to_string(b->device);
    return std::to_string(n) + " bytes at " + std::to_string(at - b->base) + " of " + whole;
}

cudaError_t allocate(void **p, size_t n, int device) {
    *p = nullptr;
    if (!n) return cudaSuccess;
    if (n > settings().memory || used_bytes[device] + n > settings().memory) return cudaErrorMemoryAllocation;
    size_t span = (n + red_zone + page - 1) / page * page;
    char *base = take_range(span);
    if (!base || mprotect(base, span, PROT_READ | PROT_WRITE) != 0) return cudaErrorMemoryAllocation;
    if (span > huge_page) madvise(base, span, MADV_HUGEPAGE);
    show_memory();
    Block b{base, n, span, device, next_number++, false};
    const size_t most = static_cast<size_t>(1) << 30; // of larger blocks only the ends, so that they take no memory
    memset(base, nan_byte, n > most ? huge_page : n);
    if (n > most) memset(base + n - huge_page, nan_byte, huge_page);
    fill_red_zone(b);
    if (under_asan()) __asan_poison_memory_region(base + n, span - n);
    blocks[base] = b;
    runs_known = false;
    used_bytes[device] += n;
    costs += guard_cost(span);
    count_live("memory", 1);
    *p = base;
    return cudaSuccess;
}

bool release(Block *b) {
    show_memory();
    bool whole = !damaged(*b);
    if (!whole) report_damage(*b);
    note_write(b->base, b->size); // like free: a use that is not ordered before it is a race
    if (under_asan()) __asan_unpoison_memory_region(b->base, b->span);
    mmap(b->base, b->span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    holes.push_back({b->base, b->span});
    used_bytes[b->device] -= b->size;
    costs -= guard_cost(b->span);
    count_live("memory", -1);
    runs_known = false;
    blocks.erase(b->base);
    return whole;
}

void check_red_zones() {
    for (auto &b : blocks)
        if (damaged(b.second)) report_damage(b.second);
}

size_t used(int device) { return used_bytes[device]; }

std::vector<Name> names_of(std::initializer_list<const void *> pointers) {
    std::vector<Name> names;
    for (const void *p : pointers) {
        Block *b = find_block(p);
        if (b) names.push_back({p, b->number});
    }
    return names;
}

bool names_alive(const Op &op) {
    for (const Name &n : op.names) {
        Block *b = find_block(n.at);
        if (b && b->number == n.block) continue;
        report(op.what + " uses device memory that has been freed since it was queued", op.device);
        return false;
    }
    return true;
}

void show_memory() { protect(true); }

void hide_memory() {
    if (guarded()) protect(false);
}

} // namespace emu

using namespace emu;

extern "C" {

size_t emulator_memory_used(int device) {
    Lock lock(mutex());
    return used(device);
}

cudaError_t cudaMallocHost(void **p, size_t n) {
    Call c(__func__, true);
    if (c.refused(cudaErrorMemoryAllocation)) return c.error;
    *p = n ? aligned_alloc(64, (n + 63) & ~static_cast<size_t>(63)) : nullptr;
    if (n && !*p) return c.end(cudaErrorMemoryAllocation);
    if (!n) return c.end();
    memset(*p, nan_byte, n);
    pinned[static_cast<char *>(*p)] = n;
    count_live("pinned", 1);
    return c.end();
}

// Waits for the device, like the real call.
cudaError_t cudaFreeHost(void *p) {
    Call c(__func__, true);
    if (!p) return c.end();
    auto it = pinned.find(static_cast<char *>(p));
    if (it == pinned.end()) return c.end(cudaErrorInvalidValue);
    bool refused = c.refused(cudaErrorUnknown);
    for (int d = 0; d < settings().devices; d++) wait_device(c.lock, d);
    pinned.erase(static_cast<char *>(p));
    free(p);
    count_live("pinned", -1);
    return refused ? c.error : c.end();
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p) {
    Call c(__func__);
    memset(a, 0, sizeof *a);
    Block *b = find_block(p);
    a->device = b ? b->device : current_device();
    a->type = b ? cudaMemoryTypeDevice : is_pinned(p, 1) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    a->devicePointer = a->type == cudaMemoryTypeUnregistered ? nullptr : const_cast<void *>(p);
    a->hostPointer = a->type == cudaMemoryTypeHost || !b ? const_cast<void *>(p) : nullptr;
    return c.end();
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    Call c(__func__);
    if (c.refused(cudaErrorUnknown)) return c.error;
    *total = settings().memory;
    *free_bytes = settings().memory - std::min(settings().memory, used(current_device()));
    return c.end();
}

} // extern "C"
