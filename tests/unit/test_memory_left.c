/* What is left of a device's memory (memory.h), and how the host's is read from files of Linux, some of which the tests
 * write themselves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <tapegrad/memory.h>
#include <tapegrad/tapegrad.h>

#include "base/memory/system_memory.h"
#include "check_main.h"
#include "on_device.h"

enum { MIB = 1 << 20 };

/* ---- The host ---- */

static char root[64];

static void begin(void) {
    snprintf(root, sizeof root, "/tmp/tg_memory_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
}

static void end(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    ck_assert_int_eq(system(command), 0);
}

/* Writes a file, and makes the directories of its path. */
static void put(const char *path, const char *text) {
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *at = whole + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        mkdir(whole, 0700);
    }
    FILE *f = fopen(whole, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static void put_group(const char *dir, const char *limit, const char *used, const char *stat) {
    char path[256];
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", dir);
    put(path, limit);
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", dir);
    put(path, used);
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.stat", dir);
    if (stat) put(path, stat);
}

#define MEMINFO "MemTotal:       16000000 kB\nMemFree:          500000 kB\nMemAvailable:    8000000 kB\nBuffers: 1 kB\n"

START_TEST(the_host_says_what_is_available) {
    begin();
    ck_assert_int_eq(tg_system_memory(root), TG_NONE); /* an empty root */
    put("/proc/meminfo", "MemTotal:       16000000 kB\nMemFree:          500000 kB\n"); /* of a kernel before 3.14 */
    ck_assert_int_eq(tg_system_memory(root), TG_NONE);
    put("/proc/meminfo", MEMINFO);
    ck_assert_int_eq(tg_system_memory(root), 8000000LL * 1024);
    end();
}
END_TEST

START_TEST(groups_leave_what_they_do_not_use) {
    begin();
    put("/proc/meminfo", MEMINFO);
    put("/proc/self/cgroup", "0::/user/job\n");
    put_group("/user/job", "max\n", "1000000\n", NULL);
    ck_assert_int_eq(tg_system_memory(root), 8000000LL * 1024); /* no limit */
    put_group("/user/job", "5000000\n", "1000000\n", NULL);
    ck_assert_int_eq(tg_system_memory(root), 4000000);
    put_group("/user/job", "5000000\n", "1000000\n", "anon 7\nactive_file 9\ninactive_file 200000\n");
    ck_assert_int_eq(tg_system_memory(root), 4200000); /* pages of files can be dropped */
    put_group("/user/job", "9223372036854775807\n", "1000000\n", "inactive_file 2000000\n");
    ck_assert_int_eq(tg_system_memory(root), 8000000LL * 1024); /* the sum of limit and pages would overflow */
    put_group("/user/job", "5000000\n", "1000000\n", "inactive_file 200000\n");
    put_group("/user", "3000000\n", "1500000\n", NULL);
    ck_assert_int_eq(tg_system_memory(root), 1500000); /* the group around it is nearer to its limit */
    put_group("/user", "3000000\n", "3500000\n", NULL);
    ck_assert_int_eq(tg_system_memory(root), 0);
    end();
}
END_TEST

/* In a container the path of the group may be that of the host, of which the container sees its own group alone. */
START_TEST(a_containers_group_is_the_mount) {
    begin();
    put("/proc/meminfo", MEMINFO);
    put("/proc/self/cgroup", "0::/docker/0123abcd\n");
    put_group("", "2000000\n", "500000\n", NULL);
    ck_assert_int_eq(tg_system_memory(root), 1500000);
    end();
}
END_TEST

START_TEST(groups_of_version_1_are_read_too) {
    begin();
    put("/proc/meminfo", MEMINFO);
    put("/proc/self/cgroup", "12:cpu,cpuacct:/job\n7:hugetlb,memory:/job\n1:name=systemd:/\n0::/\n");
    put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "6000000\n");
    put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1000000\n");
    put("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 300000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "7000000\n");
    ck_assert_int_eq(tg_system_memory(root), 5300000);
    end();
}
END_TEST

/* ---- Devices ---- */

static int64_t left_on(const char *device, int64_t limit) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = device, .threads = 1, .memory = limit));
    int64_t left = tg_memory_left(ctx);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
    return left;
}

START_TEST(a_device_has_memory_left) {
    ck_assert_int_gt(left_on(test_device(), TG_NONE), MIB);
    ck_assert_int_eq(left_on("meta", TG_NONE), TG_NONE);
    ck_assert_int_eq(left_on(test_device(), MIB), MIB);
    ck_assert_int_eq(left_on("meta", MIB), MIB);
}
END_TEST

/* The limit counts what is in use. On a GPU also the GPU's own memory does. */
START_TEST(tensors_take_of_what_is_left) {
    enum { ELEMENTS = 64 * MIB / 4 };
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1, .memory = 100 * MIB));
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(ELEMENTS));
    ck_assert_int_eq(tg_memory_left(ctx), 36 * MIB);
    tg_drop(x);
    ck_assert_int_eq(tg_memory_left(ctx), 100 * MIB);
    tg_ctx_free(ctx);
    if (test_on_host()) return;
    ctx = tg_ctx_new(TG_CONFIG(.device = test_device(), .threads = 1));
    int64_t before = tg_memory_left(ctx);
    tg_zeros(ctx, TG_F32, TG_SHAPE(ELEMENTS));
    ck_assert_int_le(tg_memory_left(ctx), before - 64 * MIB);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(a_device_of_the_callers_own_is_unknown) {
    tg_ctx *cpu = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_device_ops ops = *tg_ctx_ops(cpu);
    static const char *const names[] = {"far", "cuda"}; /* a table may be named as one of the library's */
    ops.host = false;
    for (int i = 0; i < 2; i++) {
        ops.name = names[i];
        tg_ctx *ctx = tg_ctx_new_on(&ops, TG_CONFIG(.threads = 1));
        ck_assert_int_eq(tg_memory_left(ctx), TG_NONE);
        ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
        tg_ctx_free(ctx);
    }
    tg_ctx_free(cpu);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        the_host_says_what_is_available,
        groups_leave_what_they_do_not_use,
        a_containers_group_is_the_mount,
        groups_of_version_1_are_read_too,
        a_device_has_memory_left,
        tensors_take_of_what_is_left,
        a_device_of_the_callers_own_is_unknown,
    };
    return tg_check_main("memory_left", tests, sizeof tests / sizeof tests[0]);
}
