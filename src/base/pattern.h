/* Patterns that name modules and parameters by their paths, such as "q_proj", "layers.0" or "*norm*". */
#ifndef TG_PATTERN_H
#define TG_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

enum { TG_PATTERN_BYTES = 256 };

/* Takes the next pattern from a list that is separated by commas. *rest is the list before the first call, and what
 * remains of the list after each. Returns false at the end of the list. Empty patterns are skipped, and a pattern of
 * TG_PATTERN_BYTES or more is cut. */
bool tg_pattern_take(const char **rest, char pattern[TG_PATTERN_BYTES]);
/* Returns whether the pattern matches the path, or consecutive components of it: "attn" matches "h.0.attn.c_attn".
 * Components that have 2 * TG_PATTERN_BYTES bytes or more together match no pattern. Within the pattern *, ? and [..]
 * mean what they mean for file names (fnmatch); they match dots too. */
bool tg_pattern_matches(const char *pattern, const char *path);
/* Returns whether a pattern of the list matches the path. patterns may be NULL, which matches nothing. */
bool tg_patterns_match(const char *patterns, const char *path);

#endif
