// Signals and counters: words that remote operations change, and error words that report failed operations.
//
// This file only loads values and error words. A reset stores the current value as a base, in a word of this device, and never writes to
// the value, so no addition is lost. Only the host clears a poison word.
#ifndef TRUNKLINE_DEVICE_SLOT_H
#define TRUNKLINE_DEVICE_SLOT_H

#include "trunkline/device/abi.h"
#include "trunkline/device/platform.h"
#include "trunkline/device/queue.h"

namespace trunkline {

struct Slot {
    const u64 *value;
    const u64 *error;
    u64 *base;  // in memory of this device, changed by the slot's owner; null: the slot is never reset
};

// Returns a slot of 16 bytes: value and poison word.
TRUNKLINE_FN Slot poisoned_slot(const u64 *at) { return Slot{at, at + 1, nullptr}; }

enum Comparison : u32 { EQUAL = 0, NOT_EQUAL = 1, AT_LEAST = 2, MORE_THAN = 3, AT_MOST = 4, LESS_THAN = 5 };

// The condition that a slot, less its base, must meet.
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

// Returns the sum of additions since the last reset.
TRUNKLINE_FN u64 read(const Slot &slot) {
    // The base is read first: it is then never ahead of the value, which is read later.
    u64 base = slot.base == nullptr ? 0 : dev_load(slot.base);
    return sys_load(slot.value) - base;
}

// Resets the slot: earlier additions no longer count, later ones do. False without a base. `counted` is the amount that this call has set
// aside.
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

// Returns whether an operation on this slot has failed, and the reason in `how`.
TRUNKLINE_FN bool is_poisoned(const Slot &slot, Wait &how) {
    u64 word = sys_load(slot.error);
    if (word == 0) return false;
    how = Wait{POISONED, status_of(word, STATUS_FLUSHED), (u32)(word >> 32), 0};
    return true;
}

// Polls once: true if the value meets the condition, or the slot is poisoned.
TRUNKLINE_FN bool look(const Slot &slot, const Condition &until, Wait &how) {
    how = good();
    if (holds(until, read(slot))) return true;
    TRUNKLINE_STEP("looked");
    if (!is_poisoned(slot, how)) return false;
    // Additions before the failure may have arrived since the first read.
    if (holds(until, read(slot))) how = good();
    return true;
}

// Waits until the value meets the condition, and returns it in `value`. Bytes written before the value was changed can be read then.
TRUNKLINE_CALL Wait wait(const Slot &slot, const Condition &until, Budget &budget, u64 &value) {
    Wait how;
    while (!look(slot, until, how)) {
        if (!goes_on(budget)) return ended(TIMEOUT);
        pause();
    }
    if (how.kind == GOOD) value = read(slot);
    return how;
}

// As wait, and ends with ABORTED when `view` is aborted: the awaited operation may then never have been posted.
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
