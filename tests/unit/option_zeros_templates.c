/* The probes of the structs of options of chat templates. */
#include <string.h>

#include <tapegrad/template.h>

#include "option_zeros.h"

/* Returns whether the template was rendered at second 0. Near it, each time zone is in the old or the new year. */
static bool is_first_day(tg_template *x, tg_rendered *r) {
    bool good = r->text && (!strcmp(r->text, "1970") || !strcmp(r->text, "1969"));
    tg_rendered_free(r);
    tg_template_free(x);
    return good;
}

static bool render(const void *o) {
    tg_rendered r;
    tg_template *x = tg_template_new(ctx, "{{ strftime_now('%Y') }}", NULL);
    tg_template_render(x, NULL, o, &r);
    return is_first_day(x, &r);
}

static bool chat(const void *o) {
    tg_rendered r;
    tg_template *x = tg_template_new(ctx, "{{ strftime_now('%Y') }}", NULL);
    tg_chat_render(x, "[]", o, &r);
    return is_first_day(x, &r);
}

const tg_zero_probe tg_zeros_templates[] = {
    {"tg_render_opts", "now", render, NULL},
    {"tg_chat_opts", "now", chat, NULL},
    {NULL},
};
