/* The main of a Check program: one process, so that sanitizers and threads work, and one line of result. */
#ifndef TG_CHECK_MAIN_H
#define TG_CHECK_MAIN_H

#include <check.h>
#include <stdlib.h>

static inline int tg_check_main(const char *name, const TTest *const *tests, size_t n) {
    Suite *suite = suite_create(name);
    TCase *all = tcase_create(name);
    tcase_set_timeout(all, 0);
    for (size_t i = 0; i < n; i++) tcase_add_test(all, tests[i]);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
