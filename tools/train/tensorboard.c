/* Event files of TensorBoard: records of the TFRecord format, each a message Event in the encoding of Protocol Buffers
 * (tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto). */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "train/train.h"

struct event_file {
    FILE *f;
    char path[4096];
    uint32_t table[256]; /* of CRC-32C */
};

/* ---- Records ---- */

static void fill_table(uint32_t table[256]) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0x82F63B78u ^ c >> 1 : c >> 1;
        table[i] = c;
    }
}

/* Returns the CRC-32C of n bytes, masked as in TFRecord files: the plain CRC of bytes that end with their own CRC would
 * always be the same. */
static uint32_t masked_sum(const event_file *f, const unsigned char *p, size_t n) {
    uint32_t c = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++) c = f->table[(c ^ p[i]) & 255] ^ c >> 8;
    c = ~c;
    return (c >> 15 | c << 17) + 0xA282EAD8u;
}

static void put_little(unsigned char *to, uint64_t v, int n) {
    for (int i = 0; i < n; i++) to[i] = (unsigned char)(v >> (8 * i));
}

/* ---- Messages ---- */

enum { MOST = 1024, VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

typedef struct message {
    unsigned char bytes[MOST];
    size_t n;
} message;

static void put_varint(message *m, uint64_t v) {
    for (; v >= 128; v >>= 7) m->bytes[m->n++] = (unsigned char)(v | 128);
    m->bytes[m->n++] = (unsigned char)v;
}

static void put_key(message *m, unsigned field, unsigned kind) { put_varint(m, field << 3 | kind); }

static void put_bytes(message *m, unsigned field, const void *p, size_t n) {
    put_key(m, field, BYTES);
    put_varint(m, n);
    memcpy(m->bytes + m->n, p, n);
    m->n += n;
}

static void put_double(message *m, unsigned field, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(m, field, FIXED64);
    put_little(m->bytes + m->n, bits, 8);
    m->n += 8;
}

static void put_float(message *m, unsigned field, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(m, field, FIXED32);
    put_little(m->bytes + m->n, bits, 4);
    m->n += 4;
}

/* Begins an Event: wall_time is field 1, step is field 2. */
static message event_at(int64_t step) {
    struct timespec now;
    message m = {.n = 0};
    clock_gettime(CLOCK_REALTIME, &now);
    put_double(&m, 1, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    put_key(&m, 2, VARINT);
    put_varint(&m, (uint64_t)step);
    return m;
}

/* Adds a Summary.Value to a Summary: tag is its field 1, simple_value its field 2. */
static void add_value(message *summary, const char *tag, double v) {
    message value = {.n = 0};
    if (isnan(v)) return;
    put_bytes(&value, 1, tag, strlen(tag));
    put_float(&value, 2, (float)v);
    put_bytes(summary, 1, value.bytes, value.n);
}

/* ---- The file ---- */

static bool write_failed(const event_file *f) { return fail("cannot write '%s': %s", f->path, strerror(errno)), false; }

/* Appends a record, and hands it to the system, so that TensorBoard shows the newest step. */
static bool write_event(event_file *f, const message *m) {
    unsigned char head[12], tail[4];
    put_little(head, m->n, 8);
    put_little(head + 8, masked_sum(f, head, 8), 4);
    put_little(tail, masked_sum(f, m->bytes, m->n), 4);
    bool good = fwrite(head, 1, 12, f->f) == 12 && fwrite(m->bytes, 1, m->n, f->f) == m->n &&
                fwrite(tail, 1, 4, f->f) == 4 && fflush(f->f) == 0;
    return good || write_failed(f);
}

/* Writes what begins a file: the version (field 3) and, if the run continues, a SessionLog (field 7) with status START
 * (field 1, value 1), after which TensorBoard drops values of the same or later steps that an earlier file has. */
static bool write_start(event_file *f, int64_t done) {
    static const char version[] = "brain.Event:2";
    static const unsigned char start[] = {1 << 3 | VARINT, 1};
    message first = event_at(0), again = event_at(done + 1);
    put_bytes(&first, 3, version, sizeof version - 1);
    put_bytes(&again, 7, start, sizeof start);
    return write_event(f, &first) && (!done || write_event(f, &again));
}

event_file *event_file_open(const char *dir, int64_t done) {
    char host[256] = "host";
    event_file *f = calloc(1, sizeof *f);
    if (!f) return fail("no memory for the event file of --tensorboard"), NULL;
    fill_table(f->table);
    gethostname(host, sizeof host - 1);
    int n = snprintf(f->path, sizeof f->path, "%s/events.out.tfevents.%010lld.%s.%ld.0", dir, (long long)time(NULL),
                     host, (long)getpid());
    bool good = mkdir(dir, 0777) == 0 || errno == EEXIST;
    if (!good)
        fail("cannot make the directory '%s' of --tensorboard: %s", dir, strerror(errno));
    else if (n >= (int)sizeof f->path)
        good = (fail("the path of --tensorboard '%s' is too long", dir), false);
    else
        good = (f->f = fopen(f->path, "wxe")) != NULL || write_failed(f);
    if (good && write_start(f, done)) return f;
    event_file_close(f);
    return NULL;
}

bool event_file_add(event_file *f, int64_t step, const step_result *r, double tokens_per_s, double val_loss) {
    message summary = {.n = 0}, event = event_at(step);
    add_value(&summary, "loss/train", r->loss);
    add_value(&summary, "loss/validation", val_loss);
    add_value(&summary, "grad_norm", r->grad_norm);
    add_value(&summary, "lr", r->lr);
    add_value(&summary, "loss_scale", r->loss_scale);
    add_value(&summary, "tokens_per_s", tokens_per_s);
    add_value(&summary, "peak_bytes", (double)r->peak_bytes);
    put_bytes(&event, 5, summary.bytes, summary.n);
    return write_event(f, &event);
}

void event_file_close(event_file *f) {
    if (!f) return;
    if (f->f) fclose(f->f);
    free(f);
}
