/* Memory that is freed together, and memory that grows. */
#include "text/memory.h"

typedef struct tg_piece {
    struct tg_piece *next;
    size_t bytes, used; /* used counts this header */
    max_align_t data[];
} tg_piece;

enum { PIECE = 1 << 16 }; /* bytes of a piece, unless one allocation needs more */

static tg_piece *add_piece(tg_pieces *p, size_t bytes) {
    size_t whole = sizeof(tg_piece) + (bytes > PIECE ? bytes : PIECE);
    tg_piece *piece = tg_host_alloc(p->ctx, whole);
    if (!piece) return NULL;
    *piece = (tg_piece){.next = p->last, .bytes = whole, .used = sizeof *piece};
    return p->last = piece;
}

void *tg_pieces_alloc(tg_pieces *p, size_t bytes) {
    size_t rounded = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    tg_piece *piece = p->last && p->last->bytes - p->last->used >= rounded ? p->last : add_piece(p, rounded);
    if (!piece) return NULL;
    void *found = (char *)piece + piece->used;
    piece->used += rounded;
    return found;
}

tg_span tg_pieces_copy(tg_pieces *p, const char *at, size_t n) {
    char *copy = tg_pieces_alloc(p, n + 1);
    if (copy && n) memcpy(copy, at, n);
    return (tg_span){copy, n};
}

void tg_pieces_free(tg_pieces *p) {
    while (p->last) {
        tg_piece *piece = p->last;
        p->last = piece->next;
        tg_host_free(p->ctx, piece, piece->bytes);
    }
}

bool tg_grown(void **items, int64_t *capacity, int64_t count, size_t size) {
    if (count <= *capacity) return true;
    int64_t more = count + count / 2 + 16;
    void *grown = realloc(*items, (size_t)more * size);
    if (!grown) return false;
    *items = grown;
    *capacity = more;
    return true;
}

bool tg_growing_add(tg_growing *g, const char *at, size_t n) {
    if (!tg_grown((void **)&g->at, &g->capacity, g->n + (int64_t)n + 1, 1)) return false;
    if (n) memcpy(g->at + g->n, at, n);
    g->n += (int64_t)n;
    g->at[g->n] = 0;
    return true;
}
