/* Finds the windows of pools, shuffles them, and blends several pools. */
#include <stdlib.h>

#include "common/program.h"
#include "data/sequences.h"

/* ---- Windows of documents that are padded ---- */

/* Adds the windows of the document of tokens [first, end). Its last token has no target, so no window begins there. */
static bool add_windows(sequence_pool *p, int64_t *capacity, int64_t first, int64_t end) {
    for (int64_t at = first; at + 1 < end; at += p->seq_len) {
        if (p->windows == *capacity) {
            int64_t *more = realloc(p->start, (size_t)(*capacity = 2 * *capacity + 1024) * sizeof *more);
            if (!more) return fail("no memory for more than %lld windows", (long long)p->windows), false;
            p->start = more;
        }
        p->start[p->windows++] = at;
        p->read += end - at < p->seq_len ? end - at : p->seq_len;
    }
    return true;
}

/* Sets *run to the first run of the next document. Returns false at the end of the tokens, and after an error, which is
 * recorded in their context. */
static bool next_document(tg_tokens *t, tg_token_run *run) {
    int64_t document = run->document, all = tg_tokens_count(t);
    while (run->stop < all)
        if (tg_tokens_next_run(t, run) != TG_OK)
            return false;
        else if (run->document != document)
            return true;
    return false;
}

/* Adds the windows of all documents that begin in the part. */
static bool find_documents(sequence_pool *p, tg_tokens *t) {
    tg_token_run run;
    int64_t capacity = 0, end = p->first + p->tokens;
    if (tg_tokens_find_run(t, p->first ? p->first - 1 : 0, &run) != TG_OK) return false;
    bool there = !p->first || next_document(t, &run); /* a document that begins before the part is not in it */
    while (there && run.first < end) {
        int64_t first = run.first;
        there = next_document(t, &run);
        if (!add_windows(p, &capacity, first, there ? run.first : run.stop)) return false;
    }
    return true;
}

/* ---- Pools ---- */

bool pool_open(sequence_pool *p, tg_tokens *t, int64_t first, int64_t tokens, int64_t seq_len,
               tg_token_windows windows) {
    *p = (sequence_pool){.first = first, .tokens = tokens, .seq_len = seq_len, .epoch = -1};
    if (!tokens) return true;
    if (windows == TG_WINDOWS_PADDED) return find_documents(p, t);
    p->windows = (tokens - 1) / seq_len;
    p->read = p->windows * seq_len;
    return true;
}

bool pool_shuffle(sequence_pool *p, uint64_t seed) {
    p->seed = seed;
    p->shuffled = malloc((size_t)p->windows * sizeof *p->shuffled + 1);
    return p->shuffled || (fail("no memory to shuffle %lld windows", (long long)p->windows), false);
}

void pool_close(sequence_pool *p) {
    free(p->start);
    free(p->shuffled);
}

int64_t pool_at(const sequence_pool *p, int64_t i) { return p->start ? p->start[i] : p->first + i * p->seq_len; }

static void shuffle(sequence_pool *p, int64_t epoch) {
    uint64_t key = random_at(p->seed, (uint64_t)epoch);
    for (int64_t i = 0; i < p->windows; i++) p->shuffled[i] = i;
    for (int64_t i = p->windows - 1; i > 0; i--) {
        int64_t j = (int64_t)(random_at(key, (uint64_t)i) % (uint64_t)(i + 1));
        int64_t w = p->shuffled[i];
        p->shuffled[i] = p->shuffled[j];
        p->shuffled[j] = w;
    }
    p->epoch = epoch;
}

int64_t pool_shuffled(sequence_pool *p, int64_t n) {
    int64_t epoch = n / p->windows;
    if (epoch != p->epoch) shuffle(p, epoch);
    return pool_at(p, p->shuffled[n % p->windows]);
}

/* ---- Blends ---- */

/* Returns the index of the pool that sequence number `at` comes from: the pool that lacks most of its share. */
static int choose(const sequence_pool *pools, int n, int64_t at) {
    int best = 0;
    double behind = -1;
    for (int i = 0; i < n; i++) {
        double by = pools[i].weight * (double)(at + 1) - (double)pools[i].taken;
        if (by > behind) best = i, behind = by;
    }
    return best;
}

int64_t pools_next(sequence_pool *pools, int n, int64_t *at) {
    sequence_pool *p = &pools[choose(pools, n, (*at)++)];
    return pool_shuffled(p, p->taken++);
}

void pools_seek(sequence_pool *pools, int n, int64_t *at, int64_t to) {
    if (n == 1) *at = pools[0].taken = to;
    for (int i = 0; i < n && to < *at; i++) pools[i].taken = 0;
    if (to < *at) *at = 0;
    while (*at < to) pools[choose(pools, n, (*at)++)].taken++;
}
