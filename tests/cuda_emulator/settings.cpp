// settings.cpp - settings from the environment and from tests, calls that fail on purpose, and the errors found.
#include "emulator.h"
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace emu {

namespace {

std::atomic<long> calls, fail_at;
std::atomic<const char *> failed_call;
std::string messages;
std::map<int, cudaError_t> sticky_errors;
std::map<std::string, long> live;

long number(const char *name, long otherwise) {
    const char *s = getenv(name);
    return s && *s ? atol(s) : otherwise;
}

void choose_schedule(Settings &s, const char *text) {
    std::string word = text && *text ? text : "eager";
    s.schedule = word == "eager" ? Schedule::eager : word == "lazy" ? Schedule::lazy : Schedule::random;
    s.seed = s.schedule == Schedule::random ? strtoull(word.c_str(), nullptr, 10) : 1;
}

// Exit status of a program that succeeds although the emulator has found an error.
void end_strictly() {
    if (!messages.empty()) _exit(99);
}

void print_calls() { fprintf(stderr, "cuda emulator: %ld fallible calls\n", calls.load()); }

Settings from_environment() {
    Settings s{};
    choose_schedule(s, getenv("TG_EMULATOR_SCHEDULE"));
    s.order = static_cast<unsigned>(number("TG_EMULATOR_ORDER", 0));
    s.devices = static_cast<int>(number("TG_EMULATOR_DEVICES", 1));
    s.memory = static_cast<size_t>(number("TG_EMULATOR_MEMORY", 8192)) << 20;
    s.timeout_ms = static_cast<int>(number("TG_EMULATOR_TIMEOUT_MS", 60000));
    s.nccl_progress = static_cast<int>(number("TG_EMULATOR_NCCL_PROGRESS", 0));
    const char *left = getenv("TG_EMULATOR_NCCL_LEFT");
    s.nccl_left_hangs = left && !strcmp(left, "hang");
    const char *guard = getenv("TG_EMULATOR_GUARD");
    std::string word = guard ? guard : "auto";
    s.guard_limit = word == "off" ? 0 : word == "on" ? SIZE_MAX : static_cast<size_t>(16) << 20;
    const char *dir = getenv("TG_EMULATOR_NCCL_DIR");
    s.nccl_dir = dir && *dir ? dir : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    const char *strict = getenv("TG_EMULATOR_STRICT");
    if (strict && !strcmp(strict, "on")) atexit(end_strictly);
    const char *fail = getenv("TG_EMULATOR_FAIL_AT");
    if (fail && !strcmp(fail, "count"))
        atexit(print_calls);
    else if (fail)
        fail_at = atol(fail);
    return s;
}

} // namespace

Settings &settings() {
    static Settings s = from_environment();
    return s;
}

unsigned draw(unsigned below) {
    uint64_t z = (settings().seed += 0x9e3779b97f4a7c15u); // splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<unsigned>((z >> 33) % (below ? below : 1));
}

bool injected(const char *call) {
    settings();
    if (++calls != fail_at) return false;
    failed_call = call;
    return true;
}

void count_live(const char *kind, int by) { live[kind] += by; }

void say(const std::string &text) {
    fprintf(stderr, "cuda emulator: %s\n", text.c_str());
    messages += text + "\n";
}

void report(const std::string &text, int device) {
    say(text);
    if (device >= 0)
        sticky_errors[device] = cudaErrorLaunchFailure;
    else
        for (int d = 0; d < settings().devices; d++) sticky_errors[d] = cudaErrorLaunchFailure;
}

cudaError_t sticky(int device) {
    auto it = sticky_errors.find(device);
    return it == sticky_errors.end() ? cudaSuccess : it->second;
}

} // namespace emu

extern "C" {

const char *emulator_message(void) {
    emu::Lock lock(emu::mutex());
    static std::string copy;
    copy = emu::messages;
    return copy.c_str();
}

long emulator_calls(void) { return emu::calls; }

void emulator_fail_at(long n) {
    emu::settings();
    emu::calls = 0;
    emu::failed_call = nullptr;
    emu::fail_at = n;
}

const char *emulator_failed(void) { return emu::failed_call; }

void emulator_schedule(const char *schedule) {
    emu::Lock lock(emu::mutex());
    emu::choose_schedule(emu::settings(), schedule);
}

void emulator_order(unsigned order) {
    emu::Lock lock(emu::mutex());
    emu::settings().order = order;
}

void emulator_timeout_ms(int ms) {
    emu::Lock lock(emu::mutex());
    emu::settings().timeout_ms = ms;
}

void emulator_memory_limit(size_t bytes) {
    emu::Lock lock(emu::mutex());
    emu::settings().memory = bytes;
}

long emulator_live(const char *kind) {
    emu::Lock lock(emu::mutex());
    auto it = emu::live.find(kind);
    return it == emu::live.end() ? 0 : it->second;
}

} // extern "C"
