// The header's part for NVIDIA's NICs as a library of the host, beside a software NIC. ../header_mlx5.rs defines the
// acts and their words.
#include <sched.h>

typedef void (*Step)(void *context, const char *name);

static Step step;
static void *step_context;

static void pass_step(const char *name) {
    if (step != nullptr) step(step_context, name);
}

#define TRUNKLINE_PAUSE() sched_yield()
#define TRUNKLINE_STEP(name) pass_step(name)

#include "mlx5_kernels.h"

using namespace trunkline;

static void tell_wait(u64 *out, const Wait &how) {
    out[1] = how.kind;
    out[2] = how.status;
    out[3] = how.detail;
    out[4] = how.first_bad;
}

static void tell_ticket(u64 *out, const Post &result, const Ticket &ticket) {
    out[0] = result.kind;
    tell_wait(out, result.why);
    if (result.kind != POSTED) return;
    out[5] = ticket.queue;
    out[6] = ticket.index;
}

static mlx5::Entry entry_by(const u64 *args) {
    Remote there = {args[3], (u32)args[4], 0};
    Local here = {args[5], (u32)args[6]};
    switch (args[2]) {
        case 0: return mlx5::entry_nop();
        case 1: return mlx5::entry_write(here, there, (u32)args[7]);
        case 2: return mlx5::entry_write_inline(args + 7, (u32)args[1], there);
        case 3: return mlx5::entry_read(here, there, (u32)args[7]);
        case 4: return mlx5::entry_add(there, args[7], here);
        case 5: return mlx5::entry_swap_if(there, args[7], args[8], here);
        case 6: return mlx5::entry_wait((u32)args[4], args[7]);
        default: return mlx5::entry_dump(here, (u32)args[7]);
    }
}

extern "C" {

void nic_do(const mlx5::QueuePair *main, const mlx5::QueuePair *companion, u64 act, const u64 *args, u64 *out) {
    Budget budget = looks(args[0]);
    mlx5::Lane lane = {main, companion};
    Local here = {args[1], (u32)args[2]};
    Remote there = {args[3], (u32)args[4], 0};
    Addition signal = {{args[6], (u32)args[4], 0}, args[7], false};
    Addition counter = {{args[8], (u32)args[9], 0}, args[10], false};
    With with = {args[11] & 1 ? &signal : nullptr, args[11] & 2 ? &counter : nullptr, false, (args[11] & 4) != 0, false};
    Ticket ticket = {0, 0, 0}, write_done = {0, 0, 0};
    Wait how = good();
    switch (act) {
        case 0: {
            Post result = mlx5::put(lane, Bytes{here, there, args[5]}, with, budget, write_done, ticket);
            tell_ticket(out, result, ticket);
            out[7] = write_done.index;
            return;
        }
        case 1: return tell_ticket(out, mlx5::put_inline(lane, args + 7, (u32)args[5], there, budget, ticket), ticket);
        case 2: return tell_ticket(out, mlx5::get(lane, here, there, args[5], budget, ticket), ticket);
        case 3: return tell_ticket(out, mlx5::signal(lane, signal, budget, ticket), ticket);
        case 4: return tell_ticket(out, mlx5::swap_if(lane, there, args[6], args[7], here, budget, ticket), ticket);
        case 5: return tell_wait(out, wait(*main, Ticket{main->number, (u32)args[2], args[1]}, budget));
        case 6: out[5] = mlx5::abort(*main, (u16)args[1], (u32)args[2]); return;
        case 7: out[5] = mlx5::is_over(*main, how); return tell_wait(out, how);
        case 8: {
            mlx5::Entry entry = mlx5::fenced(entry_by(args), (mlx5::Fence)args[9]);
            return tell_ticket(out, post(*main, &entry, 1, budget, ticket), ticket);
        }
        default: return;
    }
}

void nic_exercise(const tests::NicJob *job) { tests::exercise_nic(*job); }

void nic_steps(Step callback, void *context) {
    step = callback;
    step_context = context;
}

}
