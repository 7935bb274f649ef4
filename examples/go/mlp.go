// The program of mlp.c in Go, by cgo: go run examples/go/mlp.go, where pkg-config finds Tapegrad.
package main

/*
#cgo pkg-config: tapegrad
#include <stdlib.h>
#include <tapegrad/optim.h>
#include <tapegrad/tapegrad.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"unsafe"
)

// A session owns a context and a tape. Tensors belong to one of the two, so Go frees none of them.
type session struct {
	ctx  *C.tg_ctx
	tape *C.tg_tape
}

type tensor = *C.tg_tensor

func newSession(seed uint64) session {
	var config C.tg_config
	fill("tg_config", unsafe.Pointer(&config), C.sizeof_tg_config)
	config.seed = C.uint64_t(seed)
	ctx := C.tg_ctx_new(&config)
	return session{ctx, C.tg_tape_new(ctx)}
}

func (s session) free() {
	C.tg_tape_free(s.tape)
	C.tg_ctx_free(s.ctx)
}

// Returns the first error of the context. Errors are sticky, so one check after many calls is enough.
func (s session) err() error {
	if C.tg_ctx_status(s.ctx) == C.TG_OK {
		return nil
	}
	return errors.New(C.GoString(C.tg_ctx_message(s.ctx)))
}

// Fills a struct of options with its defaults. The macros that do so in C are not for cgo.
func fill(name string, s unsafe.Pointer, size C.size_t) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	C.tg_struct_fill(c, s, size)
}

func shape(sizes ...int64) C.tg_shape {
	return C.tg_shape_make(C.size_t(len(sizes)), (*C.int64_t)(unsafe.Pointer(&sizes[0])))
}

func (s session) randn(sizes ...int64) tensor {
	return C.tg_randn(s.ctx, C.TG_F32, shape(sizes...), 1)
}

func (s session) param(std float64, sizes ...int64) tensor {
	return C.tg_param_new(s.ctx, nil, C.TG_F32, shape(sizes...), C.double(std))
}

func (s session) adamw(params []tensor, lr float64) *C.tg_optim {
	var opts C.tg_adamw_opts
	fill("tg_adamw_opts", unsafe.Pointer(&opts), C.sizeof_tg_adamw_opts)
	opts.lr = C.double(lr)
	return C.tg_adamw_new(s.ctx, &params[0], C.int(len(params)), &opts)
}

func train(s session) (float64, error) {
	x, y := s.randn(64, 8), s.randn(64, 1)
	p := []tensor{s.param(0.35, 32, 8), s.param(0, 32), s.param(0.18, 1, 32), s.param(0, 1)}
	opt := s.adamw(p, 1e-2)
	defer C.tg_optim_free(opt)
	last := 0.0
	for step := 0; step < 200; step++ {
		h := C.tg_relu(s.tape, C.tg_linear(s.tape, x, p[0], p[1]))
		loss := C.tg_mse(s.tape, C.tg_linear(s.tape, h, p[2], p[3]), y)
		C.tg_backward(s.tape, loss)
		C.tg_optim_step(opt)
		C.tg_optim_zero_grad(opt)
		last = float64(C.tg_item(loss))
		if step%50 == 0 {
			fmt.Printf("%4d  %.5f\n", step, last)
		}
		C.tg_tape_reset(s.tape)
	}
	return last, s.err()
}

func main() {
	s := newSession(1)
	defer s.free()
	if last, err := train(s); err != nil || last > 0.01 {
		fmt.Fprintln(os.Stderr, "loss", last, err)
		os.Exit(1)
	}
	C.tg_add(s.tape, s.randn(2, 3), s.randn(4)) // a mistake
	fmt.Println(s.err())
}
