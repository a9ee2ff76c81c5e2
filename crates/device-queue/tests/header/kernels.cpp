// The tests' kernels, for threads of the host.
#include <sched.h>

#define TRUNKLINE_PAUSE() sched_yield()
#include "kernels.h"

extern "C" {

void exercise(const tests::Job *job, unsigned rank, unsigned size) {
    trunkline::Meeting meeting = size == 1 ? trunkline::MEET_ALONE : trunkline::MEET_COUNT;
    tests::exercise(*job, trunkline::group_of(job->group, rank, size, meeting));
}

// Aborts the queue for all threads.
unsigned stop(const trunkline::View *view, unsigned reason) { return trunkline::abort(*view, trunkline::STATUS_ABORTED, reason); }

}
