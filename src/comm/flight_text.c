/* The flight recorder as text and JSON, and phrases for errors. A signal handler may call tg_comm_record_dump, so the
 * functions that it uses do not allocate, and do not call printf. */
#include <errno.h>
#include <unistd.h>

#include "base/sites/named_site.h"
#include "base/text.h"
#include "comm/flight_recorder.h"
#include "comm/comm.h"

/* An output: a buffer, which is filled and cut off as snprintf does, or a file descriptor. */
typedef struct sink {
    char *buf;
    size_t n, at; /* size of buf; length of the whole text so far */
    int fd; /* -1: the buffer is used */
    bool safe; /* used in a signal handler: addresses are not looked up */
    tg_ctx *ctx; /* the context of this rank; NULL: none */
    size_t used; /* bytes in part, which are not written to fd yet */
    char part[512];
} sink;

static void flush(sink *s) {
    size_t done = 0;
    while (s->fd >= 0 && done < s->used) {
        ssize_t k = write(s->fd, s->part + done, s->used - done);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) break;
        done += (size_t)k;
    }
    s->used = 0;
}

static void put_char(sink *s, char c) {
    if (s->fd >= 0) {
        if (s->used == sizeof s->part) flush(s);
        s->part[s->used++] = c;
    } else if (s->at + 1 < s->n) {
        s->buf[s->at] = c;
        s->buf[s->at + 1] = 0;
    }
    s->at++;
}

static void put(sink *s, const char *text) {
    for (; *text; text++) put_char(s, *text);
}

static void put_number(sink *s, uint64_t x) {
    char digits[24];
    int n = 0;
    do digits[n++] = (char)('0' + x % 10);
    while (x /= 10);
    while (n) put_char(s, digits[--n]);
}

static void put_signed(sink *s, int64_t x) {
    if (x < 0) put_char(s, '-');
    put_number(s, x < 0 ? -(uint64_t)x : (uint64_t)x);
}

/* Writes a time in microseconds, with one decimal. */
static void put_micro(sink *s, uint64_t nanoseconds) {
    put_number(s, nanoseconds / 1000);
    put_char(s, '.');
    put_char(s, (char)('0' + nanoseconds / 100 % 10));
}

/* Writes a JSON string. Bytes that are not valid UTF-8, where a name was cut within a character, become U+FFFD. */
static void put_json(sink *s, const char *text) {
    const char *wrong = text + tg_utf8_check(text, strlen(text));
    put_char(s, '"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') put_char(s, '\\');
        if (text == wrong) {
            put(s, "\\ufffd");
            wrong = text + 1 + tg_utf8_check(text + 1, strlen(text + 1));
        } else if (c < 32) {
            put(s, "\\u00");
            put_char(s, (char)('0' + c / 16));
            put_char(s, "0123456789abcdef"[c % 16]);
        } else {
            put_char(s, (char)c);
        }
    }
    put_char(s, '"');
}

/* ---- Names ---- */

static const char *reduction_name(const tg_call_entry *entry) {
    static const char *const names[] = {"sum", "max", "min", "avg"};
    return entry->kind == TG_ALL_REDUCE || entry->kind == TG_REDUCE_SCATTER ? names[entry->op & 3] : NULL;
}

static bool has_root(const tg_call_entry *entry) {
    return entry->kind == TG_BROADCAST || entry->kind == TG_GATHER || entry->kind == TG_SCATTER;
}

static bool has_peer(const tg_call_entry *entry) { return entry->kind == TG_SEND || entry->kind == TG_RECV; }

static const char *call_state(const tg_call_entry *entry) {
    static const char *const names[] = {"started", "done", "failed", "?"};
    return names[entry->state & 3];
}

static const char *rank_state(int state) {
    static const char *const names[] = {"awaited", "running", "failed", "returned"};
    return names[state & 3];
}

/* Returns whether this rank can look up a site of slot i's rank. It can look up its own sites and, if the ranks are
 * threads of one process, those of the others, except named ones: their memory ends with the context of their rank. */
static bool can_describe(const tg_recorder *b, int i, uint64_t site) {
    return i == b->me || (b->threads && !tg_named_site_of((const void *)(uintptr_t)site));
}

static void put_site(sink *s, const tg_recorder *b, int i, uint64_t site, void (*write_text)(sink *, const char *)) {
    char text[192];
    if (!s->safe && can_describe(b, i, site)) {
        tg_describe_site(b->ctx, (const void *)(uintptr_t)site, text, sizeof text);
        write_text(s, text);
        return;
    }
    tg_rank_slot_site(&b->rank_slot[i], site, text, sizeof text);
    write_text(s, text);
}

void tg_rank_slot_site(const tg_rank_slot *c, uint64_t site, char *buf, size_t n) {
    for (uint64_t i = 0, at = site >> 2; site && i < 8; i++, at++) {
        if (atomic_load_explicit(&c->sites[at % TG_SITES].site, memory_order_acquire) != site) continue;
        size_t k = strnlen(c->sites[at % TG_SITES].text, TG_SITE_TEXT - 1);
        if (k >= n) k = n - 1;
        memcpy(buf, c->sites[at % TG_SITES].text, k);
        buf[k] = 0;
        return;
    }
    sink s = {.buf = buf, .n = n, .fd = -1};
    buf[0] = 0;
    put(&s, "0x");
    for (int shift = 60; shift >= 0; shift -= 4) put_char(&s, "0123456789abcdef"[site >> shift & 15]);
}

void tg_recorder_site(const tg_recorder *b, int i, uint64_t site, char *buf, size_t n) {
    if (can_describe(b, i, site))
        tg_describe_site(b->ctx, (const void *)(uintptr_t)site, buf, n);
    else
        tg_rank_slot_site(&b->rank_slot[i], site, buf, n);
}

/* ---- Phrases for errors ---- */

void tg_call_entry_text(const tg_call_entry *entry, char *buf, size_t n, size_t *at) {
    const char *op = reduction_name(entry);
    tg_text(buf, n, at, "%s(", tg_collective_name(entry->kind));
    if (entry->kind == TG_REPLAY)
        tg_text(buf, n, at, "%s, digest %llx", tg_count(tg_replay_calls(entry->count), "collective").text,
                (unsigned long long)entry->count >> TG_REPLAY_BITS);
    if (entry->kind < TG_BARRIER)
        tg_text(buf, n, at, "%s, %s", tg_dtype_name(entry->dtype), tg_count(entry->count, "element").text);
    if (op) tg_text(buf, n, at, ", %s", op);
    if (has_root(entry)) tg_text(buf, n, at, ", root %d", entry->root);
    if (has_peer(entry)) tg_text(buf, n, at, ", %s %d", entry->kind == TG_SEND ? "to" : "from", entry->root);
    tg_text(buf, n, at, ")");
}

void tg_recorder_last_call(const tg_recorder *b, int i, char *buf, size_t n, size_t *at) {
    tg_call_entry entry;
    char site[192];
    if (!tg_rank_slot_last(&b->rank_slot[i], &entry)) {
        tg_text(buf, n, at, "it has made no call yet");
        return;
    }
    tg_recorder_site(b, i, entry.site, site, sizeof site);
    tg_text(buf, n, at, "its last call was ");
    tg_call_entry_text(&entry, buf, n, at);
    tg_text(buf, n, at, ", call %llu of %s, %s, from %s", (unsigned long long)entry.sequence, entry.group,
            call_state(&entry), site);
}

/* ---- The recorder as text ---- */

/* The arguments of the functions that print the calls of a replay. */
typedef struct replayed {
    sink *s;
    const tg_recorder *b;
    int i;    /* index of the rank's slot */
    bool any; /* a call has been printed */
} replayed;

static void text_entry(sink *s, const tg_recorder *b, int i, const tg_call_entry *entry);
static void json_entry(sink *s, const tg_recorder *b, int i, const tg_call_entry *entry);

static void replayed_text(void *user, const tg_call_entry *call) {
    replayed *r = user;
    put(r->s, "    ");
    text_entry(r->s, r->b, r->i, call);
}

static void replayed_json(void *user, const tg_call_entry *call) {
    replayed *r = user;
    if (r->any) put(r->s, ", ");
    r->any = true;
    json_entry(r->s, r->b, r->i, call);
}

/* Calls fn for each call of a replay, if the entry is a replay of this rank. The list of its calls is in the memory of
 * the rank that replays, so this rank cannot read the lists of other ranks. A signal handler must not even read the
 * list of this rank. */
static void replayed_of(sink *s, const tg_recorder *b, int i, const tg_call_entry *entry,
                        void (*fn)(void *user, const tg_call_entry *call)) {
    replayed r = {s, b, i, false};
    if (entry->kind == TG_REPLAY && i == b->me && !s->safe && s->ctx) tg_replay_each(s->ctx, entry, fn, &r);
}

/* Writes a call of slot i's rank as a line, and the calls of a replay in lines below it. */
static void text_entry(sink *s, const tg_recorder *b, int i, const tg_call_entry *entry) {
    put(s, "  ");
    put_number(s, entry->index);
    put(s, "  ");
    put(s, entry->group);
    put_char(s, '#');
    put_number(s, entry->sequence);
    put_char(s, ' ');
    put(s, tg_collective_name(entry->kind));
    if (entry->kind == TG_REPLAY) {
        int64_t calls = tg_replay_calls(entry->count);
        put(s, " of "), put_signed(s, calls), put(s, calls == 1 ? " collective" : " collectives");
    }
    if (entry->kind < TG_BARRIER) {
        put_char(s, ' ');
        put(s, tg_dtype_name(entry->dtype));
        put_char(s, '[');
        put_signed(s, entry->count);
        put_char(s, ']');
    }
    if (reduction_name(entry)) put(s, " "), put(s, reduction_name(entry));
    if (has_root(entry)) put(s, " root "), put_signed(s, entry->root);
    if (has_peer(entry)) put(s, entry->kind == TG_SEND ? " to " : " from "), put_signed(s, entry->root);
    put(s, "  ");
    put(s, call_state(entry));
    if (entry->ended) put(s, " in "), put_micro(s, entry->ended - entry->began), put(s, " us");
    put(s, "  ");
    put_site(s, b, i, entry->site, put);
    put_char(s, '\n');
    replayed_of(s, b, i, entry, replayed_text);
}

/* Writes a call as a JSON object, in which a replay has the array "calls". */
static void json_entry(sink *s, const tg_recorder *b, int i, const tg_call_entry *entry) {
    const char *op = reduction_name(entry);
    put(s, "{\"index\": "), put_number(s, entry->index);
    put(s, ", \"group\": "), put_json(s, entry->group);
    put(s, ", \"size\": "), put_signed(s, entry->size);
    put(s, ", \"sequence\": "), put_number(s, entry->sequence);
    put(s, ", \"kind\": "), put_json(s, tg_collective_name(entry->kind));
    put(s, ", \"dtype\": "), put_json(s, entry->kind >= TG_BARRIER ? "" : tg_dtype_name(entry->dtype));
    put(s, ", \"count\": ");
    put_signed(s, entry->kind == TG_REPLAY ? tg_replay_calls(entry->count) : entry->count);
    put(s, ", \"reduction\": "), put_json(s, op ? op : "");
    put(s, ", \"root\": "), put_signed(s, has_root(entry) || has_peer(entry) ? entry->root : -1);
    put(s, ", \"state\": "), put_json(s, call_state(entry));
    put(s, ", \"began_ns\": "), put_number(s, entry->began);
    put(s, ", \"ended_ns\": "), put_number(s, entry->ended);
    put(s, ", \"site\": "), put_site(s, b, i, entry->site, put_json);
    if (entry->kind == TG_REPLAY)
        put(s, ", \"calls\": ["), replayed_of(s, b, i, entry, replayed_json), put_char(s, ']');
    put_char(s, '}');
}

static void put_entries(sink *s, const tg_recorder *b, int i, bool json) {
    uint64_t last = atomic_load_explicit(&b->rank_slot[i].calls, memory_order_acquire);
    bool any = false;
    for (uint64_t k = last > TG_RING - 1 ? last - TG_RING + 1 : 1; k <= last; k++) {
        tg_call_entry entry;
        if (!tg_rank_slot_entry(&b->rank_slot[i], k, &entry)) continue;
        if (json) {
            put(s, any ? ",\n    " : "\n    ");
            json_entry(s, b, i, &entry);
        } else {
            text_entry(s, b, i, &entry);
        }
        any = true;
    }
}

/* Writes what slot i's rank is doing now, and then its calls. */
static void put_rank(sink *s, const tg_recorder *b, int i, bool json) {
    const tg_rank_slot *c = &b->rank_slot[i];
    char failure[TG_SHARED_TEXT_WORDS * 8] = "";
    int state = atomic_load_explicit(&c->state, memory_order_acquire);
    int status = atomic_load_explicit(&c->status, memory_order_acquire);
    uint64_t waiting = atomic_load_explicit(&c->waiting, memory_order_relaxed);
    if (status) tg_shared_text_read(&c->failure, failure, sizeof failure);
    put(s, json ? "{\"rank\": " : "rank "), put_signed(s, b->first + i);
    put(s, json ? ", \"of\": " : " of "), put_signed(s, b->size);
    put(s, json ? ", \"state\": \"" : ": "), put(s, rank_state(state)), put(s, json ? "\"" : "");
    put(s, json ? ", \"calls\": " : ", calls "), put_number(s, atomic_load_explicit(&c->calls, memory_order_relaxed));
    put(s, json ? ", \"heartbeat\": " : ", heartbeat ");
    put_number(s, atomic_load_explicit(&c->heartbeat, memory_order_relaxed));
    if (json || waiting) put(s, json ? ", \"waits_for\": " : ", waits for call "), put_number(s, waiting);
    if (json) {
        put(s, ", \"status\": "), put_json(s, tg_status_name((tg_status)status));
        put(s, ", \"failure\": "), put_json(s, failure);
        put(s, ", \"record\": [");
    } else {
        if (status) put(s, ", "), put(s, tg_status_name((tg_status)status)), put(s, ": "), put(s, failure);
        put_char(s, '\n');
    }
    put_entries(s, b, i, json);
    if (json) put(s, "]}");
}

static void put_recorder(sink *s, const tg_recorder *b, bool json) {
    put(s, json ? "{\"ranks\": [\n  " : "");
    for (int i = 0; i < b->n; i++) {
        if (json && i) put(s, ",\n  ");
        put_rank(s, b, i, json);
    }
    put(s, json ? "\n]}\n" : "");
    flush(s);
}

size_t tg_recorder_print(const tg_recorder *b, tg_ctx *ctx, tg_format format, char *buf, size_t n) {
    sink s = {.buf = buf, .n = buf ? n : 0, .fd = -1, .ctx = ctx};
    if (s.n) buf[0] = 0;
    put_recorder(&s, b, format == TG_JSON);
    return s.at;
}

size_t tg_comm_record(tg_comm *c, tg_format format, char *buf, size_t n) {
    if (buf && n) buf[0] = 0;
    if (!c || !c->recorder) return 0;
    if (format != TG_TEXT && format != TG_JSON) {
        tg_fail(c->ctx, TG_ERR_ARGUMENT, "tg_comm_record: format %d, expected TG_TEXT or TG_JSON", (int)format);
        return 0;
    }
    return tg_recorder_print(c->recorder, c->ctx, format, buf, n);
}

void tg_comm_record_dump(const tg_comm *c, int fd) {
    sink s = {.fd = fd, .safe = true};
    if (c && c->recorder && fd >= 0) put_recorder(&s, c->recorder, false);
}
