/* Runs while Tapegrad is built: prints files as strings of C, so that the program holds the parts of its pages.
 *
 * embed NAME FILE.. prints the constant NAME, whose text is that of the files one after the other. */
#include <stdio.h>

/* Prints the bytes as initializers of an array, because a string literal may be limited to 4095 characters. */
static int print_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return perror(path), 1;
    int c;
    for (long i = 0; (c = getc(f)) != EOF; i++) printf("%d,%s", c, i % 20 == 19 ? "\n" : "");
    printf("\n");
    int failed = ferror(f);
    fclose(f);
    return failed;
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: embed NAME FILE..\n"), 2;
    printf("const char %s[] = {\n", argv[1]);
    for (int i = 2; i < argc; i++)
        if (print_file(argv[i])) return 1;
    printf("0};\n");
    return fflush(stdout) != 0;
}
