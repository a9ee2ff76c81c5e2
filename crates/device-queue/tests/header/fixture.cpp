// The device header as a library of the host, for tests that drive it and the Rust core side by side. An operation has
// a number, argument words and result words, which twin.rs defines in the same order.

typedef void (*Step)(void *context, const char *name);

static Step step;
static void *step_context;

static void pass_step(const char *name) {
    if (step != nullptr) step(step_context, name);
}

// Memory that no atomic may change, as pairs of first address and end, and the number of violations.
static unsigned long long guarded[32][2];
static unsigned guards;
static unsigned long long changes;

static void look_at_change(const void *word) {
    unsigned long long at = (unsigned long long)word;
    for (unsigned guard = 0; guard < guards; guard++) changes += at >= guarded[guard][0] && at < guarded[guard][1];
}

#define TRUNKLINE_CHANGES(word) look_at_change(word)
#define TRUNKLINE_STEP(name) pass_step(name)

#include "trunkline/device.h"

using namespace trunkline;

struct Twin {
    View views[8];
    Lane lanes[4];
    u32 count;
    Channel channel;
    u64 *slots;
    u64 *group;
    Reservation held[4];
};

static void tell_wait(u64 *out, const Wait &how) {
    out[1] = how.kind;
    out[2] = how.status;
    out[3] = how.detail;
    out[4] = how.first_bad;
}

static void tell_post(u64 *out, const Post &result) {
    out[0] = result.kind;
    tell_wait(out, result.why);
}

static void tell_ticket(u64 *out, const Post &result, const Ticket &ticket) {
    tell_post(out, result);
    if (result.kind != POSTED) return;
    out[5] = ticket.queue;
    out[6] = ticket.index;
}

static void tell_put(u64 *out, const Post &result, const Put &put) {
    tell_post(out, result);
    if (result.kind != POSTED) return;
    out[5] = put.lane;
    out[6] = put.write.index;
    out[7] = put.last.index;
}

static Addition addition(u64 kind, u64 id, u64 value) {
    if (kind == 0) return add_to_word(Remote{0, 1, 1}, (u32)id, value);
    return add_to_slot(Remote{128, 3, 1}, (u32)id, value);
}

static Entry entry_by(const u64 *args) {
    Remote remote = {args[2], (u32)args[3], (u32)args[4]};
    Entry entry = entry_nop();
    switch (args[1]) {
        case 0: entry = entry_notify((u32)args[4], (u32)args[5]); break;
        case 1: entry = entry_barrier(); break;
        case 2: entry = entry_show(); break;
        case 3: entry = entry_write_telling(Local{args[2], 7}, remote, args[5] % LENGTH_MAX, (u32)args[5]); break;
        case 4: entry = entry_wait((u32)args[3], args[5]); break;
        case 5: entry = entry_atomic(OP_ADD_MASKED, Remote{args[2] & ~7ull, remote.key, remote.peer}, args[5], args[6], true); break;
        case 6: entry = entry_read(Local{args[2], 7}, remote, args[5] % LENGTH_MAX); break;
        default: break;
    }
    Fence fence = args[6] % 3 == 0 ? FENCE_NONE : args[6] % 3 == 1 ? FENCE_READS_AND_ATOMICS : FENCE_ALL;
    return tagged(fenced(entry, fence), (u16)args[6]);
}

static void original_act(Twin &twin, u64 act, const u64 *args, u64 *out, Budget &budget) {
    const trunkline::Lane &lane = twin.lanes[args[1] % twin.count];
    Bytes bytes = {{args[2], 7}, {args[3], 2, 1}, args[4]};
    Addition signal = addition(0, args[5], args[6]);
    Addition counter = addition(0, args[7], args[8]);
    Ticket ticket = {0, 0, 0};
    switch (act) {
        case 0: return tell_ticket(out, original::put(lane, bytes, budget, ticket), ticket);
        case 1: return tell_ticket(out, original::put_group(lane, bytes, (u32)args[5], budget, ticket), ticket);
        case 2: return tell_ticket(out, original::signal_remote(lane, signal, budget, ticket), ticket);
        case 3: return tell_ticket(out, original::signal_remote_with_fence(lane, signal, budget, ticket), ticket);
        case 4: return tell_ticket(out, original::put_signal(lane, bytes, signal, budget, ticket), ticket);
        case 5: return tell_post(out, original::put_signal_counter_remote(lane, bytes, signal, counter, budget));
        case 6: return tell_post(out, original::signal_counter_remote(lane, signal, counter, budget));
        case 7: return tell_post(out, original::fence(lane, budget));
        case 8: return tell_post(out, original::reset_signal(lane, Remote{0, 1, 1}, (u32)args[5], budget));
        default: return;
    }
}

static void channel_act(Twin &twin, u64 act, const u64 *args, u64 *out, Budget &budget) {
    const Channel &channel = twin.channel;
    Bytes bytes = {{args[1], 7}, {args[2], 2, 1}, args[3]};
    Addition signal = addition(1, args[5], args[6]);
    Addition counter = addition(1, args[7], args[8]);
    u64 has = args[4];
    With with = {has & 1 ? &signal : nullptr, has & 2 ? &counter : nullptr, (has & 4) != 0, (has & 8) != 0, (has & 16) != 0};
    Put done = {0, {0, 0, 0}, {0, 0, 0}};
    Ticket ticket = {0, 0, 0};
    Remote word = signal.at;
    switch (act) {
        case 10: return tell_put(out, put(channel, bytes, with, budget, done), done);
        case 11: return tell_put(out, put_shares(channel, bytes, (u32)args[9], with, budget, done), done);
        case 12: return tell_put(out, put_inline(channel, args + 5, (u32)args[9], bytes.to, budget, done), done);
        case 13: return tell_put(out, get(channel, bytes.from, bytes.to, bytes.len, budget, done), done);
        case 14: return tell_ticket(out, trunkline::signal(channel, signal, budget, ticket), ticket);
        case 15:
            return tell_ticket(out, change(channel, (Op)args[9], word, args[6], args[8], true, has & 1, budget, ticket), ticket);
        case 16: return tell_ticket(out, signal_counter(channel, signal, counter, budget, ticket), ticket);
        case 17: return tell_wait(out, flush(channel, budget));
        case 18: out[5] = pending(channel); return;
        case 19:
            done = Put{(u32)args[1], ticket_of(twin.views[args[1] % twin.count], args[2]), ticket};
            return tell_wait(out, wait_local(channel, done, budget));
        default: return;
    }
}

static void queue_act(Twin &twin, u64 act, const u64 *args, u64 *out, Budget &budget) {
    const View &view = twin.views[args[1]];
    Reservation &held = twin.held[args[1] % 4];
    Ticket ticket = {(u32)args[2], (u32)args[3], args[4]};
    Wait how = good();
    Completion found = {0, 0, 0};
    u32 number = 0;
    switch (act) {
        case 20: out[5] = poll(view, ticket, how); return tell_wait(out, how);
        case 21: return tell_wait(out, wait(view, ticket, budget));
        case 22:
            out[0] = completion(view, ticket, found);
            out[1] = found.status;
            out[2] = found.op;
            out[3] = found.value;
            return;
        case 23:
            tell_post(out, reserve_within(view, (u32)args[2], budget, held));
            if (out[0] == POSTED) out[5] = held.first;
            return;
        case 24: out[5] = write(view, held, entry_by(args + 1)); return;
        case 25: out[5] = publish(view, held); return;
        case 26: out[5] = submit(view, args[2]); return;
        case 27: return cancel(view, held);
        case 28: out[5] = abort(view, (u16)args[2], (u32)args[3]); return;
        case 29: out[5] = companion(view); return;
        case 30: tell_wait(out, companion_within(view, budget, number)); out[5] = number; return;
        default: return;
    }
}

// A result of a wait as the header produces it: words that its kind does not use are 0.
static Wait wait_by(const u64 *args) {
    Wait how = ended((Kind)args[2]);
    if (how.kind < FAILED || how.kind > ABORTED) return how;
    how.status = (u16)args[3];
    how.detail = (u32)args[4];
    if (how.kind == FAILED) how.first_bad = args[5];
    return how;
}

static void slot_act(Twin &twin, u64 act, const u64 *args, u64 *out, Budget &budget) {
    u64 *at = twin.slots + 16 + args[1] * 2;
    Slot slot = poisoned_slot(at);
    if (args[4]) slot.base = twin.slots + 48 + args[1];
    Condition until = {(Comparison)args[2], args[3]};
    switch (act) {
        case 40: out[5] = read(slot); return;
        case 41: out[5] = reset(slot, out[6]); return;
        case 42: return tell_wait(out, wait(slot, until, budget, out[5]));
        case 46: return tell_wait(out, wait_unless_aborted(twin.views[args[5]], slot, until, budget, out[5]));
        case 43: tell(twin.group, (u32)args[1], wait_by(args)); return;
        case 44: return tell_wait(out, hear(twin.group, (u32)args[1], budget));
        case 45:
            slot = Slot{twin.slots + args[1], twin.slots + 8 + args[1], nullptr};
            return tell_wait(out, original::wait_signal(slot, args[3], budget, out[5]));
        default: return;
    }
}

extern "C" {

void *twin_new(const View *views, u32 lanes, u64 *channel, u64 *slots, u64 *group) {
    Twin *twin = new Twin();
    for (u32 at = 0; at < 2 * lanes; at++) twin->views[at] = views[at];
    for (u32 at = 0; at < lanes; at++) twin->lanes[at] = Lane{twin->views + at, twin->views + lanes, lanes};
    twin->count = lanes;
    twin->channel = Channel{twin->lanes, lanes, channel, channel + 2 * lanes};
    twin->slots = slots;
    twin->group = group;
    return twin;
}

void twin_free(void *twin) { delete (Twin *)twin; }

void twin_do(void *twin, u64 act, const u64 *args, u64 *out) {
    Budget budget = looks(args[0]);
    if (act < 10) original_act(*(Twin *)twin, act, args, out, budget);
    else if (act < 20) channel_act(*(Twin *)twin, act, args, out, budget);
    else if (act < 40) queue_act(*(Twin *)twin, act, args, out, budget);
    else slot_act(*(Twin *)twin, act, args, out, budget);
}

u32 twin_is_usable(const View *view) { return is_usable(*view); }

void twin_guard(const u64 *ranges, u32 count) {
    guards = count < 32 ? count : 32;
    for (u32 at = 0; at < guards; at++) {
        guarded[at][0] = ranges[2 * at];
        guarded[at][1] = ranges[2 * at + 1];
    }
    changes = 0;
}

u64 twin_changes() { return changes; }

void twin_steps(Step callback, void *context) {
    step = callback;
    step_context = context;
}

// Offsets and numbers, in the order that the test expects.
u32 twin_layout(u64 *out) {
    u64 all[] = {
        sizeof(View), __builtin_offsetof(View, told), __builtin_offsetof(View, ring), __builtin_offsetof(View, completions),
        __builtin_offsetof(View, bell), __builtin_offsetof(View, mark), __builtin_offsetof(View, bit),
        __builtin_offsetof(View, claims), __builtin_offsetof(View, depth), __builtin_offsetof(View, number),
        __builtin_offsetof(View, epoch), __builtin_offsetof(View, flags), __builtin_offsetof(View, shift),
        __builtin_offsetof(View, version), __builtin_offsetof(View, reserved),
        WORD_RESERVED * 8, WORD_READY * 8, WORD_SUBMITTED * 8, WORD_SHADOW * 8, WORDS_BYTES,
        TOLD_FRONTIER * 8, TOLD_ABORT * 8, TOLD_COMPANION * 8, TOLD_ABORT_ASKED * 8, TOLD_COMPANION_ASKED * 8,
        TOLD_ERROR * 8, TOLD_FIRST_BAD * 8, TOLD_REASON * 8,
        VERSION, DEPTH_MIN, DEPTH_MAX, LENGTH_MAX, INLINE_BYTES_MAX, LANES_MAX, LANE_STRIDE,
        FRONTIER_FAILED, COMPANION_NONE, COMPANION_ASKED, COMPANION_REFUSED, COMPANION_FIRST, GROUP_WORDS * 8,
        STATUS_DONE, STATUS_FLUSHED, STATUS_BAD_ENTRY, STATUS_ACCESS, STATUS_PEER_DEAD, STATUS_NETWORK, STATUS_ABORTED,
        STATUS_AWAITED, STATUS_STALE, STATUS_BAD_DOORBELL, STATUS_ABANDONED,
    };
    u32 count = sizeof(all) / sizeof(all[0]);
    for (u32 at = 0; at < count; at++) out[at] = all[at];
    return count;
}

}
