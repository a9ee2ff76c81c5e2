// Signals and counters: words that others change, and the words that tell that what was to come has failed.
//
// Their values and error words are only loaded here. A slot begins anew by remembering what it had, in a word of this device:
// nothing is written to the value, so no addition is ever lost. Taking a poison away is the host's.
#ifndef TRUNKLINE_DEVICE_SLOT_H
#define TRUNKLINE_DEVICE_SLOT_H

#include "trunkline/device/abi.h"
#include "trunkline/device/platform.h"
#include "trunkline/device/queue.h"

namespace trunkline {

struct Slot {
    const u64 *value;
    const u64 *error;
    u64 *base;  // its owner's, in memory of this device; null: it never begins anew
};

// A slot of 16 bytes: value and poison.
TRUNKLINE_FN Slot poisoned_slot(const u64 *at) { return Slot{at, at + 1, nullptr}; }

enum Comparison : u32 { EQUAL = 0, NOT_EQUAL = 1, AT_LEAST = 2, MORE_THAN = 3, AT_MOST = 4, LESS_THAN = 5 };

// What a slot is waited to be, less its base.
struct Condition {
    Comparison comparison;
    u64 value;
};

TRUNKLINE_FN bool holds(const Condition &until, u64 value) {
    switch (until.comparison) {
        case EQUAL: return value == until.value;
        case NOT_EQUAL: return value != until.value;
        case AT_LEAST: return value >= until.value;
        case MORE_THAN: return value > until.value;
        case AT_MOST: return value <= until.value;
        case LESS_THAN: return value < until.value;
    }
    return false;
}

// What has been added since it began anew.
TRUNKLINE_FN u64 read(const Slot &slot) {
    // The base first: it never is ahead of a value that is read later.
    u64 base = slot.base == nullptr ? 0 : dev_load(slot.base);
    return sys_load(slot.value) - base;
}

// Begins anew: what has come before counts no more, what comes later does. False without a base. `counted`: what this call has
// set aside.
TRUNKLINE_FN bool reset(const Slot &slot, u64 &counted) {
    if (slot.base == nullptr) return false;
    u64 base = dev_load(slot.base);
    for (;;) {
        u64 value = sys_load(slot.value);
        TRUNKLINE_STEP("reset");
        u64 old = dev_cas(slot.base, base, value);
        counted = value - old;
        if (old == base) return true;
        base = old;
    }
}

// Why what was to come here did not, if so.
TRUNKLINE_FN bool is_poisoned(const Slot &slot, Wait &how) {
    u64 word = sys_load(slot.error);
    if (word == 0) return false;
    how = Wait{POISONED, status_of(word, STATUS_FLUSHED), (u32)(word >> 32), 0};
    return true;
}

// Looks whether the value is as wanted, or never will be.
TRUNKLINE_FN bool look(const Slot &slot, const Condition &until, Wait &how) {
    how = good();
    if (holds(until, read(slot))) return true;
    TRUNKLINE_STEP("looked");
    if (!is_poisoned(slot, how)) return false;
    // What came before the failure may have come since the look.
    if (holds(until, read(slot))) how = good();
    return true;
}

// Waits until the value is as wanted; what it is then. What was written before it was changed can be read then.
TRUNKLINE_CALL Wait wait(const Slot &slot, const Condition &until, Budget &budget, u64 &value) {
    Wait how;
    while (!look(slot, until, how)) {
        if (!goes_on(budget)) return ended(TIMEOUT);
        pause();
    }
    if (how.kind == GOOD) value = read(slot);
    return how;
}

// The same, and ends with ABORTED when everybody who uses a queue is to stop: what was to come may then never have been posted.
TRUNKLINE_CALL Wait wait_unless_aborted(const View &view, const Slot &slot, const Condition &until, Budget &budget,
                                        u64 &value) {
    Wait how;
    while (!look(slot, until, how)) {
        if (is_aborted(view, how)) return how;
        if (!goes_on(budget)) return ended(TIMEOUT);
        pause();
    }
    if (how.kind == GOOD) value = read(slot);
    return how;
}

}  // namespace trunkline

#endif
