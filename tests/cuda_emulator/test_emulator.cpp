// test_emulator.cpp - tests that the emulator finds errors, and reports none in correct programs. Each scenario runs in
// its own process, with settings in its environment, and its output is searched.
#include "scenarios.h"
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#if defined __SANITIZE_ADDRESS__
#define UNDER_ASAN 1
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#endif
#endif
#if defined __SANITIZE_THREAD__
#define UNDER_TSAN 1
#elif defined __has_feature
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_ASAN
#define UNDER_ASAN 0
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

namespace {

enum Where { always, plain_only, asan_only, tsan_only, not_tsan };

struct Check {
    const char *what, *scenario, *found; /* found: text in the output; NULL: the scenario is correct */
    const char *environment;             /* NAME=VALUE, separated by spaces */
    Where where;
};

const Check checks[] = {
    {"no barrier: another order of threads changes the sum", "no_barrier", "wrong", "TG_EMULATOR_ORDER=2", not_tsan},
    {"no second barrier: a warp that runs ahead changes the sum", "reused", "wrong", "TG_EMULATOR_ORDER=3", not_tsan},
    {"no barrier: a race", "no_barrier", "data race", "", tsan_only},
    {"a divergent wait names threads, file and line", "diverge", "__syncthreads at", "", always},
    {"unset shared memory reads as NaN", "unset_shared", "nan", "", always},
    {"unset device memory reads as NaN", "unset_memory", "nan", "", always},
    {"a kernel's write past the end of its buffer", "kernel_past_end", "past the end of an allocation of 256", "",
     plain_only},
    {"a kernel's write past the end is named at once", "kernel_past_end", "bug_past_end", "", asan_only},
    {"blocks that write the same: another order of blocks changes the result", "blocks_race", "wrong",
     "TG_EMULATOR_ORDER=1", not_tsan},
    {"a sum by float atomics: another order of blocks changes its bits", "atomic_sum", "wrong", "TG_EMULATOR_ORDER=3",
     always},
    {"the host reads device memory", "host_reads", "the host touches device memory", "", always},
    {"the host writes device memory", "host_writes", "the host touches device memory", "", always},
    {"use of freed memory by a kernel", "freed_then_used", "freed or never allocated", "", always},
    {"memory freed while another stream's work uses it", "freed_while_queued", "freed while an operation is queued",
     "TG_EMULATOR_SCHEDULE=lazy", always},
    {"memory freed in the order of one stream, used in another", "freed_async", "has been freed since it was queued",
     "TG_EMULATOR_SCHEDULE=eager", always},
    {"a missing wait for an event, lazily", "no_event_wait", "wrong", "TG_EMULATOR_SCHEDULE=lazy", not_tsan},
    {"a missing wait for an event, by some seed", "no_event_wait", "wrong", "TG_EMULATOR_SCHEDULE=5", not_tsan},
    {"a missing wait for an event is a race in any schedule", "no_event_wait", "data race", "", tsan_only},
    {"a pinned buffer written before its copy ran", "pinned_early", "wrong", "TG_EMULATOR_SCHEDULE=lazy", not_tsan},
    {"a pinned buffer written too early is a race in any schedule", "pinned_early", "data race", "", tsan_only},
    {"results read before the stream was waited for", "read_early", "wrong", "TG_EMULATOR_SCHEDULE=lazy", not_tsan},
    {"a kernel of one device given memory of another", "other_device", "memory of device 1", "", always},
    {"a kernel on a stream of a device that is not current", "other_stream", "its stream is of another device", "",
     always},
    {"a kernel given memory of the host", "host_pointer", "memory of the host", "", always},
    {"a copy that reaches outside", "copy_outside", "a copy from", "", always},
    {"too much dynamic shared memory", "shared_too_much", "bytes of dynamic shared memory", "", always},
    {"a failed call whose error is not checked", "unchecked_failure", "wrong", "TG_EMULATOR_FAIL_AT=4", always},
    {"the number of calls", "streams", "fallible calls", "TG_EMULATOR_FAIL_AT=count", always},
    {"an operand that reaches outside", "gemm_outside", "reaches outside its device allocation", "", always},
    {"a product while another device is current", "product_elsewhere", "of another device than the current one", "",
     always},
    {"a workspace used by two streams", "workspace_shared", "wrong", "TG_EMULATOR_SCHEDULE=3", not_tsan},
    {"a graph whose memory was freed", "graph_freed", "has been freed since it was queued", "", always},
    {"a graph's static input written while it runs", "graph_input_early", "wrong", "TG_EMULATOR_SCHEDULE=lazy",
     not_tsan},
    {"a graph's static input written too early is a race", "graph_input_early", "data race", "", tsan_only},
    {"a collective of another size names the ranks and both calls", "other_size", "rank 2 called AllReduce(500", "",
     always},
    {"a collective of another kind", "other_kind", "rank 1 called Broadcast(1000", "", always},
    {"a rank that leaves without a collective", "missing", "rank 3 has left after 0 collectives", "", always},
    {"a rank that died is named by the ranks that wait for it", "missing_process", " 3\n", "", always},
    {"a rank that never joins is named", "never_joined", "rank 0 waits for ranks to join: 2\n", "", always},
    {"collectives of two communicators in two orders", "reordered", "wait for each other", "", always},
    {"sends before receives", "sends_first", "wait for each other", "", always},
    {"a sum used before it was made", "sum_not_awaited", "wrong", "TG_EMULATOR_SCHEDULE=2", not_tsan},
    {"a sum used before it was made is a race", "sum_not_awaited", "data race", "", tsan_only},
    {"two ranks on one device", "same_device", "two ranks on device 0", "", always},
    {"windows of two sizes", "window_sizes", "bytes, and on rank", "", always},
    {"a collective at two places of a window", "window_places", "from window 1 at 32", "", always},
    {"a window's memory is freed", "window_freed", "freed that is still a window", "", always},
    {"a communicator ends before its windows", "window_left", "still has windows", "", always},
    {"communicators that wait for each other, aborted one by one", "aborted_apart", "aborted communicator has kernels",
     "", always},
    {"a communicator ends before a graph that has it", "ended_with_graph", "graphs that have them", "", always},
    {"a collective past its buffer", "buffer_too_small", "36 bytes are asked of", "", always},
};

const char *self;
int passed, failed;

std::string run(const char *scenario, const std::string &environment) {
    int ends[2];
    if (pipe(ends)) exit(2);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        for (size_t at = 0; at < environment.size();) {
            size_t end = std::min(environment.find(' ', at), environment.size());
            std::string one = environment.substr(at, end - at);
            size_t sign = one.find('=');
            if (sign != std::string::npos) setenv(one.substr(0, sign).c_str(), one.c_str() + sign + 1, 1);
            at = end + 1;
        }
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        execl(self, self, scenario, static_cast<char *>(nullptr));
        _exit(127);
    }
    close(ends[1]);
    std::string output;
    char part[4096];
    for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) output.append(part, static_cast<size_t>(n));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) output += "ended with status " + std::to_string(status) + "\n";
    return output;
}

void judge(bool good, const std::string &what, const std::string &output) {
    good ? passed++ : failed++;
    if (good) return;
    printf("FAILED: %s\n", what.c_str());
    printf("%s\n", output.substr(0, 1500).c_str());
}

bool applies(Where where) {
    switch (where) {
    case plain_only:
        return !UNDER_ASAN && !UNDER_TSAN;
    case asan_only:
        return UNDER_ASAN;
    case tsan_only:
        return UNDER_TSAN;
    case not_tsan:
        return !UNDER_TSAN;
    default:
        return true;
    }
}

void expect_right(const Scenario &s, const std::string &environment) {
    std::string output = run(s.name, environment);
    judge(output == "right\n", std::string(s.name) + " with " + environment, output);
}

// Scenarios before the row without a name; ThreadSanitizer is slow and needs few schedules, so it runs three.
void check_right(const std::vector<Scenario> &scenarios) {
    const char *schedules[] = {"eager", "lazy", "1", "2", "3", "4"};
    int turn = 0;
    for (const Scenario &s : scenarios) {
        if (!s.name) break;
        for (int i = 0; i < (UNDER_TSAN ? 3 : 6); i++)
            expect_right(s, std::string("TG_EMULATOR_DEVICES=4 TG_EMULATOR_SCHEDULE=") + schedules[i] +
                                " TG_EMULATOR_ORDER=" + std::to_string(turn++ % 4));
    }
}

const Scenario *find(const std::vector<Scenario> &in, const char *name) {
    for (const Scenario &s : in)
        if (s.name && !strcmp(s.name, name)) return &s;
    return nullptr;
}

} // namespace

int main(int argc, char **argv) {
    self = "/proc/self/exe";
    const std::vector<Scenario> *all[] = {&runtime_scenarios, &capture_scenarios, &product_scenarios, &nccl_scenarios,
                                          &window_scenarios};
    if (argc > 1) {
        setvbuf(stdout, nullptr, _IONBF, 0);
        for (auto *in : all)
            if (const Scenario *s = find(*in, argv[1])) return puts(s->run() ? "right" : "wrong") < 0;
        return printf("no scenario %s\n", argv[1]), 2;
    }
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); // fibers that a failed kernel has abandoned
    for (auto *in : all) check_right(*in);
    for (const Check &c : checks) {
        if (!applies(c.where)) continue;
        std::string output = run(c.scenario, std::string("TG_EMULATOR_DEVICES=4 ") + c.environment);
        judge(output.find(c.found) != std::string::npos, c.what, output);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
