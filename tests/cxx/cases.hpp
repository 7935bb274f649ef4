/* A table of cases for programs in C++: each case is a function with a name, and CHECK counts a failure in it. */
#ifndef TESTS_CXX_CASES_HPP
#define TESTS_CXX_CASES_HPP

#include <cstdio>

struct test_case {
    const char *name;
    void (*run)();
};

inline int failures; /* of the case that runs */

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                        \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

/* Runs all cases, and returns the status of the program. */
template <int n> int run_cases(const test_case (&cases)[n]) {
    int failed = 0;
    for (const test_case &c : cases) {
        failures = 0;
        c.run();
        if (failures) std::printf("failed: %s\n", c.name);
        failed += failures != 0;
    }
    std::printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}

#endif
