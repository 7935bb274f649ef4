/* Reads files and standard input, and decompresses gzip (zlib) and zstd (libzstd). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TG_HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef TG_HAVE_ZSTD
#include <zstd.h>
#endif

#include "common/program.h"
#include "data/stream.h"

enum { RAW = 1 << 17 }; /* bytes that are read from the file at once */

typedef enum packing { PLAIN, GZIP, ZSTD } packing;

struct data_stream {
    const char *path;
    FILE *file;
    packing packing;
    bool open_frame; /* a compressed member or frame has begun and not ended */
    int64_t bytes;
    size_t at, filled; /* of raw: what has been used, and what has been read */
#ifdef TG_HAVE_ZLIB
    z_stream gzip;
#endif
#ifdef TG_HAVE_ZSTD
    ZSTD_DStream *zstd;
#endif
    char raw[RAW];
};

static packing packing_of(const char *bytes, size_t n) {
    if (n >= 3 && !memcmp(bytes, "\x1f\x8b\x08", 3)) return GZIP;
    if (n >= 4 && !memcmp(bytes, "\x28\xb5\x2f\xfd", 4)) return ZSTD;
    bool skippable = n >= 4 && (bytes[0] & 0xf0) == 0x50 && !memcmp(bytes + 1, "\x2a\x4d\x18", 3);
    return skippable ? ZSTD : PLAIN; /* pzstd begins with a frame that is skipped */
}

bool is_compressed(const char *path) {
    char head[4];
    FILE *f = not_regular(path) ? NULL : fopen(path, "re");
    size_t n = f ? fread(head, 1, sizeof head, f) : 0;
    if (f) fclose(f);
    return packing_of(head, n) != PLAIN;
}

/* ---- The bytes of the file ---- */

/* Reads more bytes if all have been used. Returns false after printing what is wrong. */
static bool refill(data_stream *s) {
    if (s->at < s->filled) return true;
    s->at = 0;
    s->filled = fread(s->raw, 1, RAW, s->file);
    s->bytes += (int64_t)s->filled;
    return !ferror(s->file) || (fail("cannot read '%s': %s", s->path, strerror(errno)), false);
}

static int64_t read_plain(data_stream *s, char *out, size_t n) {
    size_t done = 0;
    while (done < n) {
        if (!refill(s)) return -1;
        size_t here = s->filled - s->at < n - done ? s->filled - s->at : n - done;
        if (!here) break;
        memcpy(out + done, s->raw + s->at, here);
        s->at += here;
        done += here;
    }
    return (int64_t)done;
}

/* ---- Compressed bytes ---- */

/* Prints that the compressed bytes are damaged, and where. Returns false. */
static bool damaged(const data_stream *s, const char *why) {
    return fail("'%s' is damaged: %s, near byte %lld", s->path, why,
                (long long)(s->bytes - (int64_t)(s->filled - s->at))),
           false;
}

#ifdef TG_HAVE_ZLIB
/* Unpacks bytes of s->raw to out, which has room for *n bytes. Sets *n to the number of bytes written. */
static bool unpack_gzip(data_stream *s, char *out, size_t *n) {
    z_stream *z = &s->gzip;
    size_t room = *n < 1u << 30 ? *n : 1u << 30;
    if (!s->open_frame && inflateReset(z) != Z_OK) return damaged(s, "zlib cannot begin again");
    z->next_in = (unsigned char *)s->raw + s->at;
    z->avail_in = (unsigned)(s->filled - s->at);
    z->next_out = (unsigned char *)out;
    z->avail_out = (unsigned)room;
    int status = inflate(z, Z_NO_FLUSH);
    s->at = s->filled - z->avail_in;
    *n = room - z->avail_out;
    s->open_frame = status != Z_STREAM_END;
    if (status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR) return true;
    return damaged(s, z->msg ? z->msg : "zlib cannot unpack it");
}
#endif

#ifdef TG_HAVE_ZSTD
static bool unpack_zstd(data_stream *s, char *out, size_t *n) {
    ZSTD_inBuffer from = {s->raw, s->filled, s->at};
    ZSTD_outBuffer to = {out, *n, 0};
    size_t left = ZSTD_decompressStream(s->zstd, &to, &from);
    s->at = from.pos;
    *n = to.pos;
    s->open_frame = left != 0;
    return !ZSTD_isError(left) || damaged(s, ZSTD_getErrorName(left));
}
#endif

static bool unpack(data_stream *s, char *out, size_t *n) {
#ifdef TG_HAVE_ZLIB
    if (s->packing == GZIP) return unpack_gzip(s, out, n);
#endif
#ifdef TG_HAVE_ZSTD
    if (s->packing == ZSTD) return unpack_zstd(s, out, n);
#endif
    (void)out;
    *n = 0;
    return damaged(s, "it is compressed");
}

/* Skips zeros after the last member, as gzip does: files on magnetic tape are padded with zeros. Fails if other bytes
 * follow them. */
static bool skip_padding(data_stream *s) {
    int64_t zeros = 0;
    for (; s->at < s->filled && !s->raw[s->at]; zeros++) {
        s->at++;
        if (!refill(s)) return false;
    }
    if (zeros && s->at < s->filled) return damaged(s, "other bytes follow the zeros after its end");
    if (zeros) warn("'%s' ends with %lld zero bytes, which are ignored", s->path, (long long)zeros);
    return true;
}

/* Reads up to n decompressed bytes. A file may have several members or frames, one after the other. */
static int64_t read_packed(data_stream *s, char *out, size_t n) {
    size_t done = 0;
    while (done < n) {
        if (!refill(s)) return -1;
        if (s->packing == GZIP && !s->open_frame && !skip_padding(s)) return -1;
        bool end = s->at == s->filled;
        if (end && !s->open_frame) break;
        size_t here = n - done;
        if (!unpack(s, out + done, &here)) return -1;
        done += here;
        if (end && !here) return damaged(s, "it ends too early"), -1;
    }
    return (int64_t)done;
}

int64_t stream_read(data_stream *s, char *out, size_t n) {
    return s->packing == PLAIN ? read_plain(s, out, n) : read_packed(s, out, n);
}

/* ---- Opening ---- */

static bool refuse_packing(const data_stream *s) {
    const char *how = s->packing == GZIP ? "gzip" : "zstd", *library = s->packing == GZIP ? "zlib" : "libzstd";
    return fail("'%s' is compressed by %s, and this program was built without %s: decompress it first (%s)", s->path,
                how, library, s->packing == GZIP ? "gunzip" : "unzstd"),
           false;
}

static bool open_packing(data_stream *s) {
    if (!refill(s)) return false;
    s->packing = packing_of(s->raw, s->filled);
    s->open_frame = s->packing != PLAIN;
    bool known = s->packing == PLAIN, good = known;
#ifdef TG_HAVE_ZLIB
    if (s->packing == GZIP) known = true, good = inflateInit2(&s->gzip, 15 + 16) == Z_OK; /* 16: gzip's header */
#endif
#ifdef TG_HAVE_ZSTD
    if (s->packing == ZSTD) known = true, good = (s->zstd = ZSTD_createDStream()) != NULL;
#endif
    if (!known) return refuse_packing(s);
    return good || (fail("no memory to decompress '%s'", s->path), false);
}

data_stream *stream_open(const char *path) {
    data_stream *s = calloc(1, sizeof *s);
    if (!s) return fail("no memory to read '%s'", path), NULL;
    bool standard = !strcmp(path, "-");
    s->path = standard ? "standard input" : path;
    s->file = standard ? stdin : open_regular(path);
    if (s->file && open_packing(s)) return s;
    stream_close(s);
    return NULL;
}

void stream_close(data_stream *s) {
    if (!s) return;
#ifdef TG_HAVE_ZLIB
    if (s->packing == GZIP) inflateEnd(&s->gzip);
#endif
#ifdef TG_HAVE_ZSTD
    ZSTD_freeDStream(s->zstd);
#endif
    if (s->file && s->file != stdin) fclose(s->file);
    free(s);
}

bool stream_is_compressed(const data_stream *s) { return s->packing != PLAIN; }
int64_t stream_bytes(const data_stream *s) { return s->bytes; }
