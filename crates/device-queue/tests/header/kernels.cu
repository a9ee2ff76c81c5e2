// The tests' kernels, for GPUs. They are only compiled: by NVRTC, and for HIP if no GPU exists (scripts/device-header).
#include "kernels.h"
#include "mlx5_kernels.h"
#include "window_kernels.h"
#include "window_entries.h"

// A program per block.
TRUNKLINE_KERNEL exercise(const tests::Job *job) { tests::exercise(*job, trunkline::this_block(job->group)); }

// A program per warp.
TRUNKLINE_KERNEL exercise_warp(const tests::Job *job) { tests::exercise(*job, trunkline::this_warp(job->group)); }

// A program per thread.
TRUNKLINE_KERNEL exercise_thread(const tests::Job *job) { tests::exercise(*job, trunkline::alone(job->group)); }

TRUNKLINE_KERNEL stop(const trunkline::View *view, unsigned *stopped) {
    *stopped = trunkline::abort(*view, trunkline::STATUS_ABORTED, 7);
}

// A deadline, and every comparison of a slot. They must compile; their registers are not measured.
TRUNKLINE_KERNEL compare(const trunkline::u64 *slot, unsigned how, trunkline::u64 value, unsigned *result) {
    trunkline::Budget budget = trunkline::until(trunkline::now() + value);
    trunkline::u64 found = 0;
    trunkline::Condition until = {(trunkline::Comparison)how, value};
    *result = trunkline::wait(trunkline::poisoned_slot(slot), until, budget, found).kind;
}

// A group's other waits.
TRUNKLINE_KERNEL wait_as_group(trunkline::u64 *words, const trunkline::u64 *slot, trunkline::u64 value, unsigned *result) {
    trunkline::Group group = trunkline::this_block(words);
    trunkline::Budget budget = trunkline::forever();
    trunkline::u64 found = 0;
    *result = trunkline::wait(group, trunkline::poisoned_slot(slot), trunkline::Condition{trunkline::AT_LEAST, value}, budget, found).kind;
}

TRUNKLINE_KERNEL exercise_mlx5(const tests::NicJob *job) { tests::exercise_nic(*job); }

// Kernels over windows: one block per channel.
TRUNKLINE_FN trunkline::Kernel of_block(const trunkline::Window &window, trunkline::u32 channel, trunkline::u64 ticks) {
    trunkline::Group group = trunkline::this_block(trunkline::group_words(window, channel));
    return trunkline::kernel_of(window, channel, group, trunkline::until(trunkline::now() + ticks));
}

TRUNKLINE_KERNEL ring_sum(const trunkline::Window *window, trunkline::u64 *numbers, trunkline::u64 count, unsigned *how) {
    trunkline::Kernel kernel = of_block(*window, 0, 1000000000);
    *how = tests::ring_sum(kernel, numbers, count).kind;
}

TRUNKLINE_KERNEL dispatch(const trunkline::Window *window, trunkline::u64 *tokens, trunkline::u64 count, unsigned *how) {
    trunkline::Kernel kernel = of_block(*window, 0, 1000000000);
    *how = tests::dispatch(kernel, tests::Tokens{tokens, count}).kind;
}

TRUNKLINE_KERNEL halo(const trunkline::Window *window, double *cells, trunkline::u64 count, trunkline::u64 steps, unsigned *how) {
    trunkline::Kernel kernel = of_block(*window, 0, 1000000000);
    *how = tests::halo(kernel, cells, count, 0, steps).kind;
}

TRUNKLINE_KERNEL use_window(const trunkline::Window *window, trunkline::u64 *failed) {
    trunkline::Kernel kernel = of_block(*window, 0, 1000000000);
    *failed = tests::use_window(kernel);
    trunkline::abort(kernel, 1);
}
