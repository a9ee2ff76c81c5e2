//! The primitives of lanes and requests: atomics of the standard library, the lock of the `spin` crate. Used by nothing else.
//! `tests/model.rs` compiles lanes, requests and turns a second time, over a model that tries every order of events.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(crate) use std::thread::yield_now;

pub(crate) use spin::mutex::{SpinMutex as Lock, SpinMutexGuard as Guard};
