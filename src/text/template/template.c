/* The public functions of templates: parsing, rendering, and the memory of results. */
#include "text/template/template.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "base/text.h"
#include "core/context.h"
#include "io/json.h"
#include "text/template/values/json.h"

static tpl_run run_new(tg_ctx *ctx) {
    return (tpl_run){.ctx = ctx, .name = "chat template", .memory = TPL_MEMORY, .steps = TPL_STEPS};
}

/* ---- Parsing ---- */

typedef struct parsing {
    const char *source, *name;
    size_t bytes;
    const tpl_node *first;
} parsing;

/* Copies the source with \n as the line end, and without the last line end, as Jinja does. */
static void copy_source(tpl_run *r, const char *source, size_t bytes) {
    char *to = tg_tpl_alloc(r, bytes + 1);
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        bool end = source[i] == '\r';
        if (end && i + 1 < bytes && source[i + 1] == '\n') i++;
        to[n++] = end ? '\n' : source[i];
    }
    if (n && to[n - 1] == '\n') n--;
    to[n] = 0;
    r->source = to;
    r->bytes = n;
}

static void parse(tpl_run *r, void *arg) {
    parsing *p = arg;
    if (p->name) r->name = tg_tpl_copy(r, p->name, strlen(p->name));
    copy_source(r, p->source, p->bytes);
    p->first = tg_tpl_parse(r);
}

static tg_status check_source(tg_ctx *ctx, const char *source, const char *name, size_t *bytes) {
    TG_TRY(ctx ? ctx->run.status : TG_ERR_ARGUMENT);
    if (!source)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_template_new: source is NULL, expected the text of a template");
    *bytes = strlen(source);
    if (!name) name = "chat template";
    if (*bytes > TPL_SOURCE)
        return tg_fail(ctx, TG_ERR_FORMAT, "%s has %zu bytes, expected at most %d", name, *bytes, TPL_SOURCE);
    size_t wrong = tg_utf8_check(source, *bytes);
    if (wrong == *bytes) return TG_OK;
    return tg_fail(ctx, TG_ERR_FORMAT, "%s is not UTF-8 at offset %zu", name, wrong);
}

tg_template *tg_template_new(tg_ctx *ctx, const char *source, const char *name) {
    parsing p = {.source = source, .name = name};
    if (check_source(ctx, source, name, &p.bytes) != TG_OK) return NULL;
    tg_template *t = tg_host_alloc(ctx, sizeof *t);
    if (!t) return NULL;
    t->ctx = ctx;
    t->memory = run_new(ctx);
    if (tg_tpl_guard(&t->memory, parse, &p)) {
        t->first = p.first;
        return t;
    }
    tg_template_free(t);
    return NULL;
}

void tg_template_free(tg_template *t) {
    if (!t) return;
    tg_tpl_release(&t->memory);
    tg_host_free(t->ctx, t, sizeof *t);
}

/* ---- Rendering ---- */

typedef struct rendering {
    const tpl_node *first;
    const json_t *variables;
    tpl_render render;
} rendering;

static void render(tpl_run *r, void *arg) {
    rendering *x = arg;
    tpl_value variables = x->variables ? tg_tpl_from_json(r, x->variables) : tg_tpl_dict_new(r, TPL_DICT);
    x->render.variables = variables.dict;
    x->render.scope = &x->render.root;
    x->render.out = &x->render.text;
    tg_tpl_run_body(r, x->first);
}

/* Cuts spans to the text: a block may have been written to a variable that was not printed. */
static void copy_spans(tg_rendered *out, const tg_text_span *spans) {
    for (int64_t i = 0; i < out->n_spans; i++) {
        tg_text_span s = spans[i];
        out->spans[i] =
            (tg_text_span){s.begin < out->n_text ? s.begin : out->n_text, s.stop < out->n_text ? s.stop : out->n_text};
    }
}

/* Copies the result out of the memory of the run. */
static tg_status give(tg_ctx *ctx, const char *name, const tpl_render *render, tg_rendered *out) {
    size_t n = render->text.n, spans = (size_t)render->n_spans * sizeof *out->spans;
    *out = (tg_rendered){malloc(n + 1), n, malloc(spans + 1), render->n_spans};
    if (!out->text || !out->spans) {
        tg_rendered_free(out);
        return tg_fail(ctx, TG_ERR_MEMORY, "%s: no memory for the %zu bytes of the text", name, n);
    }
    if (n) memcpy(out->text, render->text.bytes, n);
    out->text[n] = 0;
    copy_spans(out, render->spans);
    return TG_OK;
}

tg_status tg_template_render_json(const tg_template *t, const json_t *variables, int64_t now, tg_rendered *out) {
    rendering x = {.first = t->first, .variables = variables, .render.now = now == TG_AUTO ? (int64_t)time(NULL) : now};
    tpl_run r = run_new(t->ctx);
    r.name = t->memory.name;
    r.source = t->memory.source;
    r.bytes = t->memory.bytes;
    r.render = &x.render;
    tg_status s = tg_tpl_guard(&r, render, &x) ? give(t->ctx, r.name, &x.render, out) : t->ctx->run.status;
    tg_tpl_release(&r);
    return s;
}

json_t *tg_template_json(tg_ctx *ctx, const char *text, bool object, const char *what) {
    json_error_t e;
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (j && json_is_object(j) == object) return j;
    if (j)
        tg_fail(ctx, TG_ERR_FORMAT, "%s: found a JSON %s, expected an %s", what, object ? "array" : "object",
                object ? "object" : "array");
    else if (tg_json_lacks_memory(&e))
        tg_fail(ctx, TG_ERR_MEMORY, "%s: no memory for the JSON tree", what);
    else
        tg_fail(ctx, TG_ERR_FORMAT, "%s: not JSON: line %d, column %d: %s", what, e.line, e.column, e.text);
    json_decref(j);
    return NULL;
}

tg_status tg_template_render(const tg_template *t, const char *variables, const tg_render_opts *opts,
                             tg_rendered *out) {
    tg_render_opts o;
    json_t *j = NULL;
    if (out) *out = (tg_rendered){0};
    if (!t) return TG_ERR_ARGUMENT;
    TG_TRY(t->ctx->run.status);
    if (!out) return tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_template_render: out is NULL, expected where the text goes");
    TG_TRY(tg_options(t->ctx, &o, &tg_render_opts_struct, opts, "tg_template_render"));
    if (variables && !(j = tg_template_json(t->ctx, variables, true, "tg_template_render: variables")))
        return t->ctx->run.status;
    tg_status s = tg_template_render_json(t, j, o.now, out);
    json_decref(j);
    return s;
}

void tg_rendered_free(tg_rendered *r) {
    if (!r) return;
    free(r->text);
    free(r->spans);
    *r = (tg_rendered){0};
}
