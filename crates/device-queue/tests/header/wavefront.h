// A wavefront of the host: its lanes run in lockstep, on one processor. A lane that has left a loop is stopped until
// all lanes in the loop have left it, as AMD's GPUs mask it. A second lane that enters a loop in which lanes wait for
// each other ends the program. If that check is off, the test detects whether the lanes hang.
//
// Include it before the device header. Each lane has a stack of its own, and yields the processor at the points that the header names.
#ifndef TRUNKLINE_TESTS_WAVEFRONT_H
#define TRUNKLINE_TESTS_WAVEFRONT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

namespace wavefront {

constexpr unsigned LANES = 8;
constexpr unsigned STACK_BYTES = 1 << 18;
constexpr unsigned PASSES_MAX = 20000;

enum At : unsigned { RUNS, ENTERS, LEFT, BEGINS_TURNS, ENDS_TURN, OVER };

struct LaneState {
    ucontext_t context;
    At at;
    const char *loop;          // the loop that the lane enters, is in or has left; null: none
    unsigned long long lanes;  // the lanes that take turns with it
};

static LaneState lanes[LANES];
static ucontext_t scheduler;
static unsigned running;
static bool is_strict;
static void (*kernel)(unsigned lane);

static void stop_at(At at) {
    lanes[running].at = at;
    swapcontext(&lanes[running].context, &scheduler);
}

// Whether lanes wait for each other in this loop. At a group's meeting all lanes arrive together, and the last one
// releases the others before it waits, so that loop does not count.
static bool is_exclusive(const char *loop) { return strcmp(loop, "meet") != 0; }

static void enter(const char *loop) {
    for (unsigned other = 0; is_strict && is_exclusive(loop) && other < LANES; other++) {
        if (other == running || lanes[other].loop == nullptr || !is_exclusive(lanes[other].loop)) continue;
        fprintf(stderr, "lane %u enters the loop \"%s\" while lane %u is in \"%s\"\n", running, loop, other, lanes[other].loop);
        abort();
    }
    lanes[running].loop = loop;
    stop_at(ENTERS);
}

static void leave(const char *) {
    stop_at(LEFT);
    lanes[running].loop = nullptr;
}

static unsigned long long active() {
    stop_at(BEGINS_TURNS);
    return lanes[running].lanes;
}

static unsigned long long own() { return 1ull << running; }

static void end_turn(unsigned long long of) {
    lanes[running].lanes = of;
    stop_at(ENDS_TURN);
}

static void pause() { stop_at(RUNS); }

static void run_lane() {
    kernel(running);
    stop_at(OVER);
}

static bool is_left_by_all(const char *loop) {
    for (const LaneState &lane : lanes)
        if (lane.loop != nullptr && strcmp(lane.loop, loop) == 0 && lane.at != LEFT) return false;
    return true;
}

static bool have_ended_turn(unsigned long long of) {
    for (unsigned at = 0; at < LANES; at++)
        if (of >> at & 1 && (lanes[at].at != ENDS_TURN || lanes[at].lanes != of)) return false;
    return true;
}

// Continues lanes that enter a loop or begin turns, and lanes whose loop or turn all lanes have left.
static void release() {
    bool goes_on[LANES];
    unsigned long long begin = 0;
    for (unsigned at = 0; at < LANES; at++) begin |= (unsigned long long)(lanes[at].at == BEGINS_TURNS) << at;
    for (unsigned at = 0; at < LANES; at++) {
        const LaneState &lane = lanes[at];
        goes_on[at] = lane.at == ENTERS || lane.at == BEGINS_TURNS || (lane.at == LEFT && is_left_by_all(lane.loop)) ||
                      (lane.at == ENDS_TURN && have_ended_turn(lane.lanes));
    }
    for (unsigned at = 0; at < LANES; at++) {
        if (lanes[at].at == BEGINS_TURNS) lanes[at].lanes = begin;
        if (goes_on[at]) lanes[at].at = RUNS;
    }
}

// Runs a kernel on all lanes, and `between` after each pass over them. Returns false if they hang.
static bool run(void (*of_lane)(unsigned lane), void (*between)()) {
    kernel = of_lane;
    for (LaneState &lane : lanes) {
        getcontext(&lane.context);
        lane.context.uc_stack.ss_sp = malloc(STACK_BYTES);
        lane.context.uc_stack.ss_size = STACK_BYTES;
        lane.context.uc_link = nullptr;
        lane.at = RUNS;
        lane.loop = nullptr;
        makecontext(&lane.context, run_lane, 0);
    }
    unsigned over = 0;
    for (unsigned pass = 0; pass < PASSES_MAX && over < LANES; pass++) {
        for (running = 0; running < LANES; running++)
            if (lanes[running].at == RUNS) swapcontext(&scheduler, &lanes[running].context);
        release();
        between();
        over = 0;
        for (const LaneState &lane : lanes) over += lane.at == OVER;
    }
    for (LaneState &lane : lanes) free(lane.context.uc_stack.ss_sp);
    return over == LANES;
}

}  // namespace wavefront

#define TRUNKLINE_LANES() wavefront::active()
#define TRUNKLINE_OWN_LANE() wavefront::own()
#define TRUNKLINE_WAITS(name) wavefront::enter(name)
#define TRUNKLINE_WAITED(name) wavefront::leave(name)
#define TRUNKLINE_TURN_ENDS(of) wavefront::end_turn(of)
#define TRUNKLINE_PAUSE() wavefront::pause()

#endif
