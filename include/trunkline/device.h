// Device queues of Trunkline, for code that runs on a device: CUDA and HIP, compiled ahead or at run time, and threads of a host.
//
// Include this one file. It needs no other header, no standard library and no toolkit: C++17, no exceptions, no virtual functions, no
// statics. docs/device.md explains how to write a kernel, docs/wire.md ("Device queues") defines the memory layout.
//
//   device/abi.h        layouts and numbers that the host uses too
//   device/platform.h   memory accesses of a device; one file for each kind of device
//   device/turns.h      turns of lanes that run in lockstep
//   device/entry.h      entries as eight words
//   device/queue.h      reserve, write, publish, submit, poll, wait, cancel
//   device/slot.h       signals and counters
//   device/lane.h       a queue and its companion
//   device/original.h   operations of the original API
//   device/successor.h  operations of its successor: channels of several lanes
//   device/group.h      groups of threads that continue or stop as one
//   device/window.h     windows: puts, gets, signals, counters and barriers by ranks, offsets and numbers
//   device/stream.h     bytes from kernel to kernel: send, receive, forward, reduce
//   device/mlx5.h       the same protocol on a queue pair of NVIDIA's NICs
#ifndef TRUNKLINE_DEVICE_H
#define TRUNKLINE_DEVICE_H

#include "trunkline/device/abi.h"
#include "trunkline/device/platform.h"
#include "trunkline/device/turns.h"
#include "trunkline/device/entry.h"
#include "trunkline/device/queue.h"
#include "trunkline/device/slot.h"
#include "trunkline/device/lane.h"
#include "trunkline/device/original.h"
#include "trunkline/device/successor.h"
#include "trunkline/device/group.h"
#include "trunkline/device/window.h"
#include "trunkline/device/stream.h"
#include "trunkline/device/mlx5.h"

#endif
