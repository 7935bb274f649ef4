/* `tapegrad train --record`: writes the ops of a step to a file as they run. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tapegrad/comm.h>
#include <tapegrad/explain.h>
#include <tapegrad/extend.h>

#include "common/record.h"
#include "io/file.h"

struct recorder {
    char *path, *part; /* the file's name when it is complete, and its temporary name until then */
    FILE *f;
    tg_ctx *ctx;
    int rank, ranks;
    int64_t kept, ops;    /* the most elements to record of a tensor (0: all); number of ops recorded */
    uint64_t hash;        /* of the lines written */
    unsigned char *bytes; /* the current tensor's bytes */
    char *hex;            /* the recorded elements of the tensor, in hexadecimal */
    size_t capacity;      /* of bytes; hex has twice as many */
};

/* ---- The file ---- */

static tg_status write_failed(const recorder *r, const char *path) {
    return tg_ctx_fail(r->ctx, TG_ERR_IO, "cannot write '%s': %s", path, strerror(errno));
}

/* Writes the JSON object as a line of the file, and frees it. */
static tg_status write_line(recorder *r, json_t *line) {
    char *text = json_text(line, JSON_COMPACT);
    json_decref(line);
    size_t n = text ? strlen(text) : 0;
    char *whole = text ? realloc(text, n + 2) : NULL;
    if (!whole) {
        free(text);
        return tg_ctx_fail(r->ctx, TG_ERR_MEMORY, "no memory for a line of '%s'", r->part);
    }
    memcpy(whole + n, "\n", 2);
    r->hash = record_hash(r->hash, whole, n + 1);
    bool written = fwrite(whole, 1, n + 1, r->f) == n + 1;
    free(whole);
    return written ? TG_OK : write_failed(r, r->part);
}

static json_t *hash_text(uint64_t hash) {
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return json_string(text);
}

/* Opens a temporary file. Its name has the process id, because another run may write a record of the same name, and a
 * number, because a killed run with this process id may have left one. */
static bool open_part(recorder *r) {
    for (int i = 0; i < 1000; i++) {
        sprintf(r->part, "%s.part-%ld-%d", r->path, (long)getpid(), i);
        r->f = fopen(r->part, "wxe");
        if (r->f || errno != EEXIST) break;
    }
    return r->f != NULL;
}

recorder *recorder_open(const char *path, int64_t kept, tg_ctx *ctx, tg_comm *world) {
    size_t n = strlen(path) + 64;
    recorder *r = calloc(1, sizeof *r);
    if (r) *r = (recorder){.ctx = ctx, .kept = kept, .path = malloc(n), .part = malloc(n)};
    if (!r || !r->path || !r->part) {
        recorder_free(r);
        fail("no memory for the record of a step");
        return NULL;
    }
    r->rank = tg_comm_rank(world);
    r->ranks = tg_comm_size(world);
    snprintf(r->path, n, r->ranks > 1 ? "%s.%d" : "%s", path, r->rank);
    const char *is = not_regular(r->path);
    if (!is && open_part(r)) return r;
    if (is)
        fail("cannot write '%s': it is %s, expected a regular file or a new one", r->path, is);
    else
        fail("cannot write '%s': %s", r->path, strerror(errno));
    recorder_free(r);
    return NULL;
}

void recorder_free(recorder *r) {
    if (!r) return;
    if (r->f) {
        fclose(r->f);
        remove(r->part);
    }
    free(r->path);
    free(r->part);
    free(r->bytes);
    free(r->hex);
    free(r);
}

/* ---- Tensors ---- */

/* Makes the buffers large enough for a tensor of n bytes. */
static bool reserve(recorder *r, size_t n) {
    if (n <= r->capacity) return true;
    free(r->bytes);
    free(r->hex);
    r->bytes = malloc(n);
    r->hex = malloc(2 * n + 1);
    r->capacity = r->bytes && r->hex ? n : 0;
    if (r->capacity) return true;
    tg_ctx_fail(r->ctx, TG_ERR_MEMORY, "no memory for a tensor of %zu bytes in '%s'", n, r->part);
    return false;
}

/* Returns in hexadecimal the elements 0, every, 2 * every and so on of the n elements in r->bytes. size: bytes of an
 * element. */
static json_t *values_text(recorder *r, int64_t n, int64_t every, size_t size) {
    static const char digits[] = "0123456789abcdef";
    size_t at = 0;
    for (int64_t i = 0; i < n; i += every)
        for (size_t b = 0; b < size; b++) {
            unsigned char byte = r->bytes[(size_t)i * size + b];
            r->hex[at++] = digits[byte >> 4];
            r->hex[at++] = digits[byte & 15];
        }
    return json_stringn(r->hex, at);
}

static json_t *shape_json(const tg_tensor *x) {
    json_t *shape = json_array();
    for (int i = 0; i < tg_ndim(x); i++) json_array_append_new(shape, json_integer(tg_dim(x, i)));
    return shape;
}

/* Describes the tensor x: dtype, shape, and, if x has bytes now, a hash and (if `values` is true) elements. named: the
 * tensor whose name is recorded, which is x, or the tensor that x is the gradient of. */
static json_t *tensor_json(recorder *r, tg_tensor *x, const tg_tensor *named, bool values) {
    if (!tg_is_alive(x)) return json_null();
    json_t *to = json_pack("{s:s, s:o}", "dtype", tg_dtype_name(tg_dtype_of(x)), "shape", shape_json(x));
    if (*tg_name(named)) json_object_set_new(to, "name", json_string(tg_name(named)));
    size_t size = (size_t)tg_dtype_bits(tg_dtype_of(x)) / 8, bytes = (size_t)tg_numel(x) * size;
    if (tg_storage_state_of(x) == TG_DISCARDED || !reserve(r, bytes + 1)) return to;
    if (tg_read(x, r->bytes, bytes) != TG_OK) return to;
    json_object_set_new(to, "hash", hash_text(record_hash(0, r->bytes, bytes)));
    if (!values) return to;
    int64_t every = record_distance(tg_numel(x), r->kept);
    json_object_set_new(to, "every", json_integer(every));
    json_object_set_new(to, "values", values_text(r, tg_numel(x), every, size));
    return to;
}

static json_t *tensors_json(recorder *r, tg_tensor *const *x, tg_tensor *const *named, int n, bool values) {
    json_t *all = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(all, tensor_json(r, x[i], named[i], values));
    return all;
}

/* ---- The step ---- */

/* Observes the tape: writes the line of each op. */
static tg_status write_op(void *user, tg_tape *t, const tg_op_event *s) {
    recorder *r = user;
    char site[512];
    tg_op_event_site(s, site, sizeof site);
    json_t *in =
        s->backward ? tensors_json(r, s->gout, s->out, s->n_out, false) : tensors_json(r, s->input, s->input, s->n_in,
                                                                                       false);
    json_t *out =
        s->backward ? tensors_json(r, s->gin, s->input, s->n_in, true) : tensors_json(r, s->out, s->out, s->n_out,
                                                                                      true);
    r->ops++;
    tg_status status =
        write_line(r, json_pack("{s:s, s:s, s:I, s:s, s:o, s:o}", "pass", s->backward ? "backward" : "forward", "op",
                                s->op, "number", (json_int_t)s->number, "site", site, "in", in, "out", out));
    return status == TG_OK ? tg_ctx_status(tg_tape_ctx(t)) : status;
}

void recorder_begin(recorder *r, tg_tape *t, int64_t step) {
    write_line(r, json_pack("{s:i, s:s, s:I, s:i, s:i, s:s, s:s, s:i, s:I}", "tapegrad_record", RECORD_FORMAT,
                            "version", tg_version(), "step", (json_int_t)step, "rank", r->rank, "ranks", r->ranks,
                            "device", tg_ctx_device(r->ctx), "kernels", tg_ctx_isa(r->ctx), "threads",
                            tg_ctx_threads(r->ctx), "kept", (json_int_t)r->kept));
    tg_tape_observe(t, write_op, r);
}

bool recorder_end(recorder *r, tg_tape *t) {
    tg_tape_observe(t, NULL, NULL);
    if (!check(r->ctx)) return false;
    json_t *end = json_pack("{s:I, s:o}", "end", (json_int_t)r->ops, "check", hash_text(r->hash));
    bool whole = write_line(r, end) == TG_OK;
    if (whole && (fflush(r->f) != 0 || fsync(fileno(r->f)) != 0)) whole = write_failed(r, r->part) == TG_OK;
    if (fclose(r->f) != 0 && whole) whole = write_failed(r, r->part) == TG_OK;
    r->f = NULL;
    if (whole && rename(r->part, r->path) != 0) whole = write_failed(r, r->path) == TG_OK;
    if (whole)
        tg_sync_directory_of(r->ctx, r->path);
    else
        remove(r->part);
    return check(r->ctx);
}
