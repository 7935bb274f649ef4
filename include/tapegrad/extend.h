/* Umbrella header for writers of ops, devices, transports and bindings: the tables behind the API. */
#ifndef TAPEGRAD_EXTEND_H
#define TAPEGRAD_EXTEND_H

#include <tapegrad/derivatives.h>
#include <tapegrad/device.h>
#include <tapegrad/op.h>
#include <tapegrad/tapegrad.h>
#include <tapegrad/transport.h>

#endif
