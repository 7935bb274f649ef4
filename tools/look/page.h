/* Pages: a file of HTML that shows runs, a step, or both, and needs nothing from a network. The data are JSON in the
 * page, and its script (page/) draws them.
 *
 * The JSON is an object with "kind" ("run", "compare" or "tape"), "title", "version" (tg_version), and one or both of:
 * - "runs": an array of what run_json returns.
 * - "step": what profile_gather returns. */
#ifndef TAPEGRAD_PAGE_H
#define TAPEGRAD_PAGE_H

#include "common/program.h"

/* Writes the page, whole or not at all, and frees the data. Returns false after printing what is wrong. */
bool page_save(tg_ctx *ctx, const char *path, json_t *data);

/* Reads the directory of a run: its metrics, its samples, and facts for a heading. If the run has many steps, each
 * point of a curve is the mean of several. The caller frees the JSON. NULL after printing what is wrong. */
json_t *run_json(const char *dir);

#endif
