/* The struct of options of tg_comm_tcp_new. */
#include <tapegrad/tcp.h>

#include "base/options.h"

static const tg_field tcp_fields[] = {
    TG_FIELD(tg_tcp_opts, rank, INT, "The number of this rank, from 0."),
    TG_FIELD(tg_tcp_opts, ranks, INT, "The number of all ranks."),
    TG_FIELD(tg_tcp_opts, host, TEXT, "Name or address of rank 0's node, where rank 0 listens."),
    TG_FIELD(tg_tcp_opts, port, INT, "The first port on which rank 0 may listen, from 1 to 65535."),
    TG_FIELD(tg_tcp_opts, ports, INT, "Number of ports on which rank 0 may listen, from port on."),
    TG_FIELD(tg_tcp_opts, job, TEXT, "Names the run, the same on all ranks; NULL: \"\"."),
    TG_FIELD(tg_tcp_opts, one_node, BOOL, "Whether all ranks are on one node."),
};
const tg_struct tg_tcp_opts_struct = TG_STRUCT(tg_tcp_opts, TCP, tcp_fields, "Options of tg_comm_tcp_new.");
