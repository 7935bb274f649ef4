/* The header for programs that define ops, devices or transports, and for language bindings. It includes tapegrad.h,
 * the tables of functions of an op (op.h), a device (device.h) and a transport (transport.h), functions for second
 * derivatives of ops (derivatives.h), and calls of ops by name (op_call.h). A layer of messages is described in p2p.h,
 * which is included by its own name. */
#ifndef TAPEGRAD_EXTEND_H
#define TAPEGRAD_EXTEND_H

#include <tapegrad/derivatives.h>
#include <tapegrad/device.h>
#include <tapegrad/op.h>
#include <tapegrad/op_call.h>
#include <tapegrad/tapegrad.h>
#include <tapegrad/transport.h>

#endif
