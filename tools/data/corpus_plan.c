/* Finds the files of --data, decides how each is read, and makes token files. A plan is JSON:
 * {"data", "val-data", "format", "tokenizer": the options;
 *  "inputs": path, size and time of each file, the time in seconds and nanoseconds;
 *  "bytes": whether bytes are tokens;
 *  "sources": [{"name", "weight", "validation", "files", "bytes",
 *               "parts": [{"path", "format", "cached": the path is a name in the cache directory, "whole": the path
 *                          from the root}]}]} */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/model_files.h"
#include "common/text.h"
#include "data/corpus.h"
#include "data/documents.h"
#include "data/kind.h"
#include "data/stream.h"
#include "data/words.h"

/* If a source has more files, only its Megatron datasets are read in place, because files that are read in place are
 * open during the whole run. */
enum { MOST_IN_PLACE = 64 };

static const char plan_name[] = "data.json";

/* The making of a plan. */
typedef struct planner {
    tg_ctx *ctx;
    const corpus_options *o;
    json_t *plan, *inputs;
    int datasets;        /* number of token files made so far */
    bool standard_input; /* it has been read */
    /* The source that is being added. */
    const word_source *source;
    json_t *parts;
    const char *option; /* names it */
    const char *stem;   /* names of its token files begin with this */
    encoder *encoder; /* made when the first text is read */
    token_cache cache;
    char name[32]; /* of the token file that is open in cache.writer */
    int64_t bytes;
} planner;

/* ---- The format of a file ---- */

static data_format format_of(const planner *p, const char *path) {
    if (p->o->format != DATA_AUTO) return p->o->format;
    if (is_megatron(path)) return DATA_MEGATRON;
    return is_jsonl(path) ? DATA_JSONL : DATA_TEXT;
}

/* Returns whether the file is X.idx, and X.bin is in the list as well. */
static bool is_second(const names *files, const char *path) {
    size_t n = strlen(path);
    for (int i = 0; text_ends_with(path, ".idx") && i < files->n; i++)
        if (strlen(files->at[i]) == n && !strncmp(files->at[i], path, n - 4) && text_ends_with(files->at[i], ".bin"))
            return true;
    return false;
}

/* ---- Parts ---- */

static bool no_memory(void) { return fail("no memory for the list of data files"), false; }

/* Fails because JSON cannot have the name. */
static bool refuse_name(const char *name) {
    return fail("'%s' is not a name in UTF-8, which the list of data files needs", name), false;
}

static bool add_part(planner *p, const char *path, data_format format, bool cached) {
    char *whole = cached || access(path, F_OK) ? NULL : realpath(path, NULL);
    json_t *part =
        json_pack("{s:s, s:i, s:b, s:s*}", "path", path, "format", (int)format, "cached", (int)cached, "whole", whole);
    free(whole);
    if (!part) return refuse_name(path);
    return json_array_append_new(p->parts, part) == 0 || no_memory();
}

/* Fails because the files of a token file have no token. */
static bool refuse_empty(const planner *p) {
    const char *name = p->source->files.n == 1 ? p->source->files.at[0] : p->source->name;
    return fail("'%s' has no text, expected tokens", strcmp(name, "-") ? name : "standard input"), false;
}

/* Completes the token file that is open, if any, and adds it to the parts; removes it if `good` is false. Returns
 * whether all is well. */
static bool end_dataset(planner *p, bool good) {
    if (!p->cache.writer) return good;
    if (good && !tg_token_writer_count(p->cache.writer)) good = refuse_empty(p);
    return cache_close(&p->cache, good) && good && add_part(p, p->name, DATA_MEGATRON, true);
}

/* Makes the encoder if there is none. The ids of its tokenizer must be in the model's vocabulary. */
static bool open_encoder(planner *p) {
    const corpus_options *o = p->o;
    if (p->encoder) return true;
    if (!(p->encoder = encoder_new(p->ctx, o->tokenizer))) return false;
    return !o->tokenizer || !o->vocab || tokenizer_fits(o->tokenizer, encoder_vocab(p->encoder), o->vocab);
}

static bool begin_dataset(planner *p) {
    if (p->cache.writer) return true;
    if (!p->o->cache)
        return fail("'%s' is read from token files of rank 0, which are not those that this process needs; all ranks "
                    "must see the same --out and --data",
                    p->source->name),
               false;
    if (!open_encoder(p)) return false;
    snprintf(p->name, sizeof p->name, "%s-%03d", p->stem, p->datasets++);
    if (mkdir(p->o->cache, 0777) != 0 && errno != EEXIST)
        return fail("cannot make the directory '%s': %s", p->o->cache, strerror(errno)), false;
    return cache_open(&p->cache, p->ctx, p->o->cache, p->name, p->encoder, p->o->vocab);
}

/* Adds a file with its size and time to the plan, so that is_unchanged can tell whether it has changed. */
static bool note_input(planner *p, const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) return true; /* "-", or a dataset without its ending */
    char *whole = realpath(path, NULL);
    json_t *input = json_pack("{s:s, s:I, s:I, s:I}", "path", whole ? whole : path, "size", (json_int_t)st.st_size,
                              "time", (json_int_t)st.st_mtim.tv_sec, "nanoseconds", (json_int_t)st.st_mtim.tv_nsec);
    if (!input) refuse_name(whole ? whole : path);
    free(whole);
    return input && (json_array_append_new(p->inputs, input) == 0 || no_memory());
}

/* Returns the absolute path of a tokenizer's file, which the caller frees. path: that file, or a directory that has it.
 * NULL: there is no such file. */
static char *tokenizer_file(const char *path) {
    char *file = is_there(path, "tokenizer.json") ? path_in(path, "tokenizer.json") : NULL;
    char *whole = realpath(file ? file : path, NULL);
    free(file);
    return whole;
}

static bool note_tokenizer(planner *p) {
    char *file = p->o->tokenizer ? tokenizer_file(p->o->tokenizer) : NULL;
    bool good = !p->o->tokenizer || note_input(p, file ? file : p->o->tokenizer);
    free(file);
    return good;
}

/* Returns the bytes of the tokens in a file, for a Megatron dataset those of X.bin; 0 if there is no such file. */
static int64_t size_of(const char *path, data_format format) {
    struct stat st;
    char data[4096];
    bool ends = text_ends_with(path, ".bin") || text_ends_with(path, ".idx");
    int n = (int)strlen(path) - (ends ? 4 : 0);
    snprintf(data, sizeof data, "%.*s.bin", n, path);
    return stat(format == DATA_MEGATRON ? data : path, &st) == 0 ? st.st_size : 0;
}

static bool read_in_place(planner *p, const char *path, data_format format) {
    p->bytes += size_of(path, format);
    warn_of_data(p->option, path, (int)format);
    return end_dataset(p, true) && add_part(p, path, format, false);
}

static bool read_to_cache(planner *p, const char *path, data_format format) {
    bool standard = !strcmp(path, "-");
    if (standard && p->standard_input) return fail("'-' is given twice; standard input can be read once"), false;
    if (!standard && !is_compressed(path)) warn_of_data(p->option, path, (int)format);
    p->standard_input |= standard;
    return begin_dataset(p) && cache_add(&p->cache, path, format, &p->bytes);
}

/* Fails if the file holds ids and the size of the vocabulary is not known. If the file holds ids, or there is a
 * tokenizer, notes in the plan that not all tokens are bytes. */
static bool check_ids(const planner *p, const char *path, data_format format) {
    bool ids = format != DATA_TEXT && format != DATA_JSONL;
    if (ids && !p->o->vocab)
        return fail("--vocab N is missing: '%s' holds token ids, and does not say how many there are", path), false;
    if (ids || p->o->tokenizer) json_object_set_new(p->plan, "bytes", json_false());
    return true;
}

static bool add_file(planner *p, const char *path) {
    bool standard = !strcmp(path, "-"), packed = !standard && is_compressed(path);
    data_format format = format_of(p, path);
    if (!check_ids(p, path, format) || !note_input(p, path)) return false;
    if (format == DATA_MEGATRON && (packed || standard))
        return fail("'%s' is %s, but a Megatron dataset is read in place: give the two files themselves", path,
                    standard ? "standard input" : "compressed"),
               false;
    bool in_place = !standard && !packed && format != DATA_JSONL && !(format == DATA_TEXT && p->o->tokenizer);
    if (in_place && (format == DATA_MEGATRON || p->source->files.n <= MOST_IN_PLACE))
        return read_in_place(p, path, format);
    return read_to_cache(p, path, format);
}

/* ---- Sources ---- */

static bool add_source(planner *p, const word_source *s, bool validation) {
    const names *files = &s->files;
    p->source = s;
    p->option = validation ? "val-data" : "data";
    p->stem = validation ? "val" : "data";
    p->bytes = 0;
    p->parts = json_array();
    json_t *source = json_pack("{s:s, s:f, s:b, s:i, s:o}", "name", s->name, "weight", s->weight, "validation",
                               (int)validation, "files", files->n, "parts", p->parts);
    if (!source) return refuse_name(s->name);
    if (json_array_append_new(json_object_get(p->plan, "sources"), source)) return no_memory();
    bool good = true;
    for (int i = 0; good && i < files->n; i++)
        if (!is_second(files, files->at[i])) good = add_file(p, files->at[i]);
    good = end_dataset(p, good);
    return good && (json_object_set_new(source, "bytes", json_integer(p->bytes)) == 0 || no_memory());
}

static bool add_words(planner *p, const char *option, const char *words, bool validation) {
    word_sources s;
    bool good = !words || words_expand(&s, option, words);
    for (int i = 0; words && good && i < s.n; i++) good = add_source(p, &s.at[i], validation);
    if (words) words_free(&s);
    return good;
}

/* ---- The cache directory ---- */

void corpus_remove_cache(const char *cache) {
    DIR *entries = cache ? opendir(cache) : NULL;
    for (struct dirent *e; entries && (e = readdir(entries));) {
        bool ours = !fnmatch("data-[0-9]*.bin*", e->d_name, 0) || !fnmatch("data-[0-9]*.idx*", e->d_name, 0) ||
                    !fnmatch("val-[0-9]*.bin*", e->d_name, 0) || !fnmatch("val-[0-9]*.idx*", e->d_name, 0) ||
                    !fnmatch("data.json*", e->d_name, 0);
        char *path = ours ? path_in(cache, e->d_name) : NULL;
        if (path) unlink(path);
        free(path);
    }
    if (!entries) return;
    closedir(entries);
    rmdir(cache); /* fails if it has other files */
}

static bool save_plan(const planner *p) {
    char *text = json_text(p->plan, JSON_INDENT(2));
    if (!text) return no_memory();
    char *path = path_in(p->o->cache, plan_name);
    if (path) tg_file_save(p->ctx, path, text, strlen(text));
    bool good = path && check(p->ctx);
    free(text);
    free(path);
    return good;
}

/* ---- Plans ---- */

static json_t *begin_plan(const corpus_options *o) {
    return json_pack("{s:s, s:s, s:s, s:i, s:b, s:[], s:[]}", "data", o->data, "val-data",
                     o->val_data ? o->val_data : "", "tokenizer", o->tokenizer ? o->tokenizer : "", "format",
                     (int)o->format, "bytes", 1, "sources", "inputs");
}

json_t *corpus_plan(tg_ctx *ctx, const corpus_options *o) {
    planner p = {.ctx = ctx, .o = o, .plan = begin_plan(o)};
    if (!p.plan) return fail("--data '%s' is not in UTF-8, which the list of data files needs", o->data), NULL;
    p.inputs = json_object_get(p.plan, "inputs");
    if (o->cache) corpus_remove_cache(o->cache); /* of a run that was killed, or of other data */
    bool good =
        note_tokenizer(&p) && add_words(&p, "data", o->data, false) && add_words(&p, "val-data", o->val_data, true);
    if (good && p.datasets) good = save_plan(&p);
    encoder_free(p.encoder);
    if (good) return p.plan;
    if (o->cache) corpus_remove_cache(o->cache);
    json_decref(p.plan);
    return NULL;
}

const char *corpus_tokenizer_of(const char *dir) { return is_there(dir, "tokenizer.json") ? dir : NULL; }

bool corpus_is_bytes(const json_t *plan) { return json_is_true(json_object_get(plan, "bytes")); }

bool corpus_has_encoded(const json_t *plan) {
    size_t i, j;
    json_t *source, *part;
    bool found = false;
    json_array_foreach(json_object_get(plan, "sources"), i, source) {
        json_array_foreach(json_object_get(source, "parts"), j, part) {
            found |= json_is_true(json_object_get(part, "cached"));
        }
    }
    return found;
}

/* Returns whether the file is as it was, or does not exist any more. */
static bool is_unchanged(const json_t *input) {
    struct stat st;
    const char *path = json_string_value(json_object_get(input, "path"));
    const json_t *nanoseconds = json_object_get(input, "nanoseconds"); /* plans of earlier versions have none */
    if (!path || stat(path, &st) != 0) return path != NULL;
    return st.st_size == json_integer_value(json_object_get(input, "size")) &&
           st.st_mtim.tv_sec == json_integer_value(json_object_get(input, "time")) &&
           (!nanoseconds || st.st_mtim.tv_nsec == json_integer_value(nanoseconds));
}

/* Returns whether the text of a key is that of an option, which may be NULL. */
static bool has_option(const json_t *plan, const char *key, const char *option) {
    const char *text = json_string_value(json_object_get(plan, key));
    return text && !strcmp(text, option ? option : "");
}

/* Returns whether the file of a tokenizer is among the inputs of the plan. */
static bool has_tokenizer_file(const json_t *plan, const char *option) {
    char *file = tokenizer_file(option);
    bool found = false;
    size_t i;
    json_t *input;
    json_array_foreach(json_object_get(plan, "inputs"), i, input) {
        const char *path = json_string_value(json_object_get(input, "path"));
        found |= file && path && !strcmp(path, file);
    }
    free(file);
    return found;
}

/* Returns whether the tokenizer is the plan's, which another path may name. One that no longer exists counts as
 * unchanged: the model that a run began with may have been moved, and then its directory gives no tokenizer. */
static bool has_tokenizer(const json_t *plan, const char *option) {
    const char *text = json_string_value(json_object_get(plan, "tokenizer"));
    if (has_option(plan, "tokenizer", option)) return true;
    return option ? has_tokenizer_file(plan, option) : text && access(text, F_OK) != 0;
}

static bool is_for(const json_t *plan, const corpus_options *o) {
    size_t i;
    json_t *input;
    json_array_foreach(json_object_get(plan, "inputs"), i, input) if (!is_unchanged(input)) return false;
    return has_option(plan, "data", o->data) && has_option(plan, "val-data", o->val_data) &&
           has_tokenizer(plan, o->tokenizer) &&
           json_integer_value(json_object_get(plan, "format")) == (json_int_t)o->format;
}

json_t *corpus_saved_plan(const corpus_options *o) {
    char *path = o->cache ? path_in(o->cache, plan_name) : NULL;
    json_t *plan = path ? json_load_file(path, 0, NULL) : NULL;
    free(path);
    if (!plan || is_for(plan, o)) return plan;
    json_decref(plan);
    return NULL;
}
