/* seal STATE.json: gives a state that was changed the checksum that the program would have given it: so what stands
 * behind the check is reached. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <tapegrad/io.h>

int main(int argc, char **argv) {
    enum { MOST = 1 << 20, DIGITS = 16 };
    static const char key[] = "\"xxh64\": \"";
    static char text[MOST];
    FILE *f = argc == 2 ? fopen(argv[1], "r+") : NULL;
    size_t n = f ? fread(text, 1, MOST, f) : 0;
    char *at = n ? memmem(text, n, key, sizeof key - 1) : NULL, sum[DIGITS + 1];
    if (!at) return fprintf(stderr, "seal: no state with a checksum\n"), 1;
    at += sizeof key - 1;
    memset(at, '0', DIGITS);
    snprintf(sum, sizeof sum, "%016" PRIx64, tg_checksum(text, n));
    memcpy(at, sum, DIGITS);
    rewind(f);
    bool good = fwrite(text, 1, n, f) == n;
    return fclose(f) || !good;
}
