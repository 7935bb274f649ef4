/* The directory in which a case writes its files, and what an undisturbed run leaves there. */
#ifndef TG_TEST_MEMORY_FILES_H
#define TG_TEST_MEMORY_FILES_H

#include <stdbool.h>
#include <stdint.h>

enum { MANY_FILES = 64 };

/* Names of files, below the directory, and digests of their bytes. */
typedef struct file_set {
    int n;
    struct {
        char name[120];
        uint64_t digest;
    } of[MANY_FILES];
} file_set;

void files_open(void);  /* Makes the directory of the program. */
void files_close(void); /* Removes it. */
/* Returns the directory of a run, which is empty. */
const char *files_new(void);
void files_clear(const char *dir);
/* Adds the files that are in dir. */
void files_add(file_set *s, const char *dir);
/* Returns the name of a file of dir that is not in the set, or has other bytes there; NULL: there is none. */
const char *files_other(const file_set *s, const char *dir);

int files_descriptors(void); /* Returns the number of open descriptors. */

#endif
