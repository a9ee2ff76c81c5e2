//! Makes one-sided calls to its own process over the fabric, repeatedly, so that `cargo xtask budget` counts
//! instructions and system calls. Arguments: a file (not used), the call, the number of bytes, and the number of calls.
//! One thread makes all calls, so the counts hardly differ between runs.
//!
//! - `rma_put`: a put that is copied, and a quiet. `rma_get`: a get that is copied.
//! - `rma_put_signal`: a put that is copied, followed by a signal, and a quiet.
//! - `rma_fetch`: an atomic that fetches.

use std::process::ExitCode;

use trunkline_engine::CommNics;
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{HeapAddress, HeapRange};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::rma::signal::{SignalUpdate, UpdateOp};
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};
use trunkline_runtime::{
    CopyFrom, CopyInto, FrontEnd, FrontEndKind, HardwareFabric, NicChoice, OneSided, ProcessSettings,
    StageLayout, control_reach,
};

/// Bytes of the heap, the last of which are the word for signals and atomics.
const HEAP_BYTES: u64 = 1 << 20;
const WORD: u64 = HEAP_BYTES - 8;
const STAGE: u64 = 256 << 10;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(2).collect();
    let [call, bytes, times] = words.as_slice() else {
        eprintln!("usage: one_sided FILE CALL BYTES COUNT");
        return ExitCode::FAILURE;
    };
    let (Ok(bytes), Ok(times)) = (bytes.parse(), times.parse()) else {
        eprintln!("BYTES and COUNT must be numbers");
        return ExitCode::FAILURE;
    };
    match repeat_call(call, bytes, times) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{call}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn repeat_call(call: &str, bytes: usize, times: u64) -> Result<(), Box<dyn std::error::Error>> {
    let params = ProcessSettings::from_process(FrontEndKind::Rust)?.params;
    let host = UnixHost::with_reach(control_reach(&params, &[]), |_, _| {});
    let front_end = FrontEnd { name: "one-sided calls", gpu_notes: Vec::new() };
    let nics = NicChoice::Named(CommNics::from(0));
    let (network, _carrier) =
        OneSided::new(params, HardwareFabric::None, nics, host, Vec::new(), &front_end)?;
    network.set_members(0, &[network.process_card()])?;
    let heap = network.add_heap(MemoryRange::try_heap(HEAP_BYTES as usize)?)?;
    let memory = MemoryRange::try_heap(STAGE as usize)?;
    let range = HeapRange { heap: network.add_heap(memory.clone())?, offset: 0, len: STAGE };
    let layout = StageLayout { memory, range, put_piece: 64 << 10, get_piece: STAGE };
    let context = network.create_context(layout)?;
    let calls = network.calls_on(&context, &());

    let at = HeapAddress { member: 0, heap, offset: 0 };
    let word = SymmetricWord::new(heap, WORD, WordWidth::Eight)?;
    let add = TypedAtomic::new(AtomicType::U64, AtomicAction::Add(1), true).ok_or("the atomic is invalid")?;
    let signal = SignalUpdate::new(UpdateOp::Add, word, 1).ok_or("the signal is invalid")?;
    let mut buffer = vec![7; bytes];
    for _ in 0..times {
        match call {
            "rma_put" => {
                calls.put_copied(at, CopyFrom::Slice(&buffer))?;
                calls.quiet()?;
            }
            "rma_get" => calls.get_copied(at, CopyInto::Slice(&mut buffer))?,
            "rma_put_signal" => {
                calls.put_signal_copied(at, CopyFrom::Slice(&buffer), signal)?;
                calls.quiet()?;
            }
            "rma_fetch" => _ = calls.fetch_atomic(0, word, add)?,
            _ => return Err("unknown call; use rma_put, rma_get, rma_put_signal or rma_fetch".into()),
        }
    }
    Ok(())
}
