// A program whose threads run in lockstep, as lanes of a wavefront, over a queue with room for few of them. Arguments:
// the operation, and a mode: "rule" (no second lane may enter a loop in which lanes wait for each other) or "hang" (all
// lanes must end). Prints the number of successful operations, and the number of posted entries.
#include "wavefront.h"

#include "trunkline/device.h"

using namespace trunkline;

constexpr u32 DEPTH = 2;
constexpr u32 SHIFT = 1;
constexpr u64 ROUNDS = 3;
constexpr u32 GROUP_SIZE = 2;
constexpr u32 OUTSIDER_PASSES = 50;

// Memory of the queue, of its NIC, and of groups.
struct QueueMemory {
    u64 words[80], told[48], entries[DEPTH * 8], completions[DEPTH * 2], bell, claims[2], channel[8], abort, doorbell;
    u64 groups[wavefront::LANES * GROUP_WORDS];
    u8 mark, cqes[DEPTH * 64];
    u32 record;
};

static QueueMemory memory;
static View view;
static mlx5::QueuePair pair;
static u64 produced;  // completions of the NIC
static const char *operation;
static u32 went_well, passes;
static bool has_outsider;

// The engine, and the NIC: all submitted entries have completed.
static void complete() {
    passes += 1;
    // A thread of another wavefront, which had reserved the first place, publishes it late.
    if (has_outsider && passes == OUTSIDER_PASSES) {
        put_nop(view, 0);
        dev_store(memory.words + WORD_READY, 1);
    }
    memory.told[TOLD_FRONTIER] = memory.bell;
    u16 end = (u16)__builtin_bswap32(memory.record);
    for (; (u16)produced != end; produced++) memory.cqes[(produced & (DEPTH - 1)) * 64 + mlx5::CQE_OWNER] = (u8)((produced >> SHIFT) & 1);
}

static Channel channel_of(const Lane &lane) { return Channel{&lane, 1, memory.channel, memory.channel + 2}; }

// Performs one operation of one lane; stores the ticket of its last entry.
static bool act(unsigned lane, Ticket &last) {
    Budget budget = has_outsider && lane == 0 ? looks(10) : forever();
    Lane queue = {&view, nullptr, 0};
    Bytes bytes = {{64 * lane, 1}, {4096 + 64 * lane, 2, 0}, 64};
    Addition signal = add_to_slot(Remote{0, 3, 0}, lane, 1);
    With with = {&signal, nullptr, false, false, false};
    Put done = {0, {0, 0, 0}, {0, 0, 0}};
    Post result = posted();
    if (strcmp(operation, "post") == 0 || has_outsider) {
        result = post_one(queue, entry_nop(), budget, last);
    } else if (strcmp(operation, "put") == 0) {
        result = put(channel_of(queue), bytes, with, budget, done);
        last = done.last;
    } else if (strcmp(operation, "shares") == 0) {
        result = put_shares(channel_of(queue), bytes, 1, with, budget, done);
        last = done.last;
    } else if (strcmp(operation, "alone") == 0 || strcmp(operation, "groups") == 0) {
        u32 size = strcmp(operation, "alone") == 0 ? 1 : GROUP_SIZE;
        Group own = group_of(memory.groups + lane / size * GROUP_WORDS, lane % size, size, size == 1 ? MEET_ALONE : MEET_COUNT);
        own.round = (u32)dev_load(own.words);
        With nothing = {nullptr, nullptr, false, false, false};
        result = put_cooperative(own, channel_of(queue), bytes, size == 1 ? with : nothing, budget, done);
        last = done.last;
    } else if (strcmp(operation, "ring") == 0) {
        mlx5::ring(pair, 0);
        return true;
    } else {
        mlx5::Lane nic = {&pair, nullptr};
        Ticket write_done;
        result = mlx5::put(nic, bytes, with, budget, write_done, last);
        return result.kind == POSTED && wait(pair, last, budget).kind == GOOD;
    }
    return result.kind == POSTED && wait(view, last, budget).kind == GOOD;
}

static void run_lane(unsigned lane) {
    Ticket last = {0, 0, 0};
    for (u64 round = 0; round < ROUNDS; round++) went_well += act(lane, last);
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    operation = arguments[1];
    has_outsider = strcmp(operation, "outsider") == 0;
    wavefront::is_strict = strcmp(arguments[2], "rule") == 0;
    QueueMemory &of = memory;
    view = View{of.words, of.told, of.entries, of.completions, &of.bell, &of.mark, 0, of.claims, DEPTH, 7, 1, 0, SHIFT, VERSION, {}};
    memset(of.cqes, mlx5::CQE_INVALID << 4 | 1, sizeof of.cqes);
    pair = mlx5::QueuePair{of.words, of.entries, of.cqes, &of.record, &of.doorbell, &of.abort, of.claims, DEPTH, SHIFT, 7, 1, 9, 5, {}};
    if (has_outsider) of.words[WORD_RESERVED] = 1;
    if (!wavefront::run(run_lane, complete)) {
        fprintf(stderr, "the lanes wait for each other\n");
        return 3;
    }
    printf("%u %llu\n", went_well, of.words[WORD_READY]);
    return 0;
}
