/* Writes pages (page.h). */
#include "look/page.h"

#include <stdlib.h>
#include <string.h>

extern const char page_style[], page_script[]; /* made by page/embed.c */

/* The security policy denies the page all access to a network. */
static const char head[] =
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:\">\n<link rel=\"icon\" href=\"data:,\">\n<title>";

/* Writes text so that it can stand in an element of HTML. */
static void put_text(FILE *f, const char *text) {
    for (; *text; text++) {
        const char *as = *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;" : NULL;
        if (as)
            fputs(as, f);
        else
            putc(*text, f);
    }
}

/* Writes JSON with "<" as "\u003c", so that no text in it can end the script element that holds it. */
static void put_json(FILE *f, const char *json) {
    for (; *json; json++)
        if (*json == '<')
            fputs("\\u003c", f);
        else
            putc(*json, f);
}

static void put_page(FILE *f, const char *title, const char *json) {
    fputs(head, f);
    put_text(f, title);
    fprintf(f, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<main id=\"page\"></main>\n", page_style);
    fputs("<noscript>This page draws its charts with JavaScript.</noscript>\n", f);
    fputs("<script type=\"application/json\" id=\"data\">", f);
    put_json(f, json);
    fprintf(f, "</script>\n<script>\n%s</script>\n</body>\n</html>\n", page_script);
}

bool page_save(tg_ctx *ctx, const char *path, json_t *data) {
    char *page = NULL, *json = json_text(data, JSON_COMPACT | JSON_REAL_PRECISION(6));
    const char *title = json_string_value(json_object_get(data, "title"));
    const char *is = not_regular(path);
    size_t n = 0;
    FILE *f = json && !is ? open_memstream(&page, &n) : NULL;
    if (f) put_page(f, title ? title : "Tapegrad", json);
    bool good = f && fclose(f) == 0;
    if (is)
        fail("cannot write '%s': it is %s, expected a regular file or a new one", path, is);
    else if (!good)
        fail("no memory for the page '%s'", path);
    if (good) tg_file_save(ctx, path, page, n);
    free(json);
    free(page);
    json_decref(data);
    return good && check(ctx);
}
