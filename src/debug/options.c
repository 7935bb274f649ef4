/* The struct of options of printing. */
#include <tapegrad/print.h>

#include "base/options.h"

static const tg_field print_fields[] = {
    TG_FIELD(tg_print_opts, precision, INT, "Greatest number of digits after the decimal point, 0 or more."),
    TG_FIELD(tg_print_opts, threshold, INT64, "Tensors with more elements are summarized, 0 or more."),
    TG_FIELD(tg_print_opts, edge, INT, "Elements that a summary shows at each end of a dim, 1 or more."),
    TG_FIELD(tg_print_opts, width, INT, "Greatest number of characters of a line, 1 or more."),
    TG_FIELD(tg_print_opts, values_only, BOOL, "Leaves out the name, the dtype and the shape after the values."),
};
const tg_struct tg_print_opts_struct = TG_STRUCT(tg_print_opts, PRINT, print_fields, "Options of tg_print.");
