/* What the text, Markdown and JSON of `tapegrad ops` share. */
#ifndef OPS_JSON_H
#define OPS_JSON_H

#include <jansson.h>
#include <tapegrad/extend.h>

const char *family_name(tg_family f);
/* Returns the table of ops as JSON: an object with the version of the library and the array of ops. */
json_t *ops_json(void);

#endif
