// Turns of the lanes of a wavefront that run in lockstep, as on GPUs of AMD. A lane that has left a loop is masked until all others have
// left it. So a lane must not wait in a loop for another lane of its wavefront to act behind that loop: the wait would never end.
//
// Between reserving and publishing, and while it holds a lock, a lane delays other lanes. So one lane of a wavefront at a time executes
// such a section, from beginning to end, while the others are masked. Where threads are scheduled independently (CUDA, threads of a host)
// there are no turns: the loops below then have one pass, and compile to nothing.
//
//     for (Turns turns = begin_turns(); has_turns(turns); end_turn(turns)) {
//         if (!is_own_turn(turns)) continue;
//         ...
//     }
#ifndef TRUNKLINE_DEVICE_TURNS_H
#define TRUNKLINE_DEVICE_TURNS_H

#include "trunkline/device/abi.h"
#include "trunkline/device/platform.h"

// For tests: a loop that waits for other threads begins and ends, and a turn has ended.
#ifndef TRUNKLINE_WAITS
#define TRUNKLINE_WAITS(name) ((void)0)
#define TRUNKLINE_WAITED(name) ((void)0)
#endif
#ifndef TRUNKLINE_TURN_ENDS
#define TRUNKLINE_TURN_ENDS(lanes) ((void)0)
#endif

namespace trunkline {

// Lanes, one bit each.
struct Turns {
    u64 lanes;  // lanes that arrived together
    u64 left;   // lanes whose turn has not ended
    u64 own;    // the calling lane
};

// All lanes that run here take turns, the lowest first. All of them must make the same passes: no `break` and no `return`.
TRUNKLINE_FN Turns begin_turns() {
#if defined(TRUNKLINE_LOCKSTEP)
    u64 lanes = active_lanes();
    return Turns{lanes, lanes, own_lane()};
#else
    return Turns{1, 1, 1};
#endif
}

TRUNKLINE_FN bool has_turns(const Turns &turns) { return turns.left != 0; }
TRUNKLINE_FN bool is_own_turn(const Turns &turns) { return (turns.left & (0 - turns.left)) == turns.own; }

TRUNKLINE_FN void end_turn(Turns &turns) {
    TRUNKLINE_TURN_ENDS(turns.lanes);
    turns.left &= turns.left - 1;
}

}  // namespace trunkline

#endif
