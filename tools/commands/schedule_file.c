/* Reads a schedule from a file. Each line has the items of a stage: act, micro-batch, and the chunk if it is not 0,
 * such as "F0", "B12" or "W3.1". A line may begin with "stage" and the number of the stage. Words of dots and dashes,
 * which stand for time in diagrams, are skipped, and so are comments, which begin with '#'. */
#include <stdlib.h>
#include <string.h>

#include "io/file.h"

#include "commands/schedule_file.h"
#include "common/program.h"

enum { MOST_BYTES = 1 << 26, MOST_DIGITS = 9 };

/* Reads a number of at most MOST_DIGITS digits at *text, and moves *text after it. Returns -1 if there is none. */
static int64_t read_number(const char **text) {
    int64_t n = 0;
    size_t digits = strspn(*text, "0123456789");
    if (!digits || digits > MOST_DIGITS) return -1;
    for (size_t i = 0; i < digits; i++) n = 10 * n + *(*text)++ - '0';
    return n;
}

static bool read_item(const char *word, tg_pipe_item *out) {
    const char acts[] = "FBW", *act = strchr(acts, *word++);
    int64_t micro = act ? read_number(&word) : -1, chunk = 0;
    if (micro >= 0 && *word == '.') {
        word++;
        chunk = read_number(&word);
    }
    if (micro < 0 || chunk < 0 || chunk > UINT8_MAX || *word) return false;
    *out = (tg_pipe_item){(uint8_t)(act - acts), (uint8_t)chunk, (int32_t)micro};
    return true;
}

/* Adds the items of a line, which has at least one word, to the lists, and moves *end after the last one. */
static bool read_line(schedule_file *f, const char *path, int line, char *text, tg_pipe_item **end) {
    char *rest, *word = strtok_r(text, " \t\r", &rest);
    if (!strcmp(word, "stage")) {
        const char *number = strtok_r(NULL, " \t\r", &rest);
        if (!number || read_number(&number) != f->stages || *number)
            return fail("%s:%d: expected 'stage %d', because stages are in order", path, line, f->stages), false;
        word = strtok_r(NULL, " \t\r", &rest);
    }
    f->list[f->stages] = *end;
    for (; word; word = strtok_r(NULL, " \t\r", &rest)) {
        if (!word[strspn(word, ".-")]) continue;
        if (!read_item(word, *end))
            return fail("%s:%d: '%s' is not an item; expected F, B or W and a micro-batch, and a chunk after '.', such "
                        "as F3 or B3.1",
                        path, line, word),
                   false;
        if ((*end)->chunk >= f->chunks) f->chunks = (*end)->chunk + 1;
        if ((*end)->micro >= f->micros) f->micros = (*end)->micro + 1;
        ++*end;
    }
    f->count[f->stages] = (int)(*end - f->list[f->stages]);
    f->stages++;
    return true;
}

static bool read_lines(schedule_file *f, const char *path, char *text) {
    tg_pipe_item *end = f->item;
    int line = 1;
    for (char *next = text; next; line++) {
        char *at = strsep(&next, "\n");
        at[strcspn(at, "#")] = 0;
        if (at[strspn(at, " \t\r")] && !read_line(f, path, line, at, &end)) return false;
    }
    if (!f->micros) fail("'%s' has no items; expected a line for each stage, such as F0 F1 B0 B1", path);
    return f->micros > 0;
}

bool schedule_file_read(tg_ctx *ctx, const char *path, schedule_file *out) {
    char *text = NULL;
    size_t bytes = 0, lines = 1;
    *out = (schedule_file){0};
    if (tg_file_load(ctx, path, MOST_BYTES, &text, &bytes) != TG_OK) return check(ctx);
    for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
    out->item = malloc((bytes / 2 + 1) * sizeof *out->item); /* an item has two characters or more */
    out->list = malloc(lines * sizeof *out->list);
    out->count = malloc(lines * sizeof *out->count);
    bool good = out->item && out->list && out->count;
    if (!good) fail("no memory for the schedule");
    if (good && strlen(text) != bytes) good = !fail("'%s' is not a text: it has a zero byte", path);
    good = good && read_lines(out, path, text);
    tg_host_free(ctx, text, bytes + 1);
    return good;
}

void schedule_file_free(schedule_file *f) {
    free(f->item);
    free(f->list);
    free(f->count);
}
