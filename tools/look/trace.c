/* Writes the profile of a step as a trace in Chrome's "Trace Event Format". Its times are in microseconds. */
#include <stdlib.h>
#include <string.h>

#include "look/profile.h"

/* The threads of a rank in the trace; COLLECTIVES is the first of up to COLLECTIVE_THREADS. */
enum { FORWARD = 1, BACKWARD, COLLECTIVES, COLLECTIVE_THREADS = 16 };

static json_int_t rank_of(const json_t *rank) { return json_integer_value(json_object_get(rank, "rank")); }

/* Names a process, which is a rank, or one of its threads. */
static void add_name(json_t *events, json_int_t rank, int thread, const char *what, const char *name) {
    json_array_append_new(events, json_pack("{s:s, s:s, s:I, s:i, s:{s:s}}", "ph", "M", "name", what, "pid", rank,
                                            "tid", thread, "args", "name", name));
}

static void add_names(json_t *events, json_int_t rank) {
    char name[32];
    snprintf(name, sizeof name, "rank %d", (int)rank);
    add_name(events, rank, 0, "process_name", name);
    add_name(events, rank, FORWARD, "thread_name", "forward");
    add_name(events, rank, BACKWARD, "thread_name", "backward");
}

/* Adds an event that has a beginning and a duration. shift: microseconds to add to this rank's times. Takes over args.
 */
static void add_span(json_t *events, json_int_t rank, int thread, const json_t *row, const char *name, double shift,
                     json_t *args) {
    json_array_append_new(events, json_pack("{s:s, s:s, s:s, s:I, s:i, s:f, s:f, s:o}", "ph", "X", "name", name, "cat",
                                            thread >= COLLECTIVES ? "collective"
                                            : thread == BACKWARD  ? "backward"
                                                                  : "forward",
                                            "pid", rank, "tid", thread, "ts",
                                            shift + json_number_value(json_object_get(row, "t")), "dur",
                                            json_number_value(json_object_get(row, "d")), "args", args));
}

static void add_op(json_t *events, const json_t *rank, const json_t *row, double shift) {
    bool backward = json_integer_value(json_object_get(row, "b")) != 0;
    json_t *site =
        json_array_get(json_object_get(rank, "sites"), (size_t)json_integer_value(json_object_get(row, "s")));
    json_t *args = json_pack("{s:O?, s:O?}", "site", site, "number", json_object_get(row, "i"));
    static const char *const more[][2] = {{"o", "result"}, {"p", "placement"}, {"f", "flops"}, {"sv", "saved_bytes"}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (json_object_get(row, more[i][0])) json_object_set(args, more[i][1], json_object_get(row, more[i][0]));
    add_span(events, rank_of(rank), backward ? BACKWARD : FORWARD, row, json_string_value(json_object_get(row, "n")),
             shift, args);
    double ended = json_number_value(json_object_get(row, "t")) + json_number_value(json_object_get(row, "d"));
    json_array_append_new(events,
                          json_pack("{s:s, s:s, s:I, s:f, s:{s:O?}}", "ph", "C", "name", "memory", "pid", rank_of(rank),
                                    "ts", shift + ended, "args", "bytes", json_object_get(row, "m")));
}

static void add_call(json_t *events, const json_t *rank, const json_t *call, int thread, double shift) {
    static const char *const of[] = {"group", "dtype", "count", "site"};
    json_t *args = json_object();
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (json_object_get(call, of[i])) json_object_set(args, of[i], json_object_get(call, of[i]));
    add_span(events, rank_of(rank), thread, call, json_string_value(json_object_get(call, "kind")), shift, args);
}

/* Adds the collectives of a rank. Spans of one thread must not overlap, so a collective that begins before an earlier
 * one has ended goes to another thread. It is left out if all COLLECTIVE_THREADS are in use. */
static void add_calls(json_t *events, const json_t *rank, double shift) {
    double until[COLLECTIVE_THREADS];
    int used = 0;
    const json_t *call;
    size_t i;
    json_array_foreach(json_object_get(rank, "collectives"), i, call) {
        double t = json_number_value(json_object_get(call, "t"));
        int k = 0;
        while (k < used && until[k] > t) k++;
        if (k == COLLECTIVE_THREADS) continue;
        if (k == used) add_name(events, rank_of(rank), COLLECTIVES + used++, "thread_name", "collectives");
        until[k] = t + json_number_value(json_object_get(call, "d"));
        add_call(events, rank, call, COLLECTIVES + k, shift);
    }
}

/* Adds the events of a rank. start: when the first rank began. If this rank began more than a minute later, its clock
 * is that of another machine, and it is shown as if it had begun with the first. */
static void add_rank(json_t *events, const json_t *rank, double start) {
    const json_t *row;
    double shift = 1e6 * (json_number_value(json_object_get(rank, "began")) - start);
    size_t i;
    if (shift > 60e6) shift = 0;
    add_names(events, rank_of(rank));
    json_array_foreach(json_object_get(rank, "ops"), i, row) add_op(events, rank, row, shift);
    add_calls(events, rank, shift);
}

bool trace_save(tg_ctx *ctx, const char *path, const json_t *profile) {
    const json_t *ranks = json_object_get(profile, "ranks"), *rank;
    json_t *events = json_array();
    double start = 0;
    size_t i;
    json_array_foreach(ranks, i, rank) {
        double began = json_number_value(json_object_get(rank, "began"));
        if (i == 0 || began < start) start = began;
    }
    json_array_foreach(ranks, i, rank) add_rank(events, rank, start);
    json_t *all = json_pack("{s:s, s:o}", "displayTimeUnit", "ms", "traceEvents", events);
    char *text = json_text(all, JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_decref(all);
    const char *is = not_regular(path);
    if (is)
        fail("cannot write '%s': it is %s, expected a regular file or a new one", path, is);
    else if (text)
        tg_file_save(ctx, path, text, strlen(text));
    else
        fail("no memory for the trace '%s'", path);
    bool good = text && !is;
    free(text);
    return good && check(ctx);
}
