// A program that waits for a signal of one rank, and of two together. The signal arrives and then the slot fails, both
// after the wait has read the value and before it reads the error word. Prints how each wait ended, and the value.
#include <stdio.h>
#include <string.h>

static unsigned long long slots[4];
static bool is_still_to_come;

// Another rank's actions meanwhile: the value is raised, then the error word is set.
static void meanwhile(const char *step) {
    if (!is_still_to_come || strcmp(step, "looked") != 0) return;
    is_still_to_come = false;
    slots[2] = 1;
    slots[3] = 7;
}

#define TRUNKLINE_STEP(name) meanwhile(name)
#include "trunkline/device.h"

using namespace trunkline;

static void begin() {
    memset(slots, 0, sizeof slots);
    is_still_to_come = true;
}

int main() {
    u64 found = 0;
    begin();
    Budget budget = looks(5);
    Wait how = wait(poisoned_slot((const u64 *)slots + 2), Condition{AT_LEAST, 1}, budget, found);
    printf("%u %llu\n", how.kind, (unsigned long long)found);

    begin();
    u64 bases[2] = {0, 0};
    Window window = {};
    window.ranks = 2;
    window.signals = 1;
    window.base = window.slots = (u8 *)slots;
    window.signal_bases = bases;
    how = look_at_signals(window, 0, 1, found = 0);
    printf("%u %llu\n", how.kind, (unsigned long long)found);

    // A failure without the signal must be reported.
    begin();
    slots[1] = 7;
    is_still_to_come = false;
    how = look_at_signals(window, 0, 1, found);
    printf("%u %llu\n", how.kind, (unsigned long long)found);
    return 0;
}
