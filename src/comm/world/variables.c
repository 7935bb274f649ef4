/* Reads environment variables, and records the first contradiction between them. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "comm/world/world.h"

const char *tg_variable(const char *name) {
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

bool tg_world_refuse(tg_world_query_state *q, const char *format, ...) {
    va_list ap;
    if (q->status != TG_OK) return false;
    q->status = TG_ERR_ARGUMENT;
    va_start(ap, format);
    if (q->message && q->n) vsnprintf(q->message, q->n, format, ap);
    va_end(ap);
    return false;
}

bool tg_variable_number(tg_world_query_state *q, const char *name, int least, int *value) {
    const char *text = tg_variable(name);
    if (!text) return false;
    return tg_text_int(text, least, value) ||
           tg_world_refuse(q, "%s is \"%s\", expected a number from %d on", name, text, least);
}

bool tg_world_read_host(tg_world_query_state *q) {
    const char *host = tg_variable("MASTER_ADDR");
    const size_t most = sizeof q->info.host - 1;
    if (!host) return false;
    if (strlen(host) > most)
        tg_world_refuse(q, "MASTER_ADDR has %zu characters, expected at most %zu; set it to the node of rank 0",
                        strlen(host), most);
    else
        snprintf(q->info.host, sizeof q->info.host, "%s", host);
    return true;
}
