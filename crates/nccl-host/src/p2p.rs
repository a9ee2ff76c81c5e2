//! The point-to-point benchmark: the bare plugin API between two ranks.
//!
//! Runs on the progress thread of both ranks. It measures half round trips, then a stream in one direction, then in
//! both, each with at most eight messages in flight. Then it verifies messages byte by byte. It uses no schedule, so
//! that only a loop of the host is between the clock and the plugin.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::time::Instant;

use hdrhistogram::Histogram;
use trunkline_sys::nccl_net::NET_RECVS_MAX;

use crate::comm::{NetRecvPart, NetRequest};
use crate::data::{POISON, fill_bytes, wrong_bytes};
use crate::executor::{ScheduleExecutor, check_size};
use crate::links::{CommMemory, INPUT, OUTPUT, PeerCallError, RecvLink, SendLink, error_from, error_to};
use crate::rendezvous::{P2pCase, P2pMeasured};
use crate::schedule::STEPS_IN_FLIGHT;
use crate::wait::SpinWait;

/// Smallest distance between the messages in flight, so that no two share a pair of cache lines.
const STRIDE_MIN: usize = 128;
/// Bytes behind a message that are checked, if its receive is longer.
const REST_CHECKED: usize = 4096;
/// Rounds of the verified exchange, with eight messages per direction in each.
const CHECK_ROUNDS: u64 = 4;

/// Returns the bytes of memory that messages of this size need per direction.
pub(crate) fn memory_bytes(bytes: usize) -> usize {
    bytes.max(STRIDE_MIN).next_multiple_of(STRIDE_MIN) * STEPS_IN_FLIGHT
}

/// The two connections of a rank and the messages on them.
struct P2pConnections<'a> {
    send: &'a SendLink,
    recv: &'a RecvLink,
    memory: &'a CommMemory,
    waiting: &'a mut SpinWait,
    /// Bytes from one sent message to the next.
    stride: usize,
    /// Bytes from one receive to the next.
    recv_stride: usize,
    /// Length of a receive in bytes, at least.
    receive_min: usize,
}

/// Measures one size; the results of rank 0 are valid.
pub(crate) fn measure_size(
    executor: &mut ScheduleExecutor,
    rank: usize,
    case: &P2pCase,
) -> Result<P2pMeasured, PeerCallError> {
    let (Some(send), Some(recv)) = (executor.links.send.first(), executor.links.recv.first()) else {
        return Ok(P2pMeasured::default());
    };
    let receive_min = executor.receives.least;
    let mut pair = P2pConnections {
        send,
        recv,
        memory: &executor.memory,
        waiting: &mut executor.waiting,
        stride: memory_bytes(case.bytes) / STEPS_IN_FLIGHT,
        recv_stride: memory_bytes(case.bytes.max(receive_min)) / STEPS_IN_FLIGHT,
        receive_min,
    };
    let mut measured = P2pMeasured::default();
    pair.measure_latency(rank, case, &mut measured)?;
    let first = rank == 0;
    let count = case.iterations as usize;
    let bytes = case.bytes;
    let (warmup_out, warmup_in) = one_way(first, case.warmup as usize);
    pair.stream_messages(warmup_out, warmup_in, bytes)?;
    let (out, inn) = one_way(first, count);
    let seconds = pair.time_stream(first, out, inn, bytes)?;
    measured.one_way_gbs = count as f64 * bytes as f64 / seconds / 1e9;
    measured.rate_mps = count as f64 / seconds / 1e6;
    let seconds = pair.time_stream(first, count, count, bytes)?;
    measured.both_way_gbs = count as f64 * bytes as f64 / seconds / 1e9;
    for round in 0..CHECK_ROUNDS {
        measured.wrong += pair.check_bytes(rank, case.seed.wrapping_add(round), bytes)?;
    }
    Ok(measured)
}

fn one_way(first: bool, count: usize) -> (usize, usize) {
    if first { (count, 0) } else { (0, count) }
}

impl P2pConnections<'_> {
    fn isend(&self, slot: usize, bytes: usize) -> Result<Option<NetRequest>, PeerCallError> {
        let data = self.memory.buffers[INPUT].as_ptr().wrapping_add(slot * self.stride);
        // SAFETY: the slot is inside registered memory, and its previous message is complete.
        unsafe { self.send.comm.isend(data, bytes, self.send.tag, self.send.mrs[INPUT]) }
            .map_err(error_to(self.send.peer))
    }

    fn irecv(&self, slot: usize, bytes: usize) -> Result<Option<NetRequest>, PeerCallError> {
        let data = self.memory.buffers[OUTPUT].as_ptr().wrapping_add(slot * self.recv_stride);
        let bytes = bytes.max(self.receive_min);
        let part = NetRecvPart { data, bytes, tag: self.recv.tag, mr: self.recv.mrs[OUTPUT] };
        // SAFETY: the slot is inside registered memory, and its previous message is complete.
        unsafe { self.recv.comm.irecv(&[part], false) }.map_err(error_from(self.recv.peer))
    }

    fn test_send(&self, request: NetRequest) -> Result<bool, PeerCallError> {
        // SAFETY: the request is in flight on this connection, and is not tested again once it is complete.
        unsafe { self.send.comm.test(request, None) }.map_err(error_to(self.send.peer))
    }

    fn test_receive(&self, request: NetRequest, bytes: usize) -> Result<bool, PeerCallError> {
        let mut sizes: [c_int; NET_RECVS_MAX] = [-1; NET_RECVS_MAX];
        // SAFETY: the slot is inside registered memory, and its previous message is complete.
        let done = unsafe { self.recv.comm.test(request, Some(&mut sizes)) };
        let done = done.map_err(error_from(self.recv.peer))?;
        if done {
            check_size(sizes[0], bytes).map_err(error_from(self.recv.peer))?;
        }
        Ok(done)
    }

    /// Repeats a call until it returns a result.
    fn retry_until_done<T>(
        &mut self,
        mut call: impl FnMut(&Self) -> Result<Option<T>, PeerCallError>,
    ) -> Result<T, PeerCallError> {
        loop {
            if let Some(result) = call(self)? {
                self.waiting.note_progress();
                return Ok(result);
            }
            self.waiting.wait_once();
        }
    }

    /// Measures round trips of one message. The next receive is always posted before the message whose reply it
    /// receives.
    fn measure_latency(
        &mut self,
        rank: usize,
        case: &P2pCase,
        measured: &mut P2pMeasured,
    ) -> Result<(), PeerCallError> {
        // A histogram from nanoseconds up to a minute, to three digits.
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).ok();
        let total = case.warmup + case.iterations;
        let mut next = self.retry_until_done(|pair| pair.irecv(0, case.bytes))?;
        for round in 0..total {
            let start = Instant::now();
            let receiving = next;
            let mut sending = None;
            if rank == 0 {
                sending = Some(self.retry_until_done(|pair| pair.isend(0, case.bytes))?);
            }
            self.retry_until_done(|pair| {
                // A plugin may make progress on a message only while its own request is tested.
                if let Some(request) = sending
                    && pair.test_send(request)?
                {
                    sending = None;
                }
                Ok(pair.test_receive(receiving, case.bytes)?.then_some(()))
            })?;
            let elapsed = start.elapsed();
            if round + 1 < total {
                next = self.retry_until_done(|pair| pair.irecv(0, case.bytes))?;
            }
            if rank != 0 {
                sending = Some(self.retry_until_done(|pair| pair.isend(0, case.bytes))?);
            }
            if let Some(request) = sending {
                self.retry_until_done(|pair| Ok(pair.test_send(request)?.then_some(())))?;
            }
            if round >= case.warmup
                && let Some(histogram) = histogram.as_mut()
            {
                histogram.saturating_record(elapsed.as_nanos() as u64);
            }
        }
        if let Some(histogram) = histogram {
            let half = |nanoseconds: u64| nanoseconds as f64 / 2000.0;
            measured.latency_p50_us = half(histogram.value_at_quantile(0.5));
            measured.latency_p99_us = half(histogram.value_at_quantile(0.99));
            measured.latency_max_us = half(histogram.max());
        }
        Ok(())
    }

    /// Sends and receives that many messages, with eight in flight per direction.
    fn stream_messages(&mut self, sends: usize, receives: usize, bytes: usize) -> Result<(), PeerCallError> {
        let mut out: VecDeque<NetRequest> = VecDeque::with_capacity(STEPS_IN_FLIGHT);
        let mut inn: VecDeque<NetRequest> = VecDeque::with_capacity(STEPS_IN_FLIGHT);
        let mut sent = 0;
        let mut received = 0;
        let mut done = 0;
        while done < sends + receives {
            let mut moved = false;
            while received < receives && inn.len() < STEPS_IN_FLIGHT {
                let Some(request) = self.irecv(received % STEPS_IN_FLIGHT, bytes)? else { break };
                inn.push_back(request);
                received += 1;
                moved = true;
            }
            while sent < sends && out.len() < STEPS_IN_FLIGHT {
                let Some(request) = self.isend(sent % STEPS_IN_FLIGHT, bytes)? else { break };
                out.push_back(request);
                sent += 1;
                moved = true;
            }
            while let Some(request) = inn.front().copied() {
                if !self.test_receive(request, bytes)? {
                    break;
                }
                inn.pop_front();
                done += 1;
                moved = true;
            }
            while let Some(request) = out.front().copied() {
                if !self.test_send(request)? {
                    break;
                }
                out.pop_front();
                done += 1;
                moved = true;
            }
            if moved {
                self.waiting.note_progress();
            } else {
                self.waiting.wait_once();
            }
        }
        Ok(())
    }

    /// Exchanges an empty message in both directions, so that both ranks start together, and the first one knows when
    /// the other has finished.
    fn handshake(&mut self, first: bool) -> Result<(), PeerCallError> {
        if first {
            self.stream_messages(1, 0, 0)?;
            self.stream_messages(0, 1, 0)
        } else {
            self.stream_messages(0, 1, 0)?;
            self.stream_messages(1, 0, 0)
        }
    }

    /// Returns the seconds of a stream, including the other rank's part.
    fn time_stream(
        &mut self,
        first: bool,
        sends: usize,
        receives: usize,
        bytes: usize,
    ) -> Result<f64, PeerCallError> {
        self.handshake(first)?;
        let start = Instant::now();
        self.stream_messages(sends, receives, bytes)?;
        self.handshake(!first)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Exchanges eight messages per direction, and checks every byte.
    fn check_bytes(&mut self, rank: usize, seed: u64, bytes: usize) -> Result<u64, PeerCallError> {
        let block = |rank: usize, slot: usize| (rank * STEPS_IN_FLIGHT + slot) as u64;
        // The bytes of a receive behind its message must be unchanged.
        let rest = self.receive_min.saturating_sub(bytes).min(REST_CHECKED);
        for slot in 0..STEPS_IN_FLIGHT {
            // SAFETY: no message is in flight.
            let out = unsafe { self.memory.buffers[INPUT].slice_mut(slot * self.stride, bytes) };
            fill_bytes(seed, block(rank, slot), out);
            // SAFETY: as above.
            let inn = unsafe { self.memory.buffers[OUTPUT].slice_mut(slot * self.recv_stride, bytes + rest) };
            let (inn, behind) = inn.split_at_mut(bytes);
            fill_bytes(seed, POISON, inn);
            fill_bytes(seed, POISON, behind);
        }
        self.handshake(rank == 0)?;
        self.stream_messages(STEPS_IN_FLIGHT, STEPS_IN_FLIGHT, bytes)?;
        let mut wrong = self.memory.buffers.iter().map(crate::buffer::HostBuffer::damaged_guard_bytes).sum();
        for slot in 0..STEPS_IN_FLIGHT {
            // SAFETY: no message is in flight.
            let found = unsafe { self.memory.buffers[OUTPUT].slice(slot * self.recv_stride, bytes + rest) };
            let (found, behind) = found.split_at(bytes);
            wrong += wrong_bytes(seed, block(1 - rank.min(1), slot), found, 1);
            wrong += wrong_bytes(seed, POISON, behind, 1);
        }
        Ok(wrong)
    }
}
