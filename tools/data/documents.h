/* Documents, one after the other, from files of text and JSONL. */
#ifndef TAPEGRAD_DOCUMENTS_H
#define TAPEGRAD_DOCUMENTS_H

#include "data/words.h"

#define DOCUMENT_KINDS "auto|file|line|jsonl" /* the first four values of document_kind */
#define DOCUMENT_KINDS_HELP                                                                                            \
    "what is a document: each file; each line that is not empty; the text of each object of JSONL; auto: jsonl for "   \
    "FILE.jsonl, also compressed, else file"

typedef enum document_kind {
    DOCUMENTS_AUTO,
    DOCUMENTS_FILE,
    DOCUMENTS_LINE,
    DOCUMENTS_JSONL,
    DOCUMENTS_BROKEN, /* JSONL for FILE.jsonl, else each line together with its line break */
} document_kind;

/* Returns whether the name of the file is that of JSONL, which may be compressed. */
bool is_jsonl(const char *path);

/* Returns whether one of the files is read as JSONL, whose texts have a key (--field). */
bool documents_have_field(const names *files, document_kind kind);

typedef struct document {
    char *text; /* n bytes without a zero at the end; malloc's */
    size_t n;
    const char *path; /* valid as long as the reader's files are; "standard input" for - */
    int64_t line;     /* from 1; 0: the document is a whole file */
} document;

typedef struct documents documents;

/* Prepares to read the files, which must outlive the reader. field: the key of the text in JSONL. NULL after printing
 * that there is no memory. */
documents *documents_open(const names *files, document_kind kind, const char *field);
void documents_close(documents *d);
/* Reads the next document that is not empty. Returns 1, 0 at the end, and -1 after printing what is wrong. The caller
 * frees out->text if the result is 1, and must not otherwise. */
int documents_next(documents *d, document *out);
/* Returns the number of bytes read from files so far, before decompression. */
int64_t documents_bytes(const documents *d);

#endif
