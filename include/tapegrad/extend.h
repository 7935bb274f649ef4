/* The header for programs that define ops, devices or transports, and for language bindings. It includes tapegrad.h and
 * the headers with the tables of functions that such programs fill in. */
#ifndef TAPEGRAD_EXTEND_H
#define TAPEGRAD_EXTEND_H

#include <tapegrad/derivatives.h>
#include <tapegrad/device.h>
#include <tapegrad/op.h>
#include <tapegrad/op_call.h>
#include <tapegrad/tapegrad.h>
#include <tapegrad/transport.h>

#endif
