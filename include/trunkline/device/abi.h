// Layouts and numbers of device queues that host and device share. The host's are in Rust, crates/proto/src/wire/device_queue and
// crates/device-queue/src/view.rs; tests compare both.
#ifndef TRUNKLINE_DEVICE_ABI_H
#define TRUNKLINE_DEVICE_ABI_H

namespace trunkline {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

static_assert(sizeof(u8) == 1 && sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void *) == 8, "sizes");

constexpr u32 VERSION = 1;
constexpr u32 DEPTH_MIN = 2;
constexpr u32 DEPTH_MAX = 32768;
constexpr u64 LENGTH_MAX = 1ull << 30;
constexpr u32 INLINE_BYTES_MAX = 24;
constexpr u32 LANES_MAX = 64;
// Bytes between the signals of two lanes, where each lane has its own.
constexpr u64 LANE_STRIDE = 128;

// Producers' words of a queue, as indices into `View::words`, each in a line of its own.
constexpr u32 WORD_RESERVED = 0;
constexpr u32 WORD_READY = 16;
constexpr u32 WORD_SUBMITTED = 32;
constexpr u32 WORD_SHADOW = 48;
constexpr u32 WORDS_BYTES = 512;

// Words that the engine and the host change, as indices into `View::told`.
constexpr u32 TOLD_FRONTIER = 0;
constexpr u32 TOLD_ABORT = 16;
constexpr u32 TOLD_COMPANION = 17;
constexpr u32 TOLD_ABORT_ASKED = 18;
constexpr u32 TOLD_COMPANION_ASKED = 19;
constexpr u32 TOLD_ERROR = 32;
constexpr u32 TOLD_FIRST_BAD = 33;
constexpr u32 TOLD_REASON = 34;

// Words of `View::claims`.
constexpr u32 CLAIM_ABORT = 0;
constexpr u32 CLAIM_COMPANION = 1;

constexpr u64 FRONTIER_FAILED = 1ull << 63;

constexpr u64 COMPANION_NONE = 0;
constexpr u64 COMPANION_ASKED = 1;
constexpr u64 COMPANION_REFUSED = ~0ull;
// The word of companion n is n + COMPANION_FIRST.
constexpr u64 COMPANION_FIRST = 2;

// `View::flags`.
constexpr u32 VIEW_CHECKED = 1;

// A queue as its producers see it: addresses that are valid where the kernel runs. Created by the host, read only.
struct View {
    u64 *words;        // producers' words. A device has them in its own memory, as it changes them by atomics
    u64 *told;         // frontier, abort, companion and error page: only loaded, except for the two requests
    u64 *ring;         // entries
    u64 *completions;
    u64 *bell;         // the doorbell
    void *mark;        // a word with a bit, or a byte, that has the engine poll the doorbell
    u64 bit;           // the bit; 0: `mark` is a byte of its own, as a device needs
    u64 *claims;       // two words of the device's memory, where one thread claims a request; null: the producers are host threads
    u32 depth;
    u32 number;
    u32 epoch;
    u32 flags;
    u32 shift;         // binary logarithm of depth
    u32 version;
    u64 reserved[5];
};

static_assert(sizeof(View) == 128 && alignof(View) == 8, "View");

enum Op : u8 {
    OP_NOP = 0,
    OP_WRITE = 1,
    OP_READ = 2,
    OP_ADD = 3,
    OP_SWAP_IF = 4,
    OP_ADD_MASKED = 5,
    OP_SET = 6,
    OP_MAX = 7,
    OP_WAIT = 8,
    OP_SHOW = 9,
    OP_NOTIFY = 10,
    OP_BARRIER = 11,
};

constexpr u8 FLAG_COMPLETES = 1;
constexpr u8 FLAG_FENCE_READS_AND_ATOMICS = 2;
constexpr u8 FLAG_FENCE_ALL = 4;
constexpr u8 FLAG_INLINE = 8;
constexpr u8 FLAG_IMMEDIATE = 16;
constexpr u8 FLAG_MORE = 32;
constexpr u8 FLAG_POISONED = 64;
constexpr u8 FLAG_COUNTED = 128;

// An entry as it lies in the ring.
struct Entry {
    u32 sequence;
    u8 op;
    u8 flags;
    u16 tag;
    u64 local;
    u64 remote;
    u32 local_key;
    u32 remote_key;
    u64 len;
    u64 operand;
    u64 comparand;
    u32 peer;
    u32 check;
};

static_assert(sizeof(Entry) == 64 && alignof(Entry) == 8, "Entry");

constexpr u16 STATUS_DONE = 0;
constexpr u16 STATUS_FLUSHED = 1;
constexpr u16 STATUS_BAD_ENTRY = 2;
constexpr u16 STATUS_ACCESS = 3;
constexpr u16 STATUS_PEER_DEAD = 4;
constexpr u16 STATUS_NETWORK = 5;
constexpr u16 STATUS_ABORTED = 6;
constexpr u16 STATUS_AWAITED = 7;
constexpr u16 STATUS_STALE = 8;
constexpr u16 STATUS_BAD_DOORBELL = 9;
constexpr u16 STATUS_ABANDONED = 10;
constexpr u16 STATUS_WRITING = 0xffff;

// Bytes of this process, and of another one.
struct Local {
    u64 addr;
    u32 key;
};

struct Remote {
    u64 addr;
    u32 key;
    u32 peer;
};

// How a wait ended. The numbers are those in a verdict.
enum Kind : u32 {
    GOOD = 0,
    FAILED = 1,    // the queue failed at this entry or before it
    POISONED = 2,  // the operation that was to change the signal or counter has failed
    ABORTED = 3,   // the queue was aborted
    TIMEOUT = 4,   // the budget is spent; the awaited event may still happen
    STALE = 5,     // the ticket belongs to another queue, or to an earlier queue in the same memory
    REFUSED = 6,   // no companion queue exists, and none will be created
};

struct Wait {
    Kind kind;
    u16 status;     // why: FAILED, POISONED, ABORTED
    u32 detail;     // the executor's reason, the queue that failed, or the program's reason
    u64 first_bad;  // FAILED: the first entry that failed
};

// The result of an operation that posts.
enum Posting : u32 {
    POSTED = 0,
    BUSY = 1,       // the queue is full, or earlier reservations are unpublished
    TOO_MANY = 2,   // the queue never has room for this many entries
    OVER = 3,       // the queue has failed or was aborted: `why`
    COMPANION = 4,  // no companion exists: `why`
    EMPTY = 5,      // a put of no bytes
    RANGE = 6,      // the range exceeds the address space
    GROUP = 7,      // no threads, or more than the queue is deep
    WAITING = 8,    // it was posted, but the wait for it failed: `why`
};

struct Post {
    Posting kind;
    Wait why;
};

// Names a published entry.
struct Ticket {
    u32 queue;
    u32 epoch;
    u64 index;
};

}  // namespace trunkline

#endif
