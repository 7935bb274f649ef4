/* The main function of a Check program: one process, so that sanitizers and threads work, and one line of result.
 * CK_RUN_CASE names the one test case to run. Without it all run; if TG_TEST_SHARE_name=N is set for the program of
 * that name, every N-th one runs, and TG_TEST_TURN chooses which. */
#ifndef TG_CHECK_MAIN_H
#define TG_CHECK_MAIN_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

/* Returns the larger number; NaN if one of them is NaN, which fmax leaves out. */
static inline double larger_or_nan(double a, double b) { return a != a || a > b ? a : b; }

static inline size_t tg_check_number(const char *name, size_t otherwise) {
    const char *set = getenv(name);
    return set ? strtoul(set, NULL, 10) : otherwise;
}

static inline int tg_check_main(const char *name, const TTest *const *tests, size_t n) {
    Suite *suite = suite_create(name);
    char of[64];
    snprintf(of, sizeof of, "TG_TEST_SHARE_%s", name);
    size_t share = getenv("CK_RUN_CASE") ? 1 : tg_check_number(of, 1), turn = tg_check_number("TG_TEST_TURN", 0);
    if (share > n) share = n; /* so that each turn has a test case */
    for (size_t i = 0; i < n; i++) {
        if (share > 1 && (i + turn) % share) continue;
        TCase *one = tcase_create(tests[i]->name);
        tcase_set_timeout(one, 0);
        tcase_add_test(one, tests[i]);
        suite_add_tcase(suite, one);
    }
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    if (getenv("CK_RUN_CASE") && srunner_ntests_run(runner) == 0) {
        fprintf(stderr, "%s has no test case %s\n", name, getenv("CK_RUN_CASE"));
        failed = 1;
    }
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
