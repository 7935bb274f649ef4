/* How much memory the operating system leaves to this process, as Linux reports it: MemAvailable of /proc/meminfo
 * (proc(5)), and the memory controllers of control groups (the kernel's documents cgroup-v2 and cgroup-v1/memory). A
 * process is limited by its own group and by all groups that contain it. */
#include "base/memory/system_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tapegrad/types.h>

/* The files of a version of control groups. The path of a file is the mount, followed by the group and the name. */
typedef struct controller {
    const char *mount, *limit, *used;
    const char *cached; /* in memory.stat: pages of files, which the kernel drops when the group needs memory */
} controller;

static const controller v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"},
                        v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                              "total_inactive_file"};

enum { TEXT = 16384, PATH = 4096 };

/* Reads the beginning of a file as text; "" if it cannot be read. */
static void read_text(const char *path, char text[TEXT]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = 0, at = 0;
    while (fd >= 0 && at < TEXT - 1 && (n = read(fd, text + at, (size_t)(TEXT - 1 - at))) > 0) at += n;
    text[at] = 0;
    if (fd >= 0) close(fd);
}

/* Returns the number that follows `key` at the beginning of a line; TG_NONE if there is none. */
static int64_t number_after(const char *text, const char *key) {
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        char *end;
        if (strncmp(line, key, n) != 0 || (n && !strchr(": \t", line[n]))) continue;
        const char *digits = line + n + strspn(line + n, ": \t");
        long long v = strtoll(digits, &end, 10);
        return end == digits ? TG_NONE : v; /* "max": no limit */
    }
    return TG_NONE;
}

/* Returns the number in a file of a group; `key` is "" or the beginning of its line. */
static int64_t number_of(const char *root, const controller *c, const char *group, const char *name, const char *key) {
    char path[PATH], text[TEXT];
    snprintf(path, sizeof path, "%s%s%s/%s", root, c->mount, group, name);
    read_text(path, text);
    return number_after(text, key);
}

static int64_t least(int64_t a, int64_t b) { return a < 0 || (b >= 0 && b < a) ? b : a; }

/* Returns how many bytes one group leaves; TG_NONE if it has no limit or its files cannot be read. */
static int64_t left_in_group(const char *root, const controller *c, const char *group) {
    int64_t limit = number_of(root, c, group, c->limit, ""), used = number_of(root, c, group, c->used, "");
    if (limit < 0 || used < 0) return TG_NONE;
    int64_t cached = number_of(root, c, group, "memory.stat", c->cached);
    if (cached > 0) used = used > cached ? used - cached : 0; /* the kernel reads the two numbers at different times */
    return limit > used ? limit - used : 0;
}

/* Returns how many bytes a group and those that contain it leave, or TG_NONE if none of them has a limit. Shortens
 * `group` to "". A container may not see the groups of the path; its own group is then the mount itself. */
static int64_t left_in_groups(const char *root, const controller *c, char *group) {
    int64_t left = TG_NONE;
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = 0;
        left = least(left, left_in_group(root, c, group));
    }
    return left;
}

/* Returns the controller of a line of /proc/self/cgroup, "ID:CONTROLLERS:GROUP", whose GROUP begins at *group; NULL if
 * the line is not about memory. */
static const controller *controller_of(char *line, char **group) {
    char *names = strchr(line, ':'), *end = names ? strchr(names + 1, ':') : NULL;
    if (!end) return NULL;
    *end = 0;
    *group = end + 1;
    if (!names[1]) return &v2;
    for (char *rest = names + 1, *name; (name = strsep(&rest, ",")) != NULL;)
        if (!strcmp(name, "memory")) return &v1;
    return NULL;
}

int64_t tg_system_memory(const char *root) {
    char path[PATH], text[TEXT], *group;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    read_text(path, text);
    int64_t left = number_after(text, "MemAvailable");
    if (left > 0) left *= 1024;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    read_text(path, text);
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;) {
        const controller *c = controller_of(line, &group);
        if (c) left = least(left, left_in_groups(root, c, group));
    }
    return left;
}
