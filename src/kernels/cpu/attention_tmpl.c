/* Attention without a matrix of all scores. For a block of queries, the kernel goes through the tiles of keys, and
 * keeps a running maximum and sum for each query, from which the softmax follows (Milakov and Gimelshein, arXiv
 * 1805.02867; Dao et al., arXiv 2205.14135). */
#include "kernels/cpu/few_queries.h"
#include "kernels/cpu/scores.h"

/* Updates the running maximum and sum with the scores t of a tile, and replaces each score by exp(score - maximum). */
static void pass_tile(running *s, int64_t keys, int64_t lanes, real *restrict t) {
    real ref[TG_QUERIES], max[TG_QUERIES], sum[TG_QUERIES];
    for (int64_t i = 0; i < lanes; i++)
        max[i] = s->max[i];
    for (int64_t j = 0; j < keys; j++)
        for (int64_t i = 0; i < lanes; i++)
            max[i] = t[j * lanes + i] > max[i] ? t[j * lanes + i] : max[i];
    for (int64_t i = 0; i < lanes; i++) {
        ref[i] = max[i] == -(real)INFINITY ? 0 : max[i]; /* no visible key so far: avoids -inf - -inf */
        s->rescale[i] = real_exp(s->max[i] - ref[i]);
        s->max[i] = max[i];
        sum[i] = s->sum[i] * s->rescale[i];
    }
    for (int64_t j = 0; j < keys; j++)
        for (int64_t i = 0; i < lanes; i++) {
            real e = real_exp(t[j * lanes + i] - ref[i]);
            t[j * lanes + i] = e;
            sum[i] += e;
        }
    for (int64_t i = 0; i < lanes; i++)
        s->sum[i] = sum[i];
}

/* Adds the sink (tg_attention_args) to the running maximum and sum, like the score of one more key whose value is 0,
 * and rescales the results o. */
static void add_sink(const tg_attention_job *job, const queries *q, running *s, real *o) {
    real sink = sink_of(job, q->h);
    for (int64_t i = 0; i < q->n; i++) {
        real max = sink > s->max[i] ? sink : s->max[i], ref = max == -(real)INFINITY ? 0 : max;
        real rescale = real_exp(s->max[i] - ref);
        s->sum[i] = s->sum[i] * rescale + real_exp(sink - ref);
        s->max[i] = max;
        for (int64_t j = 0; j < job->dv; j++)
            o[i * job->pad_v + j] *= rescale;
    }
}

/* Divides the results by their sums and stores them, and stores top and mass if they are wanted. A query that sees no
 * key gets zeros. */
static void finish(const tg_attention_job *job, const queries *q, const running *s, real *o) {
    matrix out = matrix_of(&job->a->out, q->b, q->h);
    for (int64_t i = 0; i < q->n; i++) {
        real *row = o + i * job->pad_v, scale = s->sum[i] == 0 ? 0 : 1 / s->sum[i];
        for (int64_t j = 0; j < job->dv; j++)
            row[j] *= scale;
        matrix_put(&out, q->i + i, row, false);
        if (job->a->top.data) {
            *row_at(&job->a->top, q, i) = s->max[i];
            *row_at(&job->a->mass, q, i) = s->sum[i];
        }
    }
}

/* Sets the state and the results o of a block to those before the first tile. */
static void begin(const tg_attention_job *job, const queries *q, running *run, real *o) {
    fill(run->max, q->lanes, -(real)INFINITY);
    fill(run->sum, q->lanes, 0);
    fill(o, q->n * job->pad_v, 0);
}

/* Multiplies the results of the tiles before this one by run->rescale. */
static void rescale(const tg_attention_job *job, const queries *q, const running *run, real *o) {
    for (int64_t i = 0; i < q->n; i++)
        for (int64_t j = 0; j < job->pad_v; j++)
            o[i * job->pad_v + j] *= run->rescale[i];
}

static void end(const tg_attention_job *job, const queries *q, running *run, real *o) {
    if (job->a->sink.data)
        add_sink(job, q, run, o);
    finish(job, q, run, o);
}

/* Computes the output of one block of queries. */
static void forward_block(const tg_attention_job *job, const queries *q, real *scratch) {
    real *qt = carve(&scratch, job->dk * TG_QUERIES), *s = carve(&scratch, TG_KEYS * TG_QUERIES);
    real *keep = carve(&scratch, TG_KEYS * TG_QUERIES), *o = carve(&scratch, TG_QUERIES * job->pad_v);
    real *kbuf = carve(&scratch, TG_KEYS * job->pad_k), *vbuf = carve(&scratch, TG_KEYS * job->pad_v);
    real *m = job->a->mask.data ? carve(&scratch, TG_KEYS * TG_QUERIES) : NULL;
    int64_t g = q->h / (job->heads / job->groups), lanes = q->lanes;
    matrix mq = matrix_of(&job->a->q, q->b, q->h);
    matrix mk = matrix_of(&job->a->k, q->b, g), mv = matrix_of(&job->a->v, q->b, g);
    block_transpose(block_rows(&mq, q->i, q->n, kbuf), q->n, job->dk, lanes, (real)job->a->scale, qt);
    running run;
    begin(job, q, &run, o);
    for (int64_t key = q->begin; key < q->end; key += TG_KEYS) {
        int64_t n = q->end - key < TG_KEYS ? q->end - key : TG_KEYS;
        if (m && !mask_load(job, q, key, n, m))
            continue;
        fetch_rows(&mk, key, n);
        fetch_rows(&mv, key, n);
        block k = block_rows(&mk, key, n, kbuf), v = block_rows(&mv, key, n, vbuf);
        mm(n, lanes, job->dk, (operand){k.at, k.ld, 1}, qt, lanes, s, lanes, false);
        if (job->a->softcap > 0)
            cap_scores(n * lanes, (real)job->a->softcap, s);
        if (m)
            mask_add(n * lanes, m, s);
        hide_tile(job, q, key, n, s);
        pass_tile(&run, n, lanes, s);
        if (key > q->begin)
            rescale(job, q, &run, o);
        if (job->a->dropout > 0) {
            keep_tile(job, q, key, n, keep);
            for (int64_t i = 0; i < n * lanes; i++)
                s[i] *= keep[i];
        }
        mm(q->n, job->pad_v, n, (operand){s, 1, lanes}, v.at, v.ld, o, job->pad_v, true);
    }
    end(job, q, &run, o);
}

/* The same for a block of few queries. */
static void few_block(const tg_attention_job *job, const queries *q, real *scratch) {
    real *t = carve(&scratch, job->pad_k * TG_KEYS), *rows = carve(&scratch, TG_FEW_QUERIES * job->pad_k);
    real *s = carve(&scratch, TG_FEW_QUERIES * TG_KEYS), *o = carve(&scratch, TG_FEW_QUERIES * job->pad_v);
    real *kbuf = carve(&scratch, TG_KEYS * job->pad_k), *vbuf = carve(&scratch, TG_KEYS * job->pad_v);
    int64_t g = q->h / (job->heads / job->groups);
    matrix mq = matrix_of(&job->a->q, q->b, q->h);
    matrix mk = matrix_of(&job->a->k, q->b, g), mv = matrix_of(&job->a->v, q->b, g);
    block x = block_rows(&mq, q->i, q->n, kbuf);
    for (int64_t i = 0; i < q->n; i++)
        for (int64_t d = 0; d < job->dk; d++)
            rows[i * job->pad_k + d] = x.at[i * x.ld + d] * (real)job->a->scale;
    running run;
    begin(job, q, &run, o);
    for (int64_t key = q->begin; key < q->end; key += TG_KEYS) {
        int64_t n = q->end - key < TG_KEYS ? q->end - key : TG_KEYS;
        fetch_rows(&mk, key, n);
        fetch_rows(&mv, key, n);
        block v = block_rows(&mv, key, n, vbuf);
        int64_t lanes = few_scores(job, q, rows, block_rows(&mk, key, n, kbuf), n, t, s);
        for (int64_t i = 0; i < q->n; i++) {
            few_hide(job, q, i, key, n, lanes, s + i * TG_KEYS);
            few_pass(&run, i, lanes, s + i * TG_KEYS);
        }
        if (key > q->begin)
            rescale(job, q, &run, o);
        mm(q->n, job->pad_v, n, (operand){s, TG_KEYS, 1}, v.at, v.ld, o, job->pad_v, true);
    }
    end(job, q, &run, o);
}

/* Runs ranges [begin, end) of units. A unit is a query block of a head. In causal attention the first blocks of a head
 * see few keys and the last see many; the order alternates between them, so that all ranges have about the same
 * work. */
void TG_K(attention)(void *arg, int64_t begin, int64_t end) {
    const tg_attention_job *job = arg;
    real *scratch = (real *)job->scratch + begin * job->slice;
    int64_t last = tg_attention_unit(job, end);
    for (int64_t u = tg_attention_unit(job, begin); u < last; u++) {
        int64_t head = u / job->blocks, t = u % job->blocks;
        queries q;
        queries_of(job, head / job->heads, head % job->heads, t % 2 ? job->blocks - 1 - t / 2 : t / 2, &q);
        if (is_few(job, &q))
            few_block(job, &q, scratch);
        else
            forward_block(job, &q, scratch);
    }
}
