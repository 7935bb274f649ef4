/* Chat templates: wrong calls. Malformed templates have tests of their own (unit/test_templates.c). */
#include <tapegrad/template.h>

#include "misuse/misuse.h"

void misuse_templates(misuse_world *b) {
    tg_rendered r = {0};
    tg_template *t = tg_template_new(b->ctx, "{{ x }}", NULL);
    QUIET(tg_template_new, !tg_template_new(NULL, "x", NULL));
    GIVES(tg_template_new, ARGUMENT, "source is NULL", !tg_template_new(b->ctx, NULL, NULL));
    GIVES(tg_template_new, FORMAT, "'a.jinja', line 1", !tg_template_new(b->ctx, "{{", "'a.jinja'"));
    QUIET(tg_template_free, (tg_template_free(NULL), true));
    QUIET(tg_template_render, tg_template_render(NULL, NULL, NULL, &r) == TG_ERR_ARGUMENT);
    FAILS(tg_template_render, ARGUMENT, "out is NULL", tg_template_render(t, NULL, NULL, NULL));
    FAILS(tg_template_render, FORMAT, "not JSON", tg_template_render(t, "{", NULL, &r));
    FAILS(tg_template_render, ARGUMENT, "size", tg_template_render(t, NULL, &(tg_render_opts){.now = 1}, &r));
    QUIET(tg_chat_render, tg_chat_render(NULL, "[]", NULL, &r) == TG_ERR_ARGUMENT);
    FAILS(tg_chat_render, ARGUMENT, "messages is NULL", tg_chat_render(t, NULL, NULL, &r));
    FAILS(tg_chat_render, ARGUMENT, "out is NULL", tg_chat_render(t, "[]", NULL, NULL));
    FAILS(tg_chat_render, FORMAT, "expected an array", tg_chat_render(t, "{}", NULL, &r));
    FAILS(tg_chat_render, ARGUMENT, "size", tg_chat_render(t, "[]", &(tg_chat_opts){.bos = "x"}, &r));
    QUIET(tg_rendered_free, (tg_rendered_free(NULL), tg_rendered_free(&r), true));
    tg_template_free(t);
}
