// runner.cpp - runs a grid, block after block. A CUDA thread becomes a fiber of its own only when it has to wait:
// threads that never do cost one plain call. One grid runs at a time, under the emulator's lock.
#include "device.h"
#include "emulator.h"
#include "sanitizers.h"
#include <cstdio>
#include <sys/mman.h>

emu::Thread *emu::current;
uint3 emu::block_index;
dim3 emu::block_size, emu::grid_size;
unsigned char *emu::dynamic_shared;

// The section of all static shared arrays; empty if no kernel has one.
extern "C" char __start_emulator_shared[] __attribute__((weak)), __stop_emulator_shared[] __attribute__((weak));

extern "C" void emulator_switch_stack(void **save, void *to);
#ifdef __x86_64__
asm(".text\n.globl emulator_switch_stack\n.type emulator_switch_stack,@function\nemulator_switch_stack:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size emulator_switch_stack,.-emulator_switch_stack\n");
#else
#error "the CUDA emulator switches stacks on x86-64 only"
#endif

namespace emu {

namespace {

enum State { fresh, running, at_barrier, at_warp, ready, finished };

struct Fiber {
    void *sp;
    const void *stack;
    size_t size;
    void *tsan;
};

// Fibers that are free. To ThreadSanitizer a fiber is one thread over its whole life. So each stream has its own
// fibers, or a race between streams would look like the work of one thread; and no fiber is used twice in a block.
struct Pool {
    std::vector<Fiber *> idle, spent;
    char start, end, barrier, warp[32]; // addresses that stand for an order
};

std::vector<Thread> threads;
// Threads run in groups: all together, or each warp by itself, which then runs as far as it can before the next one.
struct Turn {
    size_t end;          // end of its threads in thread_order
    size_t first, after; // the threads of its warps
};
std::vector<Turn> turns;
std::vector<unsigned> thread_order, block_order;
// Never freed: a process may end while fibers are in use.
auto &pools = *new std::map<void *, Pool>;
Pool *pool;
size_t fibers_made;
const size_t most_fibers = 6000; // of the 8128 threads that ThreadSanitizer knows
Fiber scheduler, *active, *left; // the fiber that runs, and the one that ran before it
// A turn continues with threads of thread_order that have not begun, then with ready ones from `cursor` on.
size_t next_fresh, cursor, end_turn;
size_t n_finished, n_at_warp;
const Body *thread_body;

void acquire(void *p) {
    if (under_tsan()) __tsan_acquire(p);
}

void release(void *p) {
    if (under_tsan()) __tsan_release(p);
}

// AddressSanitizer returns the stack of the previous fiber, which is the only way to know the scheduler's.
void arrived(void *save) {
    if (!under_asan()) return;
    bool from_scheduler = left == &scheduler;
    __sanitizer_finish_switch_fiber(save, from_scheduler ? &scheduler.stack : nullptr,
                                    from_scheduler ? &scheduler.size : nullptr);
}

void resume(Fiber *to) {
    void *save = nullptr;
    left = active;
    active = to;
    if (under_asan()) __sanitizer_start_switch_fiber(&save, to->stack, to->size);
    if (under_tsan()) __tsan_switch_to_fiber(to->tsan, no_order);
    emulator_switch_stack(&left->sp, to->sp);
    arrived(save);
}

Fiber *take_fiber();

Fiber *next_in_turn() {
    if (next_fresh < end_turn) return take_fiber();
    while (cursor < end_turn) {
        Thread &t = threads[thread_order[cursor++]];
        if (t.state != ready) continue;
        current = &t;
        t.state = running;
        return static_cast<Fiber *>(t.fiber);
    }
    return &scheduler;
}

// Fibers switch to each other without the scheduler, which halves the number of switches. To ThreadSanitizer a fiber is
// ordered after the place where it is created, and lists are not instrumented.
Fiber *next_or_scheduler() { return under_tsan() ? &scheduler : next_in_turn(); }

// A fiber runs new threads in sequence. A thread that waits keeps its fiber, and the next ones get another.
void fiber_main() {
    Fiber *self = active;
    arrived(nullptr);
    for (;;) {
        while (next_fresh < end_turn) {
            Thread *t = current = &threads[thread_order[next_fresh++]];
            t->state = running;
            t->fiber = self;
            acquire(&pool->start);
            thread_body->run();
            release(&pool->end);
            t->state = finished;
            n_finished++;
            if (under_tsan()) break; // there, one fiber per thread
        }
        if (!under_tsan()) pool->idle.push_back(self);
        resume(next_or_scheduler());
    }
}

Fiber *pop(std::vector<Fiber *> &fibers) {
    Fiber *f = fibers.back();
    fibers.pop_back();
    return f;
}

Fiber *make_fiber() {
    const size_t size = under_asan() || under_tsan() ? 256 << 10 : 128 << 10;
    auto *stack = static_cast<char *>(
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    mprotect(stack, 4096, PROT_NONE);
    auto *f = new Fiber{nullptr, stack, size, nullptr};
    auto **sp = reinterpret_cast<void **>(stack + size - 64 - 192 * (fibers_made++ % 64)); // spread over cache sets
    sp -= (reinterpret_cast<uintptr_t>(sp) & 15) / 8;
    *--sp = nullptr; // aligns the stack as at a call
    *--sp = reinterpret_cast<void *>(fiber_main);
    sp -= 6;
    memset(static_cast<void *>(sp), 0, 6 * sizeof *sp);
    f->sp = sp;
    return f;
}

// Takes a fiber of no stream or of another one, without its history.
Fiber *other_fiber() {
    for (auto &p : pools) {
        if (&p.second == pool || p.second.idle.empty() || (p.first && fibers_made < most_fibers)) continue;
        Fiber *f = pop(p.second.idle);
        if (f->tsan) __tsan_destroy_fiber(f->tsan);
        f->tsan = nullptr;
        return f;
    }
    return make_fiber();
}

Fiber *take_fiber() {
    if (!pool->idle.empty()) return pop(pool->idle);
    Fiber *f = other_fiber();
    if (under_tsan()) f->tsan = __tsan_create_fiber(0);
    return f;
}

std::string place(const Thread &t) {
    std::string who = "thread " + std::to_string(t.linear);
    if (t.state == finished) return who + " has exited";
    const char *what = t.state == at_barrier    ? "__syncthreads"
                       : t.kind == wait_shuffle ? "a shuffle"
                       : t.kind == wait_ballot  ? "a vote"
                                                : "__syncwarp";
    return who + " waits in " + what + " at " + t.file + ":" + std::to_string(t.line);
}

struct Warp {
    Thread *first;
    size_t size;
};

// Returns whether all lanes in the mask of T have reached the same place.
bool gathered(const Warp &w, const Thread &t, std::string *error) {
    bool all = true;
    for (unsigned l = 0; l < 32; l++) {
        if (!(t.mask >> l & 1)) continue;
        if (l >= w.size || w.first[l].state == finished) {
            *error =
                place(t) + " with a mask naming lane " + std::to_string(l) + ", which has exited or does not exist";
            return false;
        }
        const Thread &o = w.first[l];
        all = all && o.state == at_warp && o.mask == t.mask && o.kind == t.kind && o.line == t.line;
    }
    return all;
}

bool exchange(const Warp &w, unsigned mask, std::string *error) {
    uint64_t votes = 0;
    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1) votes |= static_cast<uint64_t>(w.first[l].value != 0) << l;
    for (unsigned l = 0; l < 32; l++) {
        if (!(mask >> l & 1)) continue;
        Thread &t = w.first[l];
        if (t.kind == wait_shuffle && !(mask >> t.lane & 1)) {
            *error = place(t) + " reading a lane outside its mask";
            return false;
        }
        t.result = t.kind == wait_shuffle ? w.first[t.lane].value : votes;
    }
    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1) {
            w.first[l].state = ready;
            n_at_warp--;
        }
    return true;
}

bool release_warps(const Turn &turn, bool *some, std::string *error) {
    size_t n = threads.size();
    for (size_t i = turn.first; n_at_warp && i < turn.after; i++) {
        Thread &t = threads[i];
        if (t.state != at_warp) continue;
        size_t first = i & ~static_cast<size_t>(31);
        Warp w{&threads[first], std::min<size_t>(32, n - first)};
        if (gathered(w, t, error)) {
            if (!exchange(w, t.mask, error)) return false;
            *some = true;
        }
        if (!error->empty()) return false;
    }
    return true;
}

bool same_text(const char *a, const char *b) { return a == b || strcmp(a, b) == 0; }

// All threads that have not exited must wait at one barrier.
bool release_barrier(std::string *error) {
    const Thread *first = nullptr, *other = nullptr, *exited = nullptr;
    uint64_t votes = 0;
    for (const Thread &t : threads) {
        if (t.state == finished) {
            exited = &t;
        } else if (!first) {
            first = &t;
        } else if (t.state != first->state || t.line != first->line || !same_text(t.file, first->file)) {
            other = &t;
        }
        if (t.state == at_barrier) votes += t.value;
    }
    if (first->state != at_barrier || other) {
        other = other ? other : exited;
        *error = "divergent wait: " + place(*first) + (other ? ", " + place(*other) : "");
        return false;
    }
    for (Thread &t : threads)
        if (t.state == at_barrier) {
            t.result = votes;
            t.state = ready;
        }
    return true;
}

uint64_t wait_here(int state, const char *file, int line, void *order) {
    Thread *t = current;
    t->state = state;
    t->file = file;
    t->line = line;
    if (order) release(order);
    resume(next_or_scheduler());
    if (order) acquire(order);
    return t->result;
}

// Runs these threads until all of them wait for the block or have finished; false, with the reason, if none can run.
bool run_turn(const Turn &turn, size_t begin, std::string *error) {
    end_turn = turn.end;
    for (bool some = true; some;) {
        cursor = begin;
        for (Fiber *f; (f = next_in_turn()) != &scheduler;) {
            resume(f);
            if (under_tsan() && current->state == finished) pool->spent.push_back(left);
        }
        some = false;
        if (!release_warps(turn, &some, error)) return false;
    }
    return true;
}

bool run_block(std::string *error) {
    size_t n = threads.size();
    for (Thread &t : threads) t.state = fresh;
    next_fresh = n_finished = n_at_warp = 0;
    pool->idle.insert(pool->idle.end(), pool->spent.begin(), pool->spent.end());
    pool->spent.clear();
    release(&pool->start);
    for (;;) {
        size_t begin = 0;
        for (const Turn &turn : turns) {
            if (!run_turn(turn, begin, error)) return false; // the fibers of this block are abandoned
            begin = turn.end;
        }
        if (n_finished == n) break;
        if (!release_barrier(error)) return false;
    }
    acquire(&pool->end);
    return true;
}

// Static shared memory. All of it is filled when a grid begins, but between its blocks only what the first block has
// changed, because the arrays of all kernels together are large.
struct SharedFill {
    std::vector<std::pair<size_t, size_t>> changed;
    bool known = false;

    static size_t size() { return static_cast<size_t>(__stop_emulator_shared - __start_emulator_shared); }

    static void fill(size_t from, size_t to) {
        volatile char *p = __start_emulator_shared; // not memset: its interceptor would see the red zones
        for (size_t i = from; i < to; i++) p[i] = static_cast<char>(0xff);
    }

    void find_changes() {
        const size_t grain = 64;
        const volatile char *p = __start_emulator_shared;
        for (size_t i = 0; i < size(); i += grain) {
            size_t end = std::min(i + grain, size()), k = i;
            while (k < end && p[k] == static_cast<char>(0xff)) k++;
            if (k == end) continue;
            if (!changed.empty() && changed.back().second == i)
                changed.back().second = end;
            else
                changed.push_back({i, end});
        }
        known = true;
    }

    void before_block(size_t number) {
        if (!size()) return;
        if (number == 0) return fill(0, size());
        if (!known) find_changes();
        for (auto &range : changed) fill(range.first, range.second);
    }
};

// To ThreadSanitizer the static shared arrays are new memory for each grid. Otherwise grids of two streams would race
// in them, although on a GPU they have different memory. Its interface for Java's heap expresses this.
void renew_shared() {
    const uintptr_t align = 8;
    auto at = reinterpret_cast<uintptr_t>(__start_emulator_shared) & ~(align - 1);
    uintptr_t size = (reinterpret_cast<uintptr_t>(__stop_emulator_shared) - at + align - 1) & ~(align - 1);
    static bool known;
    if (!size || !__tsan_java_init) return;
    if (known)
        __tsan_java_free(at, size);
    else
        __tsan_java_init(at, size);
    __tsan_java_alloc(at, size);
    known = true;
}

struct OrderDraw {
    unsigned state;
    unsigned below(unsigned n) {
        state = state * 1664525u + 1013904223u;
        return (state >> 8) % n;
    }
};

void arrange(std::vector<unsigned> &v, size_t n, unsigned order, OrderDraw *random) {
    v.resize(n);
    for (size_t i = 0; i < n; i++) v[i] = static_cast<unsigned>(order == 1 ? n - 1 - i : i);
    for (size_t i = n; order > 1 && i > 1; i--) std::swap(v[i - 1], v[random->below(static_cast<unsigned>(i))]);
}

// If warps take turns, the warps are ordered, and the lanes of each.
void arrange_threads(size_t n, unsigned order, OrderDraw *random) {
    arrange(thread_order, n, order, random);
    turns.assign(1, Turn{n, 0, n});
    if (order < 3 || order % 2 == 0) return;
    std::vector<unsigned> warps, lanes;
    arrange(warps, (n + 31) / 32, order, random);
    thread_order.clear();
    turns.clear();
    for (unsigned w : warps) {
        size_t first = static_cast<size_t>(w) * 32, after = std::min(first + 32, n);
        arrange(lanes, after - first, order, random);
        for (unsigned l : lanes) thread_order.push_back(static_cast<unsigned>(first) + l);
        turns.push_back(Turn{thread_order.size(), first, after});
    }
}

uint3 position(unsigned i, dim3 of) { return uint3{i % of.x, i / of.x % of.y, i / of.x / of.y}; }

// Most grids have blocks of the same size as the previous grid.
void make_threads(dim3 block, OrderDraw *random) {
    static dim3 made(0, 0, 0);
    static OrderDraw before, after;
    if (made.x != block.x || made.y != block.y || made.z != block.z || before.state != random->state) {
        before = *random;
        threads.assign(static_cast<size_t>(block.x) * block.y * block.z, Thread());
        for (unsigned i = 0; i < threads.size(); i++) {
            threads[i].linear = i;
            threads[i].index = position(i, block);
        }
        arrange_threads(threads.size(), random->state, random);
        made = block;
        after = *random;
    }
    *random = after;
}

} // namespace

uint64_t wait_in_block(int kind, uint64_t value, const char *file, int line) {
    current->kind = kind;
    current->value = value;
    return wait_here(at_barrier, file, line, &pool->barrier);
}

uint64_t wait_in_warp(int kind, unsigned mask, uint64_t value, unsigned lane, const char *file, int line) {
    Thread *t = current;
    n_at_warp++;
    t->kind = kind;
    t->mask = mask;
    t->value = value;
    t->lane = lane;
    // A shuffle or vote does not order memory, but __syncwarp does.
    return wait_here(at_warp, file, line, kind == wait_warp ? &pool->warp[t->linear >> 5 & 31] : nullptr);
}

void forget_stream(void *fiber) {
    auto it = pools.find(fiber);
    if (!fiber || it == pools.end()) return;
    Pool &old = it->second, &unused = pools[nullptr];
    for (auto *from : {&old.idle, &old.spent}) unused.idle.insert(unused.idle.end(), from->begin(), from->end());
    pools.erase(it);
}

void run_grid(const std::string &name, dim3 grid, dim3 block, size_t shared, const Body &thread) {
    size_t blocks = static_cast<size_t>(grid.x) * grid.y * grid.z;
    unsigned order = settings().order;
    OrderDraw random{order};
    if (under_tsan()) {
        scheduler.tsan = __tsan_get_current_fiber();
        renew_shared();
    }
    active = &scheduler;
    pool = &pools[scheduler.tsan];
    make_threads(block, &random);
    arrange(block_order, blocks, order, &random);
    // malloc, so that AddressSanitizer knows its bounds
    std::unique_ptr<void, void (*)(void *)> dynamic(aligned_alloc(64, (shared + 127) & ~static_cast<size_t>(63)), free);
    dynamic_shared = static_cast<unsigned char *>(dynamic.get());
    if (under_asan())
        __asan_poison_memory_region(dynamic_shared + shared, ((shared + 127) & ~static_cast<size_t>(63)) - shared);
    block_size = block;
    grid_size = grid;
    thread_body = &thread;
    SharedFill fill;
    for (size_t i = 0; i < blocks; i++) {
        block_index = position(block_order[i], grid);
        fill.before_block(i);
        memset(dynamic_shared, 0xff, shared);
        std::string error;
        if (!run_block(&error)) {
            char where[80];
            snprintf(where, sizeof where, ", block (%u,%u,%u): ", block_index.x, block_index.y, block_index.z);
            report("kernel " + name + where + error, device_now());
            break;
        }
    }
    if (under_asan()) __asan_unpoison_memory_region(dynamic_shared, (shared + 127) & ~static_cast<size_t>(63));
}

} // namespace emu
