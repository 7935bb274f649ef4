/* Recognizes Megatron datasets, and files that probably hold no tokens, by their names and first bytes. Computes the
 * checksum of a file's tokens. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/program.h"
#include "common/text.h"
#include "data/kind.h"

/* ---- Files that probably hold no tokens ---- */

enum { HEAD_BYTES = 4096 }; /* the first bytes of a file, which are examined */

typedef struct signature {
    const char *bytes;
    size_t n;
    const char *kind, *remedy;
} signature;

/* The first bytes of known formats. Each signature has three bytes or more, because any two bytes may be a token id
 * of format u16. */
static const signature signatures[] = {
    {"\xfd\x37zXZ\0", 6, "compressed by xz", "decompress it first (unxz)"},
    {"BZh", 3, "compressed by bzip2", "decompress it first (bunzip2)"},
    {"PK\3\4", 4, "a zip archive", "unpack it first (unzip)"},
    {"\x93NUMPY", 6, "an array of NumPy", "write its bare ids with array.tofile and give them with --data-format"},
    {"PAR1", 4, "a Parquet table", "write the text of its columns to a file first"},
    {"%PDF-", 5, "a PDF document", "extract its text first (pdftotext)"},
    {"\x7f" "ELF", 4, "a program", "give a file of text"},
};

static const signature *find_signature(const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++)
        if (n >= signatures[i].n && !memcmp(bytes, signatures[i].bytes, signatures[i].n)) return &signatures[i];
    return NULL;
}

/* Returns the index of the first control character that text does not contain; n if there is none. */
static size_t find_control(const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i] < 0x20 && !strchr("\t\n\v\f\r\x1b\b", bytes[i])) return i;
        else if (bytes[i] == 0) return i;
    return n;
}

void warn_of_data(const char *option, const char *path, int data_format) {
    unsigned char bytes[HEAD_BYTES];
    FILE *f = not_regular(path) ? NULL : fopen(path, "re"); /* tg_tokens_open reports it if this fails */
    size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f) fclose(f);
    const signature *s = find_signature(bytes, n);
    if (s) {
        warn("--%s '%s' begins as a file that is %s; the model would see those bytes as they are: %s", option, path,
             s->kind, s->remedy);
        return;
    }
    size_t at = data_format == TG_TOKENS_TEXT ? find_control(bytes, n) : n;
    if (at < n)
        warn("--%s '%s' is not text: byte %zu is 0x%02x; if it holds token ids, give --data-format u16, u32 or "
             "megatron",
             option, path, at, bytes[at]);
}

/* ---- Megatron datasets ---- */

/* Returns whether the first n characters of path, followed by the ending, name a file. */
static bool is_file(const char *path, size_t n, const char *ending) {
    char other[4096];
    struct stat st;
    int length = snprintf(other, sizeof other, "%.*s%s", (int)n, path, ending);
    return length < (int)sizeof other && stat(other, &st) == 0 && S_ISREG(st.st_mode);
}

static bool begins_as_index(const char *path) {
    static const char magic[] = "MMIDIDX"; /* two zeros follow it */
    char head[sizeof magic + 1] = {0};
    FILE *f = not_regular(path) ? NULL : fopen(path, "re");
    size_t n = f ? fread(head, 1, sizeof head, f) : 0;
    if (f) fclose(f);
    return n == sizeof head && !memcmp(head, magic, sizeof magic) && !head[sizeof magic];
}

bool is_megatron(const char *path) {
    size_t n = strlen(path);
    if (text_ends_with(path, ".bin")) return is_file(path, n - 4, ".idx");
    if (text_ends_with(path, ".idx")) return is_file(path, n - 4, ".bin") || begins_as_index(path);
    return access(path, F_OK) != 0 && is_file(path, n, ".bin") && is_file(path, n, ".idx");
}

/* ---- Checksums ---- */

uint64_t tokens_sum(tg_tokens *t) { return tokens_sum_of(t, tg_tokens_count(t)); }

uint64_t tokens_sum_of(tg_tokens *t, int64_t count) {
    enum { PARTS = 64, PART = 4096 };
    int64_t ids[PART];
    int64_t n = count < PART ? count : PART;
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < PARTS; i++) {
        int64_t first = (int64_t)((double)(count - n) * (double)i / (PARTS - 1));
        if (tg_tokens_read(t, first, n, ids) != TG_OK) return 0;
        for (int64_t j = 0; j < n; j++) h = (h ^ (uint64_t)ids[j]) * 0x100000001b3u;
        if (tg_tokens_has_context(t) && n > 1)
            h = (h ^ (uint64_t)tg_tokens_count_targets(t, first, n - 1)) * 0x100000001b3u;
    }
    return h;
}
