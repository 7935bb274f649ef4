/* Umbrella header for those who write ops, devices, transports or language bindings. It adds the tables of functions
 * that such extensions fill in, and includes tapegrad.h. */
#ifndef TAPEGRAD_EXTEND_H
#define TAPEGRAD_EXTEND_H

#include <tapegrad/derivatives.h>
#include <tapegrad/device.h>
#include <tapegrad/op.h>
#include <tapegrad/op_call.h>
#include <tapegrad/tapegrad.h>
#include <tapegrad/transport.h>

#endif
