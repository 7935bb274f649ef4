#!/bin/sh
# no_gpu.sh PROGRAM TEXT: nvcc's build on a machine without a GPU: one message says what is missing, and everything
# else works as without CUDA. With a GPU only the second part is tested.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
train="train --data $text $tiny --steps 2 --val-every 0"

if [ ! -e /dev/nvidiactl ]; then
    for device in cuda cuda:0 cuda:7; do
        refuses 1 'device "cuda": there is no NVIDIA driver here' $train --out x --device $device
    done
    refuses 1 'there is no NVIDIA driver here' gradcheck add --device cuda
    refuses 1 'device "cpu" needs none' $train --out x --device cuda --precision bf16
fi
runs $train --out cpu
runs eval --model cpu --data "$text"
runs gradcheck add
finish
