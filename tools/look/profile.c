/* Profiles a training step (profile.h): observes its tapes, and writes the events as JSON. */
#include "look/profile.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/explain.h>
#include <tapegrad/extend.h>

#include "common/program.h"
#include "common/ranks.h"

/* An op that ran. */
typedef struct event {
    const char *op;
    bool backward;
    double began, ended;
    int64_t number, live, flops, saved;
    int site;       /* index of profile.site */
    json_t *inputs; /* of a forward; NULL: of a backward */
    char out[96], placement[48];
} event;

/* An entry of a hash table. It maps a tensor, or the number that a tape has given to an op, to the number of the op in
 * the profile. Tapes use addresses and numbers again after a reset, so the epoch of the tape belongs to the key. */
typedef struct known {
    uint64_t epoch, key; /* key: an address, which is even, or 2 n + 1 for the number n; 0: free */
    int64_t number;
} known;

struct profile {
    tg_ctx *ctx;
    tg_comm *world;
    int64_t step;
    double began, ended;
    event *event;
    int n, capacity;
    char **site;
    int n_sites;
    known *known;                /* a hash table with open addressing */
    int n_known, capacity_known; /* capacity_known: a power of two */
    int64_t forwards;            /* number of forwards so far */
    bool timing;                 /* the timed step is running */
    char *memory;                /* JSON; NULL: it was not noted */
    bool failed;                 /* there was no memory for the profile */
};

profile *profile_new(tg_ctx *ctx, tg_comm *world) {
    profile *p = calloc(1, sizeof *p);
    if (p)
        *p = (profile){.ctx = ctx, .world = world};
    else
        fail("no memory for the profile of a step");
    return p;
}

static void clear(profile *p) {
    for (int i = 0; i < p->n; i++) json_decref(p->event[i].inputs);
    for (int i = 0; i < p->n_sites; i++) free(p->site[i]);
    p->n = p->n_sites = p->n_known = 0;
    p->forwards = 0;
}

void profile_free(profile *p) {
    if (!p) return;
    clear(p);
    free(p->event);
    free(p->site);
    free(p->known);
    free(p->memory);
    free(p);
}

/* ---- Tables ---- */

static uint64_t key_of_tensor(const tg_tensor *x) { return (uint64_t)(uintptr_t)x; }
static uint64_t key_of_number(int64_t n) { return 2 * (uint64_t)n + 1; }

/* Returns the entry of a key, or the free one that it would get. */
static known *entry_of(known *table, int capacity, uint64_t epoch, uint64_t key) {
    uint64_t h = (key + 0x9E3779B97F4A7C15u * epoch) * 0x9E3779B97F4A7C15u >> 20, mask = (uint64_t)capacity - 1;
    while (table[h & mask].key && (table[h & mask].key != key || table[h & mask].epoch != epoch)) h++;
    return &table[h & mask];
}

/* Doubles the table when it is half full. */
static bool grow_table(profile *p) {
    if (2 * p->n_known < p->capacity_known) return true;
    int capacity = p->capacity_known ? 2 * p->capacity_known : 1024;
    known *table = calloc((size_t)capacity, sizeof *table);
    if (!table) return false;
    for (int i = 0; i < p->capacity_known; i++)
        if (p->known[i].key) *entry_of(table, capacity, p->known[i].epoch, p->known[i].key) = p->known[i];
    free(p->known);
    p->known = table;
    p->capacity_known = capacity;
    return true;
}

static void note_number(profile *p, uint64_t epoch, uint64_t key, int64_t number) {
    if (!grow_table(p)) {
        p->failed = true;
        return;
    }
    known *k = entry_of(p->known, p->capacity_known, epoch, key);
    p->n_known += !k->key;
    *k = (known){epoch, key, number};
}

/* Returns the number that was noted for a key; -1: none. */
static int64_t number_of(const profile *p, uint64_t epoch, uint64_t key) {
    const known *k = p->known ? entry_of(p->known, p->capacity_known, epoch, key) : NULL;
    return k && k->key ? k->number : -1;
}

/* Returns the index of a site's text. Searches only the newest few, among which it mostly is; a text may be stored
 * again. */
static int site_of(profile *p, const char *text) {
    enum { FEW = 64 };
    for (int i = p->n_sites - 1, last = i - FEW; i >= 0 && i > last; i--)
        if (!strcmp(p->site[i], text)) return i;
    if ((p->n_sites & (p->n_sites - 1)) == 0) { /* 0, or a power of two: the array is full */
        char **more = realloc(p->site, (size_t)(p->n_sites ? 2 * p->n_sites : 1) * sizeof *more);
        if (!more) return p->failed = true, 0;
        p->site = more;
    }
    char *copy = strdup(text);
    if (!copy) return p->failed = true, 0;
    p->site[p->n_sites] = copy;
    return p->n_sites++;
}

static event *next_event(profile *p) {
    if (p->n == p->capacity) {
        int capacity = p->capacity ? 2 * p->capacity : 1024;
        event *more = realloc(p->event, (size_t)capacity * sizeof *more);
        if (!more) return p->failed = true, NULL;
        p->event = more;
        p->capacity = capacity;
    }
    p->event[p->n] = (event){.number = -1};
    return &p->event[p->n++];
}

/* ---- Observing ---- */

/* Returns the JSON of the inputs ("in" of profile_gather). */
static json_t *inputs_of(const profile *p, uint64_t epoch, const tg_op_event *e) {
    json_t *all = json_array();
    for (int i = 0; i < e->n_in; i++) {
        int64_t number = e->input[i] ? number_of(p, epoch, key_of_tensor(e->input[i])) : -1;
        char text[160];
        if (!e->input[i])
            json_array_append_new(all, json_null());
        else if (number >= 0)
            json_array_append_new(all, json_integer(number));
        else
            tg_describe(e->input[i], text, sizeof text), json_array_append_new(all, json_string(text));
    }
    return all;
}

static void note_forward(profile *p, event *to, uint64_t epoch, const tg_op_event *e) {
    to->number = p->forwards++;
    to->inputs = inputs_of(p, epoch, e);
    if (e->n_out) tg_describe(e->out[0], to->out, sizeof to->out);
    if (e->n_out && tg_comm_size(p->world) > 1) tg_placement_text(e->out[0], to->placement, sizeof to->placement);
    note_number(p, epoch, key_of_number(e->number), to->number);
    for (int i = 0; i < e->n_out; i++) note_number(p, epoch, key_of_tensor(e->out[i]), to->number);
}

static void note_backward(const profile *p, event *to, uint64_t epoch, const tg_op_event *e) {
    const tg_node *node = tg_op_event_node(e);
    if (e->number >= 0) to->number = number_of(p, epoch, key_of_number(e->number));
    if (!node) return;
    to->flops = tg_node_flops(node);
    to->saved = tg_node_saved_bytes(node);
}

static tg_status note_op(void *user, tg_tape *t, const tg_op_event *e) {
    profile *p = user;
    char site[512];
    tg_memory_info memory = TG_MEMORY_INFO();
    event *to = p->timing ? next_event(p) : NULL;
    if (!to || tg_memory_query(p->ctx, &memory) != TG_OK) return tg_ctx_status(p->ctx);
    tg_op_event_site(e, site, sizeof site);
    to->op = e->op;
    to->backward = e->backward;
    to->began = e->began > 0 ? e->began : seconds_now();
    to->ended = e->began > 0 ? e->ended : to->began;
    to->live = memory.live;
    to->site = site_of(p, site);
    if (e->backward)
        note_backward(p, to, tg_tape_epoch(t), e);
    else
        note_forward(p, to, tg_tape_epoch(t), e);
    return TG_OK;
}

void profile_watch(profile *p, tg_tape *t) {
    if (p->timing)
        tg_tape_observe(t, note_op, p);
    else
        tg_tape_observe(t, NULL, NULL);
}

void profile_begin_times(profile *p, tg_tape *t, int64_t step) {
    clear(p);
    if (p->known) memset(p->known, 0, (size_t)p->capacity_known * sizeof *p->known);
    p->step = step;
    p->timing = true;
    profile_watch(p, t);
    p->began = seconds_now();
}

void profile_end_times(profile *p, tg_tape *t) {
    p->ended = seconds_now();
    p->timing = false;
    profile_watch(p, t);
}

void profile_begin_memory(profile *p) {
    tg_memory_reset_peak(p->ctx);
    tg_memory_set_trace(p->ctx, true);
}

void profile_end_memory(profile *p) {
    size_t n = tg_memory_json(p->ctx, NULL, 0) + 1;
    free(p->memory);
    p->memory = malloc(n);
    if (p->memory) tg_memory_json(p->ctx, p->memory, n);
    tg_memory_set_trace(p->ctx, false);
}

/* ---- JSON of this rank ---- */

static double micro(double seconds) { return 1e6 * seconds; }

/* Returns the seconds of the ops that ran within event i, such as recomputed ones. They ended before it did, so their
 * events come right before its. */
static double inner_seconds(const profile *p, int i) {
    double sum = 0, from = p->event[i].ended;
    for (int k = i - 1; k >= 0 && p->event[k].began >= p->event[i].began; k--) {
        const event *e = &p->event[k];
        if (e->ended > from) continue; /* it ran within an op that was counted */
        sum += e->ended - e->began;
        from = e->began;
    }
    return sum;
}

static json_t *event_json(const profile *p, int i) {
    const event *e = &p->event[i];
    double inner = inner_seconds(p, i);
    json_t *row =
        json_pack("{s:s, s:i, s:f, s:f, s:I, s:i, s:I}", "n", e->op, "b", e->backward, "t", micro(e->began - p->began),
                  "d", micro(e->ended - e->began), "m", (json_int_t)e->live, "s", e->site, "i", (json_int_t)e->number);
    if (inner > 0) json_object_set_new(row, "e", json_real(micro(e->ended - e->began - inner)));
    if (e->inputs) {
        json_object_set(row, "in", e->inputs);
        json_object_set_new(row, "o", json_string(e->out));
        if (*e->placement) json_object_set_new(row, "p", json_string(e->placement));
    } else {
        json_object_set_new(row, "f", json_integer((json_int_t)e->flops));
        json_object_set_new(row, "sv", json_integer((json_int_t)e->saved));
    }
    return row;
}

/* Appends the calls of this rank that ran within the step, from a record of collectives. */
static void add_calls(const profile *p, json_t *to, const json_t *rank) {
    const json_t *call;
    size_t i;
    json_array_foreach(json_object_get(rank, "record"), i, call) {
        double began = 1e-9 * (double)json_integer_value(json_object_get(call, "began_ns"));
        double ended = 1e-9 * (double)json_integer_value(json_object_get(call, "ended_ns"));
        if (began < p->began || ended > p->ended || ended < began) continue;
        json_array_append_new(to, json_pack("{s:O?, s:O?, s:O?, s:O?, s:O?, s:f, s:f}", "kind",
                                            json_object_get(call, "kind"), "group", json_object_get(call, "group"),
                                            "dtype", json_object_get(call, "dtype"), "count",
                                            json_object_get(call, "count"), "site", json_object_get(call, "site"), "t",
                                            micro(began - p->began), "d", micro(ended - began)));
    }
}

/* Returns the collectives of this rank in the step. The flight recorder holds the newest ones only. */
static json_t *collectives_json(const profile *p) {
    json_t *all = json_array(), *record, *rank;
    size_t n = tg_comm_record(p->world, TG_JSON, NULL, 0) + 4096, i;
    char *text = malloc(n);
    if (text) tg_comm_record(p->world, TG_JSON, text, n);
    record = text ? json_loads(text, 0, NULL) : NULL;
    json_array_foreach(json_object_get(record, "ranks"), i, rank) {
        if (json_integer_value(json_object_get(rank, "rank")) == tg_comm_rank(p->world)) add_calls(p, all, rank);
    }
    json_decref(record);
    free(text);
    return all;
}

static json_t *rank_json(const profile *p) {
    json_t *ops = json_array(), *sites = json_array(), *memory = p->memory ? json_loads(p->memory, 0, NULL) : NULL;
    for (int i = 0; i < p->n; i++) json_array_append_new(ops, event_json(p, i));
    for (int i = 0; i < p->n_sites; i++) json_array_append_new(sites, json_string(p->site[i]));
    return json_pack("{s:i, s:i, s:f, s:f, s:s, s:i, s:o, s:o, s:o, s:o}", "rank", tg_comm_rank(p->world), "ranks",
                     tg_comm_size(p->world), "began", p->began, "seconds", p->ended - p->began, "device",
                     tg_ctx_device(p->ctx), "threads", tg_ctx_threads(p->ctx), "ops", ops, "sites", sites, "memory",
                     memory ? memory : json_null(), "collectives",
                     tg_comm_size(p->world) > 1 ? collectives_json(p) : json_array());
}

/* ---- All ranks ---- */

/* Returns the greatest of the ranks' numbers; -1 if there is no memory. Collective. */
static double greatest(profile *p, double mine) {
    int ranks = tg_comm_size(p->world);
    double *all = calloc((size_t)ranks, sizeof *all), most = -1;
    if (!all) return -1;
    all[tg_comm_rank(p->world)] = mine;
    sum_over_ranks(p->ctx, p->world, all, ranks);
    for (int i = 0; i < ranks; i++)
        if (all[i] > most) most = all[i];
    free(all);
    return most;
}

/* Gathers the text of each rank, n bytes with its end. Returns the texts of all ranks on rank 0, each in *most bytes;
 * NULL on other ranks and after an error. */
static char *gather_texts(profile *p, const char *text, size_t n, size_t *most) {
    int64_t ranks = tg_comm_size(p->world), words = (int64_t)(greatest(p, (double)n) + 7) / 8;
    *most = 8 * (size_t)words;
    char *padded = calloc(1, *most + 8), *all = malloc(*most * (size_t)ranks + 8);
    if (!padded || !all || words < 1) {
        tg_ctx_fail(p->ctx, TG_ERR_MEMORY, "no memory for the profiles of %" PRId64 " ranks", ranks);
        return free(padded), free(all), NULL;
    }
    memcpy(padded, text, n);
    tg_tensor *one = tg_from_host(p->ctx, TG_I64, TG_SHAPE(words), padded);
    tg_tensor *whole = tg_zeros(p->ctx, TG_I64, TG_SHAPE(ranks, words));
    tg_comm_all_gather(p->world, whole, one);
    bool good = tg_read(whole, all, *most * (size_t)ranks) == TG_OK;
    tg_drop(one);
    tg_drop(whole);
    free(padded);
    if (good && tg_comm_rank(p->world) == 0) return all;
    return free(all), NULL;
}

/* Makes "began" the seconds after the first rank began. The clock's own times are too large for the few digits that a
 * page has. */
static void begin_at_first(json_t *ranks) {
    double first = INFINITY;
    json_t *rank;
    size_t i;
    json_array_foreach(ranks, i, rank) first = fmin(first, json_number_value(json_object_get(rank, "began")));
    json_array_foreach(ranks, i, rank) {
        double began = json_number_value(json_object_get(rank, "began"));
        json_object_set_new(rank, "began", json_real(began - first));
    }
}

json_t *profile_gather(profile *p) {
    json_t *mine = p->failed ? NULL : rank_json(p), *ranks = json_array();
    char *text = json_text(mine, JSON_COMPACT | JSON_REAL_PRECISION(15)), *all = NULL;
    size_t most = 0;
    if (!text) tg_ctx_fail(p->ctx, TG_ERR_MEMORY, "no memory for the profile of a step");
    if (text && tg_comm_size(p->world) == 1) json_array_append(ranks, mine);
    if (text && tg_comm_size(p->world) > 1) all = gather_texts(p, text, strlen(text) + 1, &most);
    for (int i = 0; all && i < tg_comm_size(p->world); i++)
        json_array_append_new(ranks, json_loads(all + (size_t)i * most, 0, NULL));
    begin_at_first(ranks);
    free(all);
    free(text);
    json_decref(mine);
    if (tg_comm_rank(p->world) == 0 && json_array_size(ranks))
        return json_pack("{s:I, s:o}", "number", (json_int_t)p->step, "ranks", ranks);
    json_decref(ranks);
    return NULL;
}
