// The kernel that uses every operation of the header's part for NVIDIA's NICs.
#ifndef TRUNKLINE_TESTS_MLX5_KERNELS_H
#define TRUNKLINE_TESTS_MLX5_KERNELS_H

#include "trunkline/device.h"

namespace tests {

// Local and remote memory, by keys and addresses. Both ends are this process, so the peer's slots are also local.
struct NicJob {
    const trunkline::mlx5::QueuePair *main;
    const trunkline::mlx5::QueuePair *companion;
    trunkline::Local here;
    trunkline::Remote there;
    trunkline::Remote signal;
    trunkline::Remote counter;
    trunkline::u64 looks;
    trunkline::u64 rounds;
    trunkline::u64 *failed;
};

TRUNKLINE_CALL trunkline::u64 exercise_once(const NicJob &job, const trunkline::mlx5::Lane &lane) {
    using namespace trunkline;
    Budget budget = looks(job.looks);
    Addition signal = {job.signal, 1, false}, counter = {job.counter, 1, false};
    With with = {&signal, &counter, false, false, false};
    Bytes bytes = {job.here, job.there, 64};
    Ticket write_done = {0, 0, 0}, last = {0, 0, 0};
    u64 number = 42;
    u64 failed = mlx5::put(lane, bytes, with, budget, write_done, last).kind != POSTED;
    failed += wait(*lane.main, write_done, budget).kind != GOOD;
    failed += mlx5::put_inline(lane, &number, 8, job.there, budget, last).kind != POSTED;
    failed += mlx5::get(lane, job.here, job.there, 8, budget, last).kind != POSTED;
    failed += mlx5::signal(lane, signal, budget, last).kind != POSTED;
    failed += mlx5::swap_if(lane, job.there, 43, 42, mlx5::sink_of(*lane.main), budget, last).kind != POSTED;
    failed += wait(*lane.main, last, budget).kind != GOOD;
    return failed;
}

TRUNKLINE_FN void exercise_nic(const NicJob &job) {
    trunkline::mlx5::Lane lane = {job.main, job.companion};
    trunkline::u64 failed = 0;
    for (trunkline::u64 round = 0; round < job.rounds; round++) failed += exercise_once(job, lane);
    trunkline::Wait how;
    if (failed != 0 && !trunkline::mlx5::is_over(*job.main, how)) trunkline::mlx5::abort(*job.main, trunkline::STATUS_ABORTED, 1);
    trunkline::dev_add(job.failed, failed);
}

}  // namespace tests

#endif
