/* What the text, Markdown and JSON of `tapegrad ops` share. */
#ifndef OPS_JSON_H
#define OPS_JSON_H

#include <jansson.h>
#include <tapegrad/extend.h>

/* Returns the name of a family, such as "pointwise"; "?" if f is none. */
const char *family_name(tg_family f);
/* Returns an object with the version of the library, the array of ops, and the array of structs of options. */
json_t *ops_json(void);

#endif
